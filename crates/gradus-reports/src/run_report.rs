//! Results of a finished run: `results.json`, `plots/` and `report.html`.

use std::fs;

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::files::{self, atomic};
use crate::html;
use crate::html::Html;
use crate::page::{alerts, cards, curves, page, prompt_cell, text_cell};
use crate::plots::{short, training_charts, write_charts};
use crate::run::database::{RolloutDb, WarningRecord};
use crate::run::directory::RunDir;
use crate::run::log::last_warnings;
use crate::run::metrics::{Axis, read_metrics, remarks};
use crate::run::samples::{Sample, before_and_after, read_samples};

/// Maximum number of prompts on the page.
const SHOWN_SAMPLES: usize = 12;

/// Completes `results` with version and configuration hash, and writes `results.json`, the charts and the page.
///
/// `results` contains the trainer's values: `method`, `model`, `data`, `steps`, `elapsed_s`, and the metrics `before`, `after`, `last` and
/// `best`. `diverged` and `no_improvement` hold sentences if the run diverged or never improved on its start. `remarks` holds sentences
/// that readers of the metrics need.
///
/// # Errors
/// [`Error::Io`](crate::error::Error::Io), or [`Error::Data`](crate::error::Error::Data) if a file of the run is corrupt.
pub fn finish(run: &RunDir, results: Map<String, Value>) -> Result<Map<String, Value>> {
    let config = files::read_run_text(run.config()).unwrap_or_default();
    let mut complete = Map::new();
    complete.insert("gradus".into(), json!(env!("CARGO_PKG_VERSION")));
    complete.insert("config_hash".into(), json!(config_hash(&config)));
    complete.extend(results);
    complete.entry("peak_memory_bytes").or_insert_with(|| json!(peak_memory_bytes()));
    let text = serde_json::to_string_pretty(&complete).expect("plain data with string keys") + "\n";
    atomic::write_bytes(&run.results(), text.as_bytes())?;

    let rows = if run.metrics().is_file() { read_metrics(&run.metrics())? } else { Vec::new() };
    let charts = |axis| training_charts(&rows, axis);
    write_charts(&run.plots(), &charts(Axis::Steps))?;
    let samples = read_samples(run)?;
    let shown = [results_warnings(&complete), remarks(&complete)].concat();
    let body = html![
        (header(run, &complete)) (alerts(shown.iter().map(|text| ("", text.as_str())))) (curves(&charts))
        (warnings(run, &shown)) (sample_table(&samples))
        "<h2>Configuration</h2>\n<details><summary>config.yml</summary><pre>" (config) "</pre></details>\n"
        "<h2>All numbers</h2>\n<details><summary>results.json</summary><pre>" (text.trim_end()) "</pre></details>\n"
    ];
    atomic::write_bytes(&run.report(), page(&run.name(), &body).as_bytes())?;
    Ok(complete)
}

/// Peak memory of this process so far, if the system reports it (Linux).
fn peak_memory_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Resets the peak of `peak_memory_bytes` to the memory that the process holds now (Linux). On other systems the peak covers the whole
/// process. An allocator that keeps freed memory, as that of the program does, holds what an earlier run of this process needed. So the peak of
/// a run is at least that of the largest run before it.
pub fn reset_peak_memory() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Hash of the settings, without the output directory and comments: FNV-1a over the other lines.
pub fn config_hash(config: &str) -> String {
    let settings = config.lines().map(|line| line.split(" #").next().unwrap_or_default().trim_end());
    let settings =
        settings.filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("output_dir:"));
    format!("{:016x}", fingerprint(settings.flat_map(|line| line.bytes().chain([b'\n']))))
}

