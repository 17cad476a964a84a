//! `state.json` learns how many steps a run has, as soon as the trainer says so; and a run that is replaced goes once the
//! new one has a step to show.

use std::cell::RefCell;

use crate::error::Result;
use crate::observer::{Event, Observer};
use crate::reward::Interrupt;
use crate::run::Claim;

/// Passes everything on.
pub struct Claimed<'a> {
    /// The run directory.
    pub claim: &'a RefCell<Claim>,
    /// Who watches.
    pub inner: &'a mut dyn Observer,
}

impl Claimed<'_> {
    /// A list that does not show the total is no reason to stop, and neither is an old run that cannot be removed; the next
    /// write will find a full disk.
    fn change(&mut self, change: impl FnOnce(&mut Claim) -> Result<()>) {
        if let Err(error) = change(&mut self.claim.borrow_mut()) {
            tracing::warn!("{error}");
        }
    }
}

impl Observer for Claimed<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Phase { name: "training", total: Some(steps), .. } => {
                self.change(|claim| claim.set_steps(*steps));
            }
            Event::Step { .. } | Event::Checkpoint { .. } => self.change(Claim::has_begun),
            // The first step is done, whether or not it is logged.
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
