//! The command line of gradus: arguments in, one call of the library, results out.
//!
//! [`main`] is the binary. The Python package uses the same commands within its own process: [`call`] gives back what a command would
//! print.

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
use gradus::config::Plan;

use output::Output;

pub use process::start_as;
pub use report::text as error_text;
pub use watch::interrupt;

/// What ended a command.
pub type CommandError = anyhow::Error;

/// Whether a command was called with arguments that it does not have.
pub fn is_usage(error: &CommandError) -> bool {
    error.is::<clap::Error>()
}

/// Serves the process that started this one, where `arguments` (without the program's name) say so, and returns the exit code: it
/// renders chat templates or runs a confined program. A program calls this before anything else.
pub fn serve_parent(arguments: impl IntoIterator<Item = OsString>) -> Option<u8> {
    output::serve_parent(arguments)
}

/// Runs the command that `arguments` (without the program's name) ask for, prints what it has to say, and returns the exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(code) = serve_parent(arguments.iter().cloned()) {
        return code;
    }
    let command = arguments.first().and_then(|command| command.to_str()).map(str::to_owned);
    let matches = match cli::command().try_get_matches_from(named(arguments)) {
        Ok(matches) => matches,
        Err(error) => return output::usage(error, command.as_deref()),
    };
    let out = Output::new(&globals::Global::from(&matches));
    let result = process::register_children().and_then(|()| commands::check_ranks(&matches)).and_then(|()| {
        // The others are told how many, or compute nothing. The server waits for people, and models compute beside it: were its
        // thread counted among those that compute, one would be missing.
        let threads = commands::threads(&matches);
        if commands::computes(&matches) {
            gradus::machine::use_threads(threads)?;
        } else if let Some(threads) = threads {
            gradus::machine::use_other_threads(threads)?;
        }
        commands::run(&matches, &out)
    });
    report::finish(result, &out)
}

fn named(arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    std::iter::once("gradus".into()).chain(helped(arguments))
}

/// `help` is `--help`, `help COMMAND` is `COMMAND --help`, and `help TOPIC` shows a page of the documentation.
fn helped(arguments: Vec<OsString>) -> Vec<OsString> {
    let Some((_, asked)) = arguments.split_first().filter(|(first, _)| *first == "help") else { return arguments };
    let Some(topic) = asked.first() else { return vec!["--help".into()] };
    match topic.to_str().is_some_and(|name| cli::command().find_subcommand(name).is_some()) {
        true => asked.iter().cloned().chain(["--help".into()]).collect(),
        false => std::iter::once("docs".into()).chain(asked.iter().cloned()).collect(),
    }
}

/// What a command printed.
#[derive(Debug, Clone, Default)]
pub struct Called {
    /// Its data: JSON, or lines of it.
    pub output: String,
    /// Notes and warnings, one after the other.
    pub messages: Vec<String>,
}

/// Runs a command with `--json` within a program that has a life of its own: nothing is printed, no signal is handled and no thread
/// is started but those that compute. [`interrupt`] stops it where it waits.
///
/// # Errors
/// What the command would have ended with.
pub fn call(arguments: impl IntoIterator<Item = OsString>) -> Result<Called, CommandError> {
    interrupt().lower();
    let json = std::iter::once("--json".into());
    let arguments: Vec<OsString> = json.chain(arguments).collect();
    // The first is `--json`.
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

/// Fetches what a run reads from the hub, where it is not here yet.
///
/// # Errors
/// When it cannot be had.
pub fn fetch_inputs(plan: &Plan) -> gradus::Result<()> {
    commands::fetch_inputs(plan, &Output::captured()).map_err(of_library)
}

/// Fetches a model from the hub, when `name` is not a path and it is not here yet.
///
/// # Errors
/// When it cannot be had.
pub fn fetch_model(name: &str) -> gradus::Result<()> {
    watch::fetch(name, &Output::captured()).map_err(of_library)
}

fn of_library(error: anyhow::Error) -> Error {
    error.downcast().unwrap_or_else(|other| Error::input(other.to_string()))
}
