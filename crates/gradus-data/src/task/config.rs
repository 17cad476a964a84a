//! Registry of the tasks with their names and keys.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    CnnDailyMail, CommandTask, Commongen, Crd3, DailyDialog, Dates, DummyPool, Imdb, ImdbSeq2seq, IncreasingNumbers,
    Iwslt2017EnDe, NarrativeQa, RealToxicityPrompts, Task, Totto, Wmt14ProcessedEnDe, Wmt16, Wmt16NewsOnly, Xsum,
};
use crate::plugin::Plugin;
use crate::process::{read_program, schema_of_program};

/// One task and its keys; the key selects the task. The names are RL4LMs'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum TaskConfig {
    /// Increasing numbers, from one prompt.
    #[serde(rename = "increasing_numbers")]
    IncreasingNumbers(IncreasingNumbers),
    /// A sentence with a date, from one prompt.
    #[serde(rename = "dates")]
    Dates(Dates),
    /// One repeated prompt.
    #[serde(rename = "dummy_pool")]
    DummyPool(DummyPool),
    /// IMDB: continue a film review.
    #[serde(rename = "imdb")]
    Imdb(Imdb),
    /// IMDB for supervised training: the second half of a positive review.
    #[serde(rename = "imdb_seq2seq")]
    ImdbSeq2seq(ImdbSeq2seq),
    /// CommonGen: a sentence with the given concepts.
    #[serde(rename = "commongen")]
    Commongen(Commongen),
    /// CNN/DailyMail: the highlights of an article.
    #[serde(rename = "cnn_daily_mail")]
    CnnDailyMail(CnnDailyMail),
    /// XSum: an article in one sentence.
    #[serde(rename = "xsum")]
    Xsum(Xsum),
    /// ToTTo: a sentence about the highlighted cells of a table.
    #[serde(rename = "totto")]
    Totto(Totto),
    /// NarrativeQA: questions about stories.
    #[serde(rename = "narrative_qa")]
    NarrativeQa(NarrativeQa),
    /// WMT 2016, any pair of languages.
    #[serde(rename = "wmt16")]
    Wmt16(Wmt16),
    /// WMT 2014, English to German, as FAIR prepared it.
    #[serde(rename = "wmt14_processed_en_de")]
    Wmt14ProcessedEnDe(Wmt14ProcessedEnDe),
    /// WMT 2016, English to German, trained on news commentary.
    #[serde(rename = "wmt16newsonly")]
    Wmt16NewsOnly(Wmt16NewsOnly),
    /// IWSLT 2017, English to German.
    #[serde(rename = "iwslt2017en_de")]
    Iwslt2017EnDe(Iwslt2017EnDe),
    /// CRD3: the next turn of a role-playing game.
    #[serde(rename = "crd3")]
    Crd3(Crd3),
    /// DailyDialog: the next utterance.
    #[serde(rename = "daily_dialog")]
    DailyDialog(DailyDialog),
    /// RealToxicityPrompts: continue the beginning of a sentence.
    #[serde(rename = "real_toxicity_prompts")]
    RealToxicityPrompts(RealToxicityPrompts),
    /// Rows that an external program prints.
    #[serde(rename = "command")]
    #[serde(deserialize_with = "read_program")]
    #[schemars(schema_with = "schema_of_program::<CommandTask>")]
    Command(CommandTask),
    /// A task that was registered by name (docs/plugins.md). The key is its name, and its keys are below it.
    #[serde(rename = "plugin")]
    Plugin(Plugin<dyn Task>),
}

