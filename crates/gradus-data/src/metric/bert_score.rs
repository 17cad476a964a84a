//! BERTScore: matches the tokens of two texts by the cosine of their states.
//!
//! Zhang et al. 2020, <https://arxiv.org/abs/1904.09675>. Checked against `bert-score` 0.3.13.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use gradus_metrics::characters::is_space;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::models::{Encoded, EncoderModel, Models, TextError};
use super::{Measure, Metric, Row, RowError};
use crate::error::{Error, Result};

/// Maximum number of ids in a text that `bert-score` treats as empty: most models add two special tokens to a text. T5 adds only
/// one, so there a text of one id also counts as empty.
const EMPTY: usize = 2;

/// Number of texts whose states are held in memory at once.
const TEXTS: usize = 256;

/// Layers that agree best with human ratings, by the end of the model's name (`bert-score`'s table).
const LAYERS: &[(&str, usize)] = &[
    ("DeBERTa-v3-large-mnli", 18),
    ("albert-base-v1", 10),
    ("albert-base-v2", 9),
    ("albert-large-v1", 17),
    ("albert-large-v2", 14),
    ("albert-xlarge-v1", 16),
    ("albert-xlarge-v2", 13),
    ("albert-xxlarge-v1", 8),
    ("albert-xxlarge-v2", 8),
    ("T5_Paraphrase_Paws", 12),
    ("bert-base-cased-finetuned-mrpc", 9),
    ("bert-base-chinese", 8),
    ("bert-base-multilingual-cased", 9),
    ("bert-base-turkish-cased", 10),
    ("bert-base-uncased", 9),
    ("bert-large-uncased", 18),
    ("bert_uncased_L-10_H-128_A-2", 8),
    ("bert_uncased_L-10_H-256_A-4", 8),
    ("bert_uncased_L-10_H-512_A-8", 9),
    ("bert_uncased_L-10_H-768_A-12", 8),
    ("bert_uncased_L-12_H-128_A-2", 10),
    ("bert_uncased_L-12_H-256_A-4", 11),
    ("bert_uncased_L-12_H-512_A-8", 10),
    ("bert_uncased_L-12_H-768_A-12", 9),
    ("bert_uncased_L-2_H-128_A-2", 1),
    ("bert_uncased_L-2_H-256_A-4", 1),
    ("bert_uncased_L-2_H-512_A-8", 1),
    ("bert_uncased_L-2_H-768_A-12", 2),
    ("bert_uncased_L-4_H-128_A-2", 3),
    ("bert_uncased_L-4_H-256_A-4", 3),
    ("bert_uncased_L-4_H-512_A-8", 3),
    ("bert_uncased_L-4_H-768_A-12", 3),
    ("bert_uncased_L-6_H-128_A-2", 5),
    ("bert_uncased_L-6_H-256_A-4", 5),
    ("bert_uncased_L-6_H-512_A-8", 5),
    ("bert_uncased_L-6_H-768_A-12", 5),
    ("bert_uncased_L-8_H-128_A-2", 7),
    ("bert_uncased_L-8_H-256_A-4", 7),
    ("bert_uncased_L-8_H-512_A-8", 6),
    ("bert_uncased_L-8_H-768_A-12", 7),
    ("deberta-base", 9),
    ("deberta-base-mnli", 9),
    ("deberta-large", 16),
    ("deberta-large-mnli", 18),
    ("deberta-v2-xlarge", 10),
    ("deberta-v2-xlarge-mnli", 17),
    ("deberta-v2-xxlarge", 21),
    ("deberta-v2-xxlarge-mnli", 22),
    ("deberta-v3-base", 9),
    ("deberta-v3-large", 12),
    ("deberta-v3-small", 4),
    ("deberta-v3-xsmall", 10),
    ("deberta-xlarge", 18),
    ("deberta-xlarge-mnli", 40),
    ("distilbert-base-multilingual-cased", 5),
    ("distilbert-base-turkish-cased", 4),
    ("distilbert-base-uncased", 5),
    ("distilbert-base-uncased-distilled-squad", 4),
    ("distilroberta-base", 5),
    ("finbert", 10),
    ("longformer-base-4096", 7),
    ("longformer-large-4096", 14),
    ("longformer-large-4096-finetuned-triviaqa", 14),
    ("mdeberta-v3-base", 10),
    ("mt5-base", 11),
    ("mt5-large", 19),
    ("mt5-small", 8),
    ("mt5-xl", 24),
    ("roberta-base", 10),
    ("roberta-base-openai-detector", 7),
    ("roberta-large", 17),
    ("roberta-large-mnli", 19),
    ("roberta-large-openai-detector", 15),
    ("scibert_basevocab_uncased", 9),
    ("scibert_scivocab_cased", 9),
    ("scibert_scivocab_uncased", 8),
    ("spanbert-base-cased", 8),
    ("spanbert-large-cased", 17),
    ("sup-simcse-bert-base-uncased", 10),
    ("sup-simcse-bert-large-uncased", 18),
    ("sup-simcse-roberta-base", 10),
    ("sup-simcse-roberta-large", 16),
    ("t5-base", 11),
    ("t5-large", 23),
    ("t5-small", 6),
    ("t5_paraphraser", 11),
    ("unsup-simcse-bert-base-uncased", 10),
    ("unsup-simcse-bert-large-uncased", 18),
    ("unsup-simcse-roberta-base", 8),
    ("unsup-simcse-roberta-large", 13),
    ("xlm-roberta-base", 9),
    ("xlm-roberta-large", 17),
];

