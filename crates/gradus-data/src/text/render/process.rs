//! The parent's view of a running child: sends it conversations, and finds out how it died.

use std::io::{self, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use gradus_environments::process::spawn;

use super::child::{MEMORY_BYTES, OTHER_VERSION, STACK_BYTES, VERSION, WITHOUT_LIMITS, WITHOUT_STACK};
use super::engine::{Conversation, Source};
use super::wire::{self, RenderResult};
use super::{COMMAND, Starter};

/// How long a parent waits for one answer of a child that does not use up its processor time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of bytes read from the error channel of a dead child.
const MAX_STDERR_BYTES: u64 = 4096;

/// How a child ended before it answered.
#[derive(Debug)]
pub(super) struct ChildExit {
    pub what: String,
    /// Whether the last conversation alone caused the death, independent of earlier ones.
    pub is_certain: bool,
}

/// A child that has compiled its template.
pub(super) struct Renderer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Whether it has rendered a conversation.
    pub is_used: bool,
    /// Processor time for one conversation ([`Starter::seconds`]).
    seconds: u64,
    /// Process that started the child. A process forked from that one must not use the child.
    owner: u32,
}

impl Renderer {
    /// Starts a child, which compiles the template. The inner error is the template's. If the template may not have caused the
    /// child's death, a second child is tried.
    ///
    /// # Errors
    /// If the child cannot be started, or dies.
    pub(super) fn start(starter: &Starter, source: &Source) -> Result<Result<Self, String>, ChildExit> {
        match Self::start_once(starter, source) {
            Err(exit) if !exit.is_certain => Self::start_once(starter, source),
            started => started,
        }
    }

    fn start_once(starter: &Starter, source: &Source) -> Result<Result<Self, String>, ChildExit> {
        let mut command = Command::new(&starter.program);
        command.args(&starter.arguments).args([COMMAND, VERSION, &starter.seconds.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // mimalloc reserves a gigabyte at once, and the memory limit counts memory that may be written, used or not.
        command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt;
            // A separate process group keeps Ctrl-C from the child: the parent may have to write a checkpoint first.
            command.process_group(0);
        }
        let not_started = |error: io::Error| ChildExit {
            what: format!("its process `{}` could not be started: {error}", starter.program.display()),
            is_certain: true,
        };
        let mut child = spawn(&mut command).map_err(not_started)?;
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let output = BufReader::with_capacity(1 << 16, output);
        let mut renderer =
            Self { child, input, output, is_used: false, seconds: starter.seconds, owner: std::process::id() };
        let source = serde_json::to_string(source).expect("texts serialize");
        let compiled = wire::send(&mut renderer.input, &[&source]).and_then(|()| renderer.next());
        match compiled {
            Ok(Ok(_)) => Ok(Ok(renderer)),
            Ok(Err(what)) => Ok(Err(what)),
            Err(error) => Err(renderer.reap(&error)),
        }
    }

    /// Returns whether this process started the child.
    pub(super) fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Renders conversations one after the other and appends their results to `answers`, in order.
    ///
    /// # Errors
    /// If the connection to the child fails. The first conversation without an answer is the cause.
    pub(super) fn request(
        &mut self,
        conversations: &[Conversation],
        answers: &mut Vec<RenderResult>,
    ) -> io::Result<()> {
        let parts: Vec<&str> = conversations.iter().flat_map(|c| [c.messages.as_str(), c.settings.as_str()]).collect();
        let sent = wire::send(&mut self.input, &parts);
        for _ in conversations {
            // Answers that a child gave before it died count, even if it did not read all conversations.
            let answer = self.next();
            answers.push(answer?);
            self.is_used = true;
        }
        sent
    }

    fn next(&mut self) -> io::Result<RenderResult> {
        self.wait()?;
        wire::receive_answer(&mut self.output)
    }

    /// Waits until the child writes something or exits.
    #[cfg(unix)]
    fn wait(&self) -> io::Result<()> {
        use std::os::fd::AsFd;
        use std::time::Instant;

        use nix::errno::Errno;
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

        if !self.output.buffer().is_empty() {
            return Ok(());
        }
        let give_up = Instant::now() + ANSWER_TIMEOUT;
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

    /// Ends a child that did not answer, and returns how it died.
    pub(super) fn reap(mut self, error: &io::Error) -> ChildExit {
        if error.kind() == io::ErrorKind::TimedOut {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let what = format!("its process gave no answer for {} s", ANSWER_TIMEOUT.as_secs());
            return ChildExit { what, is_certain: true };
        }
        // At the end of its pipe the child has exited or is about to. If it sends invalid data, it is killed.
        if error.kind() != io::ErrorKind::UnexpectedEof && error.kind() != io::ErrorKind::BrokenPipe {
            let _ = self.child.kill();
        }
        let status = self.child.wait();
        let mut words = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(MAX_STDERR_BYTES).read_to_end(&mut words);
        }
        let words = String::from_utf8_lossy(&words);
        match status {
            Ok(status) => exit(status, words.trim(), self.seconds),
            Err(error) => ChildExit { what: format!("its process was lost: {error}"), is_certain: false },
        }
    }
}

impl Drop for Renderer {
    /// Kills the child, which has nothing to finish. A process that was forked from the owner leaves it running.
    fn drop(&mut self) {
        if self.is_ours() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Determines how a child died.
fn exit(status: ExitStatus, words: &str, seconds: u64) -> ChildExit {
    let stack = || {
        let what = format!("it nests too deep: it used up {} MiB of stack", STACK_BYTES >> 20);
        ChildExit { what, is_certain: true }
    };
    let memory = || {
        let what = format!("it took more than {} MiB of memory", MEMORY_BYTES >> 20);
        ChildExit { what, is_certain: false }
    };
    if words.contains("overflowed its stack") {
        return stack();
    }
    if words.contains("memory allocation of") {
        return memory();
    }
    let unknown = |what: String| {
        let what = if words.is_empty() { what } else { format!("{what}; its last output: {words}") };
        ChildExit { what, is_certain: false }
    };
    #[cfg(unix)]
    {
        use nix::sys::signal::Signal;
        use std::os::unix::process::ExitStatusExt;
        match status.signal().and_then(|signal| Signal::try_from(signal).ok()) {
            Some(Signal::SIGXCPU) => {
                let what = format!(
                    "it took more than {seconds} s of processor time, and one more for each megabyte, for one conversation"
                );
                return ChildExit { what, is_certain: true };
            }
            // Without Rust's handler, a stack overflow is reported as a fault.
            Some(Signal::SIGSEGV | Signal::SIGBUS) => return stack(),
            Some(Signal::SIGKILL) => {
                return unknown("the system ended its process, maybe because memory ran out".into());
            }
            _ => {}
        }
    }
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(OTHER_VERSION) => unknown("the process runs another version of gradus: restart gradus".into()),
        Some(WITHOUT_LIMITS) => unknown("its process could not limit its memory and time".into()),
        Some(WITHOUT_STACK) => unknown("its process got no stack, maybe because memory ran out".into()),
        _ => unknown(format!("its process ended ({status})")),
    }
}
