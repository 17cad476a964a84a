//! `gradus runs resume`: resumes a run from its last checkpoint.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use gradus::Error;
use gradus::config::{Flag, FlagSpec, Plan, Request, Resume, ResumeFrom};
use gradus::machine::Machine;
use gradus::runs::{Library, Status};

use crate::commands::train;
use crate::flags::MethodFlags;
use crate::output::Output;
use crate::ranks::{self, RankArgs};

/// Arguments of `gradus runs resume`: the run, and the flags of training.
#[derive(Debug)]
pub struct ResumeArgs {
    name: String,
    step: Option<usize>,
    given: Vec<Flag>,
    ranks: RankArgs,
}

/// Returns the flags of all methods except the directory, which is the run's. The run records its method.
fn flags() -> MethodFlags {
    MethodFlags::of(|_| true)
        .without("output_dir")
        .without("data.task")
        .without("eval_data.task")
        .without("test_data.task")
}

impl Args for ResumeArgs {
    fn augment_args(command: Command) -> Command {
        let name = clap::Arg::new("name").value_name("NAME").required(true).help("Name of the run");
        let step = clap::Arg::new("resume-from")
            .long("resume-from")
            .value_name("STEP")
            .help("Resume from the checkpoint of this step and remove later ones")
            .value_parser(clap::value_parser!(usize));
        let command = command.arg(name).arg(step).args(ranks::arguments());
        flags()
            .shown()
            .into_iter()
            .fold(command, |command, spec| command.next_help_heading(spec.section).args(crate::flags::arguments(&spec)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ResumeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let name = matches.get_one::<String>("name").cloned().unwrap_or_default();
        let step = matches.get_one("resume-from").copied();
        Ok(Self { name, step, given: flags().given(matches), ranks: RankArgs::of(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Resumes a run from the browser, up to `max_steps` or the original number of steps.
pub fn named(name: &str, max_steps: Option<usize>, library: &Library, out: &Output) -> anyhow::Result<()> {
    let spec = flags().of_key("train.max_steps").cloned().zip(max_steps);
    let flag = |(spec, steps): (FlagSpec, usize)| Flag {
        spec,
        written: "--max-steps".into(),
        values: vec![steps.to_string()],
    };
    let given = spec.map(flag).into_iter().collect();
    let args = ResumeArgs { name: name.to_owned(), step: None, given, ranks: RankArgs::default() };
    out.note(format_args!("resuming {name}"));
    run(&args, library, out)
}

/// Resumes training, as `gradus METHOD --output-dir DIR --resume` does.
pub fn run(args: &ResumeArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    train::on_ranks(args.ranks, || plan(args, library), out)
}

fn plan(args: &ResumeArgs, library: &Library) -> anyhow::Result<Plan> {
    let entry = library.entry(&args.name)?;
    let is_done = entry.state == Status::Finished && entry.steps.is_none_or(|steps| entry.step >= steps);
    if is_done && args.given.is_empty() && args.step.is_none() {
        let error = Error::input(format!("`{}` has finished all {} steps", entry.name, entry.step));
        return Err(error.with_hint("set a larger number with `--max-steps` to train further").into());
    }
    let request = Request { flags: &args.given, ..Request::default() };
    let from = ResumeFrom::Run { directory: &entry.path, step: args.step };
    Ok(Resume { from, request }.plan(&Machine::detect())?)
}
