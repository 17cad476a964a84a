//! The binary `gradus`: arguments in, one call of the library, results out.

mod cli;
mod commands;
mod flags;
mod output;
mod progress;
mod report;
mod watch;

use std::process::ExitCode;

use output::Output;

/// Training allocates and frees large buffers all the time; the system allocator hands their pages back each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return output::usage(&error),
    };
    let out = Output::new(&cli::Global::from(&matches));
    let result = commands::run(&matches, &out);
    report::finish(result, &out)
}
