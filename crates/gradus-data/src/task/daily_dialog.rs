//! DailyDialog: the next utterance. Li et al. 2017, <https://aclanthology.org/I17-1099>.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::files::texts;
use super::{Files, Origin, Sample, Split, Task, metrics};
use crate::data::RowLocation;
use crate::error::Result;
use crate::metric::MetricConfig;

/// End of an utterance.
const END: &str = "<EOU>";

/// Keys of `daily_dialog`. The prompt is the last utterances with `<EOU>` after each; the reference is the next one and `<EOU>`.
/// Its `emotion` and `intent` (1 to 4: inform, question, directive, commissive) are columns. Reads rows with `dialog`, `act` and
/// `emotion`, and the authors' files `dialogues_train.txt`, `dialogues_act_train.txt`, `dialogues_emotion_train.txt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DailyDialog {
    /// Number of utterances in a prompt. An utterance with fewer utterances before it is not a sample. Default 5 (RL4LMs' recipes).
    pub context_size: usize,
}

impl Default for DailyDialog {
    fn default() -> Self {
        Self { context_size: 5 }
    }
}

/// A conversation: utterances with their emotion and intent.
type Dialogue = Vec<(String, Value, Value)>;

impl Task for DailyDialog {
    fn origin(&self, _split: Split) -> Origin {
        Origin::hub("roskoN/dailydialog")
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let mut samples = Vec::new();
        let mut utterances = 0;
        for (location, dialogue) in dialogues(files, self.origin(files.split()))? {
            for (i, (utterance, emotion, intent)) in dialogue.iter().enumerate() {
                let id = utterances;
                utterances += 1;
                if i < self.context_size {
                    continue;
                }
                let before: Vec<&str> =
                    dialogue[i - self.context_size..i].iter().map(|(utterance, ..)| utterance.as_str()).collect();
                let sample = Sample {
                    prompt: format!("{} {END}", before.join(END)),
                    references: vec![format!("{utterance}{END}")],
                    metadata: Map::from_iter([
                        ("id".to_owned(), json!(id)),
                        ("emotion".to_owned(), json!([emotion])),
                        ("intent".to_owned(), json!([intent])),
                    ]),
                };
                samples.push((location.clone(), sample));
            }
        }
        Ok(samples)
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        metrics(&["diversity", "meteor", "rouge", "bleu", "sacre_bleu"])
    }
}

fn dialogues(files: &Files<'_>, origin: Origin) -> Result<Vec<(RowLocation, Dialogue)>> {
    let of = |start: &'static str, not: &'static [&'static str]| {
        files.text(&move |name: &str| {
            name.starts_with(start) && name.ends_with(".txt") && !not.iter().any(|other| name.starts_with(other))
        })
    };
    let utterances = of("dialogues_", &["dialogues_act", "dialogues_emotion"])?;
    if utterances.is_empty() {
        let rows = files
            .rows(origin, files.split(), None, |columns| Ok(vec![Sample { metadata: columns, ..Sample::default() }]))?;
        let dialogue = |(location, sample): (RowLocation, Sample)| {
            let dialogue = columns(sample.metadata).map_err(|message| location.error(message))?;
            Ok((location, dialogue))
        };
        return rows.into_iter().map(dialogue).collect();
    }
    let sets = [utterances, of("dialogues_act_", &[])?, of("dialogues_emotion_", &[])?];
    let lines = Files::new(None, files.split(), None, files.interrupt()).side_by_side(&sets)?;
    let dialogue = |(location, line): (RowLocation, Vec<String>)| {
        let [utterances, acts, emotions] = <[String; 3]>::try_from(line).expect("three files side by side");
        let utterances: Vec<String> =
            utterances.trim().trim_end_matches("__eou__").split("__eou__").map(|text| text.trim().into()).collect();
        let numbers = |text: &str| {
            text.split_whitespace().map(|word| word.parse::<i64>().map_or(Value::Null, Value::from)).collect()
        };
        let dialogue =
            joined(utterances, numbers(&emotions), numbers(&acts)).map_err(|message| location.error(message))?;
        Ok((location, dialogue))
    };
    lines.into_iter().map(dialogue).collect()
}

fn columns(mut columns: Map<String, Value>) -> Result<Dialogue, String> {
    let name = if columns.contains_key("utterances") { "utterances" } else { "dialog" };
    let utterances = texts(&mut columns, name)?;
    let mut list = |names: [&str; 2]| match names.iter().find_map(|name| columns.shift_remove(*name)) {
        Some(Value::Array(values)) => Ok(values),
        _ => Err(format!("missing column `{}`, a list", names[0])),
    };
    let (emotions, acts) = (list(["emotion", "emotions"])?, list(["act", "acts"])?);
    joined(utterances, emotions, acts)
}

fn joined(utterances: Vec<String>, emotions: Vec<Value>, acts: Vec<Value>) -> Result<Dialogue, String> {
    let (count, labels) = (utterances.len(), [emotions.len(), acts.len()]);
    if labels != [count, count] {
        return Err(format!("{count} utterances, but {} emotions and {} acts", labels[0], labels[1]));
    }
    Ok(utterances
        .into_iter()
        .zip(emotions)
        .zip(acts)
        .map(|((utterance, emotion), act)| (utterance, emotion, act))
        .collect())
}
