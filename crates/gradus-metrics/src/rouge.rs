//! ROUGE-1, -2, -L and -Lsum as `rouge_score` 0.1.2 computes them.
//!
//! Lin 2004, <https://aclanthology.org/W04-1013>. The value is the F-measure. Checked against `rouge_score` 0.1.2.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ngrams::{Grams, Words, shared};
use crate::punkt::Punkt;
use crate::references::{References, each};
use crate::row::in_parts;
use crate::stem::Porter;
use crate::{Measure, Metric, Resampling, Row, RowError, intervals, lcs};

/// Options of [`Rouge`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RougeOptions {
    /// Stem words of more than three letters.
    pub use_stemmer: bool,
    /// Use of several references.
    pub references: References,
    /// Aggregation of the rows into the corpus value.
    pub aggregate: Aggregate,
    /// Compute only this value. By default, the reward is the mean of ROUGE-1, -2 and -L.
    pub rouge_type: Option<RougeType>,
    /// Put each sentence on its own line for ROUGE-Lsum, as Hugging Face's scripts and FineGrainedRLHF do. NLTK's Punkt (`punkt`) splits
    /// the sentences. Default false.
    pub split_sentences: bool,
    /// Directory of NLTK's Punkt data (`tokenizers/punkt_tab/english`), for splitting sentences. Default: a built-in list of abbreviations.
    pub punkt: Option<PathBuf>,
    /// Swap prediction and reference, as FineGrainedRLHF does during training: ROUGE-Lsum then searches for the lines of the prediction.
    /// Default false.
    pub swapped: bool,
}

impl Default for RougeOptions {
    fn default() -> Self {
        let (references, aggregate) = (References::Max, Aggregate::Mean);
        Self {
            use_stemmer: true,
            references,
            aggregate,
            rouge_type: None,
            split_sentences: false,
            punkt: None,
            swapped: false,
        }
    }
}

/// Aggregation of the rows into the corpus value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Aggregate {
    /// The mean.
    #[default]
    Mean,
    /// The median of 1000 means over resamples, as in `rouge_score`'s `BootstrapAggregator`. It varies slightly around the mean.
    Bootstrap,
}

/// One of the four ROUGE values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RougeType {
    /// Unigrams.
    #[serde(rename = "rouge1")]
    Rouge1,
    /// Bigrams.
    #[serde(rename = "rouge2")]
    Rouge2,
    /// Longest common subsequence of the texts.
    #[serde(rename = "rougeL")]
    RougeL,
    /// Longest common subsequences of their lines.
    #[serde(rename = "rougeLsum")]
    RougeLsum,
}

/// The values, in the order of the results.
const PARTS: [(&str, RougeType); 4] = [
    ("rouge1", RougeType::Rouge1),
    ("rouge2", RougeType::Rouge2),
    ("rougeL", RougeType::RougeL),
    ("rougeLsum", RougeType::RougeLsum),
];

/// F-measures `2PR / (P + R)` of unigrams, bigrams, the longest common subsequence of the texts, and that of their lines. With several
/// references, the best one counts, separately for each value.
#[derive(Debug, Clone, Default)]
pub struct Rouge {
    options: RougeOptions,
    punkt: Punkt,
}

impl Rouge {
    /// Creates the metric with these options.
    ///
    /// # Errors
    /// The directory cannot be read, or it is given although sentences are not split.
    pub fn new(options: RougeOptions) -> Result<Self> {
        if options.punkt.is_some() && !options.split_sentences {
            let message = "`rouge` has `punkt`, which finds sentences, but `split_sentences` is false";
            return Err(Error::options(message).with_hint("set `split_sentences: true`, or leave `punkt` out"));
        }
        Ok(Self { punkt: Punkt::open(options.punkt.as_deref())?, options })
    }

    /// Computes the four F-measures against each reference, and returns the best of each kind.
    fn best(&self, prediction: &str, references: &[String]) -> [f64; 4] {
        let references = self.options.references.of(references);
        let texts: Vec<Text> = std::iter::once(prediction)
            .chain(references.iter().map(String::as_str))
            .map(|text| self.text(text))
            .collect();
        let mut words = Words::default();
        let lines: Vec<Vec<Vec<u32>>> = texts
            .iter()
            .map(|text| text.lines.iter().map(|line| words.ids(line.iter().map(String::as_str))).collect())
            .collect();
        let whole: Vec<Vec<u32>> = lines.iter().map(|lines| lines.concat()).collect();
        let kinds = words.len();
        let mut best = [0.0_f64; 4];
        let mut grams = Grams::new(&whole);
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        for (order, best) in best[..2].iter_mut().enumerate() {
            if order > 0 {
                grams.lengthen();
            }
            grams.count(0, &mut found);
            for reference in 1..whole.len() {
                grams.count(reference, &mut expected);
                let (predicted, referred) = (grams.names(0).len(), grams.names(reference).len());
                *best = best.max(f_measure(shared(&found, &expected) as usize, predicted, referred));
            }
        }
        for reference in 1..whole.len() {
            let common = lcs::length(&whole[reference], &whole[0]);
            best[2] = best[2].max(f_measure(common, whole[0].len(), whole[reference].len()));
            let (expected, found) = if self.options.swapped { (0, reference) } else { (reference, 0) };
            let hits = union_hits(&lines[expected], &lines[found], kinds);
            best[3] = best[3].max(f_measure(hits, whole[0].len(), whole[reference].len()));
        }
        best
    }

