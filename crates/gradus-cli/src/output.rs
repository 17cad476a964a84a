//! The only file that prints: data on stdout, messages on stderr.
//!
//! Whatever is printed passes [`rendered`]. On a terminal, control characters and those that turn the direction of text are
//! shown, not obeyed, so what comes from outside (a completion, a row, a name, the words of another program) can neither move
//! the cursor nor change the window. Colors of our own are marked by [`ESC`], which becomes an escape only there.

use std::ffi::OsString;
use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use clap::error::{ContextKind, ContextValue};
use gradus::config::{MethodConfig, Spelling, translate};
use gradus::suggest::nearest;
use gradus::text::render;
pub use gradus::text::visible;
use gradus_environments::sandbox;
use serde::Serialize;

use crate::Called;
use crate::globals::{ColorChoice, Global};
use crate::numbers::not_finite;

/// Where everything a command says goes. Commands call it and never ask about terminals.
#[derive(Debug, Clone)]
pub struct Output {
    quiet: bool,
    json: bool,
    paint: Paint,
    data_paint: Paint,
    /// Where everything goes that would be printed; none: it is printed.
    captured: Option<Arc<Mutex<Called>>>,
}

/// How progress is shown on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressForm {
    /// Not at all.
    Nothing,
    /// As a bar that moves.
    Bar,
    /// As lines.
    Lines,
}

/// Whoever reads stdout has gone; the program ends quietly, as a filter does.
#[derive(Debug, Clone, Copy)]
pub struct ClosedPipe;

impl Display for ClosedPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stdout was closed")
    }
}

impl std::error::Error for ClosedPipe {}

impl Output {
    /// The output as the global options want it.
    pub fn new(global: &Global) -> Self {
        let wanted = |is_terminal: bool| match global.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let color = wanted(std::io::stderr().is_terminal());
        let data_paint = Paint { color: wanted(std::io::stdout().is_terminal()) };
        start_log(global.verbose, color);
        Self { quiet: global.quiet, json: global.json, paint: Paint { color }, data_paint, captured: None }
    }

    /// An output that prints nothing, and keeps what a command says: results as JSON, and messages.
    pub fn captured() -> Self {
        let captured = Some(Arc::default());
        Self { quiet: false, json: true, paint: Paint::plain(), data_paint: Paint::plain(), captured }
    }

    /// Whether nothing is printed.
    pub fn is_captured(&self) -> bool {
        self.captured.is_some()
    }

    /// What was kept.
    pub fn take(&self) -> Called {
        let captured = self.captured.as_ref().map(|captured| captured.lock().unwrap_or_else(PoisonError::into_inner));
        captured.map(|mut captured| std::mem::take(&mut *captured)).unwrap_or_default()
    }

    /// Keeps something instead of printing it. Whether it was kept.
    fn capture(&self, keep: impl FnOnce(&mut Called)) -> bool {
        let Some(captured) = &self.captured else { return false };
        keep(&mut captured.lock().unwrap_or_else(PoisonError::into_inner));
        true
    }

    /// Whether results are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// How stderr is colored.
    pub fn paint(&self) -> Paint {
        self.paint
    }

    /// How tables on stdout are colored.
    pub fn data_paint(&self) -> Paint {
        self.data_paint
    }

