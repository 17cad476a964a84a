//! CNN/DailyMail: the highlights of an article. Hermann et al. 2015; See et al. 2017, <https://arxiv.org/abs/1704.04368>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::files::text;
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::Result;
use crate::metric::{MetricConfig, WordRules, WordTokenizer, error_of_metric};

/// Keys of `cnn_daily_mail`. The prompt is the article between `prompt_prefix` and `prompt_suffix`; the reference is its
/// highlights, one per line.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CnnDailyMail {
    /// Text before the article. By default nothing (RL4LMs; its recipes use `Summarize: `).
    pub prompt_prefix: String,
    /// Text after the article. By default nothing (RL4LMs).
    pub prompt_suffix: String,
    /// Maximum number of words of the article, as NLTK splits them, joined by blanks. Default: the unchanged article (RL4LMs).
    pub truncate_article: Option<usize>,
}

impl Task for CnnDailyMail {
    fn origin(&self, _split: Split) -> Origin {
        Origin::folder("abisee/cnn_dailymail", "3.0.0")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let words = WordTokenizer::new(None).map_err(error_of_metric)?;
        files.rows(self.origin(files.split()), files.split(), files.max_samples(), |mut columns| {
            let mut article = text(&mut columns, &["article"])?;
            if let Some(most) = self.truncate_article {
                let mut found = words.words(&article, WordRules::V3_7);
                found.truncate(most);
                article = found.join(" ");
            }
            let highlights = text(&mut columns, &["highlights"])?;
            let prompt = format!("{}{article}{}", self.prompt_prefix, self.prompt_suffix);
            Ok(vec![Sample { prompt, references: vec![highlights], metadata: Map::new() }])
        })
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["meteor", "rouge", "bleu", "diversity"])
    }
}
