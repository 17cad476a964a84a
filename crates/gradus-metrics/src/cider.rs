//! CIDEr-D and CIDEr as `pycocoevalcap` 1.2 scores them.
//!
//! Vedantam et al. 2015, <https://arxiv.org/abs/1411.5726>. The inverse document frequencies come from the references of all measured rows,
//! unless a corpus is given. A single row without a corpus therefore scores 0. Words and scores are checked against `pycocoevalcap` 1.2.

use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::characters::split;
use crate::error::{Error, Result};
use crate::keyed::KeyedBy;
use crate::ngrams::{Grams, Words};
use crate::references::each;
use crate::{Measure, Metric, Row, RowError, files, spacy, stanford};

/// Longest n-gram.
const ORDERS: usize = 4;
/// Width of the length penalty, in bigrams.
const SIGMA: f64 = 6.0;

/// Options of [`Cider`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CiderOptions {
    /// CIDEr-D or plain CIDEr.
    pub variant: CiderVariant,
    /// Tokenizer that splits texts into words.
    pub tokenizer: CiderTokenizer,
    /// File of JSON lines with `references`: the documents that define the frequencies. Default: the references of the measured rows.
    pub corpus: Option<PathBuf>,
    /// Key of a row. Default `row`.
    pub keyed_by: KeyedBy,
}

impl Default for CiderOptions {
    fn default() -> Self {
        Self { variant: CiderVariant::D, tokenizer: CiderTokenizer::Ptb, corpus: None, keyed_by: KeyedBy::Row }
    }
}

/// Variant of CIDEr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CiderVariant {
    /// With clipped counts and a penalty on length differences, against gaming. `pycocoevalcap` calls this CIDEr.
    #[default]
    #[serde(rename = "cider-d")]
    D,
    /// The plain cosine of the paper's equation 2.
    #[serde(rename = "cider")]
    Plain,
}

/// Tokenizer of [`Cider`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CiderTokenizer {
    /// Treebank words in lower case without punctuation, as from Stanford's `PTBTokenizer`.
    #[default]
    Ptb,
    /// spaCy's tokenizer for English: case and punctuation stay (RL4LMs).
    Spacy,
    /// Split at whitespace only.
    Whitespace,
}

/// `10/N · Σₙ` of the mean cosine similarity between the tf-idf vectors of the prediction's and each reference's n-grams, with `N` = 4.
#[derive(Debug, Clone, Default)]
pub struct Cider {
    options: CiderOptions,
    /// Texts of each document of the corpus. `None` if the measured rows are the corpus.
    corpus: Option<Vec<Vec<String>>>,
}

impl Cider {
    /// Creates the metric with these options.
    ///
    /// # Errors
    /// The corpus cannot be read.
    pub fn new(options: CiderOptions) -> Result<Self> {
        let corpus = options.corpus.as_deref().map(read_corpus).transpose()?;
        Ok(Self { options, corpus })
    }

    /// Computes the score of each row.
    fn scores(&self, rows: &[Row]) -> Result<Vec<f64>, RowError> {
        let texts: Vec<Vec<Vec<String>>> = each(rows, |row, references| {
            std::iter::once(&row.prediction).chain(references).map(|text| self.words(text)).collect()
        })?;
        let documents = self.corpus.as_deref().unwrap_or_default();
        let documents: Vec<Vec<Vec<String>>> =
            documents.par_iter().map(|texts| texts.iter().map(|text| self.words(text)).collect()).collect();
        let mut words = Words::default();
        let all = texts.iter().chain(&documents).flatten();
        let sequences: Vec<Vec<u32>> = all.map(|text| words.ids(text.iter().map(String::as_str))).collect();
        // Index of the first text of each row (its prediction, then its references), then of each document.
        let mut starts = vec![0];
        for texts in texts.iter().chain(&documents) {
            starts.push(starts[starts.len() - 1] + texts.len());
        }
        let frequent: Vec<Range<usize>> = match self.corpus {
            Some(_) => (rows.len()..starts.len() - 1).map(|i| starts[i]..starts[i + 1]).collect(),
            None => (0..rows.len()).map(|i| starts[i] + 1..starts[i + 1]).collect(),
        };
        let mut scores = vec![0.0; rows.len()];
        let mut grams = Grams::new(&sequences);
        for order in 1..=ORDERS {
            if order > 1 {
                grams.lengthen();
            }
            let weights = inverse_frequencies(&grams, &frequent);
            let bigrams = |text: usize| sequences[text].len().saturating_sub(1) as f64;
            let is_d = self.options.variant == CiderVariant::D;
            scores.par_iter_mut().enumerate().for_each(|(row, score)| {
                let prediction = Vector::new(grams.names(starts[row]), &weights);
                let similarity = |text: usize| {
                    let reference = Vector::new(grams.names(text), &weights);
                    let cosine = prediction.cosine(&reference, is_d);
                    let difference = bigrams(starts[row]) - bigrams(text);
                    if is_d { cosine * (-difference * difference / (2.0 * SIGMA * SIGMA)).exp() } else { cosine }
                };
                let references = starts[row] + 1..starts[row + 1];
                let count = references.len() as f64;
                *score += 10.0 / (ORDERS as f64 * count) * references.map(similarity).sum::<f64>();
            });
        }
        Ok(scores)
    }

