//! Counts the errors, missing facts and preferences of each kind in annotated answers.

use serde::Serialize;

use super::{ErrorKind, MissingKind, PAIRS, Preference};
use crate::data::{Row, RowData};

/// Counts over annotated rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FeedbackCounts {
    /// Error spans of each kind.
    pub errors: Vec<(&'static str, usize)>,
    /// Rows without an error span.
    pub rows_without_errors: usize,
    /// Missing facts of each kind.
    pub missing: Vec<(&'static str, usize)>,
    /// Rows without a missing fact.
    pub rows_without_missing: usize,
    /// Rows whose correction equals the first answer.
    pub rows_uncorrected: usize,
    /// Rows whose correction is empty.
    pub rows_without_answer: usize,
    /// For each pair of answers, numbered from 1: how often the first is better, the second is better, and neither. Empty without
    /// comparisons.
    pub preferences: Vec<([usize; 2], [usize; 3])>,
}

impl FeedbackCounts {
    /// Counts `rows`. Returns `None` if none is annotated.
    pub fn of(rows: &[Row]) -> Option<Self> {
        let annotated =
            || rows.iter().filter_map(|row| if let RowData::Feedback(row) = &row.data { Some(row) } else { None });
        annotated().next()?;
        let errors =
            |kind: ErrorKind| annotated().flat_map(|row| &row.errors).filter(|error| error.kind == kind).count();
        let missing =
            |kind: MissingKind| annotated().flat_map(|row| &row.missing).filter(|missing| missing.kind == kind).count();
        let of_pair = |i: usize| {
            let of_rows = || annotated().filter_map(|row| row.preferences.as_ref());
            let count = |preference: Preference| of_rows().filter(|preferences| preferences[i] == preference).count();
            [count(Preference::First), count(Preference::Second), count(Preference::Equal)]
        };
        Some(Self {
            errors: ErrorKind::NAMES.map(|(kind, name)| (name, errors(kind))).into(),
            rows_without_errors: annotated().filter(|row| row.errors.is_empty()).count(),
            missing: MissingKind::NAMES.map(|(kind, name)| (name, missing(kind))).into(),
            rows_without_missing: annotated().filter(|row| row.missing.is_empty()).count(),
            rows_uncorrected: annotated().filter(|row| row.corrected == row.answers[0]).count(),
            rows_without_answer: annotated().filter(|row| row.corrected.trim().is_empty()).count(),
            preferences: match annotated().any(|row| row.preferences.is_some()) {
                true => (0..PAIRS.len()).map(|i| ([PAIRS[i].0 + 1, PAIRS[i].1 + 1], of_pair(i))).collect(),
                false => Vec::new(),
            },
        })
    }
}
