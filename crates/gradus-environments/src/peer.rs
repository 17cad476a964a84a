//! A child process that answers numbered requests, one line each, in any order.
//!
//! One process serves many callers concurrently. If it ends, the open requests fail, and the next caller starts it again. Numbers are never
//! reused, so an answer can only reach its own request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::process::{ErrorTail, LINE_BYTES, NextLine, Process, Requests};
use crate::restartable::Restartable;

/// How often the reader checks whether anyone still needs answers.
const GLANCE: Duration = Duration::from_millis(100);

/// Maximum number of bytes in lines that the process has not yet read.
const UNREAD_BYTES: usize = 64 << 20;

/// Meaning of a line from the process.
pub(crate) enum LineMeaning {
    /// Answer to the request with this number.
    Answer(u64, Map<String, Value>),
    /// Message that concerns no request, such as a notification.
    Aside,
    /// Request of the process, with the line that answers it.
    Request(String),
    /// Not a message. The line is skipped; a request without an answer quotes it in its error.
    Stray,
    /// Violation of the protocol, with the reason. The process is ended.
    Broken(String),
}

/// Protocol of a peer.
pub(crate) struct Dialect {
    /// Name of the process in error messages: `the environment`.
    pub noun: &'static str,
    /// Hint for the author of a process that violates the protocol.
    pub hint: &'static str,
    /// Key of the time limit of a request.
    pub limit: &'static str,
    /// Parses a line.
    pub read: fn(&str) -> LineMeaning,
    /// Builds the line that cancels a request.
    pub cancel: Option<fn(u64) -> Value>,
    /// Whether the process is ended if it prints nothing during the whole time limit of a request.
    pub ends_when_silent: bool,
}

/// A program that is started at the first request.
pub(crate) struct Peer {
    program: Vec<String>,
    timeout: Duration,
    dialect: &'static Dialect,
    life: Restartable<ProcessRun>,
    number: AtomicU64,
}

/// One run of the process, with the thread that reads its output.
struct ProcessRun {
    running: Arc<Running>,
    reader: JoinHandle<()>,
}

/// A running process.
pub(crate) struct Running {
    requests: Requests,
    stderr: ErrorTail,
    waiting: Mutex<OpenRequests>,
}

#[derive(Default)]
struct OpenRequests {
    /// Senders for the answers to open requests.
    answers: HashMap<u64, Sender<Result<Map<String, Value>>>>,
    /// Reason why the process ended.
    ended: Option<Error>,
    /// Number of lines read.
    lines: u64,
    /// Start of the last line that belongs to no open request.
    stray: Option<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No update under these locks is ever left incomplete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Start of a text, for error messages.
pub(crate) fn excerpt(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

impl Peer {
    /// Creates a peer that is not started yet.
    pub fn new(program: &[String], timeout_s: f64, dialect: &'static Dialect) -> Self {
        let timeout = Duration::from_secs_f64(timeout_s);
        Self { program: program.to_vec(), timeout, dialect, life: Restartable::new(), number: AtomicU64::new(1) }
    }

    /// Returns the running process. If none runs, starts one and calls `greet` before any other request.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if it cannot be started, or the error of `greet`.
    pub fn running(&self, greet: impl FnOnce(&Running) -> Result<()>) -> Result<Arc<Running>> {
        let is_alive = |life: &ProcessRun| locked(&life.running.waiting).ended.is_none();
        let start = |old: Option<ProcessRun>| {
            // The old process must end before the new one starts.
            if let Some(old) = old {
                old.end(None);
            }
            let life = self.start()?;
            match greet(&life.running) {
                Ok(()) => Ok(life),
                Err(error) => {
                    life.end(Some(&error));
                    Err(error)
                }
            }
        };
        self.life.get(is_alive, start, |life| Arc::clone(&life.running))
    }

    fn start(&self) -> Result<ProcessRun> {
        let noun = self.dialect.noun;
        let Some((program, arguments)) = self.program.split_first() else {
            return Err(Error::config(format!("{noun} has no program")));
        };
        let process = Process::start(program, arguments).map_err(|source| {
            Error::config(format!("{noun} `{program}` could not be started: {source}"))
                .with_hint("is it installed, and is the path relative to the working directory?")
        })?;
        let requests = process.requests().expect("its input is open");
        let running = Arc::new(Running { requests, stderr: process.error_tail(), waiting: Mutex::default() });
        let (of, name, dialect) = (Arc::downgrade(&running), program.clone(), self.dialect);
        let reader = std::thread::spawn(move || read(process, &of, &name, dialect));
        Ok(ProcessRun { running, reader })
    }

    /// Returns an unused request number.
    fn number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// Returns [`Error::Episode`] if the process ends, violates the protocol, or takes too long.
    pub fn request(&self, running: &Running, mut request: Map<String, Value>) -> Result<Map<String, Value>> {
        let noun = self.dialect.noun;
        let number = self.number();
        request.insert("id".to_owned(), json!(number));
        let (send, answer) = channel();
        let lines = {
            let mut waiting = locked(&running.waiting);
            if let Some(ended) = &waiting.ended {
                return Err(ended.clone());
            }
            waiting.answers.insert(number, send);
            waiting.lines
        };
        self.send(running, &Value::Object(request));
        match answer.recv_timeout(self.timeout) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                let mut message = format!("{noun} did not answer within {} s", self.timeout.as_secs_f64());
                let is_silent = {
                    let mut waiting = locked(&running.waiting);
                    waiting.answers.remove(&number);
                    if let Some(stray) = &waiting.stray {
                        message += &format!("; it printed a line that answers no open request (`{stray}`)");
                    }
                    waiting.lines == lines
                };
                if let Some(line) = running.stderr.text().lines().next_back() {
                    message += &format!("; its last line on stderr: `{}`", excerpt(line));
                }
                let error =
                    Error::episode(message).with_hint(format!("if it needs more time, raise {}", self.dialect.limit));
                if is_silent && self.dialect.ends_when_silent {
                    running.end(&error);
                } else if let Some(cancel) = self.dialect.cancel {
                    self.send(running, &cancel(number));
                }
                Err(error)
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::episode(format!("{noun} ended"))),
        }
    }

