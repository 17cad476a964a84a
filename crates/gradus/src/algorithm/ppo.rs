//! Proximal policy optimisation with a critic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of `method.ppo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PpoConfig {
    /// Completions of each prompt. Default 1.
    pub group_size: usize,
    /// Longest completion in tokens. Default 53 (TRL's TL;DR recipe).
    pub max_new_tokens: usize,
    /// Sampling temperature, also that of the logprobs trained on. Default 0.7 (TRL).
    pub temperature: f64,
    /// Passes over one batch of rollouts. Default 4 (TRL).
    pub update_epochs: usize,
    /// Mini-batches (optimiser steps) of one pass. Default 1 (TRL).
    pub mini_batches: usize,
    /// Clip range of the policy ratio. Default 0.2 (Schulman et al. 2017, section 6.1).
    pub clip_range: f64,
    /// Clip range of the value update; 0 turns clipping off. Default 0.2 (TRL).
    pub value_clip_range: f64,
    /// Weight of the value loss. Default 0.1 (TRL).
    pub value_coefficient: f64,
    /// Weight of the entropy bonus. Default 0.
    pub entropy_coefficient: f64,
    /// Discount γ. Default 1 (TRL).
    pub discount: f64,
    /// GAE's λ. Default 0.95 (TRL).
    pub gae_lambda: f64,
    /// Whether rewards are whitened before GAE. Default false (TRL).
    pub whiten_rewards: bool,
    /// Whether advantages are whitened over the batch. Default true (TRL).
    pub whiten_advantages: bool,
    /// Subtracted from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1).
    pub missing_eos_penalty: Option<f64>,
    /// Stop the remaining update epochs when the policy has moved further than this (mean k3 over the mini-batch, ×1.5). Default: off.
    pub target_kl: Option<f64>,
    /// The KL penalty in the reward.
    pub kl: KlConfig,
    /// The critic.
    pub critic: CriticConfig,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// The reference: a model directory. Default: the model training starts from.
    pub reference_model: Option<String>,
}

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            group_size: 1,
            max_new_tokens: 53,
            temperature: 0.7,
            update_epochs: 4,
            mini_batches: 1,
            clip_range: 0.2,
            value_clip_range: 0.2,
            value_coefficient: 0.1,
            entropy_coefficient: 0.0,
            discount: 1.0,
            gae_lambda: 0.95,
            whiten_rewards: false,
            whiten_advantages: true,
            missing_eos_penalty: None,
            target_kl: None,
            kl: KlConfig::default(),
            critic: CriticConfig::default(),
            stop: Vec::new(),
            reference_model: None,
        }
    }
}

/// The KL penalty in PPO's reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KlConfig {
    /// The (initial) coefficient β. Default 0.05 (TRL).
    pub coefficient: f64,
    /// The estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL).
    pub estimator: KlEstimator,
    /// Adapt the coefficient towards this KL. Default: fixed.
    pub target: Option<f64>,
    /// Sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019).
    pub horizon: f64,
    /// The unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`.
    pub unit: KlUnit,
}

impl Default for KlConfig {
    fn default() -> Self {
        Self { coefficient: 0.05, estimator: KlEstimator::K1, target: None, horizon: 10_000.0, unit: KlUnit::Sequence }
    }
}

/// Estimators of KL(policy ‖ reference) from a sampled token; <http://joschu.net/blog/kl-approx.html>.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// d
    K1,
    /// d²/2
    K2,
    /// e^(−d) − 1 + d
    K3,
}

/// The unit of an adaptive KL target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlUnit {
    /// The sum over a sequence's tokens, averaged over sequences.
    Sequence,
    /// The mean over tokens.
    Token,
}

/// PPO's critic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CriticConfig {
    /// Whether the critic is a head on the policy's trunk or a model of its own. Default `separate` (TRL).
    pub trunk: CriticTrunk,
    /// What a separate critic starts from: a model directory. Default: the reward model where there is one, else the policy.
    pub model: Option<String>,
    /// The critic's own learning rate. Default: the policy's.
    pub learning_rate: Option<f64>,
}

impl Default for CriticConfig {
    fn default() -> Self {
        Self { trunk: CriticTrunk::Separate, model: None, learning_rate: None }
    }
}

/// Where the critic's hidden states come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CriticTrunk {
    /// The policy's trunk: one forward pass serves both.
    Shared,
    /// A model of its own.
    Separate,
}
