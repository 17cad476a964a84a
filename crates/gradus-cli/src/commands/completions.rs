//! `gradus completions SHELL`: prints a completion script.

use clap_complete::Shell;

use crate::output::Output;

/// Arguments of `gradus completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// Shell that the script is for
    shell: Shell,
}

/// Prints the script.
pub fn run(args: CompletionsArgs, out: &Output) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::cli::command(), "gradus", &mut script);
    out.text(&String::from_utf8_lossy(&script))
}
