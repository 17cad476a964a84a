//! PARENT as ToTTo's official script computes it.
//!
//! Dhingra et al. 2019, <https://aclanthology.org/P19-1483>, as in `totto_parent_eval.py` of google-research/language with its adaptive λ.
//! Values are from 0 to 1; the script reports percent.

use std::collections::HashSet;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::ngrams::{Grams, Words};
use crate::row::in_parts;
use crate::totto::{self, SUBSETS, TottoRow};
use crate::{Measure, Metric, Row, RowError, lcs};

/// Replacement for precisions and recalls of 0 in orders above the first.
const SMOOTHING: f64 = 1e-5;
const ORDERS: usize = 4;

/// Options of [`Parent`].
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ParentOptions {
    /// Weight of the table's recall relative to the reference's. Default: the share of the highlighted cells that the reference leaves out.
    pub lambda: Option<f64>,
}

/// Precision, recall and F-score of a sentence about a table, compared with a reference and with the table itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parent {
    options: ParentOptions,
}

impl Parent {
    /// Creates the metric with these options.
    pub fn new(options: ParentOptions) -> Self {
        Self { options }
    }
}

impl Metric for Parent {
    fn remark(&self, rows: &mut dyn Iterator<Item = Row>) -> Option<String> {
        totto::remark(rows)
    }

    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let score = |(i, row): (usize, &Row)| {
            let item = TottoRow::of(i, row)?;
            let texts: Vec<Vec<String>> =
                std::iter::once(&item.prediction).chain(&item.references).map(|text| totto::words(text)).collect();
            Ok((best(&texts, &item.precision_table, &item.recall_table, self.options.lambda), item))
        };
        let scores: Vec<(Score, TottoRow)> = rows.par_iter().enumerate().map(score).collect::<Result<_, RowError>>()?;
        type ScoreField = (&'static str, fn(&Score) -> f64);
        let parts: [ScoreField; 3] = [
            ("precision", |score| score.precision),
            ("recall", |score| score.recall),
            ("f_score", |score| score.f_score),
        ];
        let mut measures = Vec::new();
        for (subset, (part, value)) in SUBSETS.iter().flat_map(|subset| parts.iter().map(move |part| (subset, part))) {
            let values: Vec<Option<f64>> =
                scores.iter().map(|(score, item)| item.is_in(subset).then(|| value(score))).collect();
            // The separators of RL4LMs' keys.
            let glue = if *part == "f_score" { "_" } else { "/" };
            measures.push(Measure::mean_of_some(format!("{subset}{glue}{part}"), &values));
        }
        Ok(measures)
    }

    /// Returns the F-score.
    fn rewards(&self, rows: &[Row]) -> Result<Vec<f64>, RowError> {
        let measures = self.measure(rows)?;
        let overall = measures.iter().find(|measure| measure.part == "overall_f_score");
        Ok(overall.and_then(Measure::row_values).expect("PARENT has an F-score of every row"))
    }

    fn rewards_with_progress(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        in_parts(rows, done, |rows| self.rewards(rows))
    }
}

/// Scores of one sentence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    pub precision: f64,
    pub recall: f64,
    pub f_score: f64,
}

/// Returns the score against the reference with the best F-score (the first one if several are equal). The first text is the prediction.
pub(super) fn best(
    texts: &[Vec<String>],
    precision_table: &[Vec<String>],
    recall_table: &[Vec<String>],
    lambda: Option<f64>,
) -> Score {
    let mut words = Words::default();
    let [texts, precision_table, recall_table] = [texts, precision_table, recall_table]
        .map(|texts| texts.iter().map(|text| words.ids(text.iter().map(String::as_str))).collect::<Vec<_>>());
    let known: HashSet<u32> = precision_table.into_iter().flatten().collect();
    let table_recall = mentioned(&recall_table, &texts[0]);
    let mut scores = overlaps(&texts, &known).into_iter().zip(&texts[1..]).map(|(overlap, reference)| {
        let lambda = lambda.unwrap_or_else(|| 1.0 - mentioned(&recall_table, reference));
        overlap.score(table_recall, lambda)
    });
    let first = scores.next().unwrap_or(Score { precision: 0.0, recall: 0.0, f_score: 0.0 });
    scores.fold(first, |best, score| if score.f_score > best.f_score { score } else { best })
}

/// Computes the mean share of each table value's words that occur in the text in the same order.
fn mentioned(table: &[Vec<u32>], text: &[u32]) -> f64 {
    let share = |value: &Vec<u32>| lcs::length(value, text) as f64 / value.len().max(1) as f64;
    table.iter().map(share).sum::<f64>() / table.len().max(1) as f64
}

/// Precision and recall of n-grams of each order against one reference, weighted by how much the table entails.
#[derive(Debug, Clone, Copy)]
struct Overlap {
    precisions: [f64; ORDERS],
    recalls: [f64; ORDERS],
}

