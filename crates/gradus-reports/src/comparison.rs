//! `comparison/`: several policies compared on the same held-out prompts.
//!
//! ```text
//! comparison.md  comparison.json    one row a policy: reward, wins against the start, KL, length, time, memory; win rates; Pareto front
//! samples.md     samples.jsonl      the same prompts, one completion a policy
//! results.png    plots/*.png        bars of the final numbers; the curves of all runs in one picture a metric
//! report.html                       all of it on one page
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::files::{self, atomic};
use crate::page::curves;
use crate::plots::{Bar, BarChart, Chart, ComparedRun, LineChart, Panel, colors, comparison_charts, write_charts};
use crate::run::directory::RunDir;
use crate::run::metrics::{
    Axis, Metrics, MetricsRow, REMARKS, is_of_evaluation, number, read_metrics, read_remarks, remarks,
};
use crate::run::samples::{Sample, read_samples};
use crate::run_report::results_warnings;

mod show;
mod win_rates;

pub use win_rates::WinRates;

/// A run and its name in a comparison.
pub type NamedRun<'r> = (&'r str, &'r RunDir);

/// A policy in a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Name in tables: the run's name, or `start`. No two entries have the same one.
    pub name: String,
    /// Training method, if the results state it. It decides the color.
    pub method: Option<String>,
    /// Text of the `reward` section of its configuration. Policies with different texts are not compared by reward. `None` if the text is
    /// unknown, or irrelevant because one reward scored all policies.
    pub reward: Option<String>,
    /// The run; `None` for the start.
    pub run: Option<RunDir>,
    /// Metrics on the held-out prompts, without prefix: `reward`, `kl`, `length`, …
    pub measured: Metrics,
    /// One completion for each held-out prompt.
    pub samples: Vec<Sample>,
    /// Completions of the run's own start on these prompts, scored by its own reward. Empty if that reward also scored the comparison's
    /// start.
    pub before: Vec<Sample>,
    /// Number of optimizer steps or iterations.
    pub steps: usize,
    /// Tokens that the model processed in training.
    pub tokens: u64,
    /// Seconds of training.
    pub elapsed_s: f64,
    /// Peak memory of the process during training, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Warnings in its results, for example that it diverged or never improved on its start.
    pub warnings: Vec<String>,
    /// Remarks on its measurements, for example that a metric was computed without an external file.
    pub remarks: Vec<String>,
}

/// Policies and their starts. The first entry is a start; entries without a start of their own are compared with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Start models of all policies.
    pub model: String,
    /// Data sets of all policies.
    pub data: String,
    /// Training budget of each policy, as a sentence.
    pub budget: String,
    /// How the completions were generated, as a sentence.
    pub evaluation: String,
    /// One or more starts, then the trained policies.
    pub entries: Vec<Entry>,
}

/// Files of a comparison, which a later one may replace.
const FILES: [&str; 6] =
    ["comparison.md", "comparison.json", "samples.md", "samples.jsonl", "report.html", "results.png"];
const PLOTS: &str = "plots";

/// Rejects a directory to be replaced if it contains files that do not belong to a comparison.
fn check_replaceable(directory: &Path) -> Result<()> {
    let names = |at: &Path| -> Result<Vec<String>> {
        let entries = std::fs::read_dir(at).map_err(|source| Error::io(at, source))?;
        Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    };
    if !directory.exists() {
        return Ok(());
    }
    let is_plot = |name: &String| name.ends_with(".png") || name.ends_with(".svg");
    let plots = directory.join(PLOTS);
    let mut foreign = names(directory)?;
    let is_empty = foreign.is_empty();
    foreign.retain(|name| !FILES.contains(&name.as_str()) && name != PLOTS);
    if plots.is_dir() {
        foreign.extend(names(&plots)?.into_iter().filter(|name| !is_plot(name)).map(|name| format!("{PLOTS}/{name}")));
    }
    let what = match foreign.iter().min() {
        Some(name) => format!("it holds `{name}`, which comparisons do not write"),
        None if is_empty || holds_comparison(directory) => return Ok(()),
        None if !directory.join("comparison.json").is_file() => "it has no `comparison.json`".into(),
        None => "its `comparison.json` is not that of a comparison".into(),
    };
    let message = format!("`{}` is not replaced by a comparison: {what}", directory.display());
    Err(Error::input(message).with_hint("choose another `--output-dir`"))
}

