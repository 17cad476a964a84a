//! F1 of words by SQuAD's rules.
//!
//! Rajpurkar et al. 2016, <https://aclanthology.org/D16-1264>. Checked against `squad` of torchmetrics 1.9; the value is from
//! 0 to 1 where that gives percent. Two answers without a word are alike, as in the script of SQuAD 2.

use crate::ngrams::{Grams, Words, shared};
use crate::references::each;
use crate::{Measure, Metric, Row, RowError, answer};

/// The best F1 over references of the words of two answers, counted as often as both have them.
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

/// The best score of the first sequence against the others.
fn best(ids: &[Vec<u32>]) -> f64 {
    let grams = Grams::new(ids);
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    grams.count(0, &mut found);
    let score = |reference: usize| {
        grams.count(reference, &mut wanted);
        let same = f64::from(shared(&found, &wanted));
        match ids[0].len() + ids[reference].len() {
            // No answer where none is wanted.
            0 => 1.0,
            words => 2.0 * same / words as f64,
        }
    };
    (1..ids.len()).map(score).fold(0.0, f64::max)
}
