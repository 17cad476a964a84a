//! Training: the loop (`steps`), its two kinds of step ([`offline`] and [`online`]) and what surrounds them; [`run`] is the way in.

mod beginning;
pub(crate) mod cast;
mod claimed;
mod diagnosis;
pub(crate) mod environment;
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
mod online_inputs;
pub(crate) mod player;
pub(crate) mod prepare;
pub mod recorder;
mod reference_logprobs;
mod rescue;
pub mod rollout_log;
mod run;
mod source;
mod steps;
pub mod warnings;
mod watched;

pub use crate::observer;
use crate::run::database::Table;
use crate::run::metrics::TEST_PREFIX;
pub use run::{Outcome, run, run_on};

/// Rows that are measured and not trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalSplit {
    /// Those held out: they are measured throughout, and decide which model is best.
    HeldOut,
    /// Test rows: they are measured before the first step and after the last, and decide nothing.
    Test,
}

impl EvalSplit {
    /// What the names of its metrics begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::HeldOut => "eval_",
            Self::Test => TEST_PREFIX,
        }
    }

    /// Where its completions are recorded.
    fn table(self) -> Table {
        match self {
            Self::HeldOut => Table::Eval,
            Self::Test => Table::Test,
        }
    }
}

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
