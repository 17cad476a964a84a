//! Rows with labels, for training classifiers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::classifier_input::{ClassifierInput, TextForm, classifier_input};
use super::example::{Examples, TokenizeOptions, TooLong};
use super::message::missing;
use super::row::Row;
use super::row_tokenizer::{Failure, RowOutcome, TokenizedRow};
use super::tokenize::{ExampleSizes, run};
use crate::text::Tokenizer;
use crate::{Error, Result};

/// Kind of the labels that a classifier is trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelKind {
    /// One label per text.
    One,
    /// A list of labels, possibly empty.
    Any,
    /// A number, or a list of numbers.
    Values,
    /// A list of labels, one per token or word. Null and −100 mark tokens or words without a label.
    Tokens,
}

/// Where the inputs and labels of a classifier are, and their kind.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelForm {
    /// Input text.
    pub text: TextForm,
    /// Kind of the labels.
    pub kind: LabelKind,
    /// Column with the labels. `None` uses the default columns.
    pub column: Option<String>,
    /// For tokens: the label of tokens that are excluded from training.
    pub ignored: Option<String>,
}

/// Label names, and the number of texts or tokens with each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelCounts {
    /// Labels in the order of their numbers.
    pub labels: Vec<String>,
    /// Number of texts or tokens with each label.
    pub counts: Vec<usize>,
}

/// A text with its gold labels.
#[derive(Debug, Clone, PartialEq)]
pub struct LabeledExample {
    /// Index of its row, from 0.
    pub row: usize,
    /// Token ids.
    pub ids: Vec<u32>,
    /// For each token, which of two texts it belongs to. Empty: all belong to the first.
    pub types: Vec<u32>,
    /// Gold labels.
    pub gold: Gold,
    /// Loss weight of the text, or of each of its labeled tokens.
    pub weights: Vec<f32>,
}

/// Gold labels of a text or of its tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Gold {
    /// The label of the text.
    Label(usize),
    /// All labels of the text.
    Labels(Vec<usize>),
    /// The target values.
    Values(Vec<f32>),
    /// Positions of tokens and their labels. Other tokens have none.
    Tokens(Vec<(usize, usize)>),
}

impl ExampleSizes for LabeledExample {
    fn sizes(&self) -> (usize, usize) {
        (self.ids.len(), self.weights.len())
    }
}

/// A label as written in the data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Number(usize),
    Text(String),
}

