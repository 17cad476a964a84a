//! Information about one run, read without trusting its files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};

use super::labels::Labels;
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::files;
use crate::run::claim::{Stage, is_held, read_state};
use crate::run::metrics::{is_better, is_of_evaluation, smaller_is_better};
use crate::run::{Checkpoint, RunDir, scan_metrics};

/// Status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A trainer is running.
    Running,
    /// All steps are done.
    Finished,
    /// Stopped by the user, or killed; it can be resumed.
    Interrupted,
    /// Stopped by an error.
    Failed,
    /// Its files cannot be read.
    Broken,
}

impl Status {
    /// All statuses.
    pub const ALL: [Self; 5] = [Self::Running, Self::Finished, Self::Interrupted, Self::Failed, Self::Broken];

    /// Name of the status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::Broken => "broken",
        }
    }
}

/// Main metric of a run: the one that selects `best/`, or its training counterpart.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "Written")]
pub struct Figure {
    /// Name of the metric.
    pub key: String,
    /// True if larger values are better.
    pub greater_is_better: bool,
    /// Last value.
    pub last: f64,
    /// Step of the last value; 0 is the start.
    pub last_step: usize,
    /// Best value; the first one if several are equal.
    pub best: f64,
    /// Step of the best value; 0 is the start.
    pub best_step: usize,
}

impl Figure {
    /// Returns true if no evaluation after the start was better than the start. An equal value is not better.
    pub fn never_beat_start(&self) -> bool {
        self.best_step == 0 && self.last_step > 0
    }

    /// Best value if it selects a model. Training metrics select none, so that a run without held-out rows has no best value.
    pub fn selected(&self) -> Option<f64> {
        is_of_evaluation(&self.key).then_some(self.best)
    }
}

/// A figure as it is written: without a best value that selects no model.
#[derive(Serialize)]
struct Written {
    key: String,
    last: f64,
    last_step: usize,
    best: Option<f64>,
    best_step: Option<usize>,
}

impl From<Figure> for Written {
    fn from(figure: Figure) -> Self {
        let best = figure.selected();
        let Figure { key, last, last_step, best_step, .. } = figure;
        Self { key, last, last_step, best, best_step: best.map(|_| best_step) }
    }
}

/// Summary of a run for lists.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// Name: the path below the directory of runs.
    pub name: String,
    /// Directory of the run.
    pub path: PathBuf,
    /// Status of the run.
    pub state: Status,
    /// Why it failed, or how it was interrupted.
    pub reason: Option<String>,
    /// Files that could not be read.
    pub problems: Vec<String>,
    /// Where the run is that this one was to replace, if a kill left it, and how to bring it back.
    pub replaced_run: Option<String>,
    /// Method: `sft`, `ppo`, …
    pub method: Option<String>,
    /// Start model.
    pub model: Option<String>,
    /// Training data.
    pub data: Option<String>,
    /// Number of logged steps.
    pub step: usize,
    /// Total number of steps, if known.
    pub steps: Option<usize>,
    /// Main metric.
    pub figure: Option<Figure>,
    /// Start of the last trainer process, in Unix seconds.
    pub started: Option<u64>,
    /// Time of the last write, in Unix seconds.
    pub changed: Option<u64>,
    /// Size of all files in its directory, in bytes.
    pub size_bytes: u64,
    /// Tags of the user.
    pub tags: Vec<String>,
    /// Note of the user.
    pub note: Option<String>,
}

