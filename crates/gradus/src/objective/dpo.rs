//! Direct preference optimisation: the keys it has, its objective, and where the reference's logprobs come from.

use burn::tensor::{Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Objective, OfflineMethod, Totals};
use crate::batches::MicroBatch;
use crate::data::{self, Examples, Need, PreferenceExample, Row, TokeniseOptions, TooLong};
use crate::error::Result;
use crate::host::read;
use crate::loss::{dpo, reduce};
use crate::method::{Cast, Defaults, Head, Method, Problems, Shared, Stay};
use crate::model::{Batch, CausalLm, Rows, Sequence};
use crate::pretrained::Pretrained;
use crate::settings::TrainConfig;
use crate::stats::{NEW_TOKENS, Stats};

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

impl Method for DpoConfig {
    fn name(&self) -> &'static str {
        "dpo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on preferences directly"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-6, too_long: TooLong::Truncate, best_metric: "eval_rewards/accuracies" }
    }

    fn need(&self) -> Need {
        Need::Preference
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        let stay = match self.reference {
            ReferenceLogprobs::Precomputed => Stay::Before,
            ReferenceLogprobs::Live => Stay::Whole,
        };
        Cast::alone(shared, Head::Language).with_reference(shared, self.reference_model.as_deref(), stay)
    }

    fn rules(&self, problems: &mut Problems<'_>, _train: &TrainConfig) {
        problems.above_zero("method.dpo.beta", self.beta);
        problems.zero_to_below("method.dpo.label_smoothing", self.label_smoothing, 0.5);
        let name = match self.loss_type {
            DpoLossType::Sigmoid => return,
            DpoLossType::Hinge => "hinge",
            DpoLossType::Ipo => "ipo",
        };
        problems.unless(self.label_smoothing == 0.0, &["method.dpo.label_smoothing", "method.dpo.loss_type"], || {
            let message = format!(
                "`method.dpo.label_smoothing` is {}, but `loss_type: {name}` has no label smoothing: only `sigmoid` reads a label as a probability",
                self.label_smoothing
            );
            (message, Some("use `loss_type: sigmoid`, or set `label_smoothing` to 0".into()))
        });
    }
}

impl OfflineMethod for DpoConfig {
    type Example = PreferenceExample;
    type Objective = Dpo;

    fn examples(
        &self,
        rows: &[Row],
        from: &Pretrained,
        options: TokeniseOptions,
    ) -> Result<Examples<PreferenceExample>> {
        data::preference_examples(rows, &from.tokenizer, from.template.as_ref(), &options)
    }

    fn rows(pair: &PreferenceExample) -> Rows<'_> {
        Rows::Pairs(vec![sequences(pair)])
    }

    fn prepare(
        &self,
        examples: Vec<PreferenceExample>,
        reference: Option<&CausalLm>,
        passes: MicroBatch,
        progress: &mut dyn FnMut(usize),
    ) -> Vec<DpoPair> {
        pairs(self, reference.expect("its cast has a reference"), examples, passes, progress)
    }

    fn objective(&self, reference: Option<CausalLm>) -> Dpo {
        Dpo::new(self, reference.expect("its cast has a reference"))
    }
}

/// A pair with the reference's summed logprobs of both completions.
#[derive(Debug, Clone)]
pub struct DpoPair {
    /// The pair.
    pub pair: PreferenceExample,
    /// Of the chosen and the rejected completion; `None` when the reference is asked beside every step.
    pub reference: Option<[f32; 2]>,
}

/// The objective.
#[derive(Debug)]
pub struct Dpo {
    config: DpoConfig,
    /// Kept only for live logprobs; carries no gradient.
    reference: Option<CausalLm>,
}

impl Dpo {
    /// The objective over pairs that [`pairs`] prepared; `reference` is kept only where its logprobs are to be live.
    pub fn new(config: &DpoConfig, reference: CausalLm) -> Self {
        let live = config.reference == ReferenceLogprobs::Live;
        Self { config: config.clone(), reference: live.then_some(reference) }
    }
}

/// Completes `examples` with the reference's logprobs, unless they are to be live. `progress` is told how many are done.
pub fn pairs(
    config: &DpoConfig,
    reference: &CausalLm,
    examples: Vec<PreferenceExample>,
    passes: MicroBatch,
    mut progress: impl FnMut(usize),
) -> Vec<DpoPair> {
    if config.reference == ReferenceLogprobs::Live {
        return examples.into_iter().map(|pair| DpoPair { pair, reference: None }).collect();
    }
    let lengths: Vec<usize> = examples.iter().map(tokens).collect();
    let mut sums = Vec::with_capacity(examples.len());
    for pass in passes.split(&lengths) {
        let batch: Vec<&PreferenceExample> = examples[pass.clone()].iter().collect();
        sums.extend(reference_sums(reference, &batch));
        progress(pass.end);
    }
    examples.into_iter().zip(sums).map(|(pair, sums)| DpoPair { pair, reference: Some(sums) }).collect()
}

/// Summed logprobs of both completions of each pair under the reference.
fn reference_sums(reference: &CausalLm, pairs: &[&PreferenceExample]) -> Vec<[f32; 2]> {
    let batch = batch(reference, pairs);
    let found = reference.logprobs(&batch, 1.0);
    let sums_b = read(&reduce::segment_sum(found.logprobs_m, batch.counts_b()));
    (0..pairs.len()).map(|p| [sums_b[p], sums_b[pairs.len() + p]]).collect()
}

