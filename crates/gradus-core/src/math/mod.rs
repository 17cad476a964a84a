//! Host arithmetic on plain slices: all parts of training that have no gradient.
//!
//! Inputs and outputs are `f32`, like the tensors; sums are computed in `f64`. Functions do no I/O, keep no state and
//! do not depend on the configuration. They take one sequence at a time, so there is no padding and no mask.

pub mod classes;
pub mod conjugate;
pub mod entropy;
pub mod gae;
pub mod group;
pub mod importance;
pub mod kl;
pub mod rank;
pub mod schedule;
pub mod stats;
pub mod weights;
pub mod whiten;

pub use entropy::{AdaptiveEntropy, EntropyController, high_entropy_mask};
pub use gae::{gae, returns};
pub use group::{Baseline, GroupAdvantages, Scale, group_advantages, objective_advantages};
pub use weights::{Reduction, token_weights};
pub use whiten::{Divisor, Whiten, whiten, whiten_with};
