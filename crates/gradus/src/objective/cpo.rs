//! Contrastive preference optimization: a pairwise loss without a reference, plus the likelihood of the chosen
//! completions. [`super::simpo`] is the same objective with the settings of its paper.
//!
//! Xu et al. 2024, <https://arxiv.org/abs/2401.08417>. Follows TRL 1.16's experimental trainer, with two differences:
//! the mean of the likelihood is over the tokens of the step, and pairs in which a completion has no token are not
//! compared.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Totals;
use super::preference::{DEFAULTS, PairLoss, PairPass, observe};
use crate::data::{Need, PreferenceExample};
use crate::host::constant;
use crate::loss::reduce::sum;
use crate::loss::{cpo, dpo, reduce, sft};
use crate::method::{Cast, Defaults, Head, Method, Problems, Shared};
use crate::readings::Readings;
use crate::settings::TrainConfig;
use crate::stats::Stats;

/// Keys of `method.cpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CpoConfig {
    /// Factor β of differences of log-probabilities. Default 0.1 (TRL).
    pub beta: f64,
    /// Loss on the log-probabilities of a pair. Default `sigmoid` (Xu et al. 2024).
    pub loss_type: CpoLossType,
    /// Weight of the negative log-likelihood of the chosen completions. Default 1 (Xu et al. 2024).
    pub cpo_alpha: f64,
    /// Margin γ by which the chosen completion should be better (`simpo` only). Default 0.5 (TRL).
    pub simpo_gamma: f64,
    /// Shape of the rewards: (1 − π^(−α))/α in place of log π (AlphaPO). Default 0: log π.
    pub alpha: f64,
    /// Probability that a label is wrong (`sigmoid`, `simpo`). Default 0.
    pub label_smoothing: f64,
}

impl Default for CpoConfig {
    fn default() -> Self {
        Self {
            beta: 0.1,
            loss_type: CpoLossType::Sigmoid,
            cpo_alpha: 1.0,
            simpo_gamma: 0.5,
            alpha: 0.0,
            label_smoothing: 0.0,
        }
    }
}

/// Losses of CPO. `Δ` is the logprob of the chosen completion minus that of the rejected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CpoLossType {
    /// −log σ(βΔ), Xu et al. 2024.
    Sigmoid,
    /// max(0, 1 − βΔ), Zhao et al. 2023 (SLiC).
    Hinge,
    /// (Δ̄ − 1/(2β))² on means over tokens, Azar et al. 2023.
    Ipo,
    /// −log σ(βΔ̄ − γ) on means over tokens, Meng et al. 2024 (SimPO).
    Simpo,
}

impl CpoLossType {
    /// Whether the loss compares means over tokens; otherwise it compares sums.
    fn is_of_means(self) -> bool {
        matches!(self, Self::Ipo | Self::Simpo)
    }

    /// Whether the loss supports label smoothing.
    fn smooths_labels(self) -> bool {
        matches!(self, Self::Sigmoid | Self::Simpo)
    }
}

impl Method for CpoConfig {
    fn name(&self) -> &'static str {
        "cpo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on preferences and on the chosen answers, without a reference"
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
        Cast::alone(shared, Head::Language)
    }

    fn rules(&self, problems: &mut Problems<'_>, _train: &TrainConfig) {
        self.check(problems, self.name());
        let usual = Self::default().simpo_gamma;
        let fine = self.simpo_gamma == usual || self.loss_type == CpoLossType::Simpo;
        let keys = ["method.cpo.simpo_gamma", "method.cpo.loss_type"];
        problems.only_read_by(fine, &keys, "`simpo`", "use `loss_type: simpo`");
        let fine = self.label_smoothing == 0.0 || self.loss_type.smooths_labels();
        problems.require(fine, &["method.cpo.label_smoothing", "method.cpo.loss_type"], || {
            let message = "`method.cpo.label_smoothing` is given, but only `sigmoid` and `simpo` read it".into();
            (message, Some("leave it out, or use one of these losses".into()))
        });
    }
}

