//! Progress and cancellation of long work.

use crate::error::Result;

/// Receives the progress of long work and may end it.
pub trait Progress {
    /// Reports that `done` of `total` units are `what`: `advance("sampled", 312, 1600)`.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted) if the work should end here; its results are dropped.
    fn advance(&self, what: &'static str, done: usize, total: usize) -> Result<()>;

    /// Reports what the user should know while the work goes on.
    fn warn(&self, _message: &str) {}
}

/// Progress that is neither reported nor interrupted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn advance(&self, _what: &'static str, _done: usize, _total: usize) -> Result<()> {
        Ok(())
    }
}