impl Name {
    /// Reads a label. Returns `None` if the value marks a missing label.
    fn read(value: &Value) -> Result<Option<Self>, String> {
        match value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(Self::Text(text.clone()))),
            Value::Bool(holds) => Ok(Some(Self::Number(usize::from(*holds)))),
            Value::Number(number) if number.as_i64() == Some(-100) => Ok(None),
            other => {
                let number = other.as_u64().and_then(|number| usize::try_from(number).ok());
                number.map(|number| Some(Self::Number(number))).ok_or_else(|| format!("{other} is not a label"))
            }
        }
    }

    /// Returns its index in `labels`.
    fn place(&self, labels: &[String]) -> Result<usize, String> {
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
    /// Returns the name and value of the column with the row's labels.
    fn find<'a>(&self, row: &'a Row) -> Result<(&'a str, &'a Value), String> {
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

    /// Returns the labels of a row. For tokens there is one entry each, `None` without a label.
    fn names(&self, row: &Row) -> Result<Vec<Option<Name>>, String> {
        let (column, value) = self.find(row)?;
        let within = |message: String| format!("`{column}`: {message}");
        match (self.kind, value) {
            (LabelKind::One, value) => {
                let name = Name::read(value).map_err(within)?;
                Ok(vec![Some(name.ok_or_else(|| within(format!("{value} is not a label")))?)])
            }
            (kind, Value::Array(list)) => {
                let says_nothing = |name: &Name| {
                    let ignored = self.ignored.as_ref().filter(|_| kind == LabelKind::Tokens);
                    matches!((name, ignored), (Name::Text(text), Some(ignored)) if text == ignored)
                };
                let read = |value| Name::read(value).map(|name| name.filter(|name| !says_nothing(name)));
                list.iter().map(read).collect::<Result<_, _>>().map_err(within)
            }
            (_, other) => Err(within(format!("expected a list of labels, found {other}"))),
        }
    }

    /// Returns true if a token of the rows has the ignored label.
    pub fn has_ignored(&self, rows: &[Row]) -> bool {
        let is_ignored = |label: &Value| label.as_str().is_some_and(|label| self.ignored.as_deref() == Some(label));
        let labels = rows.iter().filter_map(|row| self.find(row).ok()?.1.as_array());
        labels.flatten().any(is_ignored)
    }

    /// Counts the labels of all rows. Names are in alphabetical order; if all labels are numbers, they are `LABEL_0` up to the
    /// largest.
    ///
    /// # Errors
    /// If a row has no label or one cannot be read. The error names the row's location.
    pub fn count(&self, rows: &[Row]) -> Result<LabelCounts> {
        let mut found: BTreeMap<Name, usize> = BTreeMap::new();
        for row in rows {
            for name in self.names(row).map_err(|message| row.location.error(message))?.into_iter().flatten() {
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

    /// Counts how many texts or tokens of `rows` have each of `labels`.
    ///
    /// # Errors
    /// If a row has another label. The error names the row's location.
    pub fn count_among(&self, rows: &[Row], labels: &[String]) -> Result<Vec<usize>> {
        let mut counts = vec![0; labels.len()];
        for row in rows {
            let names =
                self.names(row).and_then(|names| names.iter().flatten().map(|name| name.place(labels)).collect());
            let places: Vec<usize> = names.map_err(|message| row.location.error(message))?;
            places.into_iter().for_each(|place| counts[place] += 1);
        }
        Ok(counts)
    }

    /// Returns the gold labels of a row whose input is `read`.
    fn gold(&self, row: &Row, read: &ClassifierInput, labels: &[String]) -> Result<Gold, String> {
        if self.kind == LabelKind::Values {
            return self.values(row, labels.len());
        }
        let names = self.names(row)?;
        let places = names.iter().map(|name| name.as_ref().map(|name| name.place(labels)).transpose());
        let places: Vec<Option<usize>> = places.collect::<Result<_, _>>()?;
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
                let Some(unit_tokens) = &read.unit_tokens else {
                    return Err("labels of tokens need `tokens`, a list of words, or `input_ids`".into());
                };
                if places.len() != unit_tokens.len() {
                    return Err(format!(
                        "`{column}` has {} labels for {} words or ids",
                        places.len(),
                        unit_tokens.len()
                    ));
                }
                let learned = unit_tokens.iter().zip(places).filter_map(|(&at, label)| Some((at?, label?)));
                Ok(Gold::Tokens(learned.collect()))
            }
        }
    }

    fn values(&self, row: &Row, outputs: usize) -> Result<Gold, String> {
        let (column, value) = self.find(row)?;
        let list = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        let number = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let values: Option<Vec<f32>> = list.iter().map(number).collect();
        let expected = if outputs == 1 { "a number".to_owned() } else { format!("a list of {outputs} numbers") };
        match values {
            Some(values) if values.len() == outputs => Ok(Gold::Values(values)),
            Some(_) if outputs > 1 => Err(format!(
                "`{column}`: expected {expected}, found {value}: each of the {outputs} labels (`--labels`) needs a number. For \
                 one number per row, leave out `--labels`"
            )),
            Some(values) => Err(format!(
                "`{column}`: expected {expected}, found {value}: each number needs a name in `method.classify.labels`, \
                 {} in all (`--labels a --labels b`)",
                values.len()
            )),
            None => Err(format!("`{column}`: expected {expected}, found {value}")),
        }
    }
}

/// Maximum number of labels. A column with more is probably not a column of labels.
const MOST_LABELS: usize = 1 << 16;

/// Returns texts with labels for classifiers. `weights_k[k]` multiplies the loss of label k. Texts longer than `options.max_length`
/// are cut by the rule of the form, or left out.
///
/// # Errors
/// If rows cannot be read or tokenized, or have other labels (the first ten and a count), or no row remains.
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
        let whole = classifier_input(row, &TextForm { cut: None, ..form.text.clone() }, tokenizer).map_err(failed)?;
        let length = whole.ids.len();
        let cut = form.text.cut.filter(|_| options.max_length.is_some_and(|most| most < length));
        let read = match (cut, options.too_long) {
            (None, _) => whole,
            (Some(_), TooLong::Skip) => return Ok(TokenizedRow::skipped(length)),
            (Some(_), TooLong::Truncate) => classifier_input(row, &form.text, tokenizer).map_err(failed)?,
        };
        if read.ids.is_empty() {
            return Err(Failure::Row("the row has no tokens".into()));
        }
        let gold = form.gold(row, &read, labels)?;
        let learns = !matches!(&gold, Gold::Tokens(tokens) if tokens.is_empty());
        let ClassifierInput { ids, types, .. } = read;
        let weights = match &gold {
            Gold::Label(label) => vec![weights_k[*label]],
            Gold::Tokens(tokens) => tokens.iter().map(|&(_, label)| weights_k[label]).collect(),
            Gold::Labels(_) | Gold::Values(_) => vec![1.0],
        };
        let example = LabeledExample { row: row.index, ids, types, gold, weights };
        let outcome = match (learns, cut) {
            (false, Some(_)) => RowOutcome::WithoutLoss,
            (false, None) => RowOutcome::WithoutLabels,
            (true, Some(_)) => RowOutcome::Cut,
            (true, None) => RowOutcome::Kept,
        };
        Ok(TokenizedRow { example: learns.then_some(example), outcome, mismatch: false, length })
    })
}
