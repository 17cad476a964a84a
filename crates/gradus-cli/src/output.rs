//! Output of the program: data on stdout, messages on stderr. No other file prints.
//!
//! All output passes through [`rendered`]. On a terminal, it makes control characters and characters that change the text direction
//! visible. Text from outside (a completion, a row, a name, the output of another program) can therefore neither move the cursor nor change
//! the window. The program's own colors are marked by [`ESC`], which becomes an escape character only in that function.

use std::ffi::OsString;
use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use clap::error::{ContextKind, ContextValue};
use gradus::config::{MethodConfig, Spelling, translate};
use gradus::error::Diagnostic;
use gradus::suggest::nearest;
use gradus::text::render;
pub use gradus::text::{visible, visible_line};
use gradus_environments::sandbox;
use serde::Serialize;

use crate::CommandOutput;
use crate::globals::{ColorChoice, Global};
use crate::numbers::not_finite;

/// Receives all output of a command. Commands need not know about terminals.
#[derive(Debug, Clone)]
pub struct Output {
    quiet: bool,
    json: bool,
    paint: Paint,
    data_paint: Paint,
    /// Output that is kept instead of printed. `None` prints.
    captured: Option<Arc<Mutex<CommandOutput>>>,
}

/// Form of progress on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressForm {
    /// No progress.
    Nothing,
    /// A moving bar.
    Bar,
    /// Plain lines.
    Lines,
}

/// The reader of stdout has closed it. The program ends quietly, as filters do.
#[derive(Debug, Clone, Copy)]
pub struct ClosedPipe;

impl Display for ClosedPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stdout was closed")
    }
}

impl std::error::Error for ClosedPipe {}

impl Output {
    /// Creates the output that the global options select.
    #[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
    pub fn new(global: &Global) -> Self {
        let uses_color = |is_terminal: bool| match global.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let color = uses_color(std::io::stderr().is_terminal());
        let data_paint = Paint { color: uses_color(std::io::stdout().is_terminal()) };
        start_log(global.verbose, color);
        Self { quiet: global.quiet, json: global.json, paint: Paint { color }, data_paint, captured: None }
    }

    /// Creates an output that prints nothing, and keeps results as JSON and messages.
    pub fn captured() -> Self {
        let captured = Some(Arc::default());
        Self { quiet: false, json: true, paint: Paint::plain(), data_paint: Paint::plain(), captured }
    }

    /// Returns whether the output is kept instead of printed.
    pub fn is_captured(&self) -> bool {
        self.captured.is_some()
    }

    /// Returns and clears the kept output.
    pub fn take(&self) -> CommandOutput {
        let captured = self.captured.as_ref().map(|captured| captured.lock().unwrap_or_else(PoisonError::into_inner));
        captured.map(|mut captured| std::mem::take(&mut *captured)).unwrap_or_default()
    }

    /// Keeps output instead of printing it. Returns whether it was kept.
    fn capture(&self, keep: impl FnOnce(&mut CommandOutput)) -> bool {
        let Some(captured) = &self.captured else { return false };
        keep(&mut captured.lock().unwrap_or_else(PoisonError::into_inner));
        true
    }

    /// Returns whether results are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Returns the colors of stderr.
    pub fn paint(&self) -> Paint {
        self.paint
    }

    /// Returns the colors of tables on stdout.
    pub fn data_paint(&self) -> Paint {
        self.data_paint
    }

