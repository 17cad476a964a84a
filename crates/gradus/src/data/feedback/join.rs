//! Annotated rows and the rows of a QA split, joined on the question.

use std::collections::HashMap;

use serde_json::Value;

use crate::data::{Row, RowData};

/// What of a QA split belongs to an annotated row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// This row of the split.
    Row(usize),
    /// This row of the split, whose first reference is another one, white space aside.
    OtherReference(usize),
    /// No row has the question.
    Missing,
    /// Several rows have it: the first two.
    Twice([usize; 2]),
}

/// Joins annotated rows with the rows of a QA split: one entry a row of `feedback`. Rows without feedback have no question.
pub fn join(feedback: &[Row], split: &[Row]) -> Vec<Joined> {
    let mut by_question: HashMap<&str, (usize, Option<usize>)> = HashMap::with_capacity(split.len());
    for (i, row) in split.iter().enumerate() {
        if let Some(question) = row.columns.get("question").and_then(Value::as_str) {
            by_question.entry(question).and_modify(|(_, again)| *again = again.or(Some(i))).or_insert((i, None));
        }
    }
    let one = |row: &Row| {
        let RowData::Feedback(annotated) = &row.data else { return Joined::Missing };
        match by_question.get(annotated.question.as_str()) {
            None => Joined::Missing,
            Some(&(first, Some(second))) => Joined::Twice([first, second]),
            Some(&(found, None)) => {
                let reference =
                    split[found].columns.get("references").and_then(|list| list.get(0)).and_then(Value::as_str);
                let same = reference.is_some_and(|text| text.split_whitespace().eq(annotated.gold.split_whitespace()));
                if same { Joined::Row(found) } else { Joined::OtherReference(found) }
            }
        }
    };
    feedback.iter().map(one).collect()
}
