//! What metrics ask of models. They know neither files nor devices: who measures hands in [`Models`], which opens what an
//! option names.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};

/// Opens the models that metrics name.
pub trait Models {
    /// A language model.
    ///
    /// # Errors
    /// When there is none of that name, or it is of another kind.
    fn language(&self, name: &str) -> Result<Box<dyn LanguageModel>>;

    /// An encoder, computed up to the given layer, counted from 1.
    ///
    /// # Errors
    /// As [`language`](Self::language), and a layer that it does not have.
    fn encoder(&self, name: &str, layer: usize) -> Result<Box<dyn EncoderModel>>;

    /// A classifier of texts.
    ///
    /// # Errors
    /// As [`language`](Self::language).
    fn classifier(&self, name: &str) -> Result<Box<dyn ClassifierModel>>;

    /// A model with an encoder and a decoder, which answers a text with a text.
    ///
    /// # Errors
    /// As [`language`](Self::language).
    fn text_to_text(&self, name: &str) -> Result<Box<dyn TextToTextModel>>;

    /// The numbers of every tensor in a file of weights, by name: PyTorch's or safetensors.
    ///
    /// # Errors
    /// A file that cannot be read, or that holds something else than floating-point tensors.
    fn tensors(&self, path: &Path) -> Result<BTreeMap<String, Vec<f32>>>;
}

/// A model that a metric asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricModel<'a> {
    /// Its directory or hub name.
    pub name: &'a str,
    /// What it is asked for.
    pub asked: ModelUse,
}

/// What a metric asks of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelUse {
    /// The losses of a language model.
    Language,
    /// The states of an encoder, computed up to a layer where that is known.
    Encoder {
        /// The layer, from 1.
        layer: Option<usize>,
    },
    /// The logits of a classifier.
    Classifier,
    /// What a model with an encoder would answer.
    TextToText,
}

/// A text that a model cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// Which of those given, from 0.
    pub text: usize,
    /// What is wrong with it.
    pub message: String,
}

/// Predicts the tokens of texts.
pub trait LanguageModel: Send + Sync {
    /// The ids of a text; with `special`, those included that the tokenizer puts around it by itself.
    ///
    /// # Errors
    /// What the tokenizer cannot read.
    fn ids(&self, text: &str, special: bool) -> Result<Vec<u32>, String>;

    /// The id that texts begin with, where the tokenizer has one.
    fn start(&self) -> Option<u32>;

    /// Ids of the longest text, where there is a limit.
    fn positions(&self) -> Option<usize>;

    /// `−ln p` of every id but the first of each text, given those before it. No text is empty or longer than the limit.
    fn losses(&self, texts: &[&[u32]]) -> Vec<Vec<f32>>;
}

/// A text as an encoder has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// Its ids, those included that the tokenizer puts around it.
    pub ids: Vec<u32>,
    /// A state for each id, one after the other.
    pub states: Vec<f32>,
}

/// Gives every token of a text a state.
pub trait EncoderModel: Send + Sync {
    /// The ids around a text that weigh nothing: those that begin texts and part them, not those that end them.
    fn around(&self) -> &[u32];

    /// The ids of texts, cut at their end where they are too long.
    ///
    /// # Errors
    /// The first text that the tokenizer cannot read.
    fn ids(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, TextError>;

    /// The states of texts by their ids.
    ///
    /// # Errors
    /// The first text that the model cannot read.
    fn states(&self, texts: Vec<Vec<u32>>) -> Result<Vec<Encoded>, TextError>;
}

/// At which side a text that is too long is cut, and to how many ids at most, whatever the model's own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Longest {
    /// Cut at its beginning.
    Left(Option<usize>),
    /// Cut at its end, of two texts the longer one first.
    Right(Option<usize>),
}

/// Says of texts, or of pairs of texts, how much labels fit.
pub trait ClassifierModel: Send + Sync {
    /// The labels.
    fn labels(&self) -> &[String];

    /// The number of the label of this name or number.
    ///
    /// # Errors
    /// Which labels there are.
    fn label(&self, name: &str) -> Result<usize, String>;

    /// What logits mean for every label: its probability, or of a model that gives numbers of their own the number.
    fn values(&self, logits: &[f32]) -> Vec<f32>;

    /// A number for every label, of each text.
    ///
    /// # Errors
    /// The first text that cannot be read.
    fn logits(&self, texts: &[(&str, Option<&str>)], longest: Longest) -> Result<Vec<Vec<f32>>, TextError>;
}

/// Answers texts with texts.
pub trait TextToTextModel: Send + Sync {
    /// The first id of a word.
    ///
    /// # Errors
    /// A word that the tokenizer cannot read, or that has no ids.
    fn first_id(&self, word: &str) -> Result<u32, String>;

    /// The logits of `ids` for the first id of the answer to each text. A text that is too long is cut at its end.
    ///
    /// # Errors
    /// The first text that cannot be read.
    fn first_logits(&self, texts: &[&str], ids: &[u32]) -> Result<Vec<Vec<f32>>, TextError>;
}

/// No model is there: what names one is refused.
#[derive(Debug, Clone, Copy)]
pub struct NoModels;

impl NoModels {
    fn refuse<T>(name: &str) -> Result<T> {
        Err(Error::input(format!("the metric asks the model `{name}`, but no models are opened here")))
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

/// `exp z / Σ exp z`.
pub(super) fn softmax(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - top).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// The index of the largest value; of equal ones the first.
pub(super) fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}
