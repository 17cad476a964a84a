//! Rows with labels: what a classifier learns of them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::classified::{Classified, TextForm, classified};
use super::example::{Examples, TokenizeOptions, TooLong};
use super::maker::{Failure, Made, Outcome};
use super::message::missing;
use super::row::Row;
use super::tokenize::{Measured, run};
use crate::text::Tokenizer;
use crate::{Error, Result};

/// What is learned of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelKind {
    /// One label.
    One,
    /// A list of labels, possibly none.
    Any,
    /// A number, or a list of them.
    Values,
    /// A list of labels, one a token or one a word; null or −100 where there is none.
    Tokens,
}

/// Which columns hold what is learned, and what it is.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelForm {
    /// What is read.
    pub text: TextForm,
    /// What is learned.
    pub kind: LabelKind,
    /// The column with the labels; none: the usual ones.
    pub column: Option<String>,
    /// Of tokens: the label of those of which nothing is learned.
    pub ignored: Option<String>,
}

/// The labels of rows, and how many texts or tokens have each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelCounts {
    /// The labels in the order of their numbers.
    pub labels: Vec<String>,
    /// How many have each.
    pub counts: Vec<usize>,
}

/// A text with what is to be said of it.
#[derive(Debug, Clone, PartialEq)]
pub struct LabeledExample {
    /// The row it came from, from 0.
    pub row: usize,
    /// The ids.
    pub ids: Vec<u32>,
    /// Which of two texts each belongs to; empty: all to the first.
    pub types: Vec<u32>,
    /// What is to be said.
    pub gold: Gold,
    /// What the loss of the text, or of each of its tokens with a label, is multiplied by.
    pub weights: Vec<f32>,
}

/// What is to be said of a text or of its tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Gold {
    /// The label.
    Label(usize),
    /// The labels that hold.
    Labels(Vec<usize>),
    /// The numbers.
    Values(Vec<f32>),
    /// The labels of tokens by their places; other tokens have none.
    Tokens(Vec<(usize, usize)>),
}

impl Measured for LabeledExample {
    fn sizes(&self) -> (usize, usize) {
        (self.ids.len(), self.weights.len())
    }
}

/// A label as it is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Number(usize),
    Text(String),
}

impl Name {
    /// A label; nothing where the value says that there is none.
    fn read(value: &Value) -> std::result::Result<Option<Self>, String> {
        match value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(Self::Text(text.clone()))),
            Value::Bool(holds) => Ok(Some(Self::Number(usize::from(*holds)))),
            Value::Number(number) if number.as_i64() == Some(-100) => Ok(None),
            other => {
                let number = other.as_u64().and_then(|number| usize::try_from(number).ok());
                number.map(|number| Some(Self::Number(number))).ok_or_else(|| format!("{other} is no label"))
            }
        }
    }

    /// Its number among `labels`.
    fn place(&self, labels: &[String]) -> std::result::Result<usize, String> {
        let found = match self {
            Self::Number(number) => Some(*number).filter(|&number| number < labels.len()),
            Self::Text(text) => labels.iter().position(|label| label == text),
        };
        found.ok_or_else(|| {
            let known: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let name = match self {
                Self::Number(number) => number.to_string(),
                Self::Text(text) => text.clone(),
            };
            format!("the label `{name}` is none of {}", known.join(", "))
        })
    }
}

