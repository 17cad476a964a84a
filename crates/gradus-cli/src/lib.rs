//! The command line of gradus. A command parses its arguments, calls the library once and prints the results.
//!
//! [`main`] is the binary. The Python package runs the same commands within its own process: [`call`] returns the output of a command
//! instead of printing it.

#![deny(missing_docs)]

mod browser;
mod cli;
mod commands;
mod flags;
mod globals;
mod help;
mod numbers;
mod output;
mod process;
mod progress;
mod ranks;
mod report;
mod table;
mod watch;

use std::ffi::OsString;

use gradus::Error;

use output::Output;

pub use process::start_as;
pub use report::text as error_text;
pub use watch::interrupt;

/// Error that ended a command.
pub type CommandError = anyhow::Error;

/// Returns whether a command was called with invalid arguments.
pub fn is_usage(error: &CommandError) -> bool {
    error.is::<clap::Error>()
}

/// Serves the parent process if `arguments` (without the program's name) request it, and returns the exit code. The process then renders
/// chat templates or runs a sandboxed program. A program calls this before anything else.
pub fn serve_parent(arguments: impl IntoIterator<Item = OsString>) -> Option<u8> {
    output::serve_parent(arguments)
}

/// Runs the command in `arguments` (without the program's name), prints its output, and returns the exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(code) = serve_parent(arguments.iter().cloned()) {
        return code;
    }
    process::fail_at_file_size_limit();
    let command = arguments.first().and_then(|command| command.to_str()).map(str::to_owned);
    let matches = match cli::command().try_get_matches_from(named(arguments)) {
        Ok(matches) => matches,
        Err(mut error) => {
            if !error.use_stderr() {
                output::usage(&error);
                return 0;
            }
            output::translate_unknown(&mut error, command.as_deref());
            let (result, out) = (Err(error.into()), Output::new(&globals::Global::default()));
            return match command.as_deref().is_some_and(commands::trains) {
                true => ranks::finish(result, &out),
                false => report::finish(result, &out),
            };
        }
    };
    let out = Output::new(&globals::Global::from(&matches));
    if std::process::id() == 1 {
        // The system ignores signals to the first process of a container, unless they have a handler.
        watch::end_on_interrupts(&out);
    }
    if let Err(error) = commands::check_ranks(&matches) {
        // The variables of the launcher may be left over, so this process joins no ranks.
        return report::finish(Err(error), &out);
    }
    let result = process::register_children().and_then(|()| {
        // The commands that do not compute are only told the number, or ignore it. The server's thread waits for people while models
        // compute on other threads. If it counted as a computing thread, one would be missing.
        let threads = commands::threads(&matches);
        if commands::computes(&matches) {
            gradus::threads::use_threads(threads)?;
        } else if let Some(threads) = threads {
            gradus::threads::use_other_threads(threads)?;
        }
        commands::run(&matches, &out)
    });
    ranks::finish(result, &out)
}

fn named(arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    std::iter::once("gradus".into()).chain(helped(arguments))
}

/// Rewrites `help` as `--help`, and `help COMMAND` as `COMMAND --help`. `help TOPIC` shows a page of the documentation.
fn helped(arguments: Vec<OsString>) -> Vec<OsString> {
    let Some((_, rest)) = arguments.split_first().filter(|(first, _)| *first == "help") else { return arguments };
    let Some(topic) = rest.first() else { return vec!["--help".into()] };
    match topic.to_str().is_some_and(|name| cli::command().find_subcommand(name).is_some()) {
        true => rest.iter().cloned().chain(["--help".into()]).collect(),
        false => std::iter::once("docs".into()).chain(rest.iter().cloned()).collect(),
    }
}

/// Output of a command.
#[derive(Debug, Clone, Default)]
pub struct CommandOutput {
    /// Data: JSON, or JSON lines.
    pub output: String,
    /// Notes and warnings in order.
    pub messages: Vec<String>,
}

/// Runs a command with `--json` inside a host program. Nothing is printed, no signal is handled, and only computing threads are started.
/// [`interrupt`] stops the command.
///
/// # Errors
/// The error that ended the command.
pub fn call(arguments: impl IntoIterator<Item = OsString>) -> Result<CommandOutput, CommandError> {
    interrupt().lower();
    let json = std::iter::once("--json".into());
    let arguments: Vec<OsString> = json.chain(arguments).collect();
    // The first argument is `--json`.
    let command = arguments.get(1).and_then(|command| command.to_str()).map(str::to_owned);
    let matches = cli::command().try_get_matches_from(named(arguments)).map_err(|mut error| {
        output::translate_unknown(&mut error, command.as_deref());
        error
    })?;
    process::register_children()?;
    let out = Output::captured();
    commands::run(&matches, &out)?;
    Ok(out.take())
}

/// Downloads a model from the hub, unless `name` is a path or the model exists locally.
///
/// # Errors
/// It cannot be downloaded.
pub fn fetch_model(name: &str) -> gradus::Result<()> {
    watch::fetch(name, &Output::captured()).map_err(of_library)
}

fn of_library(error: anyhow::Error) -> Error {
    error.downcast().unwrap_or_else(|other| Error::input(other.to_string()))
}
