//! Turns of episodes sampled by a server: one request per turn, with all ids so far.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client::{Client, Weights};
use super::forms::{CompletionRequest, ServerCompletion};
use super::stop_of;
use crate::error::Result;
use crate::generate::{Completion, Request, SamplingParams, Turn as Extension};
use crate::rng::{Stream, key_of};
use crate::rollout::Sampler;
use crate::rollout::episodes::Drawer;

/// How long the drawer waits for a turn before it returns to other work.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// State shared by the threads.
struct TurnQueue {
    client: Arc<Client>,
    weights: Arc<Weights>,
    /// Turns waiting to be requested; `None` when no more turns are needed.
    open: Mutex<Option<VecDeque<(usize, CompletionRequest)>>>,
    /// Wakes threads that wait for such a turn.
    wake: Condvar,
    /// Number of times that lost weights were loaded again.
    loads: Mutex<usize>,
}

impl TurnQueue {
    fn open(&self) -> MutexGuard<'_, Option<VecDeque<(usize, CompletionRequest)>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next turn to request; returns `None` when no more turns are needed.
    fn next(&self) -> Option<(usize, CompletionRequest)> {
        let mut open = self.open();
        loop {
            match open.as_mut()?.pop_front() {
                Some(next) => return Some(next),
                None => open = self.wake.wait(open).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Samples turns on a server.
pub(super) struct RemoteDrawer<'s> {
    queue: Arc<TurnQueue>,
    sampler: &'s Sampler<'s>,
    stop: Arc<[String]>,
    vocabulary: usize,
    connections: usize,
    /// Ids of each row so far.
    rows: Vec<Vec<u32>>,
    /// Rows that await a turn.
    pending: Vec<usize>,
    send: Sender<(usize, Result<ServerCompletion>)>,
    found: Receiver<(usize, Result<ServerCompletion>)>,
    threads: usize,
}

impl<'s> RemoteDrawer<'s> {
    /// Creates a drawer on the server of `client`, which has loaded `weights`.
    pub fn new(
        client: &Arc<Client>,
        weights: &Arc<Weights>,
        (connections, vocabulary): (usize, usize),
        sampler: &'s Sampler<'s>,
    ) -> Self {
        let (send, found) = channel();
        let open = Mutex::new(Some(VecDeque::new()));
        let (wake, loads) = (Condvar::new(), Mutex::default());
        let queue = TurnQueue { client: Arc::clone(client), weights: Arc::clone(weights), open, wake, loads };
        let (rows, pending, stop) = (Vec::new(), Vec::new(), Arc::from(sampler.stop));
        Self { queue: Arc::new(queue), sampler, stop, vocabulary, connections, rows, pending, send, found, threads: 0 }
    }

    /// Queues a request for the next turn of a row.
    fn request_turn(&mut self, row: usize, params: &Arc<SamplingParams>, stream: &Stream) {
        let request = CompletionRequest {
            prompt: self.rows[row].clone(),
            keys: vec![key_of(stream)],
            params: Arc::clone(params),
            stop: Arc::clone(&self.stop),
            vocabulary: self.vocabulary,
        };
        self.pending.push(row);
        if let Some(open) = &mut *self.queue.open() {
            open.push_back((row, request));
        }
        self.queue.wake.notify_one();
        if self.threads < self.connections.min(self.pending.len()) {
            self.threads += 1;
            let (queue, send) = (Arc::clone(&self.queue), self.send.clone());
            std::thread::spawn(move || work(&queue, &send));
        }
    }
}

/// Requests queued turns until no more are needed.
fn work(queue: &TurnQueue, send: &Sender<(usize, Result<ServerCompletion>)>) {
    while let Some((row, request)) = queue.next() {
        let completed = queue.client.draw(&queue.weights, &request, &queue.loads);
        if send.send((row, completed)).is_err() {
            return;
        }
    }
}

impl Drop for RemoteDrawer<'_> {
    fn drop(&mut self) {
        *self.queue.open() = None;
        self.queue.wake.notify_all();
    }
}

impl Drawer for RemoteDrawer<'_> {
    fn submit(&mut self, request: Request) -> Result<()> {
        request.params.check()?;
        for stream in &request.streams {
            self.rows.push(request.prompt.clone());
            self.request_turn(self.rows.len() - 1, &request.params, stream);
        }
        Ok(())
    }

    fn extend(&mut self, row: usize, extension: Extension) -> Result<()> {
        self.rows[row].extend(&extension.ids);
        self.request_turn(row, &extension.params, &extension.stream);
        Ok(())
    }

    fn cancel(&mut self, row: usize) {
        self.pending.retain(|pending| *pending != row);
        if let Some(open) = &mut *self.queue.open() {
            open.retain(|(open, _)| *open != row);
        }
    }

    fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    fn draw(&mut self) -> Result<Vec<(usize, Completion)>> {
        let (mut ended, mut patience) = (Vec::new(), POLL_INTERVAL);
        loop {
            let (row, completed) = match self.found.recv_timeout(patience) {
                Ok(found) => found,
                Err(RecvTimeoutError::Timeout) => return Ok(ended),
                Err(RecvTimeoutError::Disconnected) => return Err(super::gone()),
            };
            patience = Duration::ZERO;
            let ServerCompletion { ids, logprobs, is_cut, .. } = completed?;
            // The row was given up, so its turn is too late.
            let Some(at) = self.pending.iter().position(|pending| *pending == row) else { continue };
            self.pending.swap_remove(at);
            self.rows[row].extend(&ids);
            let stop = stop_of(&[], &ids, is_cut, self.sampler);
            let completion =
                Completion { sampled_logprobs: logprobs.clone(), logprobs, ids, supports: Vec::new(), stop };
            ended.push((row, completion));
        }
    }

    fn waited(&self) -> Option<(Duration, Duration)> {
        self.queue.client.waited().map(|waited| (waited, self.queue.client.max_wait()))
    }

    fn news(&self) -> Option<String> {
        self.queue.client.news()
    }
}