/// Returns whether the `comparison.json` of a directory was written by a comparison.
fn holds_comparison(directory: &Path) -> bool {
    let text = files::read_run_text(directory.join("comparison.json")).ok();
    let found: Option<Value> = text.and_then(|text| serde_json::from_str(&text).ok());
    found.is_some_and(|found| found["entries"].is_array())
}

/// Name of a start in tables.
const START: &str = "start";

/// Returns a name for each run: the end of its path, as short as possible without equal names.
fn names_of(runs: &[RunDir]) -> Result<Vec<String>> {
    let path = |run: &RunDir| run.path().canonicalize().unwrap_or_else(|_| run.path().to_owned());
    let paths: Vec<PathBuf> = runs.iter().map(path).collect();
    if let Some(twice) = (0..paths.len()).find(|&i| paths[..i].contains(&paths[i])) {
        let message = format!("the run `{}` is given twice", runs[twice].path().display());
        return Err(Error::input(message).with_hint("give each run once"));
    }
    let names = |parts: usize| -> Vec<String> {
        let end = |path: &PathBuf| -> PathBuf { path.iter().skip(path.iter().count().saturating_sub(parts)).collect() };
        paths.iter().map(|path| end(path).display().to_string()).collect()
    };
    let are_distinct = |names: &Vec<String>| {
        let distinct: HashSet<&str> = names.iter().map(String::as_str).chain([START]).collect();
        distinct.len() == names.len() + 1
    };
    let longest = paths.iter().map(|path| path.iter().count()).max().unwrap_or(0);
    Ok((1..longest).map(names).find(are_distinct).unwrap_or_else(|| names(longest)))
}

/// Columns of the table: key in JSON, heading, meaning.
const COLUMNS: [(&str, &str, &str); 9] = [
    ("reward", "reward", "mean ± standard error"),
    ("wins", "wins", "share of prompts with a better reward than the start; ties count half"),
    ("kl", "KL", "to the start, nats per completion"),
    ("length", "length", "tokens per completion"),
    ("clipped_ratio", "cut off", "share of completions that reached the limit"),
    ("steps", "steps", "optimizer steps or iterations"),
    ("tokens", "tokens", "processed by the policy in training"),
    ("elapsed_s", "time", "of training"),
    ("peak_memory_bytes", "memory", "peak memory of the process in training"),
];

impl Entry {
    /// Reads a run from its own files. An unfinished run is read up to its current step.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] if a file is corrupt.
    pub fn from_run(run: RunDir) -> Result<Self> {
        let results = match run.results().is_file() {
            true => read_results(&run)?,
            false => partial_results(&run)?,
        };
        let samples = read_samples(&run)?;
        let last = samples.iter().map(|sample| sample.step).max();
        let count = |key: &str| results.get(key).and_then(Value::as_u64).unwrap_or(0);
        Ok(Self {
            name: run.name(),
            method: results.get("method").and_then(Value::as_str).map(str::to_owned),
            measured: without_prefix(results.get("after")),
            before: samples.iter().filter(|sample| sample.step == 0).cloned().collect(),
            samples: samples.into_iter().filter(|sample| Some(sample.step) == last).collect(),
            steps: count("steps") as usize,
            tokens: count("tokens"),
            elapsed_s: results.get("elapsed_s").and_then(Value::as_f64).unwrap_or(f64::NAN),
            peak_memory_bytes: results.get("peak_memory_bytes").and_then(Value::as_u64),
            warnings: results_warnings(&results),
            remarks: remarks(&results),
            reward: reward_of(&run),
            run: Some(run),
        })
    }

