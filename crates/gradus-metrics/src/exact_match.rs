//! Exact match by SQuAD's rules.
//!
//! Rajpurkar et al. 2016, <https://aclanthology.org/D16-1264>. Checked against `squad` of torchmetrics 1.9; the value is from
//! 0 to 1 where that gives percent.

use crate::references::each;
use crate::{Measure, Metric, Row, RowError, answer};

/// 1 where the prediction is one of the references, but for case, punctuation, articles and blanks; else 0.
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
