//! Methods on pairs of completions. DPO, CPO, SimPO and ORPO share rows, forward passes and metrics. They differ in
//! their [`PairLoss`].

use std::borrow::Borrow;
use std::cmp::Ordering;

use burn::tensor::Tensor;
use serde_json::{Value, json};

use super::{LossContext, Objective, OfflineMethod, Totals};
use crate::batches::MicroBatch;
use crate::data::{self, Examples, PreferenceExample, Row, TokenizeOptions, TooLong};
use crate::error::Result;
use crate::method::{Defaults, Method};
use crate::model::{Batch, CausalLm, Reference, Rows, Sequence, TokenLogprobs};
use crate::pretrained::Pretrained;
use crate::progress::Progress;
use crate::readings::Readings;
use crate::stats::Stats;

/// Defaults of `train` for methods on pairs of completions.
pub(super) const DEFAULTS: Defaults =
    Defaults { learning_rate: 1e-6, too_long: TooLong::Truncate, best_metric: "eval_rewards/accuracies" };

/// The loss of a method on pairs of completions, as a function of their log-probabilities.
pub trait PairLoss {
    /// A pair, with the values of its own that the loss needs.
    type Pair: Borrow<PreferenceExample>;

    /// Whether forward passes use dropout.
    const DROPS_OUT: bool = true;

    /// Returns the logprobs of a reference that runs in each step, `[2P]`: those of the chosen completions, then those of the rejected ones.
    /// Called before the policy's forward pass, whose activations are then not in memory. Default: none.
    fn reference(&self, _pairs: &[&Self::Pair]) -> Vec<f32> {
        Vec::new()
    }

    /// Whether [`loss`](Self::loss) reads the final hidden states. If not, they are freed before the loss.
    fn reads_hidden(&self) -> bool {
        false
    }

    /// Returns the sequences of a pair: the one with the chosen completion, then the one with the rejected completion.
    fn sequences(pair: &PreferenceExample) -> [Sequence<'_>; 2] {
        completions(pair)
    }

    /// Implements [`Objective::with_batch_context`].
    ///
    /// # Errors
    /// As [`Objective::with_batch_context`].
    fn with_batch_context(
        &self,
        _model: &CausalLm,
        _pairs: &[&Self::Pair],
        _passes: MicroBatch,
        _progress: &dyn Progress,
    ) -> Result<Option<Vec<Self::Pair>>> {
        Ok(None)
    }

    /// Computes the share of a pass in the loss of the step, `[1]`, with gradient to the log-probabilities in `pass`. `totals` counts the
    /// pairs of the step and the tokens of its chosen sequences. `measured` receives the statistics of the loss, without those of
    /// the tokens.
    fn loss(&self, pass: PairPass<'_, Self::Pair>, totals: Totals, measured: &mut Readings<Stats>) -> Tensor<1>;

    /// Shows the values of its own that the loss needs, beside the pair.
    fn describe(&self, _pair: &Self::Pair) -> Option<(&'static str, Value)> {
        None
    }
}

/// A forward pass over pairs: first the chosen sequences of all pairs, then the rejected ones.
pub struct PairPass<'a, P> {
    /// The `P` pairs of this pass.
    pub pairs: &'a [&'a P],
    /// The policy.
    pub model: &'a CausalLm,
    /// The packed sequences: the chosen ones of all pairs, then the rejected ones.
    pub batch: &'a Batch,
    /// Final hidden states of all positions, `[N, D]`, if the loss reads them ([`PairLoss::reads_hidden`]).
    pub hidden_nd: Option<Tensor<2>>,
    /// Output of [`PairLoss::reference`].
    pub reference_b: Vec<f32>,
    /// Values of the `[M]` counted tokens.
    pub tokens: &'a TokenLogprobs,
}

impl<P> PairPass<'_, P> {
    /// Returns the number of counted tokens of each sequence, `[2P]`.
    pub fn counts_b(&self) -> &[usize] {
        self.batch.counts_b()
    }

    /// Returns the number of counted tokens of the chosen sequences.
    pub fn chosen_tokens(&self) -> usize {
        self.counts_b()[..self.pairs.len()].iter().sum()
    }
}

/// The objective of a [`PairLoss`].
#[derive(Debug, Clone)]
pub struct PreferenceObjective<L>(pub L);

