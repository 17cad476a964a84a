//! The training server, with its computing thread.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use tokio::sync::watch;

use super::checkpoints;
use super::journal::Journal;
use super::options::TrainingOptions;
use super::registry::Registry;
use super::shared::{Computer, Shared};
use super::worker::Worker;
use crate::models::{ComputeOptions, Models};

/// Folder of the checkpoints in the served folder.
const FOLDER: &str = "tinker";

/// The training server. Dropping it ends its thread.
pub struct Training {
    pub(super) shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Training {
    /// Opens the training server in the served `folder` and restores its state.
    ///
    /// # Errors
    /// Another server trains there, or the journal cannot be read.
    pub fn open(
        folder: &Path,
        models: Arc<Models>,
        computing: ComputeOptions,
        options: TrainingOptions,
    ) -> gradus::Result<Self> {
        let folder = folder.join(FOLDER);
        let registry = Registry::open(Journal::open(&folder)?, options.clone())?;
        checkpoints::recover(&folder)?;
        let (news, _) = watch::channel(0);
        let (work, has_ended) = (Condvar::new(), AtomicBool::new(false));
        let (registry, patience) = (Mutex::new(registry), options.patience);
        let shared = Arc::new(Shared { folder, registry, work, news, has_ended, patience });
        let (own, computer) = (Arc::clone(&shared), Computer { models, computing, options });
        let thread = std::thread::spawn(move || Worker::run(own, computer));
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        self.shared.work.notify_all();
        // The current work is in the journal. The next server may open that only after this thread has ended.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
