//! `gradus train FILE` and the commands of the methods. All start the same run, with different flags.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};
use gradus::config::{Plan, Request, Resume, ResumeFrom, RunConfig, Scope};
use gradus::device::DeviceChoice;
use gradus::machine::Machine;
use gradus::model::Precision;
use gradus::ranks::catching;
use gradus::run::{Existing, Origin, RunDir};
use serde_json::Value;

use crate::flags::{self, MethodFlags};
use crate::output::Output;
use crate::ranks::{self, Joined, RankArgs};
use crate::report::interrupted;
use crate::watch::{STOPPING_TRAINING, Watcher, downloads, short, stop_with_stdin};

/// Adds the arguments of `gradus train`: a file, and the keys of every method.
pub fn arguments(command: Command) -> Command {
    let file = Arg::new("file").value_name("FILE").required(true).help("Configuration file; flags override it");
    flags::add(command, file.value_parser(clap::value_parser!(PathBuf)), every_flag().shown())
}

/// Returns the flags of every method. The file determines the method.
pub fn every_flag() -> MethodFlags {
    MethodFlags::of(|_| true).without_taken()
}

/// Trains as a file and the flags specify.
pub fn run_file(matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let file = matches.get_one::<PathBuf>("file").map(PathBuf::as_path);
    run(&Request { file, flags: &every_flag().given(matches), ..Request::default() }, matches, out)
}

/// Trains as the flags of a method's command specify, with an optional file as their base.
pub fn run_method(method: &str, matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let file = matches.get_one::<PathBuf>("file").map(PathBuf::as_path);
    let given = flags::given(matches, Scope::Method(method));
    run(&Request { file, method: Some(method), flags: &given, ..Request::default() }, matches, out)
}

fn run(request: &Request<'_>, matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let plan = || {
        if matches.get_flag("stop-with-stdin") {
            stop_with_stdin();
        }
        plan(request, matches)
    };
    on_ranks(RankArgs::of(matches), plan, out)
}

/// Trains on the ranks that `args` request or a launcher started. Every rank makes the `plan`. Without ranks, trains in this process.
pub fn on_ranks(args: RankArgs, plan: impl FnOnce() -> anyhow::Result<Plan>, out: &Output) -> anyhow::Result<()> {
    ranks::start(args)?;
    let plan = plan()?;
    let joined = Joined::new(args, out)?;
    // A lost rank unwinds the stack, whatever this rank was doing.
    let result =
        catching(|| Ok(carry_out_on(plan, &joined, joined.output(out)))).map_err(anyhow::Error::from).flatten();
    joined.end(result, out)
}

/// Trains on all ranks.
fn carry_out_on(plan: Plan, joined: &Joined, out: &Output) -> anyhow::Result<()> {
    let ranks = joined.ranks;
    let plan = if joined.is_launched() { plan.on_ranks() } else { plan };
    // The first rank chooses the directory for all ranks.
    let chosen = if ranks.is_first() { plan.clone().in_directory_of_its_own() } else { Ok(plan.clone()) };
    let chosen = ranks.all_ok("the output directory", chosen.map(|plan| plan.output_dir().to_owned()))?;
    let plan = plan.in_directory(chosen[0].clone());
    train(&plan, joined, out)
}

fn train(plan: &Plan, joined: &Joined, out: &Output) -> anyhow::Result<()> {
    let machine = Machine::detect();
    out.notes(plan.notes());
    warn_of_bf16(plan, &machine, out);
    let cores = machine.threads;
    if let Some(threads) = plan.train().threads.filter(|&threads| threads > cores) {
        out.warn(format_args!(
            "`train.threads` is {threads}, but this machine runs only {cores} at once: more threads make training \
             slower"
        ));
    }
    if let Some(warning) = joined.crowding(cores) {
        out.warn(warning);
    }
    let own = joined.threads(cores);
    let threads = plan.train().threads.or(own);
    gradus::threads::use_threads(threads)?;
    let own = own.unwrap_or(cores);
    // The first rank downloads, so that the others find the files.
    let fetched = if joined.ranks.is_first() { fetch_inputs(plan, out) } else { Ok(()) };
    joined.ranks.agree("the downloads", fetched.map_err(of_library))?;
    let ranks = joined.ranks.with_spare_processor(threads.unwrap_or(own) < own);
    let outcome = gradus::train::run_on(plan, ranks, &mut Watcher::new(out, STOPPING_TRAINING))
        .map_err(|error| interrupted(error, || continuation(plan)))?;
    if !ranks.is_first() {
        return Ok(());
    }
    out.note(summary(&outcome.results));
    if let Some(text) = outcome.results["no_improvement"].as_str() {
        out.warn(out.paint().bold(text));
    }
    out.result(&outcome.results, || outcome.directory.display().to_string())
}

