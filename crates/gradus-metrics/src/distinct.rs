//! Share of distinct n-grams: Li et al. 2016, <https://arxiv.org/abs/1510.03055>, computed over the samples of one prompt as in DExperts
//! and Quark (Liu et al. 2021, <https://arxiv.org/abs/2105.03023>).

use std::collections::HashSet;

use crate::{Measure, Metric, Row, RowError, by_prompt};

/// Longest n-gram.
const ORDER: usize = 3;

/// `dist-n` for n from 1 to 3: the number of distinct n-grams in all samples of a prompt divided by the number of their words, averaged
/// over prompts. Words are separated by single spaces, so two spaces enclose an empty word, and an empty sample is one empty word. Rows
/// with the same prompt are its samples.
#[derive(Debug, Clone, Copy)]
pub struct Distinct;

impl Metric for Distinct {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let mut values = vec![vec![None; rows.len()]; ORDER];
        for group in by_prompt(rows) {
            let samples: Vec<Vec<&str>> = group.iter().map(|&row| rows[row].prediction.split(' ').collect()).collect();
            let words: usize = samples.iter().map(Vec::len).sum();
            for (n, values) in (1..).zip(&mut values) {
                let different: HashSet<&[&str]> = samples.iter().flat_map(|words| words.windows(n)).collect();
                values[group[0]] = Some(different.len() as f64 / words as f64);
            }
        }
        Ok((1..).zip(&values).map(|(n, values)| Measure::mean_of_some(format!("dist-{n}"), values)).collect())
    }

    fn is_reward(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ngrams_are_counted_over_all_samples_of_a_prompt() {
        let row = |prompt: &str, prediction: &str| Row {
            prompt: prompt.into(),
            prediction: prediction.into(),
            ..Row::default()
        };
        // a: 7 words, 5 of them distinct (a b c d e); bigrams ab bc ab bd de: 4; trigrams abc abd bde: 3. b: 3 words ("x", "", "x").
        let rows = [row("a", "a b c"), row("b", "x  x"), row("a", "a b d e")];
        let found: Vec<f64> = Distinct.measure(&rows).expect("counted").iter().map(Measure::value).collect();
        let expected = [(5.0 / 7.0 + 2.0 / 3.0) / 2.0, (4.0 / 7.0 + 2.0 / 3.0) / 2.0, (3.0 / 7.0 + 1.0 / 3.0) / 2.0];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{found} instead of {expected}");
        }
    }
}
