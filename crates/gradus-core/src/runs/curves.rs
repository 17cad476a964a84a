//! Curves of a run as data, for charts in a terminal.

use std::path::Path;

use super::entry::read_results;
use crate::error::Result;
use crate::run::metrics::{Metrics, MetricsRow, read_metrics};
use crate::run::smoothing::{HEADROOM, smoothed_curve, stretch, thinned};

/// Values over steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name of the metric.
    pub key: String,
    /// Step and value; only finite values.
    pub points: Vec<(f64, f64)>,
}

/// Returns the logged rows of the run at `path`, preceded by the metrics of the start as step 0. Empty for a run without rows.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io), or [`Error::Data`](crate::Error::Data) for a corrupt line.
pub fn history(path: &Path) -> Result<Vec<MetricsRow>> {
    let metrics = path.join("metrics.jsonl");
    let mut rows = if metrics.is_file() { read_metrics(&metrics)? } else { Vec::new() };
    let results = read_results(path).ok().flatten().unwrap_or_default();
    let before = results.get("before").and_then(serde_json::Value::as_object).into_iter().flatten();
    let values: Metrics = before.filter_map(|(key, value)| Some((key.clone(), value.as_f64()?))).collect();
    // Runs of an earlier version have these metrics only there.
    if !values.is_empty() && rows.first().is_none_or(|row| row.step > 0) {
        rows.insert(0, MetricsRow { step: 0, values });
    }
    Ok(rows)
}

/// Returns the metrics of some rows: the most important ones, then the others in the order of the file, then counters.
pub fn metric_keys(rows: &[MetricsRow]) -> Vec<String> {
    const FIRST: [&str; 12] = [
        "eval_reward",
        "reward",
        "objective/scores",
        "eval_rewards/accuracies",
        "rewards/accuracies",
        "eval_accuracy",
        "accuracy",
        "eval_loss",
        "loss",
        "eval_kl",
        "objective/kl",
        "kl",
    ];
    const LAST: [&str; 5] = ["learning_rate", "tokens_per_s", "epoch", "num_tokens", "num_examples"];
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in rows.iter().flat_map(|row| row.values.iter()) {
        if !keys.iter().any(|known| known == key) {
            keys.push(key.to_owned());
        }
    }
    let rank = |key: &str| match FIRST.iter().position(|first| *first == key) {
        Some(place) => place,
        None if LAST.contains(&key) => FIRST.len() + 2,
        None => FIRST.len() + usize::from(key.starts_with("eval_")),
    };
    keys.sort_by_key(|key| rank(key));
    keys
}

/// Returns the curve of one metric.
pub fn series(rows: &[MetricsRow], key: &str) -> Series {
    let point = |row: &MetricsRow| Some((row.step as f64, row.values.get(key).filter(|value| value.is_finite())?));
    Series { key: key.to_owned(), points: rows.iter().filter_map(point).collect() }
}

impl Series {
    /// Smooths the curve to remove the noise of single batches, as in the charts of a run.
    #[must_use]
    pub fn smoothed(&self) -> Self {
        Self { key: self.key.clone(), points: smoothed_curve(&self.points) }
    }

    /// Reduces the curve to at most `count` points, each the mean of a slice, to fit the columns of a screen.
    #[must_use]
    pub fn thinned(&self, count: usize) -> Self {
        Self { key: self.key.clone(), points: thinned(&self.points, count) }
    }

    /// Last value.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|point| point.1)
    }

    /// Smallest and largest value.
    pub fn range(&self) -> Option<(f64, f64)> {
        let first = self.points.first()?.1;
        let widen = |(low, high): (f64, f64), point: &(f64, f64)| (low.min(point.1), high.max(point.1));
        Some(self.points.iter().fold((first, first), widen))
    }
}

/// Draws a curve in one line of at most `width` block characters, each for the mean of a slice.
pub fn sparkline(points: &[(f64, f64)], width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let count = points.len().min(width);
    if count == 0 {
        return String::new();
    }
    let mean = |index: usize| {
        let stretch = stretch(points, index, count);
        stretch.iter().map(|point| point.1 * HEADROOM).sum::<f64>() / stretch.len() as f64
    };
    let means: Vec<f64> = (0..count).map(mean).collect();
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let block = |value: f64| {
        let share = if high > low { (value - low) / (high - low) } else { 0.5 };
        BLOCKS[((share * 8.0) as usize).min(7)]
    };
    means.into_iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[(&str, f64)]) -> Vec<MetricsRow> {
        (1..=3)
            .map(|step| MetricsRow {
                step,
                values: values.iter().map(|(key, value)| (*key, value * step as f64)).collect(),
            })
            .collect()
    }

    #[test]
    fn what_matters_comes_first() {
        let rows = rows(&[("epoch", 1.0), ("loss", 2.0), ("grad_norm", 3.0), ("eval_reward", f64::NAN)]);
        assert_eq!(metric_keys(&rows), ["eval_reward", "loss", "grad_norm", "epoch"]);
        assert_eq!(series(&rows, "loss").points, [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]);
        assert_eq!(series(&rows, "loss").range(), Some((2.0, 6.0)));
        assert_eq!((series(&rows, "eval_reward").last(), series(&rows, "none").range()), (None, None));
    }

    #[test]
    fn long_curves_are_thinned_to_means() {
        let points = (0..10).map(|i| (f64::from(i), f64::from(i * i))).collect();
        let series = Series { key: "loss".into(), points };
        assert_eq!(series.thinned(10), series);
        let thin = series.thinned(3).points;
        assert_eq!(thin, [(1.0, 5.0 / 3.0), (4.0, 50.0 / 3.0), (7.5, 230.0 / 4.0)]);
    }

    #[test]
    fn a_sparkline_spans_its_range() {
        let points = |values: &[f64]| values.iter().enumerate().map(|(i, &v)| (i as f64, v)).collect::<Vec<_>>();
        assert_eq!(sparkline(&points(&[0.0, 1.0, 2.0, 3.0]), 10), "▁▃▆█");
        assert_eq!(sparkline(&points(&[0.0, 2.0, 6.0, 8.0]), 2), "▁█", "means of two");
        assert_eq!(sparkline(&points(&[5.0, 5.0]), 10), "▅▅");
        assert_eq!(sparkline(&points(&[-1.7e308, 0.0, 1.7e308]), 10), "▁▅█", "the range is infinite");
        assert_eq!(sparkline(&points(&[1.7e308, 1.7e308, -1.7e308, -1.7e308]), 2), "█▁", "the sums are infinite");
        assert_eq!(sparkline(&[], 10), "");
    }
}
