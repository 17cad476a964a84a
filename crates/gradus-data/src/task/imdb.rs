//! IMDB: continue a film review. Maas et al. 2011, <https://aclanthology.org/P11-1015>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::text;
use super::permutation::permutation;
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::{Error, Result, excerpt};
use crate::metric::MetricConfig;

/// Keys of `imdb`. The prompt is the first half of a review's words; the reference is the whole review. The training rows are
/// shuffled by the seed: four fifths are trained on, the others are the validation split. The test split has 5000 rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Imdb {
    /// Seed of the order of the rows, which decides the split: NumPy's permutation, as `datasets` shuffles. Default 42 (RL4LMs'
    /// recipes).
    pub seed: u64,
}

impl Default for Imdb {
    fn default() -> Self {
        Self { seed: 42 }
    }
}

/// Keys of `imdb_seq2seq`: the same reviews for supervised training. The prompt is the first half of the words; the reference is
/// the second half. Only positive reviews are trained on. Unlike in RL4LMs, the splits are seeded, so they never overlap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ImdbSeq2seq {
    /// Seed of the order of the rows, which decides the split. Default 42.
    pub seed: u64,
    /// Share of the positive reviews to train on, above 0 and at most 1. Default 1.
    pub positive_ratio: f64,
}

impl ImdbSeq2seq {
    /// Rejects a share that is none.
    pub(super) fn check(&self) -> Result<()> {
        let ratio = self.positive_ratio;
        if ratio > 0.0 && ratio <= 1.0 {
            return Ok(());
        }
        Err(Error::input(format!("`positive_ratio` of `imdb_seq2seq` is {ratio}, but must be above 0 and at most 1")))
    }
}

impl Default for ImdbSeq2seq {
    fn default() -> Self {
        Self { seed: 42, positive_ratio: 1.0 }
    }
}

/// Number of rows in the test split.
const TEST_ROWS: usize = 5000;

impl Task for Imdb {
    fn origin(&self, _split: Split) -> Origin {
        origin()
    }

    fn reads(&self, split: Split) -> Split {
        reads(split)
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let reviews = reviews(files, self.seed, Labels::Unread)?;
        let sample = |(location, review): (RowLocation, Review)| {
            let (prompt, _) = halves(&review.text);
            (location, Sample { prompt, references: vec![review.text], metadata: Map::new() })
        };
        Ok(reviews.into_iter().map(sample).collect())
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["diversity"])
    }
}

impl Task for ImdbSeq2seq {
    fn origin(&self, _split: Split) -> Origin {
        origin()
    }

    fn reads(&self, split: Split) -> Split {
        reads(split)
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        self.check()?;
        // A bad row changes the order of the others, so both parts of the training rows reject the same rows.
        let labels = if files.split() == Split::Test { Labels::Unread } else { Labels::Needed };
        let mut reviews = reviews(files, self.seed, labels)?;
        if files.split() == Split::Train {
            reviews.retain(|(_, review)| review.is_positive);
            reviews.truncate((reviews.len() as f64 * self.positive_ratio) as usize);
        }
        let sample = |(location, review): (RowLocation, Review)| {
            let (prompt, rest) = halves(&review.text);
            let metadata = Map::from_iter([("reference".to_owned(), Value::from(review.text))]);
            (location, Sample { prompt, references: vec![rest], metadata })
        };
        Ok(reviews.into_iter().map(sample).collect())
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["diversity"])
    }
}

/// Maps the validation split to the training rows, because it is cut from them.
fn reads(split: Split) -> Split {
    if split == Split::Test { Split::Test } else { Split::Train }
}

fn origin() -> Origin {
    Origin::folder("stanfordnlp/imdb", "plain_text")
}

/// Key of the label in the metadata of a review.
const POSITIVE: &str = "is_positive";

struct Review {
    text: String,
    is_positive: bool,
}

/// Whether the rows need labels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Labels {
    Unread,
    Needed,
}

/// Returns whether a review is positive. The data set has the label 1 or `pos`; a cell of a CSV file is a text.
fn is_positive(columns: &Map<String, Value>) -> Result<bool, String> {
    let label = match columns.get("label") {
        None | Some(Value::Null) => return Err("missing column `label`".into()),
        Some(Value::String(text)) => text.trim().to_lowercase(),
        Some(other) => other.to_string(),
    };
    match label.as_str() {
        "1" | "1.0" | "true" | "pos" | "positive" => Ok(true),
        "0" | "0.0" | "false" | "neg" | "negative" => Ok(false),
        other => Err(format!("column `label` is {}, expected 1 or `pos`, or 0 or `neg`", excerpt(other, 60))),
    }
}

/// Returns the reviews of the split, in the order of the seed.
fn reviews(files: &Files<'_>, seed: u64, labels: Labels) -> Result<Vec<(RowLocation, Review)>> {
    let rows = files.rows(origin(), reads(files.split()), None, |mut columns| {
        let text = text(&mut columns, &["text"])?;
        let is_positive = labels == Labels::Needed && is_positive(&columns)?;
        let metadata = Map::from_iter([(POSITIVE.to_owned(), is_positive.into())]);
        Ok(vec![Sample { prompt: text, references: Vec::new(), metadata }])
    })?;
    let order = permutation(seed, rows.len());
    let train = (rows.len() as f64 * 0.8) as usize;
    let chosen = match files.split() {
        Split::Train => &order[..train],
        Split::Validation => &order[train..],
        Split::Test => &order[..rows.len().min(TEST_ROWS)],
    };
    let mut rows: Vec<_> = rows.into_iter().map(Some).collect();
    let review = |&row: &usize| {
        let (location, sample) = rows[row].take().expect("a permutation names every row once");
        let is_positive = sample.metadata[POSITIVE] == true;
        (location, Review { text: sample.prompt, is_positive })
    };
    Ok(chosen.iter().map(review).collect())
}

/// Splits a text after the first half of its words, rounded down. Words are separated by single blanks.
fn halves(text: &str) -> (String, String) {
    let words: Vec<&str> = text.split(' ').collect();
    let (first, second) = words.split_at(words.len() / 2);
    (first.join(" "), second.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_of_all_formats_are_read() {
        let of = |label: Value| is_positive(&Map::from_iter([("label".to_owned(), label)]));
        for label in [json!(1), json!(1.0), json!(true), json!("1"), json!("pos"), json!(" Positive")] {
            assert_eq!(of(label.clone()), Ok(true), "{label}");
        }
        for label in [json!(0), json!(0.0), json!(false), json!("0"), json!("neg"), json!("negative")] {
            assert_eq!(of(label.clone()), Ok(false), "{label}");
        }
        assert_eq!(of(json!(2)), Err("column `label` is 2, expected 1 or `pos`, or 0 or `neg`".into()));
        assert_eq!(of(json!(null)), Err("missing column `label`".into()));
    }

    #[test]
    fn the_share_of_positive_reviews_is_a_share() {
        let check = |positive_ratio: f64| ImdbSeq2seq { positive_ratio, ..ImdbSeq2seq::default() }.check();
        assert!(check(1.0).is_ok() && check(1e-3).is_ok());
        for wrong in [0.0, -1.0, 2.0, f64::NAN] {
            let error = check(wrong).expect_err("refused").to_string();
            assert!(error.ends_with("but must be above 0 and at most 1"), "{error}");
        }
    }

    #[test]
    fn half_of_the_words_is_rounded_down() {
        let check = |text: &str, first: &str, second: &str| {
            assert_eq!(halves(text), (first.to_owned(), second.to_owned()));
        };
        check("one two three", "one", "two three");
        check("one  two", "one", " two");
        check("one", "", "one");
    }
}
