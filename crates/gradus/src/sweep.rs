//! `gradus sweep`: what came of many runs, point by point over seeds.

use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::math::stats::mean_interval;
use crate::run::RunDir;
use crate::run::metrics::{number, smaller_is_better};

/// One point of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// The keys that are varied, with their values.
    pub settings: Vec<(String, String)>,
    /// The metric at the end of each finished run.
    pub values: Vec<f64>,
    /// How many runs it has, finished or not.
    pub runs: usize,
}

/// All points of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcomes {
    /// The metric.
    pub metric: String,
    /// The points, best first; what has no value comes last.
    pub points: Vec<Outcome>,
}

impl Outcome {
    /// The mean over seeds, and how far it may be off (95 %, by Student's distribution); one run says nothing of that.
    pub fn mean(&self) -> Option<(f64, Option<f64>)> {
        mean_interval(&self.values)
    }
}

impl Outcomes {
    /// Puts the best first.
    pub fn of(metric: &str, mut points: Vec<Outcome>) -> Self {
        let sign = if smaller_is_better(metric) { 1.0 } else { -1.0 };
        let rank = |point: &Outcome| point.mean().map_or(f64::INFINITY, |(mean, _)| sign * mean);
        points.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
        Self { metric: metric.to_owned(), points }
    }

    /// The best point, where any has a value.
    pub fn best(&self) -> Option<&Outcome> {
        self.points.first().filter(|point| !point.values.is_empty())
    }

    /// A row a point: its settings, the mean with its interval, and how many runs are finished.
    pub fn rows(&self) -> Vec<Vec<String>> {
        if self.points.is_empty() {
            return Vec::new();
        }
        // Points of a grid and points drawn at random need not vary the same keys.
        let mut keys: Vec<&String> = Vec::new();
        for (key, _) in self.points.iter().flat_map(|point| &point.settings) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut head: Vec<String> = keys.iter().map(|key| (*key).clone()).collect();
        head.extend([self.metric.clone(), "95 %".into(), "runs".into()]);
        let row = |point: &Outcome| {
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

    /// What `sweep.json` holds.
    pub fn to_json(&self) -> Value {
        let point = |point: &Outcome| {
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

/// The value of `metric` at the end of a finished run; `None` where it is not finished or has none.
///
/// # Errors
/// Results that cannot be read.
pub fn value(run: &Path, metric: &str) -> Result<Option<f64>> {
    if !is_finished(run) {
        return Ok(None);
    }
    let path = RunDir::open(run)?.results();
    let text = std::fs::read_to_string(&path).map_err(|source| Error::io(&path, source))?;
    let results: Value =
        serde_json::from_str(&text).map_err(|error| Error::data(&path, Some(error.line()), error.to_string()))?;
    Ok(["after", "last"].iter().find_map(|part| results[part][metric].as_f64()))
}

/// Whether a run has come to its end.
pub fn is_finished(run: &Path) -> bool {
    run.join("results.json").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_point_comes_first_and_one_run_has_no_interval() {
        let point = |name: &str, values: &[f64]| Outcome {
            name: name.into(),
            settings: vec![("train.learning_rate".into(), name.into())],
            values: values.to_vec(),
            runs: 2,
        };
        let points = vec![point("a", &[1.0, 2.0]), point("b", &[]), point("c", &[3.0])];
        let found = Outcomes::of("eval_reward", points.clone());
        assert_eq!(found.best().map(|best| best.name.as_str()), Some("c"));
        // Mean 1.5; s = √0.5, s/√2 = 0.5, t of one degree of freedom 12.706.
        let rows = found.rows();
        assert_eq!(rows[0], ["train.learning_rate", "eval_reward", "95 %", "runs"]);
        assert_eq!(rows[1], ["c", "3.0000", "", "1/2"]);
        assert_eq!(rows[2], ["a", "1.5000", "± 6.3531", "2/2"]);
        assert_eq!(rows[3], ["b", "–", "", "0/2"]);
        assert_eq!(Outcomes::of("eval_loss", points).best().map(|best| best.name.as_str()), Some("a"));
    }

    #[test]
    fn a_key_that_not_all_points_vary_has_a_column_of_its_own() {
        let point = |key: &str, value: f64| Outcome {
            name: key.into(),
            settings: vec![(key.into(), "4".into())],
            values: vec![value],
            runs: 1,
        };
        let found = Outcomes::of("eval_reward", vec![point("a", 1.0), point("b", 2.0)]).rows();
        assert_eq!(found[0], ["b", "a", "eval_reward", "95 %", "runs"]);
        assert_eq!(found[1][..2], ["4", ""]);
        assert_eq!(found[2][..2], ["", "4"]);
    }
}
