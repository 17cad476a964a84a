//! Exact match by SQuAD's rules.
//!
//! Rajpurkar et al. 2016, <https://aclanthology.org/D16-1264>. Checked against `squad` of torchmetrics 1.9, which reports percent; the
//! value here is from 0 to 1.

use crate::references::each;
use crate::{Measure, Metric, Row, RowError, answer};

/// Scores 1 if the prediction equals a reference apart from case, punctuation, articles and whitespace, and 0 otherwise.
#[derive(Debug, Clone, Copy)]
pub struct ExactMatch;

impl Metric for ExactMatch {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let scores = each(rows, |row, references| {
            let prediction = answer::words(&row.prediction);
            f64::from(u8::from(references.iter().any(|reference| answer::words(reference) == prediction)))
        })?;
        Ok(vec![Measure::mean("", &scores)])
    }
}
