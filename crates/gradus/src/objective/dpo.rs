//! Direct preference optimization: its objective, and the sources of the reference's logprobs.

use std::cmp::Ordering;

use burn::tensor::Tensor;
use serde_json::{Map, Value, json};

use super::{Objective, OfflineMethod, Pass};
use crate::batches::MicroBatch;
use crate::data::{self, Examples, Need, PreferenceExample, Row, TokenizeOptions, TooLong};
use crate::error::Result;
use crate::host::read;
use crate::math::weights::on_policy;
use crate::method::{Cast, Defaults, Head, Lifetime, Method, Problems, Shared};
use crate::model::{Batch, CausalLm, Rows, Sequence, TokenLogprobs};
use crate::pretrained::Pretrained;
use crate::progress::Progress;
use crate::readings::Readings;
use crate::settings::TrainConfig;
use crate::stats::Stats;

mod keys;
mod pass;
mod rules;

pub use keys::{Divergence, DpoConfig, DpoLossType, DpoLosses, ReferenceLogprobs};
pub use pass::{Completions, PassLoss, RankPartners, rank_partners, sums};

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

    fn advice(&self, last: &Map<String, Value>) -> Vec<String> {
        let number = |key: &str| last.get(key).and_then(Value::as_f64);
        match (number("rewards/chosen"), number("rewards/margins")) {
            // At beta 1, the probability is e^-20 of its start value: practically nothing is left of it.
            (Some(chosen), _) if chosen < -20.0 => vec![format!(
                "`rewards/chosen` is {chosen:.0}: the policy is far from its reference, and its texts are likely \
                 broken. Train with a much lower `learning_rate`"
            )],
            // At beta 1, 0.1 is a tenth of a nat; at the default beta it is one nat. Less is batch noise.
            (Some(chosen), Some(margin)) if chosen <= -0.1 && margin > 0.0 => vec![format!(
                "`rewards/chosen` is {chosen:.3}: the chosen answers became less likely than at the start, the rejected ones \
                 even less. That is usual for DPO; a larger `beta` or fewer steps keep it small"
            )],
            _ => Vec::new(),
        }
    }

    fn need(&self) -> Need {
        Need::Preference
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        let lifetime = match self.reference {
            ReferenceLogprobs::Precomputed => Lifetime::BeforeTraining,
            ReferenceLogprobs::Live => Lifetime::WholeRun,
        };
        Cast::alone(shared, Head::Language).with_reference(shared, self.reference_model.as_deref(), lifetime)
    }

    fn rules(&self, problems: &mut Problems<'_>, _train: &TrainConfig) {
        rules::check(problems, self);
    }
}

impl OfflineMethod for DpoConfig {
    type Example = PreferenceExample;
    type Objective = Dpo;

    fn examples(
        &self,
        rows: &[Row],
        from: &Pretrained,
        options: TokenizeOptions,
    ) -> Result<Examples<PreferenceExample>> {
        data::preference_examples(rows, &from.tokenizer, from.template.as_ref(), &options)
    }

    fn rows(pair: &PreferenceExample) -> Rows<'_> {
        Rows::Pairs(vec![sequences(pair)])
    }

    /// Two, for the summed logprobs of both completions; none if the reference is live.
    fn reference_width(&self) -> usize {
        if self.is_live() { 0 } else { 2 }
    }

    fn score_with_reference(&self, reference: &CausalLm, pairs: &[&PreferenceExample]) -> Vec<f32> {
        sums_of_pairs(reference, pairs, self.ld_alpha).concat()
    }

    fn with_reference(&self, pair: PreferenceExample, logprobs: &[f32]) -> DpoPair {
        DpoPair { reference: logprobs.try_into().ok(), ..pair.into() }
    }

    fn objective(&self, reference: Option<CausalLm>) -> Dpo {
        Dpo { config: self.clone(), reference: reference.filter(|_| self.is_live()) }
    }
}

/// A pair with the summed logprobs of both completions under the reference.
#[derive(Debug, Clone)]
pub struct DpoPair {
    /// The pair.
    pub pair: PreferenceExample,
    /// Reference logprobs of the chosen and the rejected completion; `None` if the reference runs live, in each step.
    pub reference: Option<[f32; 2]>,
    /// Partners in the sorted step, for losses that sort; `None` if the whole step is one pass.
    pub partners: Option<RankPartners>,
}

