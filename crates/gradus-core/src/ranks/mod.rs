//! Data-parallel ranks: several processes that train one model.
//!
//! Every rank runs the whole program with the same configuration, rows and random streams. All ranks therefore make the same decisions, and
//! only work is distributed. Each rank computes its share of expensive work ([`Ranks::deal`]) and receives the results of all ranks.
//! Gradients are summed over [`Lanes`], whose order does not depend on the number of ranks. The weights therefore have the same bits on 1,
//! 2 or 4 ranks.
//!
//! Ranks exchange messages only through a [`Link`], which does no arithmetic.
//!
//! If a rank fails in its share, it notifies the others, and all ranks return its error. If a rank cannot be reached, no rank can continue.
//! The stack then unwinds to [`catching`], which returns the error. (Cancellation in `salsa` works in the same way.)

mod lanes;
mod link;
mod sums;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use gradus_mpi::{ExchangeError, Launch, LaunchError, Launcher, Mpi, MpiLibrary, Wait, candidates};
pub use lanes::Lanes;
pub use link::{Link, threads};
pub use sums::{LaneSums, Node, Summand, add, combine, nodes_of};

use crate::error::{Error, Result};

/// Default time limit for one rank to wait for another. It must cover a checkpoint on a slow disk and the longest share of sampling.
pub const PATIENCE: Duration = Duration::from_secs(1800);

/// Number of gradient elements that ranks exchange at once: 32 MiB, about one block of GPT-2. Smaller parts lose time in the network, and
/// larger ones wait longer for the backward pass.
pub const REDUCED_AT_ONCE: usize = 8 << 20;

/// A handle to the ranks of a run. A run without other processes has one rank.
///
/// The handle is copied to every place that distributes work. A process joins a group only once, so the group is leaked.
#[derive(Clone, Copy, Default)]
pub struct Ranks {
    group: Option<&'static Group>,
    /// True if this process computes during the exchange.
    computes: bool,
    /// True if this process has no spare processor for an exchanging thread.
    is_full: bool,
}

struct Group {
    link: Box<dyn Link>,
    patience: Duration,
    state: Mutex<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    /// Collective operations so far. The number is the same on all ranks.
    count: u64,
    /// True if this rank was asked to stop.
    wishes_to_stop: bool,
    /// True if any rank was asked to stop, as of the last operation.
    stops: bool,
    /// True if all ranks have been notified of a failure, so that it is not sent again.
    is_failure_sent: bool,
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl PartialEq for Ranks {
    fn eq(&self, other: &Self) -> bool {
        match (self.group, other.group) {
            (Some(own), Some(other)) => std::ptr::eq(own, other),
            (None, None) => true,
            _ => false,
        }
    }
}

/// Header of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    count: u64,
    /// Hash of the operation's name.
    what: u64,
    flags: u64,
    /// Number of bytes that follow.
    length: u64,
}

const WISHES_TO_STOP: u64 = 1;
const FAILED: u64 = 2;

impl Header {
    const BYTES: usize = 32;

    fn to_bytes(self) -> Vec<u8> {
        [self.count, self.what, self.flags, self.length].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
            u64::from_le_bytes(word)
        };
        Self { count: number(0), what: number(1), flags: number(2), length: number(3) }
    }
}

/// FNV-1a hash, which distinguishes operations.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Payload of the unwinding when another rank cannot be reached.
struct Unwinding(Error);

/// Runs `work` and catches the unwinding from a lost rank.
///
/// # Errors
/// The error of `work`, or of the lost rank.
pub fn catching<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(payload) => match payload.downcast::<Unwinding>() {
            Ok(lost) => Err(lost.0),
            Err(panic) => resume_unwind(panic),
        },
    }
}

impl Ranks {
    /// A single rank.
    pub const ALONE: Self = Self { group: None, computes: false, is_full: false };

    /// Creates the ranks behind `link`. `patience` is the longest time that one waits for another.
    pub fn new(link: Box<dyn Link>, patience: Duration) -> Self {
        let group = Group { link, patience, state: Mutex::default() };
        Self { group: Some(Box::leak(Box::new(group))), computes: false, is_full: false }
    }

    /// Sets whether this rank has a spare processor. Without one, gradients are exchanged after the last backward pass, not during it,
    /// because an exchanging thread would take a processor from the computing ones.
    pub fn with_spare_processor(self, has_one: bool) -> Self {
        Self { is_full: !has_one, ..self }
    }

    /// Number of this rank, from 0.
    pub fn rank(self) -> usize {
        self.group.map_or(0, |group| group.link.rank())
    }

