//! The binary `gradus`: arguments in, one call of the library, results out.

mod allocator;
mod browser;
mod cli;
mod commands;
mod flags;
mod help;
mod output;
mod process;
mod progress;
mod report;
mod table;
mod watch;

use std::process::ExitCode;

use output::Output;

fn main() -> ExitCode {
    allocator::keep_pages();
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return output::usage(error),
    };
    let out = Output::new(&cli::Global::from(&matches));
    let result = commands::run(&matches, &out);
    report::finish(result, &out)
}
