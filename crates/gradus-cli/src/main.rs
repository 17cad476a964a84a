//! The binary `gradus`.

mod allocator;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A process that serves its parent does nothing else.
    let code = gradus_cli::serve_parent(std::env::args_os().skip(1)).unwrap_or_else(|| {
        allocator::keep_pages();
        gradus_cli::main(std::env::args_os().skip(1))
    });
    ExitCode::from(code)
}
