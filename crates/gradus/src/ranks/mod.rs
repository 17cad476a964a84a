//! Several processes that train one model: data-parallel ranks.
//!
//! Every rank runs the whole program with the same configuration, rows and random streams. So all of them decide the same, and there is
//! nothing to distribute but work. What is expensive is dealt: each rank computes its share ([`Ranks::deal`]) and all of them receive the
//! results of everyone. Gradients are summed over [`Lanes`], whose order does not depend on how many ranks there are. So the weights are
//! the same bits on 1, 2 or 4 ranks.
//!
//! Ranks exchange messages through a [`Link`] and nothing else. No arithmetic happens there.
//!
//! A rank that fails in its share tells the others, and all of them return its error. When a rank cannot be reached, nobody can go on.
//! Then the stack unwinds to [`catching`], which returns the error. (Cancellation in `salsa` works in the same way.)

mod lanes;
mod link;
mod sums;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use gradus_mpi::{Found, Launch, LaunchError, Launcher, Lost, Mpi, Wait, candidates};
pub use lanes::Lanes;
pub use link::{Link, threads};
pub(crate) use sums::{LaneSums, Node, Summand, add, combine, nodes_of};

use crate::error::{Error, Result};

/// How long a rank waits for another by default. A checkpoint on a slow disk, or the longest share of the sampling, must fit.
pub const PATIENCE: Duration = Duration::from_secs(1800);

/// Numbers of gradients that ranks exchange at once: 32 MiB, about a block of GPT-2. Smaller parts wait longer for the network, and larger
/// ones wait longer for the backward pass.
pub const REDUCED_AT_ONCE: usize = 8 << 20;

/// A handle to the ranks of a run; a run alone has one rank.
///
/// It is copied to wherever work is dealt. A process joins others once, so they are never forgotten.
#[derive(Clone, Copy, Default)]
pub struct Ranks {
    group: Option<&'static Group>,
    /// Whether this process computes while it exchanges.
    computes: bool,
    /// Whether it has no processor for a thread that exchanges beside those that compute.
    is_full: bool,
}

struct Group {
    link: Box<dyn Link>,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Collective operations so far. All ranks have the same number.
    count: u64,
    /// Whether this rank was asked to stop.
    wishes_to_stop: bool,
    /// Whether any was, as all of them know since the last operation.
    stops: bool,
    /// Whether all ranks know of a failure: it need not be told again.
    told: bool,
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

/// What every message begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    count: u64,
    /// A hash of what the operation is called.
    what: u64,
    flags: u64,
    /// Bytes that follow.
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

/// FNV-1a: tells operations apart.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What a rank that cannot reach another unwinds with.
struct Unwinding(Error);

/// Runs `work`, and returns the error of a rank that cannot be reached.
///
/// # Errors
/// Those of `work`, or that of the lost rank.
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
    /// One rank alone.
    pub const ALONE: Self = Self { group: None, computes: false, is_full: false };

    /// The ranks behind `link`. `patience` is the longest that one waits for another.
    pub fn new(link: Box<dyn Link>, patience: Duration) -> Self {
        let group = Group { link, patience, state: Mutex::default() };
        Self { group: Some(Box::leak(Box::new(group))), computes: false, is_full: false }
    }

    /// The same ranks, of which this one has a processor to spare or not. Without one, gradients are exchanged after the backward pass
    /// that makes the last of them, not beside it: a thread that exchanges would take a processor from those that compute.
    pub fn with_spare_processor(self, has_one: bool) -> Self {
        Self { is_full: !has_one, ..self }
    }

    /// The number of this rank, from 0.
    pub fn rank(self) -> usize {
        self.group.map_or(0, |group| group.link.rank())
    }

    /// How many ranks there are.
    pub fn size(self) -> usize {
        self.group.map_or(1, |group| group.link.size())
    }

    /// The same ranks for a thread that exchanges while others of the process compute. Only one thread exchanges at a time. `None` where
    /// there is no other rank, no processor for that thread, or the link is bound to its thread.
    pub(crate) fn beside(self) -> Option<Self> {
        let group = self.group.filter(|_| !self.is_alone() && !self.is_full)?;
        group.link.lets_threads().then_some(Self { computes: true, ..self })
    }

    /// Whether this is the rank that writes the run directory and talks to the user.
    pub fn is_first(self) -> bool {
        self.rank() == 0
    }

    /// Whether there is no other rank.
    pub fn is_alone(self) -> bool {
        self.size() == 1
    }

    /// The share of this rank of so many items: neighbors, in the order of the ranks. Items come in units that stay together.
    pub fn share(self, items: usize, unit: usize) -> Range<usize> {
        share(items, unit, self.rank(), self.size())
    }