    /// Returns whether stdin and stdout are terminals and JSON was not requested.
    pub fn is_interactive(&self) -> bool {
        !self.json && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Returns whether stdout is a terminal and JSON was not requested.
    pub fn is_read_by_a_person(&self) -> bool {
        !self.json && std::io::stdout().is_terminal()
    }

    /// Returns the width of stdout in columns, or `None` if stdout is not a terminal.
    pub fn data_width(&self) -> Option<usize> {
        let size = std::io::stdout().is_terminal().then(ratatui::crossterm::terminal::size)?;
        size.ok().map(|(columns, _)| usize::from(columns)).filter(|&columns| columns > 0)
    }

    /// Asks a question on stderr. Only `y` and `yes` confirm. `None` if stdin is not a terminal.
    pub fn confirm(&self, question: &str) -> Option<bool> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        self.stderr(format_args!("{question} [y/N] "));
        let mut answer = String::new();
        let read = std::io::stdin().read_line(&mut answer);
        Some(read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    /// Returns whether the user confirms the removal of `what`: by the flag `yes`, or by the answer to `question`.
    ///
    /// # Errors
    /// Nobody can answer.
    pub fn confirmed(&self, question: &str, what: &str, yes: bool) -> anyhow::Result<bool> {
        match yes.then_some(true).or_else(|| self.confirm(question)) {
            Some(true) => Ok(true),
            Some(false) => {
                self.note("kept");
                Ok(false)
            }
            None => {
                let error = gradus::Error::input(format!("{what} was not removed: there is no terminal to confirm it"));
                Err(error.with_hint("add `--yes`").into())
            }
        }
    }

    /// Prints one line of data on stdout.
    pub fn data(&self, line: impl Display) -> anyhow::Result<()> {
        self.text(&format!("{line}\n"))
    }

    /// Prints data on stdout. Unchanged if stdout is not a terminal.
    pub fn text(&self, text: &str) -> anyhow::Result<()> {
        self.print(&rendered(text, std::io::stdout().is_terminal()))
    }

    /// Prints a drawing that moves the cursor on stdout. The caller must have made external text [`visible`].
    pub fn drawn(&self, text: &str) -> anyhow::Result<()> {
        self.print(&text.replace(ESC, "\x1b"))
    }

    fn print(&self, text: &str) -> anyhow::Result<()> {
        if self.capture(|called| called.output.push_str(text)) {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ClosedPipe.into()),
            Err(error) => Err(gradus::Error::io("stdout", error).into()),
        }
    }

    /// Prints one JSON value on one line of stdout.
    pub fn json_line(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.warn_not_finite(value);
        self.json(serde_json::to_string(value)?)
    }

    /// Warns about a non-finite number, which JSON cannot represent and which becomes `null`.
    fn warn_not_finite(&self, value: &impl Serialize) {
        if let Some((key, number)) = not_finite(value) {
            self.warn(format_args!("`{key}` is {number}, which JSON cannot represent: it is printed as `null`"));
        }
    }

    /// Prints JSON, which has no colors and its own escapes. A pipe receives it unchanged.
    fn json(&self, text: String) -> anyhow::Result<()> {
        self.print(&(if std::io::stdout().is_terminal() { visible(&text) } else { text } + "\n"))
    }

    /// Prints a result: as JSON with `--json`, otherwise as `text`.
    pub fn result(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            self.warn_not_finite(value);
            return self.json(serde_json::to_string_pretty(value)?);
        }
        let text = text();
        self.data(text.trim_end_matches('\n'))
    }

    /// Prints an input prompt on stderr.
    pub fn prompt(&self, text: &str) {
        self.stderr(format_args!("{text}"));
    }

    /// Returns the colors of stdout: used if stdout is a terminal and stderr is colored.
    pub fn stdout_paint(&self) -> Paint {
        Paint { color: self.paint.color && std::io::stdout().is_terminal() }
    }

    /// Returns the width and height of stdout in characters and lines, or `None` if stdout is not a terminal.
    pub fn size(&self) -> Option<(usize, usize)> {
        let (lines, columns) = console::Term::stdout().size_checked()?;
        Some((usize::from(columns), usize::from(lines)))
    }

    /// Prints a message on stderr. `--quiet` suppresses it.
    pub fn note(&self, message: impl Display) {
        if !self.quiet {
            self.stderr(format_args!("{}\n", without_long_lines(&message.to_string())));
        }
    }

    /// Prints a message on stderr from another thread, below the progress display. `--quiet` suppresses it.
    pub fn answer(&self, message: &str) {
        self.note(format_args!("{}{message}", if std::io::stderr().is_terminal() { "\n" } else { "" }));
    }

