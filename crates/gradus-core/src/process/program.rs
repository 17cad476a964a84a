//! A program that answers line by line.

use std::time::{Duration, Instant};

use super::Interrupt;
use crate::error::{Diagnostic, Error, Failure, Result, excerpt};
use gradus_environments::process::{LINE_BYTES, NextLine, Process};

/// How long [`Program::expect_silence`] waits for surplus lines.
const SILENCE: Duration = Duration::from_millis(20);

/// A running program.
pub struct Program {
    /// What messages call the program, for example `reward command`.
    what: &'static str,
    name: String,
    timeout_s: f64,
    process: Process,
    interrupt: Interrupt,
    /// Number of lines in the last request, and of the answers to it.
    requested: usize,
    answered: usize,
    /// The error that ended the program. Later requests return it again.
    failed: Option<Failure>,
}

/// Deadline for the answers to a request.
#[derive(Debug, Clone, Copy)]
pub struct AnswerDeadline(Instant);

impl Program {
    /// Starts the program `words[0]` with the other words as its arguments. Its answers may take `timeout_s`, and `interrupt` ends the wait
    /// for them. Messages call it `what`, for example `reward command`.
    ///
    /// # Errors
    /// [`Error::Config`] if `words` is empty, the program cannot be started, or the time limit is not a positive number.
    pub fn start(what: &'static str, words: &[String], timeout_s: f64, interrupt: &Interrupt) -> Result<Self> {
        Self::check(what, words, timeout_s)?;
        let (name, arguments) = words.split_first().expect("checked above");
        let process = Process::start(name, arguments).map_err(|source| {
            let hint = match source.kind() {
                std::io::ErrorKind::NotFound => "is it installed, and is the path relative to the working directory?",
                std::io::ErrorKind::PermissionDenied => "is the file executable? If not, put its interpreter first",
                _ => "try the same command in a shell",
            };
            refused(format!("the {what} `{name}` could not be started: {source}"), Some(hint))
        })?;
        let (name, interrupt) = (name.clone(), interrupt.clone());
        Ok(Self { what, name, timeout_s, process, interrupt, requested: 0, answered: 0, failed: None })
    }

    /// Rejects a configuration that cannot be started, without starting it.
    ///
    /// # Errors
    /// As [`start`](Self::start), except for errors of the operating system.
    pub fn check(what: &str, words: &[String], timeout_s: f64) -> Result<()> {
        if words.is_empty() {
            let hint = "write `command: [program, argument, …]`";
            return Err(refused(format!("the {what} has no program"), Some(hint)));
        }
        if !(timeout_s > 0.0 && timeout_s < 1e9) {
            let message = format!("the {what}'s `timeout_s` is {timeout_s}, but seconds above 0 are needed");
            return Err(refused(message, None));
        }
        Ok(())
    }

    /// Sends lines, each with its line end. If the program printed surplus lines before, it is ended, and every later answer is that error.
    pub fn request(&mut self, lines: Vec<String>) -> AnswerDeadline {
        // The first answer returns the error.
        let _ = self.refuse_surplus(Duration::ZERO);
        (self.requested, self.answered) = (lines.len(), 0);
        self.send(lines)
    }

    /// Waits a moment for surplus lines after all answers have arrived. A program that prints two lines for one keeps printing, and its
    /// answers do not belong to their rows.
    ///
    /// # Errors
    /// If the program prints a surplus line.
    pub fn expect_silence(&mut self) -> Result<(), Failure> {
        self.refuse_surplus(SILENCE)
    }