    /// Whether the run stops: this rank or another was asked to. All ranks get the same answer, which is that of the last operation.
    pub fn stops(self, asked: bool) -> bool {
        let Some(group) = self.group.filter(|_| !self.is_alone()) else { return asked };
        let mut state = group.state();
        state.wishes_to_stop |= asked;
        state.stops
    }

    /// Waits until all ranks are here.
    pub fn barrier(self, what: &'static str) {
        self.all::<()>(what, &());
    }

    /// What every rank has, in the order of the ranks.
    pub fn all<T: Serialize + DeserializeOwned>(self, what: &'static str, own: &T) -> Vec<T> {
        self.all_as(what, own)
    }

    /// What this rank has, unless one of them failed: then all of them get the error of the first that did.
    ///
    /// # Errors
    /// This rank's own, or that of another with its number.
    pub fn agree<T>(self, what: &'static str, own: Result<T>) -> Result<T> {
        if self.is_alone() {
            return own;
        }
        let told = own.as_ref().map(|_| &()).map_err(Failure::of);
        for (rank, one) in self.all_results::<()>(what, told).into_iter().enumerate() {
            match (one, &own) {
                // The error itself says more than what is told of it.
                (Err(_), Err(_)) if rank == self.rank() => break,
                (Err(failure), _) => return Err(failure.error(rank)),
                (Ok(()), _) => {}
            }
        }
        own
    }

    /// What every rank has, unless one of them failed: then all of them get the error of the first that did.
    ///
    /// # Errors
    /// This rank's own, or that of another with its number.
    pub fn all_ok<T: Serialize + DeserializeOwned>(self, what: &'static str, own: Result<T>) -> Result<Vec<T>> {
        if self.is_alone() {
            return own.map(|own| vec![own]);
        }
        let told = own.as_ref().map_err(Failure::of);
        let all: Vec<std::result::Result<T, Failure>> = self.all_results(what, told);
        let mut found = Vec::with_capacity(all.len());
        for (rank, one) in all.into_iter().enumerate() {
            match (one, &own) {
                (Ok(one), _) => found.push(one),
                // The error itself says more than what is told of it.
                (Err(_), Err(_)) if rank == self.rank() => break,
                (Err(failure), _) => return Err(failure.error(rank)),
            }
        }
        own.map(|_| found)
    }

    /// What every rank has: `own` is sent, and read as `T`, which is written in the same way.
    fn all_as<T: DeserializeOwned>(self, what: &'static str, own: &impl Serialize) -> Vec<T> {
        let bytes = Arc::new(rmp_serde::to_vec_named(own).expect("plain data"));
        let read = |(rank, bytes): (usize, Vec<u8>)| match rmp_serde::from_slice(&bytes) {
            Ok(value) => value,
            Err(error) => self.lose(Error::input(format!("what rank {rank} says of `{what}` cannot be read: {error}"))),
        };
        self.all_bytes(what, bytes).into_iter().enumerate().map(read).collect()
    }

    fn all_results<T: Serialize + DeserializeOwned>(
        self,
        what: &'static str,
        own: std::result::Result<&T, Failure>,
    ) -> Vec<std::result::Result<T, Failure>> {
        self.all_as(what, &own)
    }

    /// Deals so many items, in units that stay together: every rank does its share, and gets what all of them made, in order.
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

    /// [`deal`](Self::deal) of work that cannot fail.
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

    /// What every rank has, as bytes.
    pub(crate) fn all_bytes(self, what: &'static str, own: Arc<Vec<u8>>) -> Vec<Vec<u8>> {
        if self.is_alone() {
            return vec![Arc::unwrap_or_clone(own)];
        }
        let sends = (0..self.size()).map(|_| Arc::clone(&own)).collect();
        self.exchange(what, sends)
    }

    /// Refuses ranks that do not have the same `text`, such as a configuration.
    ///
    /// # Errors
    /// The first rank that has another.
    pub fn check_alike(self, text: &str) -> Result<()> {
        if self.is_alone() {
            return Ok(());
        }
        let all = self.all("the configuration", &text.to_owned());
        let Some(rank) = all.iter().position(|other| *other != all[0]) else { return Ok(()) };
        let differing = all[0].lines().zip(all[rank].lines()).find(|(first, other)| first != other);
        let found = differing
            .map_or(String::new(), |(first, other)| format!(": `{}` instead of `{}`", other.trim(), first.trim()));
        Err(Error::input(format!("rank {rank} has another configuration than rank 0{found}"))
            .with_hint("start all ranks with the same arguments and files"))
    }

