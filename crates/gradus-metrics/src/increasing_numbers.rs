//! How long do the numbers in a text increase? RL4LMs' synthetic task.

use std::borrow::Cow;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::characters::{is_digit, split};
use crate::{Measure, Metric, Row, RowError};

/// Options of [`IncreasingNumbers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IncreasingNumbersOptions {
    /// Count a text of fewer than half as many words as if it had half as many.
    pub min_tokens: usize,
}

/// Length of the run of increasing numbers that begins at the first number, divided by the number of words in the prediction.
#[derive(Debug, Clone, Copy)]
pub struct IncreasingNumbers {
    options: IncreasingNumbersOptions,
}

impl IncreasingNumbers {
    /// Creates the metric with these options.
    pub fn new(options: IncreasingNumbersOptions) -> Self {
        Self { options }
    }

    fn score(&self, text: &str) -> f64 {
        let words = split(text).count() as f64;
        let mut last = None;
        let mut run = 0;
        for number in split(text).filter_map(python_float) {
            // Comparisons with NaN are false, so a NaN ends the run.
            let goes_up = last.is_none_or(|last| number > last);
            if !goes_up {
                break;
            }
            last = Some(number);
            run += 1;
        }
        if run == 0 { 0.0 } else { f64::from(run) / words.max(self.options.min_tokens as f64 / 2.0) }
    }
}

impl Metric for IncreasingNumbers {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let scores: Vec<f64> = rows.par_iter().map(|row| self.score(&row.prediction)).collect();
        Ok(vec![Measure::mean("", &scores)])
    }
}

/// Python's `float(word)`: underscores are allowed between digits, and digits may be of any script.
fn python_float(word: &str) -> Option<f64> {
    let word = &with_ascii_digits(word)?;
    let bytes = word.as_bytes();
    let is_digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let is_right = |i: usize| bytes[i] != b'_' || (i > 0 && is_digit(i - 1) && is_digit(i + 1));
    if !(0..bytes.len()).all(is_right) {
        return None;
    }
    word.replace('_', "").parse().ok()
}

/// Replaces the word's decimal digits by ASCII digits. `None` if it has other non-ASCII characters.
fn with_ascii_digits(word: &str) -> Option<Cow<'_, str>> {
    if word.is_ascii() {
        return Some(Cow::Borrowed(word));
    }
    let digit = |c: char| {
        if c.is_ascii() || !is_digit(c) {
            return c.is_ascii().then_some(c);
        }
        // Unicode lists the ten digits of a script in order and without a gap; at most five such blocks are adjacent.
        let before = (1..50).take_while(|back| char::from_u32(u32::from(c) - back).is_some_and(is_digit)).count();
        char::from_digit(before as u32 % 10, 10)
    };
    word.chars().map(digit).collect::<Option<String>>().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_python() {
        for (word, expected) in
            [("1e3", Some(1000.0)), ("1_000", Some(1000.0)), ("-.5", Some(-0.5)), ("Infinity", Some(f64::INFINITY))]
        {
            assert_eq!(python_float(word), expected, "{word}");
        }
        // Python 3: float("٣٤.٥"), float("１_２"), float("𝟘𝟡"), float("²").
        for (word, expected) in
            [("٣٤.٥", Some(34.5)), ("１_２", Some(12.0)), ("𝟘𝟡", Some(9.0)), ("²", None), ("½", None)]
        {
            assert_eq!(python_float(word), expected, "{word}");
        }
        assert!(python_float("nan").is_some_and(f64::is_nan));
        for word in ["1__0", "_1", "1_", "0x10", "1,5", "e3", ""] {
            assert_eq!(python_float(word), None, "{word}");
        }
    }

    #[test]
    fn only_the_run_from_the_first_number_counts() {
        let metric = IncreasingNumbers::new(IncreasingNumbersOptions { min_tokens: 20 });
        let all: String = (0..20).map(|i| format!("{i} ")).collect();
        let rows = [
            ("1 2 3 a", 0.3),
            ("1 2 2 3", 0.2),
            ("5 1 2", 0.1),
            ("a b", 0.0),
            ("1 nan 2", 0.1),
            ("1 inf 2 3", 0.2),
            (all.as_str(), 1.0),
        ];
        for (text, expected) in rows {
            assert_eq!(metric.score(text), expected, "{text}");
        }
    }
}
