//! A post-processor: metrics see the first sentence alone.

use gradus::task::PostProcessor;
use schemars::JsonSchema;
use serde::Deserialize;

/// What stands before the first full stop, and that.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub struct FirstSentence {}

impl PostProcessor for FirstSentence {
    fn apply(&self, completion: &str) -> String {
        completion.split_inclusive('.').next().unwrap_or_default().to_owned()
    }
}
