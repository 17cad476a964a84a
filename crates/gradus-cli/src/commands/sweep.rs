//! `gradus sweep FILE`: many runs from one file, each in its own process. Finished runs are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use gradus::config::{Plan, SweepDefinition, SweepPoint};
use gradus::files::output::{OutputFile, Outputs, commit};
use gradus::machine::Machine;
use gradus::run::SweepClaim;
use gradus::run::metrics::smaller_is_better;
use gradus::sweep::{PointResult, SweepResult, check_metric, is_finished, value};

use super::cluster::{self, SlurmJob};
use crate::output::Output;
use crate::process;
use crate::report::interrupted;
use crate::table::aligned;
use crate::watch::{STOPPING, catch_interrupts, is_interrupted};

/// Arguments of `gradus sweep`.
#[derive(Debug, clap::Args)]
pub struct SweepArgs {
    /// Configuration file with `sweep:`, whose keys are `grid`, `random`, `seeds`, `metric`, `greater_is_better` and `at_once`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Number of concurrent runs; they share the machine's threads. Default: from the file, otherwise 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    at_once: Option<u64>,
    /// Show the points and the table of finished runs, and run nothing
    #[arg(long)]
    show: bool,
    /// Replace `sweep.json` and `sweep.txt` in the directory of the sweep, whatever they contain. Files of a sweep are always replaced
    #[arg(long, conflicts_with = "show")]
    overwrite: bool,
    #[command(flatten)]
    slurm: SlurmArgs,
}

/// Arguments for Slurm.
#[derive(Debug, clap::Args)]
struct SlurmArgs {
    /// Print a batch script that trains the runs as an array of jobs, instead of training them here
    #[arg(long, conflicts_with = "show")]
    slurm: bool,
    /// Submit the script to `sbatch` instead of printing it
    #[arg(long, requires = "slurm")]
    submit: bool,
    /// Number of cores per run. Default 8
    #[arg(long, value_name = "N", requires = "slurm", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    cpus: Option<u32>,
    /// Memory per run in gigabytes. Default: the forecast of `gradus plan` for the largest run, plus a quarter
    #[arg(long, value_name = "GB", requires = "slurm", value_parser = clap::value_parser!(u64).range(1..))]
    memory: Option<u64>,
    /// Time limit of a run. Default one day
    #[arg(long, value_name = "D-HH:MM:SS", requires = "slurm", value_parser = cluster::slurm_time)]
    time: Option<String>,
    /// Partition of the cluster
    #[arg(long, value_name = "NAME", requires = "slurm", value_parser = cluster::one_word)]
    partition: Option<String>,
}

/// One run: its directory, its configuration file and its log.
struct Run {
    directory: PathBuf,
    config: PathBuf,
    log: PathBuf,
}