/// Downloads the model and the rows of a run from the hub, unless they exist locally.
fn fetch_inputs(plan: &Plan, out: &Output) -> anyhow::Result<()> {
    Ok(plan.fetch(&mut downloads(out))?)
}

fn of_library(error: anyhow::Error) -> gradus::Error {
    error.downcast().unwrap_or_else(|other| gradus::Error::input(other.to_string()))
}

/// Returns what an interrupted run saved, with the command that resumes it.
fn continuation(plan: &Plan) -> String {
    let steps = RunDir::open(plan.output_dir()).and_then(|run| run.checkpoint_steps()).unwrap_or_default();
    let command = plan.resume_command();
    match steps.is_empty() {
        false => format!("interrupted; a checkpoint was saved: resume with `{command}`"),
        true => format!(
            "interrupted before the first step was finished; nothing was saved: `{command}` starts from the beginning"
        ),
    }
}

/// Warns if bf16 is slower on this machine.
pub fn warn_of_bf16(plan: &Plan, machine: &Machine, out: &Output) {
    if plan.train().compute == Precision::Bf16
        && *plan.device() == DeviceChoice::cpu()
        && let Some(warning) = machine.bf16_warning()
    {
        out.warn(warning);
    }
}

/// Returns the checked plan of a new or resumed run.
pub fn plan(request: &Request<'_>, matches: &ArgMatches) -> anyhow::Result<Plan> {
    let request = *request;
    let machine = Machine::detect();
    let origin = matches.get_one::<String>("resume-from").map(|text| Origin::named(text));
    if let Some(Origin::Other(checkpoint)) = &origin {
        return Ok(Resume { from: ResumeFrom::Checkpoint(checkpoint), request }.plan(&machine)?);
    }
    if origin.is_some() || matches.get_flag("resume") {
        // The run records its configuration: `--resume --output-dir DIR` is enough.
        let directory = &Resume::directory_of(&request)?;
        let step = if let Some(Origin::Own(step)) = origin { step } else { None };
        return Ok(Resume { from: ResumeFrom::Run { directory, step }, request }.plan(&machine)?);
    }
    let existing = if matches.get_flag("overwrite") { Existing::Overwrite } else { Existing::Refuse };
    Ok(Plan::check(&RunConfig::load(&request)?, &machine)?.on_existing(existing))
}

/// Summarizes the run in one line: the metric of `best/` before and after.
fn summary(results: &Value) -> String {
    let steps = &results["steps"];
    let best = &results["best"];
    let Some(name) = best["metric"].as_str() else { return format!("done: {steps} steps") };
    let number = |value: &Value| value.as_f64().map(short);
    let reached = match (number(&results["before"][name]), number(&results["after"][name])) {
        (Some(before), Some(after)) => format!(", {name} {before} → {after}"),
        (None, Some(after)) => format!(", {name} {after}"),
        _ => String::new(),
    };
    let best = match (number(&best["value"]), &best["step"]) {
        (Some(value), step) => format!(", best {value} at step {step}"),
        _ => String::new(),
    };
    format!("done: {steps} steps{reached}{best}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_one_line() {
        let results = serde_json::json!({
            "steps": 3,
            "before": { "eval_reward": -0.0951 },
            "after": { "eval_reward": 0.1749 },
            "best": { "step": 2, "metric": "eval_reward", "value": 0.2 }
        });
        assert_eq!(summary(&results), "done: 3 steps, eval_reward -0.0951 → 0.1749, best 0.2000 at step 2");
        assert_eq!(summary(&serde_json::json!({ "steps": 3, "best": null })), "done: 3 steps");
    }
}
