//! Direct preference optimisation: which keys it has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keys of `method.dpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DpoConfig {
    /// How strongly the policy is held to the reference. Default 0.1 (Rafailov et al. 2023).
    pub beta: f64,
    /// The loss on the difference of log-ratios. Default `sigmoid`.
    pub loss_type: DpoLossType,
    /// The probability that a label is wrong (conservative DPO; `sigmoid` only). Default 0.
    pub label_smoothing: f64,
    /// Where the reference's logprobs come from. Default `precomputed`: one pass before training, then the reference is dropped.
    pub reference: ReferenceLogprobs,
    /// The reference: a model directory. Default: the model training starts from.
    pub reference_model: Option<String>,
}

impl Default for DpoConfig {
    fn default() -> Self {
        Self {
            beta: 0.1,
            loss_type: DpoLossType::Sigmoid,
            label_smoothing: 0.0,
            reference: ReferenceLogprobs::Precomputed,
            reference_model: None,
        }
    }
}

/// The loss on the difference of log-ratios Δ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DpoLossType {
    /// −log σ(βΔ), Rafailov et al. 2023.
    Sigmoid,
    /// max(0, 1 − βΔ), Zhao et al. 2023 (SLiC).
    Hinge,
    /// (Δ̄ − 1/(2β))² on length-normalised log-ratios, Azar et al. 2023.
    Ipo,
}

/// Where the reference's logprobs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReferenceLogprobs {
    /// One pass over the data before training.
    Precomputed,
    /// A forward pass of the reference beside every step.
    Live,
}
