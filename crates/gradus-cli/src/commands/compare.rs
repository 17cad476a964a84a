//! `gradus compare`: trains several methods from one start model and writes one report, or compares finished runs.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use gradus::compare::ComparisonInput;
use gradus::comparison::Comparison;
use gradus::config::{ComparisonDefinition, ComparisonRequest, MethodConfig, Plan};
use gradus::machine::Machine;
use gradus::run::{Existing, RunDir};

use crate::flags::MethodFlags;
use crate::output::Output;
use crate::report::interrupted;
use crate::watch::{STOPPING_TRAINING, Watcher};

/// Adds the arguments of `gradus compare`.
pub fn arguments(command: Command) -> Command {
    let run = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help);
    let list = |name: &'static str, value: &'static str, help: &'static str| {
        run(name, help).value_name(value).value_delimiter(',').action(ArgAction::Append)
    };
    let path = clap::value_parser!(PathBuf);
    let file = Arg::new("file").value_name("FILE").help("Configuration file with `methods:`; flags override it");
    let specs = flags().shown();
    let of_training = specs.iter().flat_map(crate::flags::arguments).map(|flag| flag.get_id().clone());
    let unread =
        of_training.filter(|id| *id != "output-dir").chain(["file", "methods", "resume", "overwrite"].map(Id::from));
    let mut command = command
        .next_help_heading("Comparison")
        .arg(file.value_parser(path.clone()))
        .arg(list("methods", "dpo,ppo,grpo", "Methods to train, or `all`; default: the methods of the file"))
        .arg(
            list("runs", "DIR,DIR", "Compare finished runs instead of training")
                .value_parser(path)
                .conflicts_with_all(unread),
        )
        .arg(
            run("resume", "Keep finished runs and resume the others")
                .action(ArgAction::SetTrue)
                .conflicts_with("overwrite"),
        )
        .arg(run("overwrite", "Replace the runs in the output directory").action(ArgAction::SetTrue));
    for spec in specs {
        command = command.next_help_heading(spec.section).args(crate::flags::arguments(&spec));
    }
    command.next_help_heading("Help")
}

/// Trains or reads the runs, and shows the comparison table.
pub fn run(matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let (comparison, directory) = match matches.get_many::<PathBuf>("runs") {
        Some(runs) => {
            let found = of_runs(runs, matches)?;
            found.0.remarks().iter().for_each(|remark| out.warn(remark));
            found
        }
        None => train(matches, out)?,
    };
    out.note(format_args!("the comparison is in {}", directory.display()));
    out.result(&comparison.to_json(), || comparison.table())
}

fn of_runs<'a>(runs: impl Iterator<Item = &'a PathBuf>, matches: &ArgMatches) -> anyhow::Result<(Comparison, PathBuf)> {
    let runs = runs.map(RunDir::open).collect::<gradus::Result<Vec<_>>>()?;
    let comparison = Comparison::of_runs(&runs)?;
    let parent = match matches.get_one::<String>("output-dir") {
        Some(parent) => PathBuf::from(parent),
        None => runs.first().and_then(|run| run.path().parent()).unwrap_or(Path::new(".")).to_owned(),
    };
    let directory = parent.join("comparison");
    comparison.write(&directory)?;
    Ok((comparison, directory))
}

fn train(matches: &ArgMatches, out: &Output) -> anyhow::Result<(Comparison, PathBuf)> {
    let given = flags().given(matches);
    let methods: Vec<String> = matches.get_many("methods").map(|names| names.cloned().collect()).unwrap_or_default();
    let file = matches.get_one::<PathBuf>("file").map(PathBuf::as_path);
    let written =
        ComparisonDefinition::load(&ComparisonRequest { file, methods: &methods, flags: &given, registry: None })?;
    out.notes(&written.notes);
    warn_left_out(&written, out);
    let existing = match (matches.get_flag("resume"), matches.get_flag("overwrite")) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Overwrite,
        _ => Existing::Refuse,
    };
    let machine = Machine::detect();
    let on_existing = |plan: Plan| plan.on_existing(existing);
    let runs: Vec<Plan> = Plan::check_all(&written.runs, &machine)?.into_iter().map(on_existing).collect();
    let judge = Plan::check_all(&written.judge, &machine)?.into_iter().map(on_existing).next();
    gradus::threads::use_threads(runs.first().and_then(|plan| plan.train().threads))?;
    let input = ComparisonInput { runs: &runs, judge: judge.as_ref(), directory: &written.output_dir };
    let flag = if matches.get_flag("overwrite") { "`--resume` in place of `--overwrite`" } else { "`--resume`" };
    let comparison = gradus::compare::run(&input, &mut Watcher::new(out, STOPPING_TRAINING)).map_err(|error| {
        interrupted(error, || format!("interrupted: the same command with {flag} resumes the comparison"))
    })?;
    Ok((comparison, written.output_dir.join("comparison")))
}

/// Warns about methods of `all` that cannot run with the given keys.
pub(super) fn warn_left_out(comparison: &ComparisonDefinition, out: &Output) {
    for (name, why) in &comparison.left_out {
        let hint = why.hint.as_ref().map_or(String::new(), |hint| format!(" ({hint})"));
        out.warn(format_args!("`{name}` is left out: {why}{hint}"));
    }
}

/// Returns the flags of all methods that create a policy, of `train`, the reward and the rest. A flag applies to every method that has its
/// key.
fn flags() -> MethodFlags {
    MethodFlags::of(MethodConfig::makes_policy)
}
