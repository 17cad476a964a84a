//! A running child, as its parent sees it: what it is asked, and how it died.

use std::io::{self, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::child::{MEMORY_BYTES, OTHER_VERSION, SECONDS, STACK_BYTES, VERSION, WITHOUT_LIMITS, WITHOUT_STACK};
use super::engine::{Conversation, Source};
use super::wire::{self, Answer};
use super::{COMMAND, Starter};

/// How long a parent waits for one answer of a child that does not use up its processor time.
const PATIENCE: Duration = Duration::from_secs(120);

/// How much is read of what a dead child wrote to its error channel.
const LAST_WORDS: u64 = 4096;

/// How a child ended before it answered.
#[derive(Debug)]
pub(super) struct Death {
    pub what: String,
    /// Whether what it was asked last decides that it died, whatever came before.
    pub is_certain: bool,
}

/// A child that has compiled its template.
pub(super) struct Renderer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Whether it was asked before.
    pub is_used: bool,
    /// The process that started it: a process that was forked from that one must not speak in its place.
    owner: u32,
}

impl Renderer {
    /// Starts a child and has it compile the template. The inner error is the template's. A death that the template may have
    /// nothing to do with is tried again.
    ///
    /// # Errors
    /// When it cannot be started, or dies.
    pub(super) fn start(starter: &Starter, source: &Source) -> Result<Result<Self, String>, Death> {
        match Self::start_once(starter, source) {
            Err(death) if !death.is_certain => Self::start_once(starter, source),
            started => started,
        }
    }

    fn start_once(starter: &Starter, source: &Source) -> Result<Result<Self, String>, Death> {
        let mut command = Command::new(&starter.program);
        command.args(&starter.arguments).args([COMMAND, VERSION]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // mimalloc reserves a gigabyte at once. The limit on memory counts what may be written, used or not.
        command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt;
            // A group of its own: Ctrl-C is for the program, which may have a checkpoint to write first.
            command.process_group(0);
        }
        let not_started = |error: io::Error| Death {
            what: format!("its process `{}` could not be started: {error}", starter.program.display()),
            is_certain: true,
        };
        let mut child = command.spawn().map_err(not_started)?;
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let output = BufReader::with_capacity(1 << 16, output);
        let mut renderer = Self { child, input, output, is_used: false, owner: std::process::id() };
        let source = serde_json::to_string(source).expect("texts serialize");
        let compiled = wire::send(&mut renderer.input, &[&source]).and_then(|()| renderer.next());
        match compiled {
            Ok(Ok(_)) => Ok(Ok(renderer)),
            Ok(Err(what)) => Ok(Err(what)),
            Err(error) => Err(renderer.bury(&error)),
        }
    }

    /// Whether this process started it.
    pub(super) fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Renders conversations one after the other; `answers` gets what each gave, in order.
    ///
    /// # Errors
    /// When the child cannot be spoken to any more. The conversation after those that were answered is the cause.
    pub(super) fn ask(&mut self, conversations: &[Conversation], answers: &mut Vec<Answer>) -> io::Result<()> {
        let parts: Vec<&str> = conversations.iter().flat_map(|c| [c.messages.as_str(), c.settings.as_str()]).collect();
        let sent = wire::send(&mut self.input, &parts);
        for _ in conversations {
            // What a child answered before it died counts, although it did not read everything.
            let answer = self.next();
            answers.push(answer?);
            self.is_used = true;
        }
        sent
    }

    fn next(&mut self) -> io::Result<Answer> {
        self.wait()?;
        wire::receive_answer(&mut self.output)
    }

    /// Waits until the child says something, or ends.
    #[cfg(unix)]
    fn wait(&self) -> io::Result<()> {
        use std::os::fd::AsFd;
        use std::time::Instant;

        use nix::errno::Errno;
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

        if !self.output.buffer().is_empty() {
            return Ok(());
        }
        let give_up = Instant::now() + PATIENCE;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut output = [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)];
            match poll(&mut output, left) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[cfg(not(unix))]
    fn wait(&self) -> io::Result<()> {
        Ok(())
    }

    /// Ends a child that did not answer, and says how it died.
    pub(super) fn bury(mut self, error: &io::Error) -> Death {
        if error.kind() == io::ErrorKind::TimedOut {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let what = format!("its process gave no answer for {} s", PATIENCE.as_secs());
            return Death { what, is_certain: true };
        }
        // Its pipe is at its end, so it has ended or is about to; one that only talks nonsense is ended.
        if error.kind() != io::ErrorKind::UnexpectedEof && error.kind() != io::ErrorKind::BrokenPipe {
            let _ = self.child.kill();
        }
        let status = self.child.wait();
        let mut words = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(LAST_WORDS).read_to_end(&mut words);
        }
        let words = String::from_utf8_lossy(&words);
        match status {
            Ok(status) => death(status, words.trim()),
            Err(error) => Death { what: format!("its process was lost: {error}"), is_certain: false },
        }
    }
}

impl Drop for Renderer {
    /// A child has nothing to finish. A process that was forked from the owner leaves it alone.
    fn drop(&mut self) {
        if self.is_ours() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a child died of.
fn death(status: ExitStatus, words: &str) -> Death {
    let stack = || {
        let what = format!("it nests too deep: {} MiB of stack were used up", STACK_BYTES >> 20);
        Death { what, is_certain: true }
    };
    let memory = || {
        let what = format!("it took more than {} MiB of memory", MEMORY_BYTES >> 20);
        Death { what, is_certain: false }
    };
    if words.contains("overflowed its stack") {
        return stack();
    }
    if words.contains("memory allocation of") {
        return memory();
    }
    let unknown = |what: String| {
        let what = if words.is_empty() { what } else { format!("{what}; its last words: {words}") };
        Death { what, is_certain: false }
    };
    #[cfg(unix)]
    {
        use nix::sys::signal::Signal;
        use std::os::unix::process::ExitStatusExt;
        match status.signal().and_then(|signal| Signal::try_from(signal).ok()) {
            Some(Signal::SIGXCPU) => {
                let what = format!(
                    "it took more than {SECONDS} s of processor time, and one more for each megabyte, for one conversation"
                );
                return Death { what, is_certain: true };
            }
            // Without Rust's own handler a stack that is used up is a fault.
            Some(Signal::SIGSEGV | Signal::SIGBUS) => return stack(),
            Some(Signal::SIGKILL) => return unknown("the system ended its process, maybe for want of memory".into()),
            _ => {}
        }
    }
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(OTHER_VERSION) => unknown("its process is another version of the program: start the program again".into()),
        Some(WITHOUT_LIMITS) => unknown("its process could not limit its memory and time".into()),
        Some(WITHOUT_STACK) => unknown("its process got no stack, maybe for want of memory".into()),
        _ => unknown(format!("its process ended ({status})")),
    }
}
