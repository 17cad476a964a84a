//! An offline method with a loss of its own: sequence likelihood calibration (SLiC-HF, Zhao et al. 2023,
//! <https://arxiv.org/abs/2305.10425>).

use gradus::burn::tensor::Tensor;
use gradus::burn::tensor::activation::relu;
use gradus::data::{Need, PreferenceExample, TooLong};
use gradus::loss::reduce::{segment_sum, sum};
use gradus::method::{Cast, Defaults, Head, Method, Problems, Shared};
use gradus::objective::{PairLoss, PairPass, Readings, Totals};
use gradus::settings::TrainConfig;
use gradus::stats::Stats;
use schemars::JsonSchema;
use serde::Deserialize;

/// Sequence likelihood calibration: a hinge loss on the log-probabilities of a pair, and the likelihood of the chosen
/// completion.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slic {
    /// Margin between the log-probabilities of both completions, in nats. Default 1.
    #[serde(default = "one")]
    pub margin: f64,
    /// Weight of the likelihood. Default 0.1.
    #[serde(default = "tenth")]
    pub likelihood: f64,
}

fn one() -> f64 {
    1.0
}

fn tenth() -> f64 {
    0.1
}

impl Method for Slic {
    fn name(&self) -> &'static str {
        "slic"
    }

    fn about(&self) -> &'static str {
        "Calibrate the likelihoods of preferred and rejected completions"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-6, too_long: TooLong::Truncate, best_metric: "eval_loss" }
    }

    fn need(&self) -> Need {
        Need::Preference
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        Cast::alone(shared, Head::Language)
    }

    fn rules(&self, problems: &mut Problems<'_>, _train: &TrainConfig) {
        problems.above_zero("method.plugin.slic.margin", self.margin);
    }
}

impl PairLoss for Slic {
    type Pair = PreferenceExample;

    /// `max(0, margin − log π(chosen) + log π(rejected)) − likelihood · log π(chosen)`, as the mean over the pairs of
    /// the step.
    fn loss(&self, pass: PairPass<'_, PreferenceExample>, totals: Totals, measured: &mut Readings<Stats>) -> Tensor<1> {
        // First the chosen completions of all pairs, then the rejected ones.
        let logprobs_b = segment_sum(pass.tokens.logprobs_m.clone(), pass.counts_b());
        let p = pass.pairs.len();
        let (chosen_p, rejected_p) = (logprobs_b.clone().narrow(0, 0, p), logprobs_b.narrow(0, p, p));
        let margins_p = chosen_p.clone() - rejected_p;
        measured.mean_of("margin", &margins_p);
        let losses_p = relu(-margins_p + self.margin) - chosen_p * self.likelihood;
        sum(losses_p) / totals.examples as f64
    }
}
