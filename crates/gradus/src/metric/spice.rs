//! SPICE's F-score of tuples, over scene graphs that another program parsed.
//!
//! Anderson et al. 2016, <https://arxiv.org/abs/1607.08822>. The parser (CoreNLP with rules of its own) is not part of gradus: a
//! file gives the tuples of each row.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::treebank::Rules;
use super::wordnet::WordNet;
use super::{Measure, Metric, Row, RowError};
use crate::error::{Error, Result};

/// Options of [`Spice`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpiceOptions {
    /// A file of JSON lines, one a row, in the order of the rows: `{"prediction": [["girl"], ["girl", "young"], ["girl", "on",
    /// "court"]], "references": [[…], …]}`.
    pub scene_graphs: PathBuf,
    /// WordNet, as METEOR's option: words of one synset match. Without it, words match by their letters.
    #[serde(default)]
    pub wordnet: Option<PathBuf>,
}

/// An object, its attribute, or a relation between two.
type Tuple = Vec<String>;

/// The tuples of a row.
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

/// F-score of the tuples of the prediction against those of all references together.
#[derive(Debug)]
pub struct Spice {
    file: PathBuf,
    graphs: Vec<Graphs>,
    wordnet: Option<WordNet>,
}

impl Spice {
    /// The metric over the scene graphs of a file.
    ///
    /// # Errors
    /// A file that cannot be read, or a line of another form.
    pub fn new(options: &SpiceOptions) -> Result<Self> {
        let wordnet = WordNet::open(options.wordnet.as_deref())?;
        Ok(Self { graphs: read(&options.scene_graphs)?, file: options.scene_graphs.clone(), wordnet })
    }

    fn score(&self, graphs: &Graphs) -> f64 {
        let wanted: BTreeSet<&Tuple> = graphs.references.iter().flatten().collect();
        let mut synonyms = HashMap::new();
        let mut is_same = |a: &str, b: &str| {
            let Some(wordnet) = &self.wordnet else { return a == b };
            a == b || synonyms.entry(a.to_owned()).or_insert_with(|| wordnet.synonyms(a, Rules::Today)).contains(b)
        };
        let mut is_match = |tuple: &Tuple, other: &Tuple| {
            other.len() == tuple.len() && tuple.iter().zip(other).all(|(a, b)| is_same(a, b))
        };
        // Each side counts its own: two words of the prediction may mean one of the references.
        let mut said = |tuple: &&Tuple| wanted.contains(*tuple) || wanted.iter().any(|other| is_match(tuple, other));
        let precise = graphs.prediction.iter().filter(|tuple| said(tuple)).count() as f64;
        let recalled =
            wanted.iter().filter(|other| graphs.prediction.iter().any(|tuple| is_match(tuple, other))).count() as f64;
        if precise == 0.0 {
            return 0.0;
        }
        let (precision, recall) = (precise / graphs.prediction.len() as f64, recalled / wanted.len() as f64);
        2.0 * precision * recall / (precision + recall)
    }
}

impl Metric for Spice {
    fn remark(&self) -> Option<String> {
        self.wordnet.is_none().then(|| {
            "without WordNet: words match by letters, not by synonyms; name WordNet's directory as the metric's option `wordnet`"
                .to_owned()
        })
    }

    fn measure(&self, rows: &[Row]) -> std::result::Result<Vec<Measure>, RowError> {
        if self.graphs.len() != rows.len() {
            let message = format!(
                "{} has scene graphs of {} rows, but there are {}: one line a row is needed",
                self.file.display(),
                self.graphs.len(),
                rows.len()
            );
            return Err(RowError::new(self.graphs.len().min(rows.len().saturating_sub(1)), message));
        }
        let scores: Vec<f64> = self.graphs.iter().map(|graphs| self.score(graphs)).collect();
        Ok(vec![Measure::mean("", &scores)])
    }

    fn is_reward(&self) -> bool {
        false
    }
}

fn read(path: &Path) -> Result<Vec<Graphs>> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
    let graphs = |(i, line): (usize, &str)| {
        let graphs: Graphs = serde_json::from_str(line).map_err(|error| {
            let message = format!("no scene graphs of a row: {error}");
            Error::data(path, Some(i + 1), message)
                .with_hint("a line is {\"prediction\": [[\"girl\"], …], \"references\": [[[\"girl\"], …], …]}")
        })?;
        Ok(graphs.in_lower_case())
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(graphs).collect()
}
