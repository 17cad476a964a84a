//! Word-level F1 by SQuAD's rules.
//!
//! Rajpurkar et al. 2016, <https://aclanthology.org/D16-1264>. Checked against `squad` of torchmetrics 1.9, which reports percent; the
//! value here is from 0 to 1. Two answers without words are equal, as in the script of SQuAD 2.

use crate::ngrams::{Grams, Words, shared};
use crate::references::each;
use crate::{Measure, Metric, Row, RowError, answer};

/// The best F1 over references. A word of two answers counts at most as often as it occurs in each.
#[derive(Debug, Clone, Copy)]
pub struct TokenF1;

impl Metric for TokenF1 {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let scores = each(rows, |row, references| {
            let texts: Vec<Vec<String>> =
                std::iter::once(&row.prediction).chain(references).map(|text| answer::words(text)).collect();
            let mut words = Words::default();
            let ids: Vec<Vec<u32>> = texts.iter().map(|text| words.ids(text.iter().map(String::as_str))).collect();
            best(&ids)
        })?;
        Ok(vec![Measure::mean("", &scores)])
    }
}

/// Returns the best score of the first sequence against the others.
fn best(ids: &[Vec<u32>]) -> f64 {
    let grams = Grams::new(ids);
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    grams.count(0, &mut found);
    let score = |reference: usize| {
        grams.count(reference, &mut expected);
        let same = f64::from(shared(&found, &expected));
        match ids[0].len() + ids[reference].len() {
            // An empty answer, as expected.
            0 => 1.0,
            words => 2.0 * same / words as f64,
        }
    };
    (1..ids.len()).map(score).fold(0.0, f64::max)
}
