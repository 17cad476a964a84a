//! Reference texts of a row, which completions are compared with.

use serde_json::{Map, Value};

use crate::error::excerpt;

/// Returns the texts of the first of the columns `references`, `reference`, `completion` and `answer` that is present. The list is
/// empty if the value is null. `completion` and `answer` may also hold other values, which rules compare with; those are not
/// references.
///
/// # Errors
/// If `references` or `reference` holds anything but text.
pub fn references(columns: &Map<String, Value>) -> Result<Vec<String>, String> {
    let names = ["references", "reference", "completion", "answer"];
    match names.into_iter().find_map(|name| Some((name, columns.get(name)?))) {
        Some((name @ ("references" | "reference"), value)) => reference_texts(name, value),
        Some((name, value)) => Ok(reference_texts(name, value).unwrap_or_default()),
        None => Ok(Vec::new()),
    }
}

/// Returns the texts in a column: one text, a list of texts, or none for null.
///
/// # Errors
/// If a value is not text.
pub fn reference_texts(name: &str, value: &Value) -> Result<Vec<String>, String> {
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
    fn the_first_column_that_is_there_has_the_references() {
        assert_eq!(of(json!({ "answer": "c", "reference": "a" })), Ok(vec!["a".into()]));
        assert_eq!(of(json!({ "references": ["a", "b"], "reference": 3 })), Ok(vec!["a".into(), "b".into()]));
        assert_eq!(of(json!({ "references": null, "answer": "c" })), Ok(Vec::new()));
        assert_eq!(of(json!({ "prompt": "c" })), Ok(Vec::new()));
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
