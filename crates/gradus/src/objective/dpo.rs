//! Direct preference optimization: its objective, and the sources of the reference's logprobs.

use std::borrow::Borrow;

use burn::tensor::Tensor;
use serde_json::{Map, Value, json};

pub use super::preference::preferred;
use super::preference::{self, DEFAULTS, PairLoss, PairPass, PreferenceObjective, observe};
use super::{OfflineMethod, Totals};
use crate::batches::MicroBatch;
use crate::data::{Examples, Need, PreferenceExample, Row, TokenizeOptions};
use crate::error::Result;
use crate::host::read;
use crate::math::weights::on_policy;
use crate::method::{Cast, Defaults, Head, Lifetime, Method, Problems, Shared};
use crate::model::{CausalLm, Reference, Rows};
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
        DEFAULTS
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

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        rules::check(problems, self);
        rules::check_noise(problems, self, train);
    }

    fn adds_noise(&self) -> bool {
        true
    }

    fn reference_may_follow(&self) -> bool {
        self.is_live()
    }
}

impl OfflineMethod for DpoConfig {
    type Example = PreferenceExample;
    type Objective = PreferenceObjective<DpoLoss>;

    fn examples(
        &self,
        rows: &[Row],
        from: &Pretrained,
        options: TokenizeOptions,
    ) -> Result<Examples<PreferenceExample>> {
        preference::examples(rows, from, &options)
    }

    fn rows(pair: &PreferenceExample) -> Rows<'_> {
        Rows::Pairs(vec![preference::completions(pair)])
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

    fn objective(&self, reference: Option<Reference>) -> Self::Objective {
        PreferenceObjective(DpoLoss { config: self.clone(), reference: reference.filter(|_| self.is_live()) })
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

impl Borrow<PreferenceExample> for DpoPair {
    fn borrow(&self) -> &PreferenceExample {
        &self.pair
    }
}

/// The loss of DPO.
#[derive(Debug)]
pub struct DpoLoss {
    config: DpoConfig,
    /// Present only for live logprobs.
    reference: Option<Reference>,
}

impl DpoLoss {
    /// Returns the summed logprobs of both completions of each pair under the reference.
    fn reference_of(&self, examples: &[&DpoPair], pairs: &[&PreferenceExample]) -> Vec<[f32; 2]> {
        if let Some(known) = examples.iter().map(|example| example.reference).collect() {
            return known;
        }
        let reference = self.reference.as_ref().expect("it was asked before training, unless it is kept");
        sums_of_pairs(&reference.model(), pairs, self.config.ld_alpha)
    }
}

/// Computes the summed logprobs of both completions of each pair, without gradient.
fn sums_of_pairs(model: &CausalLm, pairs: &[&PreferenceExample], ld_alpha: Option<f64>) -> Vec<[f32; 2]> {
    let batch = model.batch(&Rows::Pairs(pairs.iter().map(|pair| preference::completions(pair)).collect()));
    let found = model.logprobs(&batch, 1.0);
    let sums_b = read(&sums(found.logprobs_m, batch.counts_b(), ld_alpha));
    (0..pairs.len()).map(|p| [sums_b[p], sums_b[pairs.len() + p]]).collect()
}

/// Converts `[P]` pairs of values to `[2P]`: the chosen ones, then the rejected ones.
fn flatten_sides(sides_p: &[[f32; 2]]) -> Vec<f32> {
    sides_p.iter().map(|sides| sides[0]).chain(sides_p.iter().map(|sides| sides[1])).collect()
}

/// Returns the factors of the losses of each pair (WPO).
fn pair_weights(pass: &PairPass<'_, DpoPair>) -> Vec<f32> {
    let PairPass { model, batch, tokens, hidden_nd, .. } = pass;
    let hidden_nd = hidden_nd.as_ref().expect("a weighted loss reads the hidden states");
    // log Σ p² = logsumexp(2z) − 2·logsumexp(z), and half the temperature doubles the logits.
    let doubled_m = read(&model.token_logprobs(hidden_nd.clone().detach(), batch.targets(), 0.5).log_partitions_m);
    let (logprobs_m, partitions_m) = (read(&tokens.logprobs_m), read(&tokens.log_partitions_m));
    let aligned = |((logprob, partition), doubled): ((&f32, &f32), &f32)| logprob - (doubled - 2.0 * partition);
    let aligned_m: Vec<f32> = logprobs_m.iter().zip(&partitions_m).zip(&doubled_m).map(aligned).collect();
    on_policy(&aligned_m, batch.counts_b())
}

impl PairLoss for DpoLoss {
    type Pair = DpoPair;

    /// Policy and reference must be compared without masks.
    const DROPS_OUT: bool = false;

    fn reads_hidden(&self) -> bool {
        self.config.use_weighting
    }

    /// For losses that sort: runs a pass without gradient to find the order of the pairs of the step.
    fn with_batch_context(
        &self,
        model: &CausalLm,
        examples: &[&DpoPair],
        passes: MicroBatch,
        _progress: &dyn Progress,
    ) -> Result<Option<Vec<DpoPair>>> {
        let lengths: Vec<usize> = examples.iter().map(|example| preference::tokens(&example.pair)).collect();
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

    fn reference(&self, examples: &[&DpoPair]) -> Vec<f32> {
        let pairs: Vec<&PreferenceExample> = examples.iter().map(|example| &example.pair).collect();
        flatten_sides(&self.reference_of(examples, &pairs))
    }

    fn loss(&self, pass: PairPass<'_, DpoPair>, totals: Totals, measured: &mut Readings<Stats>) -> Tensor<1> {
        let weights_p = self.config.use_weighting.then(|| pair_weights(&pass));
        let completions = Completions {
            logprobs_m: pass.tokens.logprobs_m.clone(),
            counts_b: pass.batch.counts_b(),
            reference_b: pass.reference_b,
            partners_p: pass.pairs.iter().map(|example| example.partners).collect(),
            weights_p,
        };
        let PassLoss { loss, sums_b, log_ratios_b } = completions.loss(&self.config, totals);
        let beta = self.config.beta;
        measured.later([&log_ratios_b, &sums_b], move |[ratios, sums], stats| observe(&ratios, &sums, beta, stats));
        loss
    }

    fn describe(&self, example: &DpoPair) -> Option<(&'static str, Value)> {
        Some(("reference_logps", json!(example.reference)))
    }
}
