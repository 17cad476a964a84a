//! CRD3: the next turn of a role-playing game. Rameshkumar and Bailey 2020, <https://aclanthology.org/2020.acl-main.459>.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::missing;
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::{self, RowLocation};
use crate::error::{Error, Result};
use crate::files;
use crate::metric::MetricConfig;

/// Keys of `crd3`. The prompt is the previous turns, one per line as `NAME: text`, and the name of the next speaker. The reference
/// is that speaker's turn. Turns with at least two turns before them are samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Crd3 {
    /// Maximum number of previous turns in the prompt.
    pub max_context_size: usize,
}

impl Task for Crd3 {
    fn origin(&self, _split: Split) -> Origin {
        Origin::Files("the directory of https://github.com/RevanthRameshkumar/CRD3, unpacked (with `data` in it)")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let root = files.path().ok_or_else(|| missing(&self.origin(files.split())))?;
        let short = files.split().short();
        let mut samples = Vec::new();
        for (episode, line) in data::lines(&root.join("data/aligned data").join(format!("{short}_files")))?.enumerate()
        {
            let path = root.join("data/cleaned data").join(format!("{}.json", line?.1));
            let turns = turns(&path)?;
            for (turn, (name, utterance)) in turns.iter().enumerate().skip(2) {
                if files.max_samples().is_some_and(|max_samples| samples.len() >= max_samples) {
                    return Ok(samples);
                }
                let before = &turns[turn.saturating_sub(self.max_context_size)..turn];
                let before: String = before.iter().map(|(name, utterance)| format!("{name}: {utterance}\n")).collect();
                let id = format!("{short}_ep_{episode}_turn_{turn}");
                let sample = Sample {
                    prompt: format!("{before}{name}: "),
                    references: vec![utterance.clone()],
                    metadata: Map::from_iter([("id".to_owned(), Value::from(id))]),
                };
                samples
                    .push((RowLocation { file: path.as_path().into(), line: 1, row_in_array: Some(turn + 1) }, sample));
            }
        }
        Ok(samples)
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["meteor", "rouge", "bleu", "diversity"])
    }
}

/// Reads the turns of an episode: the (first) speaker and the text.
fn turns(path: &Path) -> Result<Vec<(String, String)>> {
    let text = files::read_text(path, files::SETTINGS_BYTES).map_err(|error| Error::io(path, error))?;
    let read: Value = serde_json::from_str(&text)
        .map_err(|error| Error::data(path, Some(error.line()), format!("not valid JSON: {error}")))?;
    let wrong = |i: usize, what: &str| Error::data(path, None, format!("turn {} has no {what}", i + 1));
    let turns = read["TURNS"].as_array().ok_or_else(|| Error::data(path, None, "no list `TURNS`"))?;
    let turn = |(i, turn): (usize, &Value)| {
        let name = turn["NAMES"][0].as_str().ok_or_else(|| wrong(i, "`NAMES`"))?;
        let utterances = turn["UTTERANCES"].as_array().ok_or_else(|| wrong(i, "`UTTERANCES`"))?;
        let utterances: Vec<&str> = utterances.iter().filter_map(Value::as_str).collect();
        Ok((name.to_owned(), utterances.join(" ")))
    };
    turns.iter().enumerate().map(turn).collect()
}