    /// Sends a message whose answer, if any, is ignored.
    pub fn notify(&self, running: &Running, mut message: Map<String, Value>) {
        message.insert("id".to_owned(), json!(self.number()));
        self.send(running, &Value::Object(message));
    }

    /// Sends a message without a number.
    pub fn send(&self, running: &Running, message: &Value) {
        running.send(format!("{message}\n"), self.dialect);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(life) = self.life.remove(|_| true) {
            life.end(Some(&Error::episode(format!("{} was closed", self.dialect.noun))));
        }
    }
}

impl ProcessRun {
    /// Ends the process and everything that it started.
    fn end(self, error: Option<&Error>) {
        let Self { running, reader } = self;
        if let Some(error) = error {
            running.end(error);
        }
        drop(running);
        // The reader thread ends the process before it returns.
        let _ = reader.join();
    }
}

impl Running {
    fn send(&self, line: String, dialect: &Dialect) {
        if self.requests.unread_bytes() > UNREAD_BYTES {
            self.end(&Error::episode(format!("{} does not read its input", dialect.noun)).with_hint(dialect.hint));
        } else {
            self.requests.send(vec![line]);
        }
    }

    /// Marks the process as ended and fails all open requests.
    fn end(&self, error: &Error) {
        let mut waiting = locked(&self.waiting);
        waiting.ended.get_or_insert_with(|| error.clone());
        for (_, answer) in waiting.answers.drain() {
            // The caller may have given up.
            let _ = answer.send(Err(error.clone()));
        }
    }
}

/// Passes lines of the process to the callers that wait for them, until the process ends or is no longer needed.
fn read(mut process: Process, running: &Weak<Running>, name: &str, dialect: &Dialect) {
    let open = || running.upgrade().filter(|running| locked(&running.waiting).ended.is_none());
    loop {
        let line = process.next_line(Instant::now() + GLANCE, &|| open().is_none());
        // The process gets a moment to end by itself before it is killed.
        let Some(running) = open() else { return };
        let failed = |what: String| Error::episode(format!("{} `{name}` {what}", dialect.noun));
        let wrong = |what: String| failed(what).with_hint(dialect.hint);
        let error = match line {
            NextLine::TimedOut | NextLine::Interrupted => continue,
            NextLine::Line(line) => match take(&running, &line, dialect) {
                Ok(()) => continue,
                Err(why) => wrong(format!("printed an invalid answer: {why} (`{}`)", excerpt(&line))),
            },
            NextLine::TooLong => wrong(format!("printed a line of more than {LINE_BYTES} bytes")),
            NextLine::Ended => {
                let tail = process.stderr_tail();
                let tail = if tail.is_empty() { tail } else { format!("; its last output:\n{tail}") };
                failed(format!("ended ({}){tail}", process.status())).with_hint("it must run until its input is closed")
            }
        };
        // The process and its children must be gone before a caller learns of the error.
        process.kill();
        running.end(&error);
        return;
    }
}

/// Handles one line.
///
/// # Errors
/// Returns the reason if the line violates the protocol.
fn take(running: &Running, line: &str, dialect: &Dialect) -> Result<(), String> {
    let message = (dialect.read)(line);
    let mut waiting = locked(&running.waiting);
    waiting.lines += 1;
    match message {
        LineMeaning::Answer(number, object) => match waiting.answers.remove(&number) {
            // The caller may have given up.
            Some(answer) => drop(answer.send(Ok(object))),
            // The answer came too late, came twice, or belongs to no request.
            None => waiting.stray = Some(excerpt(line).to_owned()),
        },
        LineMeaning::Stray => waiting.stray = Some(excerpt(line).to_owned()),
        LineMeaning::Aside => {}
        LineMeaning::Request(answer) => {
            drop(waiting);
            running.send(format!("{answer}\n"), dialect);
        }
        LineMeaning::Broken(why) => return Err(why),
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const DIALECT: Dialect = Dialect {
        noun: "the test",
        hint: "read",
        limit: "the limit",
        read: |_| LineMeaning::Stray,
        cancel: None,
        ends_when_silent: false,
    };

    /// Data that a process does not read is held in memory only up to a limit.
    #[test]
    fn a_process_that_reads_nothing_ends() {
        let program = ["sh", "-c", "exec sleep 600"].map(String::from);
        let peer = Peer::new(&program, 600.0, &DIALECT);
        let running = peer.running(|_| Ok(())).expect("started");
        let large = json!("x".repeat(UNREAD_BYTES / 4));
        for _ in 0..6 {
            peer.send(&running, &large);
        }
        let error = peer.request(&running, Map::new()).expect_err("it has ended");
        assert_eq!((error.to_string().as_str(), error.hint()), ("the test does not read its input", Some("read")));
        let again = peer.running(|_| Ok(())).expect("started again");
        assert!(!Arc::ptr_eq(&running, &again));
    }
}
