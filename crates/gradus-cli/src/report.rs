//! End of a command: an exit code, and an error as text with excerpt, underline and hint.

use std::fmt::Write as _;

use gradus::error::{Diagnostic, Error, Location};

use crate::output::{ClosedPipe, Output, Paint};

/// The run failed.
const FAILED: u8 = 1;
/// The command line or the configuration is wrong.
const USAGE: u8 = 2;
/// Interrupted by the user, after a checkpoint.
pub const INTERRUPTED: u8 = 130;

/// Adds to an interruption what was saved and how to continue. Other errors stay as they are.
pub fn interrupted(error: Error, text: impl FnOnce() -> String) -> anyhow::Error {
    match error {
        Error::Interrupted => anyhow::Error::new(error).context(text()),
        error => error.into(),
    }
}

/// Exit code of a command that has printed its findings.
#[derive(Debug, Clone, Copy)]
pub struct FindingsExit(pub u8);

impl std::fmt::Display for FindingsExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "finding {}", self.0)
    }
}

impl std::error::Error for FindingsExit {}

/// Shows the error, if any, and returns the exit code.
pub fn finish(result: anyhow::Result<()>, out: &Output) -> u8 {
    let Err(error) = result else { return 0 };
    match error.downcast_ref::<clap::Error>() {
        Some(error) => crate::output::usage(error),
        None if error.is::<ClosedPipe>() || error.is::<FindingsExit>() => {}
        None => out.error(render(&error, out.paint()).trim_end()),
    }
    code(&error)
}

/// Returns the exit code of a command that ends with this error.
pub fn code(error: &anyhow::Error) -> u8 {
    if error.is::<ClosedPipe>() {
        return 0;
    }
    if let Some(FindingsExit(code)) = error.downcast_ref() {
        return *code;
    }
    if let Some(error) = error.downcast_ref::<clap::Error>() {
        return u8::try_from(error.exit_code()).unwrap_or(USAGE);
    }
    match error.downcast_ref::<Error>() {
        Some(Error::Config(_)) => USAGE,
        Some(Error::Interrupted) => INTERRUPTED,
        _ => FAILED,
    }
}

/// Returns the text that `finish` shows, without colors and without the leading `error`.
pub fn text(error: &anyhow::Error) -> String {
    let text = match error.downcast_ref::<clap::Error>() {
        Some(error) => error.render().to_string(),
        None => render(error, Paint::plain()),
    };
    text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned()
}

/// Shows an error after which the program continues.
pub fn show(error: &anyhow::Error, out: &Output) {
    out.error(render(error, out.paint()).trim_end());
}

fn render(error: &anyhow::Error, paint: Paint) -> String {
    match error.downcast_ref::<Error>() {
        Some(Error::Config(problems)) => {
            problems.iter().map(|problem| diagnostic(problem, paint)).collect::<Vec<_>>().join("\n")
        }
        // Only the command knows what it saved, and adds it as a context.
        Some(Error::Interrupted) => format!("{error}\n"),
        Some(known) => {
            // A context, such as the rank, comes first.
            let (outermost, message) = (error.to_string(), known.to_string());
            let message = if outermost == message { message } else { format!("{outermost}: {message}") };
            let mut text = headline(&message, paint);
            if let Error::Diverged { batch: Some(batch), .. } = known {
                let _ = writeln!(text, "  the batch that caused it: {}", batch.display());
            }
            text + &hint(known.hint(), paint)
        }
        None => headline(&format!("{error:#}"), paint),
    }
}

fn headline(message: &str, paint: Paint) -> String {
    format!("{} {message}\n", paint.error("error:"))
}

fn hint(hint: Option<&str>, paint: Paint) -> String {
    hint.map(|text| format!("{} {text}\n", paint.hint("hint:"))).unwrap_or_default()
}

/// Formats one configuration problem: message, locations, the line with an underline, hint.
fn diagnostic(problem: &Diagnostic, paint: Paint) -> String {
    let mut text = headline(&problem.message, paint);
    for location in &problem.locations {
        match location {
            Location::Flag(flag) => {
                let _ = writeln!(text, "  {} flag `{flag}`", paint.frame("-->"));
            }
            Location::Argument(name) => {
                let _ = writeln!(text, "  {} argument `{name}`", paint.frame("-->"));
            }
            Location::File { path, line, column, width, excerpt, from } => {
                let _ = writeln!(text, "  {} {}:{line}:{column}", paint.frame("-->"), path.display());
                let margin = line.to_string().len();
                let bar = paint.frame("|");
                let under = " ".repeat(column.saturating_sub(1 + from)) + &"^".repeat((*width).max(1));
                let _ = writeln!(text, " {:margin$} {bar}", "");
                let _ = writeln!(text, " {} {bar} {excerpt}", paint.frame(&line.to_string()));
                let _ = writeln!(text, " {:margin$} {bar} {}", "", paint.error(&under));
            }
        }
    }
    text + &hint(problem.hint.as_deref(), paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_states_the_kind_of_the_error() {
        assert_eq!(code(&ClosedPipe.into()), 0);
        assert_eq!(code(&FindingsExit(3).into()), 3);
        assert_eq!(code(&Error::input("the disk is full").into()), FAILED);
        assert_eq!(code(&Error::Config(Vec::new()).into()), USAGE);
        assert_eq!(code(&interrupted(Error::Interrupted, || "interrupted".to_owned())), INTERRUPTED);
        let unknown = clap::Command::new("gradus").error(clap::error::ErrorKind::UnknownArgument, "`--bogus`");
        assert_eq!(code(&unknown.into()), USAGE);
    }
}
