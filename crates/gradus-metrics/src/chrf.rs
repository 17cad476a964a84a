//! chrF and chrF++ as sacreBLEU 2.6 computes them.
//!
//! Popović 2015, <https://aclanthology.org/W15-3049>, and 2017, <https://aclanthology.org/W17-4770>. The value is
//! sacreBLEU's divided by 100. Checked against `sacrebleu` 2.6.

use serde::{Deserialize, Serialize};

use crate::characters::{is_space, split};
use crate::ngrams::{Grams, Words, shared};
use crate::options::check_order;
use crate::references::each;
use crate::row::in_parts;
use crate::{Error, Measure, Metric, Result, Row, RowError};

/// Options of [`Chrf`], with sacreBLEU's names.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ChrfOptions {
    /// Longest n-gram of characters.
    pub char_order: usize,
    /// Longest n-gram of words; 2 is chrF++.
    pub word_order: usize,
    /// Weight of recall relative to precision.
    pub beta: f64,
    /// Compare lower-cased texts.
    pub lowercase: bool,
    /// Count whitespace as characters.
    pub whitespace: bool,
    /// Count an order that a text is too short for as nearly 0, instead of leaving it out.
    pub eps_smoothing: bool,
}

impl Default for ChrfOptions {
    fn default() -> Self {
        Self { char_order: 6, word_order: 0, beta: 2.0, lowercase: false, whitespace: false, eps_smoothing: false }
    }
}

/// F-score of character n-grams, and optionally of word n-grams, from 0 to 1: `(1 + β²)PR / (β²P + R)` with precision and recall averaged
/// over the orders. With several references, the best score counts.
#[derive(Debug, Clone, Default)]
pub struct Chrf {
    options: ChrfOptions,
}

impl Chrf {
    /// Creates the metric with these options.
    ///
    /// # Errors
    /// The orders of characters and words together are fewer than 1 or more than 64, or `beta` is negative or not finite.
    pub fn new(options: ChrfOptions) -> Result<Self> {
        let orders = options.char_order.saturating_add(options.word_order);
        check_order("chrf", "char_order` plus `word_order", orders)?;
        if !(options.beta.is_finite() && options.beta >= 0.0) {
            let beta = options.beta;
            return Err(Error::options(format!(
                "the option `beta` of `chrf` is {beta}, but must be at least 0 and finite"
            )));
        }
        Ok(Self { options })
    }

    fn orders(&self) -> usize {
        self.options.char_order + self.options.word_order
    }

    /// Returns, for every order, the number of n-grams of the prediction, of the reference and of both, for the reference with the best
    /// score.
    fn best(&self, prediction: &str, references: &[String]) -> Vec<f64> {
        let lowered = |text: &str| if self.options.lowercase { text.to_lowercase() } else { text.to_owned() };
        let texts: Vec<String> =
            std::iter::once(prediction).chain(references.iter().map(String::as_str)).map(lowered).collect();
        let characters = |text: &String| -> Vec<u32> {
            text.chars().filter(|&c| self.options.whitespace || !is_space(c)).map(u32::from).collect()
        };
        let mut statistics = vec![vec![0.0; 3 * self.orders()]; references.len()];
        count_orders(texts.iter().map(characters), self.options.char_order, 0, &mut statistics);
        if self.options.word_order > 0 {
            let mut words = Words::default();
            let sequences: Vec<Vec<u32>> = texts.iter().map(|text| words.ids(split_punctuation(text))).collect();
            count_orders(sequences, self.options.word_order, self.options.char_order, &mut statistics);
        }
        let mut best = (-1.0, 0);
        for (i, statistics) in statistics.iter().enumerate() {
            let score = value(statistics, &self.options);
            if score > best.0 {
                best = (score, i);
            }
        }
        statistics.swap_remove(best.1)
    }
}

impl Metric for Chrf {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let best = each(rows, |row, references| self.best(&row.prediction, references))?;
        let options = self.options;
        Ok(vec![Measure::of_sums("", 3 * self.orders(), best.concat(), move |sums| value(sums, &options))])
    }

    fn rewards_with_progress(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        in_parts(rows, done, |rows| self.rewards(rows))
    }
}

/// Writes the counts of `orders` orders for each reference, starting at order `first`. The first sequence is the prediction.
fn count_orders<S: AsRef<[u32]>>(
    sequences: impl IntoIterator<Item = S>,
    orders: usize,
    first: usize,
    statistics: &mut [Vec<f64>],
) {
    let mut grams = Grams::new(sequences);
    let (mut found, mut of_one) = (Vec::new(), Vec::new());
    for order in 0..orders {
        if order > 0 {
            grams.lengthen();
        }
        grams.count(0, &mut found);
        for (i, statistics) in statistics.iter_mut().enumerate() {
            grams.count(i + 1, &mut of_one);
            let (predicted, expected) = (grams.names(0).len(), grams.names(i + 1).len());
            let at = 3 * (first + order);
            // N-grams of the prediction do not count if the reference has none of that order.
            statistics[at] = if expected > 0 { predicted as f64 } else { 0.0 };
            statistics[at + 1] = expected as f64;
            statistics[at + 2] = f64::from(shared(&found, &of_one));
        }
    }
}

/// Computes the F-score from precision and recall averaged over the orders.
fn value(statistics: &[f64], options: &ChrfOptions) -> f64 {
    const EPSILON: f64 = 1e-16;
    let factor = options.beta * options.beta;
    let f_score = |precision: f64, recall: f64| (1.0 + factor) * precision * recall / (factor * precision + recall);
    let (mut precisions, mut recalls, mut smoothed, mut orders) = (0.0, 0.0, 0.0, 0.0);
    for order in statistics.chunks_exact(3) {
        let precision = if order[0] > 0.0 { order[2] / order[0] } else { EPSILON };
        let recall = if order[1] > 0.0 { order[2] / order[1] } else { EPSILON };
        smoothed += if factor * precision + recall > 0.0 { f_score(precision, recall) } else { EPSILON };
        if order[0] > 0.0 && order[1] > 0.0 {
            precisions += precision;
            recalls += recall;
            orders += 1.0;
        }
    }
    if options.eps_smoothing {
        return smoothed / (statistics.len() / 3) as f64;
    }
    if precisions + recalls == 0.0 { 0.0 } else { f_score(precisions / orders, recalls / orders) }
}

/// Splits a text into words, and one ASCII punctuation mark at the beginning or end of a word off that word.
fn split_punctuation(text: &str) -> impl Iterator<Item = &str> {
    let is_mark = |c: char| c.is_ascii_punctuation();
    split(text).flat_map(move |word| {
        let parts = match (word.chars().next(), word.chars().next_back()) {
            _ if word.chars().nth(1).is_none() => (word, ""),
            (_, Some(last)) if is_mark(last) => word.split_at(word.len() - last.len_utf8()),
            (Some(first), _) if is_mark(first) => word.split_at(first.len_utf8()),
            _ => (word, ""),
        };
        [parts.0, parts.1].into_iter().filter(|part| !part.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_that_has_no_meaning_is_refused() {
        for beta in [f64::NAN, f64::INFINITY, -1.0] {
            let error = Chrf::new(ChrfOptions { beta, ..ChrfOptions::default() }).expect_err("refused").to_string();
            assert_eq!(error, format!("the option `beta` of `chrf` is {beta}, but must be at least 0 and finite"));
        }
        assert!(Chrf::new(ChrfOptions { beta: 0.0, ..ChrfOptions::default() }).is_ok());
    }
}
