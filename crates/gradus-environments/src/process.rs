//! A child process that is spoken to in lines, without ever blocking on a pipe: one thread writes, one reads answers,
//! one keeps the end of the error channel. It is the first of a group of its own, which ends with it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How much of the error channel is kept for messages.
const STDERR_BYTES: usize = 2000;

/// How long a program may take to end by itself once its input is closed.
const GRACE: Duration = Duration::from_millis(300);

/// The most bytes of one line, and lines that wait to be asked for: who prints more waits in turn.
pub const LINE_BYTES: usize = 1 << 20;
const LINES: usize = 64;

/// How often a program that does not answer is looked at.
const GLANCE: Duration = Duration::from_millis(50);

/// What came instead of a line, or the line.
pub enum Answer {
    /// One line, without its end.
    Line(String),
    /// A line of more than [`LINE_BYTES`].
    TooLong,
    /// The user wants to stop.
    Interrupted,
    /// The program closed its output; [`Process::status`] says how it ended.
    Ended,
    /// The deadline passed.
    TimedOut,
}

/// Hands lines to a program, from any thread. The program's input is closed when the last copy is gone.
#[derive(Debug, Clone)]
pub struct Requests {
    lines: Sender<Vec<String>>,
    unread: Arc<AtomicUsize>,
}

impl Requests {
    /// Hands lines over to the writing thread. A program that no longer reads shows in its answers, and in
    /// [`unread_bytes`](Self::unread_bytes).
    pub fn send(&self, lines: Vec<String>) {
        self.unread.fetch_add(lines.iter().map(String::len).sum(), Ordering::Relaxed);
        let _ = self.lines.send(lines);
    }

    /// Bytes of lines that were handed over and not yet written.
    pub fn unread_bytes(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }
}

/// How a program ended.
struct Ended {
    status: String,
    is_success: bool,
}

/// A running program.
pub struct Process {
    child: Child,
    /// How it ended, once its output did.
    ended: Option<Ended>,
    /// Lines for the writing thread; `None` once the input is closed.
    requests: Option<Requests>,
    /// `None`: a line that is too long.
    lines: Receiver<Option<String>>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    /// Disconnected once the error channel has been read to its end.
    stderr_ended: Receiver<()>,
}

impl Process {
    /// Starts `program` with its three channels connected.
    pub fn start(program: &str, arguments: &[String]) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C is for the trainer, which still has completions to score before it saves.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;

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

        Ok(Self { child, ended: None, requests: Some(requests), lines, stderr, stderr_ended })
    }

    /// A way to hand lines over from any thread.
    pub fn requests(&self) -> Option<Requests> {
        self.requests.clone()
    }

    /// Hands lines over to the writing thread. A program that no longer reads shows in its answers.
    pub fn send(&self, lines: Vec<String>) {
        if let Some(requests) = &self.requests {
            requests.send(lines);
        }
    }

    /// Closes the input once what was handed over is written.
    pub fn close(&mut self) {
        self.requests = None;
    }

    /// A line that is there although nothing was asked, or comes within `patience`.
    pub fn unasked_line(&self, patience: Duration) -> Option<String> {
        self.lines.recv_timeout(patience).ok().map(Option::unwrap_or_default)
    }

    /// Waits for the next line until `deadline`, or until `is_interrupted`.
    pub fn next_line(&mut self, deadline: Instant, is_interrupted: &dyn Fn() -> bool) -> Answer {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(GLANCE)) {
                Ok(Some(line)) => return Answer::Line(line),
                Ok(None) => return Answer::TooLong,
                Err(RecvTimeoutError::Disconnected) => {
                    self.end();
                    return Answer::Ended;
                }
                Err(RecvTimeoutError::Timeout) if is_interrupted() => return Answer::Interrupted,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Answer::TimedOut,
                // One that has ended may have left others who hold its output: they end too, and what it said is read.
                Err(RecvTimeoutError::Timeout) if matches!(self.child.try_wait(), Ok(Some(_))) => self.kill_group(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The end of what the program wrote to its error channel, without white space around it.
    pub fn stderr_tail(&self) -> String {
        // The thread that reads it may be behind the one that saw the answer. Of a program that has ended there is an
        // end to wait for; one that goes on gets a moment.
        let patience = if self.requests.is_none() { Duration::from_secs(1) } else { Duration::from_millis(20) };
        let _ = self.stderr_ended.recv_timeout(patience);
        let tail = self.stderr.lock().expect("the reader never panics");
        let bytes: Vec<u8> = tail.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_string()
    }

    /// Ends the program and all that it started at once.
    pub fn kill(&mut self) {
        self.requests = None;
        self.kill_group();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends everyone in the program's group. That nobody is left is no error.
    fn kill_group(&self) {
        #[cfg(unix)]
        {
            use nix::sys::signal::{Signal, killpg};
            let group = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    /// How the program ended, where its output has.
    pub fn status(&self) -> &str {
        self.ended.as_ref().map_or("it still runs", |ended| &ended.status)
    }

    /// Whether it ended by itself, content.
    pub fn is_success(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.is_success)
    }

    /// Closes the input, waits a moment, then kills, and remembers how the program ended.
    fn end(&mut self) {
        if self.ended.is_none() {
            let (status, is_success) = self.ending();
            self.ended = Some(Ended { status, is_success });
        }
    }

    fn ending(&mut self) -> (String, bool) {
        self.requests = None;
        let give_up = Instant::now() + GRACE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.kill_group();
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
