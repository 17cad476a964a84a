//! SPICE: the F-score of scene graph tuples.
//!
//! Anderson et al. 2016, <https://arxiv.org/abs/1607.08822>. This crate does not contain the authors' parser (CoreNLP with additional
//! rules). Instead, a file provides the tuples of each row.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::treebank::Rules;
use crate::{Measure, Metric, Row, RowError, WordNet, files};

/// An object, its attribute, or a relation between two.
type Tuple = Vec<String>;

/// Tuples of a row.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graphs {
    prediction: BTreeSet<Tuple>,
    references: Vec<BTreeSet<Tuple>>,
}

impl Graphs {
    fn in_lower_case(self) -> Self {
        let lower = |tuples: BTreeSet<Tuple>| {
            tuples.into_iter().map(|tuple| tuple.iter().map(|word| word.to_lowercase()).collect()).collect()
        };
        Self { prediction: lower(self.prediction), references: self.references.into_iter().map(lower).collect() }
    }
}

/// F-score of the prediction's tuples against those of all references together: `2PR / (P + R)`.
#[derive(Debug)]
pub struct Spice {
    file: PathBuf,
    graphs: Vec<Graphs>,
    wordnet: Option<WordNet>,
}

impl Spice {
    /// Creates the metric from a file of scene graphs: JSON lines, one per row in the order of the rows, as `{"prediction": [["girl"],
    /// ["girl", "young"], ["girl", "on", "court"]], "references": [[…], …]}`. With a WordNet, words of one synset match; without it, words
    /// match by their letters.
    ///
    /// # Errors
    /// The file cannot be read or has a malformed line.
    pub fn read(scene_graphs: &Path, wordnet: Option<WordNet>) -> Result<Self> {
        let graphs = |(i, line): (usize, &str)| {
            let graphs: Graphs = serde_json::from_str(line).map_err(|error| {
                let message = format!("no scene graphs of a row: {error}");
                Error::data(scene_graphs, Some(i + 1), message)
                    .with_hint("a line is {\"prediction\": [[\"girl\"], …], \"references\": [[[\"girl\"], …], …]}")
            })?;
            Ok(graphs.in_lower_case())
        };
        let text = files::read_text(scene_graphs)?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        Ok(Self { graphs: lines.map(graphs).collect::<Result<_>>()?, file: scene_graphs.to_owned(), wordnet })
    }

    fn score(&self, graphs: &Graphs) -> f64 {
        let expected: BTreeSet<&Tuple> = graphs.references.iter().flatten().collect();
        let mut synonyms = HashMap::new();
        let mut is_same = |a: &str, b: &str| {
            let Some(wordnet) = &self.wordnet else { return a == b };
            a == b || synonyms.entry(a.to_owned()).or_insert_with(|| wordnet.synonyms(a, Rules::Today)).contains(b)
        };
        let mut is_match = |tuple: &Tuple, other: &Tuple| {
            other.len() == tuple.len() && tuple.iter().zip(other).all(|(a, b)| is_same(a, b))
        };
        // Precision and recall count separately: two words of the prediction may match one word of the references.
        let mut is_stated =
            |tuple: &&Tuple| expected.contains(*tuple) || expected.iter().any(|other| is_match(tuple, other));
        let precise = graphs.prediction.iter().filter(|tuple| is_stated(tuple)).count() as f64;
        let recalled =
            expected.iter().filter(|other| graphs.prediction.iter().any(|tuple| is_match(tuple, other))).count() as f64;
        if precise == 0.0 {
            return 0.0;
        }
        let (precision, recall) = (precise / graphs.prediction.len() as f64, recalled / expected.len() as f64);
        2.0 * precision * recall / (precision + recall)
    }
}

impl Metric for Spice {
    fn remark(&self, _rows: &mut dyn Iterator<Item = Row>) -> Option<String> {
        self.wordnet.is_none().then(|| {
            "without WordNet: words match by letters, not by synonyms; set the metric's option `wordnet` to WordNet's directory"
                .to_owned()
        })
    }

    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        if self.graphs.len() != rows.len() {
            let message = format!(
                "{} has scene graphs of {} rows, but there are {}: one line per row is needed",
                self.file.display(),
                self.graphs.len(),
                rows.len()
            );
            return Err(RowError::new(self.graphs.len().min(rows.len().saturating_sub(1)), message));
        }
        let scores: Vec<f64> = self.graphs.iter().map(|graphs| self.score(graphs)).collect();
        Ok(vec![Measure::mean("", &scores)])
    }

    /// The file has no scene graphs of new completions.
    fn is_reward(&self) -> bool {
        false
    }
}
