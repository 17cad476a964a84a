//! A child process that exchanges lines, without ever blocking on a pipe: one thread writes, one reads answers, and one
//! keeps the tail of the error channel. The process leads a group of its own. The group ends with it, and on Linux so do
//! its descendants in other groups and sessions.

mod descendants;
mod inherited;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use descendants::Marker;
pub use inherited::spawn;

/// Bytes of the error channel that are kept for messages.
const STDERR_BYTES: usize = 2000;

/// Time for a program to end by itself after its input is closed.
const GRACE: Duration = Duration::from_millis(300);

/// Maximum size of a line in bytes, and number of unread lines. A program that prints more must wait.
pub const LINE_BYTES: usize = 1 << 20;
const LINES: usize = 64;

/// How often the state of a silent program is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A line, or the reason why there is none.
pub enum NextLine {
    /// One line, without its line break.
    Line(String),
    /// A line of more than [`LINE_BYTES`].
    TooLong,
    /// The user canceled.
    Interrupted,
    /// The program closed its output. [`Process::status`] describes how it ended.
    Ended,
    /// The deadline passed.
    TimedOut,
}

/// Queue of lines for a program, usable from any thread. The program's input is closed when the last copy is dropped.
#[derive(Debug, Clone)]
pub struct Requests {
    lines: Sender<Vec<String>>,
    unread: Arc<AtomicUsize>,
}

impl Requests {
    /// Queues lines for the writing thread. If the program no longer reads, its missing answers and
    /// [`unread_bytes`](Self::unread_bytes) show it.
    pub fn send(&self, lines: Vec<String>) {
        self.unread.fetch_add(lines.iter().map(String::len).sum(), Ordering::Relaxed);
        let _ = self.lines.send(lines);
    }

    /// Number of bytes in queued lines that are not yet written.
    pub fn unread_bytes(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }
}

/// End of the error channel of a program, readable from any thread.
#[derive(Debug, Clone)]
pub struct ErrorTail(Arc<Mutex<VecDeque<u8>>>);

impl ErrorTail {
    /// Returns what the program has written so far, up to a limit, trimmed.
    pub fn text(&self) -> String {
        let tail = self.0.lock().expect("the reader never panics");
        let bytes: Vec<u8> = tail.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_string()
    }
}

/// Exit of a program.
struct ExitInfo {
    status: String,
    is_success: bool,
}

/// A running program.
pub struct Process {
    child: Child,
    /// Variable of the program and all that it starts.
    marker: Marker,
    /// Exit of the program, after its output has ended.
    ended: Option<ExitInfo>,
    /// Queue of the writing thread; `None` after the input is closed.
    requests: Option<Requests>,
    /// Lines of the program; `None` stands for a line that is too long.
    lines: Receiver<Option<String>>,
    stderr: ErrorTail,
    /// Disconnected after the error channel has been read to its end.
    stderr_ended: Receiver<()>,
}

impl Process {
    /// Starts `program` with its three channels connected.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(program: &str, arguments: &[String]) -> std::io::Result<Self> {
        let marker = Marker::new();
        let mut command = Command::new(program);
        command.args(arguments).env(marker.variable(), "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A separate process group: Ctrl-C should reach only the trainer, which still scores completions before it
        // saves.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = spawn(&mut command)?;

        let (lines_in, queue) = channel();
        let requests = Requests { lines: lines_in, unread: Arc::default() };
        let (stdin, unread) = (child.stdin.take().expect("stdin is piped"), Arc::clone(&requests.unread));
        std::thread::spawn(move || write_all(stdin, &queue, &unread));

        let (send, lines) = sync_channel(LINES);
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        std::thread::spawn(move || read_lines(stdout, &send));

        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let (pipe, tail) = (child.stderr.take().expect("stderr is piped"), Arc::clone(&stderr));
        let (ends, stderr_ended) = channel();
        std::thread::spawn(move || {
            keep_tail(pipe, &tail);
            drop(ends);
        });

        let (stderr, requests) = (ErrorTail(stderr), Some(requests));
        Ok(Self { child, marker, ended: None, requests, lines, stderr, stderr_ended })
    }

    /// Returns a queue for use from any thread.
    pub fn requests(&self) -> Option<Requests> {
        self.requests.clone()
    }

    /// Queues lines for the writing thread. If the program no longer reads, its missing answers show it.
    pub fn send(&self, lines: Vec<String>) {
        if let Some(requests) = &self.requests {
            requests.send(lines);
        }
    }

