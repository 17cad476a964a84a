//! A thread that owns something which computes, and does what it is asked, one thing after the other.
//!
//! What the server wants of a model is sent to the thread that has it, and what comes back is waited for without blocking the
//! server. What is done is done among the threads that compute, which all models share.

use std::sync::mpsc;
use std::time::Duration;

use gradus::machine::among_threads;
use gradus::{Error, Result};
use tokio::sync::oneshot;

/// What a thread does when it is not asked for anything.
pub trait Work: Send {
    /// Whether [`step`](Self::step) has something to do.
    fn is_busy(&self) -> bool {
        false
    }

    /// Does a little.
    fn step(&mut self) {}

    /// Whether it is paused: it takes requests, and does nothing else.
    fn is_paused(&self) -> bool {
        false
    }
}

/// How often paused work looks whether it may go on.
const REST: Duration = Duration::from_millis(5);

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// The way to a thread that owns a `T`. The thread ends once nobody has a way to it and its work is done.
pub struct Actor<T> {
    jobs: mpsc::Sender<Job<T>>,
}

impl<T: Work + 'static> Actor<T> {
    /// A thread with what `make` makes there.
    ///
    /// # Errors
    /// What `make` fails with.
    pub async fn start(make: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (jobs, inbox) = mpsc::channel();
        let (made, is_made) = oneshot::channel();
        std::thread::spawn(move || match make() {
            Ok(mut owned) => {
                // Whoever asked may be gone; then nobody will ask again.
                let _ = made.send(Ok(()));
                run(&mut owned, &inbox);
            }
            Err(error) => drop(made.send(Err(error))),
        });
        is_made.await.unwrap_or_else(|_| Err(gone()))?;
        Ok(Self { jobs })
    }

    /// Has the thread call `ask`, and waits for what it gives.
    ///
    /// # Errors
    /// When the thread has panicked.
    pub async fn ask<R: Send + 'static>(&self, ask: impl FnOnce(&mut T) -> R + Send + 'static) -> Result<R> {
        let (answer, answered) = oneshot::channel();
        let job: Job<T> = Box::new(move |owned| drop(answer.send(ask(owned))));
        self.jobs.send(job).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }

    /// Whether the thread is there.
    pub fn is_open(&self) -> bool {
        self.jobs.send(Box::new(|_| ())).is_ok()
    }
}

fn gone() -> Error {
    Error::input("the thread that computes has ended")
        .with_hint("what it printed last says why; ask again to load the model anew")
}

fn run<T: Work>(owned: &mut T, inbox: &mpsc::Receiver<Job<T>>) {
    loop {
        // With nothing to do, wait; with something to do, look and go on.
        let job = match (owned.is_busy(), owned.is_paused()) {
            (false, _) => match inbox.recv() {
                Ok(job) => Some(job),
                Err(_) => return,
            },
            (true, true) => match inbox.recv_timeout(REST) {
                Ok(job) => Some(job),
                Err(error) => {
                    // Nobody has a way to it any more, so nothing is waited for any longer than this.
                    if error == mpsc::RecvTimeoutError::Disconnected {
                        std::thread::sleep(REST);
                    }
                    continue;
                }
            },
            (true, false) => inbox.try_recv().ok(),
        };
        among_threads(|| match job {
            Some(job) => job(owned),
            None => owned.step(),
        });
    }
}
