//! Kahneman–Tversky optimization: trains on single completions that are marked as desirable or not.
//!
//! Ethayarajh et al. 2024, <https://arxiv.org/abs/2402.01306>. Follows TRL 1.16 with one difference: the reference
//! point belongs to the optimizer step, not to a micro-batch. A step therefore does not depend on how it is split.

use burn::module::Module;
use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LossContext, Objective, OfflineMethod, Totals};
use crate::batches::MicroBatch;
use crate::data::{self, Examples, Need, Row, TokenizeOptions, TooLong, UnpairedExample};
use crate::error::Result;
use crate::host::{constant, read};
use crate::loss::reduce::sum;
use crate::loss::{kto, reduce};
use crate::method::{Cast, Defaults, Head, Lifetime, Method, Problems, Shared};
use crate::model::{CausalLm, Reference, Rows, Sequence};
use crate::pretrained::Pretrained;
use crate::progress::Progress;
use crate::readings::Readings;
use crate::settings::TrainConfig;
use crate::stats::Stats;

/// Keys of `method.kto`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KtoConfig {
    /// Strength of the pull toward the reference. Default 0.1 (TRL; Ethayarajh et al. 2024).
    pub beta: f64,
    /// The loss. Default `kto`.
    pub loss_type: KtoLossType,
    /// Weight of the losses of desirable completions. Default 1 (TRL).
    pub desirable_weight: f64,
    /// Weight of the losses of undesirable completions. Default 1 (TRL).
    pub undesirable_weight: f64,
    /// The reference: a model directory. Default: the start model of the training.
    pub reference_model: Option<String>,
}

impl Default for KtoConfig {
    fn default() -> Self {
        Self {
            beta: 0.1,
            loss_type: KtoLossType::Kto,
            desirable_weight: 1.0,
            undesirable_weight: 1.0,
            reference_model: None,
        }
    }
}

/// Baseline to which the log-ratios of completions are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KtoLossType {
    /// The KL of policy and reference, estimated by pairing the step's prompts with completions of other prompts
    /// (Ethayarajh et al. 2024).
    Kto,
    /// No baseline (D'Oosterlinck et al. 2024).
    ApoZeroUnpaired,
}

impl Method for KtoConfig {
    fn name(&self) -> &'static str {
        "kto"
    }

    fn about(&self) -> &'static str {
        "Train a policy on completions marked as desirable or not"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-6, too_long: TooLong::Truncate, best_metric: "eval_loss" }
    }

    fn need(&self) -> Need {
        Need::Unpaired
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        let lifetime = if self.has_reference_point() { Lifetime::WholeRun } else { Lifetime::BeforeTraining };
        Cast::alone(shared, Head::Language).with_reference(shared, self.reference_model.as_deref(), lifetime)
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        problems.above_zero("method.kto.beta", self.beta);
        problems.at_least("method.kto.desirable_weight", self.desirable_weight, 0.0);
        problems.at_least("method.kto.undesirable_weight", self.undesirable_weight, 0.0);
        let nothing = self.desirable_weight == 0.0 && self.undesirable_weight == 0.0;
        problems.require(!nothing, &["method.kto.desirable_weight", "method.kto.undesirable_weight"], || {
            let message = "`method.kto.desirable_weight` and `undesirable_weight` are 0: there is nothing to train on";
            (message.into(), None)
        });
        let fine = train.batch_size >= 2 || !self.has_reference_point();
        problems.require(fine, &["train.batch_size", "method.kto.loss_type"], || {
            let message = "`train.batch_size` is 1, but `method.kto.loss_type: kto` compares with completions of other rows of a step: it must be at least 2";
            (message.into(), Some("or use `loss_type: apo_zero_unpaired`, which does not compare completions".into()))
        });
    }

    fn reference_may_follow(&self) -> bool {
        self.has_reference_point()
    }
}

impl KtoConfig {
    /// Whether log-ratios are compared to an estimate of the KL.
    fn has_reference_point(&self) -> bool {
        self.loss_type == KtoLossType::Kto
    }