    /// Closes the input after all queued lines are written.
    pub fn close(&mut self) {
        self.requests = None;
    }

    /// Returns a line that the program prints without a request, within `patience`.
    pub fn surplus_line(&self, patience: Duration) -> Option<String> {
        self.lines.recv_timeout(patience).ok().map(Option::unwrap_or_default)
    }

    /// Waits for the next line until `deadline`, or until `is_interrupted` returns true.
    pub fn next_line(&mut self, deadline: Instant, is_interrupted: &dyn Fn() -> bool) -> NextLine {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(Some(line)) => return NextLine::Line(line),
                Ok(None) => return NextLine::TooLong,
                Err(RecvTimeoutError::Disconnected) => {
                    self.end();
                    return NextLine::Ended;
                }
                Err(RecvTimeoutError::Timeout) if is_interrupted() => return NextLine::Interrupted,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return NextLine::TimedOut,
                // The program has ended, but children may still hold its output open. They are ended too, and the
                // remaining output is read.
                Err(RecvTimeoutError::Timeout) if matches!(self.child.try_wait(), Ok(Some(_))) => self.kill_others(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns the tail of the error channel, trimmed.
    pub fn stderr_tail(&self) -> String {
        // The thread that reads the channel may lag behind the answers. If the program has ended, the channel has an
        // end to wait for. A running program gets only a moment.
        let patience = if self.requests.is_none() { Duration::from_secs(1) } else { Duration::from_millis(20) };
        let _ = self.stderr_ended.recv_timeout(patience);
        self.stderr.text()
    }

    /// Returns the tail of the error channel for use from any thread.
    pub fn error_tail(&self) -> ErrorTail {
        self.stderr.clone()
    }

    /// Kills the program and everything that it started at once.
    pub fn kill(&mut self) {
        self.requests = None;
        // Its children get another parent when it ends, so they are found first.
        let running = matches!(self.child.try_wait(), Ok(None)).then(|| self.child.id());
        let descendants = self.marker.descendants(running);
        self.kill_group();
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.marker.kill_all(descendants);
    }

    /// Kills everything that the program started, after it has ended.
    fn kill_others(&self) {
        self.kill_group();
        self.marker.kill_all(Vec::new());
    }

    /// Kills the program's group. An empty group is not an error.
    fn kill_group(&self) {
        #[cfg(unix)]
        {
            use nix::sys::signal::{Signal, killpg};
            let group = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    /// Describes how the program ended, if it has.
    pub fn status(&self) -> &str {
        self.ended.as_ref().map_or("it still runs", |ended| &ended.status)
    }

    /// Whether the program ended by itself with success.
    pub fn is_success(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.is_success)
    }

    /// Closes the input, waits a moment, then kills the program and records how it ended.
    fn end(&mut self) {
        if self.ended.is_none() {
            let (status, is_success) = self.ending();
            self.ended = Some(ExitInfo { status, is_success });
        }
    }

    fn ending(&mut self) -> (String, bool) {
        self.requests = None;
        let give_up = Instant::now() + GRACE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.kill_others();
                    return (status.to_string(), status.success());
                }
                Ok(None) if Instant::now() < give_up => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => {
                    self.kill();
                    return ("it closed its output and went on".into(), false);
                }
                Err(error) => return (error.to_string(), false),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn write_all(mut stdin: ChildStdin, queue: &Receiver<Vec<String>>, unread: &AtomicUsize) {
    for lines in queue {
        for line in lines {
            unread.fetch_sub(line.len(), Ordering::Relaxed);
            if stdin.write_all(line.as_bytes()).is_err() {
                return; // The program stopped reading; its missing answers are the error.
            }
        }
        if stdin.flush().is_err() {
            return;
        }
    }
}

fn read_lines(mut stdout: impl BufRead, send: &SyncSender<Option<String>>) {
    let mut bytes = Vec::new();
    while let Ok(1..) = stdout.by_ref().take(LINE_BYTES as u64 + 1).read_until(b'\n', &mut bytes) {
        let fits = bytes.len() <= LINE_BYTES;
        let line = fits.then(|| String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_string());
        if send.send(line).is_err() || !fits {
            return;
        }
        bytes.clear();
    }
}

fn keep_tail(mut stderr: impl Read, tail: &Mutex<VecDeque<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        let mut tail = tail.lock().expect("no holder panics");
        tail.extend(&buffer[..count]);
        let surplus = tail.len().saturating_sub(STDERR_BYTES);
        tail.drain(..surplus);
    }
}
