//! Group relative policy optimisation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of `method.grpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GrpoConfig {
    /// Completions of each prompt, G. Default 8 (TRL).
    pub group_size: usize,
    /// Longest completion in tokens. Default 256 (TRL).
    pub max_new_tokens: usize,
    /// Sampling temperature, also that of the logprobs trained on. Default 1 (TRL).
    pub temperature: f64,
    /// Passes over one batch of rollouts, μ. Default 1 (TRL).
    pub update_epochs: usize,
    /// Mini-batches (optimiser steps) of one pass. Default 1.
    pub mini_batches: usize,
    /// Lower clip range of the ratio: 1 − clip_range. Default 0.2 (TRL).
    pub clip_range: f64,
    /// Upper clip range: 1 + clip_range_high. Default: `clip_range`.
    pub clip_range_high: Option<f64>,
    /// Upper bound of the ratio even where the advantage is negative (two-sided clipping). Default: none.
    pub delta: Option<f64>,
    /// Weight of the KL term (k3) in the loss; 0 needs no reference. Default 0 (TRL).
    pub kl_coefficient: f64,
    /// Whether the KL term is multiplied by the importance ratio, which makes its gradient that of the reverse KL. Default true (TRL).
    pub kl_bias_correction: bool,
    /// Reduction of the token losses. Default `dapo` (TRL).
    pub loss_type: GrpoLossType,
    /// What advantages are divided by. Default `group` (TRL).
    pub scale_rewards: ScaleRewards,
    /// Leave completions without a stop id out of the loss. Default false (TRL).
    pub mask_truncated_completions: bool,
    /// Weight of the entropy bonus. Default 0.
    pub entropy_coefficient: f64,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// The reference: a model directory. Default: the model training starts from.
    pub reference_model: Option<String>,
}

impl Default for GrpoConfig {
    fn default() -> Self {
        Self {
            group_size: 8,
            max_new_tokens: 256,
            temperature: 1.0,
            update_epochs: 1,
            mini_batches: 1,
            clip_range: 0.2,
            clip_range_high: None,
            delta: None,
            kl_coefficient: 0.0,
            kl_bias_correction: true,
            loss_type: GrpoLossType::Dapo,
            scale_rewards: ScaleRewards::Group,
            mask_truncated_completions: false,
            entropy_coefficient: 0.0,
            stop: Vec::new(),
            reference_model: None,
        }
    }
}

/// How token losses become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrpoLossType {
    /// Mean over each sequence, then over sequences (Shao et al. 2024).
    Grpo,
    /// Sum divided by sequences × `max_new_tokens` (Liu et al. 2025).
    DrGrpo,
    /// Mean over the tokens of a micro-batch.
    Bnpo,
    /// Mean over the tokens of the step (Yu et al. 2025).
    Dapo,
}

/// What advantages are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The standard deviation of the group.
    Group,
    /// The standard deviation of the batch.
    Batch,
    /// Nothing.
    None,
}
