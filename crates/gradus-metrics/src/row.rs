//! What metrics see of the data.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// What a metric sees of one row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// What the model was given; empty where the data do not say.
    pub prompt: String,
    /// What is measured.
    pub prediction: String,
    /// What it is compared with, one text or several; none where the metric needs none.
    pub references: Vec<String>,
    /// Every other column.
    pub metadata: Map<String, Value>,
}

impl Row {
    /// A prediction and its references, without a prompt or other columns.
    pub fn new<R: Into<String>>(prediction: impl Into<String>, references: impl IntoIterator<Item = R>) -> Self {
        let references = references.into_iter().map(Into::into).collect();
        Self { prediction: prediction.into(), references, ..Self::default() }
    }
}

/// A row that a metric cannot measure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {}: {message}", .row + 1)]
pub struct RowError {
    /// The row, from 0.
    pub row: usize,
    /// What was found and what was expected.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether the user stopped the measurement; the row is then not wrong. Only metrics that wait for something else set it: a program,
    /// a service.
    pub is_interrupted: bool,
}

impl RowError {
    /// What is wrong with the row, counted from 0.
    pub fn new(row: usize, message: impl Into<String>) -> Self {
        Self { row, message: message.into(), hint: None, is_interrupted: false }
    }

    /// The row has no references, but the metric compares with them.
    pub fn without_references(row: usize) -> Self {
        Self::new(row, "no references to compare with (column `references` or `reference`)")
    }
}

/// The indices of the rows of each prompt, in the order in which prompts first come. Rows with an empty prompt stand alone.
pub fn by_prompt(rows: &[Row]) -> Vec<Vec<usize>> {
    let (mut groups, mut places): (Vec<Vec<usize>>, HashMap<&str, usize>) = Default::default();
    for (i, row) in rows.iter().enumerate() {
        let place = match row.prompt.as_str() {
            "" => groups.len(),
            prompt => *places.entry(prompt).or_insert(groups.len()),
        };
        match groups.get_mut(place) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups
}
