//! Host arithmetic: everything in training that has no gradient, on plain slices.
//!
//! Inputs and outputs are `f32` (what tensors hold); sums run in `f64`. Nothing here does I/O, keeps hidden state or
//! knows the configuration. Sequences come one at a time, so there is no padding and no mask.

pub mod classes;
pub mod conjugate;
pub mod gae;
pub mod group;
pub mod importance;
pub mod kl;
pub mod rank;
pub mod schedule;
pub mod stats;
pub mod weights;
pub mod whiten;

pub use gae::{gae, returns};
pub use group::{Baseline, GroupAdvantages, Scale, group_advantages};
pub use weights::{Reduction, token_weights};
pub use whiten::{Divisor, Whiten, whiten, whiten_with};
