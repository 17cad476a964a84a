//! Labels of words over all rows: their problems and their counts.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::feedback::{Category, IGNORE, NO_ERROR, SENTENCES, SEPARATOR};
use super::row::{Row, RowData};
use super::words::{LabeledWords, shown};

/// Number of occurrences of each label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LabelTotals {
    /// Kind of the labeled units: `words` or `segments`.
    pub unit: &'static str,
    /// Number of units.
    pub units: usize,
    /// Labels in alphabetical order, with their counts.
    pub labels: Vec<(String, usize)>,
}

/// Returns the words of a row with labels for words.
fn words_of(row: &Row) -> Option<&LabeledWords> {
    if let RowData::Words(words) = &row.data { Some(words) } else { None }
}

/// Returns what is wrong with the labels of each row. Segments must also agree with other rows: a model is trained on one category
/// of errors and on the segments of one splitter.
pub(super) fn misfits(rows: &[Row]) -> Vec<Option<String>> {
    let of_segments = |row: &&Row| words_of(row).is_some_and(LabeledWords::of_segments);
    let first = rows.iter().find(of_segments);
    let decided = rows.iter().find_map(|row| Some((row, words_of(row)?.category()?)));
    let splitter = |row: &Row| row.columns.get(SENTENCES).map_or("nothing".into(), |name| format!("`{}`", shown(name)));
    let beside = |row: &Row, words: &LabeledWords| {
        let first = first.filter(|_| words.of_segments())?;
        let (own, others) = (splitter(row), splitter(first));
        if own != others {
            let location = &first.location;
            return Some(format!(
                "`{SENTENCES}` is {own}, but {others} at {location}: one model cannot be trained on two ways to split \
                 texts"
            ));
        }
        let (of, category) = decided?;
        let foreign = |label: &&Value| match label.as_str() {
            Some(IGNORE) => category == Category::Relevance,
            label => label != Some(NO_ERROR) && label != Some(category.label()),
        };
        let label = words.at_separators().find(foreign)?;
        let (label, expected, location) = (shown(label), category.label(), &of.location);
        Some(format!("a segment has the label `{label}` in a file of `{expected}` ({location})"))
    };
    let misfit = |row: &Row| words_of(row).and_then(|words| words.misfit().or_else(|| beside(row, words)));
    rows.iter().map(misfit).collect()
}

impl LabelTotals {
    /// Counts `rows`. Returns `None` if none has words with labels.
    pub fn of(rows: &[Row]) -> Option<Self> {
        let all: Vec<&LabeledWords> = rows.iter().filter_map(words_of).collect();
        let of_segments = all.first()?.of_segments();
        let mut labels: BTreeMap<String, usize> = BTreeMap::new();
        let counted = all.iter().flat_map(|words| words.words.iter().zip(&words.labels));
        let counted = counted.filter(|(word, _)| !of_segments || *word == SEPARATOR);
        counted.for_each(|(_, label)| *labels.entry(shown(label)).or_default() += 1);
        let unit = if of_segments { "segments" } else { "words" };
        Some(Self { unit, units: labels.values().sum(), labels: labels.into_iter().collect() })
    }
}
