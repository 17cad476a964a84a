//! A program that answers line for line: what it does wrong, in words.

use std::time::{Duration, Instant};

use super::Interrupt;
use crate::error::{Diagnostic, Error, Result, excerpt};
use gradus_environments::process::{Answer, LINE_BYTES, Process};

/// What a program did wrong, or that the user did not want to wait for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProgramError {
    /// What happened.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether the user stopped it.
    pub is_interrupted: bool,
}

/// How long lines are waited for that nobody asked for.
const SILENCE: Duration = Duration::from_millis(20);

/// A running program and what is known of it.
pub struct Program {
    /// What messages call it: `reward command`.
    what: &'static str,
    name: String,
    timeout_s: f64,
    process: Process,
    interrupt: Interrupt,
    /// Why no more answers can be had; the process is gone then.
    failed: Option<ProgramError>,
}

/// What a program was asked, until when its answers are waited for.
#[derive(Debug, Clone, Copy)]
pub struct Asked(Instant);

impl Program {
    /// Starts a program, the first of `words` with the others as its arguments, whose answers may take `timeout_s`; an `interrupt`
    /// ends the wait for them. Messages call it `what`, as in `reward command`.
    ///
    /// # Errors
    /// [`Error::Config`] when none is named, it cannot be started, or the time limit is not a positive number.
    pub fn start(what: &'static str, words: &[String], timeout_s: f64, interrupt: &Interrupt) -> Result<Self> {
        Self::check(what, words, timeout_s)?;
        let (name, arguments) = words.split_first().expect("checked above");
        let process = Process::start(name, arguments).map_err(|source| {
            let hint = match source.kind() {
                std::io::ErrorKind::NotFound => "is it installed, and is the path relative to the working directory?",
                std::io::ErrorKind::PermissionDenied => "is the file executable? Else name its interpreter first",
                _ => "try the same command in a shell",
            };
            refused(format!("the {what} `{name}` could not be started: {source}"), Some(hint))
        })?;
        Ok(Self { what, name: name.clone(), timeout_s, process, interrupt: interrupt.clone(), failed: None })
    }

    /// Refuses what cannot be started, without starting it.
    ///
    /// # Errors
    /// As [`start`](Self::start), but for what the operating system says.
    pub fn check(what: &str, words: &[String], timeout_s: f64) -> Result<()> {
        if words.is_empty() {
            let hint = "write `command: [program, argument, …]`";
            return Err(refused(format!("the {what} names no program"), Some(hint)));
        }
        if !(timeout_s > 0.0 && timeout_s < 1e9) {
            let message = format!("the {what}'s `timeout_s` is {timeout_s}, but seconds above 0 are needed");
            return Err(refused(message, None));
        }
        Ok(())
    }

    /// Hands lines over, each with its end. What it printed unasked before is its failure, and so is every later answer.
    pub fn ask(&mut self, lines: Vec<String>) -> Asked {
        // What is wrong is told with the first answer.
        let _ = self.refuse_unasked(Duration::ZERO);
        self.send(lines)
    }

    /// Once all answers are there: one that prints two lines for one goes on printing, and its answers are not those of their
    /// rows. It gets a moment to show it.
    ///
    /// # Errors
    /// The line that is one too many.
    pub fn expect_silence(&mut self) -> std::result::Result<(), ProgramError> {
        self.refuse_unasked(SILENCE)
    }

    fn refuse_unasked(&mut self, patience: Duration) -> std::result::Result<(), ProgramError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let Some(line) = self.process.unasked_line(patience) else { return Ok(()) };
        let message = format!("the {} `{}` printed more lines than it was given", self.what, self.name);
        let hint = "print other things to stderr";
        self.process.kill();
        Err(self.give_up(format!("{message} (one too many: `{}`)", excerpt(&line, 80)), Some(hint)))
    }

    /// Hands lines over, each with its end, whatever it printed before.
    pub fn send(&mut self, lines: Vec<String>) -> Asked {
        if self.failed.is_none() {
            self.process.send(lines);
        }
        self.waiting()
    }

    /// Says that nothing more will be asked: the program reads the end of its input.
    pub fn close(&mut self) {
        self.process.close();
    }

    /// A wait that begins now.
    pub fn waiting(&self) -> Asked {
        Asked(Instant::now() + Duration::from_secs_f64(self.timeout_s))
    }

    /// The next answer. A crash and a hang are final; a line that `read` makes nothing of is not: it is told with what was `expected`.
    ///
    /// # Errors
    /// What the program did wrong.
    pub fn answer<T>(
        &mut self,
        asked: Asked,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> std::result::Result<T, ProgramError> {
        let of = |program: &Self| format!("the {} `{}`", program.what, program.name);
        match self.line(asked)? {
            Some(line) => read(&line).ok_or_else(|| {
                let message = format!("expected {expected} from the {} (found `{}`)", self.what, excerpt(&line, 80));
                self.with_stderr(message)
            }),
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

    /// The next line; `None` where the program has ended.
    ///
    /// # Errors
    /// What the program did wrong.
    pub fn line(&mut self, asked: Asked) -> std::result::Result<Option<String>, ProgramError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let interrupt = self.interrupt.clone();
        let (what, name) = (self.what, self.name.clone());
        match self.process.next_line(asked.0, &|| interrupt.is_raised()) {
            Answer::Line(line) => Ok(Some(line)),
            Answer::Ended => Ok(None),
            Answer::TooLong => {
                self.process.kill();
                let message = format!("the {what} `{name}` printed a line of more than {LINE_BYTES} bytes");
                Err(self.give_up(message, Some("one line for each it reads; print other things to stderr")))
            }
            Answer::Interrupted => Err(self.interrupt()),
            Answer::TimedOut => {
                self.process.kill();
                let message = format!("the {what} `{name}` did not answer within {} s", self.timeout_s);
                let hint = "it must print and flush one line for each line it reads (in Python: `print(…, flush=True)`); \
                            `timeout_s` sets the limit";
                Err(self.give_up(message, Some(hint)))
            }
        }
    }

    /// Ends the program because the user does not want to wait for its answers. It answers nothing more.
    pub fn interrupt(&mut self) -> ProgramError {
        self.process.kill();
        let interrupted = ProgramError { message: "interrupted".into(), hint: None, is_interrupted: true };
        self.failed = Some(interrupted.clone());
        interrupted
    }

    /// Whether a program whose output has ended was content.
    ///
    /// # Errors
    /// How it ended, where that is no success.
    pub fn finish(&mut self) -> std::result::Result<(), ProgramError> {
        let status = self.process.status();
        if self.process.is_success() {
            return Ok(());
        }
        let message = format!("the {} `{}` failed ({status})", self.what, self.name);
        Err(self.give_up(message, None))
    }

    fn give_up(&mut self, message: String, hint: Option<&str>) -> ProgramError {
        let mut error = self.with_stderr(message);
        error.hint = hint.map(Into::into);
        self.failed = Some(error.clone());
        error
    }

    /// Adds what the program last said on its error channel.
    fn with_stderr(&self, message: String) -> ProgramError {
        let tail = self.process.stderr_tail();
        let message = if tail.is_empty() { message } else { format!("{message}; its last words:\n{tail}") };
        ProgramError { message, hint: None, is_interrupted: false }
    }
}

/// A configuration error, without a place: the caller knows where the value stands.
fn refused(message: String, hint: Option<&str>) -> Error {
    Error::Config(vec![Diagnostic { message, places: Vec::new(), hint: hint.map(Into::into) }])
}