    /// Prints a warning on stderr, for problems that do not stop the command.
    pub fn warn(&self, message: impl Display) {
        let message = without_long_lines(&message.to_string());
        self.stderr(format_args!("{} {message}\n", self.paint.warning("warning:")));
    }

    /// Prints the notes on configuration files.
    pub fn notes(&self, notes: &[Diagnostic]) {
        notes.iter().for_each(|note| self.warn(note));
    }

    /// Prints a formatted error on stderr.
    pub fn error(&self, text: &str) {
        self.stderr(format_args!("{}\n", without_long_lines(text)));
    }

    /// Returns the form of progress: none with `--quiet`, a bar on a terminal, otherwise lines.
    pub fn progress_form(&self) -> ProgressForm {
        if self.quiet || self.is_captured() {
            ProgressForm::Nothing
        } else if std::io::stderr().is_terminal() {
            ProgressForm::Bar
        } else {
            ProgressForm::Lines
        }
    }

    /// Returns an output for messages of a command that prints rows. It is quiet if the rows appear on the terminal.
    pub fn beside_rows(&self) -> Self {
        let quiet = self.quiet || self.is_captured() || std::io::stdout().is_terminal();
        Self { quiet, ..self.clone() }
    }

    /// If stderr is closed, messages have nowhere else to go, so write errors are ignored.
    fn stderr(&self, text: Arguments<'_>) {
        if self.capture(|called| called.messages.push(text.to_string().trim_end().to_owned())) {
            return;
        }
        let text = rendered(&text.to_string(), std::io::stderr().is_terminal());
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Maximum length of a line in a message, in characters.
const LINE_SHOWN: usize = 2000;

/// Cuts the middle out of long lines. Messages quote what they found, which may be text of any length.
fn without_long_lines(text: &str) -> String {
    let shown = |line: &str| {
        let length = line.chars().count();
        if length <= LINE_SHOWN {
            return line.to_owned();
        }
        let half = LINE_SHOWN / 2;
        let begin: String = line.chars().take(half).collect();
        let end: String = line.chars().skip(length - half).collect();
        format!("{begin} … ({} characters left out) … {end}", length - 2 * half)
    };
    text.split('\n').map(shown).collect::<Vec<_>>().join("\n")
}

/// Placeholder for the escape character in the program's own texts until they are printed. Unicode reserves it for use inside a program.
pub const ESC: char = '\u{FDD2}';

/// Renders a text for printing. Color escapes marked by [`ESC`] are kept. On a terminal, all other text is made [`visible`]; otherwise it
/// is unchanged.
fn rendered(text: &str, is_terminal: bool) -> String {
    let inert = |text: &str| if is_terminal { visible(text) } else { text.to_owned() };
    let mut shown = String::with_capacity(text.len());
    let mut pieces = text.split(ESC);
    shown.push_str(&inert(pieces.next().unwrap_or_default()));
    for piece in pieces {
        match is_color(piece) {
            true => shown.push('\x1b'),
            false => shown.push_str(&inert(&ESC.to_string())),
        }
        shown.push_str(&inert(piece));
    }
    shown
}

/// Makes a text visible on one line, wherever it is printed. Color escapes marked by [`ESC`] are kept.
pub fn on_one_line(text: &str) -> String {
    text.split(ESC).map(visible_line).collect::<Vec<_>>().join(&ESC.to_string())
}

/// Returns whether the text after an escape begins or ends a color.
fn is_color(piece: &str) -> bool {
    let digits = piece.strip_prefix('[').and_then(|rest| rest.split_once('m')).map(|(digits, _)| digits);
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'))
}

/// Renders chat templates or runs a sandboxed program, if another process of this program started this one for it. Returns the exit code.
pub fn serve_parent(arguments: impl IntoIterator<Item = OsString>) -> Option<u8> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(error) = sandbox::answer(arguments.iter().cloned()) {
        // The parent process reads this.
        let _ = writeln!(std::io::stderr(), "{error}");
        return Some(sandbox::UNCONFINED);
    }
    render::answer(arguments, || render::streams(std::io::stdin(), std::io::stdout()))
}

/// Prints clap's message, which may also be a help or version text.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
pub fn usage(error: &clap::Error) {
    let (is_error, styled) = (error.use_stderr(), error.render());
    let is_terminal = if is_error { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
    let paints = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let text = if paints { styled.ansi().to_string() } else { styled.to_string() };
    let text = usage_shown(&text, is_terminal);
    let _ = match is_error {
        true => std::io::stderr().lock().write_all(text.as_bytes()),
        false => std::io::stdout().lock().write_all(text.as_bytes()),
    };
}

/// Renders clap's message, which may quote arbitrary arguments. Of its escapes, only colors are kept.
fn usage_shown(text: &str, is_terminal: bool) -> String {
    let mut pieces = text.split('\x1b');
    let mut marked = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        marked.push(if is_color(piece) { ESC } else { '\x1b' });
        marked.push_str(piece);
    }
    rendered(&marked, is_terminal)
}

/// Command names of other tools, with the equivalent commands of gradus.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (
        &["finetune", "fine-tune", "tune", "train-sft"],
        "train FILE`, or one of the methods that `gradus --help` lists: `gradus METHOD",
    ),
    (&["infer", "inference", "sample", "predict", "complete", "rollout"], "generate"),
    (&["evaluate", "evaluation", "test", "lm-eval", "metrics"], "eval"),
    (&["server", "api", "web", "ui", "host"], "serve"),
    (&["label", "labels", "labeling", "labelling"], "annotate"),
    (&["list", "ls", "history"], "runs list"),
    (&["resume", "continue"], "runs resume"),
    (&["dataset", "datasets", "inspect", "preview"], "data show"),
    (&["convert"], "data convert"),
    (&["split"], "data split"),
    (&["lint", "validate"], "data check"),
    (&["gguf"], "export"),
    (&["quantise"], "quantize"),
    (&["memory", "estimate", "dry-run"], "plan"),
    (&["grid", "hpo", "search"], "sweep"),
    (&["explain"], "config explain"),
    (&["init-model", "random-model"], "new-model"),
    (&["env", "info", "check"], "doctor"),
    (&["benchmark"], "bench"),
    (&["completion"], "completions"),
    (&["version"], "--version"),
    (
        &["plot", "plots", "report"],
        "runs show NAME`; plots are in `plots/` of the run, and all of them in `report.html` `gradus runs",
    ),
    (&["rm", "delete"], "runs rm"),
];