impl TaskConfig {
    /// Creates the task. This is the only place that does so.
    ///
    /// # Errors
    /// Errors of a plug-in.
    pub fn build(&self) -> crate::error::Result<Box<dyn Task>> {
        Ok(match self {
            Self::IncreasingNumbers(task) => Box::new(task.clone()),
            Self::Dates(task) => Box::new(task.clone()),
            Self::DummyPool(task) => Box::new(task.clone()),
            Self::Imdb(task) => Box::new(task.clone()),
            Self::ImdbSeq2seq(task) => Box::new(task.clone()),
            Self::Commongen(task) => Box::new(task.clone()),
            Self::CnnDailyMail(task) => Box::new(task.clone()),
            Self::Xsum(task) => Box::new(task.clone()),
            Self::Totto(task) => Box::new(task.clone()),
            Self::NarrativeQa(task) => Box::new(task.clone()),
            Self::Wmt16(task) => Box::new(task.clone()),
            Self::Wmt14ProcessedEnDe(task) => Box::new(task.clone()),
            Self::Wmt16NewsOnly(task) => Box::new(task.clone()),
            Self::Iwslt2017EnDe(task) => Box::new(task.clone()),
            Self::Crd3(task) => Box::new(task.clone()),
            Self::DailyDialog(task) => Box::new(task.clone()),
            Self::RealToxicityPrompts(task) => Box::new(task.clone()),
            Self::Command(task) => Box::new(task.clone()),
            Self::Plugin(plugin) => plugin.make()?()?,
        })
    }

    /// Returns whether the task starts a program.
    pub fn starts_program(&self) -> bool {
        matches!(self, Self::Command(_))
    }

    /// Rejects mistakes that are known before anything is read or started.
    ///
    /// # Errors
    /// A program that cannot be started, or a key out of its limits.
    pub fn check(&self) -> crate::error::Result<()> {
        match self {
            Self::Command(task) => task.check(),
            Self::ImdbSeq2seq(task) => task.check(),
            _ => Ok(()),
        }
    }

    /// Returns the name of the task or the plug-in.
    pub fn name(&self) -> String {
        if let Self::Plugin(plugin) = self {
            return plugin.name().to_owned();
        }
        let written = serde_json::to_value(self).expect("keys are plain values");
        let name = written.as_object().and_then(|object| object.keys().next()).cloned();
        name.expect("a task is written as a mapping of one key")
    }

    /// Returns the names of all built-in tasks.
    pub fn names() -> Vec<String> {
        let schema = schemars::schema_for!(Self).to_value();
        let sides = schema["oneOf"].as_array().cloned().unwrap_or_default();
        let names = sides.iter().filter_map(|side| side["properties"].as_object()?.keys().next().cloned());
        names.filter(|name| name != "plugin").collect()
    }

    /// Returns the task with this name and its defaults. Returns `None` if there is no such task, or it has required keys.
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(json!({ name: {} })).ok()
    }
}

/// Returns the schema of a task in a configuration: its name alone, if it has no required keys, or a mapping with its keys.
pub(super) fn schema_of_task(generator: &mut SchemaGenerator) -> Schema {
    let choice = generator.subschema_for::<TaskConfig>();
    let words: Vec<String> = TaskConfig::names().into_iter().filter(|name| TaskConfig::named(name).is_some()).collect();
    json_schema!({
        "anyOf": [{ "type": "string", "enum": words }, choice, { "type": "null" }],
        "default": Value::Null,
    })
}

/// Deserializes the form that [`schema_of_task`] describes.
pub(super) fn read_task<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TaskConfig>, D::Error> {
    let task = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(None),
        Value::String(name) => json!({ name: {} }),
        mapping => mapping,
    };
    serde_json::from_value(task).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_found_by_its_name() {
        let names = TaskConfig::names();
        assert_eq!(names.len(), 18);
        let required = ["dummy_pool", "wmt16", "crd3", "command"];
        for name in &names {
            match TaskConfig::named(name) {
                Some(task) => {
                    assert_eq!(task.name(), *name);
                    assert!(!task.build().expect("no plug-in").metrics().is_empty(), "{name}");
                }
                None => assert!(required.contains(&name.as_str()), "{name}"),
            }
        }
    }
}