    /// Computes the loss of a pass, `[1]`, from `logprobs_m`, `[M]`, with `counts_b` tokens per completion. Gradient flows to
    /// `logprobs_m`.
    pub fn loss(&self, logprobs_m: Tensor<1>, counts_b: &[usize], inputs: &LossInputs, totals: Totals) -> PassLoss {
        let device = logprobs_m.device();
        let of = |desirable: f32, not: f32| {
            let values = inputs.labels_b.iter().map(|&is_desirable| if is_desirable { desirable } else { not });
            constant(values.collect(), &device)
        };
        let logps_b = reduce::segment_sum(logprobs_m, counts_b);
        let log_ratios_b = logps_b.clone() - constant(inputs.reference_b.clone(), &device);
        let losses_b = kto::kto(log_ratios_b.clone(), of(1.0, -1.0), inputs.reference_point, self.beta);
        let weights_b = of(self.desirable_weight as f32, self.undesirable_weight as f32);
        let loss = sum(losses_b * weights_b) / totals.examples as f64;
        PassLoss { loss, logps_b, log_ratios_b }
    }
}

/// Inputs of a pass's loss in addition to the policy's logprobs.
#[derive(Debug, Clone, PartialEq)]
pub struct LossInputs {
    /// Whether each completion is desirable.
    pub labels_b: Vec<bool>,
    /// Summed logprobs of the completions under the reference.
    pub reference_b: Vec<f32>,
    /// Value to which the log-ratios are compared.
    pub reference_point: f64,
}

/// Loss and measurements of a pass.
#[derive(Debug)]
pub struct PassLoss {
    /// The pass's share of the step's loss, `[1]`.
    pub loss: Tensor<1>,
    /// Summed logprobs of each completion, `[B]`.
    pub logps_b: Tensor<1>,
    /// Log-ratios of policy and reference, `[B]`.
    pub log_ratios_b: Tensor<1>,
}

impl OfflineMethod for KtoConfig {
    type Example = UnpairedExample;
    type Objective = Kto;

    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<UnpairedExample>> {
        data::unpaired_examples(rows, &from.tokenizer, from.template.as_ref(), &options)
    }

    fn rows(example: &UnpairedExample) -> Rows<'_> {
        Rows::Alone(vec![sequence(example)])
    }

    /// One, for the summed logprobs of the completion; none if the reference runs in each step.
    fn reference_width(&self) -> usize {
        if self.has_reference_point() { 0 } else { 1 }
    }

    fn score_with_reference(&self, reference: &CausalLm, examples: &[&UnpairedExample]) -> Vec<f32> {
        logprob_sums(reference, &Rows::Alone(examples.iter().map(|example| sequence(example)).collect()))
    }

    fn with_reference(&self, example: UnpairedExample, logprobs: &[f32]) -> KtoExample {
        KtoExample { reference: logprobs.first().map(|&sum| (sum, 0.0)), ..example.into() }
    }

    fn objective(&self, reference: Option<Reference>) -> Kto {
        Kto { config: self.clone(), reference: reference.filter(|_| self.has_reference_point()) }
    }
}

/// A completion with the additional inputs of its loss.
#[derive(Debug, Clone)]
pub struct KtoExample {
    /// The completion.
    pub example: UnpairedExample,
    /// Its summed logprobs under the reference and the reference point of its step; `None` until the step is known.
    pub reference: Option<(f32, f64)>,
}

impl From<UnpairedExample> for KtoExample {
    fn from(example: UnpairedExample) -> Self {
        Self { example, reference: None }
    }
}

/// The KTO objective.
#[derive(Debug)]
pub struct Kto {
    config: KtoConfig,
    /// Present if each step runs the reference.
    reference: Option<Reference>,
}

fn sequence(example: &UnpairedExample) -> Sequence<'_> {
    Sequence::completion(&example.prompt_ids, example.completion())
}

/// Pairs the prompt of one example with the completion of another. The whole completion is cut after this prompt, as in TRL: that of its own
/// row may be cut earlier.
fn mismatched<'a>(example: &'a UnpairedExample, other: &'a UnpairedExample) -> Sequence<'a> {
    Sequence::completion(&example.prompt_ids, example.cut(&other.completion_ids))
}