impl CpoConfig {
    /// Reports invalid numbers under the keys of `method`.
    pub(super) fn check(&self, problems: &mut Problems<'_>, method: &str) {
        let key = |name: &str| format!("method.{method}.{name}");
        problems.above_zero(&key("beta"), self.beta);
        problems.at_least(&key("cpo_alpha"), self.cpo_alpha, 0.0);
        problems.at_least(&key("simpo_gamma"), self.simpo_gamma, 0.0);
        problems.zero_to_below(&key("label_smoothing"), self.label_smoothing, 0.5);
    }

    /// Computes the loss of a pass, `[1]`. Gradient flows to `logprobs_m`, `[M]`, which holds its tokens: `counts_b` of each chosen completion, then of each
    /// rejected one. `totals` counts the pairs of the step and the tokens of its chosen completions.
    pub fn loss_of_logprobs(&self, logprobs_m: Tensor<1>, counts_b: &[usize], totals: Totals) -> PassLoss {
        let (p, device) = (counts_b.len() / 2, logprobs_m.device());
        let chosen_tokens = counts_b[..p].iter().sum();
        let nll_m = sft::nll(logprobs_m.clone().narrow(0, 0, chosen_tokens));
        let logps_b = match self.loss_type.is_of_means() {
            true => reduce::segment_mean(logprobs_m, counts_b),
            false => reduce::segment_sum(logprobs_m, counts_b),
        };
        let shaped_b = cpo::shaped(logps_b.clone(), self.alpha);
        let delta_p = shaped_b.clone().narrow(0, 0, p) - shaped_b.clone().narrow(0, p, p);
        let losses_p = match self.loss_type {
            CpoLossType::Sigmoid => dpo::sigmoid(delta_p, self.beta, self.label_smoothing),
            CpoLossType::Hinge => dpo::hinge(delta_p, self.beta),
            CpoLossType::Ipo => dpo::ipo(delta_p, self.beta),
            CpoLossType::Simpo => cpo::simpo(delta_p, self.beta, self.simpo_gamma, self.label_smoothing),
        };
        let is_whole = |(&chosen, &rejected): (&usize, &usize)| f32::from(u8::from(chosen > 0 && rejected > 0));
        let weights_p = counts_b[..p].iter().zip(&counts_b[p..]).map(is_whole).collect();
        let pairs = sum(losses_p * constant(weights_p, &device)) / totals.examples as f64;
        let nll = sum(nll_m.clone()) * (self.cpo_alpha / totals.targets.max(1) as f64);
        PassLoss { loss: pairs + nll, nll_m, logps_b, shaped_b }
    }
}

/// Loss and measurements of a pass.
#[derive(Debug)]
pub struct PassLoss {
    /// The pass's share of the step's loss, `[1]`.
    pub loss: Tensor<1>,
    /// Negative logprobs of the tokens of the chosen completions.
    pub nll_m: Tensor<1>,
    /// Logprob of each completion, a sum or a mean over its tokens, `[2P]`.
    pub logps_b: Tensor<1>,
    /// Compared value of each completion, `[2P]`: the logprob, or AlphaPO's reward.
    pub shaped_b: Tensor<1>,
}

impl PairLoss for CpoConfig {
    type Pair = PreferenceExample;

    fn loss(&self, pass: PairPass<'_, PreferenceExample>, totals: Totals, measured: &mut Readings<Stats>) -> Tensor<1> {
        let of_pass = self.loss_of_logprobs(pass.tokens.logprobs_m.clone(), pass.counts_b(), totals);
        let beta = self.beta;
        let values_b = [&of_pass.shaped_b, &of_pass.logps_b];
        measured.later(values_b, move |[shaped, logps], stats| observe(&shaped, &logps, beta, stats));
        measured.mean_of("nll_loss", &of_pass.nll_m);
        of_pass.loss
    }
}
