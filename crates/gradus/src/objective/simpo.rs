//! Simple preference optimization: the reward of a completion is its mean logprob, and the chosen one should be better
//! by a margin. The objective is that of [`super::cpo`]; this file adds the name and the settings of the paper.
//!
//! Meng et al. 2024, <https://arxiv.org/abs/2405.14734>.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Totals;
use super::cpo::{CpoConfig, CpoLossType};
use super::preference::{DEFAULTS, PairLoss, PairPass};
use crate::data::{Need, PreferenceExample};
use crate::method::{Cast, Defaults, Method, Problems, Shared};
use crate::readings::Readings;
use crate::settings::TrainConfig;
use crate::stats::Stats;

/// Keys of `method.simpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SimpoConfig {
    /// Factor β of differences of mean log-probabilities. Default 2 (Meng et al. 2024, on Llama 3 8B).
    pub beta: f64,
    /// Margin γ by which the chosen completion should be better. Default 1 (half of `beta`: Meng et al. 2024, on Llama
    /// 3 8B).
    pub simpo_gamma: f64,
    /// Weight of the negative log-likelihood of the chosen completions (CPO-SimPO above 0). Default 0 (Meng et al. 2024).
    pub cpo_alpha: f64,
    /// Shape of the rewards: (1 − π^(−α))/α in place of log π (AlphaPO). Default 0: log π.
    pub alpha: f64,
    /// Probability that a label is wrong. Default 0.
    pub label_smoothing: f64,
}

impl Default for SimpoConfig {
    fn default() -> Self {
        Self { beta: 2.0, simpo_gamma: 1.0, cpo_alpha: 0.0, alpha: 0.0, label_smoothing: 0.0 }
    }
}

impl SimpoConfig {
    /// Converts the settings to those of CPO.
    fn cpo(&self) -> CpoConfig {
        let Self { beta, simpo_gamma, cpo_alpha, alpha, label_smoothing } = *self;
        CpoConfig { beta, loss_type: CpoLossType::Simpo, cpo_alpha, simpo_gamma, alpha, label_smoothing }
    }
}

impl Method for SimpoConfig {
    fn name(&self) -> &'static str {
        "simpo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on preferences by mean logprobs and a margin, without a reference"
    }

    fn defaults(&self) -> Defaults {
        DEFAULTS
    }

    fn drops_out(&self) -> bool {
        true
    }

    fn adds_noise(&self) -> bool {
        true
    }

    fn need(&self) -> Need {
        Need::Preference
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        self.cpo().cast(shared)
    }

    fn rules(&self, problems: &mut Problems<'_>, _train: &TrainConfig) {
        self.cpo().check(problems, self.name());
    }
}

impl PairLoss for SimpoConfig {
    type Pair = PreferenceExample;

    fn loss(&self, pass: PairPass<'_, PreferenceExample>, totals: Totals, measured: &mut Readings<Stats>) -> Tensor<1> {
        self.cpo().loss(pass, totals, measured)
    }
}
