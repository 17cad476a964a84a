//! Joins annotated rows with the rows of a QA split by their question.

use std::collections::HashMap;

use serde_json::Value;

use crate::data::{Row, RowData};

/// Match of an annotated row in a QA split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// The row of the split with this index.
    Row(usize),
    /// The row of the split with this index, but its first reference differs by more than white space.
    OtherReference(usize),
    /// No row has the question.
    Missing,
    /// Several rows have the question. Holds the first two.
    Twice([usize; 2]),
}

/// Joins annotated rows with the rows of a QA split. Returns one entry per row of `feedback`. Rows without feedback have no
/// question.
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