/// FNV-1a with 64 bits.
pub(crate) fn fingerprint(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn header(run: &RunDir, results: &Map<String, Value>) -> Html {
    let number = |key: &str| results.get(key).and_then(Value::as_f64);
    let section = |name: &str| results.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
    let (before, after, last) = (section("before"), section("after"), section("last"));
    let mut shown: Vec<(&str, String, String)> = Vec::new();
    for (key, value) in &after {
        if is_side_number(key) {
            continue;
        }
        let was = before.get(key).and_then(Value::as_f64).map_or(String::new(), |was| format!("was {}", short(was)));
        shown.push((key, value.as_f64().map_or("–".into(), short), was));
    }
    if after.is_empty() {
        let main = last.iter().filter(|(key, _)| !is_side_number(key)).take(8);
        shown.extend(
            main.filter_map(|(key, value)| Some((key.as_str(), short(value.as_f64()?), "last step".to_owned()))),
        );
    }
    let effort = [
        ("steps", number("steps").map(short)),
        ("tokens", number("tokens").map(short)),
        ("time", number("elapsed_s").map(duration)),
        ("peak memory", number("peak_memory_bytes").map(|bytes| format!("{:.0} MB", bytes / 1e6))),
    ];
    shown.extend(effort.into_iter().filter_map(|(name, value)| Some((name, value?, String::new()))));
    let text = |key: &str| results.get(key).and_then(Value::as_str).unwrap_or("–");
    html![
        "<h1>" (run.name()) "</h1>\n<p class=\"quiet\">" (text("method")) " from " (text("model")) " on " (text("data"))
        " · gradus " (text("gradus")) "</p>\n" (cards(shown))
    ]
}

/// Returns true for metrics that are not important enough for a card.
fn is_side_number(key: &str) -> bool {
    let parts = ["epoch", "num_tokens", "num_examples", "step", "/min", "/max", "time/", "runtime", "tokens_per_s"];
    let is_part_of_reward = key.contains("rewards/") && key.ends_with("/mean");
    is_part_of_reward || is_detail(key) || parts.iter().any(|part| key.contains(part))
}

/// Returns true for spreads, and for counts of parts that a reward could not read.
pub(crate) fn is_detail(key: &str) -> bool {
    ["_std", "/std", "/segments", "/unread", "/unscored", "/collided", "/cut"].iter().any(|end| key.ends_with(end))
}

/// Formats seconds for readers.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{} min {:02} s", (s / 60.0) as u64, (s % 60.0) as u64),
        s => format!("{} h {:02} min", (s / 3600.0) as u64, (s % 3600.0 / 60.0) as u64),
    }
}

/// Warnings in `results.json`: the run diverged, or never improved on its start.
pub(crate) fn results_warnings(results: &Map<String, Value>) -> Vec<String> {
    ["diverged", "no_improvement"].iter().filter_map(|key| Some(results.get(*key)?.as_str()?.to_owned())).collect()
}

/// Maximum number of warnings from `log.txt` on the page.
const WARNINGS: usize = 20;

/// Table of the run's warnings with their steps, without those in `shown`.
fn warnings(run: &RunDir, shown: &[String]) -> Html {
    let mut found = RolloutDb::open(run).and_then(|database| database.warnings()).unwrap_or_default();
    let is_known = |text: &str, found: &[WarningRecord]| {
        shown.iter().any(|shown| shown == text) || found.iter().any(|warning| text.contains(&warning.message))
    };
    let more: Vec<String> =
        last_warnings(run.path(), WARNINGS).into_iter().filter(|text| !is_known(text, &found)).collect();
    found.retain(|warning| !shown.contains(&warning.message));
    if found.is_empty() && more.is_empty() {
        return Html::new();
    }
    let others: Vec<Html> = more.iter().map(|text| html!["<tr><td></td><td>" (text) "</td></tr>\n"]).collect();
    let row = |warning: &WarningRecord| {
        html![
            "<tr><td class=\"number\">" (warning.step) "</td><td>" (warning.message) "</td></tr>\n"
        ]
    };
    let rows: Vec<Html> = found.iter().map(row).collect();
    html![
        "<h2>Warnings</h2>\n<div class=\"scroll\"><table>\n<tr><th class=\"number\">Step</th><th>Warning</th></tr>\n"
        (others) (rows) "</table></div>\n"
    ]
}

