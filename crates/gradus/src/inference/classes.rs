//! Output of a classifier for given rows, one result per row, in the order of the rows.

use serde::Serialize;
use serde_json::{Value, json};

use super::score::check_finite;
use super::{PASSES, naming_columns, open};
use crate::data::{self, BadRows, ClassifierInput, Dataset, LoadOptions, Need, RowLocation, Side, TextForm, left_out};
use crate::device::DeviceChoice;
use crate::error::Error;
use crate::host::read;
use crate::model::{Classifier, ModelDir, Precision, Reading, Scope, Task, Text, WeightFormat};
use crate::text::Tokenizer;

/// Settings of a classification.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassesOptions {
    /// Directory or hub name of the classifier.
    pub model: String,
    /// Rows with `text`, `prompt` and `completion`, `tokens`, `input_ids`, or the columns that the patterns name.
    pub data: String,
    /// Text of a row, as a pattern of its columns.
    pub text: Option<String>,
    /// Pattern of a second text.
    pub pair: Option<String>,
    /// Side at which texts with more tokens than positions are cut; `None` makes such a row an error.
    pub truncate: Option<Side>,
    /// Columns with other names, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Maximum number of rows.
    pub max_rows: Option<usize>,
    /// Handling of invalid rows.
    pub bad_rows: BadRows,
    /// Number format of the operands of matrix products.
    pub compute: Precision,
    /// Device to compute on.
    pub device: DeviceChoice,
}

/// Output of a classifier for one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassRow {
    /// One number per label, or a list of them per token if the classifier labels tokens.
    pub logits: PerScope<Vec<f32>>,
    /// The predicted label, or a list of labels if several may apply; `null` if the classifier predicts numbers.
    pub label: PerScope<Value>,
    /// Probabilities of the labels, in their order; `null` if the classifier predicts numbers.
    pub probabilities: PerScope<Option<Vec<f32>>>,
}

/// A result for a text, or for each of its tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PerScope<T> {
    /// For a text.
    Text(T),
    /// For its tokens, including special ones.
    Tokens(Vec<T>),
}

/// Classifies rows, and passes each result to `each` with the location of its row. Returns remarks on rows that are left out.
///
/// # Errors
/// If the model or a row is invalid, or if `each` fails.
pub fn classes<E: From<Error>>(
    options: &ClassesOptions,
    progress: &mut dyn FnMut(usize, usize),
    each: &mut dyn FnMut(&RowLocation, ClassRow) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let dir = open(&options.model, None)?;
    dir.check_classifier()?;
    let tokenizer = Tokenizer::of_model(dir.tokenizer_dir(), &dir.path)?;
    dir.check_vocabulary(tokenizer.vocab_size())?;
    options.device.check_compute("`--compute`", options.compute)?;
    let weights = WeightFormat::from(options.compute);
    let model = Classifier::load_packed(&dir, weights, &options.device.device())?.into_frozen(weights);
    let (rows, locations, remarks) = texts(options, &dir, &model, &tokenizer)?;
    let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
    progress(0, rows.len());
    for range in PASSES.split(&lengths) {
        let done = range.end;
        let texts: Vec<Text<'_>> = rows[range].iter().map(text_of).collect();
        let logits = read(&model.logits(&model.batch(&texts)).flatten(0, 1));
        let (labels, mut rest) = (model.task().labels.len(), logits.as_slice());
        for (row, text) in (done - texts.len() + 1..).zip(&texts) {
            let count = if model.task().scope == Scope::Token { text.ids.len() } else { 1 };
            let (own, others) = rest.split_at(count * labels);
            rest = others;
            own.iter().try_for_each(|&logit| check_finite(&format!("a logit of row {row}"), f64::from(logit)))?;
            each(&locations[row - 1], class_row(model.task(), own))?;
        }
        progress(done, rows.len());
    }
    Ok(remarks)
}

/// Inputs of a classifier with the locations of their rows, and remarks on rows that are left out.
type ReadTexts = (Vec<ClassifierInput>, Vec<RowLocation>, Vec<String>);

/// Returns the text of every row. A row that cannot be read is an error with its location, unless it is skipped.
fn texts(
    options: &ClassesOptions,
    dir: &ModelDir,
    model: &Classifier,
    tokenizer: &Tokenizer,
) -> Result<ReadTexts, Error> {
    let cut = options.truncate.zip(model.encoder.max_positions()).map(|(side, limit)| side.to(limit));
    let recorded = dir.training_info().columns;
    let (text, pair) = match (&options.text, &options.pair) {
        (None, None) => (&recorded.text, &recorded.pair),
        given => given,
    };
    let form = TextForm::parse(text.as_deref(), pair.as_deref(), cut).map_err(|(_, message)| Error::input(message))?;
    let (max_rows, bad_rows, rename) = (options.max_rows, options.bad_rows, options.rename.clone());
    let load = LoadOptions { max_rows, bad_rows, rename, ..LoadOptions::needing(Need::Columns) };
    let Dataset { rows, mut bad, .. } = data::load(&options.data, &load)?;
    let count = rows.len() + bad.count();
    let (mut found, mut locations) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in &rows {
        let read = match data::classifier_input(row, &form, tokenizer) {
            Ok(read) => read,
            Err(error) => {
                bad.push(error);
                continue;
            }
        };
        if let Err(message) = model.encoder.check(&text_of(&read)) {
            let error = row.location.error(message);
            // A long text is not bad: it can be cut.
            if model.encoder.max_positions().is_some_and(|limit| limit < read.ids.len()) {
                let hint = "`--truncate right` cuts texts at their end, `--truncate left` at their beginning";
                return Err(error.with_hint(hint));
            }
            bad.push(error);
            continue;
        }
        found.push(read);
        locations.push(row.location.clone());
    }
    let settled = bad.settle(count, found.len());
    let bad = settled.map_err(|error| naming_columns(error, "`--text` and `--pair`", &recorded))?;
    Ok((found, locations, left_out(&bad.into_skipped()).into_iter().collect()))
}

fn text_of(row: &ClassifierInput) -> Text<'_> {
    Text { ids: &row.ids, types: &row.types, global: None }
}

/// Converts the logits of one text to its result.
fn class_row(task: &Task, logits: &[f32]) -> ClassRow {
    let label = |logits: &[f32]| {
        let mut names = task.decide(logits).into_iter().map(|k| task.labels[k].as_str());
        match task.reading {
            Reading::Values => Value::Null,
            Reading::OneOf => json!(names.next()),
            Reading::AnyOf => names.collect(),
        }
    };
    match task.scope {
        Scope::Sequence => ClassRow {
            logits: PerScope::Text(logits.to_vec()),
            label: PerScope::Text(label(logits)),
            probabilities: PerScope::Text(task.probabilities(logits)),
        },
        Scope::Token => {
            let tokens = || logits.chunks_exact(task.labels.len());
            ClassRow {
                logits: PerScope::Tokens(tokens().map(<[f32]>::to_vec).collect()),
                label: PerScope::Tokens(tokens().map(label).collect()),
                probabilities: PerScope::Tokens(tokens().map(|logits| task.probabilities(logits)).collect()),
            }
        }
    }
}