    /// Returns the starts of finished runs, each with its name, one for each start model. If there are several, their names list the runs that
    /// began there. Without any information about the start, returns one start without measurements.
    pub fn starts_of<'r>(runs: impl IntoIterator<Item = NamedRun<'r>>) -> Vec<Self> {
        let mut by_model: Vec<(Option<String>, Vec<NamedRun<'r>>)> = Vec::new();
        for (name, run) in runs {
            let model = read_results(run).ok().and_then(|results| Some(results.get("model")?.as_str()?.to_owned()));
            match by_model.iter_mut().find(|(known, _)| *known == model) {
                Some((_, runs)) => runs.push((name, run)),
                None => by_model.push((model, vec![(name, run)])),
            }
        }
        // Runs whose start model is unknown are ignored.
        if by_model.iter().any(|(model, _)| model.is_some()) {
            by_model.retain(|(model, _)| model.is_some());
        }
        let is_one = by_model.len() == 1;
        let of_model = |(_, runs): &(_, Vec<NamedRun<'r>>)| {
            let (names, runs): (Vec<&str>, Vec<&RunDir>) = runs.iter().copied().unzip();
            let start = Self::start_of(&runs);
            if is_one { start } else { Self { name: format!("start of {}", names.join(", ")), ..start } }
        };
        let starts: Vec<Self> = by_model.iter().map(of_model).collect();
        if starts.is_empty() { vec![Self::start(Metrics::new(), Vec::new())] } else { starts }
    }

    /// Merges the starts of runs from one model: the samples of the first, with the measurements that all agree on. Runs with different
    /// rewards have no common start reward. Runs without measurements of their start are ignored.
    fn start_of(runs: &[&RunDir]) -> Self {
        let known = |run: &RunDir| {
            let samples: Vec<Sample> = read_samples(run)?.into_iter().filter(|sample| sample.step == 0).collect();
            let results = read_results(run)?;
            let start = Self::start(without_prefix(results.get("before")), samples);
            Ok::<_, Error>(Self { remarks: remarks(&results), ..start })
        };
        let mut starts: Vec<Self> = runs.iter().filter_map(|run| known(run).ok()).collect();
        if starts.is_empty() {
            return Self::start(Metrics::new(), Vec::new());
        }
        let measured = common_metrics(&starts);
        let mut rewards: Vec<Option<String>> = runs.iter().map(|run| reward_of(run)).collect();
        rewards.dedup();
        let mut remarks: Vec<String> = starts.iter().flat_map(|start| start.remarks.iter().cloned()).collect();
        remarks.sort();
        remarks.dedup();
        let mut samples = starts.swap_remove(0).samples;
        if measured.get("reward").is_none() {
            samples.iter_mut().for_each(|sample| sample.reward = None);
        }
        let reward = if let [one] = &mut rewards[..] { one.take() } else { None };
        Self { reward, remarks, ..Self::start(measured, samples) }
    }

    /// Creates the entry of a start model.
    pub fn start(measured: Metrics, samples: Vec<Sample>) -> Self {
        Self {
            name: START.into(),
            method: None,
            reward: None,
            run: None,
            measured,
            samples,
            before: Vec::new(),
            steps: 0,
            tokens: 0,
            elapsed_s: f64::NAN,
            peak_memory_bytes: None,
            warnings: Vec::new(),
            remarks: Vec::new(),
        }
    }

    fn rewards(&self) -> Vec<f64> {
        self.samples.iter().filter_map(|sample| sample.reward).collect()
    }

    /// Standard error of the mean reward over prompts.
    fn standard_error(&self) -> Option<f64> {
        let rewards = self.rewards();
        let count = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / count;
        let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
        (rewards.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt())
    }

    /// Share of prompts on which this policy's reward beats that of its start; ties count half. The start is the run's own if it has one,
    /// else `start`, because another run may have another reward. `None` if they share no prompts.
    fn wins_against(&self, start: &Entry) -> Option<f64> {
        let (mut wins, mut count) = (0.0, 0);
        let before = if self.before.is_empty() { &start.samples } else { &self.before };
        for mine in &self.samples {
            let theirs = before.iter().find(|theirs| theirs.has_same_prompt(mine));
            if let (Some(mine), Some(theirs)) = (mine.reward, theirs.and_then(|theirs| theirs.reward)) {
                wins += if mine > theirs { 1.0 } else { 0.5 * f64::from(u8::from(mine == theirs)) };
                count += 1;
            }
        }
        (count > 0).then(|| wins / f64::from(count))
    }

    fn value(&self, key: &str, start: &Entry) -> Option<f64> {
        let is_start = self.run.is_none();
        match key {
            "wins" if is_start => None,
            "wins" => self.wins_against(start),
            "kl" if is_start => Some(0.0),
            "steps" | "tokens" | "elapsed_s" | "peak_memory_bytes" if is_start => None,
            "steps" => Some(self.steps as f64),
            "tokens" => Some(self.tokens as f64),
            "elapsed_s" => Some(self.elapsed_s),
            "peak_memory_bytes" => self.peak_memory_bytes.map(|bytes| bytes as f64),
            _ => self.measured.get(key),
        }
        .filter(|value| value.is_finite())
    }
}

