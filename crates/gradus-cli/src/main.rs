//! The binary `gradus`: arguments in, one call of the library, results out.

mod allocator;
mod browser;
mod cli;
mod commands;
mod flags;
mod help;
mod numbers;
mod output;
mod process;
mod progress;
mod report;
mod table;
mod watch;

use std::process::ExitCode;

use output::Output;

fn main() -> ExitCode {
    // A process that renders chat templates for another one does nothing else.
    if let Some(code) = output::render_for_parent() {
        return code;
    }
    allocator::keep_pages();
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return output::usage(error),
    };
    let out = Output::new(&cli::Global::from(&matches));
    let result = process::render_apart().and_then(|()| commands::run(&matches, &out));
    report::finish(result, &out)
}
