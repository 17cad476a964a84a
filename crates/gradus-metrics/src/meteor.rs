//! METEOR as NLTK 3.10 computes it.
//!
//! Lavie and Agarwal 2007, <https://aclanthology.org/W07-0734>. Checked against `nltk` 3.10.4 (`meteor_score`) on the words of its
//! `word_tokenize`, as `evaluate` and RL4LMs call it.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::nltk::WordTokenizer;
use crate::references::{References, each};
use crate::row::in_parts;
use crate::stem::Porter;
use crate::treebank::Rules;
use crate::wordnet::WordNet;
use crate::{Measure, Metric, Row, RowError};

/// Options of [`Meteor`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MeteorOptions {
    /// Weight of recall in the mean of precision and recall, from 0 to 1.
    pub alpha: f64,
    /// Exponent of the penalty: how fast it grows with the share of chunks.
    pub beta: f64,
    /// Largest penalty.
    pub gamma: f64,
    /// Use of several references. `repr` also splits words as NLTK 3.7 did.
    pub references: References,
    /// WordNet, for synonyms: a directory, or NLTK's `wordnet.zip`. By default, gradus searches NLTK's data directories (`NLTK_DATA`,
    /// `~/nltk_data`, …). `none` disables synonyms: words then match by letters and stems alone.
    pub wordnet: Option<PathBuf>,
    /// Directory of NLTK's Punkt data (`tokenizers/punkt_tab/english`), for splitting sentences. Default: a built-in list of abbreviations.
    pub punkt: Option<PathBuf>,
}

impl Default for MeteorOptions {
    fn default() -> Self {
        Self { alpha: 0.9, beta: 3.0, gamma: 0.5, references: References::Max, wordnet: None, punkt: None }
    }
}

/// `(1 − γ (chunks / matches)^β) · PR / (αP + (1 − α)R)` of words matched by letters, stems and synonyms; the best over references.
#[derive(Debug)]
pub struct Meteor {
    options: MeteorOptions,
    tokenizer: WordTokenizer,
    wordnet: Option<WordNet>,
}

impl Meteor {
    /// Creates the metric with these options.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub fn new(options: MeteorOptions) -> Result<Self> {
        let wordnet = WordNet::open(options.wordnet.as_deref())?;
        Ok(Self { tokenizer: WordTokenizer::new(options.punkt.as_deref())?, wordnet, options })
    }

    /// Returns the rules of the NLTK version that RL4LMs pins if its reference handling is selected.
    fn rules(&self) -> Rules {
        if self.options.references == References::Repr { Rules::V3_7 } else { Rules::Today }
    }

    fn words(&self, text: &str) -> Vec<String> {
        self.tokenizer.words(text, self.rules()).into_iter().map(|word| word.to_lowercase()).collect()
    }

    /// Returns the best score over the references.
    fn best(&self, row: &Row, references: &[String]) -> f64 {
        let prediction = self.words(&row.prediction);
        let references = self.options.references.of(references);
        let score = |reference: &String| self.score(&prediction, &self.words(reference));
        // The score is negative if the penalty exceeds 1.
        references.iter().map(score).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Scores lower-cased words.
    fn score(&self, prediction: &[String], reference: &[String]) -> f64 {
        let mut pairs = self.align(prediction, reference);
        if pairs.is_empty() {
            return 0.0;
        }
        pairs.sort_unstable();
        let matches = pairs.len() as f64;
        let (precision, recall) = (matches / prediction.len() as f64, matches / reference.len() as f64);
        let MeteorOptions { alpha, beta, gamma, .. } = self.options;
        let mean = precision * recall / (alpha * precision + (1.0 - alpha) * recall);
        let is_break = |pair: &[(usize, usize)]| pair[1].0 != pair[0].0 + 1 || pair[1].1 != pair[0].1 + 1;
        let chunks = 1 + pairs.windows(2).filter(|pair| is_break(pair)).count();
        (1.0 - gamma * (chunks as f64 / matches).powf(beta)) * mean
    }

    /// Returns pairs of matching positions, in three stages, each from the end: words, stems, synonyms of stems.
    fn align(&self, prediction: &[String], reference: &[String]) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        let left: Vec<(usize, &str)> = prediction.iter().map(String::as_str).enumerate().collect();
        let right: Vec<(usize, &str)> = reference.iter().map(String::as_str).enumerate().collect();
        let (left, right) = matched(&left, &right, &mut pairs);
        let stems = |words: &[(usize, &str)]| -> Vec<(usize, String)> {
            words.iter().map(|(place, word)| (*place, Porter::Extended.stem(word))).collect()
        };
        let (left, right) = (stems(&left), stems(&right));
        let (left, right) = matched(&borrowed(&left), &borrowed(&right), &mut pairs);
        let Some(wordnet) = &self.wordnet else { return pairs };
        let mut right = right;
        for (place, stem) in left.iter().rev() {
            let synonyms = wordnet.synonyms(stem, self.rules());
            if let Some(found) = right.iter().rposition(|(_, word)| synonyms.contains(word)) {
                pairs.push((*place, right.remove(found).0));
            }
        }
        pairs
    }
}

type Words<'a> = Vec<(usize, &'a str)>;

/// Pairs each word of `left`, from the last on, with the last equal word of `right` that is free. Returns the unpaired words of both.
fn matched<'a>(
    left: &[(usize, &'a str)],
    right: &[(usize, &'a str)],
    pairs: &mut Vec<(usize, usize)>,
) -> (Words<'a>, Words<'a>) {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, (_, word)) in right.iter().enumerate() {
        places.entry(word).or_default().push(i);
    }
    let (mut left_over, mut is_free) = (Vec::new(), vec![true; right.len()]);
    for (place, word) in left.iter().rev() {
        match places.get_mut(word).and_then(Vec::pop) {
            Some(i) => {
                pairs.push((*place, right[i].0));
                is_free[i] = false;
            }
            None => left_over.push((*place, *word)),
        }
    }
    left_over.reverse();
    (left_over, right.iter().zip(is_free).filter(|(_, free)| *free).map(|(word, _)| *word).collect())
}

impl Metric for Meteor {
    fn remark(&self, _rows: &mut dyn Iterator<Item = Row>) -> Option<String> {
        self.wordnet.is_none().then(|| {
            "without WordNet: words match by letters and stems, not by synonyms, so values are lower than NLTK's; set \
             the metric's option `wordnet` to WordNet's directory, or install it where NLTK looks for it"
                .to_owned()
        })
    }

    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        Ok(vec![Measure::mean("", &each(rows, |row, references| self.best(row, references))?)])
    }

    fn rewards_with_progress(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        in_parts(rows, done, |rows| self.rewards(rows))
    }
}

/// Borrows the text of owned words.
fn borrowed(words: &[(usize, String)]) -> Words<'_> {
    words.iter().map(|(place, word)| (*place, word.as_str())).collect()
}
