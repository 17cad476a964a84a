//! Training: the loop (`steps`), its two kinds of steps (`offline` and `online`) and their surroundings. [`run`] is the entry point.

pub(crate) mod cast;
mod claim_observer;
mod diagnosis;
pub(crate) mod environment;
pub(crate) mod examples;
pub(crate) mod fingerprint;
mod fit;
pub mod forecast;
mod held_out;
mod log;
mod longest;
mod models;
pub(crate) mod offline;
mod offline_run;
// For tests of the loop.
#[doc(hidden)]
pub mod online;
mod online_inputs;
mod online_run;
pub(crate) mod player;
mod plugin_observers;
pub(crate) mod prepare;
// For tests of the loop.
#[doc(hidden)]
pub mod recorder;
mod reference_logprobs;
mod rescue;
mod rollout_log;
mod run;
mod run_context;
mod run_start;
mod source;
mod steps;
mod warnings;

pub use crate::observer;
use crate::run::database::RolloutTable;
use crate::run::metrics::TEST_PREFIX;
pub use run::{run, run_on};
pub use run_context::FinishedRun;

/// Rows for evaluation only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalSplit {
    /// Held-out rows: evaluated throughout the run, and used to select the best model.
    HeldOut,
    /// Test rows: evaluated before the first step and after the last one. They select nothing.
    Test,
}

impl EvalSplit {
    /// Prefix of its metrics.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::HeldOut => "eval_",
            Self::Test => TEST_PREFIX,
        }
    }

    /// Table for its completions.
    fn table(self) -> RolloutTable {
        match self {
            Self::HeldOut => RolloutTable::Eval,
            Self::Test => RolloutTable::Test,
        }
    }
}

/// Purpose of a saved model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveFor {
    /// Resuming the training: exact weights.
    Resume,
    /// Use of the model: weights in the format of `train.saved_weights`.
    Use,
}

impl SaveFor {
    /// Selects the source of the weights.
    fn choose<T>(self, exact: T, rounded: T) -> T {
        match self {
            Self::Resume => exact,
            Self::Use => rounded,
        }
    }
}
