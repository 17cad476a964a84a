//! Translation: WMT 2014 and 2016, IWSLT 2017.
//!
//! Rows have `translation: { en: …, de: … }`, as on the hub. Alternatively, a split has two text files with one sentence per line,
//! whose names end in the languages: `train.en` and `train.de`, optionally gzipped.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::Result;
use crate::metric::MetricConfig;

/// Keys of `wmt16`: any pair of languages of a WMT data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wmt16 {
    /// The data set on the hub. Default `wmt/wmt16`.
    #[serde(default = "wmt16")]
    pub wmt_id: String,
    /// The language of the prompts, such as `en`.
    pub source_language: String,
    /// The language of the references, such as `de`.
    pub target_language: String,
    /// Text before the sentence. By default nothing (RL4LMs).
    #[serde(default)]
    pub prompt_prefix: String,
    /// Text after the sentence. By default nothing (RL4LMs).
    #[serde(default)]
    pub prompt_suffix: String,
}

fn wmt16() -> String {
    "wmt/wmt16".into()
}

/// Keys of `wmt14_processed_en_de`: English to German, WMT 2014 as FAIR prepared it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Wmt14ProcessedEnDe {
    /// Text before the sentence. By default nothing (RL4LMs).
    pub prompt_prefix: String,
    /// Text after the sentence. By default nothing (RL4LMs).
    pub prompt_suffix: String,
}

/// Keys of `wmt16newsonly`: English to German, trained on news commentary and evaluated on WMT 2016.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Wmt16NewsOnly {
    /// Text before the sentence. By default nothing (RL4LMs).
    pub prompt_prefix: String,
    /// Text after the sentence. By default nothing (RL4LMs).
    pub prompt_suffix: String,
}

/// Keys of `iwslt2017en_de`: English to German, talks of IWSLT 2017.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Iwslt2017EnDe {
    /// Text before the sentence. By default nothing (RL4LMs; its recipes use `translate English to German: `).
    pub prompt_prefix: String,
    /// Text after the sentence. By default nothing (RL4LMs).
    pub prompt_suffix: String,
}

impl Task for Wmt16 {
    fn origin(&self, _split: Split) -> Origin {
        // The hub has each pair once; in pairs with English, English comes last.
        let (from, to) = (&self.source_language, &self.target_language);
        let folder = if from == "en" { format!("{to}-{from}") } else { format!("{from}-{to}") };
        Origin::folder(&self.wmt_id, &folder)
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let pair = [self.source_language.as_str(), &self.target_language];
        sentences(files, self.origin(files.split()), pair, &self.prompt_prefix, &self.prompt_suffix)
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        measured()
    }
}

impl Task for Wmt14ProcessedEnDe {
    fn origin(&self, _split: Split) -> Origin {
        Origin::hub("stas/wmt14-en-de-pre-processed")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        sentences(files, self.origin(files.split()), EN_DE, &self.prompt_prefix, &self.prompt_suffix)
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        measured()
    }
}

impl Task for Wmt16NewsOnly {
    fn origin(&self, split: Split) -> Origin {
        match split {
            Split::Train => Origin::folder("Helsinki-NLP/news_commentary", "de-en"),
            Split::Validation | Split::Test => Origin::folder("wmt/wmt16", "de-en"),
        }
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        sentences(files, self.origin(files.split()), EN_DE, &self.prompt_prefix, &self.prompt_suffix)
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        measured()
    }
}

impl Task for Iwslt2017EnDe {
    fn origin(&self, _split: Split) -> Origin {
        Origin::folder("IWSLT/iwslt2017", "iwslt2017-de-en")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        sentences(files, self.origin(files.split()), EN_DE, &self.prompt_prefix, &self.prompt_suffix)
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        measured()
    }
}

const EN_DE: [&str; 2] = ["en", "de"];

fn measured() -> Vec<MetricConfig> {
    metrics(&["meteor", "rouge", "bleu", "sacre_bleu", "ter", "chrf", "diversity"])
}

fn sentences(
    files: &Files<'_>,
    origin: Origin,
    pair: [&str; 2],
    prefix: &str,
    suffix: &str,
) -> Result<Vec<(RowLocation, Sample)>> {
    let sample = |source: &str, target: String| Sample {
        prompt: format!("{prefix}{source}{suffix}"),
        references: vec![target],
        metadata: Map::new(),
    };
    let of = |language: &str| files.text(&|name: &str| name.rsplit_once('.').is_some_and(|(_, end)| end == language));
    let (sources, targets) = (of(pair[0])?, of(pair[1])?);
    if !sources.is_empty() || !targets.is_empty() {
        let lines = files.side_by_side(&[sources, targets])?;
        let of_line = |(location, line): (RowLocation, Vec<String>)| {
            let [source, target] = <[String; 2]>::try_from(line).expect("two files side by side");
            (location, sample(&source, target))
        };
        return Ok(lines.into_iter().map(of_line).collect());
    }
    files.rows(origin, files.split(), files.max_samples(), |mut columns| {
        let Some(Value::Object(mut sides)) = columns.shift_remove("translation") else {
            return Err("expected a column `translation` with one sentence per language".into());
        };
        let mut side = |language: &str| match sides.shift_remove(language) {
            Some(Value::String(text)) => Ok(text),
            _ => {
                let found: Vec<String> = sides.keys().map(|name| format!("`{name}`")).collect();
                Err(format!("`translation` has no sentence in `{language}` (found {})", found.join(", ")))
            }
        };
        let (source, target) = (side(pair[0])?, side(pair[1])?);
        Ok(vec![sample(&source, target)])
    })
}
