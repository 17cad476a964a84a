//! The binary `gradus`.

mod allocator;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A process that renders chat templates for another one does nothing else.
    let code = gradus_cli::render_for_parent(std::env::args_os().skip(1)).unwrap_or_else(|| {
        allocator::keep_pages();
        gradus_cli::main(std::env::args_os().skip(1))
    });
    ExitCode::from(code)
}
