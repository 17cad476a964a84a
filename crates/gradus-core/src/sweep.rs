//! `gradus sweep`: results of many runs, by point, over seeds.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::math::stats::mean_interval;
use crate::run::RunDir;
use crate::run::metrics::number;

/// One point of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct PointResult {
    /// Name of the point.
    pub name: String,
    /// Varied keys and their values.
    pub settings: Vec<(String, String)>,
    /// Value of the metric at the end of each finished run.
    pub values: Vec<f64>,
    /// Number of runs, finished or not.
    pub runs: usize,
}

/// All points of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepResult {
    /// Name of the metric.
    pub metric: String,
    /// Points, best first; those without a value come last.
    pub points: Vec<PointResult>,
}

impl PointResult {
    /// Returns the mean over seeds and the half width of its 95 % interval (Student's t distribution). A single run has
    /// no interval.
    pub fn mean(&self) -> Option<(f64, Option<f64>)> {
        mean_interval(&self.values)
    }
}

impl SweepResult {
    /// Sorts the points, best first.
    pub fn of(metric: &str, greater_is_better: bool, mut points: Vec<PointResult>) -> Self {
        let sign = if greater_is_better { -1.0 } else { 1.0 };
        let rank = |point: &PointResult| point.mean().map_or(f64::INFINITY, |(mean, _)| sign * mean);
        points.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
        Self { metric: metric.to_owned(), points }
    }

    /// Returns the best point, if any has a value.
    pub fn best(&self) -> Option<&PointResult> {
        self.points.first().filter(|point| !point.values.is_empty())
    }

    /// Returns one table row per point: its settings, the mean with its interval, and the number of finished runs.
    pub fn rows(&self) -> Vec<Vec<String>> {
        if self.points.is_empty() {
            return Vec::new();
        }
        // Grid points and random points may vary different keys.
        let mut keys: Vec<&String> = Vec::new();
        for (key, _) in self.points.iter().flat_map(|point| &point.settings) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut head: Vec<String> = keys.iter().map(|key| (*key).clone()).collect();
        head.extend([self.metric.clone(), "95 %".into(), "runs".into()]);
        let row = |point: &PointResult| {
            let value =
                |key: &&String| point.settings.iter().find(|(of, _)| of == *key).map(|(_, value)| value.clone());
            let mut row: Vec<String> = keys.iter().map(|key| value(key).unwrap_or_default()).collect();
            let (mean, off) = point.mean().map_or((None, None), |(mean, off)| (Some(mean), off));
            row.push(mean.map_or("–".into(), |mean| format!("{mean:.4}")));
            row.push(off.map_or(String::new(), |off| format!("± {off:.4}")));
            row.push(format!("{}/{}", point.values.len(), point.runs));
            row
        };
        std::iter::once(head).chain(self.points.iter().map(row)).collect()
    }

    /// Returns the content of `sweep.json`.
    pub fn to_json(&self) -> Value {
        let point = |point: &PointResult| {
            let (mean, off) = point.mean().map_or((f64::NAN, None), |found| found);
            json!({
                "name": point.name,
                "settings": point.settings.iter().cloned().collect::<std::collections::BTreeMap<String, String>>(),
                "mean": number(mean),
                "interval": off.map(|off| [number(mean - off), number(mean + off)]),
                "values": point.values.iter().map(|&value| number(value)).collect::<Vec<_>>(),
                "runs": point.runs,
            })
        };
        json!({
            "metric": self.metric,
            "best": self.best().map(|best| &best.name),
            "points": self.points.iter().map(point).collect::<Vec<_>>(),
        })
    }
}

/// Reads the value of `metric` at the end of a finished run; `None` if the run is not finished or has no such value.
///
/// # Errors
/// If the results cannot be read.
pub fn value(run: &Path, metric: &str) -> Result<Option<f64>> {
    if !is_finished(run) {
        return Ok(None);
    }
    let results = results(run)?;
    Ok(PARTS.iter().find_map(|part| results[part][metric].as_f64()))
}

