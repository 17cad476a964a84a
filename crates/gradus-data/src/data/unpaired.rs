//! Completions marked as desirable or undesirable: recognizes their columns, and splits pairs into them.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::implicit::{ImplicitPrompt, split_shared_prompt};
use super::message::{Message, kind_name};
use super::options::{LoadOptions, Need};
use super::row::{Content, Row, RowData};
use crate::Result;
use crate::error::excerpt;

/// Returns whether the columns are a prompt with a completion and a boolean label. A conversation with a label counts only if the
/// rows are read for this purpose.
pub(super) fn fits(columns: &Map<String, Value>, need: Need) -> bool {
    let has = |name: &str| columns.contains_key(name);
    let has_completion = (has("prompt") && has("completion")) || (has("messages") && need == Need::Unpaired);
    has_completion && columns.get("label").is_some_and(|value| label("label", value).is_ok())
}

/// Returns whether a completion is the last message of `messages`. `prompt` with `completion` takes precedence, as in TRL.
pub(super) fn is_conversation(columns: &Map<String, Value>) -> bool {
    columns.contains_key("messages") && !(columns.contains_key("prompt") && columns.contains_key("completion"))
}

/// Returns the columns that a completion with a label is read from.
pub(super) fn columns_read(columns: &Map<String, Value>) -> Vec<&'static str> {
    if is_conversation(columns) { vec!["messages", "label"] } else { vec!["prompt", "completion", "label"] }
}

/// Returns the file's name of the column `label`, which may be renamed.
pub(super) fn label_column(options: &LoadOptions) -> &str {
    let renamed = options.rename.iter().rev().find(|(_, to)| to == "label");
    renamed.map_or("label", |(from, _)| from.as_str())
}

/// Parses a boolean label: a boolean, 0 or 1, or its text. `column` is the file's name of its column.
///
/// # Errors
/// If the value is neither true nor false.
pub(super) fn label(column: &str, value: &Value) -> Result<bool, String> {
    let found = match value {
        Value::Bool(label) => Some(*label),
        Value::Number(number) => match number.as_f64() {
            Some(1.0) => Some(true),
            Some(0.0) => Some(false),
            _ => None,
        },
        // Cells of CSV files.
        Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    };
    let shown = match value {
        Value::String(_) | Value::Number(_) => format!("`{}`", excerpt(&value.to_string(), 60)),
        other => kind_name(other).to_owned(),
    };
    found.ok_or_else(|| format!("column `{column}` is {shown}, expected `true` (a desirable completion) or `false`"))
}

/// Returns what is wrong with the label of each row, if other rows have a good one. The first row decides how a file is read. A wrong label
/// there makes every label a column like any other, so reading reports none.
pub(super) fn wrong_labels(rows: &[Row]) -> Vec<Option<String>> {
    let parsed = |row: &Row| match row.data {
        RowData::PromptCompletion { .. } => row.columns.get("label").map(|value| label("label", value)),
        _ => None,
    };
    let labels: Vec<Option<Result<bool, String>>> = rows.iter().map(parsed).collect();
    let is_for_labels = labels.iter().flatten().any(|label| label.is_ok());
    labels.into_iter().map(|label| label?.err().filter(|_| is_for_labels)).collect()
}

/// Splits a conversation into its last message and the messages before it.
///
/// # Errors
/// If the last message is not the assistant's, or is the only message.
pub(super) fn split(mut messages: Vec<Message>) -> Result<(Content, Content), String> {
    let last = messages.pop().filter(|last| last.role == "assistant" && !messages.is_empty());
    let last = last.ok_or("column `messages` does not end with an answer of the assistant, which `label` is about")?;
    Ok((Content::Messages(messages), Content::Messages(vec![last])))
}

/// Number of pairs that are split together: first their chosen sides, then their rejected ones (as in TRL). The two sides of a pair
/// are then not adjacent in the data set.
const CHUNK_ROWS: usize = 1000;

/// Returns rows with one completion each. A pair becomes two rows: the chosen one is desirable, the rejected one undesirable.
///
/// # Errors
/// If the two sides of a pair do not share a prompt.
pub fn unpaired(rows: &[Row], rule: ImplicitPrompt) -> Result<Cow<'_, [Row]>> {
    if !rows.iter().any(|row| matches!(row.data, RowData::Preference { .. })) {
        return Ok(Cow::Borrowed(rows));
    }
    let mut unpaired_rows = Vec::with_capacity(2 * rows.len());
    for chunk in rows.chunks(CHUNK_ROWS) {
        let mut second = Vec::with_capacity(chunk.len());
        for row in chunk {
            let RowData::Preference { prompt, chosen, rejected, .. } = &row.data else {
                unpaired_rows.push(row.clone());
                continue;
            };
            let (prompt, chosen, rejected) = match prompt {
                Some(prompt) => (prompt.clone(), chosen.clone(), rejected.clone()),
                None => split_shared_prompt(chosen, rejected, rule).map_err(|message| row.location.error(message))?,
            };
            let side = |prompt, completion, is_desirable| Row {
                data: RowData::Unpaired { prompt, completion, is_desirable },
                ..row.clone()
            };
            unpaired_rows.push(side(prompt.clone(), chosen, true));
            second.push(side(prompt, rejected, false));
        }
        unpaired_rows.append(&mut second);
    }
    Ok(Cow::Owned(unpaired_rows))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use serde_json::json;

    use super::super::RowLocation;
    use super::*;

    #[test]
    fn labels_say_yes_or_no() {
        for (value, expected) in [
            (json!(true), Some(true)),
            (json!(0), Some(false)),
            (json!(1.0), Some(true)),
            (json!(" False"), Some(false)),
            (json!("1"), Some(true)),
            (json!("spam"), None),
            (json!(2), None),
            (json!(null), None),
        ] {
            assert_eq!(label("label", &value).ok(), expected, "{value}");
        }
        let error = label("good", &json!("spam")).unwrap_err();
        assert_eq!(error, "column `good` is `\"spam\"`, expected `true` (a desirable completion) or `false`");
    }

    #[test]
    fn pairs_become_all_chosen_then_all_rejected() {
        let text = |text: &str| Content::Text(text.into());
        let row = |index: usize, data| Row {
            location: RowLocation::new(&Arc::from(Path::new("rows.jsonl")), index + 1),
            index,
            data,
            columns: Map::new(),
        };
        let pair = |index: usize| {
            let (prompt, chosen, rejected) = (Some(text("p")), text(&format!("c{index}")), text(&format!("r{index}")));
            row(index, RowData::Preference { prompt, chosen, rejected, margin: None })
        };
        let rows: Vec<Row> = (0..2).map(pair).collect();
        let unpaired_rows = unpaired(&rows, ImplicitPrompt::default()).unwrap();
        let found: Vec<(usize, String, bool)> = unpaired_rows
            .iter()
            .map(|row| match &row.data {
                RowData::Unpaired { completion, is_desirable, .. } => (row.index, completion.plain(), *is_desirable),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [(0, "c0", true), (1, "c1", true), (0, "r0", false), (1, "r1", false)];
        assert_eq!(found, expected.map(|(index, text, label)| (index, text.to_owned(), label)));
        assert!(matches!(unpaired(&unpaired_rows, ImplicitPrompt::default()).unwrap(), Cow::Borrowed(_)));
    }
}
