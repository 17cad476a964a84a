//! Settings of a trainer and of its steps, and their ranges.

use crate::batches::MicroBatch;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::learner::optimizer::{AdamWConfig, MomentFormat, OptimizerConfig, RmsPropConfig};
use crate::model::adapter::LoraConfig;
use crate::model::{Precision, WeightFormat};
use crate::rng::Seed;

/// Settings of a [`Trainer`](super::Trainer).
#[derive(Debug, Clone)]
pub struct TrainerOptions {
    /// A model directory, a run or a hub name.
    pub model: String,
    /// Adapter to train on frozen weights; `None` trains all weights, or the adapter of `model`.
    pub lora: Option<LoraConfig>,
    /// Format of the frozen weights under an adapter. Without an adapter, all weights are trained in f32, and this has no
    /// effect.
    pub weights: WeightFormat,
    /// Compute device.
    pub device: DeviceChoice,
    /// Precision of products.
    pub compute: Precision,
    /// Optimizer and its constants. Default AdamW with β 0.9 and 0.95, ε 1e-12 and no weight decay (Tinker).
    pub optimizer: OptimizerConfig,
    /// Size limits of a forward pass.
    pub passes: MicroBatch,
    /// Seed of a new adapter's weights.
    pub seed: Seed,
}

impl Default for TrainerOptions {
    /// Trains all weights in f32 on the CPU; the model is not set.
    fn default() -> Self {
        Self {
            model: String::new(),
            lora: None,
            weights: WeightFormat::F32,
            device: DeviceChoice::cpu(),
            compute: Precision::F32,
            optimizer: OptimizerConfig::AdamW(AdamWConfig {
                betas: [0.9, 0.95],
                epsilon: 1e-12,
                weight_decay: 0.0,
                moments: MomentFormat::F32,
            }),
            passes: MicroBatch::new(4096, None),
            seed: Seed(0),
        }
    }
}

/// Constants of one AdamW step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepParams {
    /// Learning rate η.
    pub learning_rate: f64,
    /// β1, β2, ε and weight decay.
    pub adamw: AdamWConfig,
    /// Norm to which the gradient is clipped; 0 disables clipping.
    pub max_grad_norm: f64,
}

/// Rejects a number that is negative, NaN, or infinite in the format of the weights.
pub(super) fn at_least_zero(name: &str, value: f64) -> Result<()> {
    within(name, value, value >= 0.0, "a number of at least 0")
}

/// Rejects a number that does not fit, or is NaN or infinite in the format of the weights.
fn within(name: &str, value: f64, fits: bool, needed: &str) -> Result<()> {
    match fits && (value as f32).is_finite() {
        true => Ok(()),
        false => Err(Error::input(format!("`{name}` is {value:?}, but {needed} is needed"))),
    }
}

/// Rejects constants with which no step can be computed.
pub(super) fn check_optimizer(config: &OptimizerConfig) -> Result<()> {
    let below_one = "a number from 0 to below 1";
    let (epsilon, weight_decay) = match config {
        OptimizerConfig::AdamW(AdamWConfig { betas, epsilon, weight_decay, .. }) => {
            for (i, beta) in betas.iter().enumerate() {
                within(&format!("betas[{i}]"), *beta, (0.0..1.0).contains(beta), below_one)?;
            }
            (*epsilon, *weight_decay)
        }
        OptimizerConfig::RmsProp(RmsPropConfig { alpha, epsilon, weight_decay }) => {
            within("alpha", *alpha, (0.0..1.0).contains(alpha), below_one)?;
            (*epsilon, *weight_decay)
        }
    };
    at_least_zero("epsilon", epsilon)?;
    at_least_zero("weight_decay", weight_decay)
}
