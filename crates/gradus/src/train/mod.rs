//! Training: the loop (`steps`), its two kinds of step ([`offline`] and [`online`]) and what surrounds them; [`run`] is the way in.

mod beginning;
pub(crate) mod cast;
mod claimed;
mod diagnosis;
mod examples;
pub(crate) mod fingerprint;
mod fit;
pub mod forecast;
mod held_out;
pub mod log;
mod longest;
mod models;
pub mod offline;
pub mod online;
pub(crate) mod prepare;
pub mod recorder;
mod reference_logprobs;
mod rescue;
pub mod rollout_log;
mod run;
mod steps;
pub mod warnings;
mod watched;

pub use crate::observer;
pub use run::{Outcome, run};

/// What a model is saved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveFor {
    /// To go on with training: exactly.
    Resume,
    /// To be used: with weights as `train.saved_weights` says.
    Use,
}

impl SaveFor {
    /// Which of the two a model is written from.
    fn choose<T>(self, exact: T, rounded: T) -> T {
        match self {
            Self::Resume => exact,
            Self::Use => rounded,
        }
    }
}