fn batch(model: &CausalLm, pairs: &[&PreferenceExample]) -> Batch {
    model.batch(&Rows::Pairs(pairs.iter().map(|pair| sequences(pair)).collect()))
}

/// The chosen and the rejected completion of a prompt.
fn sequences(pair: &PreferenceExample) -> [Sequence<'_>; 2] {
    [&pair.chosen_ids, &pair.rejected_ids].map(|ids| {
        let (prompt, completion) = ids.split_at(pair.prompt_len);
        Sequence::completion(prompt, completion)
    })
}

fn tokens(pair: &PreferenceExample) -> usize {
    pair.chosen_ids.len() + pair.rejected_ids.len()
}

impl Objective for Dpo {
    type Model = CausalLm;
    type Example = DpoPair;

    fn tokens(&self, example: &DpoPair) -> usize {
        tokens(&example.pair)
    }

    fn targets(&self, example: &DpoPair) -> usize {
        tokens(&example.pair) - 2 * example.pair.prompt_len
    }

    fn loss(&self, model: &CausalLm, examples: &[&DpoPair], totals: Totals, stats: &mut Stats) -> Option<Tensor<1>> {
        let pairs: Vec<&PreferenceExample> = examples.iter().map(|example| &example.pair).collect();
        let reference: Vec<[f32; 2]> = match &self.reference {
            Some(reference) => reference_sums(reference, &pairs),
            None => examples.iter().map(|example| example.reference.expect("prepared by `pairs`")).collect(),
        };
        let batch = batch(model, &pairs);
        let found = model.logprobs(&batch, 1.0);
        let p = pairs.len();
        let device = found.logprobs_m.device();

        let sums_b = reduce::segment_sum(found.logprobs_m.clone(), batch.counts_b());
        let reference_b: Vec<f32> =
            reference.iter().map(|sums| sums[0]).chain(reference.iter().map(|sums| sums[1])).collect();
        let ratios_b = sums_b.clone() - Tensor::<1>::from_data(TensorData::new(reference_b, [2 * p]), &device);
        let beta = self.config.beta;
        let losses_p = match self.config.loss_type {
            DpoLossType::Sigmoid => dpo::sigmoid(difference(ratios_b.clone()), beta, self.config.label_smoothing),
            DpoLossType::Hinge => dpo::hinge(difference(ratios_b.clone()), beta),
            DpoLossType::Ipo => {
                let shares_b: Vec<f32> = batch.counts_b().iter().map(|&count| 1.0 / count.max(1) as f32).collect();
                let shares_b = Tensor::<1>::from_data(TensorData::new(shares_b, [2 * p]), &device);
                dpo::ipo(difference(ratios_b.clone() * shares_b), beta)
            }
        };

        let chosen_tokens: usize = batch.counts_b()[..p].iter().sum();
        observe(&read(&ratios_b), &read(&sums_b), beta, stats);
        let mean_logits_m = read(&found.mean_logits_m);
        stats.mean_of("logits/chosen", &mean_logits_m[..chosen_tokens]);
        stats.mean_of("logits/rejected", &mean_logits_m[chosen_tokens..]);
        stats.mean_of("entropy", &read(&found.entropies_m));
        stats.mean_of("mean_token_accuracy", &read(&found.correct_m)[..chosen_tokens]);
        stats.sum(NEW_TOKENS, pairs.iter().map(|pair| tokens(pair)).sum::<usize>() as f64);
        Some(losses_p.sum() / totals.examples as f64)
    }

    fn describe(&self, example: &DpoPair) -> Value {
        json!({
            "chosen_ids": example.pair.chosen_ids,
            "rejected_ids": example.pair.rejected_ids,
            "prompt_len": example.pair.prompt_len,
            "reference_logps": example.reference,
        })
    }
}

/// Chosen minus rejected: `[2P]` to `[P]`.
fn difference(values_b: Tensor<1>) -> Tensor<1> {
    let p = values_b.dims()[0] / 2;
    values_b.clone().narrow(0, 0, p) - values_b.narrow(0, p, p)
}

/// TRL's metrics: implicit rewards are `β` times the log-ratios; equal ones count as wrong.
fn observe(ratios_b: &[f32], sums_b: &[f32], beta: f64, stats: &mut Stats) {
    let p = ratios_b.len() / 2;
    let rewards: Vec<f64> = ratios_b.iter().map(|&ratio| beta * f64::from(ratio)).collect();
    let (chosen, rejected) = rewards.split_at(p);
    let sum = |values: &[f64]| values.iter().sum::<f64>();
    stats.mean("rewards/chosen", sum(chosen), p as f64);
    stats.mean("rewards/rejected", sum(rejected), p as f64);
    let right = chosen.iter().zip(rejected).filter(|(chosen, rejected)| chosen > rejected).count();
    stats.mean("rewards/accuracies", right as f64, p as f64);
    stats.mean("rewards/margins", sum(chosen) - sum(rejected), p as f64);
    stats.mean_of("logps/chosen", &sums_b[..p]);
    stats.mean_of("logps/rejected", &sums_b[p..]);
}
