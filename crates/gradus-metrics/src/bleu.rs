//! BLEU as in TensorFlow's `nmt` script, which `datasets` and `evaluate` call `bleu`.
//!
//! Papineni et al. 2002, <https://aclanthology.org/P02-1040>. Unlike sacreBLEU, it splits words at whitespace only, takes the shortest
//! reference as the reference length, and smooths nothing by default. Checked against `evaluate` 0.4 (`bleu`).

use serde::{Deserialize, Serialize};

use crate::characters::split;
use crate::mteval::v13a;
use crate::ngrams::{Grams, Words};
use crate::options::check_order;
use crate::references::each;
use crate::{Measure, Metric, Result, Row, RowError};

/// Options of [`Bleu`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct BleuOptions {
    /// The longest n-gram.
    pub max_order: usize,
    /// Add one to the counts of every order (Lin and Och 2004).
    pub smooth: bool,
    /// Tokenizer that splits texts into words.
    pub tokenizer: BleuTokenizer,
}

impl Default for BleuOptions {
    fn default() -> Self {
        Self { max_order: 4, smooth: false, tokenizer: BleuTokenizer::Whitespace }
    }
}

/// Tokenizer of [`Bleu`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BleuTokenizer {
    /// Split at whitespace, as RL4LMs does.
    #[default]
    #[serde(rename = "whitespace")]
    Whitespace,
    /// `mteval-v13a`, as in `evaluate`.
    #[serde(rename = "13a")]
    V13a,
}

/// BLEU of TensorFlow's `nmt` script: `BP · exp(Σ log pₙ / N)`. The value is 0 if an order has no match.
#[derive(Debug, Clone, Default)]
pub struct Bleu {
    options: BleuOptions,
}

impl Bleu {
    /// Creates the metric with these options.
    ///
    /// # Errors
    /// `max_order` is not from 1 to 64.
    pub fn new(options: BleuOptions) -> Result<Self> {
        check_order("bleu", "max_order", options.max_order)?;
        Ok(Self { options })
    }
}

impl Metric for Bleu {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let BleuOptions { max_order, smooth, tokenizer } = self.options;
        let tokenized = |text: &str| match tokenizer {
            // `counts` splits at whitespace.
            BleuTokenizer::Whitespace => text.to_owned(),
            // `evaluate` keeps white space at the end of a text, unlike sacreBLEU, so a final hyphen before a line break is removed.
            BleuTokenizer::V13a => v13a(text),
        };
        let counts = each(rows, |row, references| {
            let shortest = |_: usize, lengths: &[usize]| lengths.iter().copied().min().unwrap_or(0);
            let prediction = tokenized(&row.prediction);
            let references: Vec<String> = references.iter().map(|text| tokenized(text)).collect();
            counts(&prediction, &references, max_order, shortest)
        })?;
        let value = move |sums: &[f64]| Counts::of(sums, max_order).unsmoothed(smooth);
        Ok(vec![Measure::of_sums("", Counts::width(max_order), counts.concat(), value)])
    }
}

/// The numbers that BLEU sums over rows: two lengths, and per order the n-grams of the prediction and the matches.
pub struct Counts<'a> {
    /// Number of words in the prediction.
    pub length: f64,
    /// Number of words in the reference whose length is compared.
    pub reference_length: f64,
    /// Clipped matches of each order.
    pub correct: &'a [f64],
    /// Number of n-grams of the prediction, of each order.
    pub total: &'a [f64],
}

impl<'a> Counts<'a> {
    /// Number of values per row.
    pub fn width(max_order: usize) -> usize {
        2 + 2 * max_order
    }

    /// Reads sums in the order of [`counts`].
    pub fn of(sums: &'a [f64], max_order: usize) -> Self {
        let (correct, total) = sums[2..].split_at(max_order);
        Self { length: sums[0], reference_length: sums[1], correct, total }
    }

    fn unsmoothed(&self, smooth: bool) -> f64 {
        if self.length == 0.0 {
            return 0.0;
        }
        let plus = if smooth { 1.0 } else { 0.0 };
        let precision = |(correct, total): (&f64, &f64)| {
            if total + plus > 0.0 { (correct + plus) / (total + plus) } else { 0.0 }
        };
        let precisions: Vec<f64> = self.correct.iter().zip(self.total).map(precision).collect();
        if precisions.iter().any(|&precision| precision <= 0.0) {
            return 0.0;
        }
        let mean = precisions.iter().map(|precision| precision.ln()).sum::<f64>() / precisions.len() as f64;
        let ratio = self.length / self.reference_length;
        mean.exp() * if ratio > 1.0 { 1.0 } else { (1.0 - 1.0 / ratio).exp() }
    }
}

/// Returns the counts of one row, whose words are separated by whitespace. `reference_length` receives the length of the prediction and the
/// lengths of the references, and picks one of the latter.
pub fn counts(
    prediction: &str,
    references: &[String],
    max_order: usize,
    reference_length: impl Fn(usize, &[usize]) -> usize,
) -> Vec<f64> {
    let mut words = Words::default();
    let texts = std::iter::once(prediction).chain(references.iter().map(String::as_str));
    let sequences: Vec<Vec<u32>> = texts.map(|text| words.ids(split(text))).collect();
    let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
    let mut row = vec![0.0; Counts::width(max_order)];
    row[0] = lengths[0] as f64;
    row[1] = reference_length(lengths[0], &lengths[1..]) as f64;
    let mut grams = Grams::new(&sequences);
    let (mut found, mut most, mut of_one) = (Vec::new(), Vec::new(), Vec::new());
    for order in 0..max_order {
        if order > 0 {
            grams.lengthen();
        }
        row[2 + max_order + order] = grams.names(0).len() as f64;
        grams.count(0, &mut found);
        most.clear();
        most.resize(found.len(), 0);
        for reference in 1..sequences.len() {
            grams.count(reference, &mut of_one);
            most.iter_mut().zip(&of_one).for_each(|(most, &count)| *most = count.max(*most));
        }
        row[2 + order] = f64::from(crate::ngrams::shared(&found, &most));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hyphen_before_a_final_line_break_is_removed_as_in_evaluate() {
        let row = Row::new("A. -\n", ["\u{fb01} -\n A.", "-\n x A.", "__a__"]);
        let options = BleuOptions { max_order: 1, tokenizer: BleuTokenizer::V13a, ..BleuOptions::default() };
        let found = Bleu { options }.measure(&[row]).expect("a value")[0].value();
        // `tokenizer_13a` and `compute_bleu` of `evaluate` 0.4: 2 of the words `A .` match, the shortest reference has 3 words: e^(1 - 3/2).
        assert!((found - (-0.5f64).exp()).abs() < 1e-12, "{found}");
    }
}
