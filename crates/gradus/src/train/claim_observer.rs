//! Updates `state.json` with the number of steps as soon as it is known, and removes a replaced run after the first step of the new one.

use std::cell::RefCell;

use crate::error::Result;
use crate::observer::{Event, Observer};
use crate::reward::Interrupt;
use crate::run::Claim;

/// Observer that updates the claim and forwards all events.
pub struct ClaimObserver<'a> {
    /// Claim of the run directory.
    pub claim: &'a RefCell<Claim>,
    /// The next observer.
    pub inner: &'a mut dyn Observer,
}

impl ClaimObserver<'_> {
    /// Applies a change and only warns if it fails. A missing total or an old run that cannot be removed is no reason to stop, and the next
    /// write will report a full disk.
    fn change(&mut self, change: impl FnOnce(&mut Claim) -> Result<()>) {
        if let Err(error) = change(&mut self.claim.borrow_mut()) {
            tracing::warn!("{error}");
        }
    }
}

impl Observer for ClaimObserver<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Phase { name: "training", total: Some(steps), .. } => {
                self.change(|claim| claim.set_steps(*steps));
            }
            Event::Step { .. } | Event::Checkpoint { .. } => self.change(Claim::has_begun),
            // The first step is done, even if it is not logged.
            Event::Within { step, .. } if *step > 1 => self.change(Claim::has_begun),
            _ => {}
        }
        self.inner.event(event);
    }

    fn should_stop(&mut self) -> bool {
        self.inner.should_stop()
    }

    fn interrupt(&self) -> Interrupt {
        self.inner.interrupt()
    }
}