/// Returns the `reward` section of a run's `config.yml` without comments; `None` if the file does not exist.
fn reward_of(run: &RunDir) -> Option<String> {
    let config = files::read_run_text(run.config()).ok()?;
    let is_inside = |line: &&str| line.starts_with([' ', '-']) || line.trim().is_empty() || line.starts_with('#');
    let mut lines = config.lines().skip_while(|line| !line.starts_with("reward:"));
    let first = lines.next().unwrap_or_default();
    let all = std::iter::once(first).chain(lines.take_while(is_inside));
    let lines = all.map(|line| line.split(" #").next().unwrap_or_default().trim_end());
    Some(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect::<Vec<_>>().join("\n"))
}

/// Merges the measurements of `starts`, without those that differ.
fn common_metrics(starts: &[Entry]) -> Metrics {
    let is_common = |(key, value): &(&str, f64)| {
        let same =
            |other: f64| (other - value).abs() <= 1e-6 * value.abs().max(1.0) || other.is_nan() && value.is_nan();
        starts.iter().filter_map(|start| start.measured.get(key)).all(same)
    };
    starts.iter().flat_map(|start| start.measured.iter()).filter(is_common).collect()
}

/// Reads the logged metrics. Empty for a run that never reached its first step.
fn rows_of(run: &RunDir) -> Result<Vec<MetricsRow>> {
    if run.metrics().is_file() { read_metrics(&run.metrics()) } else { Ok(Vec::new()) }
}

/// The content of `results.json` if the run ended now: the last held-out metrics, steps, tokens and remarks.
fn partial_results(run: &RunDir) -> Result<Map<String, Value>> {
    let rows = rows_of(run)?;
    let mut after = Map::new();
    for (key, value) in rows.iter().flat_map(|row| row.values.iter()).filter(|(key, _)| is_of_evaluation(key)) {
        after.insert(key.into(), number(value));
    }
    let last = rows.last();
    let tokens = last.and_then(|row| row.values.get("num_tokens")).unwrap_or(0.0) as u64;
    let values = [
        ("steps", json!(last.map_or(0, |row| row.step))),
        ("tokens", json!(tokens)),
        ("after", after.into()),
        (REMARKS, json!(read_remarks(&run.metrics()))),
    ];
    Ok(values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn read_results(run: &RunDir) -> Result<Map<String, Value>> {
    let path = run.results();
    let text = files::read_run_text(&path).map_err(|source| Error::io(&path, source))?;
    serde_json::from_str(&text).map_err(|error| Error::data(&path, Some(error.line()), error.to_string()))
}

fn without_prefix(object: Option<&Value>) -> Metrics {
    let entries = object.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.strip_prefix("eval_").unwrap_or(key), value.as_f64()?))).collect()
}

impl Comparison {
    /// Compares finished runs, after [their starts](Entry::starts_of).
    ///
    /// # Errors
    /// [`Error::Input`] if `runs` is empty or has a run twice, else as [`Entry::from_run`].
    pub fn of_runs(runs: &[RunDir]) -> Result<Self> {
        let Some(first) = runs.first() else { return Err(Error::input("nothing to compare: no run was given")) };
        read_results(first)?;
        // Models and data sets are listed once each, as runs may differ in them.
        let results: Vec<_> = runs.iter().filter_map(|run| read_results(run).ok()).collect();
        let text = |key: &str| {
            let mut texts: Vec<&str> = results.iter().filter_map(|of| of.get(key)?.as_str()).collect();
            let mut seen = std::collections::HashSet::new();
            texts.retain(|&text| seen.insert(text));
            if texts.is_empty() { "–".to_owned() } else { texts.join(", ") }
        };
        let names = names_of(runs)?;
        let mut entries = Entry::starts_of(names.iter().map(String::as_str).zip(runs));
        for (name, run) in names.into_iter().zip(runs) {
            entries.push(Entry { name, ..Entry::from_run(run.clone())? });
        }
        Ok(Self {
            model: text("model"),
            data: text("data"),
            budget: "the settings of each run".into(),
            evaluation: "the last evaluation of each run".into(),
            entries,
        })
    }

