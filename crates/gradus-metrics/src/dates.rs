//! Does a text contain a date? RL4LMs' synthetic task.

use std::sync::LazyLock;

use rayon::prelude::*;
use regex::Regex;

use crate::{Measure, Metric, Row, RowError};

static DATE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\d{4}-\d{2}-\d{2}").expect("a pattern"));

/// Scores 1 if the prediction contains `dddd-dd-dd` anywhere, even within longer numbers, and 0 otherwise.
#[derive(Debug, Clone, Copy)]
pub struct Dates;

impl Metric for Dates {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let has_date = |row: &Row| f64::from(u8::from(DATE.is_match(&row.prediction)));
        Ok(vec![Measure::mean("", &rows.par_iter().map(has_date).collect::<Vec<_>>())])
    }
}