    /// Number of ranks.
    pub fn size(self) -> usize {
        self.group.map_or(1, |group| group.link.size())
    }

    /// Returns a handle for a thread that exchanges while others of the process compute. Only one thread may exchange at a time. `None` if
    /// there are no other ranks or no spare processor, or if the link is bound to its thread.
    pub fn for_exchange_thread(self) -> Option<Self> {
        let group = self.group.filter(|_| !self.is_alone() && !self.is_full)?;
        group.link.lets_threads().then_some(Self { computes: true, ..self })
    }

    /// Returns true for the rank that writes the run directory and interacts with the user.
    pub fn is_first(self) -> bool {
        self.rank() == 0
    }

    /// Returns true if there are no other ranks.
    pub fn is_alone(self) -> bool {
        self.size() == 1
    }

    /// Returns this rank's contiguous share of `items`, in the order of the ranks. Units of `unit` items stay together.
    pub fn share(self, items: usize, unit: usize) -> Range<usize> {
        share(items, unit, self.rank(), self.size())
    }

    /// Returns true if this rank or another was asked to stop. All ranks get the same answer, as of the last operation.
    pub fn stops(self, requested: bool) -> bool {
        let Some(group) = self.group.filter(|_| !self.is_alone()) else { return requested };
        let mut state = group.state();
        state.wishes_to_stop |= requested;
        state.stops
    }

    /// Waits until all ranks have arrived.
    pub fn barrier(self, what: &'static str) {
        self.all::<()>(what, &());
    }

    /// Gathers the value of every rank, in the order of the ranks.
    pub fn all<T: Serialize + DeserializeOwned>(self, what: &'static str, own: &T) -> Vec<T> {
        self.all_as(what, own)
    }

    /// Returns this rank's value. If any rank failed, all ranks return the error of the first one that did.
    ///
    /// # Errors
    /// This rank's own error, or that of another rank with its number.
    pub fn agree<T>(self, what: &'static str, own: Result<T>) -> Result<T> {
        if self.is_alone() {
            return own;
        }
        let outcome = own.as_ref().map(|_| &()).map_err(Failure::of);
        for (rank, one) in self.all_results::<()>(what, outcome).into_iter().enumerate() {
            match (one, &own) {
                // The original error has more information than the transmitted one.
                (Err(_), Err(_)) if rank == self.rank() => break,
                (Err(failure), _) => return Err(failure.error(rank)),
                (Ok(()), _) => {}
            }
        }
        own
    }

    /// Gathers the values of all ranks. If any rank failed, all ranks return the error of the first one that did.
    ///
    /// # Errors
    /// This rank's own error, or that of another rank with its number.
    pub fn all_ok<T: Serialize + DeserializeOwned>(self, what: &'static str, own: Result<T>) -> Result<Vec<T>> {
        if self.is_alone() {
            return own.map(|own| vec![own]);
        }
        let outcome = own.as_ref().map_err(Failure::of);
        let all: Vec<Result<T, Failure>> = self.all_results(what, outcome);
        let mut found = Vec::with_capacity(all.len());
        for (rank, one) in all.into_iter().enumerate() {
            match (one, &own) {
                (Ok(one), _) => found.push(one),
                // The original error has more information than the transmitted one.
                (Err(_), Err(_)) if rank == self.rank() => break,
                (Err(failure), _) => return Err(failure.error(rank)),
            }
        }
        own.map(|_| found)
    }

    /// Gathers values that are serialized from `own` and deserialized as `T`, which must have the same format.
    fn all_as<T: DeserializeOwned>(self, what: &'static str, own: &impl Serialize) -> Vec<T> {
        let bytes = Arc::new(rmp_serde::to_vec_named(own).expect("plain data"));
        let read = |(rank, bytes): (usize, Vec<u8>)| match rmp_serde::from_slice(&bytes) {
            Ok(value) => value,
            Err(error) => {
                self.lose(Error::input(format!("the message of rank {rank} on `{what}` cannot be read: {error}")))
            }
        };
        self.all_bytes(what, bytes).into_iter().enumerate().map(read).collect()
    }

    fn all_results<T: Serialize + DeserializeOwned>(
        self,
        what: &'static str,
        own: Result<&T, Failure>,
    ) -> Vec<Result<T, Failure>> {
        self.all_as(what, &own)
    }

    /// Distributes `items` over the ranks; units of `unit` items stay together. Every rank computes its share and receives the results of
    /// all ranks, in order.
    ///
    /// # Errors
    /// The error of the first rank that failed.
    pub fn deal<T: Serialize + DeserializeOwned>(
        self,
        what: &'static str,
        (items, unit): (usize, usize),
        work: impl FnOnce(Range<usize>) -> Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        let own = work(self.share(items, unit));
        if self.is_alone() {
            return own;
        }
        Ok(self.all_ok(what, own)?.into_iter().flatten().collect())
    }

