//! The key that identifies the rows of a corpus.

use serde::{Deserialize, Serialize};

use crate::{Measure, Row, RowError};

/// Key that identifies rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeyedBy {
    /// Each row counts by itself.
    #[default]
    Row,
    /// Rows with the same prompt count as one: the last of them is measured, and all of them get its score (as in RL4LMs' code).
    Prompt,
}

impl KeyedBy {
    /// Returns the mean of the scores that `score` gives to the distinct rows. Each row gets the score of its key.
    ///
    /// # Errors
    /// Errors of `score`, with row numbers that refer to all rows.
    pub fn measure(
        self,
        rows: &[Row],
        score: impl FnOnce(&[Row]) -> Result<Vec<Option<f64>>, RowError>,
    ) -> Result<Vec<Measure>, RowError> {
        if self == Self::Row {
            return Ok(vec![Measure::mean_of_some("", &score(rows)?)]);
        }
        // The distinct prompts in order of first appearance, each with its last row.
        let mut last: Vec<usize> = Vec::new();
        let mut places = std::collections::HashMap::new();
        let of_row: Vec<usize> = rows
            .iter()
            .enumerate()
            .map(|(i, row)| {
                let place = *places.entry(row.prompt.as_str()).or_insert(last.len());
                if place == last.len() {
                    last.push(i)
                } else {
                    last[place] = i
                }
                place
            })
            .collect();
        let kept: Vec<Row> = last.iter().map(|&i| rows[i].clone()).collect();
        let scores = score(&kept).map_err(|error| RowError { row: last[error.row], ..error })?;
        let value = Measure::mean_of_some("", &scores).value();
        let of_rows = of_row.into_iter().map(|place| scores[place].unwrap_or(f64::NAN)).collect();
        Ok(vec![Measure::beside_rows("", value, of_rows)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_prompt_have_the_score_of_the_last() {
        let row = |prompt: &str, prediction: &str| Row {
            prompt: prompt.into(),
            prediction: prediction.into(),
            ..Row::default()
        };
        let rows = [row("a", "1"), row("b", "2"), row("a", "6")];
        let number = |rows: &[Row]| Ok(rows.iter().map(|row| row.prediction.parse().ok()).collect());
        let found = &KeyedBy::Prompt.measure(&rows, number).expect("scores")[0];
        assert_eq!((found.value(), found.row_values()), (4.0, Some(vec![6.0, 2.0, 6.0])));
        let found = &KeyedBy::Row.measure(&rows, number).expect("scores")[0];
        assert_eq!((found.value(), found.row_values()), (3.0, Some(vec![1.0, 2.0, 6.0])));
        let error = KeyedBy::Prompt.measure(&rows, |_| Err(RowError::new(0, "bad"))).expect_err("the first prompt");
        assert_eq!(error.row, 2);
    }
}