impl LabelForm {
    /// What the row's labels are, in their column's name and value.
    fn find<'a>(&self, row: &'a Row) -> std::result::Result<(&'a str, &'a Value), String> {
        let usual: &[&str] = match self.kind {
            LabelKind::Tokens => &["labels", "tags", "ner_tags"],
            LabelKind::Any => &["labels", "label"],
            LabelKind::One | LabelKind::Values => &["label"],
        };
        let named: Vec<&str> = self.column.as_deref().map_or_else(|| usual.to_vec(), |column| vec![column]);
        let mut found = named.iter().filter_map(|name| row.columns.get_key_value(*name));
        let (name, value) = found.next().ok_or_else(|| missing(named[0], &row.columns))?;
        Ok((name.as_str(), value))
    }

    /// The labels of a row; of tokens those of all, where they have one.
    fn names(&self, row: &Row) -> std::result::Result<Vec<Option<Name>>, String> {
        let (column, value) = self.find(row)?;
        let within = |message: String| format!("`{column}`: {message}");
        match (self.kind, value) {
            (LabelKind::One, value) => {
                let name = Name::read(value).map_err(within)?;
                Ok(vec![Some(name.ok_or_else(|| within(format!("{value} is no label")))?)])
            }
            (kind, Value::Array(list)) => {
                let says_nothing = |name: &Name| {
                    let ignored = self.ignored.as_ref().filter(|_| kind == LabelKind::Tokens);
                    matches!((name, ignored), (Name::Text(text), Some(ignored)) if text == ignored)
                };
                let read = |value| Name::read(value).map(|name| name.filter(|name| !says_nothing(name)));
                list.iter().map(read).collect::<std::result::Result<_, _>>().map_err(within)
            }
            (_, other) => Err(within(format!("expected a list of labels, found {other}"))),
        }
    }

    /// The labels of all rows: names in alphabetical order, or where all are numbers `LABEL_0` up to the largest.
    ///
    /// # Errors
    /// When a row has none, or one cannot be read, with its place.
    pub fn count(&self, rows: &[Row]) -> Result<LabelCounts> {
        let mut found: BTreeMap<Name, usize> = BTreeMap::new();
        for row in rows {
            for name in self.names(row).map_err(|message| row.place.error(message))?.into_iter().flatten() {
                *found.entry(name).or_default() += 1;
            }
        }
        let numbers: Option<Vec<(usize, usize)>> =
            found.iter().map(|(name, &n)| if let Name::Number(k) = name { Some((*k, n)) } else { None }).collect();
        let Some(numbers) = numbers else {
            let text = |name: Name| match name {
                Name::Number(number) => number.to_string(),
                Name::Text(text) => text,
            };
            let named: BTreeMap<String, usize> = found.into_iter().map(|(name, n)| (text(name), n)).collect();
            let (labels, counts) = named.into_iter().unzip();
            return Ok(LabelCounts { labels, counts });
        };
        let most = numbers.last().map_or(0, |(number, _)| number + 1);
        if most > MOST_LABELS {
            let message = format!("the label {} is larger than {MOST_LABELS} labels allow", most - 1);
            return Err(
                Error::input(message).with_hint("name the column of the labels as `method.classify.label_column`")
            );
        }
        let mut counts = vec![0; most];
        numbers.into_iter().for_each(|(number, n)| counts[number] = n);
        Ok(LabelCounts { labels: (0..most).map(|k| format!("LABEL_{k}")).collect(), counts })
    }

    /// How many texts or tokens of `rows` have each of `labels`.
    ///
    /// # Errors
    /// When a row has another label, with its place.
    pub fn count_among(&self, rows: &[Row], labels: &[String]) -> Result<Vec<usize>> {
        let mut counts = vec![0; labels.len()];
        for row in rows {
            let names =
                self.names(row).and_then(|names| names.iter().flatten().map(|name| name.place(labels)).collect());
            let places: Vec<usize> = names.map_err(|message| row.place.error(message))?;
            places.into_iter().for_each(|place| counts[place] += 1);
        }
        Ok(counts)
    }

    /// What is to be said of a row that is read as `read`.
    fn gold(&self, row: &Row, read: &Classified, labels: &[String]) -> std::result::Result<Gold, String> {
        if self.kind == LabelKind::Values {
            return self.values(row, labels.len());
        }
        let names = self.names(row)?;
        let places = names.iter().map(|name| name.as_ref().map(|name| name.place(labels)).transpose());
        let places: Vec<Option<usize>> = places.collect::<std::result::Result<_, _>>()?;
        match self.kind {
            LabelKind::One => Ok(Gold::Label(places[0].expect("one label has one name"))),
            LabelKind::Any => {
                let mut held: Vec<usize> = places.into_iter().flatten().collect();
                held.sort_unstable();
                held.dedup();
                Ok(Gold::Labels(held))
            }
            _ => {
                let (column, _) = self.find(row)?;
                let Some(units) = &read.units else {
                    return Err("labels of tokens need `tokens`, a list of words, or `input_ids`".into());
                };
                if places.len() != units.len() {
                    return Err(format!("`{column}` has {} labels for {} words or ids", places.len(), units.len()));
                }
                let learned = units.iter().zip(places).filter_map(|(&at, label)| Some((at?, label?)));
                Ok(Gold::Tokens(learned.collect()))
            }
        }
    }

    fn values(&self, row: &Row, outputs: usize) -> std::result::Result<Gold, String> {
        let (column, value) = self.find(row)?;
        let list = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        let number = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let values: Option<Vec<f32>> = list.iter().map(number).collect();
        match values.filter(|values| values.len() == outputs) {
            Some(values) => Ok(Gold::Values(values)),
            None => Err(format!("`{column}`: expected {outputs} numbers, found {value}")),
        }
    }
}

/// More labels than this are a column of something else.
const MOST_LABELS: usize = 1 << 16;

/// Texts with labels, for classifiers; the loss of label k is multiplied by `weights_k[k]`. What is longer than `options.max_length` is cut as the form says, or left out.
///
/// # Errors
/// When rows cannot be read or tokenized, or have other labels (the first ten and a count), or none is left.
pub fn labeled_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    form: &LabelForm,
    labels: &[String],
    weights_k: &[f32],
    options: &TokenizeOptions,
) -> Result<Examples<LabeledExample>> {
    run(rows, options, |row| {
        let failed = |error: Error| match error {
            Error::Data { message, .. } => Failure::Row(message),
            other => Failure::All(other),
        };
        let whole = classified(row, &TextForm { cut: None, ..form.text.clone() }, tokenizer).map_err(failed)?;
        let length = whole.ids.len();
        let cut = form.text.cut.filter(|_| options.max_length.is_some_and(|most| most < length));
        let read = match (cut, options.too_long) {
            (None, _) => whole,
            (Some(_), TooLong::Skip) => return Ok(Made::skipped(length)),
            (Some(_), TooLong::Truncate) => classified(row, &form.text, tokenizer).map_err(failed)?,
        };
        if read.ids.is_empty() {
            return Err(Failure::Row("the row has no tokens".into()));
        }
        let gold = form.gold(row, &read, labels)?;
        let learns = !matches!(&gold, Gold::Tokens(tokens) if tokens.is_empty());
        let Classified { ids, types, .. } = read;
        let weights = match &gold {
            Gold::Label(label) => vec![weights_k[*label]],
            Gold::Tokens(tokens) => tokens.iter().map(|&(_, label)| weights_k[label]).collect(),
            Gold::Labels(_) | Gold::Values(_) => vec![1.0],
        };
        let example = LabeledExample { row: row.index, ids, types, gold, weights };
        let outcome = match (learns, cut) {
            (false, _) => Outcome::WithoutLoss,
            (true, Some(_)) => Outcome::Cut,
            (true, None) => Outcome::Kept,
        };
        Ok(Made { example: learns.then_some(example), outcome, mismatch: false, length })
    })
}
