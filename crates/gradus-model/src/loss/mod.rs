//! Losses: pure functions on tensors, one value per counted token or per pair. Reduction is a separate step
//! ([`reduce`]) with weights computed on the host ([`gradus_core::math::weights`]).
//!
//! Tensors hold only counted entries: `[M]` counted tokens of a packed micro-batch, `[P]` pairs, `[B]` sequences.
//! Masked entries never enter the arithmetic. Losses do not depend on models, texts or the configuration.

pub mod cispo;
pub mod classify;
pub mod cpo;
pub mod distill;
pub mod divergence;
pub mod dpo;
pub mod dro;
pub mod kl;
pub mod kto;
pub mod numeric;
pub mod orpo;
pub mod policy_gradient;
pub mod reduce;
pub mod reward;
pub mod sapo;
pub mod sft;
pub mod surrogate;
pub mod value;
pub mod vespo;

#[cfg(test)]
pub(crate) mod check;