    fn words(&self, text: &str) -> Vec<String> {
        match self.options.tokenizer {
            CiderTokenizer::Spacy => spacy::words(text).into_iter().map(str::to_owned).collect(),
            CiderTokenizer::Whitespace => split(text).map(str::to_owned).collect(),
            CiderTokenizer::Ptb => stanford::words(text),
        }
    }
}

impl Metric for Cider {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        self.options.keyed_by.measure(rows, |rows| Ok(self.scores(rows)?.into_iter().map(Some).collect()))
    }

    /// Without a corpus, the frequencies are those of all rows.
    fn depends_on_batch(&self) -> bool {
        self.corpus.is_none() || self.options.keyed_by == KeyedBy::Prompt
    }
}

/// Computes `log documents − log(max(1, documents that contain it))` for every n-gram. Each document is a range of texts.
fn inverse_frequencies(grams: &Grams, documents: &[Range<usize>]) -> Vec<f64> {
    let mut last = vec![usize::MAX; grams.kinds()];
    let mut found = vec![0u32; grams.kinds()];
    for (document, texts) in documents.iter().enumerate() {
        for &name in texts.clone().flat_map(|text| grams.names(text)) {
            if std::mem::replace(&mut last[name as usize], document) != document {
                found[name as usize] += 1;
            }
        }
    }
    let all = (documents.len() as f64).ln();
    found.into_iter().map(|count| all - f64::from(count.max(1)).ln()).collect()
}

/// Reads the references of each row from a file of JSON lines.
fn read_corpus(path: &Path) -> Result<Vec<Vec<String>>> {
    let text = files::read_text(path)?;
    let document = |(i, line): (usize, &str)| -> Result<Vec<String>> {
        let bad = || Error::data(path, Some(i + 1), "expected an object with `references`, a text or a list of texts");
        let row: Map<String, Value> = serde_json::from_str(line).map_err(|_| bad())?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts = match row.get("references").or_else(|| row.get("reference")) {
            Some(Value::Array(texts)) => texts.iter().map(text).collect(),
            Some(value) => text(value).map(|text| vec![text]),
            None => None,
        };
        texts.ok_or_else(bad)
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(document).collect()
}

/// tf-idf weights of a text's n-grams, sorted by name.
struct Vector {
    weights: Vec<(u32, f64)>,
    norm: f64,
}

impl Vector {
    fn new(names: &[u32], inverse: &[f64]) -> Self {
        let mut names = names.to_vec();
        names.sort_unstable();
        let weight = |run: &[u32]| (run[0], run.len() as f64 * inverse[run[0] as usize]);
        let weights: Vec<(u32, f64)> = names.chunk_by(|a, b| a == b).map(weight).collect();
        let norm = weights.iter().map(|(_, weight)| weight * weight).sum::<f64>().sqrt();
        Self { weights, norm }
    }

    /// Computes the cosine similarity with a reference. With `clips`, no n-gram counts more often than in the reference.
    fn cosine(&self, reference: &Self, clips: bool) -> f64 {
        let (mut sum, mut i) = (0.0, 0);
        for &(name, weight) in &self.weights {
            while reference.weights.get(i).is_some_and(|(other, _)| *other < name) {
                i += 1;
            }
            if let Some((_, other)) = reference.weights.get(i).filter(|(other, _)| *other == name) {
                sum += if clips { weight.min(*other) } else { weight } * other;
            }
        }
        if self.norm != 0.0 && reference.norm != 0.0 { sum / (self.norm * reference.norm) } else { sum }
    }
}
