//! Where chat templates are compiled and rendered: in a process of their own, or in this one.
//!
//! A template from a stranger can exhaust the stack or the memory of whoever renders it, and neither can be caught. So a
//! program that [registers](register) how to start a renderer never compiles or renders a template itself. It starts a
//! child process, which limits its own memory, stack and time and then answers over pipes. A child that dies is an
//! error that names the template, and the next conversation gets a new child. Children are kept between conversations;
//! each belongs to one template.
//!
//! A program that registers nothing renders in its own process. It is then only as safe as the bounds that [`engine`]
//! keeps, and must not open models of strangers.

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
pub(super) use pool::{Pool, Refused};

/// The first argument of a renderer, after those of [`Starter`].
const COMMAND: &str = "__render";

/// How a renderer is started: a program that calls [`answer`] before anything else.
#[derive(Debug, Clone)]
pub struct Starter {
    /// The program; a name without a path is looked up in `PATH`.
    pub program: PathBuf,
    /// Its arguments before those that [`answer`] reads, such as `-m` and a module's name.
    pub arguments: Vec<OsString>,
}

static STARTER: OnceLock<Starter> = OnceLock::new();

/// From now on, chat templates that are opened are compiled and rendered by processes that `starter` starts. The first call
/// decides; returns whether this one was it.
pub fn register(starter: Starter) -> bool {
    STARTER.set(starter).is_ok()
}

/// How this very program is started again, also when its file has been replaced or deleted meanwhile.
///
/// # Errors
/// When the system does not say which program this is.
pub fn this_program() -> std::io::Result<Starter> {
    let running = PathBuf::from("/proc/self/exe");
    let program = match std::env::current_exe() {
        Ok(_) if running.exists() => running,
        Ok(program) => program,
        // Linux without `/proc`.
        Err(error) => std::env::args_os().next().map(PathBuf::from).ok_or(error)?,
    };
    Ok(Starter { program, arguments: Vec::new() })
}