/// Adds a hint if another tool uses the name of an unknown argument of `command`. Removes suggestions that are not similar.
pub fn translate_unknown(error: &mut clap::Error, command: Option<&str>) {
    if let (clap::error::ErrorKind::InvalidSubcommand, Some(ContextValue::String(given))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand).cloned())
    {
        let known = |named: &&(&[&str], &str)| named.0.contains(&given.to_lowercase().replace('_', "-").as_str());
        if let Some((_, command)) = ELSEWHERE.iter().find(known) {
            error.remove(ContextKind::SuggestedSubcommand);
            let hint = format!("it is `gradus {command}` here");
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
        }
        return;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg).cloned() else { return };
    if error.kind() != clap::error::ErrorKind::UnknownArgument {
        return;
    }
    let is_path = !given.starts_with('-') && std::path::Path::new(&given).exists();
    let path = is_path.then(|| format!("pass paths as options, such as `--model {given}` or `--data {given}`"));
    let method = command.filter(|name| MethodConfig::named(name).is_some());
    let columns = (given == "--column").then(|| {
        "write a file with renamed columns: `gradus data convert FILE --column prompt=YOURS --output NEW`".to_owned()
    });
    // The same names are keys of training, with another meaning.
    let samples = matches!(command, Some("generate" | "chat"));
    let length = given.strip_suffix("-length").filter(|end| samples && ["--max", "--min"].contains(end)).map(|end| {
        format!("`{end}-new-tokens` limits the tokens that are added to the prompt; the prompt does not count")
    });
    if let Some(hint) = path
        .or(columns)
        .or(length)
        .or_else(|| translate(given.starts_with('-').then_some(&*given)?, method, Spelling::Flag))
    {
        error.remove(ContextKind::SuggestedArg);
        // The usage belongs to clap's suggestion.
        error.remove(ContextKind::Usage);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    } else if let Some(ContextValue::String(suggested)) = error.get(ContextKind::SuggestedArg)
        && nearest(&given, [suggested.as_str()]).is_none()
    {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage);
    }
}