/// Trains the unfinished runs, and shows the table.
pub fn run(args: SweepArgs, out: &Output) -> anyhow::Result<()> {
    let mut sweep = SweepDefinition::load(&args.file, &[])?;
    out.notes(&sweep.notes);
    let machine = Machine::detect();
    let mut checked = Plan::check_all(sweep.points.iter().flat_map(|point| &point.runs), &machine)?.into_iter();
    let mut plans: Vec<Vec<Plan>> =
        sweep.points.iter().map(|point| checked.by_ref().take(point.runs.len()).collect()).collect();
    keep_names(&mut sweep, &mut plans, &machine)?;
    let all = plans.iter().flatten().count();
    // The first finished run shows whether the metric of the file is mistyped.
    let mut unchecked = sweep.metric.as_deref();
    let first = plans.iter().flatten().find(|plan| is_finished(plan.output_dir()));
    if let (Some(metric), Some(plan)) = (unchecked, first) {
        check_metric(plan.output_dir(), metric)?;
        unchecked = None;
    }
    if !args.show {
        // Report existing outputs before hours of training.
        outputs(&sweep.output_dir, args.overwrite)?;
        let claim = SweepClaim::take(&sweep.output_dir)?;
        let runs =
            plans.iter().flatten().map(|plan| prepare(&sweep.output_dir, plan)).collect::<anyhow::Result<Vec<_>>>()?;
        let pending: Vec<Run> = runs.into_iter().filter(|run| !is_finished(&run.directory)).collect();
        out.note(format_args!("{all} runs in {}, {} to do", sweep.output_dir.display(), pending.len()));
        if args.slurm.slurm {
            let at_once = args.at_once.map_or(sweep.at_once, |count| count as usize);
            let unfinished: Vec<&Plan> =
                plans.iter().flatten().filter(|plan| !is_finished(plan.output_dir())).collect();
            return to_slurm(&args.slurm, &sweep.output_dir, &unfinished, &pending, at_once, out);
        }
        let at_once = args.at_once.map_or(sweep.at_once, |count| count as usize);
        let failed = train(pending, (at_once, machine.threads), unchecked, out)?;
        write(&sweep, &plans, args.overwrite)?;
        drop(claim);
        for run in &failed {
            out.warn(format_args!("{} failed: {}", run.directory.display(), last_line(&run.log)));
        }
        anyhow::ensure!(
            failed.is_empty(),
            "{} of {all} runs failed; run the same command again to resume them",
            failed.len()
        );
    }
    let outcomes = outcomes(&sweep, &plans)?;
    let finished = plans.iter().flatten().filter(|plan| is_finished(plan.output_dir())).count();
    match outcomes.best() {
        Some(best) => out.note(format_args!("best: {}", sweep.output_dir.join(&best.name).display())),
        None if finished > 0 => out.warn(format_args!(
            "{finished} runs are finished, but none has a number for `{}`: set `sweep.metric` to a metric in their \
             `results.json`",
            outcomes.metric
        )),
        None => {}
    }
    out.result(&outcomes.to_json(), || aligned(&outcomes.rows()))
}

/// Gives each point that has runs in the directory of the sweep the name of their directory. The numbers in names change if the file gets
/// more values. Names contain only the beginnings of long values, so the name of a new point may be taken: it then gets another number.
fn keep_names(sweep: &mut SweepDefinition, plans: &mut [Vec<Plan>], machine: &Machine) -> anyhow::Result<()> {
    let top = sweep.output_dir.clone();
    let started = started(&top);
    let (mut names, mut new) = (BTreeSet::new(), Vec::new());
    for (point, plans) in sweep.points.iter_mut().zip(plans.iter_mut()) {
        let found: BTreeSet<&String> =
            plans.iter().filter_map(|plan| started.get(&settings(&plan.to_yaml()))).flatten().collect();
        let Some(&first) = found.first() else {
            new.push((point, plans));
            continue;
        };
        if !found.contains(&point.name) {
            rename(point, plans, &top, first, machine)?;
        }
        anyhow::ensure!(
            names.insert(point.name.clone()),
            "two points of the sweep have the directory `{}`; remove one of them, or choose another `output_dir`",
            top.join(&point.name).display()
        );
    }
    let all_started: BTreeSet<&String> = started.values().flatten().collect();
    for (point, plans) in new {
        if names.contains(&point.name) {
            let rest = point.name.trim_start_matches(|digit: char| digit.is_ascii_digit());
            let digits = point.name.len() - rest.len();
            let mut numbered = (1usize..).map(|number| format!("{number:0digits$}{rest}"));
            let free = numbered.find(|name| !names.contains(name) && !all_started.contains(name));
            let free = free.expect("there are more numbers than names");
            rename(point, plans, &top, &free, machine)?;
        }
        names.insert(point.name.clone());
    }
    Ok(())
}