impl From<PreferenceExample> for DpoPair {
    fn from(pair: PreferenceExample) -> Self {
        Self { pair, reference: None, partners: None }
    }
}

/// The DPO objective.
#[derive(Debug)]
pub struct Dpo {
    config: DpoConfig,
    /// Present only for live logprobs; carries no gradient.
    reference: Option<CausalLm>,
}

impl Dpo {
    /// Returns the summed logprobs of both completions of each pair under the reference.
    fn reference_of(&self, examples: &[&DpoPair], pairs: &[&PreferenceExample]) -> Vec<[f32; 2]> {
        if let Some(known) = examples.iter().map(|example| example.reference).collect() {
            return known;
        }
        let reference = self.reference.as_ref().expect("it was asked before training, unless it is kept");
        sums_of_pairs(reference, pairs, self.config.ld_alpha)
    }
}

/// Computes the summed logprobs of both completions of each pair, without gradient.
fn sums_of_pairs(model: &CausalLm, pairs: &[&PreferenceExample], ld_alpha: Option<f64>) -> Vec<[f32; 2]> {
    let batch = batch(model, pairs);
    let found = model.logprobs(&batch, 1.0);
    let sums_b = read(&sums(found.logprobs_m, batch.counts_b(), ld_alpha));
    (0..pairs.len()).map(|p| [sums_b[p], sums_b[pairs.len() + p]]).collect()
}

/// Converts `[P]` pairs of values to `[2P]`: the chosen ones, then the rejected ones.
fn flatten_sides(sides_p: &[[f32; 2]]) -> Vec<f32> {
    sides_p.iter().map(|sides| sides[0]).chain(sides_p.iter().map(|sides| sides[1])).collect()
}

/// Returns the factors of the losses of each pair (WPO).
fn pair_weights(model: &CausalLm, hidden_nd: Tensor<2>, batch: &Batch, found: &TokenLogprobs) -> Vec<f32> {
    // log Σ p² = logsumexp(2z) − 2·logsumexp(z), and half the temperature doubles the logits.
    let doubled_m = read(&model.token_logprobs(hidden_nd.detach(), batch.targets(), 0.5).log_partitions_m);
    let (logprobs_m, partitions_m) = (read(&found.logprobs_m), read(&found.log_partitions_m));
    let aligned = |((logprob, partition), doubled): ((&f32, &f32), &f32)| logprob - (doubled - 2.0 * partition);
    let aligned_m: Vec<f32> = logprobs_m.iter().zip(&partitions_m).zip(&doubled_m).map(aligned).collect();
    on_policy(&aligned_m, batch.counts_b())
}

pub(super) fn batch(model: &CausalLm, pairs: &[&PreferenceExample]) -> Batch {
    model.batch(&Rows::Pairs(pairs.iter().map(|pair| sequences(pair)).collect()))
}

/// Returns the chosen and the rejected completion with their prompt.
pub(super) fn sequences(pair: &PreferenceExample) -> [Sequence<'_>; 2] {
    [&pair.chosen_ids, &pair.rejected_ids].map(|ids| {
        let (prompt, completion) = ids.split_at(pair.prompt_len);
        Sequence::completion(prompt, completion)
    })
}

pub(super) fn tokens(pair: &PreferenceExample) -> usize {
    pair.chosen_ids.len() + pair.rejected_ids.len()
}

impl Objective for Dpo {
    type Model = CausalLm;
    type Example = DpoPair;

    fn tokens(&self, example: &DpoPair) -> usize {
        tokens(&example.pair)
    }

    /// Tokens of the chosen completion: `sft` is a mean over them.
    fn targets(&self, example: &DpoPair) -> usize {
        example.pair.chosen_ids.len() - example.pair.prompt_len
    }

    /// For losses that sort: runs a pass without gradient to find the order of the pairs of the step.
    fn with_batch_context(
        &self,
        model: &CausalLm,
        examples: &[&DpoPair],
        passes: MicroBatch,
        _progress: &dyn Progress,
    ) -> Result<Option<Vec<DpoPair>>> {
        let lengths: Vec<usize> = examples.iter().map(|example| self.tokens(example)).collect();
        let passes = passes.split(&lengths);
        if !self.config.sorts() || passes.len() < 2 {
            return Ok(None);
        }
        let (mut policy, mut reference) = (Vec::new(), Vec::new());
        for pass in passes {
            let pairs: Vec<&PreferenceExample> = examples[pass.clone()].iter().map(|example| &example.pair).collect();
            policy.extend(sums_of_pairs(model, &pairs, self.config.ld_alpha));
            reference.extend(self.reference_of(&examples[pass], &pairs));
        }
        let order = rank_partners(&flatten_sides(&policy), &flatten_sides(&reference));
        let completed = examples.iter().zip(reference).zip(order).map(|((example, reference), partners)| DpoPair {
            pair: example.pair.clone(),
            reference: Some(reference),
            partners: Some(partners),
        });
        Ok(Some(completed.collect()))
    }