impl Entry {
    /// Reads the run at `path`. Unreadable files are listed in `problems`.
    pub fn read(name: String, path: &Path) -> Self {
        let mut problems = Vec::new();
        let mut keep = |error: Error| problems.push(error.to_string());
        // Checked first, so that a run that ends in the meantime is not reported as killed.
        let held = is_held(path);
        let state = read_state(path).unwrap_or_else(|error| {
            keep(error);
            None
        });
        let settings = match Settings::read(&path.join("config.yml")) {
            Ok(settings) => settings,
            Err(error) => {
                keep(error);
                Settings::default()
            }
        };
        let metrics = path.join("metrics.jsonl");
        let (logged, figure) = match metrics.is_file().then(|| reached(&metrics, &settings)).transpose() {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                keep(error);
                (None, None)
            }
        };
        let results = read_results(path).unwrap_or_else(|error| {
            keep(error);
            None
        });
        let labels = Labels::read(path).unwrap_or_else(|error| {
            keep(error);
            Labels::default()
        });
        let count = |key: &str| results.as_ref()?.get(key)?.as_u64().map(|count| count as usize);
        let done = logged.or_else(|| count("steps")).unwrap_or(0);
        let (stage, reason) = standing(path, held, state.as_ref().map(|state| (state.state, state.started)));
        let failure = state.as_ref().and_then(|state| state.error.clone()).filter(|_| stage == Status::Failed);
        let text = |key: &str| settings.text(key);
        let newest = ["metrics.jsonl", "state.json", "results.json", "log.txt", "config.yml"];
        Self {
            state: if problems.is_empty() || held { stage } else { Status::Broken },
            reason: failure.or(reason),
            method: settings.method().map(str::to_owned),
            model: text("model"),
            data: text("data"),
            step: done,
            steps: state.as_ref().and_then(|state| state.steps).or_else(|| total(path, &settings)),
            figure,
            started: state.as_ref().map(|state| state.started).or_else(|| seconds(&path.join("config.yml"))),
            changed: newest.iter().filter_map(|name| seconds(&path.join(name))).max(),
            size_bytes: size(path),
            tags: labels.tags,
            note: labels.note,
            replaced_run: if held { None } else { replaced_run(path) },
            problems,
            name,
            path: path.to_owned(),
        }
    }

    /// Reads several runs in parallel.
    pub fn read_all(runs: Vec<(String, PathBuf)>) -> Vec<Self> {
        runs.into_par_iter().map(|(name, path)| Self::read(name, &path)).collect()
    }

    /// Share of finished steps, 0 to 1.
    pub fn progress(&self) -> Option<f64> {
        let steps = self.steps.filter(|steps| *steps > 0)?;
        Some((self.step as f64 / steps as f64).min(1.0))
    }
}

/// Returns the last informative part of a model's path. Runs store their models in `model/` and `best/`, which are skipped.
pub fn short_model(model: &str) -> &str {
    let parts = || model.split(['/', '\\']).filter(|part| !matches!(*part, "" | "." | ".."));
    parts().rfind(|part| !matches!(*part, "model" | "best")).or_else(|| parts().next_back()).unwrap_or(model)
}

/// Status of a run: the lock shows whether a trainer is running, the state file how it ended, or else the other files.
fn standing(path: &Path, held: bool, state: Option<(Stage, u64)>) -> (Status, Option<String>) {
    let results = seconds(&path.join("results.json"));
    match state {
        _ if held => (Status::Running, None),
        Some((Stage::Finished, _)) => (Status::Finished, None),
        Some((Stage::Interrupted, _)) => (Status::Interrupted, Some("stopped by the user".into())),
        Some((Stage::Failed, _)) => (Status::Failed, None),
        // Killed between its last two writes.
        Some((Stage::Running, started)) if results.is_some_and(|results| results >= started) => {
            (Status::Finished, None)
        }
        Some((Stage::Running, _)) => (Status::Interrupted, Some("the process was killed".into())),
        None if results.is_some() => (Status::Finished, None),
        None => (Status::Interrupted, Some("it ended without results".into())),
    }
}

/// Describes the run that a killed run was to replace.
fn replaced_run(path: &Path) -> Option<String> {
    let (folder, is_complete) = RunDir::at(path).replaced_run()?;
    let folder = folder.display();
    Some(match is_complete {
        true => format!(
            "the run that it was to replace is in `{folder}`; rename this folder to bring it back, before another run starts \
             in `{}`",
            path.display()
        ),
        false => format!(
            "it is partly in `{folder}`, because its replacement was killed; `--resume` or `--overwrite` in `{}` moves its \
             files back",
            path.display()
        ),
    })
}

