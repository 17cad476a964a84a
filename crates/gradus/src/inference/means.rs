//! Means over rows, with their standard errors.

use serde_json::{Map, Value};

use crate::math::stats::ratio_error;
use crate::run::Metrics;

/// Named means. Each row has a sum and a weight (its tokens, or 1).
#[derive(Debug, Default)]
pub(super) struct Means(Vec<(&'static str, Vec<(f64, f64)>)>);

impl Means {
    /// Adds a row of `weight` observations with this `sum`.
    pub fn add_row(&mut self, name: &'static str, sum: f64, weight: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, rows)) => rows.push((sum, weight)),
            None => self.0.push((name, vec![(sum, weight)])),
        }
    }

    /// Adds a row of values.
    pub fn add_values(&mut self, name: &'static str, values: &[f32]) {
        self.add_row(name, values.iter().map(|&value| f64::from(value)).sum(), values.len() as f64);
    }

    /// Returns the means of all names with a positive total weight.
    pub fn metrics(&self) -> Metrics {
        let mean = |(name, rows): &(&str, Vec<(f64, f64)>)| {
            let (sum, weight) = rows.iter().fold((0.0, 0.0), |(s, w), (sum, weight)| (s + sum, w + weight));
            (weight > 0.0).then(|| ((*name).to_owned(), sum / weight))
        };
        self.0.iter().filter_map(mean).collect()
    }

    /// Returns their standard errors, for names with at least two rows.
    pub fn errors(&self) -> Map<String, Value> {
        let error = |(name, rows): &(&str, Vec<(f64, f64)>)| Some(((*name).to_owned(), ratio_error(rows)?.into()));
        self.0.iter().filter_map(error).collect()
    }
}