/// Computes the summed logprobs of the targets of each sequence, without gradient.
fn logprob_sums(model: &CausalLm, rows: &Rows<'_>) -> Vec<f32> {
    let batch = model.batch(rows);
    read(&reduce::segment_sum(model.logprobs(&batch, 1.0).logprobs_m, batch.counts_b()))
}

impl Kto {
    /// Runs passes without gradient over the prompts of the step. Each prompt gets the completion of the previous
    /// example (the first gets the last one's), as in TRL. Their log-ratios give the step's reference point.
    fn with_point(&self, model: &CausalLm, examples: &[&KtoExample], passes: MicroBatch) -> Option<Vec<KtoExample>> {
        let reference = self.reference.as_ref()?.model();
        // No activations are kept for a backward pass.
        let policy = if model.trunk.embedding().is_autodiff() { model.valid() } else { model.clone() };
        let n = examples.len();
        let others: Vec<Sequence<'_>> =
            (0..n).map(|i| mismatched(&examples[i].example, &examples[(i + n - 1) % n].example)).collect();
        let lengths: Vec<usize> =
            examples.iter().zip(&others).map(|(own, other)| self.tokens(own) + other.tokens()).collect();
        // For each completion: its logprob sum under the reference, and the log-ratio of the mismatched completion.
        let found: Vec<(f32, f64)> = passes.deal("the reference point", &lengths, |_, pass| {
            let of_policy = logprob_sums(&policy, &Rows::Alone(others[pass.clone()].to_vec()));
            let both = examples[pass.clone()].iter().zip(&others[pass.clone()]);
            let both = both.map(|(example, other)| [sequence(&example.example), *other]).collect();
            let of_reference = logprob_sums(&reference, &Rows::Pairs(both));
            let (of_own, of_others) = of_reference.split_at(pass.len());
            let log_ratios = of_policy.iter().zip(of_others).map(|(a, b)| f64::from(a - b));
            of_own.iter().copied().zip(log_ratios).collect()
        });
        let point = kto::reference_point(found.iter().map(|(_, log_ratio)| *log_ratio));
        let completed = examples.iter().zip(&found);
        let of = |(kto, (own, _)): (&&KtoExample, &(f32, f64))| KtoExample {
            example: kto.example.clone(),
            reference: Some((*own, point)),
        };
        Some(completed.map(of).collect())
    }
}

impl Objective for Kto {
    type Model = CausalLm;
    type Example = KtoExample;

    fn tokens(&self, example: &KtoExample) -> usize {
        example.example.tokens()
    }

    fn targets(&self, example: &KtoExample) -> usize {
        sequence(&example.example).targets()
    }

    /// 1 for a desirable completion, so that a step's total weight counts them.
    fn weight(&self, example: &KtoExample) -> f64 {
        f64::from(u8::from(example.example.is_desirable))
    }

    fn with_batch_context(
        &self,
        model: &CausalLm,
        examples: &[&KtoExample],
        passes: MicroBatch,
        _progress: &dyn Progress,
    ) -> Result<Option<Vec<KtoExample>>> {
        Ok(self.with_point(model, examples, passes))
    }

    fn loss(
        &self,
        model: &CausalLm,
        examples: &[&KtoExample],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let Some(references) = examples.iter().map(|example| example.reference).collect::<Option<Vec<(f32, f64)>>>()
        else {
            // Without context, these examples are the whole step.
            let whole = MicroBatch::new(usize::MAX, None);
            let completed = self.with_point(model, examples, whole).expect("it is known unless a reference is kept");
            return self.loss(model, &completed.iter().collect::<Vec<_>>(), context, measured);
        };
        let batch = model.batch(&Rows::Alone(examples.iter().map(|example| sequence(&example.example)).collect()));
        if batch.targets().is_empty() {
            return None;
        }
        let found = model.logprobs(&batch, 1.0);
        let inputs = LossInputs {
            labels_b: examples.iter().map(|example| example.example.is_desirable).collect(),
            reference_b: references.iter().map(|(reference, _)| *reference).collect(),
            reference_point: references.first().map_or(0.0, |(_, point)| *point),
        };
        let (counts_b, beta) = (batch.counts_b().to_vec(), self.config.beta);
        let of_pass = self.config.loss(found.logprobs_m, &counts_b, &inputs, context.totals);
        let tensors = [&of_pass.log_ratios_b, &of_pass.logps_b, &found.mean_logits_m, &found.entropies_m];
        measured.later(tensors, move |[log_ratios, logps, mean_logits, entropies], stats| {
            observe(&log_ratios, &logps, &inputs, beta, context.totals, stats);
            let mut rest = mean_logits.as_slice();
            for (&count, &is_desirable) in counts_b.iter().zip(&inputs.labels_b) {
                let (own, others) = rest.split_at(count);
                stats.mean_of(if is_desirable { "logits/chosen" } else { "logits/rejected" }, own);
                rest = others;
            }
            stats.mean_of("entropy", &entropies);
        });
        Some(of_pass.loss)
    }

