//! What a run tells whoever started it. The library itself prints nothing.

use std::path::Path;

use crate::error::Result;
use crate::plugin::Kind;
use crate::process::Interrupt;
use crate::run::Metrics;

/// Something that happened in a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A stretch of work began: `loading`, `reference`, `training`, `evaluation`, `sampling`, `saving`.
    Phase {
        /// Its name.
        name: &'a str,
        /// How many units it has, where that is known.
        total: Option<usize>,
        /// How many of them are done already (a resumed run).
        done: usize,
    },
    /// `done` units of the phase are done.
    Progress {
        /// Units done.
        done: usize,
    },
    /// Progress within a step or an evaluation: `done` of `total` units are `what`.
    Within {
        /// The step that is under way, counted from 1; 0 for the evaluation before the first.
        step: usize,
        /// `sampled`, `scored`, `updated`, `accumulated`, …
        what: &'a str,
        /// Units done.
        done: usize,
        /// How many there are.
        total: usize,
    },
    /// An optimizer step (offline) or an iteration (online) was logged.
    Step {
        /// Counted from 1.
        step: usize,
        /// How many there will be.
        total: usize,
        /// What was appended to `metrics.jsonl`.
        metrics: &'a Metrics,
    },
    /// What was sampled has been learned from.
    Rollouts {
        /// The step, counted from 1.
        step: usize,
        /// The completions, in the order of the prompts.
        completions: &'a [LearnedCompletion<'a>],
    },
    /// The held-out rows were evaluated.
    Evaluated {
        /// After this step.
        step: usize,
        /// Names carry the prefix `eval_`.
        metrics: &'a Metrics,
        /// Whether it is the best so far.
        best: bool,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// After this step.
        step: usize,
        /// Its directory.
        path: &'a Path,
    },
    /// Something the user should know.
    Message(&'a str),
    /// Something the user should look at.
    Warning(&'a str),
}

/// A completion that was learned from.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedCompletion<'a> {
    /// The prompt's row in its data set, counted from 0.
    pub row: usize,
    /// The prompt as the model read it.
    pub prompt: &'a str,
    /// What the model wrote.
    pub completion: &'a str,
    /// Ids of the completion.
    pub tokens: usize,
    /// The reward of the whole completion; `None` where it was not scored.
    pub reward: Option<f32>,
    /// The parts of the reward by name, before weighting.
    pub parts: Vec<(&'a str, f32)>,
    /// The mean advantage of its tokens.
    pub advantage: f32,
}

/// Watches a run and may stop it.
pub trait Observer {
    /// Something happened.
    fn event(&mut self, event: &Event<'_>);

    /// Whether the run should stop. While weights are updated, it stops after the step; while it samples, scores or
    /// evaluates, at once, and takes that up again when it is resumed. A checkpoint is written first.
    fn should_stop(&mut self) -> bool {
        false
    }

    /// What is raised when the run should stop, for those who wait within a step: a reward program that does not answer.
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
