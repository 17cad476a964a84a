//! MPI, loaded at run time.
//!
//! A program that links MPI needs that library on every machine and works with only one implementation. This crate loads the library when
//! it is needed. Three tables of constants cover the implementations in use: the standard ABI of MPI 5, Open MPI 4 and 5, and MPICH 3 and 4
//! with its derivatives.
//!
//! The crate only transfers bytes. [`Launch`] identifies this process, and [`Mpi`] exchanges messages.

#![deny(missing_docs)]

mod abi;
mod launch;
mod library;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use launch::{Launch, LaunchError, Launcher};
pub use library::{MpiLibrary, candidates};

use abi::Engine;

/// Reason why MPI cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No library was found.
    #[error("no MPI library was found (looked for {})", .looked_for.join(", "))]
    NotFound {
        /// Names and paths that were tried.
        looked_for: Vec<String>,
    },
    /// A library was found but cannot be used.
    #[error("`{library}` cannot be used: {reason}")]
    Unusable {
        /// Path of the library.
        library: String,
        /// Description of the problem.
        reason: String,
    },
    /// A launcher has left its variables in the environment, and is not running.
    #[error("the connection to the launcher is closed (`PMI_FD` is {descriptor})")]
    Closed {
        /// Descriptor of the connection.
        descriptor: u32,
    },
    /// The library does not match the launcher.
    #[error(
        "{launcher} started {}, but `{library}` finds {found}: library and launcher do not match", processes(.expected)
    )]
    Mismatch {
        /// Name of the launcher.
        launcher: String,
        /// Path of the library.
        library: String,
        /// Number of processes that the launcher started.
        expected: usize,
        /// Number of processes that the library reports.
        found: usize,
    },
}

/// Reason why an exchange of messages failed. The processes cannot continue together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// Some processes did not answer in time.
    #[error("no answer from {} within {limit_s} s", list_of(.ranks))]
    Late {
        /// Ranks of the processes that did not answer.
        ranks: Vec<usize>,
        /// Time limit in seconds.
        limit_s: u64,
    },
    /// The library reported an error.
    #[error("MPI failed with {}: {message}", list_of(.ranks))]
    Failed {
        /// Ranks of the processes that the messages were for or from.
        ranks: Vec<usize>,
        /// Message of the library.
        message: String,
    },
}

fn list_of(ranks: &[usize]) -> String {
    let listed: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    if let [one] = listed.as_slice() { format!("rank {one}") } else { format!("ranks {}", listed.join(", ")) }
}

fn processes(count: &usize) -> String {
    if *count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// How to wait for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Maximum time for one message.
    pub limit: Duration,
    /// Whether all processes have arrived, so that bytes flow now. Then the CPU is kept busy with moving them. Otherwise other processes
    /// may compute for minutes, and the CPU is left to them. The two kinds of messages are never mixed up.
    pub flows: bool,
    /// Whether this process computes at the same time and needs its CPUs for that.
    pub computes: bool,
}

/// Messages in transit, each with the process that it is for or from.
type Pending = Vec<(usize, Box<dyn abi::Request>)>;

/// Maximum length of a message passed to MPI in one call, because lengths are 32-bit integers there.
const LONGEST: usize = 1 << 30;

/// Pause between two checks while other processes compute.
const DOZE: Duration = Duration::from_micros(500);

/// Pause between two checks while bytes flow during a computation. It is shorter, because the buffers of the network must not run dry.
const NAP: Duration = Duration::from_micros(50);

/// An open, initialized MPI library. This process is one of [`size`](Self::size).
pub struct Mpi {
    /// Engine of the library, which only one thread may call at a time.
    engine: Mutex<Box<dyn Engine>>,
    /// Whether threads other than the opening one may call the library.
    lets_threads: bool,
    found: MpiLibrary,
    rank: usize,
    size: usize,
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mpi({} of {}, {})", self.rank, self.size, self.found.path)
    }
}

impl Mpi {
    /// Opens the library that belongs to the launcher and initializes it. All processes must do so, exactly once each.
    ///
    /// # Errors
    /// Returns an error if there is no library, if it cannot be used, if it belongs to another launcher, or if the launcher is not running.
    pub fn open(launch: &Launch) -> Result<Self, Error> {
        if let Some(descriptor) = Launch::closed_connection() {
            return Err(Error::Closed { descriptor });
        }
        let (engine, found) = library::open(Some(launch.launcher))?;
        let unusable = |reason: String| Error::Unusable { library: found.path.clone(), reason };
        let lets_threads = engine.init().map_err(unusable)?;
        let (rank, size) = engine.place().map_err(unusable)?;
        if (rank, size) != (launch.rank, launch.size) {
            let (launcher, expected) = (launch.launcher.name().to_owned(), launch.size);
            return Err(Error::Mismatch { launcher, library: found.path, expected, found: size });
        }
        Ok(Self { engine: Mutex::new(engine), lets_threads, found, rank, size })
    }

