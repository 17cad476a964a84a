//! Pause of sampling, so that weights can be replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// Interval at which a pause checks whether all completions have ended.
pub const LOOK: Duration = Duration::from_millis(10);

/// State of the pause. Requests of programs wait for its end.
#[derive(Debug)]
pub struct Pause {
    set: watch::Sender<bool>,
    /// Whether completions in progress are suspended, too.
    still: Arc<AtomicBool>,
}

impl Default for Pause {
    fn default() -> Self {
        Self { set: watch::Sender::new(false), still: Arc::default() }
    }
}

impl Pause {
    /// Begins a pause. With `still`, completions in progress are suspended, too.
    pub fn set(&self, still: bool) {
        self.still.store(still, Ordering::SeqCst);
        self.set.send_replace(true);
    }

    /// Ends the pause.
    pub fn end(&self) {
        self.still.store(false, Ordering::SeqCst);
        self.set.send_replace(false);
    }

    /// Returns whether there is a pause.
    pub fn is_set(&self) -> bool {
        *self.set.borrow()
    }

    /// Returns the flag that desks check.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.still)
    }

    /// Waits until there is no pause.
    pub async fn over(&self) {
        // The sender is alive, because `self` owns it.
        let _ = self.set.subscribe().wait_for(|is_set| !is_set).await;
    }
}