    fn loss(
        &self,
        model: &CausalLm,
        examples: &[&DpoPair],
        pass: Pass,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let pairs: Vec<&PreferenceExample> = examples.iter().map(|example| &example.pair).collect();
        let reference = self.reference_of(examples, &pairs);
        let batch = batch(model, &pairs);
        let hidden_nd = model.hidden(&batch);
        let kept_nd = self.config.use_weighting.then(|| hidden_nd.clone());
        let found = model.token_logprobs(hidden_nd, batch.targets(), 1.0);
        let weights_p = kept_nd.map(|hidden_nd| pair_weights(model, hidden_nd, &batch, &found));
        let completions = Completions {
            logprobs_m: found.logprobs_m,
            counts_b: batch.counts_b(),
            reference_b: flatten_sides(&reference),
            partners_p: examples.iter().map(|example| example.partners).collect(),
            weights_p,
        };
        let PassLoss { loss, sums_b, log_ratios_b } = completions.loss(&self.config, pass.totals);

        let chosen_tokens: usize = batch.counts_b()[..pairs.len()].iter().sum();
        let beta = self.config.beta;
        measured.later([&log_ratios_b, &sums_b], move |[ratios, sums], stats| observe(&ratios, &sums, beta, stats));
        observe_tokens([&found.mean_logits_m, &found.entropies_m, &found.correct_m], chosen_tokens, measured);
        Some(loss)
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

/// Scores whether the chosen answer of a pair has the higher implicit reward: 1, 0, or 0.5 if both are equal. Before
/// the first step the policy equals its reference, so all are equal; TRL counts them as wrong.
pub fn preferred(chosen: f64, rejected: f64) -> f64 {
    match chosen.partial_cmp(&rejected) {
        Some(Ordering::Greater) => 1.0,
        Some(Ordering::Equal) => 0.5,
        _ => 0.0,
    }
}

/// Records TRL's metrics of the tokens of a pass, of which the first `chosen_tokens` belong to chosen completions: mean
/// logits, entropies, and whether a token is the likeliest one.
pub(super) fn observe_tokens(
    [mean_logits_m, entropies_m, correct_m]: [&Tensor<1>; 3],
    chosen_tokens: usize,
    measured: &mut Readings<Stats>,
) {
    measured.later([mean_logits_m, entropies_m, correct_m], move |[mean_logits, entropies, correct], stats| {
        stats.mean_of("logits/chosen", &mean_logits[..chosen_tokens]);
        stats.mean_of("logits/rejected", &mean_logits[chosen_tokens..]);
        stats.mean_of("entropy", &entropies);
        stats.mean_of("mean_token_accuracy", &correct[..chosen_tokens]);
    });
}

/// Records TRL's metrics. Implicit rewards are `β` times the log-ratios.
pub(super) fn observe(ratios_b: &[f32], sums_b: &[f32], beta: f64, stats: &mut Stats) {
    let p = ratios_b.len() / 2;
    let rewards: Vec<f64> = ratios_b.iter().map(|&ratio| beta * f64::from(ratio)).collect();
    let (chosen, rejected) = rewards.split_at(p);
    let sum = |values: &[f64]| values.iter().sum::<f64>();
    stats.mean("rewards/chosen", sum(chosen), p as f64);
    stats.mean("rewards/rejected", sum(rejected), p as f64);
    let right: f64 = chosen.iter().zip(rejected).map(|(chosen, rejected)| preferred(*chosen, *rejected)).sum();
    stats.mean("rewards/accuracies", right, p as f64);
    stats.mean("rewards/margins", sum(chosen) - sum(rejected), p as f64);
    stats.mean_of("logps/chosen", &sums_b[..p]);
    stats.mean_of("logps/rejected", &sums_b[p..]);
}