/// Options of [`BertScore`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BertScoreOptions {
    /// The encoder: a directory or a hub name, such as `FacebookAI/roberta-large` (RL4LMs' for English). For a T5, only its encoder
    /// is used.
    pub model: String,
    /// The layer whose states are compared, counted from 1. Default: `bert-score`'s layer, for the models in its table.
    #[serde(default)]
    pub layer: Option<usize>,
    /// Weight tokens by their inverse document frequency in the references.
    #[serde(default)]
    pub idf: bool,
    /// A file of baselines (`LAYER,P,R,F`), which scores are rescaled by: a baseline becomes 0. The `rescale_baseline` folder of
    /// `bert-score` has the baselines of many models.
    #[serde(default)]
    pub baseline: Option<PathBuf>,
}

/// Similarity of the prediction's tokens to those of the best reference.
pub struct BertScore {
    model: Box<dyn EncoderModel>,
    idf: bool,
    /// Baselines of precision, recall and F1.
    baseline: [f64; 3],
}

/// A text to compare: its states, normalized to length 1, and the weights of its tokens.
struct Weighed {
    states: Vec<f32>,
    weights: Vec<f64>,
    width: usize,
}

impl BertScore {
    /// Creates the metric.
    ///
    /// # Errors
    /// A model that cannot be opened, an unknown default layer, or a file of baselines without that layer.
    pub fn new(options: &BertScoreOptions, models: &dyn Models) -> Result<Self> {
        let layer = options.layer().ok_or_else(|| {
            Error::input(format!("`bert_score` has no default layer for the model `{}`", options.model))
                .with_hint("set the option `layer`, counted from 1: for most models, a layer in the upper half")
        })?;
        let baseline = options.baseline.as_deref().map_or(Ok([0.0; 3]), |path| baseline(path, layer))?;
        Ok(Self { model: models.encoder(&options.model, layer)?, idf: options.idf, baseline })
    }

    /// Returns the weight of each id: `ln((N + 1)/(n + 1))`, where n of N references contain it. Without `idf` the weight is 1.
    /// Special tokens around a text weigh 0.
    fn weigh(&self, references: &[Vec<u32>]) -> impl Fn(u32) -> f64 + Sync + use<> {
        let mut weights: HashMap<u32, f64> = HashMap::new();
        let mut unseen = 1.0;
        if self.idf {
            let all = references.len() as f64 + 1.0;
            for ids in references {
                for id in ids.iter().collect::<BTreeSet<_>>() {
                    *weights.entry(*id).or_insert(1.0) += 1.0;
                }
            }
            weights.values_mut().for_each(|count| *count = (all / *count).ln());
            unseen = all.ln();
        } else {
            weights.extend(self.model.around().iter().map(|&id| (id, 0.0)));
        }
        move |id| weights.get(&id).copied().unwrap_or(unseen)
    }

    /// Returns precision, recall and F1 of every row. `done` receives the number of rows read so far, and stops the work by
    /// returning false.
    fn scores(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<[f64; 3]>, RowError> {
        // Every distinct text, with the first row that has it.
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut texts: Vec<(&str, usize)> = Vec::new();
        let mut add = |text, row| {
            *numbers.entry(text).or_insert_with(|| {
                texts.push((text, row));
                texts.len() - 1
            })
        };
        let mut pairs: Vec<(usize, Vec<usize>)> = Vec::with_capacity(rows.len());
        for (i, row) in rows.iter().enumerate() {
            if row.references.is_empty() {
                return Err(RowError::without_references(i));
            }
            let references = row.references.iter().map(|text| add(text.trim_matches(is_space), i)).collect();
            pairs.push((add(row.prediction.trim_matches(is_space), i), references));
        }
        let of_row = |error: TextError, first: usize| RowError::new(texts[first + error.text].1, error.message);
        let words: Vec<&str> = texts.iter().map(|&(text, _)| text).collect();
        let ids = self.model.ids(&words).map_err(|error| of_row(error, 0))?;
        let references: Vec<Vec<u32>> =
            pairs.iter().flat_map(|(_, references)| references).map(|&text| ids[text].clone()).collect();
        let weigh = self.weigh(&references);
        let mut weighed: Vec<Weighed> = Vec::with_capacity(ids.len());
        for (chunk, ids) in ids.chunks(TEXTS).enumerate() {
            let encoded = self.model.states(ids.to_vec()).map_err(|error| of_row(error, chunk * TEXTS))?;
            weighed.extend(encoded.into_iter().map(|text| Weighed::new(text, &weigh)));
            if !done(rows.len() * weighed.len() / texts.len()) {
                return Err(RowError::interrupted(0));
            }
        }
        let score = |(prediction, references): &(usize, Vec<usize>)| {
            let of = |reference: &usize| compare(&weighed[*prediction], &weighed[*reference]);
            let best = references.iter().map(of).fold([f64::NEG_INFINITY; 3], |best, found| {
                // One NaN makes the result NaN.
                [0, 1, 2].map(|i| if best[i] >= found[i] || best[i].is_nan() { best[i] } else { found[i] })
            });
            [0, 1, 2].map(|i| (best[i] - self.baseline[i]) / (1.0 - self.baseline[i]))
        };
        Ok(pairs.par_iter().map(score).collect())
    }
}

impl Weighed {
    fn new(text: Encoded, weigh: impl Fn(u32) -> f64) -> Self {
        let width = text.states.len() / text.ids.len().max(1);
        let mut states = text.states;
        for state in states.chunks_exact_mut(width.max(1)) {
            let length = state.iter().map(|x| x * x).sum::<f32>().sqrt();
            state.iter_mut().for_each(|x| *x /= length);
        }
        Self { states, weights: text.ids.into_iter().map(weigh).collect(), width }
    }