    /// Whether a person sits at both ends, and no JSON was asked for.
    pub fn is_interactive(&self) -> bool {
        !self.json && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Whether what is printed is read at a terminal, and no JSON was asked for.
    pub fn is_read_by_a_person(&self) -> bool {
        !self.json && std::io::stdout().is_terminal()
    }

    /// How many columns stdout has, where it is a terminal.
    pub fn data_width(&self) -> Option<usize> {
        let size = std::io::stdout().is_terminal().then(ratatui::crossterm::terminal::size)?;
        size.ok().map(|(columns, _)| usize::from(columns)).filter(|&columns| columns > 0)
    }

    /// Asks on stderr; only `y` and `yes` are a yes. Without a terminal nobody can answer: `None`.
    pub fn confirm(&self, question: &str) -> Option<bool> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        self.stderr(format_args!("{question} [y/N] "));
        let mut answer = String::new();
        let read = std::io::stdin().read_line(&mut answer);
        Some(read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    /// Whether the user wants `what` removed: `yes`, or the answer to `question`.
    ///
    /// # Errors
    /// When nobody is there to answer.
    pub fn confirmed(&self, question: &str, what: &str, yes: bool) -> anyhow::Result<bool> {
        match yes.then_some(true).or_else(|| self.confirm(question)) {
            Some(true) => Ok(true),
            Some(false) => {
                self.note("kept");
                Ok(false)
            }
            None => {
                let error = gradus::Error::input(format!("{what} was not removed: nobody is here to confirm it"));
                Err(error.with_hint("add `--yes`").into())
            }
        }
    }

    /// One line of data on stdout.
    pub fn data(&self, line: impl Display) -> anyhow::Result<()> {
        self.text(&format!("{line}\n"))
    }

    /// Data on stdout: as it is where that is no terminal.
    pub fn text(&self, text: &str) -> anyhow::Result<()> {
        self.print(&rendered(text, std::io::stdout().is_terminal()))
    }

    /// A picture on stdout that moves the cursor itself; whoever draws it has made [`visible`] what comes from outside.
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

    /// One JSON value on one line of stdout.
    pub fn json_line(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.warn_not_finite(value);
        self.json(serde_json::to_string(value)?)
    }

    /// JSON has no number for what is not finite; what becomes `null` is named.
    fn warn_not_finite(&self, value: &impl Serialize) {
        if let Some((key, number)) = not_finite(value) {
            self.warn(format_args!("`{key}` is {number}, which JSON has no number for: it is printed as `null`"));
        }
    }

    /// JSON has no colors and escapes for itself: into a pipe it goes to the letter.
    fn json(&self, text: String) -> anyhow::Result<()> {
        self.print(&(if std::io::stdout().is_terminal() { visible(&text) } else { text } + "\n"))
    }

    /// A result: as JSON with `--json`, otherwise as `text` shows it.
    pub fn result(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            self.warn_not_finite(value);
            return self.json(serde_json::to_string_pretty(value)?);
        }
        let text = text();
        self.data(text.trim_end_matches('\n'))
    }

    /// What stands before a line that is waited for, on stderr.
    pub fn prompt(&self, text: &str) {
        self.stderr(format_args!("{text}"));
    }

    /// How stdout is colored: where it is a terminal and stderr would be.
    pub fn stdout_paint(&self) -> Paint {
        Paint { color: self.paint.color && std::io::stdout().is_terminal() }
    }

    /// How many characters stdout has on a line, and how many lines, where it is a terminal.
    pub fn size(&self) -> Option<(usize, usize)> {
        let (lines, columns) = console::Term::stdout().size_checked()?;
        Some((usize::from(columns), usize::from(lines)))
    }

    /// A message on stderr; `--quiet` drops it.
    pub fn note(&self, message: impl Display) {
        if !self.quiet {
            self.stderr(format_args!("{}\n", without_long_lines(&message.to_string())));
        }
    }

    /// A message on stderr from another thread, below the progress that is drawn there; `--quiet` drops it.
    pub fn answer(&self, message: &str) {
        self.note(format_args!("{}{message}", if std::io::stderr().is_terminal() { "\n" } else { "" }));
    }

    /// A warning on stderr: something the user should know, which stops nothing.
    pub fn warn(&self, message: impl Display) {
        let message = without_long_lines(&message.to_string());
        self.stderr(format_args!("{} {message}\n", self.paint.warning("warning:")));
    }

    /// An error on stderr, already rendered.
    pub fn error(&self, text: &str) {
        self.stderr(format_args!("{}\n", without_long_lines(text)));
    }

    /// How progress is shown: not at all with `--quiet`, as a bar on a terminal, else as lines.
    pub fn progress_form(&self) -> ProgressForm {
        if self.quiet || self.is_captured() {
            ProgressForm::Nothing
        } else if std::io::stderr().is_terminal() {
            ProgressForm::Bar
        } else {
            ProgressForm::Lines
        }
    }

    /// The same output for what is said beside rows: quiet where the rows themselves show on the terminal.
    pub fn beside_rows(&self) -> Self {
        let quiet = self.quiet || self.is_captured() || std::io::stdout().is_terminal();
        Self { quiet, ..self.clone() }
    }

    /// Messages have nowhere else to go when stderr is closed.
    fn stderr(&self, text: Arguments<'_>) {
        if self.capture(|called| called.messages.push(text.to_string().trim_end().to_owned())) {
            return;
        }
        let text = rendered(&text.to_string(), std::io::stderr().is_terminal());
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

/// The most characters of one line of a message.
const LINE_SHOWN: usize = 2000;

/// The text without the middle of lines that nobody reads to their end: messages quote what they found, and that may be any text.
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

/// Stands for the escape character in texts of our own until they are printed. Unicode reserves it for use inside a program.
pub const ESC: char = '\u{FDD2}';

/// What a text looks like where it is printed: of escapes only colors, which are marked by [`ESC`]; on a terminal all else
/// [`visible`], elsewhere as it is.
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

/// Whether this, after an escape, is a colour or its end.
fn is_color(piece: &str) -> bool {
    let digits = piece.strip_prefix('[').and_then(|rest| rest.split_once('m')).map(|(digits, _)| digits);
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'))
}

/// Where another process of this program started this one to render chat templates or to run a confined program: does so, and
/// returns the exit code.
pub fn serve_parent(arguments: impl IntoIterator<Item = OsString>) -> Option<u8> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(error) = sandbox::answer(arguments.iter().cloned()) {
        // The parent reads it.
        let _ = writeln!(std::io::stderr(), "{error}");
        return Some(sandbox::UNCONFINED);
    }
    render::answer(arguments, || render::streams(std::io::stdin(), std::io::stdout()))
}

/// Prints what clap has to say of `command`, which is help and versions too, and returns its exit code.
pub fn usage(mut error: clap::Error, command: Option<&str>) -> u8 {
    translate_unknown(&mut error, command);
    let (is_error, styled) = (error.use_stderr(), error.render());
    let is_terminal = if is_error { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
    let paints = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let text = if paints { styled.ansi().to_string() } else { styled.to_string() };
    let text = usage_shown(&text, is_terminal);
    let _ = match is_error {
        true => std::io::stderr().lock().write_all(text.as_bytes()),
        false => std::io::stdout().lock().write_all(text.as_bytes()),
    };
    u8::try_from(error.exit_code()).unwrap_or(2)
}

/// What clap has to say, with what was typed, or put there by a script, in it: of its escapes colors alone.
fn usage_shown(text: &str, is_terminal: bool) -> String {
    let mut pieces = text.split('\x1b');
    let mut marked = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        marked.push(if is_color(piece) { ESC } else { '\x1b' });
        marked.push_str(piece);
    }
    rendered(&marked, is_terminal)
}

/// What other tools call their commands, and what does the same here.
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
        "runs show NAME`; pictures are in the run's `plots/`, all of them in `report.html` `gradus runs",
    ),
    (&["rm", "delete"], "runs rm"),
];

