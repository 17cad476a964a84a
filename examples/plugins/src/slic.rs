//! An offline method with a loss of its own: sequence likelihood calibration (SLiC-HF, Zhao et al. 2023,
//! <https://arxiv.org/abs/2305.10425>).

use gradus::burn::tensor::Tensor;
use gradus::burn::tensor::activation::relu;
use gradus::data::{self, Examples, Need, PreferenceExample, Row, TokenizeOptions, TooLong};
use gradus::loss::reduce::segment_sum;
use gradus::method::{Cast, Defaults, Head, Method, Problems, Shared};
use gradus::model::{CausalLm, Rows, Sequence};
use gradus::objective::{Objective, OfflineMethod, Pass, Readings};
use gradus::pretrained::Pretrained;
use gradus::settings::TrainConfig;
use gradus::stats::Stats;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

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

impl OfflineMethod for Slic {
    type Example = PreferenceExample;
    type Objective = Self;

    fn examples(
        &self,
        rows: &[Row],
        from: &Pretrained,
        options: TokenizeOptions,
    ) -> gradus::Result<Examples<PreferenceExample>> {
        data::preference_examples(rows, &from.tokenizer, from.template.as_ref(), &options)
    }

    fn rows(pair: &PreferenceExample) -> Rows<'_> {
        Rows::Pairs(vec![completions(pair)])
    }

    fn objective(&self, _reference: Option<CausalLm>) -> Self {
        *self
    }
}

fn completions(pair: &PreferenceExample) -> [Sequence<'_>; 2] {
    [&pair.chosen_ids, &pair.rejected_ids].map(|ids| {
        let (prompt, completion) = ids.split_at(pair.prompt_len);
        Sequence::completion(prompt, completion)
    })
}

impl Objective for Slic {
    type Model = CausalLm;
    type Example = PreferenceExample;

    fn tokens(&self, pair: &PreferenceExample) -> usize {
        pair.chosen_ids.len() + pair.rejected_ids.len()
    }

    fn targets(&self, pair: &PreferenceExample) -> usize {
        completions(pair)[0].targets()
    }

    /// `max(0, margin − log π(chosen) + log π(rejected)) − likelihood · log π(chosen)`, as the mean over the pairs of
    /// the step.
    fn loss(
        &self,
        model: &CausalLm,
        pairs: &[&PreferenceExample],
        pass: Pass,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let batch = model.batch(&Rows::Pairs(pairs.iter().map(|pair| completions(pair)).collect()));
        // First the chosen completions of all pairs, then the rejected ones.
        let logprobs_b = segment_sum(model.logprobs(&batch, 1.0).logprobs_m, batch.counts_b());
        let p = pairs.len();
        let (chosen_p, rejected_p) = (logprobs_b.clone().narrow(0, 0, p), logprobs_b.narrow(0, p, p));
        let margins_p = chosen_p.clone() - rejected_p;
        measured.mean_of("margin", &margins_p);
        let losses_p = relu(-margins_p + self.margin) - chosen_p * self.likelihood;
        Some(losses_p.sum() / pass.totals.examples as f64)
    }

    fn describe(&self, pair: &PreferenceExample) -> Value {
        json!({ "chosen_ids": pair.chosen_ids, "rejected_ids": pair.rejected_ids, "prompt_len": pair.prompt_len })
    }
}
