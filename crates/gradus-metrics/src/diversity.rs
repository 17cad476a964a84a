//! Diversity of the predictions, as GEM-metrics (at 431a817) measures it.
//!
//! Gehrmann et al. 2021, <https://aclanthology.org/2021.gem-1.10>. All values describe the predictions together. Values whose name ends in
//! `nopunct` ignore words that are a single punctuation mark.

use std::path::PathBuf;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ngrams::{Grams, Words};
use crate::nltk::WordTokenizer;
use crate::{Measure, Metric, Row, RowError};

/// Options of [`Diversity`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DiversityOptions {
    /// Words per window of the mean segmental type–token ratio.
    pub window_size: usize,
    /// Directory of NLTK's Punkt data (`tokenizers/punkt_tab/english`), for splitting sentences. Default: a built-in list of abbreviations.
    pub punkt: Option<PathBuf>,
}

impl Default for DiversityOptions {
    fn default() -> Self {
        Self { window_size: 100, punkt: None }
    }
}

/// Lengths, type–token ratios, distinct and unique n-grams, entropies.
#[derive(Debug, Clone, Default)]
pub struct Diversity {
    options: DiversityOptions,
    tokenizer: WordTokenizer,
}

impl Diversity {
    /// Creates the metric with these options.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn new(options: DiversityOptions) -> Result<Self> {
        Ok(Self { tokenizer: WordTokenizer::new(options.punkt.as_deref())?, options })
    }
}

impl Metric for Diversity {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let texts: Vec<Vec<String>> = rows.par_iter().map(|row| self.tokenizer.lower(&row.prediction)).collect();
        let is_mark = |word: &str| word.len() == 1 && word.bytes().all(|b| b.is_ascii_punctuation());
        let mut measures = Vec::new();
        for (glue, keeps_marks) in [("", true), ("nopunct", false)] {
            let mut words = Words::default();
            let is_kept = |word: &&str| keeps_marks || !is_mark(word);
            let sequences: Vec<Vec<u32>> =
                texts.iter().map(|text| words.ids(text.iter().map(String::as_str).filter(is_kept))).collect();
            measures.extend(self.of(&sequences, glue));
        }
        Ok(measures)
    }

    fn is_reward(&self) -> bool {
        false
    }
}

impl Diversity {
    fn of(&self, sequences: &[Vec<u32>], ending: &str) -> Vec<Measure> {
        let called = |name: String| if ending.is_empty() { name } else { format!("{name}-{ending}") };
        let window = self.options.window_size;
        let segmental = if ending.is_empty() { format!("msttr-{window}") } else { format!("msttr-{window}_{ending}") };
        let mut lengths: Vec<f64> = sequences.iter().map(|text| text.len() as f64).collect();
        let mean = Measure::mean(called("mean_pred_length".into()), &lengths);
        let total: f64 = lengths.iter().sum();
        let average = total / lengths.len() as f64;
        let deviation = (lengths.iter().map(|n| (n - average).powi(2)).sum::<f64>() / lengths.len() as f64).sqrt();
        lengths.sort_by(f64::total_cmp);
        let middle = lengths.len() / 2;
        let median = match lengths.len() {
            0 => f64::NAN,
            n if n.is_multiple_of(2) => (lengths[middle - 1] + lengths[middle]) / 2.0,
            _ => lengths[middle],
        };
        let whole = |name: &str, value: f64| Measure::whole(called(name.into()), value);
        let words = sequences.concat();
        let segmental = match words.len() < window {
            true => {
                let reason = format!("all texts together have {} words, but the window has {window}", words.len());
                Measure::undefined(segmental, reason)
            }
            false => Measure::whole(segmental, segmental_ratio(&words, window)),
        };
        let mut measures = vec![
            segmental,
            whole("total_length", total),
            mean,
            whole("median_pred_length", median),
            whole("std_pred_length", deviation),
            whole("min_pred_length", lengths.first().copied().unwrap_or(f64::NAN)),
            whole("max_pred_length", lengths.last().copied().unwrap_or(f64::NAN)),
        ];
        let mut grams = Grams::new(sequences);
        let mut shorter: Option<(Vec<u32>, Vec<Vec<u32>>)> = None;
        for order in 1..=3 {
            if order > 1 {
                grams.lengthen();
            }
            let names: Vec<Vec<u32>> = (0..sequences.len()).map(|text| grams.names(text).to_vec()).collect();
            let mut counts = vec![0u32; grams.kinds()];
            names.iter().flatten().for_each(|&name| counts[name as usize] += 1);
            let all: f64 = counts.iter().map(|&count| f64::from(count)).sum();
            let unique = counts.iter().filter(|&&count| count == 1).count();
            measures.extend([
                whole(&format!("distinct-{order}"), counts.len() as f64 / all.max(1.0)),
                whole(&format!("vocab_size-{order}"), counts.len() as f64),
                whole(&format!("unique-{order}"), unique as f64),
                whole(&format!("entropy-{order}"), entropy(&counts)),
            ]);
            if let Some((shorter_counts, shorter_names)) = &shorter {
                // Without following words there is no conditional entropy. GEM omits the value.
                let value = match shorter_counts.len() {
                    0 => f64::NAN,
                    _ => conditional_entropy(&counts, &names, shorter_counts, shorter_names),
                };
                measures.push(whole(&format!("cond_entropy-{order}"), value));
            }
            shorter = Some((counts, names));
        }
        measures
    }
}

/// Computes the mean type–token ratio over full windows, rounded to five digits as in GEM. NaN if there is no full window.
fn segmental_ratio(words: &[u32], window: usize) -> f64 {
    let ratio = |window: &[u32]| {
        let mut kinds = window.to_vec();
        kinds.sort_unstable();
        kinds.dedup();
        kinds.len() as f64 / window.len() as f64
    };
    let ratios: Vec<f64> = words.chunks_exact(window.max(1)).map(ratio).collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    // Like Python's `round`, this rounds the exact decimal expansion. Multiplying by 10⁵ could turn a number just below a half into a half.
    format!("{mean:.5}").parse().unwrap_or(f64::NAN)
}

/// `−Σ p log₂ p`
fn entropy(counts: &[u32]) -> f64 {
    let all: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    // Subtracting from 0 makes the entropy of a certain event 0, not −0.
    0.0 - counts.iter().map(|&count| f64::from(count) / all).map(|p| p * p.log2()).sum::<f64>()
}

/// `−Σ p(x, y) log₂ (p(x, y) / p(x))`, with `p(x)` taken over the n-grams that are one word shorter.
fn conditional_entropy(counts: &[u32], names: &[Vec<u32>], shorter_counts: &[u32], shorter: &[Vec<u32>]) -> f64 {
    let total = |counts: &[u32]| counts.iter().map(|&count| f64::from(count)).sum::<f64>();
    let (all, all_shorter) = (total(counts), total(shorter_counts));
    // Prefix of each n-gram, one word shorter. Both lists of a text begin at the same word.
    let mut begins = vec![0; counts.len()];
    for (name, begin) in names.iter().zip(shorter).flat_map(|(names, shorter)| names.iter().zip(shorter)) {
        begins[*name as usize] = *begin as usize;
    }
    let term = |(&count, &begin): (&u32, &usize)| {
        let joint = f64::from(count) / all;
        joint * (joint / (f64::from(shorter_counts[begin]) / all_shorter)).log2()
    };
    0.0 - counts.iter().zip(&begins).map(term).sum::<f64>()
}