/// Gives a point and its runs the directory `name` below `top`.
fn rename(point: &mut SweepPoint, plans: &mut [Plan], top: &Path, name: &str, machine: &Machine) -> anyhow::Result<()> {
    for (written, plan) in point.runs.iter_mut().zip(plans.iter_mut()) {
        let seed = plan.output_dir().file_name().unwrap_or_default();
        written.config.output_dir = Some(top.join(name).join(seed));
        *plan = Plan::check(written, machine)?;
    }
    name.clone_into(&mut point.name);
    Ok(())
}

/// Returns the names of the points whose runs have a directory below `top`, by the settings of their runs.
fn started(top: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut points = BTreeMap::<String, BTreeSet<String>>::new();
    for point in directories(top) {
        let name = point.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for run in directories(&point) {
            if let Ok(text) = fs::read_to_string(in_configs(top, &run, "yml")) {
                points.entry(settings(&text)).or_default().insert(name.clone());
            }
        }
    }
    points
}

fn directories(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Returns the text of a configuration without its output directory.
fn settings(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("output_dir:")).collect::<Vec<_>>().join("\n")
}

/// Returns the path of a run's configuration or log.
fn in_configs(top: &Path, run: &Path, extension: &str) -> PathBuf {
    let name = run.strip_prefix(top).unwrap_or(run).display().to_string().replace('/', "-");
    top.join("configs").join(format!("{name}.{extension}"))
}

/// Writes the configuration of a run. That of a started run must be equal.
fn prepare(top: &Path, plan: &Plan) -> anyhow::Result<Run> {
    let directory = plan.output_dir().to_owned();
    let (config, log) = (in_configs(top, &directory, "yml"), in_configs(top, &directory, "log"));
    let text = plan.to_yaml();
    let file = match fs::read_to_string(&config) {
        Ok(before) if before == text => return Ok(Run { directory, log, config }),
        Ok(_) => {
            anyhow::ensure!(
                !directory.exists(),
                "`{}` was started with another configuration; choose another `output_dir`, or remove the directory",
                directory.display()
            );
            // The configuration of a run that has not started, or was removed.
            Outputs::new(true).file(&config)?
        }
        Err(_) => {
            OutputFile::new(&log)?;
            OutputFile::new(&config)?
        }
    };
    file.write(|file| file.write_all(text.as_bytes()))?;
    Ok(Run { directory, log, config })
}

/// Prints the batch script of the pending runs, or submits it. Each run is one job of an array. If `at_once` is more than one, it limits
/// the concurrent jobs.
fn to_slurm(
    args: &SlurmArgs,
    top: &Path,
    plans: &[&Plan],
    pending: &[Run],
    at_once: usize,
    out: &Output,
) -> anyhow::Result<()> {
    if pending.is_empty() {
        out.note("all runs are finished: there is nothing to submit to Slurm");
        return Ok(());
    }
    let gigabytes = match args.memory {
        Some(gigabytes) => gigabytes,
        None => {
            let each = plans
                .iter()
                .map(|plan| cluster::gigabytes(plan, None, 1, 1, out))
                .collect::<anyhow::Result<Vec<_>>>()?;
            each.into_iter().max().unwrap_or(1)
        }
    };
    let cpus = args.cpus.unwrap_or(8);
    // Each run is one process. Under a launcher it would have the lanes of ranks, and other numbers than on this machine.
    let lanes = if plans.iter().all(|plan| plan.train().lanes.is_none()) { " --lanes 1" } else { "" };
    let limit = if at_once > 1 { format!("%{at_once}") } else { String::new() };
    let name = cluster::job_name(top);
    let head = SlurmJob {
        name: &name,
        options: vec![format!("--array=0-{}{limit}", pending.len() - 1)],
        cpus,
        gpus: plans.iter().map(|plan| cluster::gpus(&plan.train().device)).max().unwrap_or(0),
        gigabytes,
        time: args.time.as_deref().unwrap_or(cluster::SLURM_TIME),
        partition: args.partition.as_deref(),
        log: &format!("{name}-%A_%a.log"),
    };
    let words = |of: fn(&Run) -> &PathBuf| -> anyhow::Result<String> {
        let line = |run: &Run| Ok(format!("  {}\n", gradus::shell::path(&std::path::absolute(of(run))?)));
        pending.iter().map(line).collect()
    };
    let text = format!(
        "{head}# Each job of the array trains one configuration in its \
         directory.\nCONFIGS=(\n{configs})\nDIRECTORIES=(\n{directories})\nsrun --cpus-per-task={cpus} gradus train \
         \"${{CONFIGS[$SLURM_ARRAY_TASK_ID]}}\" \\\n\x20 --output-dir \"${{DIRECTORIES[$SLURM_ARRAY_TASK_ID]}}\" \
         --resume --quiet --threads {cpus}{lanes}\n",
        head = head.head(),
        configs = words(|run| &run.config)?,
        directories = words(|run| &run.directory)?,
    );
    match args.submit {
        true => cluster::submit_with(&["sbatch"], &text),
        false => out.text(&text),
    }
}