    /// Gives `sends[r]` to rank `r`, and returns what every rank gives to this one.
    pub(crate) fn exchange(self, what: &'static str, mut sends: Vec<Arc<Vec<u8>>>) -> Vec<Vec<u8>> {
        let own = std::mem::take(&mut sends[self.rank()]);
        let Some(group) = self.group else { return vec![Arc::unwrap_or_clone(own)] };
        let (count, flags) = {
            let mut state = group.state();
            state.count += 1;
            (state.count, if state.wishes_to_stop { WISHES_TO_STOP } else { 0 })
        };
        let others: Vec<usize> = (0..self.size()).filter(|rank| *rank != self.rank()).collect();
        let header = |rank: usize| Header { count, what: hash(what), flags, length: sends[rank].len() as u64 };

        // 1. Everybody arrives, and says what follows.
        let headers: Vec<_> = others.iter().map(|&rank| (rank, Arc::new(header(rank).to_bytes()))).collect();
        let lengths: Vec<(usize, usize)> = others.iter().map(|&rank| (rank, Header::BYTES)).collect();
        let wait = Wait { limit: group.patience, flows: false, computes: self.computes };
        let found = group.link.exchange(&headers, &lengths, wait);
        let found: Vec<Header> = match found {
            Ok(found) => found.iter().map(|bytes| Header::from_bytes(bytes)).collect(),
            Err(lost) => self.lose(lost_error(what, &lost)),
        };
        let failed = others.iter().zip(&found).find(|(_, header)| header.flags & FAILED != 0);
        if let Some((&rank, header)) = failed {
            let wait = Wait { limit: Duration::from_secs(10), flows: true, computes: self.computes };
            let message = group.link.exchange(&[], &[(rank, header.length as usize)], wait);
            let message = message
                .map_or_else(|_| "it failed".to_owned(), |found| String::from_utf8_lossy(&found[0]).into_owned());
            group.state().told = true;
            self.lose(Error::input(format!("rank {rank}: {message}")));
        }
        for (&rank, found) in others.iter().zip(&found) {
            if (found.count, found.what) != (count, hash(what)) {
                let message = format!(
                    "rank {rank} does something else than this one, which is at `{what}` (operation {count}, there {})",
                    found.count
                );
                let hint = "do all ranks have the same program, configuration and files?";
                self.lose(Error::input(message).with_hint(hint));
            }
        }
        let stops = flags & WISHES_TO_STOP != 0 || found.iter().any(|header| header.flags & WISHES_TO_STOP != 0);
        group.state().stops |= stops;

        // 2. The bytes.
        let full = others.iter().filter(|rank| !sends[**rank].is_empty());
        let sends: Vec<_> = full.map(|&rank| (rank, Arc::clone(&sends[rank]))).collect();
        let lengths: Vec<_> = others.iter().zip(&found).map(|(&rank, header)| (rank, header.length as usize)).collect();
        let wait = Wait { limit: group.patience, flows: true, computes: self.computes };
        let mut found = match group.link.exchange(&sends, &lengths, wait) {
            Ok(found) => found,
            Err(lost) => self.lose(lost_error(what, &lost)),
        };
        found.insert(self.rank(), Arc::unwrap_or_clone(own));
        found
    }

    /// Unwinds: nothing can be done together any more.
    fn lose(self, error: Error) -> ! {
        resume_unwind(Box::new(Unwinding(error)))
    }

    /// Tells the other ranks, at whatever they are, that this one has failed; nothing where they know.
    pub fn fail(self, message: &str) {
        let Some(group) = self.group.filter(|_| !self.is_alone()) else { return };
        let count = {
            let mut state = group.state();
            if std::mem::replace(&mut state.told, true) {
                return;
            }
            state.count
        };
        let header = Header { count, what: 0, flags: FAILED, length: message.len() as u64 };
        for (bytes, flows) in [(header.to_bytes(), false), (message.as_bytes().to_vec(), true)] {
            let bytes = Arc::new(bytes);
            let others = (0..self.size()).filter(|rank| *rank != self.rank());
            let sends: Vec<_> = others.map(|rank| (rank, Arc::clone(&bytes))).collect();
            // Whoever is gone already needs not be told.
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

    /// Takes leave of the others, which all of them must do.
    pub fn finish(self) {
        if let Some(group) = self.group {
            group.link.finish();
        }
    }
}

impl Group {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The share of rank `rank` of `size` of so many items, in units that stay together.
pub(crate) fn share(items: usize, unit: usize, rank: usize, size: usize) -> Range<usize> {
    let units = items.div_ceil(unit.max(1));
    let at = |rank: usize| (units * rank / size * unit.max(1)).min(items);
    at(rank)..at(rank + 1)
}

fn lost_error(what: &str, lost: &Lost) -> Error {
    let hint = match lost {
        Lost::Late { .. } => {
            "it may have been killed, its machine may be down, or the network between them; a longer wait is `--rank-timeout`"
        }
        Lost::Failed { .. } => "look at the log of that rank's machine",
    };
    Error::input(format!("the ranks cannot go on together at `{what}`: {lost}")).with_hint(hint)
}

/// What is told of an error.
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
