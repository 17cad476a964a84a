//! Changes to completions before they are measured.

use schemars::JsonSchema;
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PostProcess {
    /// The first three sentences, one per line (RL4LMs: for CNN/DailyMail, whose highlights are lines).
    ThreeSentenceSummary,
    /// A post-processing of the program, by its name (docs/plugins.md).
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
