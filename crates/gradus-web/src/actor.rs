//! A thread that owns a computing value and handles requests one after the other.
//!
//! The server sends requests for a model to the thread that owns it, and awaits the results without blocking. The work runs on the
//! computing threads, which all models share.

use std::sync::mpsc;
use std::time::Duration;

use gradus::threads::among_threads;
use gradus::{Error, Result};
use tokio::sync::oneshot;

/// Work of a thread between requests.
pub trait Work: Send {
    /// Returns whether [`step`](Self::step) has something to do.
    fn is_busy(&self) -> bool {
        false
    }

    /// Does a small part of the work.
    fn step(&mut self) {}

    /// Returns whether the work is paused: the thread then handles requests only.
    fn is_paused(&self) -> bool {
        false
    }
}

/// Interval at which paused work checks whether it may continue.
const REST: Duration = Duration::from_millis(5);

/// Code that runs on the thread, with the value that it owns.
type Request<T> = Box<dyn FnOnce(&mut T) + Send>;

/// Handle of a thread that owns a `T`. The thread ends after the last handle is dropped and its work is done.
pub struct Actor<T> {
    requests: mpsc::Sender<Request<T>>,
}

impl<T: Work + 'static> Actor<T> {
    /// Starts a thread that owns the value created by `make`.
    ///
    /// # Errors
    /// Errors of `make`.
    pub async fn start(make: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (requests, inbox) = mpsc::channel();
        let (made, is_made) = oneshot::channel();
        std::thread::spawn(move || match make() {
            Ok(mut owned) => {
                // If the caller is gone, there will be no requests.
                let _ = made.send(Ok(()));
                run(&mut owned, &inbox);
            }
            Err(error) => drop(made.send(Err(error))),
        });
        is_made.await.unwrap_or_else(|_| Err(gone()))?;
        Ok(Self { requests })
    }

    /// Calls `ask` on the thread and returns its result.
    ///
    /// # Errors
    /// The thread has panicked.
    pub async fn ask<R: Send + 'static>(&self, ask: impl FnOnce(&mut T) -> R + Send + 'static) -> Result<R> {
        let (answer, answered) = oneshot::channel();
        let request: Request<T> = Box::new(move |owned| drop(answer.send(ask(owned))));
        self.requests.send(request).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }

    /// Returns whether the thread still runs.
    pub fn is_open(&self) -> bool {
        self.requests.send(Box::new(|_| ())).is_ok()
    }
}

fn gone() -> Error {
    Error::input("the thread of the model has ended")
        .with_hint("the last output of the server shows the reason; repeat the request to load the model again")
}

fn run<T: Work>(owned: &mut T, inbox: &mpsc::Receiver<Request<T>>) {
    loop {
        // If there is nothing to do, wait for a request. Otherwise check for one and continue.
        let request = match (owned.is_busy(), owned.is_paused()) {
            (false, _) => match inbox.recv() {
                Ok(request) => Some(request),
                Err(_) => return,
            },
            (true, true) => match inbox.recv_timeout(REST) {
                Ok(request) => Some(request),
                Err(error) => {
                    // All handles are dropped, so the receiver no longer waits.
                    if error == mpsc::RecvTimeoutError::Disconnected {
                        std::thread::sleep(REST);
                    }
                    continue;
                }
            },
            (true, false) => inbox.try_recv().ok(),
        };
        among_threads(|| match request {
            Some(request) => request(owned),
            None => owned.step(),
        });
    }
}
