//! Losses: pure functions on tensors, one value per counted token or per pair; reduction is a separate step
//! ([`reduce`]) with weights made on the host ([`crate::math::weights`]).
//!
//! Tensors hold only what counts: `[M]` counted tokens of a packed micro-batch, `[P]` pairs, `[B]` sequences. Nothing
//! that is masked out ever enters the arithmetic. A loss sees no model, no text and no configuration.

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
