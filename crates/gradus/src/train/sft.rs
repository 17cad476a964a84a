//! Supervised fine-tuning: which keys it has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of `method.sft`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// Loss on the completion only. Default: true for prompt–completion rows, false otherwise (TRL).
    pub completion_only_loss: Option<bool>,
    /// Loss on assistant turns only; the chat template must mark them. Default false (TRL).
    pub assistant_only_loss: bool,
    /// Mix this share of the uniform distribution into the target. Default 0.
    pub label_smoothing: f64,
}

impl Default for SftConfig {
    fn default() -> Self {
        Self { completion_only_loss: None, assistant_only_loss: false, label_smoothing: 0.0 }
    }
}
