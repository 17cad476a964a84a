//! Events of a run for its caller. The library itself prints nothing.

use std::path::Path;

use crate::error::Result;
use crate::plugin::Kind;
use crate::process::Interrupt;
use crate::run::Metrics;

/// Something that happened in a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A phase of work began: `loading`, `reference`, `training`, `evaluation`, `sampling`, `saving`.
    Phase {
        /// Name of the phase.
        name: &'a str,
        /// Number of units, if known.
        total: Option<usize>,
        /// Number of units that are already done (in a resumed run).
        done: usize,
    },
    /// `done` units of the phase are finished.
    Progress {
        /// Number of finished units.
        done: usize,
    },
    /// Progress within a step or an evaluation: `done` of `total` units are `what`.
    Within {
        /// Current step, counted from 1; 0 for the evaluation before the first step.
        step: usize,
        /// `sampled`, `scored`, `updated`, `accumulated`, …
        what: &'a str,
        /// Number of finished units.
        done: usize,
        /// Total number of units.
        total: usize,
    },
    /// An optimizer step (offline) or an iteration (online) was logged.
    Step {
        /// Number of the step, counted from 1.
        step: usize,
        /// Total number of steps.
        total: usize,
        /// Metrics appended to `metrics.jsonl`.
        metrics: &'a Metrics,
    },
    /// A batch of rollouts has been trained on.
    Rollouts {
        /// Number of the step, counted from 1.
        step: usize,
        /// Completions, in the order of the prompts.
        completions: &'a [LearnedCompletion<'a>],
    },
    /// The held-out rows were evaluated.
    Evaluated {
        /// Step after which this happened.
        step: usize,
        /// Metrics; their names have the prefix `eval_`.
        metrics: &'a Metrics,
        /// Whether this is the best evaluation so far.
        best: bool,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// Step after which this happened.
        step: usize,
        /// Directory of the checkpoint.
        path: &'a Path,
    },
    /// Information for the user.
    Message(&'a str),
    /// A warning for the user.
    Warning(&'a str),
}

/// A completion that was trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedCompletion<'a> {
    /// Row of the prompt in its data set, counted from 0.
    pub row: usize,
    /// Prompt as the model read it.
    pub prompt: &'a str,
    /// Text of the completion.
    pub completion: &'a str,
    /// Number of ids of the completion.
    pub tokens: usize,
    /// Reward of the whole completion; `None` if it was not scored.
    pub reward: Option<f32>,
    /// Parts of the reward by name, before weighting.
    pub parts: Vec<(&'a str, f32)>,
    /// Mean advantage of its tokens.
    pub advantage: f32,
}

/// Receives the events of a run and may stop it.
pub trait Observer {
    /// Receives an event.
    fn event(&mut self, event: &Event<'_>);

    /// Whether the run should stop. During an update, it stops after the step. During sampling, scoring or evaluation,
    /// it stops at once and repeats that work when it is resumed. A checkpoint is written first.
    fn should_stop(&mut self) -> bool {
        false
    }

    /// Returns the interrupt that is raised when the run should stop. It ends waits within a step, such as for a reward
    /// program that does not answer.
    fn interrupt(&self) -> Interrupt {
        Interrupt::default()
    }
}

impl Kind for dyn Observer {
    const NAME: &'static str = "observer";
    type Make = dyn Fn(&Path) -> Result<Box<dyn Observer>> + Send + Sync;
}

/// An observer that ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&mut self, _event: &Event<'_>) {}
}
