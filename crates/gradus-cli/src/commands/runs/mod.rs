//! `gradus runs`: the run manager. Without a subcommand, it opens the browser on a terminal and prints the list otherwise.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use gradus::runs::{Library, Status};

use crate::browser;
use crate::output::{Output, Paint};

mod audit;
pub mod compare;
mod export;
mod list;
mod manage;
mod resume;
mod rollouts;
mod show;

pub use list::steps;
pub use rollouts::{numbers, parts, printable};

/// End of `gradus runs --help`.
const EXAMPLES: &str = "\
Examples:
  gradus runs                                          browse all runs of `runs/`
  gradus runs list --state interrupted --sort started
  gradus runs show grpo-1
  gradus runs compare ppo-1 grpo-1 dpo-1
  gradus runs stop grpo-1
  gradus runs resume grpo-1 --max-steps 400
  gradus runs rollouts grpo-1 --diff 1,100 --sort reward
  gradus runs export grpo-1 --best --output models/happy
  gradus runs tag grpo-1 good --note \"the one for the report\"

NAME is a run below `--runs-dir`, the last part of one (`ppo` for `demo/ppo`), or the path of a run.";

/// Arguments of `gradus runs`.
#[derive(Debug, Args)]
struct RunsArgs {
    /// Directory of the runs
    #[arg(long, value_name = "DIR", default_value = "runs", global = true)]
    runs_dir: PathBuf,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List runs with state, step and key figure
    List(list::ListArgs),
    /// Show one run: configuration, figures, snapshots, warnings, last steps
    Show(show::ShowArgs),
    /// Compare runs: curves in one picture, differences in configuration, final figures
    Compare(compare::CompareArgs),
    /// Tag a run, or write a note on it
    Tag(manage::TagArgs),
    /// Rename a run
    Rename(manage::RenameArgs),
    /// Ask the trainer of a run to stop after a checkpoint, as Ctrl-C does
    Stop(manage::StopArgs),
    /// Remove runs with everything in their directories
    Rm(manage::RmArgs),
    /// Resume a run from its last checkpoint
    Resume(resume::ResumeArgs),
    /// Copy a snapshot as a plain model directory
    Export(export::ExportArgs),
    /// Browse, filter and sort the completions of a run, or diff two of its steps
    Rollouts(rollouts::RolloutsArgs),
    /// Look for signs of reward hacking in a run; the exit code reports the finding
    Audit(audit::AuditArgs),
}

/// Adds the arguments of `gradus runs`.
pub fn arguments(command: Command) -> Command {
    RunsArgs::augment_args(command).after_help(EXAMPLES)
}

/// Runs the subcommand.
pub fn run(matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let RunsArgs { runs_dir, verb } = RunsArgs::from_arg_matches(matches)?;
    let library = Library::new(runs_dir);
    match verb {
        None if out.is_interactive() => browse(&library, out),
        None => list::run(&list::ListArgs::default(), &library, out),
        Some(Verb::List(args)) => list::run(&args, &library, out),
        Some(Verb::Show(args)) => show::run(&args, &library, out),
        Some(Verb::Compare(args)) => compare::run(&args, &library, out),
        Some(Verb::Tag(args)) => manage::tag(&args, &library, out),
        Some(Verb::Rename(args)) => manage::rename(&args, &library, out),
        Some(Verb::Stop(args)) => manage::stop(&args, &library, out),
        Some(Verb::Rm(args)) => manage::remove(&args, &library, out),
        Some(Verb::Resume(args)) => resume::run(&args, &library, out),
        Some(Verb::Export(args)) => export::run(&args, &library, out),
        Some(Verb::Rollouts(args)) => rollouts::run(&args, &library, out),
        Some(Verb::Audit(args)) => audit::run(&args, &library, out),
    }
}

/// Opens the browser. A run to resume starts when the browser is left.
fn browse(library: &Library, out: &Output) -> anyhow::Result<()> {
    match browser::run(library, out.data_paint().is_colored())? {
        browser::ExitReason::Quit => Ok(()),
        browser::ExitReason::Resume { name, max_steps } => resume::named(&name, max_steps, library, out),
    }
}

/// Colors a text by the state of a run.
fn painted(state: Status, text: &str, paint: Paint) -> String {
    match state {
        Status::Running => paint.hint(text),
        Status::Finished => paint.good(text),
        Status::Interrupted => paint.warning(text),
        Status::Failed | Status::Broken => paint.error(text),
    }
}
