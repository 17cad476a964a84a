//! Reward models: which keys they have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of `method.reward`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct RewardModelConfig {
    /// Weight of the term (r_chosen + r_rejected)² that keeps rewards near 0. Default 0; 0.01 is usual (TRL).
    pub center_rewards_coefficient: f64,
}
