//! NarrativeQA: questions about stories. Kočiský et al. 2018, <https://aclanthology.org/Q18-1023>; in UnifiedQA's format (Khashabi
//! et al. 2020).

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::files::missing;
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::{self, RowLocation};
use crate::error::{Error, Result};
use crate::metric::MetricConfig;

/// Keys of `narrative_qa` (there are none). Its files have one prompt (the question, `\n`, the story), a TAB and one answer per
/// line. All answers to a prompt are its references. Everything is in lower case.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NarrativeQa {}

impl Task for NarrativeQa {
    fn origin(&self, _split: Split) -> Origin {
        Origin::Files(
            "a directory with `train.tsv`, `dev.tsv` and `test.tsv` of \
             https://storage.googleapis.com/unifiedqa/data/narrativeqa/",
        )
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let path = files.path().ok_or_else(|| missing(&self.origin(files.split())))?;
        let found = files.text(&|name| name.ends_with(".tsv"))?;
        if found.is_empty() {
            return Err(Error::data(path, None, format!("no file `{}.tsv` in it", files.split().name())));
        }
        let mut samples: Vec<(RowLocation, Sample)> = Vec::new();
        // A prompt is repeated for each of its answers, not always on adjacent lines.
        let mut known: HashMap<String, usize> = HashMap::new();
        for file in found {
            for line in data::lines(&file)? {
                let (location, line) = line?;
                if line.trim().is_empty() {
                    continue;
                }
                let Some((prompt, answer)) = line.split_once('\t') else {
                    return Err(location.error("expected a prompt, a TAB and an answer (found no TAB)"));
                };
                let answer = answer.to_lowercase().trim().to_owned();
                let row = *known.entry(prompt.to_owned()).or_insert_with(|| {
                    samples.push((
                        location,
                        Sample { prompt: prompt.to_lowercase(), references: Vec::new(), metadata: Map::new() },
                    ));
                    samples.len() - 1
                });
                samples[row].1.references.push(answer);
            }
        }
        Ok(samples)
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["meteor", "rouge", "bleu", "rouge_l_max", "diversity"])
    }
}