    /// As [`deal`](Self::deal), for work that cannot fail.
    pub fn deal_all<T: Serialize + DeserializeOwned>(
        self,
        what: &'static str,
        (items, unit): (usize, usize),
        work: impl FnOnce(Range<usize>) -> Vec<T>,
    ) -> Vec<T> {
        let own = work(self.share(items, unit));
        if self.is_alone() {
            return own;
        }
        self.all(what, &own).into_iter().flatten().collect()
    }

    /// Gathers the bytes of every rank.
    pub fn all_bytes(self, what: &'static str, own: Arc<Vec<u8>>) -> Vec<Vec<u8>> {
        if self.is_alone() {
            return vec![Arc::unwrap_or_clone(own)];
        }
        let sends = (0..self.size()).map(|_| Arc::clone(&own)).collect();
        self.exchange(what, sends)
    }

    /// Compares the values of all ranks. Returns the first rank whose value differs from that of rank 0, with the value of rank 0 and its own.
    pub fn first_difference<T>(self, what: &'static str, own: &T) -> Option<(usize, [T; 2])>
    where
        T: Serialize + DeserializeOwned + PartialEq,
    {
        if self.is_alone() {
            return None;
        }
        let mut all: Vec<T> = self.all(what, own);
        let rank = all.iter().position(|other| *other != all[0])?;
        let other = all.swap_remove(rank);
        Some((rank, [all.swap_remove(0), other]))
    }

    /// Checks that all ranks have the same `text`, for example their configuration.
    ///
    /// # Errors
    /// If the text differs; the message names the first such rank.
    pub fn check_alike(self, text: &str) -> Result<()> {
        let found = self.first_difference("the configuration", &text.to_owned());
        let Some((rank, [first, other])) = found else { return Ok(()) };
        let differing = first.lines().zip(other.lines()).find(|(first, other)| first != other);
        let found = differing
            .map_or(String::new(), |(first, other)| format!(": `{}` instead of `{}`", other.trim(), first.trim()));
        Err(Error::input(format!("rank {rank} has a different configuration than rank 0{found}"))
            .with_hint("start all ranks with the same arguments and files"))
    }

    /// Sends `sends[r]` to each rank `r` and returns the messages of all ranks to this one.
    pub fn exchange(self, what: &'static str, mut sends: Vec<Arc<Vec<u8>>>) -> Vec<Vec<u8>> {
        let own = std::mem::take(&mut sends[self.rank()]);
        let Some(group) = self.group else { return vec![Arc::unwrap_or_clone(own)] };
        let (count, flags) = {
            let mut state = group.state();
            state.count += 1;
            (state.count, if state.wishes_to_stop { WISHES_TO_STOP } else { 0 })
        };
        let others: Vec<usize> = (0..self.size()).filter(|rank| *rank != self.rank()).collect();
        let header = |rank: usize| Header { count, what: hash(what), flags, length: sends[rank].len() as u64 };

        // 1. Every rank arrives and announces its message.
        let headers: Vec<_> = others.iter().map(|&rank| (rank, Arc::new(header(rank).to_bytes()))).collect();
        let lengths: Vec<(usize, usize)> = others.iter().map(|&rank| (rank, Header::BYTES)).collect();
        let wait = Wait { limit: group.patience, flows: false, computes: self.computes };
        let found = group.link.exchange(&headers, &lengths, wait);
        let found: Vec<Header> = match found {
            Ok(found) => found.iter().map(|bytes| Header::from_bytes(bytes)).collect(),
            Err(lost) => self.lose(exchange_error(what, &lost)),
        };
        let failed = others.iter().zip(&found).find(|(_, header)| header.flags & FAILED != 0);
        if let Some((&rank, header)) = failed {
            let wait = Wait { limit: Duration::from_secs(10), flows: true, computes: self.computes };
            let message = group.link.exchange(&[], &[(rank, header.length as usize)], wait);
            let message = message
                .map_or_else(|_| "it failed".to_owned(), |found| String::from_utf8_lossy(&found[0]).into_owned());
            group.state().is_failure_sent = true;
            self.lose(Error::input(format!("rank {rank}: {message}")));
        }
        for (&rank, found) in others.iter().zip(&found) {
            if (found.count, found.what) != (count, hash(what)) {
                let message = format!(
                    "rank {rank} runs a different operation than this rank, which is at `{what}` (operation {count} \
                     here, operation {} there)",
                    found.count
                );
                let hint = "do all ranks have the same program, configuration and files?";
                self.lose(Error::input(message).with_hint(hint));
            }
        }
        let stops = flags & WISHES_TO_STOP != 0 || found.iter().any(|header| header.flags & WISHES_TO_STOP != 0);
        group.state().stops |= stops;

        // 2. The ranks exchange the bytes.
        let full = others.iter().filter(|rank| !sends[**rank].is_empty());
        let sends: Vec<_> = full.map(|&rank| (rank, Arc::clone(&sends[rank]))).collect();
        let lengths: Vec<_> = others.iter().zip(&found).map(|(&rank, header)| (rank, header.length as usize)).collect();
        let wait = Wait { limit: group.patience, flows: true, computes: self.computes };
        let mut found = match group.link.exchange(&sends, &lengths, wait) {
            Ok(found) => found,
            Err(lost) => self.lose(exchange_error(what, &lost)),
        };
        found.insert(self.rank(), Arc::unwrap_or_clone(own));
        found
    }

    /// Unwinds, because no further exchange is possible.
    fn lose(self, error: Error) -> ! {
        resume_unwind(Box::new(Unwinding(error)))
    }

    /// Notifies the other ranks, whatever they are doing, that this one has failed. Does nothing if they have been notified.
    pub fn fail(self, message: &str) {
        let Some(group) = self.group.filter(|_| !self.is_alone()) else { return };
        let count = {
            let mut state = group.state();
            if std::mem::replace(&mut state.is_failure_sent, true) {
                return;
            }
            state.count
        };
        let header = Header { count, what: 0, flags: FAILED, length: message.len() as u64 };
        for (bytes, flows) in [(header.to_bytes(), false), (message.as_bytes().to_vec(), true)] {
            let bytes = Arc::new(bytes);
            let others = (0..self.size()).filter(|rank| *rank != self.rank());
            let sends: Vec<_> = others.map(|rank| (rank, Arc::clone(&bytes))).collect();
            // Ranks that have already left need no notification.
            let _ = group.link.exchange(&sends, &[], Wait { limit: Duration::from_secs(10), flows, computes: false });
        }
    }

    /// Ends all ranks at once, with this exit code.
    pub fn abort(self, code: i32) -> ! {
        match self.group {
            Some(group) => group.link.abort(code),
            None => std::process::exit(code),
        }
    }

    /// Leaves the group. All ranks must call this. It first waits for all of them, for at most `limit`, because some MPI libraries do not: then
    /// the job would wait for a rank that does not answer.
    pub fn finish(self, limit: Duration) {
        if let Some(group) = self.group {
            let others: Vec<usize> = (0..self.size()).filter(|rank| *rank != self.rank()).collect();
            let sends: Vec<_> = others.iter().map(|&rank| (rank, Arc::new(vec![0]))).collect();
            let receives: Vec<_> = others.iter().map(|&rank| (rank, 1)).collect();
            let wait = Wait { limit, flows: true, computes: self.computes };
            if let Err(lost) = group.link.exchange(&sends, &receives, wait) {
                tracing::warn!("not all ranks have ended: {lost}");
            }
            group.link.finish();
        }
    }
}

impl Group {
    fn state(&self) -> std::sync::MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Share of rank `rank` of `size` of `items`; units of `unit` items stay together.
pub fn share(items: usize, unit: usize, rank: usize, size: usize) -> Range<usize> {
    let units = items.div_ceil(unit.max(1));
    let at = |rank: usize| (units * rank / size * unit.max(1)).min(items);
    at(rank)..at(rank + 1)
}

fn exchange_error(what: &str, lost: &ExchangeError) -> Error {
    let hint = match lost {
        ExchangeError::Late { .. } => {
            "it may have been killed, its machine may be down, or the network between them; a longer wait is `--rank-timeout`"
        }
        ExchangeError::Failed { .. } => "look at the log of that rank's machine",
    };
    Error::input(format!("the ranks cannot continue together at `{what}`: {lost}")).with_hint(hint)
}

/// Serializable form of an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Failure {
    is_interruption: bool,
    message: String,
    hint: Option<String>,
}

impl Failure {
    fn of(error: &Error) -> Self {
        let is_interruption = matches!(error, Error::Interrupted);
        Self { is_interruption, message: error.to_string(), hint: error.hint().map(|hint| hint.to_string()) }
    }

    fn error(self, rank: usize) -> Error {
        if self.is_interruption {
            return Error::Interrupted;
        }
        let error = Error::input(format!("rank {rank}: {}", self.message));
        match self.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests;