    /// Writes everything to `directory` atomically. Returns the content of `comparison.json`.
    ///
    /// # Errors
    /// [`Error::Input`] if the directory contains other files; [`Error::Io`]; or [`Error::Data`] if a run's metrics are corrupt.
    pub fn write(&self, directory: &Path) -> Result<Value> {
        check_replaceable(directory)?;
        let json = self.to_json();
        let runs = self.curves()?;
        let charts = |axis| comparison_charts(&runs, axis);
        let bars = self.bars();
        atomic::write_dir(directory, |at| {
            let write = |name: &str, text: &str| {
                let path = at.join(name);
                std::fs::write(&path, text).map_err(|source| Error::io(path, source))
            };
            write("comparison.md", &self.to_markdown())?;
            write("comparison.json", &(serde_json::to_string_pretty(&json).expect("plain data") + "\n"))?;
            write("samples.md", &self.samples_markdown())?;
            write("samples.jsonl", &self.samples_jsonl())?;
            write("report.html", &self.page(&bars, &curves(&charts)))?;
            let path = at.join("results.png");
            std::fs::write(&path, bars.png()).map_err(|source| Error::io(path, source))?;
            let named = [("pareto", self.pareto()), ("rewards", self.reward_histogram())];
            let more = named.into_iter().filter_map(|(stem, chart)| Some((stem.to_owned(), chart?)));
            let all: Vec<(String, LineChart)> = charts(Axis::Steps).into_iter().chain(more).collect();
            write_charts(&at.join(PLOTS), &all).map(|_| ())
        })?;
        Ok(json)
    }

    fn start(&self) -> &Entry {
        self.entries.first().expect("a comparison has a start")
    }

    /// Content of `comparison.json`.
    pub fn to_json(&self) -> Value {
        let entry = |entry: &Entry| {
            let mut object = Map::from_iter([("method".to_owned(), json!(entry.name))]);
            for (key, _, _) in COLUMNS {
                let value = entry.value(key, self.start());
                let is_count = matches!(key, "steps" | "tokens" | "peak_memory_bytes");
                let value = value.map(|value| if is_count { json!(value as u64) } else { number(value) });
                object.insert(key.into(), value.unwrap_or(Value::Null));
            }
            object.insert("reward_standard_error".into(), json!(entry.standard_error()));
            for (key, texts) in [("warnings", &entry.warnings), (REMARKS, &entry.remarks)] {
                if !texts.is_empty() {
                    object.insert(key.into(), json!(texts));
                }
            }
            object.insert("run".into(), json!(entry.run.as_ref().map(|run| run.path().display().to_string())));
            object.insert("measured".into(), Value::Object(entry.measured.to_json()));
            Value::Object(object)
        };
        json!({
            "gradus": env!("CARGO_PKG_VERSION"),
            "model": self.model,
            "data": self.data,
            "budget": self.budget,
            "evaluation": self.evaluation,
            "prompts": self.start().samples.len(),
            "entries": self.entries.iter().map(entry).collect::<Vec<_>>(),
            "win_rates": self.win_rates(),
            "pareto_front": self.front().iter().map(|&index| self.entries[index].name.as_str()).collect::<Vec<_>>(),
        })
    }

    fn curves(&self) -> Result<Vec<ComparedRun>> {
        let runs = self
            .entries
            .iter()
            .zip(self.colors())
            .filter_map(|(entry, color)| Some((entry, color?, entry.run.as_ref()?)));
        runs.map(|(entry, color, run)| Ok(ComparedRun { name: entry.name.clone(), color, rows: rows_of(run)? }))
            .collect()
    }

    /// Color of each entry; `None` for starts.
    fn colors(&self) -> Vec<Option<usize>> {
        let runs = || self.entries.iter().filter(|entry| entry.run.is_some());
        let methods: Vec<_> = runs().map(|entry| entry.method.as_deref()).collect();
        let mut own = colors(&methods).into_iter();
        self.entries.iter().map(|entry| entry.run.as_ref().and_then(|_| own.next())).collect()
    }

    fn bars(&self) -> BarChart {
        let panels = [
            ("reward", "Reward", "held-out, ± standard error"),
            ("wins", "Wins", "share of prompts"),
            ("kl", "KL to the start", "nats per completion"),
            ("length", "Length", "tokens"),
            ("elapsed_s", "Training time", "seconds"),
        ];
        let colors = self.colors();
        let panel = |(key, title, unit): (&str, &str, &str)| {
            let bar = |(index, entry): (usize, &Entry)| Bar {
                name: entry.name.clone(),
                value: entry.value(key, self.start()).unwrap_or(f64::NAN),
                error: entry.standard_error().filter(|_| key == "reward"),
                color: colors[index],
            };
            let bars: Vec<Bar> = self.entries.iter().enumerate().map(bar).collect();
            let shown = bars.iter().any(|bar| bar.value.is_finite());
            shown.then(|| Panel { title: title.into(), unit: unit.into(), is_share: key == "wins", bars })
        };
        BarChart { title: "Final results".into(), panels: panels.into_iter().filter_map(panel).collect() }
    }
}

#[cfg(test)]
mod tests;
