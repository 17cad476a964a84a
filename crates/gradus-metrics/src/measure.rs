//! A measured value: of all rows together, of each row, and its bootstrap interval over resampled rows.

use std::sync::Arc;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use rayon::prelude::*;

/// Maps sums over rows to a value.
type ValueOf = Arc<dyn Fn(&[f64]) -> f64 + Send + Sync>;

/// A value of all rows together, with the numbers that it was computed from.
///
/// Most metrics are a function of sums over rows (a mean of `[score, 1]`; BLEU of lengths and counts). The value of a row, of the corpus
/// and of any resample of rows then apply the same function to different sums.
#[derive(Clone)]
pub struct Measure {
    /// Part of the metric, written after its name: `rouge1` in `rouge/rouge1`. Empty for a metric with one value.
    pub part: String,
    /// Corpus value, if it is not computed from the sums.
    fixed: Option<f64>,
    /// Why there is no corpus value, if the rows contain something to measure.
    reason: Option<String>,
    evidence: Evidence,
}

#[derive(Clone)]
enum Evidence {
    /// `width` numbers per row, and the function of their sums.
    Sums { width: usize, rows: Vec<f64>, value_of: ValueOf },
    /// One value per row. The corpus value cannot be computed from them.
    Rows(Vec<f64>),
    /// No row values: the value is not a function of sums over rows.
    Whole,
}

impl Measure {
    /// Creates the mean of one score per row.
    pub fn mean(part: impl Into<String>, scores: &[f64]) -> Self {
        Self::of_sums(part, 2, scores.iter().flat_map(|&score| [score, 1.0]).collect(), |sums| sums[0] / sums[1])
    }

    /// Creates the mean over the rows that have a score; NaN if no row has one.
    pub fn mean_of_some(part: impl Into<String>, scores: &[Option<f64>]) -> Self {
        let sums = scores.iter().flat_map(|score| score.map_or([0.0, 0.0], |score| [score, 1.0]));
        Self::of_sums(part, 2, sums.collect(), |sums| sums[0] / sums[1])
    }

    /// Creates a function of sums. `rows` holds `width` numbers per row, row after row.
    ///
    /// # Panics
    /// If the length of `rows` is not a multiple of `width`.
    pub fn of_sums(
        part: impl Into<String>,
        width: usize,
        rows: Vec<f64>,
        value_of: impl Fn(&[f64]) -> f64 + Send + Sync + 'static,
    ) -> Self {
        assert!(width > 0 && rows.len().is_multiple_of(width), "{} numbers are not rows of {width}", rows.len());
        let evidence = Evidence::Sums { width, rows, value_of: Arc::new(value_of) };
        Self { part: part.into(), fixed: None, reason: None, evidence }
    }

    /// Creates a value of all rows together that has no row values and cannot be resampled. An example is the number of distinct words,
    /// which decreases with every row that is drawn twice.
    pub fn whole(part: impl Into<String>, value: f64) -> Self {
        Self { part: part.into(), fixed: Some(value), reason: None, evidence: Evidence::Whole }
    }

    /// Creates a measure of all rows together without a value (NaN), and says why: `the texts are shorter than the window`.
    pub fn undefined(part: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..Self::whole(part, f64::NAN) }
    }

    /// Creates a corpus value that the caller provides, with separate values of the rows. It is not resampled. Rows without a value have
    /// NaN.
    pub fn beside_rows(part: impl Into<String>, value: f64, rows: Vec<f64>) -> Self {
        Self { part: part.into(), fixed: Some(value), reason: None, evidence: Evidence::Rows(rows) }
    }

    /// Returns the name of the value: the metric's name, then `/` and the part if the metric has several values.
    pub fn key(&self, metric: &str) -> String {
        if self.part.is_empty() { metric.to_owned() } else { format!("{metric}/{}", self.part) }
    }

    /// Returns the value of all rows together. NaN if there is nothing to measure, as without rows.
    pub fn value(&self) -> f64 {
        match (&self.evidence, self.fixed) {
            (_, Some(value)) => value,
            (Evidence::Whole | Evidence::Rows(_), None) => f64::NAN,
            // A function of sums may have a value for zeros: that of a text without words.
            (Evidence::Sums { rows, .. }, None) if rows.is_empty() => f64::NAN,
            (Evidence::Sums { width, rows, value_of }, None) => {
                let mut sums = vec![0.0; *width];
                rows.chunks_exact(*width).for_each(|row| add(&mut sums, row));
                value_of(&sums)
            }
        }
    }

    /// Returns why there is no value. `None` if there is one, or if there is nothing to measure.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Returns the value of each row as if it were the whole corpus; NaN for rows without a value. `None` if the measure has no row values.
    pub fn row_values(&self) -> Option<Vec<f64>> {
        match &self.evidence {
            Evidence::Whole => None,
            Evidence::Rows(rows) => Some(rows.clone()),
            Evidence::Sums { width, rows, value_of } => {
                Some(rows.chunks_exact(*width).map(|row| value_of(row)).collect())
            }
        }
    }

    /// Computes the value of the rows `drawn`, which may repeat.
    fn resampled(&self, drawn: &[usize]) -> Option<f64> {
        match &self.evidence {
            Evidence::Whole | Evidence::Rows(_) => None,
            Evidence::Sums { width, rows, value_of } => {
                let mut sums = vec![0.0; *width];
                for &row in drawn {
                    add(&mut sums, rows.get(row * width..)?.get(..*width)?);
                }
                Some(value_of(&sums))
            }
        }
    }

    /// Replaces the corpus value.
    pub(crate) fn with_value(self, value: f64) -> Self {
        Self { fixed: Some(value), ..self }
    }
}

