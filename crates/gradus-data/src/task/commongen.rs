//! CommonGen: a sentence with the given concepts. Lin et al. 2020, <https://aclanthology.org/2020.findings-emnlp.165>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::{text, texts};
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::Result;
use crate::metric::MetricConfig;

/// Keys of `commongen`. The prompt is `prefix`, the concepts and `concept_end_token`; the reference is a sentence with all
/// concepts. Reads rows with `concepts` and `target` (GEM's have all sentences in `references`), rows with `concept_set` and
/// `scene` (the authors' files), and the line files `…src_alpha.txt` and `…tgt.txt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Commongen {
    /// Text before the concepts. Default `summarize: ` (RL4LMs; its recipes use `generate a sentence with: `).
    pub prefix: String,
    /// Text between two concepts. Default ` ` (RL4LMs).
    pub concept_separator_token: String,
    /// Text after the last concept. Default ` ` (RL4LMs; its recipes use `.`).
    pub concept_end_token: String,
    /// References of a sample: `one` makes a sample of each row (RL4LMs); `all` collects the sentences of equal concepts in one
    /// sample, as the paper's metrics require. Default `one`.
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

/// References of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum References {
    /// One reference. Rows with the same prompt are separate samples.
    One,
    /// All references of the rows with the same concepts, which form one sample.
    All,
}

impl Task for Commongen {
    fn origin(&self, _split: Split) -> Origin {
        Origin::hub("allenai/common_gen")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let ends = |end: &'static str| files.text(&move |name: &str| name.ends_with(end));
        let (concepts, targets) = (ends("src_alpha.txt")?, ends("tgt.txt")?);
        // Rows of one set are adjacent, so slightly more rows than requested would suffice. To keep sets complete, all rows are
        // read.
        let max_samples = files.max_samples().filter(|_| self.references == References::One);
        let samples = if concepts.is_empty() {
            files.rows(self.origin(files.split()), files.split(), max_samples, |columns| self.row(columns))?
        } else {
            let lines =
                Files::new(None, files.split(), max_samples, files.interrupt()).side_by_side(&[concepts, targets])?;
            let sample = |(location, line): (RowLocation, Vec<String>)| {
                let [concepts, target] = <[String; 2]>::try_from(line).expect("two files side by side");
                (location, self.sample(concepts.split(' ').map(str::to_owned).collect(), vec![target]))
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
            // `field_N#look_V`: each word and its part of speech.
            let word = |concept: &str| concept.rsplit_once('_').map_or(concept, |(word, _)| word).to_owned();
            let concepts: Vec<String> = set.split('#').map(word).collect();
            let scenes = if columns.contains_key("scene") { texts(&mut columns, "scene")? } else { Vec::new() };
            let scenes = if scenes.is_empty() { vec![String::new()] } else { scenes };
            return Ok(scenes.into_iter().map(|scene| self.sample(concepts.clone(), vec![scene])).collect());
        }
        let concepts = texts(&mut columns, "concepts")?;
        // GEM's validation rows have one target, and all sentences in `references`.
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
        // The test split's answers are hidden.
        references.iter_mut().filter(|text| text.is_empty()).for_each(|text| *text = "empty reference".into());
        Sample { prompt, references, metadata: Map::from_iter([("concepts".to_owned(), concepts.into())]) }
    }
}

/// Merges adjacent samples with the same prompt into one.
fn gathered(samples: Vec<(RowLocation, Sample)>) -> Vec<(RowLocation, Sample)> {
    let mut found: Vec<(RowLocation, Sample)> = Vec::new();
    for (location, sample) in samples {
        match found.last_mut() {
            Some((_, last)) if last.prompt == sample.prompt => last.references.extend(sample.references),
            _ => found.push((location, sample)),
        }
    }
    found
}
