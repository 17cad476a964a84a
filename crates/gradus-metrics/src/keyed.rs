//! What tells the rows of a corpus apart.

use serde::{Deserialize, Serialize};

use crate::{Measure, Row, RowError};

/// What tells rows apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeyedBy {
    /// Each row is one of its own.
    #[default]
    Row,
    /// Rows of one prompt are one: the last of them is measured, and its score is that of all (RL4LMs' code).
    Prompt,
}

impl KeyedBy {
    /// The mean of the scores that `score` gives to the rows that are told apart, each row with the score of its key.
    ///
    /// # Errors
    /// Those of `score`, with the number of the row among all rows.
    pub fn measure(
        self,
        rows: &[Row],
        score: impl FnOnce(&[Row]) -> Result<Vec<Option<f64>>, RowError>,
    ) -> Result<Vec<Measure>, RowError> {
        if self == Self::Row {
            return Ok(vec![Measure::mean_of_some("", &score(rows)?)]);
        }
        // The prompts in the order in which they first appear, each with the last of its rows.
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