/// Total number of steps according to the newest checkpoint, or else to the configuration.
fn total(path: &Path, settings: &Settings) -> Option<usize> {
    let configured = || settings.get("train.max_steps")?.parse().ok();
    let run = RunDir::open(path).ok()?;
    let newest = run.checkpoint_steps().ok()?.pop().and_then(|step| Checkpoint::peek(&run.checkpoint(step)).ok());
    newest.map(|checkpoint| checkpoint.trainer_state.max_steps).filter(|&steps| steps > 0).or_else(configured)
}

/// Last step of a `metrics.jsonl`, and its main metric: the one that selects the best model, or else its training counterpart, or the loss.
fn reached(metrics: &Path, settings: &Settings) -> Result<(Option<usize>, Option<Figure>)> {
    let deciding = settings.get("train.best_metric").unwrap_or("eval_loss");
    let own = deciding.strip_prefix("eval_").unwrap_or(deciding);
    let others: &[&str] = match own {
        "reward" => &["objective/scores"],
        "accuracy" => &["rewards/accuracies"],
        _ => &[],
    };
    let keys: Vec<&str> = [deciding, own].into_iter().chain(others.iter().copied()).chain(["loss"]).collect();
    // The direction of the deciding metric is also that of its training counterpart.
    let given = settings.text("train.greater_is_better").and_then(|text| text.parse::<bool>().ok());
    let is_greater_better =
        |key: &str| given.filter(|_| [deciding, own].contains(&key)).unwrap_or_else(|| !smaller_is_better(key));
    let mut figures: Vec<Option<Figure>> = vec![None; keys.len()];
    let mut logged = None;
    scan_metrics(metrics, &keys, &mut |step, values| {
        logged = Some(step);
        for ((figure, key), value) in figures.iter_mut().zip(&keys).zip(values) {
            let Some(last) = *value else { continue };
            let first = || Figure {
                key: (*key).to_owned(),
                greater_is_better: is_greater_better(key),
                last,
                last_step: step,
                best: last,
                best_step: step,
            };
            let figure = figure.get_or_insert_with(first);
            (figure.last, figure.last_step) = (last, step);
            if is_better(figure.greater_is_better, last, figure.best) {
                (figure.best, figure.best_step) = (last, step);
            }
        }
    })?;
    Ok((logged, figures.into_iter().flatten().next()))
}

/// Content of `results.json`; `None` if it does not exist yet.
pub(super) fn read_results(path: &Path) -> Result<Option<Map<String, Value>>> {
    let path = path.join("results.json");
    if !path.is_file() {
        return Ok(None);
    }
    let text = files::read_run_text(&path).map_err(|source| Error::io(&path, source))?;
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|error| Error::data(&path, Some(error.line()), format!("broken JSON: {error}")))
}

/// Time of a file's last write, in Unix seconds.
fn seconds(path: &Path) -> Option<u64> {
    unix(fs::metadata(path).ok()?.modified().ok()?)
}

fn unix(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Size in bytes of all files below `path`. Links are not followed, and files with several names count once.
pub(super) fn size(path: &Path) -> u64 {
    fn add(path: &Path, seen: &mut BTreeSet<(u64, u64)>) -> u64 {
        let Ok(entries) = fs::read_dir(path) else { return 0 };
        let of = |entry: fs::DirEntry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => add(&entry.path(), seen),
            Ok(metadata) => match identity(&metadata) {
                Some(identity) if !seen.insert(identity) => 0,
                _ => metadata.len(),
            },
            Err(_) => 0,
        };
        entries.flatten().map(of).sum()
    }
    add(path, &mut BTreeSet::new())
}

/// Identity of a file, if the system reports one.
#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> Option<(u64, u64)> {
    None
}