impl<L: PairLoss> Objective for PreferenceObjective<L> {
    type Model = CausalLm;
    type Example = L::Pair;

    fn tokens(&self, pair: &L::Pair) -> usize {
        tokens(pair.borrow())
    }

    /// Tokens of the chosen sequence: likelihoods are means over them.
    fn targets(&self, pair: &L::Pair) -> usize {
        L::sequences(pair.borrow())[0].targets()
    }

    fn with_batch_context(
        &self,
        model: &CausalLm,
        pairs: &[&L::Pair],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<L::Pair>>> {
        self.0.with_batch_context(model, pairs, passes, progress)
    }

    fn loss(
        &self,
        model: &CausalLm,
        pairs: &[&L::Pair],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let rows = Rows::Pairs(pairs.iter().map(|&pair| L::sequences(pair.borrow())).collect());
        let masks = context.dropout.filter(|_| L::DROPS_OUT);
        let batch = model.batch_with_noise(&rows, context.noise).dropping(masks);
        if batch.targets().is_empty() {
            return None;
        }
        let reference_b = self.0.reference(pairs);
        let hidden_nd = model.hidden(&batch);
        let kept_nd = self.0.reads_hidden().then(|| hidden_nd.clone());
        let tokens = model.token_logprobs(hidden_nd, batch.targets(), 1.0);
        let of_pass = PairPass { pairs, model, batch: &batch, hidden_nd: kept_nd, reference_b, tokens: &tokens };
        let chosen_tokens = of_pass.chosen_tokens();
        let loss = self.0.loss(of_pass, context.totals, measured);
        observe_tokens(&tokens, chosen_tokens, measured);
        Some(loss)
    }

    fn describe(&self, pair: &L::Pair) -> Value {
        let PreferenceExample { chosen_ids, rejected_ids, prompt_len, .. } = pair.borrow();
        let mut description =
            json!({ "chosen_ids": chosen_ids, "rejected_ids": rejected_ids, "prompt_len": prompt_len });
        if let Some((name, value)) = self.0.describe(pair) {
            description[name] = value;
        }
        description
    }
}

/// A method whose keys are its loss, and which needs no reference.
impl<M: Method + PairLoss<Pair = PreferenceExample> + Clone> OfflineMethod for M {
    type Example = PreferenceExample;
    type Objective = PreferenceObjective<M>;

    fn examples(
        &self,
        rows: &[Row],
        from: &Pretrained,
        options: TokenizeOptions,
    ) -> Result<Examples<PreferenceExample>> {
        examples(rows, from, &options)
    }

    fn rows(pair: &PreferenceExample) -> Rows<'_> {
        Rows::Pairs(vec![M::sequences(pair)])
    }

    fn objective(&self, _reference: Option<Reference>) -> PreferenceObjective<M> {
        PreferenceObjective(self.clone())
    }
}

/// Tokenizes pairs of completions.
///
/// # Errors
/// If no pair is left, or a row cannot be read.
pub(super) fn examples(
    rows: &[Row],
    from: &Pretrained,
    options: &TokenizeOptions,
) -> Result<Examples<PreferenceExample>> {
    data::preference_examples(rows, &from.tokenizer, from.template.as_ref(), options)
}

/// Returns the number of tokens of both sequences of a pair.
pub(super) fn tokens(pair: &PreferenceExample) -> usize {
    pair.chosen_ids.len() + pair.rejected_ids.len()
}

/// Returns the chosen and the rejected completion with their prompt.
pub(super) fn completions(pair: &PreferenceExample) -> [Sequence<'_>; 2] {
    [&pair.chosen_ids, &pair.rejected_ids].map(|ids| {
        let (prompt, completion) = ids.split_at(pair.prompt_len);
        Sequence::completion(prompt, completion)
    })
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

/// Records TRL's metrics of the tokens of a pass, of which the first `chosen_tokens` belong to chosen sequences: mean
/// logits, entropies, and whether a token is the likeliest one.
fn observe_tokens(tokens: &TokenLogprobs, chosen_tokens: usize, measured: &mut Readings<Stats>) {
    let tensors = [&tokens.mean_logits_m, &tokens.entropies_m, &tokens.correct_m];
    measured.later(tensors, move |[mean_logits, entropies, correct], stats| {
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
