//! CommonGen: a sentence with the given concepts. Lin et al. 2020, <https://aclanthology.org/2020.findings-emnlp.165>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::{text, texts};
use super::{Files, Home, Sample, Split, Task, metrics};
use crate::data::Place;
use crate::error::Result;
use crate::metric::MetricConfig;

/// Keys of `commongen`: the prompt is `prefix`, the concepts and `concept_end_token`, the reference a sentence with all of them.
/// Reads rows with `concepts` and `target` (GEM's have all sentences in `references`), with `concept_set` and `scene` (the authors' files), and the files of lines
/// `…src_alpha.txt` and `…tgt.txt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Commongen {
    /// Text before the concepts. Default `summarize: ` (RL4LMs; its recipes say `generate a sentence with: `).
    pub prefix: String,
    /// Text between two concepts. Default ` ` (RL4LMs).
    pub concept_separator_token: String,
    /// Text after the last concept. Default ` ` (RL4LMs; its recipes say `.`).
    pub concept_end_token: String,
    /// Which sentences a sample has: each row `one` of its own (RL4LMs), or each set of concepts `all` of them, as the metrics of
    /// the paper want them. Default `one`.
    pub references: References,
}

impl Default for Commongen {
    fn default() -> Self {
        Self {
            prefix: "summarize: ".into(),
            concept_separator_token: " ".into(),
            concept_end_token: " ".into(),
            references: References::One,
        }
    }
}

/// Which references a sample has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum References {
    /// One; rows that share a prompt are samples of their own.
    One,
    /// All of the rows with the same concepts, which are one sample.
    All,
}

impl Task for Commongen {
    fn home(&self, _split: Split) -> Home {
        Home::hub("allenai/common_gen")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(Place, Sample)>> {
        let ends = |end: &'static str| files.text(&move |name: &str| name.ends_with(end));
        let (concepts, targets) = (ends("src_alpha.txt")?, ends("tgt.txt")?);
        // Rows of one set stand together, so a few more than are wanted would be enough; whole sets are read to the end.
        let most = files.most().filter(|_| self.references == References::One);
        let samples = if concepts.is_empty() {
            files.rows(self.home(files.split()), files.split(), most, |columns| self.row(columns))?
        } else {
            let lines = Files::new(None, files.split(), most, files.interrupt()).side_by_side(&[concepts, targets])?;
            let sample = |(place, line): (Place, Vec<String>)| {
                let [concepts, target] = <[String; 2]>::try_from(line).expect("two files side by side");
                (place, self.sample(concepts.split(' ').map(str::to_owned).collect(), vec![target]))
            };
            lines.into_iter().map(sample).collect()
        };
        Ok(match self.references {
            References::One => samples,
            References::All => gathered(samples),
        })
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["meteor", "rouge", "bleu", "cider", "diversity"])
    }
}

impl Commongen {
    fn row(&self, mut columns: Map<String, Value>) -> Result<Vec<Sample>, String> {
        if columns.contains_key("concept_set") {
            let set = text(&mut columns, &["concept_set"])?;
            // `field_N#look_V`: the word, and what part of speech it is.
            let word = |concept: &str| concept.rsplit_once('_').map_or(concept, |(word, _)| word).to_owned();
            let concepts: Vec<String> = set.split('#').map(word).collect();
            let scenes = if columns.contains_key("scene") { texts(&mut columns, "scene")? } else { Vec::new() };
            let scenes = if scenes.is_empty() { vec![String::new()] } else { scenes };
            return Ok(scenes.into_iter().map(|scene| self.sample(concepts.clone(), vec![scene])).collect());
        }
        let concepts = texts(&mut columns, "concepts")?;
        // GEM's rows for validation have one target, and all sentences beside it.
        let all = match columns.get("references") {
            Some(Value::Array(all)) if self.references == References::All && !all.is_empty() => {
                texts(&mut columns, "references")?
            }
            _ => vec![text(&mut columns, &["target"])?],
        };
        Ok(vec![self.sample(concepts, all)])
    }

    fn sample(&self, concepts: Vec<String>, mut references: Vec<String>) -> Sample {
        let prompt =
            format!("{}{}{}", self.prefix, concepts.join(&self.concept_separator_token), self.concept_end_token);
        // The hidden answers of the test split.
        references.iter_mut().filter(|text| text.is_empty()).for_each(|text| *text = "empty reference".into());
        Sample { prompt, references, metadata: Map::from_iter([("concepts".to_owned(), concepts.into())]) }
    }
}

/// Neighbors with the same prompt as one sample.
fn gathered(samples: Vec<(Place, Sample)>) -> Vec<(Place, Sample)> {
    let mut found: Vec<(Place, Sample)> = Vec::new();
    for (place, sample) in samples {
        match found.last_mut() {
            Some((_, last)) if last.prompt == sample.prompt => last.references.extend(sample.references),
            _ => found.push((place, sample)),
        }
    }
    found
}
