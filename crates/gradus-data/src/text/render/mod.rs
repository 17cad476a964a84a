//! Compiles and renders chat templates, in separate processes or in this one.
//!
//! An untrusted template can exhaust the stack or the memory of its process, and neither can be caught. A program that
//! [registers](register) how to start a renderer therefore never compiles or renders a template itself. It starts a child process,
//! which limits its own memory, stack and time and then answers over pipes. If a child dies, the error names the template, and the
//! next conversation gets a new child. Children are kept between conversations; each belongs to one template.
//!
//! A program that registers nothing renders in its own process. Its only protection is then the limits of `engine`, so it must
//! not open untrusted models.

mod builtins;
mod child;
pub(super) mod engine;
mod pool;
mod process;
mod wire;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

pub use child::{answer, streams};
pub(super) use engine::{CLOSE, Conversation, OPEN, Settings, Source, marks_generation};
pub(super) use pool::{Pool, RenderError};

/// First argument of a renderer, after those of [`Starter`].
const COMMAND: &str = "__render";

/// Command that starts a renderer. The program must call [`answer`] first.
#[derive(Debug, Clone)]
pub struct Starter {
    /// Program. A name without a path is looked up in `PATH`.
    pub program: PathBuf,
    /// Arguments before those that [`answer`] reads, such as `-m` and the name of a module.
    pub arguments: Vec<OsString>,
    /// Processor time for one conversation, in seconds, plus one second per megabyte. Known templates take a thousandth of
    /// the default. Time in which other programs use the processor does not count.
    pub seconds: u64,
}

impl Starter {
    /// Creates a command with 5 seconds for each conversation.
    pub fn new(program: impl Into<PathBuf>, arguments: Vec<OsString>) -> Self {
        Self { program: program.into(), arguments, seconds: 5 }
    }
}

static STARTER: OnceLock<Starter> = OnceLock::new();

/// Registers `starter`: from now on, it starts the processes that compile and render newly opened chat templates. Only the first
/// call has an effect; returns whether this was the first.
pub fn register(starter: Starter) -> bool {
    STARTER.set(starter).is_ok()
}

/// Returns the command that starts this program again, even if its file has been replaced or deleted since.
///
/// # Errors
/// If the system does not report which program this is.
pub fn this_program() -> std::io::Result<Starter> {
    let running = PathBuf::from("/proc/self/exe");
    let program = match std::env::current_exe() {
        Ok(_) if running.exists() => running,
        Ok(program) => program,
        // Linux without `/proc`.
        Err(error) => std::env::args_os().next().map(PathBuf::from).ok_or(error)?,
    };
    Ok(Starter::new(program, Vec::new()))
}
