//! The keys under `episode`.

use gradus_environments::CallFormat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What bounds an episode of several turns, beside `max_new_tokens` of the method: the most tokens of all turns and answers together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EpisodeConfig {
    /// The most turns of the policy. Default 16.
    #[schemars(range(max = 10_000))]
    pub max_turns: usize,
    /// The longest that one answer may take, in seconds. An episode whose answer takes longer has failed, and nothing is learned from it. Default 120.
    pub timeout_s: f64,
    /// Answers that are worked at side by side. Default 32.
    #[schemars(range(max = 1_000))]
    pub at_once: usize,
    /// The weight of the environment's reward beside `reward`. Default 1 (TRL).
    pub reward_weight: f64,
    /// How the model writes calls of tools. Default: as its chat template shows.
    pub tool_calls: Option<CallFormat>,
}

impl Default for EpisodeConfig {
    fn default() -> Self {
        Self { max_turns: 16, timeout_s: 120.0, at_once: 32, reward_weight: 1.0, tool_calls: None }
    }
}
