//! `state.json` learns how many steps a run has, as soon as the trainer says so.

use super::observer::{Event, Observer};
use crate::run::Claim;

/// Passes everything on.
pub struct Claimed<'a> {
    /// The run directory.
    pub claim: &'a mut Claim,
    /// Who watches.
    pub inner: &'a mut dyn Observer,
}

impl Observer for Claimed<'_> {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Phase { name: "training", total: Some(steps), .. } = event {
            // A list that does not show the total is no reason to stop; the next write will find a full disk.
            if let Err(error) = self.claim.set_steps(*steps) {
                tracing::warn!("{error}");
            }
        }
        self.inner.event(event);
    }

    fn should_stop(&mut self) -> bool {
        self.inner.should_stop()
    }
}
