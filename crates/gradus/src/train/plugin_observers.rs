//! Observers from the configuration, in addition to the caller's observer.

use std::path::Path;

use super::run_start::RunStart;
use crate::config::Plan;
use crate::error::Result;
use crate::observer::{Event, Observer};
use crate::process::Interrupt;
use crate::ranks::Ranks;

/// Observer that forwards all events. Configured observers receive them once the run owns its directory.
pub struct PluginObservers<'a> {
    inner: &'a mut dyn Observer,
    others: Vec<Box<dyn Observer>>,
    run_start: &'a RunStart<'a>,
}

impl<'a> PluginObservers<'a> {
    /// Creates the observers of `plan` for the run in `directory`.
    ///
    /// # Errors
    /// If an observer cannot be created.
    pub fn new(
        plan: &Plan,
        directory: &Path,
        run_start: &'a RunStart<'a>,
        ranks: Ranks,
        inner: &'a mut dyn Observer,
    ) -> Result<Self> {
        // A run has one set of observers, whatever the number of ranks.
        let observers = plan.config().observers.iter().filter(|_| ranks.is_first());
        let others = observers.map(|plugin| plugin.make()?(directory));
        Ok(Self { inner, others: others.collect::<Result<_>>()?, run_start })
    }
}

impl Observer for PluginObservers<'_> {
    fn event(&mut self, event: &Event<'_>) {
        self.inner.event(event);
        if self.run_start.has_begun() {
            self.others.iter_mut().for_each(|other| other.event(event));
        }
    }

    fn should_stop(&mut self) -> bool {
        // All observers are called, because some rely on the call.
        let others = self.others.iter_mut().map(|other| other.should_stop()).collect::<Vec<_>>();
        self.inner.should_stop() || others.contains(&true)
    }

    fn interrupt(&self) -> Interrupt {
        self.inner.interrupt()
    }
}
