//! Perplexity of texts under a language model.
//!
//! Jelinek et al. 1977. Without a `stride` it is `evaluate`'s `perplexity`: every text alone after the beginning-of-text id, and
//! the mean over texts. With a `stride` it is RL4LMs' `causal_perplexity`: all texts as one, read through a window that moves by
//! `stride` ids (`transformers`' guide on perplexity of fixed-length models). Checked against `evaluate` 0.4.6 and that loop. For
//! continuations it is Quark's (Lu et al. 2022, <https://arxiv.org/abs/2205.13636>), checked against that arithmetic on the losses
//! of `transformers`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::models::{LanguageModel, Models};
use super::{Measure, Metric, Row, RowError};
use crate::error::{Error, Result};

/// Continuations with at least this perplexity are left out, as in Quark.
const MAX_PERPLEXITY: f64 = 1e4;

/// Separator of texts that are read as one.
const BETWEEN: &str = "\n\n";

/// Options of [`Perplexity`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerplexityOptions {
    /// The language model: a directory or a hub name. Default: the current state of the evaluated model, which only evaluations of
    /// a model have.
    #[serde(default)]
    pub model: Option<String>,
    /// Texts that are read.
    #[serde(default)]
    pub of: PerplexityOf,
    /// Column with a text that is read instead (RL4LMs' `use_text_from_meta_data`: `reference`). Default: none.
    #[serde(default)]
    pub column: Option<String>,
    /// Read all texts as one, through a window that moves by this number of ids. Default: each text alone.
    #[serde(default)]
    pub stride: Option<usize>,
    /// Maximum number of ids in a window or, without a `stride`, in a text. Default: the model's positions.
    #[serde(default)]
    pub max_length: Option<usize>,
    /// Put the tokenizer's beginning-of-sequence token in front of each text, so that the first id is predicted, too. With a
    /// `stride`, the tokenizer decides which special tokens surround a text.
    #[serde(default = "yes")]
    pub add_start_token: bool,
}

fn yes() -> bool {
    true
}

/// Texts that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PerplexityOf {
    /// Predictions: their fluency.
    #[default]
    Prediction,
    /// References: how far a model moved away from them (RL4LMs).
    References,
    /// Predictions after their prompts: `exp` of (Σ losses of both − Σ losses of the prompt) / (ids of both − ids of the prompt).
    /// Values of 10,000 and more are left out (Quark). No beginning-of-sequence token is added.
    Continuation,
}

/// `exp` of the mean `−ln p` over the ids of a text.
pub struct Perplexity<'a> {
    options: PerplexityOptions,
    model: Box<dyn LanguageModel + 'a>,
    longest: Option<usize>,
}

impl Perplexity<'_> {
    /// Creates the metric.
    ///
    /// # Errors
    /// A model that cannot be opened, or a window that does not fit it.
    pub fn new(options: PerplexityOptions, models: &dyn Models) -> Result<Self> {
        let Some(name) = &options.model else {
            let hint = "name a causal language model: `--metric-option perplexity.model=gpt2`, or `perplexity: { model: gpt2 }` in a \
                        file";
            return Err(Error::input("`perplexity` needs its option `model` if no model is evaluated").with_hint(hint));
        };
        let model = models.language(name)?;
        Self::of(options, model)
    }
}

impl<'a> Perplexity<'a> {
    /// Creates the metric with this model instead of the one in the options.
    ///
    /// # Errors
    /// A window that does not fit the model.
    pub fn of(options: PerplexityOptions, model: Box<dyn LanguageModel + 'a>) -> Result<Self> {
        let name = options.model.as_deref().unwrap_or("the model that is evaluated").to_owned();
        let longest = match (options.max_length, model.positions()) {
            (Some(requested), Some(limit)) if requested > limit => {
                let message = format!("the option `max_length` of `perplexity` is {requested}");
                return Err(Error::input(format!("{message}, but `{name}` has {limit} positions")));
            }
            (requested, limit) => requested.or(limit),
        };
        match (options.stride, longest) {
            (Some(stride), Some(longest)) if stride > longest => {
                let message = format!("the option `stride` of `perplexity` is {stride}");
                return Err(Error::input(format!("{message}, which is more than a window of {longest} ids")));
            }
            // Without a limit, each window would read all preceding ids again.
            (Some(_), None) => {
                let message = format!("`{name}` has no limit to its positions: the length of a window must be set");
                return Err(
                    Error::input(message).with_hint("set the option `max_length` of `perplexity`, such as 1024")
                );
            }
            _ => {}
        }
        let is_continued = options.of == PerplexityOf::Continuation;
        if options.column.is_some() && is_continued {
            let message =
                "the option `column` of `perplexity` names what is read, but `of: continuation` reads predictions";
            return Err(Error::input(message).with_hint("leave one of them out"));
        }
        if options.stride.is_some() && is_continued {
            let message = "the option `stride` of `perplexity` joins the texts, but `of: continuation` reads each text separately";
            return Err(Error::input(message).with_hint("leave one of them out"));
        }
        if options.stride.is_none() && options.add_start_token && !is_continued && model.start().is_none() {
            let message = format!("the tokenizer of `{name}` has no token that texts begin with");
            return Err(Error::input(message).with_hint("set the option `add_start_token` of `perplexity` to false"));
        }
        Ok(Self { options, model, longest })
    }