/// Checks that a finished run has measured `metric`, whether or not its value is finite.
///
/// # Errors
/// [`Error::Input`] with the metrics that it has measured, if `metric` is none of them; or if the results cannot be read.
pub fn check_metric(run: &Path, metric: &str) -> Result<()> {
    let results = results(run)?;
    let parts = PARTS.iter().filter_map(|part| results[part].as_object());
    let measured: BTreeSet<&str> = parts.flat_map(|part| part.keys()).map(String::as_str).collect();
    if measured.contains(metric) {
        return Ok(());
    }
    let known: Vec<String> = measured.iter().map(|name| format!("`{name}`")).collect();
    let message = format!("`sweep.metric` is `{metric}`, which the run in `{}` does not measure", run.display());
    Err(Error::input(message).with_hint(format!("it measures {}", known.join(", "))))
}

/// Parts of `results.json` with the metrics at the end of a run.
const PARTS: [&str; 2] = ["after", "last"];

fn results(run: &Path) -> Result<Value> {
    let path = RunDir::open(run)?.results();
    let text = std::fs::read_to_string(&path).map_err(|source| Error::io(&path, source))?;
    serde_json::from_str(&text).map_err(|error| Error::data(&path, Some(error.line()), error.to_string()))
}

/// Whether a run is finished.
pub fn is_finished(run: &Path) -> bool {
    run.join("results.json").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_point_comes_first_and_one_run_has_no_interval() {
        let point = |name: &str, values: &[f64]| PointResult {
            name: name.into(),
            settings: vec![("train.learning_rate".into(), name.into())],
            values: values.to_vec(),
            runs: 2,
        };
        let points = vec![point("a", &[1.0, 2.0]), point("b", &[]), point("c", &[3.0])];
        let found = SweepResult::of("eval_reward", true, points.clone());
        assert_eq!(found.best().map(|best| best.name.as_str()), Some("c"));
        // Mean 1.5; s = √0.5, s/√2 = 0.5; t = 12.706 for one degree of freedom.
        let rows = found.rows();
        assert_eq!(rows[0], ["train.learning_rate", "eval_reward", "95 %", "runs"]);
        assert_eq!(rows[1], ["c", "3.0000", "", "1/2"]);
        assert_eq!(rows[2], ["a", "1.5000", "± 6.3531", "2/2"]);
        assert_eq!(rows[3], ["b", "–", "", "0/2"]);
        assert_eq!(SweepResult::of("eval_wer", false, points).best().map(|best| best.name.as_str()), Some("a"));
    }

    #[test]
    fn a_key_that_not_all_points_vary_has_a_column_of_its_own() {
        let point = |key: &str, value: f64| PointResult {
            name: key.into(),
            settings: vec![(key.into(), "4".into())],
            values: vec![value],
            runs: 1,
        };
        let found = SweepResult::of("eval_reward", true, vec![point("a", 1.0), point("b", 2.0)]).rows();
        assert_eq!(found[0], ["b", "a", "eval_reward", "95 %", "runs"]);
        assert_eq!(found[1][..2], ["4", ""]);
        assert_eq!(found[2][..2], ["", "4"]);
    }

    #[test]
    fn a_metric_that_a_run_does_not_measure_is_refused_with_those_that_it_does() {
        let run = tempfile::tempdir().expect("a directory");
        let results = r#"{"before": {"a": 1}, "after": {"eval_reward": null}, "last": {"loss": 1.5}}"#;
        std::fs::write(run.path().join("results.json"), results).expect("written");
        for measured in ["eval_reward", "loss"] {
            check_metric(run.path(), measured).expect("it is measured, even if it is no number");
        }
        let error = check_metric(run.path(), "a").expect_err("only before the first step");
        assert_eq!(error.hint(), Some("it measures `eval_reward`, `loss`"));
    }
}
