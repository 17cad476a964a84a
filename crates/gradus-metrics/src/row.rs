//! Rows: the input of metrics.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// One row that a metric measures.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// Prompt of the model; empty if the data have none.
    pub prompt: String,
    /// Text that is measured.
    pub prediction: String,
    /// One or more texts to compare with. Empty for metrics that need none.
    pub references: Vec<String>,
    /// All other columns.
    pub metadata: Map<String, Value>,
}

impl Row {
    /// Creates a row from a prediction and its references, without a prompt or other columns.
    pub fn new<R: Into<String>>(prediction: impl Into<String>, references: impl IntoIterator<Item = R>) -> Self {
        let references = references.into_iter().map(Into::into).collect();
        Self { prediction: prediction.into(), references, ..Self::default() }
    }

    /// Returns the text of a column by its name. The data's `prompt`, `prediction` and `reference` (or `references`) need not be in the
    /// metadata: these names then mean the fields of the row. References have a text if there is exactly one.
    pub fn column_text(&self, name: &str) -> Option<&str> {
        if let Some(value) = self.metadata.get(name) {
            return value.as_str();
        }
        match (name, self.references.as_slice()) {
            ("prompt", _) => Some(self.prompt.as_str()).filter(|prompt| !prompt.is_empty()),
            ("prediction", _) => Some(&self.prediction),
            ("reference" | "references", [only]) => Some(only),
            _ => None,
        }
    }
}

/// A row that a metric cannot measure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {}: {message}", .row + 1)]
pub struct RowError {
    /// Index of the row, from 0.
    pub row: usize,
    /// What was found and what was expected.
    pub message: String,
    /// What the user can do about it.
    pub hint: Option<String>,
    /// Whether the user cancelled the measurement. The row itself is then not at fault.
    pub is_interrupted: bool,
}

impl RowError {
    /// Creates an error about a row, counted from 0.
    pub fn new(row: usize, message: impl Into<String>) -> Self {
        Self { row, message: message.into(), hint: None, is_interrupted: false }
    }

    /// The user cancelled the measurement before this row had a value.
    pub fn interrupted(row: usize) -> Self {
        Self { is_interrupted: true, ..Self::new(row, "interrupted") }
    }

    /// The row has no references, but the metric needs them.
    pub fn without_references(row: usize) -> Self {
        Self::new(row, "no references to compare with (column `references` or `reference`)")
    }
}

/// Number of rows between two progress reports.
const PART: usize = 64;

/// Computes `rewards` chunk by chunk, for metrics that measure each row by itself. Reports to `done` how many rows have a value, and stops if
/// `done` returns false.
pub fn in_parts(
    rows: &[Row],
    done: &mut dyn FnMut(usize) -> bool,
    rewards: impl Fn(&[Row]) -> Result<Vec<f64>, RowError>,
) -> Result<Vec<f64>, RowError> {
    let mut values = Vec::with_capacity(rows.len());
    for part in rows.chunks(PART) {
        let first = values.len();
        values.extend(rewards(part).map_err(|error| RowError { row: first + error.row, ..error })?);
        if !done(values.len()) {
            return Err(RowError::interrupted(first));
        }
    }
    Ok(values)
}

/// Returns the row indices of each prompt, in order of the prompts' first appearance. A row with an empty prompt forms its own group.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Vec<Row> {
        (0..count).map(|i| Row::new(i.to_string(), [""])).collect()
    }

    /// Parses the prediction as a number. Other predictions are errors.
    fn number(rows: &[Row]) -> Result<Vec<f64>, RowError> {
        let number = |(i, row): (usize, &Row)| row.prediction.parse().map_err(|_| RowError::new(i, "no number"));
        rows.iter().enumerate().map(number).collect()
    }

    #[test]
    fn columns_that_became_fields_are_found_by_their_names() {
        let metadata = Map::from_iter([("source".to_owned(), "s".into()), ("id".to_owned(), 3.into())]);
        let row = Row { prompt: "p".into(), metadata, ..Row::new("y", ["r"]) };
        let of = |row: &Row, name: &str| row.column_text(name).map(str::to_owned);
        for (name, expected) in [
            ("source", Some("s")),
            ("id", None),
            ("prompt", Some("p")),
            ("prediction", Some("y")),
            ("reference", Some("r")),
            ("references", Some("r")),
            ("other", None),
        ] {
            assert_eq!(of(&row, name).as_deref(), expected, "{name}");
        }
        let row =
            Row { metadata: Map::from_iter([("reference".to_owned(), "own".into())]), ..Row::new("y", ["a", "b"]) };
        assert_eq!(
            (of(&row, "reference").as_deref(), of(&row, "references"), of(&row, "prompt")),
            (Some("own"), None, None)
        );
    }

    #[test]
    fn parts_have_the_values_of_the_whole_and_are_reported() {
        let (rows, mut reported) = (rows(150), Vec::new());
        let found = in_parts(
            &rows,
            &mut |done| {
                reported.push(done);
                true
            },
            number,
        );
        assert_eq!((found, reported), (number(&rows), vec![64, 128, 150]));
    }

    #[test]
    fn an_error_names_the_row_of_the_whole_and_an_interruption_ends_the_work() {
        let mut rows = rows(150);
        rows[100].prediction = "none".into();
        let error = in_parts(&rows, &mut |_| true, number).expect_err("no number");
        assert_eq!((error.row, error.is_interrupted), (100, false));
        let error = in_parts(&rows, &mut |_| false, number).expect_err("interrupted");
        assert!(error.is_interrupted);
    }
}