    fn text(&self, text: &str) -> Text {
        let mut stems = HashMap::new();
        let sentences = if self.options.split_sentences { self.punkt.sentences(text.trim()) } else { vec![text] };
        let lines = sentences.iter().flat_map(|sentence| sentence.split('\n'));
        Text { lines: lines.map(|line| self.words(line, &mut stems)).collect() }
    }

    /// Splits a line into lower-case runs of ASCII letters and digits, and stems them.
    fn words(&self, line: &str, stems: &mut HashMap<String, String>) -> Vec<String> {
        let lower = line.to_lowercase();
        let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let stemmed = |word: &str| {
            if !self.options.use_stemmer || word.len() <= 3 {
                return word.to_owned();
            }
            stems.entry(word.to_owned()).or_insert_with(|| Porter::Extended.stem(word)).clone()
        };
        words.map(stemmed).collect()
    }
}

/// Words of a text, line by line. A word never crosses a line break.
struct Text {
    lines: Vec<Vec<String>>,
}

impl Metric for Rouge {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let best = each(rows, |row, references| self.best(&row.prediction, references))?;
        let measure = |(i, (part, kind)): (usize, &(&str, RougeType))| {
            if self.options.rouge_type.is_some_and(|only| only != *kind) {
                return None;
            }
            let scores: Vec<f64> = best.iter().map(|scores| scores[i]).collect();
            let mean = Measure::mean(*part, &scores);
            Some(match self.options.aggregate {
                Aggregate::Mean => mean,
                Aggregate::Bootstrap => {
                    // As in `rouge_score`, each row is drawn alone, whatever its prompt.
                    let (alone, resampling) =
                        ((0..rows.len()).map(|row| vec![row]), Resampling { samples: 1000, seed: 0 });
                    let interval = intervals(&[&mean], &alone.collect::<Vec<_>>(), resampling)[0];
                    let middle = interval.map_or(mean.value(), |interval| interval.middle);
                    mean.with_value(middle)
                }
            })
        };
        Ok(PARTS.iter().enumerate().filter_map(measure).collect())
    }

    fn rewards(&self, rows: &[Row]) -> Result<Vec<f64>, RowError> {
        let best = each(rows, |row, references| self.best(&row.prediction, references))?;
        let reward = |scores: &[f64; 4]| match self.options.rouge_type {
            Some(kind) => scores[kind as usize],
            None => scores[..3].iter().sum::<f64>() / 3.0,
        };
        Ok(best.iter().map(reward).collect())
    }

    fn rewards_with_progress(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        in_parts(rows, done, |rows| self.rewards(rows))
    }
}

/// Returns the harmonic mean of precision and recall; 0 if there are no words.
fn f_measure(hits: usize, predicted: usize, expected: usize) -> f64 {
    let precision = hits as f64 / predicted.max(1) as f64;
    let recall = hits as f64 / expected.max(1) as f64;
    if precision + recall > 0.0 { 2.0 * precision * recall / (precision + recall) } else { 0.0 }
}

/// Counts the words of the reference that are on a longest common subsequence of their line with some line of the prediction. A word counts
/// at most as often as it occurs in each text.
fn union_hits(reference: &[Vec<u32>], prediction: &[Vec<u32>], kinds: usize) -> usize {
    let count = |lines: &[Vec<u32>]| {
        let mut counts = vec![0u32; kinds];
        lines.iter().flatten().for_each(|&word| counts[word as usize] += 1);
        counts
    };
    let (mut left, mut right) = (count(reference), count(prediction));
    let mut hits = 0;
    for line in reference {
        let mut marks = vec![false; line.len()];
        prediction.iter().for_each(|other| lcs::mark(line, other, &mut marks));
        for (&word, _) in line.iter().zip(&marks).filter(|(_, marked)| **marked) {
            let word = word as usize;
            if left[word] > 0 && right[word] > 0 {
                hits += 1;
                left[word] -= 1;
                right[word] -= 1;
            }
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_lines_where_that_is_asked_for() {
        let value = |split_sentences: bool, prediction: &str, reference: &str| {
            let options =
                RougeOptions { rouge_type: Some(RougeType::RougeLsum), split_sentences, ..Default::default() };
            let (prediction, references) = (prediction.to_owned(), vec![reference.to_owned()]);
            let row = Row { prompt: String::new(), prediction, references, metadata: serde_json::Map::new() };
            Rouge::new(options).expect("options").rewards(&[row]).expect("a value")[0]
        };
        let (one, other) = ("Dr. Pot sings. The tea is hot!", " The tea is hot! Dr. Pot sings.");
        let lines = |text: &str| text.trim().replace(". The", ".\nThe").replace("! Dr", "!\nDr");
        assert_eq!(value(true, one, other), 1.0, "both sentences are there");
        assert_eq!(value(true, one, other), value(false, &lines(one), &lines(other)));
        // As single lines, the two sentences are in different orders: four of seven words match.
        assert_eq!(value(false, one, other), 4.0 / 7.0);
    }
}
