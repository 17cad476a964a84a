//! Observers that a configuration names, beside the one that the run was started with.

use std::path::Path;

use super::beginning::Beginning;
use crate::config::Plan;
use crate::error::Result;
use crate::observer::{Event, Observer};
use crate::process::Interrupt;
use crate::ranks::Ranks;

/// Passes everything on, to the observers of the plan from when the run directory is the run's own.
pub struct Watched<'a> {
    inner: &'a mut dyn Observer,
    others: Vec<Box<dyn Observer>>,
    beginning: &'a Beginning<'a>,
}

impl<'a> Watched<'a> {
    /// Makes the observers of `plan`, whose run is in `directory`.
    ///
    /// # Errors
    /// What one of them cannot be made for.
    pub fn new(
        plan: &Plan,
        directory: &Path,
        beginning: &'a Beginning<'a>,
        ranks: Ranks,
        inner: &'a mut dyn Observer,
    ) -> Result<Self> {
        // A run is observed once, whatever the number of ranks.
        let observers = plan.config().observers.iter().filter(|_| ranks.is_first());
        let others = observers.map(|plugin| plugin.make()?(directory));
        Ok(Self { inner, others: others.collect::<Result<_>>()?, beginning })
    }
}

impl Observer for Watched<'_> {
    fn event(&mut self, event: &Event<'_>) {
        self.inner.event(event);
        if self.beginning.has_begun() {
            self.others.iter_mut().for_each(|other| other.event(event));
        }
    }

    fn should_stop(&mut self) -> bool {
        // Every one is asked: some count on it.
        let others = self.others.iter_mut().map(|other| other.should_stop()).collect::<Vec<_>>();
        self.inner.should_stop() || others.contains(&true)
    }

    fn interrupt(&self) -> Interrupt {
        self.inner.interrupt()
    }
}
