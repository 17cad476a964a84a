//! Programs of users, in any language, that read and write lines: rewards, metrics and tasks by `command`.
//!
//! A program reads one JSON object per line and prints one line for each. Error messages include the end of its stderr. Each program runs
//! in a process group of its own, which ends with it. On Linux, its descendants in other groups end, too. Line length, waiting lines and
//! time are limited, and the user's interrupt ends every wait.

mod config;
mod program;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::progress::Progress;

pub use config::{TIMEOUT_S, default_timeout_s, read_program, schema_of_program};
pub use gradus_environments::process::LINE_BYTES;
pub use program::{AnswerDeadline, Program};

/// A program's error, or the user's interrupt of a wait for it.
pub use crate::error::Failure as ProgramError;

/// The user's request to stop. Copies share one flag.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Progress for Interrupt {
    fn advance(&self, _what: &'static str, _done: usize, _total: usize) -> crate::Result<()> {
        if self.is_raised() { Err(crate::Error::Interrupted) } else { Ok(()) }
    }
}

impl Interrupt {
    /// Requests a stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Withdraws the request, so that work can continue.
    pub fn lower(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Returns true if a stop is requested.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
