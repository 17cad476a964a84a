//! Rows as a prompt and a reference answer, for methods that sample their own completions.

use super::row::{Row, RowData};
use super::unpaired::split;
use crate::Result;

/// Returns the rows in prompt form. A conversation is split in front of its last answer.
///
/// # Errors
/// At the first row without a prompt.
pub fn with_prompt_split(rows: &[Row]) -> Result<Vec<Row>> {
    let with_prompt = |row: &Row| {
        let data = match &row.data {
            RowData::Messages(messages) => {
                let (prompt, completion) = split(messages.clone()).map_err(|message| row.location.error(message))?;
                RowData::PromptCompletion { prompt, completion }
            }
            RowData::Text(_) => {
                let message = "the row is a text without a prompt, so no completion can be sampled";
                let hint = "give `prompt` and `completion`, or `messages` that end with the assistant's";
                return Err(row.location.error(message).with_hint(hint));
            }
            data => data.clone(),
        };
        Ok(Row { data, ..row.clone() })
    };
    rows.iter().map(with_prompt).collect()
}