/// Trains all runs, `at_once` at a time. Returns the failed ones. If the first finished run does not measure the `unchecked` metric, the others
/// are stopped.
fn train(
    pending: Vec<Run>,
    (at_once, threads): (usize, usize),
    mut unchecked: Option<&str>,
    out: &Output,
) -> anyhow::Result<Vec<Run>> {
    catch_interrupts(Some((out, STOPPING)));
    let progress = out.progress("runs", pending.len() as u64);
    let (mut waiting, mut running, mut failed, mut done) =
        (pending.into_iter(), Vec::<(Run, Child)>::new(), Vec::new(), 0);
    let (mut is_passed_on, mut mistyped) = (false, None);
    loop {
        let stops = is_interrupted() || mistyped.is_some();
        while running.len() < at_once && !stops {
            let Some(run) = waiting.next() else { break };
            let child = start(&run, (threads / at_once).max(1), at_once > 1)?;
            running.push((run, child));
        }
        if running.is_empty() {
            break;
        }
        if stops && !is_passed_on {
            // The signal may have reached only this process, so it is passed on to the runs.
            running.iter().for_each(|(_, child)| process::interrupt(child));
            is_passed_on = true;
        }
        let mut still = Vec::new();
        for (run, mut child) in running {
            match child.try_wait()? {
                None => still.push((run, child)),
                Some(status) => {
                    done += 1;
                    progress.set(done, "");
                    if status.success() {
                        let metric = unchecked.take();
                        mistyped = mistyped.or(metric.and_then(|metric| check_metric(&run.directory, metric).err()));
                    } else if !stops && !is_interrupted() {
                        failed.push(run);
                    }
                }
            }
        }
        running = still;
        std::thread::sleep(Duration::from_millis(100));
    }
    if is_interrupted() {
        let text = "interrupted: run the same command again to resume";
        return Err(interrupted(gradus::Error::Interrupted, || text.to_owned()));
    }
    match mistyped {
        Some(error) => Err(error.into()),
        None => Ok(failed),
    }
}

/// Starts a run, or resumes it.
fn start(run: &Run, threads: usize, shares: bool) -> anyhow::Result<Child> {
    let mut command = process::gradus()?;
    // The directory is also passed as a flag. Otherwise a run would choose its own directory for a default one.
    command
        .arg("train")
        .arg(&run.config)
        .arg("--output-dir")
        .arg(&run.directory)
        .arg("--quiet")
        .arg("--stop-with-stdin");
    if shares {
        command.args(["--threads", &threads.to_string()]);
    }
    if run.directory.is_dir() {
        command.arg("--resume");
    }
    process::stops_with_us(&mut command);
    process::begin(command, &run.log)
}

/// Writes the table and its numbers into the directory of the sweep.
fn write(sweep: &SweepDefinition, plans: &[Vec<Plan>], overwrite: bool) -> anyhow::Result<()> {
    let outcomes = outcomes(sweep, plans)?;
    let json = serde_json::to_string_pretty(&outcomes.to_json())? + "\n";
    let texts = [json, aligned(&outcomes.rows())];
    let files = outputs(&sweep.output_dir, overwrite)?;
    let staged = files.iter().zip(&texts).map(|(file, text)| file.stage(|file| file.write_all(text.as_bytes())));
    Ok(commit(staged.collect::<gradus::Result<Vec<_>>>()?)?)
}

