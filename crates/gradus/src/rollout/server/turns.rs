//! Turns of episodes sampled by a server: one request per turn, with all ids so far.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client::{Client, Weights};
use super::forms::{Completed, Question};
use super::stop_of;
use crate::error::Result;
use crate::generate::{Completion, Request, SamplingParams, Turn as Extension};
use crate::rng::{Stream, key_of};
use crate::rollout::Sampler;
use crate::rollout::episodes::Drawer;

/// How long the drawer waits for a turn before it returns to other work.
const GLANCE: Duration = Duration::from_millis(5);

/// State shared by the threads.
struct Desk {
    client: Arc<Client>,
    weights: Arc<Weights>,
    /// Turns waiting to be requested; `None` when no more turns are needed.
    open: Mutex<Option<VecDeque<(usize, Question)>>>,
    /// Wakes threads that wait for such a turn.
    wake: Condvar,
    /// Number of times that lost weights were loaded again.
    loads: Mutex<usize>,
}

impl Desk {
    fn open(&self) -> MutexGuard<'_, Option<VecDeque<(usize, Question)>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next turn to request; returns `None` when no more turns are needed.
    fn next(&self) -> Option<(usize, Question)> {
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
    desk: Arc<Desk>,
    sampler: &'s Sampler<'s>,
    stop: Arc<[String]>,
    vocabulary: usize,
    connections: usize,
    /// Ids of each row so far.
    rows: Vec<Vec<u32>>,
    /// Rows that await a turn.
    wanted: Vec<usize>,
    send: Sender<(usize, Result<Completed>)>,
    found: Receiver<(usize, Result<Completed>)>,
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
        let desk = Desk { client: Arc::clone(client), weights: Arc::clone(weights), open, wake, loads };
        let (rows, wanted, stop) = (Vec::new(), Vec::new(), Arc::from(sampler.stop));
        Self { desk: Arc::new(desk), sampler, stop, vocabulary, connections, rows, wanted, send, found, threads: 0 }
    }

    /// Queues a request for the next turn of a row.
    fn want(&mut self, row: usize, params: &Arc<SamplingParams>, stream: &Stream) {
        let question = Question {
            prompt: self.rows[row].clone(),
            keys: vec![key_of(stream)],
            params: Arc::clone(params),
            stop: Arc::clone(&self.stop),
            vocabulary: self.vocabulary,
        };
        self.wanted.push(row);
        if let Some(open) = &mut *self.desk.open() {
            open.push_back((row, question));
        }
        self.desk.wake.notify_one();
        if self.threads < self.connections.min(self.wanted.len()) {
            self.threads += 1;
            let (desk, send) = (Arc::clone(&self.desk), self.send.clone());
            std::thread::spawn(move || work(&desk, &send));
        }
    }
}

/// Requests queued turns until no more are needed.
fn work(desk: &Desk, send: &Sender<(usize, Result<Completed>)>) {
    while let Some((row, question)) = desk.next() {
        let completed = desk.client.draw(&desk.weights, &question, &desk.loads);
        if send.send((row, completed)).is_err() {
            return;
        }
    }
}

impl Drop for RemoteDrawer<'_> {
    fn drop(&mut self) {
        *self.desk.open() = None;
        self.desk.wake.notify_all();
    }
}

impl Drawer for RemoteDrawer<'_> {
    fn submit(&mut self, request: Request) -> Result<()> {
        request.params.check()?;
        for stream in &request.streams {
            self.rows.push(request.prompt.clone());
            self.want(self.rows.len() - 1, &request.params, stream);
        }
        Ok(())
    }

    fn extend(&mut self, row: usize, extension: Extension) -> Result<()> {
        self.rows[row].extend(&extension.ids);
        self.want(row, &extension.params, &extension.stream);
        Ok(())
    }

    fn cancel(&mut self, row: usize) {
        self.wanted.retain(|wanted| *wanted != row);
        if let Some(open) = &mut *self.desk.open() {
            open.retain(|(open, _)| *open != row);
        }
    }

    fn is_busy(&self) -> bool {
        !self.wanted.is_empty()
    }

    fn draw(&mut self) -> Result<Vec<(usize, Completion)>> {
        let (mut ended, mut patience) = (Vec::new(), GLANCE);
        loop {
            let (row, completed) = match self.found.recv_timeout(patience) {
                Ok(found) => found,
                Err(RecvTimeoutError::Timeout) => return Ok(ended),
                Err(RecvTimeoutError::Disconnected) => return Err(super::gone()),
            };
            patience = Duration::ZERO;
            let Completed { ids, logprobs, is_cut, .. } = completed?;
            // The row was given up, so its turn is too late.
            let Some(at) = self.wanted.iter().position(|wanted| *wanted == row) else { continue };
            self.wanted.swap_remove(at);
            self.rows[row].extend(&ids);
            let stop = stop_of(&ids, is_cut, self.sampler);
            let completion =
                Completion { sampled_logprobs: logprobs.clone(), logprobs, ids, supports: Vec::new(), stop };
            ended.push((row, completion));
        }
    }

    fn waited(&self) -> Option<(Duration, Duration)> {
        self.desk.client.waited().map(|waited| (waited, self.desk.client.patience()))
    }
}
