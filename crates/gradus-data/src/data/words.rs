//! Words with one label each, for token classifiers and reward models of segments.

use serde_json::{Map, Value};

use super::feedback::{Category, IGNORE, NO_ERROR, SEPARATOR, TAGS};
use super::message::{kind_name, missing};
use crate::text::{Joined, Tokenizer};

/// Columns that may hold the words, in the classifier's order of preference.
const WORDS: [&str; 2] = ["tokens", "text"];
/// Columns that may hold the labels. The first is for segments, the others are for token classifiers.
const LABELS: [&str; 4] = [TAGS, "labels", "tags", "ner_tags"];

/// Words with one label each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LabeledWords {
    /// Column of the words.
    pub words_column: &'static str,
    /// The words.
    pub words: Vec<String>,
    /// Column of the labels.
    pub labels_column: &'static str,
    /// Labels as written, one per word.
    pub labels: Vec<Value>,
}

fn columns_of(columns: &Map<String, Value>) -> Option<(&'static str, &'static str)> {
    let words = WORDS.into_iter().find(|name| columns.contains_key(*name))?;
    let labels = LABELS.into_iter().find(|name| columns.contains_key(*name))?;
    columns[words].is_array().then_some((words, labels))
}

/// Returns whether rows with these columns are words with labels.
pub(super) fn fits(columns: &Map<String, Value>) -> bool {
    columns_of(columns).is_some()
}

/// Reads a row and takes both columns out.
pub(super) fn read(columns: &mut Map<String, Value>) -> Result<LabeledWords, String> {
    let Some((words_column, labels_column)) = columns_of(columns) else {
        let words = WORDS.into_iter().find_map(|name| Some((name, columns.get(name)?)));
        return Err(match words {
            Some((name, value)) if !value.is_array() => {
                format!("column `{name}` is {}, expected a list of words", kind_name(value))
            }
            _ => missing(if words.is_some() { LABELS[0] } else { WORDS[1] }, columns),
        });
    };
    let mut list = |name: &str| match columns.shift_remove(name) {
        Some(Value::Array(list)) => Ok(list),
        other => Err(format!("column `{name}` is {}, expected a list", kind_name(&other.unwrap_or_default()))),
    };
    let (words, labels) = (list(words_column)?, list(labels_column)?);
    let word = |(i, word): (usize, Value)| match word {
        Value::String(word) => Ok(word),
        other => Err(format!("word {} of `{words_column}` is {}, expected a string", i + 1, kind_name(&other))),
    };
    let words: Vec<String> = words.into_iter().enumerate().map(word).collect::<Result<_, _>>()?;
    if words.is_empty() {
        return Err(format!("column `{words_column}` is an empty list, expected words"));
    }
    if words.len() != labels.len() {
        return Err(format!("`{labels_column}` has {} labels for {} words", labels.len(), words.len()));
    }
    let is_label = |label: &Value| matches!(label, Value::Null | Value::Bool(_) | Value::String(_)) || label.is_i64();
    if let Some(at) = labels.iter().position(|label| !is_label(label)) {
        return Err(format!("label {} of `{labels_column}` is {}, which is not a label", at + 1, labels[at]));
    }
    Ok(LabeledWords { words_column, words, labels_column, labels })
}

impl LabeledWords {
    /// Returns whether the labels are for segments, each after a separator.
    pub fn of_segments(&self) -> bool {
        self.labels_column == TAGS
    }

    /// Returns whether a label is trained on.
    fn says_something(&self, label: &Value) -> bool {
        let ignored = self.of_segments() && label.as_str() == Some(IGNORE);
        !(label.is_null() || label.as_i64() == Some(-100) || ignored)
    }

    /// Returns the words joined by spaces.
    pub fn plain(&self) -> String {
        self.words.join(" ")
    }

    /// Returns the token ids, and which of them have a label that is trained on.
    pub(super) fn ids(&self, tokenizer: &Tokenizer) -> crate::Result<(Vec<u32>, Vec<bool>)> {
        let (Joined { ids, .. }, firsts) = tokenizer.encode_words(&self.words, None)?;
        let mut learned = vec![false; ids.len()];
        for (label, first) in self.labels.iter().zip(firsts) {
            if let Some(first) = first.filter(|_| self.says_something(label)) {
                learned[first] = true;
            }
        }
        Ok((ids, learned))
    }

    /// Returns both columns in their original form.
    pub(super) fn to_columns(&self) -> [(String, Value); 2] {
        let words: Vec<Value> = self.words.iter().map(|word| Value::from(word.as_str())).collect();
        [(self.words_column.into(), words.into()), (self.labels_column.into(), self.labels.clone().into())]
    }

    /// Returns what is wrong with the labels of this row.
    pub(super) fn misfit(&self) -> Option<String> {
        let blank =
            |(_, (word, label)): &(usize, (&String, &Value))| word.trim().is_empty() && self.says_something(label);
        let labeled_words = || self.words.iter().zip(&self.labels).enumerate();
        if let Some((i, _)) = labeled_words().find(blank) {
            return Some(format!("word {} is blank, so its label has no effect", i + 1));
        }
        if self.of_segments() {
            let between =
                |(_, (word, label)): &(usize, (&String, &Value))| *word != SEPARATOR && self.says_something(label);
            if let Some((i, (word, label))) = labeled_words().find(between) {
                let label = shown(label);
                return Some(format!(
                    "word {} (`{word}`) has the label `{label}`, but a segment's label belongs on the separator \
                     `{SEPARATOR}` before it",
                    i + 1
                ));
            }
            let ends = |i: usize| self.words.get(i + 1).is_none_or(|next| next == SEPARATOR);
            if let Some((i, _)) = labeled_words().find(|(i, (word, _))| *word == SEPARATOR && ends(*i)) {
                return Some(format!("the segment after the separator at word {} has no words", i + 1));
            }
            let known = [Category::Relevance.label(), Category::Factuality.label(), NO_ERROR, IGNORE];
            let unknown = |label: &&Value| !label.as_str().is_some_and(|label| known.contains(&label));
            if let Some(label) = self.at_separators().find(unknown) {
                let known = known.map(|label| format!("`{label}`")).join(", ");
                return Some(format!("the label `{}` is none of {known}", shown(label)));
            }
            if self.at_separators().next().is_none() {
                return Some(format!("there is no segment: no word is the separator `{SEPARATOR}`"));
            }
        }
        let nothing = !self.labels.iter().any(|label| self.says_something(label));
        nothing.then(|| "the row has no effect: none of its words has a label that counts".into())
    }

    pub(super) fn at_separators(&self) -> impl Iterator<Item = &Value> {
        self.words.iter().zip(&self.labels).filter(|(word, _)| *word == SEPARATOR).map(|(_, label)| label)
    }

    /// Returns the category of errors in segment labels.
    pub(super) fn category(&self) -> Option<Category> {
        let is = |category: Category| {
            self.of_segments() && self.at_separators().any(|label| label.as_str() == Some(category.label()))
        };
        [Category::Relevance, Category::Factuality].into_iter().find(|category| is(*category))
    }
}

pub(super) fn shown(label: &Value) -> String {
    label.as_str().map_or_else(|| label.to_string(), str::to_owned)
}
