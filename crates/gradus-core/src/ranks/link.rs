//! Connections between ranks: MPI between processes, or channels between threads.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use gradus_mpi::{ExchangeError, Mpi, Wait};

/// Sends and receives messages between ranks.
pub trait Link: Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Returns true if threads other than the first one may exchange messages.
    fn lets_threads(&self) -> bool;

    /// Sends each of `sends` to its rank, and receives a message of known length from each of `receives`, in order. Messages between two
    /// ranks with the same `wait.flows` arrive in the order of sending. Messages with `flows` and those without are separate streams.
    ///
    /// # Errors
    /// If a rank cannot be reached. No further exchange is possible then.
    fn exchange(
        &self,
        sends: &[(usize, Arc<Vec<u8>>)],
        receives: &[(usize, usize)],
        wait: Wait,
    ) -> Result<Vec<Vec<u8>>, ExchangeError>;

    /// Ends all ranks at once, with this exit code.
    fn abort(&self, code: i32) -> !;

    /// Leaves the group of ranks.
    fn finish(&self);
}

impl Link for Mpi {
    fn rank(&self) -> usize {
        Mpi::rank(self)
    }

    fn size(&self) -> usize {
        Mpi::size(self)
    }

    fn lets_threads(&self) -> bool {
        Mpi::lets_threads(self)
    }

    fn exchange(
        &self,
        sends: &[(usize, Arc<Vec<u8>>)],
        receives: &[(usize, usize)],
        wait: Wait,
    ) -> Result<Vec<Vec<u8>>, ExchangeError> {
        Mpi::exchange(self, sends, receives, wait)
    }

    fn abort(&self, code: i32) -> ! {
        Mpi::abort(self, code)
    }

    fn finish(&self) {
        if let Err(lost) = self.finalize() {
            tracing::warn!("MPI does not end: {lost}");
        }
    }
}

type Queues = HashMap<(usize, usize, bool), Vec<Arc<Vec<u8>>>>;

/// Messages in transit between threads of one process.
#[derive(Default)]
struct Post {
    /// By sender, receiver and `flows`, oldest first.
    queues: Mutex<Queues>,
    news: Condvar,
}

/// A thread that acts as a rank.
struct Thread {
    rank: usize,
    size: usize,
    post: Arc<Post>,
}

/// Creates links between `size` threads of this process, for tests and for trials without further processes.
pub fn threads(size: usize) -> Vec<Box<dyn Link>> {
    let post = Arc::new(Post::default());
    (0..size).map(|rank| Box::new(Thread { rank, size, post: Arc::clone(&post) }) as Box<dyn Link>).collect()
}

impl Link for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn lets_threads(&self) -> bool {
        true
    }

    fn exchange(
        &self,
        sends: &[(usize, Arc<Vec<u8>>)],
        receives: &[(usize, usize)],
        wait: Wait,
    ) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let since = Instant::now();
        let mut queues = self.post.queues.lock().expect("no holder panics");
        for (to, bytes) in sends.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            queues.entry((self.rank, *to, wait.flows)).or_default().push(Arc::clone(bytes));
        }
        self.post.news.notify_all();
        let mut found = Vec::with_capacity(receives.len());
        for &(from, length) in receives {
            if length == 0 {
                found.push(Vec::new());
                continue;
            }
            let message = loop {
                let queue = queues.entry((from, self.rank, wait.flows)).or_default();
                if !queue.is_empty() {
                    break queue.remove(0);
                }
                let Some(left) = wait.limit.checked_sub(since.elapsed()) else {
                    return Err(ExchangeError::Late { ranks: vec![from], limit_s: wait.limit.as_secs() });
                };
                queues = self.post.news.wait_timeout(queues, left).expect("no holder panics").0;
            };
            assert_eq!(message.len(), length, "a message from rank {from}");
            found.push(Arc::unwrap_or_clone(message));
        }
        Ok(found)
    }

    fn abort(&self, code: i32) -> ! {
        panic!("rank {} ends all with code {code}", self.rank)
    }

    fn finish(&self) {}
}
