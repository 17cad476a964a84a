//! A pause: nothing new is sampled, so that weights can be replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// How often a pause that waits looks whether everything has ended.
pub const LOOK: Duration = Duration::from_millis(10);

/// Whether there is a pause. Requests of programs wait for its end.
#[derive(Debug)]
pub struct Pause {
    set: watch::Sender<bool>,
    /// Whether what is on its way stands still too.
    still: Arc<AtomicBool>,
}

impl Default for Pause {
    fn default() -> Self {
        Self { set: watch::Sender::new(false), still: Arc::default() }
    }
}

impl Pause {
    /// Begins a pause; with `still`, what is on its way stands still too.
    pub fn set(&self, still: bool) {
        self.still.store(still, Ordering::SeqCst);
        self.set.send_replace(true);
    }

    /// Ends it.
    pub fn end(&self) {
        self.still.store(false, Ordering::SeqCst);
        self.set.send_replace(false);
    }

    /// Whether there is one.
    pub fn is_set(&self) -> bool {
        *self.set.borrow()
    }

    /// What desks look at.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.still)
    }

    /// Waits until there is none.
    pub async fn over(&self) {
        // The sender is here, so it cannot be gone.
        let _ = self.set.subscribe().wait_for(|is_set| !is_set).await;
    }
}
