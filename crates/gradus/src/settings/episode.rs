//! The keys under `episode`.

use std::sync::Arc;

use gradus_environments::{CallFormat, Environment, Function};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::plugin::{Kind, Plugin};

/// What answers the policy: an environment that gradus has, or one of the program that uses it.
pub type EnvironmentConfig = gradus_environments::EnvironmentConfig<Plugin<dyn Environment>>;

/// A tool that the policy may call: one that gradus has, or one of the program that uses it.
pub type ToolConfig = gradus_environments::ToolConfig<Plugin<dyn Function>>;

impl Kind for dyn Function {
    const NAME: &'static str = "tool";
    type Make = dyn Fn() -> Result<Box<dyn Function>> + Send + Sync;
}

impl Kind for dyn Environment {
    const NAME: &'static str = "environment";
    type Make = dyn Fn() -> Result<Arc<dyn Environment>> + Send + Sync;
}

/// What bounds an episode of several turns, beside `max_new_tokens` of the method: the most tokens of all turns and answers together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EpisodeConfig {
    /// The most turns of the policy. Default 16.
    #[schemars(range(max = 10_000))]
    pub max_turns: usize,
    /// The longest that one answer may take, in seconds. An episode whose answer takes longer has failed, and nothing is learned from it. Default 120.
    pub timeout_s: f64,
    /// The longest that all answers of one episode may take together, in seconds. An episode that took longer ends, with the reward it has. Default: no limit.
    pub max_time_s: Option<f64>,
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
        Self { max_turns: 16, timeout_s: 120.0, max_time_s: None, at_once: 32, reward_weight: 1.0, tool_calls: None }
    }
}