    /// Returns the library in use.
    pub fn found(&self) -> &MpiLibrary {
        &self.found
    }

    /// Whether threads other than the one that opened the library may exchange messages.
    pub fn lets_threads(&self) -> bool {
        self.lets_threads
    }

    fn engine(&self) -> MutexGuard<'_, Box<dyn Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Sends each of `sends` to its process, and receives a message of known length from each of `receives`, in order. Messages between two
    /// processes arrive in the order in which they are sent.
    ///
    /// # Errors
    /// Returns an error if a process does not answer in time, or the library reports one. The buffers are then leaked, because the library
    /// may still write to them, and no further message can be exchanged.
    pub fn exchange(
        &self,
        sends: &[(usize, Arc<Vec<u8>>)],
        receives: &[(usize, usize)],
        wait: Wait,
    ) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let mut buffers: Vec<Vec<u8>> = receives.iter().map(|&(_, length)| vec![0; length]).collect();
        let mut pending = Pending::new();
        let result = self
            .begin(sends, receives, &mut buffers, (&mut pending, 1 + i32::from(wait.flows)))
            .and_then(|()| self.finish(pending, wait));
        if let Err(lost) = result {
            // The library may still read from and write to these.
            std::mem::forget(buffers);
            std::mem::forget(sends.to_vec());
            return Err(lost);
        }
        Ok(buffers)
    }

    fn begin(
        &self,
        sends: &[(usize, Arc<Vec<u8>>)],
        receives: &[(usize, usize)],
        buffers: &mut [Vec<u8>],
        (pending, tag): (&mut Pending, i32),
    ) -> Result<(), ExchangeError> {
        let failed = |rank: usize| move |message: String| ExchangeError::Failed { ranks: vec![rank], message };
        let engine = self.engine();
        for (&(rank, _), buffer) in receives.iter().zip(buffers) {
            for part in buffer.chunks_mut(LONGEST) {
                pending.push((rank, engine.receive(part, rank, tag).map_err(failed(rank))?));
            }
        }
        for (rank, bytes) in sends {
            for part in bytes.chunks(LONGEST) {
                pending.push((*rank, engine.send(part, *rank, tag).map_err(failed(*rank))?));
            }
        }
        Ok(())
    }

    /// Waits until all requests are complete.
    fn finish(&self, mut pending: Pending, wait: Wait) -> Result<(), ExchangeError> {
        let mut since = Instant::now();
        let mut looks = 0u32;
        while !pending.is_empty() {
            let before = pending.len();
            let mut failure = None;
            let engine = self.engine();
            pending.retain_mut(|(rank, request)| match request.is_done() {
                Ok(done) => !done,
                Err(message) => {
                    failure.get_or_insert((*rank, message));
                    true
                }
            });
            drop(engine);
            if let Some((rank, message)) = failure {
                std::mem::forget(pending);
                return Err(ExchangeError::Failed { ranks: vec![rank], message });
            }
            if pending.len() < before {
                (since, looks) = (Instant::now(), 0);
                continue;
            }
            if since.elapsed() > wait.limit {
                let mut ranks: Vec<usize> = pending.iter().map(|(rank, _)| *rank).collect();
                ranks.sort_unstable();
                ranks.dedup();
                std::mem::forget(pending);
                return Err(ExchangeError::Late { ranks, limit_s: wait.limit.as_secs() });
            }
            looks = looks.saturating_add(1);
            match (wait.flows, wait.computes) {
                (true, false) => std::thread::yield_now(),
                _ if looks < 100 => std::thread::yield_now(),
                (true, true) => std::thread::sleep(NAP),
                (false, _) => std::thread::sleep(DOZE),
            }
        }
        Ok(())
    }

    /// Ends all processes at once. The launcher may pass this exit code on.
    pub fn abort(&self, code: i32) -> ! {
        self.engine().abort(code);
        std::process::exit(code)
    }

    /// Shuts MPI down; all processes must do so. No message can be exchanged afterwards.
    ///
    /// # Errors
    /// Returns the error that the library reports.
    pub fn finalize(&self) -> Result<(), ExchangeError> {
        let others = (0..self.size).filter(|rank| *rank != self.rank).collect();
        self.engine().finalize().map_err(|message| ExchangeError::Failed { ranks: others, message })
    }
}
