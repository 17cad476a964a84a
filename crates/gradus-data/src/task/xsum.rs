//! XSum: an article in one sentence. Narayan et al. 2018, <https://aclanthology.org/D18-1206>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::files::text;
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::Result;
use crate::metric::MetricConfig;

/// Keys of `xsum`: the prompt is the article and `prompt_suffix`, the reference its summary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Xsum {
    /// Text after the article. Default `TL;DR:` (RL4LMs).
    pub prompt_suffix: String,
}

impl Default for Xsum {
    fn default() -> Self {
        Self { prompt_suffix: "TL;DR:".into() }
    }
}

impl Task for Xsum {
    fn origin(&self, _split: Split) -> Origin {
        Origin::hub("EdinburghNLP/xsum")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        files.rows(self.origin(files.split()), files.split(), files.max_samples(), |mut columns| {
            let document = text(&mut columns, &["document"])?;
            let summary = text(&mut columns, &["target", "summary"])?;
            let prompt = format!("{document}{}", self.prompt_suffix);
            Ok(vec![Sample { prompt, references: vec![summary], metadata: Map::new() }])
        })
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["meteor", "rouge", "bleu", "diversity"])
    }
}