    fn texts<'r>(&self, row: usize, of: &'r Row) -> Result<Vec<&'r str>, RowError> {
        if let Some(column) = &self.options.column {
            let missing = || RowError::new(row, format!("the row has no text in the column `{column}`"));
            return of.column_text(column).map(|text| vec![text]).ok_or_else(missing);
        }
        Ok(match self.options.of {
            PerplexityOf::Prediction | PerplexityOf::Continuation => vec![&of.prediction],
            PerplexityOf::References => of.references.iter().map(String::as_str).collect(),
        })
    }

    /// Returns the perplexity of each text alone, or `None` if no id is predicted.
    fn alone(&self, texts: &[String]) -> Result<Vec<Option<f64>>, RowError> {
        let start = self.model.start().filter(|_| self.options.add_start_token);
        let room = self.longest.map_or(usize::MAX, |longest| longest - usize::from(start.is_some()));
        let ids = |(row, text): (usize, &String)| {
            let mut ids = self.model.ids(text, false).map_err(|message| RowError::new(row, message))?;
            ids.truncate(room);
            Ok(start.into_iter().chain(ids).collect())
        };
        let ids: Vec<Vec<u32>> = texts.iter().enumerate().map(ids).collect::<Result<_, _>>()?;
        let read: Vec<&[u32]> = ids.iter().map(Vec::as_slice).filter(|ids| ids.len() > 1).collect();
        let mut losses = self.model.losses(&read).into_iter();
        let mut value = |ids: &Vec<u32>| {
            let losses = (ids.len() > 1).then(|| losses.next().expect("losses of every text"))?;
            Some((losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64).exp())
        };
        Ok(ids.iter().map(&mut value).collect())
    }

    /// Returns the perplexity of each prediction after its prompt, or `None` if no id is predicted or the value is too large.
    fn continued(&self, rows: &[Row]) -> Result<Vec<Option<f64>>, RowError> {
        let ids = |(row, text): (usize, &str)| {
            let mut ids = self.model.ids(text, false).map_err(|message| RowError::new(row, message))?;
            ids.truncate(self.longest.unwrap_or(usize::MAX));
            Ok(ids)
        };
        let wholes: Vec<String> = rows.iter().map(|row| format!("{}{}", row.prompt, row.prediction)).collect();
        let texts =
            rows.iter().zip(&wholes).enumerate().flat_map(|(i, (row, whole))| [(i, whole.as_str()), (i, &row.prompt)]);
        let ids: Vec<Vec<u32>> = texts.map(ids).collect::<Result<_, _>>()?;
        let read: Vec<&[u32]> = ids.iter().map(Vec::as_slice).filter(|ids| ids.len() > 1).collect();
        let mut losses = self.model.losses(&read).into_iter();
        let mut sum = |ids: &Vec<u32>| -> f64 {
            let losses = if ids.len() > 1 { losses.next().expect("losses of every text") } else { Vec::new() };
            losses.into_iter().map(f64::from).sum()
        };
        let mut value = |pair: &[Vec<u32>]| {
            let [whole, prompt] = pair else { unreachable!("two texts of each row") };
            let loss = sum(whole) - sum(prompt);
            // The very first id is not predicted.
            let predicted = whole.len().checked_sub(prompt.len().max(1)).filter(|count| *count > 0)?;
            Some((loss / predicted as f64).exp()).filter(|value| *value < MAX_PERPLEXITY)
        };
        Ok(ids.chunks_exact(2).map(&mut value).collect())
    }

    /// Computes the perplexity of a text with a window that moves by `stride`. Each window's mean is weighted by its number of new
    /// ids. The first id of the text is counted although it is not predicted, as in the loop that this is checked against.
    fn through(&self, text: &str, stride: usize) -> Result<f64, String> {
        let ids = self.model.ids(text, true)?;
        let longest = self.longest.unwrap_or(usize::MAX);
        let window = |i: usize| {
            let end = ids.len().min(i + stride);
            (&ids[(i + stride).saturating_sub(longest).min(i)..end], end - i)
        };
        // A window without predicted ids has no mean.
        let windows = (0..ids.len()).step_by(stride).map(window).filter(|(ids, _)| ids.len() > 1);
        let windows: Vec<(&[u32], usize)> = windows.collect();
        let losses = self.model.losses(&windows.iter().map(|&(ids, _)| ids).collect::<Vec<_>>());
        let (mut sum, mut counted) = (0.0, 0.0);
        for ((_, new), losses) in windows.iter().zip(losses) {
            let new_losses = &losses[losses.len().saturating_sub(*new)..];
            let mean = new_losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / new_losses.len() as f64;
            sum += mean * *new as f64;
            counted += *new as f64;
        }
        Ok((sum / counted).exp())
    }
}

impl Metric for Perplexity<'_> {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        if self.options.of == PerplexityOf::Continuation {
            return Ok(vec![Measure::mean_of_some("", &self.continued(rows)?)]);
        }
        let Some(stride) = self.options.stride else {
            let text = |(i, row): (usize, &Row)| Ok(self.texts(i, row)?.join(BETWEEN));
            let texts: Vec<String> = rows.iter().enumerate().map(text).collect::<Result<_, RowError>>()?;
            return Ok(vec![Measure::mean_of_some("", &self.alone(&texts)?)]);
        };
        let through =
            |row: usize, text: &str| self.through(text, stride).map_err(|message| RowError::new(row, message));
        let of_row = |(i, row): (usize, &Row)| through(i, &self.texts(i, row)?.join(BETWEEN));
        let each: Vec<f64> = rows.iter().enumerate().map(of_row).collect::<Result<_, _>>()?;
        let each: Vec<Option<f64>> =
            each.into_iter().map(|value| Some(value).filter(|value| !value.is_nan())).collect();
        let all = rows.iter().enumerate().map(|(i, row)| self.texts(i, row)).collect::<Result<Vec<_>, _>>()?.concat();
        Ok(vec![Measure::whole("", through(0, &all.join(BETWEEN))?), Measure::mean_of_some("rows", &each)])
    }

    fn is_reward(&self) -> bool {
        false
    }
}
