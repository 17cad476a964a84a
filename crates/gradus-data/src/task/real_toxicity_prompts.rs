//! RealToxicityPrompts: continue the beginning of a sentence from the web. Gehman et al. 2020, <https://arxiv.org/abs/2009.11462>.

use std::collections::HashSet;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::shuffled::shuffled;
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::{self, RowLocation};
use crate::error::{Error, Result};
use crate::metric::MetricConfig;

/// Keys of `real_toxicity_prompts`. The prompt is the beginning; the reference is the continuation on the page. The splits are
/// Quark's (Lu et al. 2022, <https://arxiv.org/abs/2205.13636>): the test split is a separate file. The other rows are shuffled by
/// the seed; the first ones are the validation split, the rest is the training split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RealToxicityPrompts {
    /// File with the rows of the test split, which are in no other split: DExperts' `nontoxic_prompts-10k.jsonl`. Without it, there
    /// is no test split, and all rows are in the other two.
    pub test: Option<PathBuf>,
    /// Seed of the order of the rows, which decides the split: Python's `random.shuffle`. Default 42 (Quark).
    pub seed: u64,
    /// Number of rows in the validation split. Default 5000 (Quark).
    pub validation_rows: usize,
}

impl Default for RealToxicityPrompts {
    fn default() -> Self {
        Self { test: None, seed: 42, validation_rows: 5000 }
    }
}

impl Task for RealToxicityPrompts {
    fn origin(&self, _split: Split) -> Origin {
        Origin::hub("allenai/real-toxicity-prompts")
    }

    fn reads(&self, _split: Split) -> Split {
        Split::Train
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let test = match &self.test {
            Some(path) => {
                let name = path.to_string_lossy();
                rows(&Files::new(Some(&name), Split::Train, None, files.interrupt()), self.origin(Split::Test))?
            }
            None if files.split() == Split::Test => {
                let message = "the test split of `real_toxicity_prompts` is a separate file, and its path is not set";
                return Err(Error::input(message).with_hint(
                    "`task: { real_toxicity_prompts: { test: nontoxic_prompts-10k.jsonl } }`, from the files of DExperts",
                ));
            }
            None => Vec::new(),
        };
        if files.split() == Split::Test {
            return Ok(test);
        }
        let mut rest = rows(files, self.origin(files.split()))?;
        let is_test: HashSet<Option<&str>> = test.iter().map(|(_, sample)| id(sample)).collect();
        rest.retain(|(_, sample)| !is_test.contains(&id(sample)));
        let order = shuffled(self.seed, rest.len());
        let (validation, train) = order.split_at(self.validation_rows.min(rest.len()));
        let chosen = if files.split() == Split::Validation { validation } else { train };
        let mut rest: Vec<_> = rest.into_iter().map(Some).collect();
        Ok(chosen.iter().map(|&row| rest[row].take().expect("an order names every row once")).collect())
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["distinct"])
    }
}

/// Returns the identifier of the row in the data set.
fn id(sample: &Sample) -> Option<&str> {
    sample.metadata.get("id").and_then(Value::as_str)
}

/// Reads all rows of the files in order.
fn rows(files: &Files<'_>, origin: Origin) -> Result<Vec<(RowLocation, Sample)>> {
    files.rows(origin, Split::Train, None, |mut columns| {
        let name = |columns: &Map<String, Value>| {
            let [file, begin, end] = ["filename", "begin", "end"].map(|key| columns.get(key).cloned());
            let (Value::String(file), Some(begin), Some(end)) = (file?, begin?.as_u64(), end?.as_u64()) else {
                return None;
            };
            Some(format!("{file}:{begin}-{end}"))
        };
        let name = name(&columns).ok_or("expected `filename`, `begin` and `end`, which name the row")?;
        let row = data::read_scored(&mut columns)?;
        columns.insert("id".into(), name.into());
        Ok(vec![Sample { prompt: row.prompt, references: vec![row.continuation], metadata: columns }])
    })
}
