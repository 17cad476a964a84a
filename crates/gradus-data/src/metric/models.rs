//! Interfaces of the models that metrics use. Metrics do not depend on files or devices: the caller passes in [`Models`], which
//! opens the models named in options.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};

/// Opens the models that metrics name.
pub trait Models {
    /// Opens a language model.
    ///
    /// # Errors
    /// If there is no model of that name, or it is of another kind.
    fn language(&self, name: &str) -> Result<Box<dyn LanguageModel>>;

    /// Opens an encoder, computed up to the given layer, counted from 1.
    ///
    /// # Errors
    /// As for [`language`](Self::language), and a layer that the model does not have.
    fn encoder(&self, name: &str, layer: usize) -> Result<Box<dyn EncoderModel>>;

    /// Opens a text classifier.
    ///
    /// # Errors
    /// As for [`language`](Self::language).
    fn classifier(&self, name: &str) -> Result<Box<dyn ClassifierModel>>;

    /// Opens a model with an encoder and a decoder, which generates a text from a text.
    ///
    /// # Errors
    /// As for [`language`](Self::language).
    fn text_to_text(&self, name: &str) -> Result<Box<dyn TextToTextModel>>;

    /// Reads all tensors in a file of weights by name: PyTorch's format or safetensors.
    ///
    /// # Errors
    /// A file that cannot be read, or that holds anything but floating-point tensors.
    fn tensors(&self, path: &Path) -> Result<BTreeMap<String, Vec<f32>>>;
}

/// A model that a metric uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricModel<'a> {
    /// Directory or hub name of the model.
    pub name: &'a str,
    /// Use that the metric makes of it.
    pub usage: ModelUse,
}

/// Use that a metric makes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelUse {
    /// Losses of a language model.
    Language,
    /// States of an encoder, computed up to a layer, if it is known.
    Encoder {
        /// The layer, from 1.
        layer: Option<usize>,
    },
    /// Logits of a classifier.
    Classifier,
    /// Logits of the answer of a model with an encoder and a decoder.
    TextToText,
}

/// A text that a model cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// Index of the text in the input, from 0.
    pub text: usize,
    /// Description of the problem.
    pub message: String,
}

/// Predicts the tokens of texts.
pub trait LanguageModel: Send + Sync {
    /// Tokenizes a text. With `special`, the result includes the special tokens that the tokenizer adds.
    ///
    /// # Errors
    /// If the tokenizer cannot read the text.
    fn ids(&self, text: &str, special: bool) -> Result<Vec<u32>, String>;

    /// Returns the beginning-of-text id, if the tokenizer has one.
    fn start(&self) -> Option<u32>;

    /// Returns the maximum length of a text in ids, if there is a limit.
    fn positions(&self) -> Option<usize>;

    /// Returns `−ln p` of every id but the first of each text, given the ids before it. No text is empty or longer than the limit.
    fn losses(&self, texts: &[&[u32]]) -> Vec<Vec<f32>>;
}

/// A text in an encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// Token ids, including the special tokens around the text.
    pub ids: Vec<u32>,
    /// States of the ids, concatenated.
    pub states: Vec<f32>,
}

/// Computes a state for every token of a text.
pub trait EncoderModel: Send + Sync {
    /// Returns the special ids that have no weight: those at the beginning of texts and between texts, but not those at the end.
    fn around(&self) -> &[u32];

    /// Tokenizes texts. Texts that are too long are cut at the end.
    ///
    /// # Errors
    /// The first text that the tokenizer cannot read.
    fn ids(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, TextError>;

    /// Computes the states of tokenized texts.
    ///
    /// # Errors
    /// The first text that the model cannot read.
    fn states(&self, texts: Vec<Vec<u32>>) -> Result<Vec<Encoded>, TextError>;
}

/// Side on which a long text is cut, and an optional maximum number of ids in addition to the model's own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// Cuts the beginning.
    Left(Option<usize>),
    /// Cuts the end. Of two texts, the longer one is cut first.
    Right(Option<usize>),
}

/// Computes how well labels fit texts or pairs of texts.
pub trait ClassifierModel: Send + Sync {
    /// Returns the labels.
    fn labels(&self) -> &[String];

    /// Returns the index of the label with this name or number.
    ///
    /// # Errors
    /// The available labels.
    fn label(&self, name: &str) -> Result<usize, String>;

    /// Returns whether the values are probabilities, or plain numbers.
    fn has_probabilities(&self) -> bool;

    /// Converts logits to a value per label: its probability or, for a model that outputs plain numbers, the number.
    fn values(&self, logits: &[f32]) -> Vec<f32>;

    /// Computes the logits of all labels for each text.
    ///
    /// # Errors
    /// The first text that cannot be read.
    fn logits(&self, texts: &[(&str, Option<&str>)], truncation: Truncation) -> Result<Vec<Vec<f32>>, TextError>;
}

/// Generates texts from texts.
pub trait TextToTextModel: Send + Sync {
    /// Returns the first id of a word.
    ///
    /// # Errors
    /// A word that the tokenizer cannot read, or that has no ids.
    fn first_id(&self, word: &str) -> Result<u32, String>;

    /// Returns the logits of `ids` as the first id of the answer to each text. Long texts are cut at the end.
    ///
    /// # Errors
    /// The first text that cannot be read.
    fn first_logits(&self, texts: &[&str], ids: &[u32]) -> Result<Vec<Vec<f32>>, TextError>;
}

/// Opens no models: metrics that need one are rejected.
#[derive(Debug, Clone, Copy)]
pub struct NoModels;

impl NoModels {
    fn refuse<T>(name: &str) -> Result<T> {
        Err(Error::input(format!("the metric needs the model `{name}`, but no models are opened here")))
    }
}

impl Models for NoModels {
    fn language(&self, name: &str) -> Result<Box<dyn LanguageModel>> {
        Self::refuse(name)
    }

    fn encoder(&self, name: &str, _layer: usize) -> Result<Box<dyn EncoderModel>> {
        Self::refuse(name)
    }

    fn classifier(&self, name: &str) -> Result<Box<dyn ClassifierModel>> {
        Self::refuse(name)
    }

    fn text_to_text(&self, name: &str) -> Result<Box<dyn TextToTextModel>> {
        Self::refuse(name)
    }

    fn tensors(&self, path: &Path) -> Result<BTreeMap<String, Vec<f32>>> {
        Self::refuse(&path.display().to_string())
    }
}

/// Computes `exp z / Σ exp z`.
pub(super) fn softmax(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - top).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Returns the index of the largest value, the first one for ties.
pub(super) fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}