/// Opens the two result files of a sweep. Existing files are replaced only if a sweep wrote them.
fn outputs(directory: &Path, overwrite: bool) -> gradus::Result<[OutputFile; 2]> {
    let [json, table] = ["sweep.json", "sweep.txt"].map(|name| directory.join(name));
    let found: Option<serde_json::Value> =
        fs::read_to_string(&json).ok().and_then(|text| serde_json::from_str(&text).ok());
    let is_ours = found.is_some_and(|found| found["metric"].is_string() && found["points"].is_array());
    let mut outputs = Outputs::new(overwrite);
    Ok([outputs.file_unless(&json, |_| is_ours)?, outputs.file_unless(&table, |_| is_ours)?])
}

fn outcomes(sweep: &SweepDefinition, plans: &[Vec<Plan>]) -> gradus::Result<SweepResult> {
    let first = plans.iter().flatten().next();
    let metric = sweep.metric.as_deref().or(first.map(Plan::best_metric)).unwrap_or("eval_reward");
    let of_best = || first.filter(|plan| plan.best_metric() == metric)?.train().greater_is_better;
    let greater_is_better = sweep.greater_is_better.or_else(of_best).unwrap_or_else(|| !smaller_is_better(metric));
    let outcome = |(point, plans): (&SweepPoint, &Vec<Plan>)| {
        let values = plans.iter().map(|plan| value(plan.output_dir(), metric)).collect::<gradus::Result<Vec<_>>>()?;
        let values = values.into_iter().flatten().filter(|value| value.is_finite()).collect();
        Ok(PointResult { name: point.name.clone(), settings: point.settings.clone(), values, runs: plans.len() })
    };
    let points = sweep.points.iter().zip(plans).map(outcome).collect::<gradus::Result<Vec<_>>>()?;
    Ok(SweepResult::of(metric, greater_is_better, points))
}

fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let errors = text.lines().rev().find(|line| line.starts_with("error")).or_else(|| text.lines().last());
    errors.unwrap_or("no message in its log").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_point_whose_name_is_taken_gets_another_number() {
        let folder = tempfile::tempdir().expect("a directory");
        let machine = Machine::detect();
        let read = |values: &[&str]| {
            let models: Vec<String> =
                values.iter().map(|value| format!("a-very-long-name-of-a-model/{value}")).collect();
            let text = format!(
                "model: m\ndata: d\noutput_dir: {}\nmethod: {{ grpo: {{}} }}\nreward: {{ rule: {{ substring: a }} }}\n\
                 sweep: {{ grid: {{ model: [{}] }} }}\n",
                folder.path().join("out").display(),
                models.join(", ")
            );
            let mut sweep = SweepDefinition::parse(&text).expect("it is read");
            let plan = |run| Plan::check(run, &machine).expect("it can run");
            let mut plans: Vec<Vec<Plan>> =
                sweep.points.iter().map(|point| point.runs.iter().map(plan).collect()).collect();
            keep_names(&mut sweep, &mut plans, &machine).expect("names");
            for plan in plans.iter().flatten() {
                prepare(&sweep.output_dir, plan).expect("written");
                fs::create_dir_all(plan.output_dir()).expect("a directory");
            }
            let numbers = sweep.points.iter().map(|point| point.name.split('-').next().unwrap_or_default().to_owned());
            numbers.collect::<Vec<_>>()
        };
        assert_eq!(read(&["one"]), ["1"]);
        assert_eq!(read(&["two", "one"]), ["2", "1"]);
        assert_eq!(read(&["three", "two", "four", "one"]), ["3", "2", "4", "1"]);
    }
}
