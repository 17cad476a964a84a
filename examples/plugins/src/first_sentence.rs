//! A post-processor: metrics receive only the first sentence.

use gradus::task::PostProcessor;
use schemars::JsonSchema;
use serde::Deserialize;

/// Keeps the text up to and including the first full stop.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub struct FirstSentence {}

impl PostProcessor for FirstSentence {
    fn apply(&self, completion: &str) -> String {
        completion.split_inclusive('.').next().unwrap_or_default().to_owned()
    }
}
