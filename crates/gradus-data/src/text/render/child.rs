//! The child process: limits itself, compiles one template, renders the conversations it receives, and exits at the end of its
//! input.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::COMMAND;
use super::engine::{Conversation, Engine, Source};
use super::wire;

/// Version that parent and child must share.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Stack for compiling and rendering.
pub(super) const STACK_BYTES: usize = 16 << 20;

/// Memory limit of a child.
pub(super) const MEMORY_BYTES: u64 = 1 << 30;

/// Short conversations that follow each other within this time share one time limit.
const SHARED: Duration = Duration::from_millis(100);
const SHORT_BYTES: usize = 1 << 20;

/// Exit code of a renderer that has lost its parent.
const FAILED: u8 = 1;

/// Exit code of a child whose version differs from its parent's.
pub(super) const OTHER_VERSION: u8 = 81;

/// Exit code of a child that could not set its limits.
pub(super) const WITHOUT_LIMITS: u8 = 82;

/// Exit code of a child that got no stack.
pub(super) const WITHOUT_STACK: u8 = 83;

/// Returns standard input and standard output as files, without their buffers and locks.
///
/// # Errors
/// If the system cannot duplicate a handle.
#[cfg(unix)]
pub fn streams(input: impl std::os::fd::AsFd, output: impl std::os::fd::AsFd) -> io::Result<(File, File)> {
    let own = |stream: std::os::fd::BorrowedFd<'_>| Ok::<File, io::Error>(stream.try_clone_to_owned()?.into());
    Ok((own(input.as_fd())?, own(output.as_fd())?))
}

/// Returns standard input and standard output as files, without their buffers and locks.
///
/// # Errors
/// If the system cannot duplicate a handle.
#[cfg(windows)]
pub fn streams(
    input: impl std::os::windows::io::AsHandle,
    output: impl std::os::windows::io::AsHandle,
) -> io::Result<(File, File)> {
    let own =
        |stream: std::os::windows::io::BorrowedHandle<'_>| Ok::<File, io::Error>(stream.try_clone_to_owned()?.into());
    Ok((own(input.as_handle())?, own(output.as_handle())?))
}

/// Renders chat templates for another process and returns the exit code, if this process was started for that purpose. Returns
/// `None` for every other start. `arguments` exclude the program's name.
///
/// `connect` returns standard input and standard output, as [`streams`] makes them. A program that [registers](super::register)
/// itself must call this first: output would disturb the protocol, and running threads would count against the limits.
pub fn answer(
    arguments: impl IntoIterator<Item = OsString>,
    connect: impl FnOnce() -> io::Result<(File, File)>,
) -> Option<u8> {
    let mut arguments = arguments.into_iter();
    if arguments.next()? != COMMAND {
        return None;
    }
    if arguments.next().is_none_or(|version| version != VERSION) {
        return Some(OTHER_VERSION);
    }
    let Some(seconds) = arguments.next().and_then(|seconds| seconds.to_str()?.parse().ok()) else {
        return Some(OTHER_VERSION);
    };
    let Ok((input, output)) = connect() else { return Some(FAILED) };
    // The stack is allocated before memory is limited.
    let worker = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        if limits::set().is_err() {
            return WITHOUT_LIMITS;
        }
        match serve(input, output, seconds) {
            Ok(()) => 0,
            // The parent is gone.
            Err(_) => FAILED,
        }
    });
    let Ok(worker) = worker else { return Some(WITHOUT_STACK) };
    Some(worker.join().unwrap_or(FAILED))
}

fn serve(input: File, output: File, seconds: u64) -> io::Result<()> {
    let (mut input, mut output) = (BufReader::new(input), BufWriter::with_capacity(1 << 16, output));
    let Some(parts) = wire::receive(&mut input)? else { return Ok(()) };
    let source: Source = serde_json::from_str(parts.first().map_or("", String::as_str)).map_err(io::Error::other)?;
    let mut clock = Clock::start(seconds, parts.iter().map(String::len).sum())?;
    let mut engine = match Engine::compile(Arc::new(source)) {
        Ok(engine) => engine,
        Err(what) => {
            wire::send_answer(&mut output, &Err(what))?;
            return output.flush();
        }
    };
    wire::send_answer(&mut output, &Ok(String::new()))?;
    output.flush()?;
    while let Some(parts) = wire::receive(&mut input)? {
        let mut parts = parts.into_iter();
        while let (Some(messages), Some(settings)) = (parts.next(), parts.next()) {
            clock.restart(messages.len())?;
            let conversation = Conversation { messages, settings };
            wire::send_answer(&mut output, &engine.render(&conversation))?;
        }
        output.flush()?;
    }
    Ok(())
}

/// Start of the processor time of a conversation. Setting the limit costs a tenth of the time of a short conversation, so
/// conversations that follow immediately share it.
struct Clock {
    started: Instant,
    /// Processor time for one conversation, in seconds, plus one second per megabyte.
    seconds: u64,
    bytes: usize,
}

impl Clock {
    fn start(seconds: u64, bytes: usize) -> io::Result<Self> {
        limits::begin(seconds + (bytes >> 20) as u64)?;
        Ok(Self { started: Instant::now(), seconds, bytes })
    }

    fn restart(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > self.bytes.max(SHORT_BYTES) || self.started.elapsed() > SHARED {
            *self = Self::start(self.seconds, bytes)?;
        }
        Ok(())
    }
}

#[cfg(unix)]
mod limits {
    use std::io;

    use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};

    use super::MEMORY_BYTES;

    /// Limits the total resources of this process.
    pub(super) fn set() -> io::Result<()> {
        lower(Resource::RLIMIT_DATA, MEMORY_BYTES)?;
        // A child that aborts must not write a core dump into the working directory.
        lower(Resource::RLIMIT_CORE, 0)
    }

    fn lower(resource: Resource, most: u64) -> io::Result<()> {
        let (_, hard) = getrlimit(resource)?;
        let most = hard.min(most);
        Ok(setrlimit(resource, most, most)?)
    }

    /// Limits the processor time from now on.
    pub(super) fn begin(seconds: u64) -> io::Result<()> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let used = usage.user_time().tv_sec() + usage.system_time().tv_sec();
        // Both parts of the used time are rounded down.
        let until = u64::try_from(used).unwrap_or_default() + 2 + seconds;
        let (_, hard) = getrlimit(Resource::RLIMIT_CPU)?;
        Ok(setrlimit(Resource::RLIMIT_CPU, until.min(hard), hard)?)
    }
}

#[cfg(not(unix))]
mod limits {
    use std::io::Result;

    pub(super) fn set() -> Result<()> {
        Ok(())
    }

    pub(super) fn begin(_seconds: u64) -> Result<()> {
        Ok(())
    }
}
