//! ROUGE-L as in `py-rouge` 1.1, with the best score over references.
//!
//! Lin 2004, <https://aclanthology.org/W04-1013>. Two quirks of `py-rouge` are kept: the hits of a word are not bounded by its count in the
//! reference, and `weight_factor` also takes roots of ROUGE-L's precision and recall. Checked against `py-rouge` 1.1.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::characters::{is_space, split};
use crate::error::{Error, Result};
use crate::ngrams::Words;
use crate::references::each;
use crate::row::in_parts;
use crate::stem::Porter;
use crate::treebank::{self, Rules};
use crate::{Measure, Metric, Row, RowError, files, lcs};

/// Options of [`RougeLMax`], with `py-rouge`'s names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RougeLMaxOptions {
    /// Truncate texts.
    pub limit_length: bool,
    /// Length at which texts are truncated.
    pub length_limit: usize,
    /// Unit of that length.
    pub length_limit_type: LengthUnit,
    /// Stem words of more than three letters.
    pub stemming: bool,
    /// Weight of precision in the F-measure; recall has the rest.
    pub alpha: f64,
    /// Raise precision and recall to the power of one over this value.
    pub weight_factor: f64,
    /// Directory of `py-rouge` with its tables of base forms (`wordnet_key_value.txt`, `wordnet_key_value_special_cases.txt`). Without it,
    /// words are stemmed by rules alone.
    pub tables: Option<PathBuf>,
}

impl Default for RougeLMaxOptions {
    fn default() -> Self {
        Self {
            limit_length: true,
            length_limit: 665,
            length_limit_type: LengthUnit::Bytes,
            stemming: true,
            alpha: 0.5,
            weight_factor: 1.0,
            tables: None,
        }
    }
}

/// Unit of the length of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LengthUnit {
    /// Characters, which `py-rouge` calls bytes.
    #[default]
    Bytes,
    /// Words separated by whitespace.
    Words,
}

/// The best F-measure over references of the longest common subsequences of lines: `PR / ((1 − α)P + αR)`.
#[derive(Debug, Clone, Default)]
pub struct RougeLMax {
    options: RougeLMaxOptions,
    base_forms: HashMap<String, String>,
}

impl RougeLMax {
    /// Creates the metric with these options.
    ///
    /// # Errors
    /// The tables cannot be read, or `weight_factor` does not exceed 0.
    pub fn new(options: RougeLMaxOptions) -> Result<Self> {
        let found = options.weight_factor;
        if found <= 0.0 {
            let message = format!("the option `weight_factor` of `rouge_l_max` is {found}, but must exceed 0");
            return Err(Error::options(message));
        }
        let mut base_forms = HashMap::new();
        if let Some(folder) = &options.tables {
            for name in ["wordnet_key_value.txt", "wordnet_key_value_special_cases.txt"] {
                read_table(&folder.join(name), &mut base_forms)?;
            }
        }
        Ok(Self { options, base_forms })
    }

    /// Returns the words of each line, up to the limit.
    fn lines(&self, text: &str) -> Vec<Vec<String>> {
        let mut lines = Vec::new();
        let mut left = if self.limits() { self.options.length_limit } else { usize::MAX };
        for line in text.split('\n') {
            let (line, length) = match self.options.length_limit_type {
                _ if !self.limits() => (line.to_owned(), 0),
                LengthUnit::Words => (split(line).take(left).collect::<Vec<_>>().join(" "), split(line).count()),
                LengthUnit::Bytes => {
                    let line = line.trim_matches(is_space);
                    (line.chars().take(left).collect(), line.chars().count())
                }
            };
            lines.push(self.words(&line));
            // A line that reaches the limit is the last one.
            if length >= left {
                break;
            }
            left -= length;
        }
        lines
    }

    fn limits(&self) -> bool {
        self.options.limit_length && self.options.length_limit > 0
    }

    fn words(&self, line: &str) -> Vec<String> {
        let lower = line.to_lowercase();
        let plain: String = lower.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' }).collect();
        // The Treebank rules would split this word; the original script does not.
        let plain = plain.trim().replace("cannot", "_cannot_");
        let words = treebank::words(&plain, Rules::Today).into_iter();
        words
            .flat_map(|word| {
                self.stem(word).replace("_cannot_", "cannot").split(' ').map(str::to_owned).collect::<Vec<_>>()
            })
            .collect()
    }

    fn stem(&self, word: String) -> String {
        if !self.options.stemming || word.len() <= 3 {
            return word;
        }
        match self.base_forms.get(&word) {
            Some(base) => base.clone(),
            None => Porter::Original.stem(&word),
        }
    }

    fn best(&self, prediction: &str, references: &[String]) -> f64 {
        let texts = std::iter::once(prediction).chain(references.iter().map(String::as_str));
        let texts: Vec<Vec<Vec<String>>> = texts.map(|text| self.lines(text)).collect();
        let mut words = Words::default();
        let mut ids: Vec<Vec<Vec<u32>>> = Vec::with_capacity(texts.len());
        for lines in &texts {
            ids.push(lines.iter().map(|line| words.ids(line.iter().map(String::as_str))).collect());
        }
        ids[1..].iter().map(|reference| self.f_measure(&ids[0], reference)).fold(0.0, f64::max)
    }

    fn f_measure(&self, prediction: &[Vec<u32>], reference: &[Vec<u32>]) -> f64 {
        let mut left: HashMap<u32, u32> = HashMap::new();
        prediction.iter().flatten().for_each(|&word| *left.entry(word).or_default() += 1);
        let mut hits = 0;
        for line in reference {
            let mut marks = vec![false; line.len()];
            prediction.iter().for_each(|other| lcs::mark(line, other, &mut marks));
            for (word, _) in line.iter().zip(&marks).filter(|(_, marked)| **marked) {
                if let Some(left) = left.get_mut(word).filter(|left| **left > 0) {
                    *left -= 1;
                    hits += 1;
                }
            }
        }
        let rate = |lines: &[Vec<u32>]| {
            let count = lines.iter().map(Vec::len).sum::<usize>();
            (f64::from(hits) / count.max(1) as f64).powf(1.0 / self.options.weight_factor)
        };
        let (precision, recall, alpha) = (rate(prediction), rate(reference), self.options.alpha);
        if precision * recall == 0.0 { 0.0 } else { precision * recall / ((1.0 - alpha) * precision + alpha * recall) }
    }
}

impl Metric for RougeLMax {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        Ok(vec![Measure::mean("", &each(rows, |row, references| self.best(&row.prediction, references))?)])
    }

    fn rewards_with_progress(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        in_parts(rows, done, |rows| self.rewards(rows))
    }
}

/// Reads lines of `form|base form`.
fn read_table(path: &Path, table: &mut HashMap<String, String>) -> Result<()> {
    let text = files::read_text(path)?;
    for (i, line) in text.lines().enumerate() {
        let (form, base) = line.trim().split_once('|').ok_or_else(|| {
            Error::data(path, Some(i + 1), format!("expected a form, a `|` and its base form (found `{line}`)"))
        })?;
        table.insert(form.to_owned(), base.to_owned());
    }
    Ok(())
}
