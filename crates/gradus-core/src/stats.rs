//! Metrics collected over micro-batches and steps until they are logged.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::run::Metrics;

/// A mean to which more values can be added.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    /// Sum of the values.
    pub sum: f64,
    /// Number of values.
    pub count: usize,
}

impl Mean {
    /// Creates the mean of `values`.
    pub fn of(values: &[f64]) -> Self {
        Self { sum: values.iter().sum(), count: values.len() }
    }

    /// Returns the sum divided by the count; NaN without values.
    pub fn value(self) -> f64 {
        self.sum / self.count as f64
    }
}

/// Report of one training step: an optimizer step over fixed examples, or one iteration of sampling and updates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepReport {
    /// Number of tokens that went through the model.
    pub tokens: usize,
    /// KL(policy ‖ reference) of completions in nats; `None` without a reference.
    pub kl: Option<Mean>,
    /// Logged metrics.
    pub metrics: Stats,
}

/// How the values of one name are combined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Gathered {
    /// Σ value · weight and Σ weight.
    Mean(f64, f64),
    Min(f64),
    Max(f64),
    /// The latest value.
    Last(f64),
    /// The sum since the last log.
    Sum(f64),
}

/// Values by name, in order of first appearance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    entries: Vec<(String, Gathered)>,
}

impl Stats {
    /// Adds `weight` observations whose values sum to `sum`; logs their mean. Nothing is logged while all weights are
    /// 0.
    pub fn mean(&mut self, name: &str, sum: f64, weight: f64) {
        self.add(name, Gathered::Mean(sum, weight));
    }

    /// Adds individual observations; logs their mean.
    pub fn mean_of(&mut self, name: &str, values: &[f32]) {
        self.mean(name, values.iter().map(|&x| f64::from(x)).sum(), values.len() as f64);
    }

    /// Adds a value; logs the smallest.
    pub fn min(&mut self, name: &str, value: f64) {
        self.add(name, Gathered::Min(value));
    }

    /// Adds a value; logs the largest.
    pub fn max(&mut self, name: &str, value: f64) {
        self.add(name, Gathered::Max(value));
    }

    /// Adds a value; logs the latest.
    pub fn last(&mut self, name: &str, value: f64) {
        self.add(name, Gathered::Last(value));
    }

    /// Adds a value; logs the sum.
    pub fn sum(&mut self, name: &str, value: f64) {
        self.add(name, Gathered::Sum(value));
    }

    /// Adds all values of `other`, which count as later than those of `self`.
    pub fn merge(&mut self, other: &Stats) {
        for (name, gathered) in &other.entries {
            self.add(name, *gathered);
        }
    }