fn sample_table(samples: &[Sample]) -> Html {
    let pairs = before_and_after(samples);
    let Some((_, last)) = pairs.first() else { return Html::new() };
    let cell = |sample: &Sample| {
        let heading = sample.reward.map_or("not scored".into(), |reward| format!("reward {}", short(reward)));
        text_cell(&heading, &sample.completion)
    };
    let rows: Vec<Html> = pairs
        .iter()
        .take(SHOWN_SAMPLES)
        .map(|(before, after)| html!["<tr>" (prompt_cell(&before.prompt)) (cell(before)) (cell(after)) "</tr>\n"])
        .collect();
    html![
        "<h2>Samples</h2>\n<div class=\"scroll\"><table>\n<tr><th>Prompt</th><th>Start</th><th>After step " (last.step)
        "</th></tr>\n" (rows) "</table></div>\n"
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::database::{Record, RolloutTable};
    use crate::run::{Existing, Metrics, MetricsLog, RolloutWriter};

    #[test]
    fn a_finished_run_has_numbers_curves_and_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDir::create(directory.path().join("happy"), Existing::Refuse).unwrap();
        fs::write(run.config(), "model: gpt2\n").unwrap();
        let mut log = MetricsLog::open(&run.metrics()).unwrap();
        for step in 1..=3 {
            log.append(step, &Metrics::from_iter([("reward", step as f64), ("objective/kl", 0.1)])).unwrap();
        }
        let record = |step: usize, completion: &str, reward: f64| Record {
            step,
            prompt: "Once <b>\u{202e}".into(),
            completion: completion.into(),
            reward: Some(reward),
            ..Record::default()
        };
        let samples = vec![record(0, "sad", -1.0), record(3, "happy", 2.5)];
        RolloutWriter::open(&run.rollouts(), 0).unwrap().append(RolloutTable::Eval, samples).unwrap();
        let results = json!({
            "method": "ppo", "model": "gpt2", "data": "d.jsonl", "steps": 3, "elapsed_s": 75.0,
            "before": {"eval_reward": -1.0}, "after": {"eval_reward": 2.5, "eval_rewards/x/std": 1.0},
        });
        let Value::Object(results) = results else { unreachable!() };
        let complete = finish(&run, results).unwrap();
        assert_eq!(complete["gradus"], env!("CARGO_PKG_VERSION"));
        let written: Value = serde_json::from_str(&fs::read_to_string(run.results()).unwrap()).unwrap();
        assert_eq!((&written["method"], &written["after"]["eval_reward"]), (&json!("ppo"), &json!(2.5)));
        assert!(run.plots().join("reward.png").is_file() && run.plots().join("kl.png").is_file());
        let page = fs::read_to_string(run.report()).unwrap();
        for expected in [
            "<title>happy</title>",
            "<dt>eval_<wbr>reward</dt><dd>2.5</dd><small>was \u{2212}1</small>",
            "<dd>1 min 15 s</dd>",
            "Once &lt;b&gt;\\u{202e}",
            "<b>reward 2.5</b>happy",
            "aria-label=\"Reward\"",
            "model: gpt2",
        ] {
            assert!(page.contains(expected), "{expected} in {page}");
        }
        assert!(
            !page.contains("http://")
                || page.matches("http://").count() == page.matches("http://www.w3.org/2000/svg").count()
        );
    }

    #[test]
    fn the_hash_depends_on_settings_only() {
        let hash = config_hash("model: gpt2\noutput_dir: runs/a\ntrain:\n  seed: 42\n");
        assert_eq!(hash, config_hash("# note\nmodel: gpt2 # set\noutput_dir: runs/b\ntrain:\n  seed: 42\n"));
        assert_ne!(hash, config_hash("model: gpt2\ntrain:\n  seed: 43\n"));
        assert_eq!(config_hash(""), "cbf29ce484222325");
    }

    #[test]
    fn durations_read_like_speech() {
        assert_eq!([3.25, 75.0, 7500.0].map(duration), ["3.2 s", "1 min 15 s", "2 h 05 min"]);
    }
}
