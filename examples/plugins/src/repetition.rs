//! A metric of how often a completion repeats words.

use std::collections::BTreeSet;

use gradus::metric::{Measure, Metric, Row, RowError};
use schemars::JsonSchema;
use serde::Deserialize;

/// Share of words that occurred before in the completion; 0 for an empty completion.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Repetition {
    /// Treat `The` and `the` as one word.
    #[serde(default)]
    pub lowercase: bool,
}

impl Metric for Repetition {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let share = |row: &Row| {
            let text = if self.lowercase { row.prediction.to_lowercase() } else { row.prediction.clone() };
            let words: Vec<&str> = text.split_whitespace().collect();
            let different: BTreeSet<&str> = words.iter().copied().collect();
            1.0 - different.len() as f64 / words.len().max(1) as f64
        };
        let scores: Vec<f64> =
            rows.iter().map(|row| if row.prediction.trim().is_empty() { 0.0 } else { share(row) }).collect();
        // The corpus value is the mean of the rows' values; confidence intervals are added automatically.
        Ok(vec![Measure::mean("", &scores)])
    }
}
