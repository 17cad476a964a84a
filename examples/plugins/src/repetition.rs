//! A metric: how often a completion says a word again.

use std::collections::BTreeSet;

use gradus::metric::{Measure, Metric, Row, RowError};
use schemars::JsonSchema;
use serde::Deserialize;

/// The share of words that stood there before; 0 where none did.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Repetition {
    /// Whether `The` and `the` are one word.
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
        // The value of all rows is the mean of the rows' values; intervals come of themselves.
        Ok(vec![Measure::mean("", &scores)])
    }
}