    fn refuse_surplus(&mut self, patience: Duration) -> Result<(), Failure> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let Some(line) = self.process.surplus_line(patience) else { return Ok(()) };
        let message = format!("the {} `{}` printed more lines than it was given", self.what, self.name);
        let hint = "print other things to stderr";
        self.process.kill();
        Err(self.give_up(format!("{message} (one too many: `{}`)", excerpt(&line, 80)), Some(hint)))
    }

    /// Sends lines, each with its line end, without a check for surplus lines.
    pub fn send(&mut self, lines: Vec<String>) -> AnswerDeadline {
        if self.failed.is_none() {
            self.process.send(lines);
        }
        self.deadline()
    }

    /// Closes the program's input: no more requests follow.
    pub fn close(&mut self) {
        self.process.close();
    }

    /// Returns the deadline of a wait that begins now.
    pub fn deadline(&self) -> AnswerDeadline {
        AnswerDeadline(Instant::now() + Duration::from_secs_f64(self.timeout_s))
    }

    /// Returns the next answer. A crash or a timeout is final. A line that `read` rejects is not: the error names what was `expected`.
    ///
    /// # Errors
    /// If the program crashes, times out or prints an unexpected line.
    pub fn answer<T>(
        &mut self,
        deadline: AnswerDeadline,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Failure> {
        let of = |program: &Self| format!("the {} `{}`", program.what, program.name);
        match self.line(deadline)? {
            Some(line) => {
                self.answered += 1;
                read(&line).ok_or_else(|| {
                    let message =
                        format!("expected {expected} from the {} (found `{}`)", self.what, excerpt(&line, 80));
                    self.with_stderr(message)
                })
            }
            None => {
                let status = self.process.status();
                let message = format!("{} ended before it answered ({status})", of(self));
                let hint = status.starts_with("exit status: 0").then_some(
                    "the program must read lines from its standard input until they end, and print an answer for each",
                );
                Err(self.give_up(message, hint))
            }
        }
    }

    /// Returns the next line, or `None` if the program has ended.
    ///
    /// # Errors
    /// If the program times out, prints too long a line or was interrupted.
    pub fn line(&mut self, deadline: AnswerDeadline) -> Result<Option<String>, Failure> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let interrupt = self.interrupt.clone();
        let (what, name) = (self.what, self.name.clone());
        match self.process.next_line(deadline.0, &|| interrupt.is_raised()) {
            NextLine::Line(line) => Ok(Some(line)),
            NextLine::Ended => Ok(None),
            NextLine::TooLong => {
                self.process.kill();
                let message = format!("the {what} `{name}` printed a line of more than {LINE_BYTES} bytes");
                Err(self.give_up(message, Some("one line for each it reads; print other things to stderr")))
            }
            NextLine::Interrupted => Err(self.interrupt()),
            NextLine::TimedOut => {
                self.process.kill();
                let mut message = format!("the {what} `{name}` did not answer within {} s", self.timeout_s);
                let hint = match self.requested {
                    0 => "if it needs more time, raise `timeout_s`",
                    requested => {
                        message += &format!(": {} of {requested} answers arrived", self.answered);
                        "if it needs more time for a batch, raise `timeout_s`; it must print and flush one line for each line that it \
                         reads (in Python: `print(…, flush=True)`)"
                    }
                };
                Err(self.give_up(message, Some(hint)))
            }
        }
    }

    /// Ends the program because of the user's interrupt. It gives no more answers.
    pub fn interrupt(&mut self) -> Failure {
        self.process.kill();
        let interrupted = Failure::interrupted();
        self.failed = Some(interrupted.clone());
        interrupted
    }

    /// Checks the exit status of a program whose output has ended.
    ///
    /// # Errors
    /// If the program failed.
    pub fn finish(&mut self) -> Result<(), Failure> {
        let status = self.process.status();
        if self.process.is_success() {
            return Ok(());
        }
        let message = format!("the {} `{}` failed ({status})", self.what, self.name);
        Err(self.give_up(message, None))
    }

    fn give_up(&mut self, message: String, hint: Option<&str>) -> Failure {
        let mut error = self.with_stderr(message);
        error.hint = hint.map(Into::into);
        self.failed = Some(error.clone());
        error
    }

    /// Adds the end of the program's stderr.
    fn with_stderr(&self, message: String) -> Failure {
        let tail = self.process.stderr_tail();
        let message = if tail.is_empty() { message } else { format!("{message}; its last output:\n{tail}") };
        Failure::new(message)
    }
}

/// A configuration error without a location: the caller adds where the value is.
fn refused(message: String, hint: Option<&str>) -> Error {
    Error::Config(vec![Diagnostic { message, locations: Vec::new(), hint: hint.map(Into::into) }])
}
