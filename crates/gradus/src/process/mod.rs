//! Programs of users, in any language, that are asked in lines: rewards, metrics and tasks by `command`.
//!
//! A program reads one JSON object a line and prints one line for each; what it prints on its error channel is shown with what
//! goes wrong. It runs in a group of its own, which ends with it; lines, waiting lines and time are bounded, and the user's wish
//! to stop ends every wait.

mod config;
mod program;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::progress::Progress;

pub use config::{TIMEOUT_S, default_timeout_s, read_program, schema_of_program};
pub use gradus_environments::process::LINE_BYTES;
pub use program::{Asked, Program, ProgramError};

/// The user's wish to stop, for those who wait. Copies are the same wish.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Progress for Interrupt {
    fn advance(&self, _what: &'static str, _done: usize, _total: usize) -> crate::Result<()> {
        if self.is_raised() { Err(crate::Error::Interrupted) } else { Ok(()) }
    }
}

impl Interrupt {
    /// Says that the user wants to stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Says that the user wants to go on: what was raised is over.
    pub fn lower(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Whether the user wants to stop.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
