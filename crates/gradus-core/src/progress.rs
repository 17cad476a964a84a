//! Progress and cancellation of long work.

use crate::error::Result;

/// How far the training run is that some work belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSteps {
    /// Number of finished steps.
    pub done: usize,
    /// Total number of steps.
    pub total: usize,
}

/// Receives the progress of long work and may end it.
pub trait Progress {
    /// Reports that `done` of `total` units are `what`: `advance("sampled", 312, 1600)`.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted) if the work should end here; its results are dropped.
    fn advance(&self, what: &'static str, done: usize, total: usize) -> Result<()>;

    /// Reports what the user should know while the work goes on.
    fn warn(&self, _message: &str) {}

    /// Returns the steps of the training run that the work belongs to; `None` outside of a run.
    fn run_steps(&self) -> Option<RunSteps> {
        None
    }
}

/// Progress that is neither reported nor interrupted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn advance(&self, _what: &'static str, _done: usize, _total: usize) -> Result<()> {
        Ok(())
    }
}