/// What another tool calls by the name of an unknown argument of `command` is named; a suggestion that is no near miss is left out.
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
    let path = is_path.then(|| format!("options name paths, as in `--model {given}` or `--data {given}`"));
    let method = command.filter(|name| MethodConfig::named(name).is_some());
    let columns = (given == "--column").then(|| {
        "rename the columns in a file of their own: `gradus data convert FILE --column prompt=YOURS --output NEW`"
            .to_owned()
    });
    if let Some(hint) =
        path.or(columns).or_else(|| translate(given.starts_with('-').then_some(&*given)?, method, Spelling::Flag))
    {
        error.remove(ContextKind::SuggestedArg);
        // The usage is that of what clap suggested.
        error.remove(ContextKind::Usage);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    } else if let Some(ContextValue::String(suggested)) = error.get(ContextKind::SuggestedArg)
        && nearest(&given, [suggested.as_str()]).is_none()
    {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage);
    }
}

/// The log of the library on stderr: warnings, more with `-v`, or as `GRADUS_LOG` says.
fn start_log(verbose: u8, color: bool) {
    use tracing_subscriber::EnvFilter;
    let level = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_env("GRADUS_LOG").unwrap_or_else(|_| EnvFilter::new(format!("gradus={level}")));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(color);
    // Only a second start fails, and there is one.
    let _ = log.without_time().try_init();
}

/// Colors on stderr; text is complete without them.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    color: bool,
}

impl Paint {
    /// No colors.
    pub fn plain() -> Self {
        Self { color: false }
    }

    /// Whether there are colors.
    pub fn is_colored(self) -> bool {
        self.color
    }

    /// Errors and what they underline.
    pub fn error(self, text: &str) -> String {
        self.style(text, "1;31")
    }

    /// Warnings.
    pub fn warning(self, text: &str) -> String {
        self.style(text, "1;33")
    }

    /// Hints.
    pub fn hint(self, text: &str) -> String {
        self.style(text, "1;36")
    }

    /// What goes well.
    pub fn good(self, text: &str) -> String {
        self.style(text, "32")
    }

    /// Headings.
    pub fn bold(self, text: &str) -> String {
        self.style(text, "1")
    }

    /// What is there for completeness.
    pub fn faint(self, text: &str) -> String {
        self.style(text, "2")
    }

    /// Arrows, bars and line numbers around an excerpt.
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
        let said = "\x1b[31merror:\x1b[0m unexpected argument '\x1b]0;title\x07\x1b[2J'";
        assert_eq!(
            usage_shown(said, true),
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
