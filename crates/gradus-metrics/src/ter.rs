//! Translation edit rate as sacreBLEU 2.6 computes it, after tercom.
//!
//! Snover et al. 2006, <https://aclanthology.org/2006.amta-papers.25>. The value is sacreBLEU's divided by 100: edits per word of the
//! references; lower is better. Checked against `sacrebleu` 2.6.

mod options;
mod shifts;
mod words;

pub use options::TerOptions;

use crate::characters::{is_space, split};
use crate::ngrams::Words;
use crate::references::each;
use crate::row::in_parts;
use crate::{Measure, Metric, Row, RowError};

/// Edits (insertions, deletions, substitutions, shifts of runs of words) to the nearest reference, divided by the mean length of the
/// references.
#[derive(Debug, Clone, Default)]
pub struct Ter {
    options: TerOptions,
}

impl Ter {
    /// Creates the metric with these options.
    pub fn new(options: TerOptions) -> Self {
        Self { options }
    }

    /// Returns the fewest edits over the references, and the mean length of the references.
    fn edits(&self, prediction: &str, references: &[String]) -> [f64; 2] {
        let prepare = |text: &str| words::prepared(text.trim_end_matches(is_space), &self.options);
        let prediction = prepare(prediction);
        // sacreBLEU prepares references twice. With `normalized`, this changes texts with a comma after a possessive.
        let references: Vec<String> = references.iter().map(|text| prepare(&prepare(text))).collect();
        let mut words = Words::default();
        let prediction = words.ids(split(&prediction));
        let references: Vec<Vec<u32>> = references.iter().map(|text| words.ids(split(text))).collect();
        let edits = references.iter().map(|reference| shifts::edits(&prediction, reference)).min().unwrap_or(0);
        let length = references.iter().map(Vec::len).sum::<usize>() as f64 / references.len() as f64;
        [edits as f64, length]
    }
}

impl Metric for Ter {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let edits = each(rows, |row, references| self.edits(&row.prediction, references))?;
        Ok(vec![Measure::of_sums("", 2, edits.concat(), rate)])
    }

    /// Returns `1 − TER`, which is negative if there are more edits than words.
    fn rewards(&self, rows: &[Row]) -> Result<Vec<f64>, RowError> {
        let edits = each(rows, |row, references| self.edits(&row.prediction, references))?;
        Ok(edits.iter().map(|edits| 1.0 - rate(edits)).collect())
    }

    fn rewards_with_progress(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        in_parts(rows, done, |rows| self.rewards(rows))
    }
}

/// Returns the edits per word. For an empty reference, the rate is 0 if there are no edits and 1 otherwise.
fn rate(sums: &[f64]) -> f64 {
    match sums {
        [edits, length] if *length > 0.0 => edits / length,
        [edits, _] if *edits > 0.0 => 1.0,
        _ => 0.0,
    }
}
