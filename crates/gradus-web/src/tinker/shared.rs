//! State shared by the request handlers and the computing thread.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::options::TrainingOptions;
use super::registry::Registry;
use crate::models::{ComputeOptions, Models};

/// State shared by the request handlers and the computing thread.
pub struct Shared {
    pub folder: PathBuf,
    pub registry: Mutex<Registry>,
    pub work: Condvar,
    pub news: watch::Sender<u64>,
    pub has_ended: AtomicBool,
    pub patience: Duration,
}

impl Shared {
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work, for at most `most`.
    pub fn wait<'r>(&self, registry: MutexGuard<'r, Registry>, most: Duration) -> MutexGuard<'r, Registry> {
        self.work.wait_timeout(registry, most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes the handlers that wait for results.
    pub fn notify(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

/// Inputs of the computing thread.
pub struct Computer {
    pub models: Arc<Models>,
    pub computing: ComputeOptions,
    pub options: TrainingOptions,
}