    fn describe(&self, example: &KtoExample) -> Value {
        let UnpairedExample { prompt_ids, is_desirable, .. } = &example.example;
        let ids = [&prompt_ids[..], example.example.completion()].concat();
        json!({
            "ids": ids,
            "prompt_len": prompt_ids.len(),
            "label": is_desirable,
            "reference_logps": example.reference.map(|(reference, _)| reference),
        })
    }
}

/// Records TRL's metrics. The KL and the margins are values of a step, to which each pass adds its share.
fn observe(log_ratios_b: &[f32], logps_b: &[f32], inputs: &LossInputs, beta: f64, totals: Totals, stats: &mut Stats) {
    let share = inputs.labels_b.len() as f64 / totals.examples as f64;
    stats.mean("kl", inputs.reference_point * share, share);
    let mut margin = 0.0;
    let desirable = totals.weight;
    let undesirable = totals.examples as f64 - desirable;
    for (side, is_chosen, of_step) in [("chosen", true, desirable), ("rejected", false, undesirable)] {
        let of_side = |values: &[f32]| -> Vec<f64> {
            let of_label = values.iter().zip(&inputs.labels_b).filter(|(_, label)| **label == is_chosen);
            of_label.map(|(value, _)| f64::from(*value)).collect()
        };
        let (rewards, logps) = (of_side(log_ratios_b), of_side(logps_b));
        let reward = beta * rewards.iter().sum::<f64>();
        stats.mean(&format!("rewards/{side}"), reward, rewards.len() as f64);
        stats.mean(&format!("logps/{side}"), logps.iter().sum(), logps.len() as f64);
        margin += if is_chosen { reward } else { -reward } / of_step.max(1.0);
    }
    if desirable > 0.0 && undesirable > 0.0 {
        stats.mean("rewards/margins", margin, share);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data::LoadOptions;
    use crate::text::Tokenizer;

    #[test]
    fn mismatched_completions_are_cut_after_the_other_prompt() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
        let tokenizer = Tokenizer::from_dir(&model).expect("a fixture");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("rows.jsonl");
        let row = |prompt: &str| {
            format!("{}\n", json!({ "prompt": prompt, "completion": " struck ten and then it stopped", "label": true }))
        };
        std::fs::write(&file, row("The old clock in the hall of the house") + &row("A clock")).expect("written");
        let rows = data::load(&file.to_string_lossy(), &LoadOptions::needing(Need::Unpaired)).expect("rows").rows;
        let examples = |max_length| {
            let options = TokenizeOptions { max_length, ..TokenizeOptions::default() };
            data::unpaired_examples(&rows, &tokenizer, None, &options).expect("made").examples
        };
        let whole = examples(None);
        let (long, short) = (&whole[0], &whole[1]);
        let most = long.prompt_ids.len() + 1;
        let cut = examples(Some(most));
        assert_eq!(sequence(&cut[0]).target, &long.completion_ids[..1]);
        let mixed = mismatched(&cut[1], &cut[0]);
        assert_eq!(mixed.source, short.prompt_ids);
        let room = most - short.prompt_ids.len();
        assert!(room > 1, "the shorter prompt leaves more room");
        assert_eq!(mixed.target, &long.completion_ids[..room.min(long.completion_ids.len())]);
    }
}