impl std::fmt::Debug for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Measure").field("part", &self.part).field("value", &self.value()).finish()
    }
}

fn add(sums: &mut [f64], row: &[f64]) {
    for (sum, value) in sums.iter_mut().zip(row) {
        *sum += value;
    }
}

/// Settings of the bootstrap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resampling {
    /// Number of resamples, each with as many units as there are, drawn with replacement. 0 disables intervals; `rouge_score` uses 1000.
    pub samples: usize,
    /// Seed of the resamples.
    pub seed: u64,
}

/// The middle 95 % of a value over resamples (percentile bootstrap).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The 2.5th percentile.
    pub low: f64,
    /// The median.
    pub middle: f64,
    /// The 97.5th percentile.
    pub high: f64,
}

/// Computes the intervals of measures of the same rows. The rows of a unit are drawn together: samples of one prompt are correlated, so
/// [`by_prompt`](crate::by_prompt) makes whole prompts the units. The rows of a single unit are drawn alone, as independent samples of it.
/// All measures use the same resamples, so differences between metrics do not depend on the draw. `None` for a value that cannot be
/// resampled or that is NaN in some resample.
///
/// Efron and Tibshirani 1993, chapter 13. Percentiles interpolate between resamples, as NumPy's.
pub fn intervals(measures: &[&Measure], units: &[Vec<usize>], resampling: Resampling) -> Vec<Option<Interval>> {
    if measures.is_empty() || units.is_empty() || resampling.samples == 0 {
        return vec![None; measures.len()];
    }
    let alone: Vec<Vec<usize>>;
    let units = match units {
        [only] => {
            alone = only.iter().map(|&row| vec![row]).collect();
            &alone[..]
        }
        units => units,
    };
    let draw = |sample: usize| {
        let mut stream = stream(resampling.seed, sample as u64);
        let drawn = (0..units.len()).map(|_| stream.random_range(0..units.len() as u32) as usize);
        let drawn: Vec<usize> = drawn.flat_map(|unit| units[unit].iter().copied()).collect();
        measures.iter().map(|measure| measure.resampled(&drawn)).collect::<Vec<_>>()
    };
    let drawn: Vec<Vec<Option<f64>>> = (0..resampling.samples).into_par_iter().map(draw).collect();
    let of = |i: usize| {
        let mut values: Vec<f64> = drawn.iter().map(|values| values[i]).collect::<Option<_>>()?;
        if values.iter().any(|value| value.is_nan()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let at = |percent: f64| percentile(&values, percent);
        Some(Interval { low: at(2.5), middle: at(50.0), high: at(97.5) })
    };
    (0..measures.len()).map(of).collect()
}

/// Returns the random numbers of one resample. Each resample has its own key, so resamples may be drawn in any order.
fn stream(seed: u64, sample: u64) -> ChaCha8Rng {
    // Other users of the same seed have another number in the second place.
    const RESAMPLE: u64 = 16;
    let mut key = [0u8; 32];
    for (slot, word) in key.chunks_exact_mut(8).zip([seed, RESAMPLE, 0, sample]) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Returns a percentile of sorted values, interpolated between neighbors.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let place = percent / 100.0 * (sorted.len() - 1) as f64;
    let (low, part) = (place.floor() as usize, place.fract());
    let high = sorted[(low + 1).min(sorted.len() - 1)];
    sorted[low] + part * (high - sorted[low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_corpus_are_one_function_of_sums() {
        let ratio = Measure::of_sums("", 2, vec![1.0, 2.0, 3.0, 4.0], |sums| sums[0] / sums[1]);
        assert_eq!(ratio.value(), 4.0 / 6.0);
        assert_eq!(ratio.row_values(), Some(vec![0.5, 0.75]));
        let some = Measure::mean_of_some("", &[Some(1.0), None, Some(2.0)]);
        assert_eq!(some.value(), 1.5);
        assert!(some.row_values().is_some_and(|rows| rows[0] == 1.0 && rows[1].is_nan()));
        assert_eq!(Measure::whole("", 7.0).row_values(), None);
        let rate = Measure::of_sums("", 2, Vec::new(), |_| 0.0);
        assert!(rate.value().is_nan(), "there are no rows");
    }

    #[test]
    fn percentiles_lie_between_values() {
        // NumPy: np.percentile([1, 2, 4], [0, 25, 50, 90, 100]).
        let found: Vec<f64> = [0.0, 25.0, 50.0, 90.0, 100.0].map(|p| percentile(&[1.0, 2.0, 4.0], p)).into();
        for (found, expected) in found.iter().zip([1.0, 1.5, 2.0, 3.6, 4.0]) {
            assert!((found - expected).abs() < 1e-12, "{found} instead of {expected}");
        }
    }

    #[test]
    fn an_interval_is_that_of_the_normal_distribution_for_many_rows() {
        // A share of one half over 400 rows: the standard error is 0.5/√400 = 0.025, so ±1.96·0.025 = ±0.049.
        let scores: Vec<f64> = (0..400).map(|i| f64::from(i % 2)).collect();
        let (mean, whole) = (Measure::mean("", &scores), Measure::whole("", 1.0));
        let resampling = Resampling { samples: 1000, seed: 1 };
        let alone: Vec<Vec<usize>> = (0..400).map(|row| vec![row]).collect();
        let found = intervals(&[&mean, &whole], &alone, resampling);
        let interval = found[0].expect("an interval");
        assert!((interval.low - 0.451).abs() < 0.01 && (interval.high - 0.549).abs() < 0.01, "{interval:?}");
        assert!((interval.middle - 0.5).abs() < 0.005, "{interval:?}");
        assert_eq!(found[1], None);
        assert_eq!(intervals(&[&mean], &alone, resampling)[0], found[0], "the same seed gives the same interval");
        let off = Resampling { samples: 0, ..resampling };
        assert_eq!(intervals(&[&mean], &alone, off), [None]);
        let fewer = Measure::mean("", &scores[..10]);
        assert_eq!(intervals(&[&fewer, &mean], &alone, resampling), [None, found[0]], "rows without numbers");
    }

    #[test]
    fn the_rows_of_a_prompt_are_drawn_together_wherever_they_are() {
        let resampling = Resampling { samples: 1000, seed: 1 };
        let row = |prompt: usize| crate::Row { prompt: format!("p{prompt}"), ..crate::Row::default() };
        // The four samples of each prompt are identical, so they count as one: 100 prompts, ±1.96 · 0.5/√100 = ±0.098.
        let prompts = [(0..400usize).map(|i| i / 4).collect::<Vec<_>>(), (0..400).map(|i| i % 100).collect()];
        let found = prompts.map(|prompts| {
            let alike: Vec<f64> = prompts.iter().map(|prompt| f64::from(u8::from(prompt % 2 == 1))).collect();
            let units = crate::by_prompt(&prompts.into_iter().map(row).collect::<Vec<_>>());
            intervals(&[&Measure::mean("", &alike)], &units, resampling)[0].expect("an interval")
        });
        assert_eq!(found[0], found[1], "adjacent or not");
        assert!((found[0].low - 0.402).abs() < 0.02 && (found[0].high - 0.598).abs() < 0.02, "{found:?}");
        // Only the first row of each prompt has a score. Every resample draws whole prompts, so it contains one.
        let units: Vec<Vec<usize>> = (0..3).map(|prompt| (4 * prompt..4 * prompt + 4).collect()).collect();
        let firsts: Vec<Option<f64>> = (0..12).map(|i| (i % 4 == 0).then_some(1.0)).collect();
        let interval = intervals(&[&Measure::mean_of_some("", &firsts)], &units, resampling)[0].expect("an interval");
        assert_eq!((interval.low, interval.high), (1.0, 1.0));
        // The samples of a single prompt are independent.
        let (mean, rows) = (Measure::mean("", &[0.0, 1.0, 2.0, 3.0]), [0, 1, 2, 3]);
        let found =
            [&[rows.to_vec()][..], &rows.map(|row| vec![row])].map(|units| intervals(&[&mean], units, resampling));
        assert!(found[0] == found[1] && found[0][0].is_some_and(|of| of.low < of.high), "{found:?}");
    }
}
