//! Reference texts of a row, which completions are compared with.

use serde_json::{Map, Value};

use crate::error::excerpt;

/// Columns that are read as references in all rows, by precedence.
const NAMED: [&str; 2] = ["references", "reference"];

/// Columns with the answer of a row, by precedence. They have the references if no column of [`NAMED`] has a text. These columns may also hold
/// other values, which rules compare with; those are not references.
const ANSWERS: [&str; 4] = ["answer", "completion", "output", "chosen"];

/// Returns the reference texts of a row: those of [`reference_column`], or none.
///
/// # Errors
/// As [`reference_column`].
pub fn references(columns: &Map<String, Value>) -> Result<Vec<String>, String> {
    Ok(reference_column(columns)?.map_or_else(Vec::new, |(_, texts)| texts))
}

/// Returns the column with the references of a row, and its texts: the first of `references`, `reference`, `answer`, `completion`, `output` and
/// `chosen` that has a text. A blank text counts only if no other column has a text: an empty cell of a CSV file is blank, and `datasets` fills
/// missing columns with null.
///
/// # Errors
/// If `references` or `reference` holds anything but text. A column after the first one with a text is not read.
pub fn reference_column(columns: &Map<String, Value>) -> Result<Option<(&'static str, Vec<String>)>, String> {
    let mut blank = None;
    for name in NAMED.into_iter().chain(ANSWERS) {
        let Some(value) = columns.get(name) else { continue };
        let texts = match reference_texts(name, value) {
            Err(message) if NAMED.contains(&name) => return Err(message),
            texts => texts.unwrap_or_default(),
        };
        if texts.iter().any(|text| !text.trim().is_empty()) {
            return Ok(Some((name, texts)));
        }
        if !texts.is_empty() {
            blank.get_or_insert((name, texts));
        }
    }
    Ok(blank)
}

/// Returns the texts in a column: one text, a list of texts, or none for null.
///
/// # Errors
/// If a value is not text.
fn reference_texts(name: &str, value: &Value) -> Result<Vec<String>, String> {
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        other => Err(format!("column `{name}` holds {}, expected text", excerpt(&other.to_string(), 80))),
    };
    match value {
        Value::Array(values) => values.iter().map(text).collect(),
        Value::Null => Ok(Vec::new()),
        value => Ok(vec![text(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(columns: Value) -> Result<Vec<String>, String> {
        references(columns.as_object().expect("an object"))
    }

    #[test]
    fn the_first_column_with_a_text_has_the_references() {
        assert_eq!(of(json!({ "answer": "c", "reference": "a" })), Ok(vec!["a".into()]));
        assert_eq!(of(json!({ "references": ["a", "b"], "reference": 3 })), Ok(vec!["a".into(), "b".into()]));
        for nothing in [json!(null), json!([]), json!(""), json!([" "])] {
            assert_eq!(of(json!({ "references": nothing, "reference": "a" })), Ok(vec!["a".into()]));
            assert_eq!(of(json!({ "references": nothing, "reference": nothing, "answer": "c" })), Ok(vec!["c".into()]));
        }
        assert_eq!(of(json!({ "references": "", "answer": " " })), Ok(vec!["".into()]));
        assert_eq!(of(json!({ "references": null })), Ok(Vec::new()));
        assert_eq!(of(json!({ "prompt": "c" })), Ok(Vec::new()));
    }

    #[test]
    fn without_references_an_answer_is_the_reference() {
        let row = json!({ "chosen": "e", "output": "d", "completion": "c", "answer": "b" });
        let Value::Object(mut columns) = row else { panic!("an object") };
        for (name, text) in [("answer", "b"), ("completion", "c"), ("output", "d"), ("chosen", "e")] {
            assert_eq!(reference_column(&columns), Ok(Some((name, vec![text.to_owned()]))));
            columns.shift_remove(name);
        }
        assert_eq!(reference_column(&columns), Ok(None));
        // A number for rules is not a reference, and an empty cell is none: null in JSON, an empty text in CSV.
        for answer in [json!(42), json!(null), json!(""), json!(" \n"), json!([""])] {
            assert_eq!(of(json!({ "answer": answer, "completion": "It is 42." })), Ok(vec!["It is 42.".into()]));
        }
        assert_eq!(of(json!({ "answer": ["", "42"], "completion": "It is 42." })), Ok(vec!["".into(), "42".into()]));
        assert_eq!(of(json!({ "answer": "", "completion": " " })), Ok(vec!["".into()]));
    }

    #[test]
    fn what_is_no_text_is_refused_where_it_is_called_a_reference() {
        let message = "column `references` holds 5, expected text";
        assert_eq!(of(json!({ "references": ["a", 5] })), Err(message.into()));
        assert_eq!(of(json!({ "references": 5 })), Err(message.into()));
        assert_eq!(of(json!({ "reference": [null] })), Err("column `reference` holds null, expected text".into()));
        // A number for rules to compare with is not a reference; neither is a list that has one.
        assert_eq!(of(json!({ "answer": 42 })), Ok(Vec::new()));
        assert_eq!(of(json!({ "answer": ["a", 42] })), Ok(Vec::new()));
    }
}
