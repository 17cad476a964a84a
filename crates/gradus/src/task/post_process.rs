//! What is done to completions before they are measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metric::Punkt;

/// What is done to completions before they are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PostProcess {
    /// The first three sentences, one a line (RL4LMs: for CNN/DailyMail, whose highlights are lines).
    ThreeSentenceSummary,
}

impl PostProcess {
    /// The completion as it is measured.
    pub fn apply(self, completion: &str) -> String {
        match self {
            Self::ThreeSentenceSummary => {
                let sentences = Punkt::plain();
                let first: Vec<&str> = sentences.sentences(completion).into_iter().take(3).collect();
                first.join("\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_three_sentences() {
        let check = |text: &str, expected: &str| assert_eq!(PostProcess::ThreeSentenceSummary.apply(text), expected);
        check("Dr. Who came. He left! Why? Nobody knows.", "Dr. Who came.\nHe left!\nWhy?");
        check("One only", "One only");
        check("", "");
    }
}