/// Computes the overlap of the first text with each of the others.
fn overlaps(texts: &[Vec<u32>], known: &HashSet<u32>) -> Vec<Overlap> {
    let mut overlaps = vec![Overlap { precisions: [0.0; ORDERS], recalls: [0.0; ORDERS] }; texts.len() - 1];
    let mut grams = Grams::new(texts);
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for order in 0..ORDERS {
        if order > 0 {
            grams.lengthen();
        }
        // Share of an n-gram's words that occur in the table.
        let mut entailed = vec![0.0; grams.kinds()];
        for (i, text) in texts.iter().enumerate() {
            for (&name, words) in grams.names(i).iter().zip(text.windows(order + 1)) {
                let shared = words.iter().filter(|word| known.contains(word)).count();
                entailed[name as usize] = shared as f64 / (order + 1) as f64;
            }
        }
        grams.count(0, &mut found);
        for (i, overlap) in overlaps.iter_mut().enumerate() {
            grams.count(i + 1, &mut expected);
            let (mut precision, mut predicted, mut recall, mut referred) = (0.0, 0.0, 0.0, 0.0);
            for ((&found, &expected), &entailed) in found.iter().zip(&expected).zip(&entailed) {
                let (found, expected) = (f64::from(found), f64::from(expected));
                if found > 0.0 {
                    let of_reference = (expected / found).min(1.0);
                    precision += found * (of_reference + (1.0 - of_reference) * entailed);
                    predicted += found;
                }
                if expected > 0.0 {
                    recall += expected * entailed * (found / expected).min(1.0);
                    referred += expected * entailed;
                }
            }
            overlap.precisions[order] = if predicted > 0.0 { precision / predicted } else { 0.0 };
            overlap.recalls[order] = if referred > 0.0 { recall / referred } else { 1.0 };
        }
    }
    overlaps
}

impl Overlap {
    fn score(self, table_recall: f64, lambda: f64) -> Score {
        let or = |value: f64, least: f64| if value == 0.0 { least } else { value };
        let mean = |mut values: [f64; ORDERS]| {
            values[1..].iter_mut().for_each(|value| *value = or(*value, SMOOTHING));
            if values[0] == 0.0 {
                0.0
            } else {
                (values.iter().map(|value| value.ln()).sum::<f64>() / ORDERS as f64).exp()
            }
        };
        let precision = mean(self.precisions);
        let (of_reference, of_table) = (or(mean(self.recalls), SMOOTHING), or(table_recall, SMOOTHING));
        let recall = ((1.0 - lambda) * of_reference.ln() + lambda * of_table.ln()).exp();
        Score { precision, recall, f_score: 2.0 * precision * recall / (precision + recall + 1e-8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(prediction: &str, reference: &str, table: &str, lambda: f64) -> Score {
        let table = [totto::words(table)];
        best(&[totto::words(prediction), totto::words(reference)], &table, &table, Some(lambda))
    }

    #[test]
    fn what_is_never_found_counts_as_little() {
        // One of four words is in the reference, but no longer n-gram, and the table has none of them: (¼ · ε³)^¼. The table entails
        // nothing of the reference, so that recall is 1; no table value is mentioned: √(1 · ε).
        let Score { precision, recall, f_score } = score("a x y z", "a b c d", "q", 0.5);
        let (p, r) = ((0.25 * SMOOTHING.powi(3)).powf(0.25), SMOOTHING.sqrt());
        for (found, expected) in [(precision, p), (recall, r), (f_score, 2.0 * p * r / (p + r + 1e-8))] {
            assert!((found - expected).abs() < 1e-12, "{found} instead of {expected}");
        }
        // No word matches, so precision is 0 at every order. Only recalls have a lower bound: ε for the reference and ε for the table.
        let Score { precision, recall, f_score } = score("x y", "a", "a", 0.25);
        let expected = SMOOTHING.powf(0.75) * SMOOTHING.powf(0.25);
        assert_eq!((precision, f_score), (0.0, 0.0));
        assert!((recall - expected).abs() < 1e-15, "{recall} instead of {expected}");
    }

    #[test]
    fn the_golden_values_of_the_official_script() {
        let texts = [
            "Michael Dahlquist was a drummer from Seattle.",
            "Michael Dahlquist (December 22, 1965 - July 14, 2005) was a drummer in the Seattle band Silkworm.",
            "<null>",
            "<null>",
        ]
        .map(totto::words);
        let recall = ["michael dahlquist", "drummer", "seattle bands"].map(totto::words);
        let precision = ["michael dahlquist", "drummer", "name", "seattle bands"].map(totto::words);
        for (lambda, expected) in
            [(None, [0.4728708, 0.8333333, 0.6033651]), (Some(0.5), [0.4728708, 0.9128709, 0.6230165])]
        {
            let Score { precision, recall, f_score } = best(&texts, &precision, &recall, lambda);
            for (found, expected) in [precision, recall, f_score].iter().zip(expected) {
                assert!((found - expected).abs() < 1e-7, "{lambda:?}: {found} instead of {expected}");
            }
        }
    }
}
