//! The keys under `episode`.

use gradus_environments::{CallFormat, Environment, ToolSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plugin::Plugin;

/// The environment that replies to the policy: a built-in one, or one registered by the embedding program.
pub type EnvironmentConfig = gradus_environments::EnvironmentConfig<Plugin<dyn Environment>>;

/// A tool that the policy may call: a built-in one, or one registered by the embedding program.
pub type ToolConfig = gradus_environments::ToolConfig<Plugin<dyn ToolSource>>;

/// Limits of an episode of several turns. In addition, `max_new_tokens` of the method limits the tokens of all turns and answers together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EpisodeConfig {
    /// Maximum number of turns of the policy. Default 16.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_turns: usize,
    /// Time limit of one answer, in seconds. An episode whose answer takes longer has failed and is not trained on. Default 120.
    pub timeout_s: f64,
    /// Time limit of all answers of one episode together, in seconds. A longer episode ends, with the reward it has. Default: no limit.
    pub max_time_s: Option<f64>,
    /// Number of answers that are computed at the same time. Default 32.
    #[schemars(range(min = 1, max = 1_000))]
    pub at_once: usize,
    /// Number of sampling steps between a turn and its answer, on a GPU. Default 16. Numbers of one completion depend there, in their last bits,
    /// on which completions are sampled with it. So every completion continues at a fixed step, and the others wait if the answer is late:
    /// then results do not depend on time. With 0, answers are read as they arrive. The CPU always reads them as they arrive.
    #[schemars(range(max = 10_000))]
    pub reply_after: usize,
    /// Weight of the environment's reward relative to `reward`. Default 1 (TRL).
    pub reward_weight: f64,
    /// Format of the model's tool calls. Default: as in its chat template.
    pub tool_calls: Option<CallFormat>,
}

impl Default for EpisodeConfig {
    fn default() -> Self {
        Self {
            max_turns: 16,
            timeout_s: 120.0,
            max_time_s: None,
            at_once: 32,
            reply_after: 16,
            reward_weight: 1.0,
            tool_calls: None,
        }
    }
}
