//! IMDB: continue a film review. Maas et al. 2011, <https://aclanthology.org/P11-1015>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::text;
use super::permutation::permutation;
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::Result;
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
    /// Share of the positive reviews to train on. Default 1.
    pub positive_ratio: f64,
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
        let reviews = reviews(files, self.seed)?;
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
        let mut reviews = reviews(files, self.seed)?;
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

struct Review {
    text: String,
    is_positive: bool,
}

/// Returns the reviews of the split, in the order of the seed.
fn reviews(files: &Files<'_>, seed: u64) -> Result<Vec<(RowLocation, Review)>> {
    let rows = files.rows(origin(), reads(files.split()), None, |mut columns| {
        let text = text(&mut columns, &["text"])?;
        Ok(vec![Sample { prompt: text, references: Vec::new(), metadata: columns }])
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
        let is_positive = sample.metadata.get("label").is_some_and(|label| *label == 1 || *label == "pos");
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
    use super::*;

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