/// Starts the library's log on stderr: warnings, more with `-v`, or as `GRADUS_LOG` specifies.
fn start_log(verbose: u8, color: bool) {
    use tracing_subscriber::EnvFilter;
    let level = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_env("GRADUS_LOG").unwrap_or_else(|_| EnvFilter::new(format!("gradus={level}")));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(color);
    // Starting fails only if a log was already started, which does not happen.
    let _ = log.without_time().try_init();
}

/// Colors of text. Text is complete without them.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    color: bool,
}

impl Paint {
    /// Returns a paint without colors.
    pub fn plain() -> Self {
        Self { color: false }
    }

    /// Returns whether there are colors.
    pub fn is_colored(self) -> bool {
        self.color
    }

    /// Colors errors and their underlines.
    pub fn error(self, text: &str) -> String {
        self.style(text, "1;31")
    }

    /// Colors warnings.
    pub fn warning(self, text: &str) -> String {
        self.style(text, "1;33")
    }

    /// Colors hints.
    pub fn hint(self, text: &str) -> String {
        self.style(text, "1;36")
    }

    /// Colors good states.
    pub fn good(self, text: &str) -> String {
        self.style(text, "32")
    }

    /// Formats headings.
    pub fn bold(self, text: &str) -> String {
        self.style(text, "1")
    }

    /// Dims secondary text.
    pub fn faint(self, text: &str) -> String {
        self.style(text, "2")
    }

    /// Colors arrows, bars and line numbers around an excerpt.
    pub fn frame(self, text: &str) -> String {
        self.style(text, "1;34")
    }

    fn style(self, text: &str, code: &str) -> String {
        if self.color { format!("{ESC}[{code}m{text}{ESC}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_shortened() {
        let short = "a".repeat(LINE_SHOWN);
        assert_eq!(without_long_lines(&short), short);
        let long = without_long_lines(&format!("x\n{}end\ny", "ä".repeat(200_000)));
        let lines: Vec<&str> = long.lines().collect();
        assert!(lines[0] == "x" && lines[2] == "y" && lines[1].ends_with("ääend"), "{long}");
        assert!(lines[1].contains(" … (198003 characters left out) … ") && lines[1].chars().count() < LINE_SHOWN + 50);
    }

    #[test]
    fn what_was_typed_reaches_no_terminal_as_a_command() {
        let message = "\x1b[31merror:\x1b[0m unexpected argument '\x1b]0;title\x07\x1b[2J'";
        assert_eq!(
            usage_shown(message, true),
            "\x1b[31merror:\x1b[0m unexpected argument '\\u{1b}]0;title\\u{7}\\u{1b}[2J'"
        );
    }

    #[test]
    fn a_terminal_shows_what_it_would_obey() {
        let outside = "a\u{1b}]0;owned\u{7}\u{1b}[2J\rb\u{9b}31m\u{202e}c\u{fdd2}[5A\td\n";
        let shown = "a\\u{1b}]0;owned\\u{7}\\u{1b}[2J\\u{d}b\\u{9b}31m\\u{202e}c\\u{fdd2}[5A\td\n";
        assert_eq!(rendered(outside, true), shown);
        let colored = Paint { color: true }.error("no\u{1b}[2J");
        assert_eq!(rendered(&colored, true), "\u{1b}[1;31mno\\u{1b}[2J\u{1b}[0m");
        assert_eq!(rendered(&colored, false), "\u{1b}[1;31mno\u{1b}[2J\u{1b}[0m", "into a pipe it goes as it is");
    }
}