    /// Whether `name` has values, also if their weights are 0.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(entry, _)| entry == name)
    }

    /// Returns the first name that `other` has, too.
    pub fn shared_name(&self, other: &Stats) -> Option<&str> {
        self.entries.iter().map(|(name, _)| name.as_str()).find(|name| other.has(name))
    }

    /// Returns the number logged under `name`.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.entries.iter().find(|(entry, _)| entry == name).and_then(|(_, gathered)| number(*gathered))
    }

    /// Returns the logged metrics, with `prefix` before each name.
    pub fn metrics(&self, prefix: &str) -> Metrics {
        let named =
            |(name, gathered): &(String, Gathered)| number(*gathered).map(|value| (format!("{prefix}{name}"), value));
        self.entries.iter().filter_map(named).collect()
    }

    /// Returns the names that have no number, because all weights are 0, with `prefix` before each.
    pub fn undefined(&self, prefix: &str) -> Vec<String> {
        let undefined = self.entries.iter().filter(|(_, gathered)| number(*gathered).is_none());
        undefined.map(|(name, _)| format!("{prefix}{name}")).collect()
    }

    /// Removes the values of `name` and returns their number.
    pub fn take(&mut self, name: &str) -> Option<f64> {
        let found = self.value(name);
        self.entries.retain(|(entry, _)| entry != name);
        found
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Serializes the values exactly and in order, for checkpoints. `{"loss": {"mean": [sum, weight]}, …}`
    pub fn to_json(&self) -> Map<String, Value> {
        let entry = |(name, gathered): &(String, Gathered)| {
            let (kind, values) = match *gathered {
                Gathered::Mean(sum, weight) => ("mean", vec![sum, weight]),
                Gathered::Min(x) => ("min", vec![x]),
                Gathered::Max(x) => ("max", vec![x]),
                Gathered::Last(x) => ("last", vec![x]),
                Gathered::Sum(x) => ("sum", vec![x]),
            };
            (name.clone(), json!({ kind: values.into_iter().map(exact).collect::<Vec<_>>() }))
        };
        self.entries.iter().map(entry).collect()
    }

    /// Parses the output of [`to_json`](Self::to_json); returns `None` for anything else.
    pub fn from_json(object: &Map<String, Value>) -> Option<Self> {
        let entry = |(name, value): (&String, &Value)| {
            let (kind, values) = value.as_object()?.iter().next()?;
            let values = values.as_array()?.iter().map(read_exact).collect::<Option<Vec<f64>>>()?;
            let gathered = match (kind.as_str(), values.as_slice()) {
                ("mean", &[sum, weight]) => Gathered::Mean(sum, weight),
                ("min", &[x]) => Gathered::Min(x),
                ("max", &[x]) => Gathered::Max(x),
                ("last", &[x]) => Gathered::Last(x),
                ("sum", &[x]) => Gathered::Sum(x),
                _ => return None,
            };
            Some((name.clone(), gathered))
        };
        Some(Self { entries: object.iter().map(entry).collect::<Option<_>>()? })
    }

    fn add(&mut self, name: &str, new: Gathered) {
        let Some((_, old)) = self.entries.iter_mut().find(|(entry, _)| entry == name) else {
            self.entries.push((name.to_owned(), new));
            return;
        };
        *old = match (*old, new) {
            (Gathered::Mean(sum, weight), Gathered::Mean(s, w)) => Gathered::Mean(sum + s, weight + w),
            (Gathered::Min(a), Gathered::Min(b)) => Gathered::Min(a.min(b)),
            (Gathered::Max(a), Gathered::Max(b)) => Gathered::Max(a.max(b)),
            (Gathered::Sum(a), Gathered::Sum(b)) => Gathered::Sum(a + b),
            (_, new) => new,
        };
    }
}

/// Serializes a number exactly; values that JSON cannot represent become strings.
fn exact(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

fn read_exact(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn number(gathered: Gathered) -> Option<f64> {
    match gathered {
        Gathered::Mean(_, 0.0) => None,
        Gathered::Mean(sum, weight) => Some(sum / weight),
        Gathered::Min(x) | Gathered::Max(x) | Gathered::Last(x) | Gathered::Sum(x) => Some(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_gather_by_kind_and_keep_their_order() {
        let (mut first, mut second) = (Stats::default(), Stats::default());
        first.mean("b", 6.0, 3.0);
        first.min("a", 2.0);
        first.sum("n", 5.0);
        second.mean("b", 4.0, 1.0);
        second.min("a", -1.0);
        second.sum("n", 7.0);
        second.mean("never", 0.0, 0.0);
        first.merge(&second);
        let found: Vec<(String, f64)> =
            first.metrics("eval_").iter().map(|(key, value)| (key.to_owned(), value)).collect();
        assert_eq!(found, [("eval_b".to_owned(), 2.5), ("eval_a".to_owned(), -1.0), ("eval_n".to_owned(), 12.0)]);
        assert_eq!(first.value("b"), Some(2.5));
        assert_eq!(first.undefined("eval_"), ["eval_never"]);
        second = Stats::default();
        second.mean("never", 0.0, 0.0);
        assert_eq!((second.shared_name(&first), Stats::default().shared_name(&first)), (Some("never"), None));
    }

    #[test]
    fn what_was_gathered_survives_a_checkpoint() {
        let mut stats = Stats::default();
        stats.mean("z", 1.0 / 3.0, 3.0);
        stats.min("a", f64::NEG_INFINITY);
        stats.max("m", f64::NAN);
        stats.last("l", 1e-300);
        stats.sum("n", -0.0);
        let text = Value::Object(stats.to_json()).to_string();
        let Value::Object(object) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        let back = Stats::from_json(&object).unwrap();
        // NaN differs from itself.
        assert_eq!(format!("{back:?}"), format!("{stats:?}"));
        assert_eq!(Stats::from_json(&Map::from_iter([("a".to_owned(), json!({ "mean": [1.0] }))])), None);
    }
}
