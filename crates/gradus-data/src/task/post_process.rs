//! Changes to completions before they are measured.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::metric::Punkt;
use crate::plugin::{Kind, Plugin};

/// Changes completions before metrics see them. This is the open extension point of post-processing.
pub trait PostProcessor: Send + Sync {
    /// Returns the completion to measure.
    fn apply(&self, completion: &str) -> String;
}

impl Kind for dyn PostProcessor {
    const NAME: &'static str = "post_processor";
    type Make = dyn Fn() -> Result<Box<dyn PostProcessor>> + Send + Sync;
}

/// Change to completions before they are measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PostProcess {
    /// The first three sentences, one per line (RL4LMs: for CNN/DailyMail, whose highlights are lines).
    ThreeSentenceSummary,
    /// A processor that was registered by name (docs/plugins.md).
    Plugin(Plugin<dyn PostProcessor>),
}

impl PostProcess {
    /// Creates the processor.
    ///
    /// # Errors
    /// Errors of a plug-in.
    pub fn build(&self) -> Result<Box<dyn PostProcessor>> {
        Ok(match self {
            Self::ThreeSentenceSummary => Box::new(ThreeSentenceSummary),
            Self::Plugin(plugin) => plugin.make()?()?,
        })
    }
}

/// Written by hand, because the derived schema cannot combine a word with a mapping for plug-ins.
impl JsonSchema for PostProcess {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PostProcess".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let plugin = generator.subschema_for::<Plugin<dyn PostProcessor>>();
        json_schema!({ "anyOf": [
            { "oneOf": [{
                "type": "string",
                "const": "three_sentence_summary",
                "description": "The first three sentences, one per line (RL4LMs: for CNN/DailyMail, whose highlights are lines)."
            }] },
            { "oneOf": [{
                "type": "object",
                "description": "A post-processing of the program, by its name (docs/plugins.md).",
                "properties": { "plugin": plugin },
                "required": ["plugin"]
            }] }
        ] })
    }
}

struct ThreeSentenceSummary;

impl PostProcessor for ThreeSentenceSummary {
    fn apply(&self, completion: &str) -> String {
        let sentences = Punkt::default();
        let first: Vec<&str> = sentences.sentences(completion).into_iter().take(3).collect();
        first.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_three_sentences() {
        let check = |text: &str, expected: &str| assert_eq!(ThreeSentenceSummary.apply(text), expected);
        check("Dr. Who came. He left! Why? Nobody knows.", "Dr. Who came.\nHe left!\nWhy?");
        check("One only", "One only");
        check("", "");
    }
}