    fn state(&self, i: usize) -> &[f32] {
        &self.states[i * self.width..][..self.width]
    }
}

/// Computes precision, recall and F1 of two texts: the weighted means of each token's largest cosine with a token of the other
/// text. Precision and recall are 0 if a text counts as empty. F1 is not: as in `bert-score`, it is computed from the values before
/// that.
fn compare(prediction: &Weighed, reference: &Weighed) -> [f64; 3] {
    let (n, m) = (prediction.weights.len(), reference.weights.len());
    let (mut best_n, mut best_m) = (vec![f32::NEG_INFINITY; n], vec![f32::NEG_INFINITY; m]);
    for (i, best) in best_n.iter_mut().enumerate() {
        for (j, other) in best_m.iter_mut().enumerate() {
            let cosine = prediction.state(i).iter().zip(reference.state(j)).map(|(a, b)| a * b).sum::<f32>();
            *best = best.max(cosine);
            *other = other.max(cosine);
        }
    }
    let mean = |best: &[f32], weights: &[f64]| {
        let sum: f64 = weights.iter().sum();
        best.iter().zip(weights).map(|(&best, weight)| f64::from(best) * weight).sum::<f64>() / sum
    };
    let (precision, recall) = (mean(&best_n, &prediction.weights), mean(&best_m, &reference.weights));
    let f1 = 2.0 * precision * recall / (precision + recall);
    let of_empty = |value: f64| if n == EMPTY || m == EMPTY { 0.0 } else { value };
    [of_empty(precision), of_empty(recall), if f1.is_nan() { 0.0 } else { f1 }]
}

impl BertScoreOptions {
    /// Returns the configured layer, or `bert-score`'s default.
    pub(super) fn layer(&self) -> Option<usize> {
        let name = self.model.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let known = LAYERS.iter().find(|(known, _)| *known == name).map(|&(_, layer)| layer);
        self.layer.or(known)
    }
}

/// Reads the baselines of a layer.
fn baseline(path: &Path, layer: usize) -> Result<[f64; 3]> {
    let text = crate::files::read_text(path, 1 << 20).map_err(|error| Error::io(path, error))?;
    for (i, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
        let numbers: Vec<Option<f64>> = line.split(',').map(|number| number.trim().parse().ok()).collect();
        match numbers.as_slice() {
            [Some(of), Some(p), Some(r), Some(f)] if [p, r, f].iter().all(|&&value| value < 1.0) => {
                if *of == layer as f64 {
                    return Ok([*p, *r, *f]);
                }
            }
            _ => {
                let message = format!("expected a layer and three numbers below 1, `LAYER,P,R,F` (found `{line}`)");
                return Err(Error::data(path, Some(i + 1), message));
            }
        }
    }
    Err(Error::data(path, None, format!("no baseline of layer {layer}")))
}

impl Metric for BertScore {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let scores = self.scores(rows, &mut |_| true)?;
        let part = |part: &str, i: usize| {
            let of: Vec<f64> = scores.iter().map(|score| score[i]).collect();
            Measure::mean(part, &of)
        };
        Ok(vec![part("f1", 2), part("precision", 0), part("recall", 1)])
    }

    fn rewards_with_progress(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        Ok(self.scores(rows, done)?.into_iter().map(|[_, _, f1]| f1).collect())
    }

    /// The frequencies of `idf` are those of all references of the call.
    fn depends_on_batch(&self) -> bool {
        self.idf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An encoder that reads nothing.
    struct NoEncoder;

    impl EncoderModel for NoEncoder {
        fn around(&self) -> &[u32] {
            &[]
        }

        fn ids(&self, _: &[&str]) -> Result<Vec<Vec<u32>>, TextError> {
            Ok(Vec::new())
        }

        fn states(&self, _: Vec<Vec<u32>>) -> Result<Vec<Encoded>, TextError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn frequencies_of_references_make_a_score_depend_on_the_other_rows() {
        let metric = |idf| BertScore { model: Box::new(NoEncoder), idf, baseline: [0.0; 3] };
        assert!(metric(true).depends_on_batch());
        assert!(!metric(false).depends_on_batch());
    }
}
