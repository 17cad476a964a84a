//! Losses, summed over tokens.

use burn::tensor::Tensor;

use crate::error::{Error, Result};
use crate::loss::cispo::cispo_within;
use crate::loss::dro::dro;
use crate::loss::policy_gradient::policy_gradient;
use crate::loss::surrogate::{Clip, clipped_surrogate, ratio};

/// A loss, summed over tokens. With `w` the weight of a token, `π` its probability and `ρ = π/π_old`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// `−Σ w·log π`: the weighted negative log-likelihood.
    CrossEntropy,
    /// `−Σ ρ·w`: the policy gradient, corrected for samples of another policy.
    ImportanceSampling,
    /// `−Σ min(ρ·w, clip(ρ, low, high)·w)`, [`clipped_surrogate`].
    Ppo {
        /// Lower bound of the ratio.
        low: f64,
        /// Upper bound of the ratio.
        high: f64,
    },
    /// `−Σ sg(clip(ρ, low, high))·w·log π`, [`cispo_within`]; `sg` carries no gradient.
    Cispo {
        /// Lower bound of the ratio; 0 for none.
        low: f64,
        /// Upper bound of the ratio.
        high: f64,
    },
    /// `−Σ (w·log π − β/2·log² ρ)`, [`dro`].
    Dro {
        /// Weight of the penalty.
        beta: f64,
    },
}

impl Loss {
    /// Default bounds of the ratio in [`Ppo`](Self::Ppo), those of the paper.
    pub const PPO_BOUNDS: [f64; 2] = [0.8, 1.2];

    /// Default bounds of the ratio in [`Cispo`](Self::Cispo), those of Tinker. The method GRPO has no default for its bound.
    pub const CISPO_BOUNDS: [f64; 2] = [0.0, 4.0];

    /// Default weight of the penalty in [`Dro`](Self::Dro), that of Tinker.
    pub const DRO_BETA: f64 = 0.05;

    /// Rejects bounds in the wrong order, and constants that are not numbers.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::CrossEntropy | Self::ImportanceSampling => Ok(()),
            // False for NaN.
            Self::Ppo { low, high } | Self::Cispo { low, high } => match low <= high {
                true => Ok(()),
                false => Err(Error::input(format!(
                    "the bounds of the ratio are {low} and {high}, but the lower one must not be above the upper one"
                ))),
            },
            Self::Dro { beta } => match beta.is_finite() {
                true => Ok(()),
                false => Err(Error::input(format!("`beta` is {beta}, but a finite number is needed"))),
            },
        }
    }

    /// Whether the loss needs log-probabilities of the policy that sampled.
    pub(super) fn needs_old_logprobs(self) -> bool {
        self != Self::CrossEntropy
    }

    /// Whether a target with weight 0 has neither loss nor gradient.
    pub fn ignores_zero(self) -> bool {
        !matches!(self, Self::Dro { .. })
    }

    /// Computes one value per token. All tensors are `[M]`; only `logprobs_m` carries gradient.
    pub(super) fn of_tokens(self, logprobs_m: Tensor<1>, old_m: Option<Tensor<1>>, weights_m: Tensor<1>) -> Tensor<1> {
        if let Self::Dro { beta } = self {
            return dro(logprobs_m, old_m.expect("it was checked"), weights_m, beta);
        }
        let log_ratios_m = |logprobs_m: Tensor<1>| logprobs_m - old_m.expect("it was checked");
        match self {
            Self::Dro { .. } => unreachable!("it was just handled"),
            Self::CrossEntropy => policy_gradient(logprobs_m, weights_m),
            Self::ImportanceSampling => -(ratio(log_ratios_m(logprobs_m)) * weights_m),
            Self::Ppo { low, high } => {
                let clip = Clip { low: 1.0 - low, high: high - 1.0, delta: None };
                clipped_surrogate(log_ratios_m(logprobs_m), weights_m, &clip)
            }
            Self::Cispo { low, high } => {
                cispo_within(logprobs_m.clone(), log_ratios_m(logprobs_m), weights_m, [low, high])
            }
        }
    }
}
