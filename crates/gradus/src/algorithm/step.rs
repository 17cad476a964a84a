//! One optimizer step of the policy and the critic, shared by all online algorithms.
//!
//! An algorithm provides the parts of its loss ([`PolicyLoss`]) and the rollouts of a step ([`MiniBatch`]).
//! [`PolicyLoss::accumulate`] runs forward and backward passes, micro-batch by micro-batch, and leaves the gradients in
//! the learners. [`PolicyLoss::step`] also updates the weights. The result does not depend on the split into
//! micro-batches.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::actor::{self, Actor, Forward, concat, lengths};
use super::critic::Critic;
use super::{Advantages, CriticTargets, Experience, Update};
use crate::batches::MicroBatch;
use crate::host::{constant, read};
use crate::learner::Learner;
use crate::loss::kl::{KlCorrection, kl_term};
use crate::loss::policy_gradient::policy_gradient;
use crate::loss::reduce::spread;
use crate::loss::reduce::weighted_sum;
use crate::loss::surrogate::{Clip, Level, Statistics, clipped_surrogate};
use crate::loss::vespo::{self, Gamma};
use crate::loss::{cispo, sapo, value};
use crate::math::importance::off_policy_mask;
use crate::math::weights::{micro_mean_weights, part_weights, per_token};
use crate::math::{Reduction, high_entropy_mask, token_weights};
use crate::model::DropoutStream;
use crate::ranks::Lanes;
use crate::readings::Readings;

/// Parts of a policy's loss.
#[derive(Debug, Clone)]
pub struct PolicyLoss {
    /// Temperature of the logprobs, equal to the sampler's.
    pub temperature: f32,
    /// Function of ratios and advantages.
    pub surrogate: Surrogate,
    /// Weight of the surrogate in the loss.
    pub coefficient: f64,
    /// Unit of the importance ratio: a token or a sequence.
    pub level: Level,
    /// Divisor of the sum of the token losses.
    pub denominator: Denominator,
    /// Weight and form of a KL term in the loss. It needs the reference's logprobs.
    pub kl: Option<(f64, KlCorrection)>,
    /// Weight of the entropy bonus, a mean over the mini-batch's tokens that carry it.
    pub entropy_coefficient: f64,
    /// Loss of the critic, if one is trained.
    pub value: Option<ValueLoss>,
    /// Threshold in nats per token. A sequence whose sampler is further from the policy carries loss only at tokens
    /// with an advantage of at least 0.
    pub off_policy_threshold: Option<f64>,
    /// Share of the mini-batch's tokens that carry the policy loss and the entropy bonus, those with the highest entropies;
    /// `None` for all tokens. The other tokens count in the denominator, and carry a KL term.
    pub top_entropy_quantile: Option<f64>,
    /// Whether the gradients of actor and critic are clipped by their joint norm instead of separately.
    pub clips_jointly: bool,
}

/// The policy loss as a function of ratios and advantages.
#[derive(Debug, Clone, PartialEq)]
pub enum Surrogate {
    /// Advantage times the clipped ratio to the sampling policy.
    Clipped(Clip),
    /// CISPO: advantage times logprob times the ratio without gradient, capped at this value.
    Cispo(f64),
    /// SAPO: advantage times a smooth gate of the ratio. Temperatures for positive and for other advantages.
    Sapo(f64, f64),
    /// VESPO: advantage times logprob times a weight of the whole sequence's ratio.
    Vespo(Gamma),
    /// Advantage times logprob.
    PolicyGradient,
    /// A loss that a program defines.
    Custom(TokenLoss),
}

/// A loss per token that a program defines, for [`Surrogate::Custom`].
///
/// ```
/// use gradus::algorithm::step::{LossInputs, Surrogate, TokenLoss};
///
/// // Advantage times ratio, without a clip.
/// let surrogate = Surrogate::Custom(TokenLoss::new(|LossInputs { log_ratios_m, advantages_m, .. }| {
///     -(log_ratios_m.exp() * advantages_m)
/// }));
/// ```
#[derive(Clone)]
pub struct TokenLoss(Arc<dyn Fn(LossInputs) -> Tensor<1> + Send + Sync>);

impl TokenLoss {
    /// Wraps a function that returns the loss of each token, `[M]`.
    pub fn new(loss: impl Fn(LossInputs) -> Tensor<1> + Send + Sync + 'static) -> Self {
        Self(Arc::new(loss))
    }
}

impl fmt::Debug for TokenLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenLoss")
    }
}

impl PartialEq for TokenLoss {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Inputs of a [`TokenLoss`] for the `M` counted tokens of a pass, `[M]` each.
#[derive(Debug, Clone)]
pub struct LossInputs {
    /// Logprobs under the policy, with gradient.
    pub logprobs_m: Tensor<1>,
    /// Log-ratios to the sampling policy, per token or per sequence ([`PolicyLoss::level`]), with gradient.
    pub log_ratios_m: Tensor<1>,
    /// Advantages, without gradient.
    pub advantages_m: Tensor<1>,
}

impl Surrogate {
    /// Returns the bounds of the ratio: 0 and infinity for surrogates without a clip.
    fn clip(&self) -> Clip {
        match self {
            Self::Clipped(clip) => *clip,
            Self::Cispo(cap) => Clip { low: 1.0, high: cap - 1.0, delta: None },
            Self::Sapo(..) | Self::Vespo(_) | Self::PolicyGradient | Self::Custom(_) => {
                Clip { low: 1.0, high: f64::INFINITY, delta: None }
            }
        }
    }
}

/// The tokens of one pass.
struct Tokens<'a> {
    logprobs_m: Tensor<1>,
    /// Per token or per sequence, depending on the level of the loss.
    log_ratios_m: Tensor<1>,
    /// Logprobs of the policy and the old ones on the host, for losses that compute with them there.
    on_host: Option<[&'a [f32]; 2]>,
    /// Times the ratios of trainer and sampler, unless the loss uses these directly.
    advantages: &'a [f32],
    counts_b: &'a [usize],
    /// Ratios of trainer and sampler, for losses that use them directly.
    ratios: Option<&'a [f32]>,
}

impl Tokens<'_> {
    /// Returns one loss per token, and the weight of each sequence if the surrogate has one.
    fn losses(&self, surrogate: &Surrogate) -> (Tensor<1>, Vec<f32>) {
        let device = self.logprobs_m.device();
        let (logprobs_m, log_ratios_m) = (|| self.logprobs_m.clone(), || self.log_ratios_m.clone());
        let advantages_m = constant(self.advantages.to_vec(), &device);
        let losses_m = match surrogate {
            Surrogate::Clipped(clip) => clipped_surrogate(log_ratios_m(), advantages_m, clip),
            Surrogate::Cispo(cap) => cispo::cispo(logprobs_m(), log_ratios_m(), advantages_m, *cap),
            Surrogate::Sapo(positive, negative) => sapo::sapo(log_ratios_m(), advantages_m, *positive, *negative),
            Surrogate::Vespo(gamma) => {
                let [new, old] = self.on_host.expect("VESPO's weights are computed on the host");
                let log_ratios: Vec<f32> = new.iter().zip(old).map(|(new, old)| new - old).collect();
                let weights_b = gamma.weights(&log_ratios, self.ratios, self.advantages, self.counts_b);
                let weights_m = spread(constant(weights_b.clone(), &device), self.counts_b);
                return (vespo::vespo(logprobs_m(), advantages_m, weights_m), weights_b);
            }
            Surrogate::PolicyGradient => policy_gradient(logprobs_m(), advantages_m),
            Surrogate::Custom(TokenLoss(loss)) => {
                loss(LossInputs { logprobs_m: logprobs_m(), log_ratios_m: log_ratios_m(), advantages_m })
            }
        };
        (losses_m, Vec::new())
    }
}

/// The critic's part of the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueLoss {
    /// Weight of the loss.
    pub coefficient: f64,
    /// Limit on how far a value may move; `None` for the plain squared error.
    pub clip: Option<ValueClip>,
}

/// Limit on how far a value may move from its old value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueClip {
    /// Maximum distance from the old value.
    pub range: f64,
    /// Whether the larger of the clipped and the unclipped error counts, instead of always the clipped one.
    pub larger: bool,
}

impl ValueLoss {
    /// Returns the unweighted error of each value.
    fn of_tokens(&self, values_m: Tensor<1>, advantages: &Advantages, part: &[usize]) -> Tensor<1> {
        let device = values_m.device();
        let returns_m = constant(advantages.gather_critic(part, |critic| &critic.returns_t), &device);
        let old_values_m = || constant(advantages.gather_critic(part, |critic| &critic.values_t), &device);
        match self.clip {
            None => value::plain(values_m, returns_m),
            Some(ValueClip { range, larger: true }) => value::clipped(values_m, old_values_m(), returns_m, range),
            Some(ValueClip { range, larger: false }) => {
                value::plain(value::near(values_m, old_values_m(), range), returns_m)
            }
        }
    }
}

/// The critic's values for the tokens of one pass, and their loss.
struct Value {
    loss: ValueLoss,
    values_m: Tensor<1>,
    /// Contribution of the pass to the step's loss, `[1]`, unweighted.
    reduced: Tensor<1>,
}

impl Value {
    /// Records the loss, which must be finite, and the number of clipped values, and returns the weighted loss for the
    /// backward pass.
    fn record(self, advantages: &Advantages, part: &[usize], readings: &mut Readings<LaneTotals>) -> Tensor<1> {
        let compared = self.loss.clip.map(|ValueClip { range, .. }| {
            let gathered = |of: fn(&CriticTargets) -> &Vec<f32>| advantages.gather_critic(part, of);
            (gathered(|critic| &critic.values_t), gathered(|critic| &critic.returns_t), range)
        });
        readings.later([&self.reduced, &self.values_m], move |[reduced, values], lane| {
            lane.losses.value += lane.finite("value loss", reduced[0]);
            if let Some((old_values, returns, range)) = compared {
                lane.pass_stats.value_clipped +=
                    value::clip_fraction(&values, &old_values, &returns, range) * values.len() as f64;
            }
        });
        self.reduced * self.loss.coefficient
    }
}

/// Reduction of the token losses of a mini-batch to one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Denominator {
    /// Sum divided by the number of tokens (PPO).
    Tokens,
    /// Sum weighted by the reduction (GRPO and most of its variants).
    Weights(Reduction),
    /// Reduced within each micro-batch, then averaged over micro-batches (BNPO).
    MicroBatches(Reduction),
    /// Means over parts of `size` sequences, added up or averaged ([`part_weights`]).
    Parts {
        /// Sequences per part.
        size: usize,
        /// Whether parts are added up instead of averaged.
        summed: bool,
        /// Whether each part is weighted by its mean length over that of all scored sequences of the iteration.
        by_length: bool,
    },
}

impl Denominator {
    /// Returns the passes of each lane, as ranges of the chosen rollouts. Micro-batches that are averaged also have skipped
    /// rollouts. The range of such a pass has only the chosen ones among its rollouts, and may be empty.
    fn passes(self, batch: MiniBatch<'_>, passes: MicroBatch) -> Vec<Vec<(usize, Range<usize>)>> {
        let MiniBatch { experience, chosen, skipped, .. } = batch;
        if skipped.is_empty() || !matches!(self, Self::MicroBatches(_)) {
            return passes.in_lanes(&lengths(experience, chosen));
        }
        let mut all = [chosen, skipped].concat();
        all.sort_unstable();
        let chosen_before = |end: usize| all[..end].iter().filter(|&i| chosen.binary_search(i).is_ok()).count();
        let of_chosen = |(number, pass): (usize, Range<usize>)| {
            let range = chosen_before(pass.start)..chosen_before(pass.end);
            (number, range)
        };
        let of_lanes = passes.in_lanes(&lengths(experience, &all));
        of_lanes.into_iter().map(|of_lane| of_lane.into_iter().map(&of_chosen).collect()).collect()
    }
}

/// The rollouts of one step.
#[derive(Debug, Clone, Copy)]
pub struct MiniBatch<'a> {
    /// The scored rollouts that `chosen` selects from.
    pub experience: &'a Experience,
    /// Advantages of their tokens.
    pub advantages: &'a Advantages,
    /// Indices of the rollouts, in the order of the passes.
    pub chosen: &'a [usize],
    /// Indices of further rollouts without loss. They skip the model, but count as sequences, and
    /// [`Denominator::MicroBatches`] counts the micro-batches that they would be in. If there are any, both lists are in
    /// increasing order.
    pub skipped: &'a [usize],
    /// Source of the dropout masks, for models that use dropout in training. The masks depend on how the mini-batch is
    /// split into passes.
    pub dropout: Option<DropoutStream>,
    /// Denominator of the ratios.
    pub old: OldLogprobs<'a>,
}

/// Logprobs in the denominator of the importance ratios of a step.
#[derive(Debug, Clone, Copy)]
pub enum OldLogprobs<'a> {
    /// Logprobs of the sampling policy, which uses no dropout.
    Sampled,
    /// Logprobs of the step's own pass, without gradient: every ratio is 1. For an iteration with one step and dropout.
    Own,
    /// These logprobs, one list per rollout.
    Given(&'a [Vec<f32>]),
}

impl OldLogprobs<'_> {
    /// Returns the old logprobs of `part`; `None` if they are those of its own pass.
    fn of(self, experience: &Experience, part: &[usize]) -> Option<Vec<f32>> {
        match self {
            Self::Sampled => Some(actor::old_logprobs(experience, part)),
            Self::Own => None,
            Self::Given(all) => Some(concat(all, part)),
        }
    }
}

/// The models that a step trains.
pub struct Learners<'a> {
    /// The policy.
    pub actor: &'a mut Learner<Actor>,
    /// The critic, if there is one.
    pub critic: Option<&'a mut Critic>,
}

/// Losses of one step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Losses {
    /// Surrogate and KL term.
    pub policy: f64,
    /// `policy` times its coefficient, minus the entropy bonus: the loss that the policy's gradient belongs to.
    pub total: f64,
    /// Unweighted loss of the critic; 0 without a critic.
    pub value: f64,
    /// Mean entropy of the tokens.
    pub entropy: f64,
}

/// Gradient norms of a step before clipping.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norms {
    /// Norm of the actor.
    pub actor: f64,
    /// Norm of a separate critic.
    pub critic: Option<f64>,
}

/// Statistics of passes over tokens. Several steps add up in one value.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PassStats {
    /// Number of tokens.
    pub tokens: usize,
    /// Statistics of the ratios, per token or per sequence.
    pub ratios: Statistics,
    /// Σ of the sequences' weights and their number; 0 for surrogates without weights.
    pub weights: (f64, usize),
    /// Σ entropy.
    pub entropy: f64,
    /// Σ of the unweighted KL term; `None` without one.
    pub kl: Option<f64>,
    /// Tokens whose value loss was clipped.
    pub value_clipped: f64,
    /// Tokens left out of the loss because their sampler was too far from the policy.
    pub off_policy: usize,
    /// Σ entropy of the tokens that carry the entropy bonus, and their number.
    pub with_bonus: (f64, usize),
}

/// Losses and statistics of the passes of a lane.
#[derive(Default)]
struct LaneTotals {
    losses: Losses,
    pass_stats: PassStats,
    /// The first loss that was not finite.
    problem: Option<String>,
}

impl LaneTotals {
    /// Returns `loss`, and remembers if it is not finite.
    fn finite(&mut self, name: &str, loss: f32) -> f64 {
        if !loss.is_finite() {
            self.problem.get_or_insert_with(|| format!("the {name} is {loss}"));
        }
        f64::from(loss)
    }
}

impl Losses {
    /// Adds the losses of the next lane.
    fn add(&mut self, other: &Self) {
        self.policy += other.policy;
        self.total += other.total;
        self.value += other.value;
        self.entropy += other.entropy;
    }
}

impl PassStats {
    /// Adds the statistics of the next lane.
    fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.ratios.add(&other.ratios);
        self.weights = (self.weights.0 + other.weights.0, self.weights.1 + other.weights.1);
        self.entropy += other.entropy;
        if let Some(kl) = other.kl {
            *self.kl.get_or_insert_default() += kl;
        }
        self.value_clipped += other.value_clipped;
        self.off_policy += other.off_policy;
        self.with_bonus = (self.with_bonus.0 + other.with_bonus.0, self.with_bonus.1 + other.with_bonus.1);
    }

    /// Returns the mean entropy of the tokens that carry the entropy bonus; 0 without such a token.
    pub(super) fn entropy_with_bonus(&self) -> f64 {
        let (sum, tokens) = self.with_bonus;
        sum / tokens.max(1) as f64
    }
}

impl PolicyLoss {
    /// Runs one optimizer step of all learners. An error leaves no gradient behind.
    ///
    /// # Errors
    /// Names the value that was not finite.
    pub fn step(
        &self,
        learners: &mut Learners<'_>,
        batch: MiniBatch<'_>,
        update: Update<'_>,
        pass_stats: &mut PassStats,
    ) -> Result<(Losses, Norms), String> {
        let (losses, norms) = self.step_if(learners, batch, update, pass_stats, |_| true)?;
        Ok((losses, norms.expect("it is always taken")))
    }

    /// [`step`](Self::step), unless `takes` rejects it. `takes` receives the mean k3 of the mini-batch before any
    /// weight changes. A rejected step leaves no gradient behind.
    ///
    /// # Errors
    /// Names the value that was not finite.
    pub fn step_if(
        &self,
        learners: &mut Learners<'_>,
        batch: MiniBatch<'_>,
        update: Update<'_>,
        pass_stats: &mut PassStats,
        takes: impl Fn(f64) -> bool,
    ) -> Result<(Losses, Option<Norms>), String> {
        let before = pass_stats.ratios;
        let stepped = self.accumulate(learners, batch, update.settings.passes, pass_stats).and_then(|losses| {
            let ratios = pass_stats.ratios.tokens - before.tokens;
            let taken = takes((pass_stats.ratios.k3_sum - before.k3_sum) / ratios.max(1) as f64);
            Ok((losses, if taken { Some(learners.step(update, self.clips_jointly)?) } else { None }))
        });
        if !matches!(stepped, Ok((_, Some(_)))) {
            learners.discard();
        }
        stepped
    }

    /// Adds the gradients of the mini-batch to those accumulated in the learners. No weight changes.
    ///
    /// # Errors
    /// If a loss is not finite.
    pub fn accumulate(
        &self,
        learners: &mut Learners<'_>,
        batch: MiniBatch<'_>,
        passes: MicroBatch,
        pass_stats: &mut PassStats,
    ) -> Result<Losses, String> {
        let MiniBatch { experience, chosen, .. } = batch;
        let counts_b: Vec<usize> = chosen.iter().map(|&i| experience.rollout(i).counted()).collect();
        let tokens: usize = counts_b.iter().sum();
        let (lanes, mut passes) = (passes.lanes, self.denominator.passes(batch, passes));
        let all: Vec<Range<usize>> = passes.iter().flatten().map(|(_, pass)| pass.clone()).collect();
        let reducer = Reducer::new(self.denominator, batch, &counts_b, &all);
        // A micro-batch of skipped rollouts counts, but has nothing to compute.
        passes.iter_mut().for_each(|of_lane| of_lane.retain(|(_, pass)| !pass.is_empty()));
        let mask = match self.top_entropy_quantile {
            Some(share) => Some(self.high_entropies(share, learners.actor, batch, lanes, &passes)?),
            None => None,
        };
        let with_bonus = mask.as_ref().map_or(tokens, |mask| mask.iter().filter(|kept| **kept != 0.0).count());
        let step =
            Step { loss: self, batch, counts_b: &counts_b, mask: mask.as_deref(), with_bonus, reducer: &reducer };
        let of_lane = |lane: usize| {
            let (mut readings, mut totals) = (Readings::default(), LaneTotals::default());
            for (i, (number, pass)) in passes[lane].iter().enumerate() {
                if i + 1 == passes[lane].len() {
                    learners.actor.begin_last_pass(lane, lanes);
                }
                step.pass(learners, *number, pass, &mut readings);
            }
            learners.end_lane(lane, self.value.is_some());
            // The only wait for the device before the norm of the gradient.
            readings.read(&[], &mut totals);
            totals.problem.map_or(Ok((totals.losses, totals.pass_stats)), Err::<_, String>)
        };
        let own = lanes.run_own(of_lane);
        learners.reduce(lanes, self.value.is_some(), own.is_ok());
        let mut losses = Losses::default();
        for (of_lane, found) in lanes.share("losses of rollouts", own)? {
            losses.add(&of_lane);
            pass_stats.add(&found);
        }
        losses.entropy /= tokens.max(1) as f64;
        Ok(losses)
    }

    /// Returns 1 for the tokens of the mini-batch with the highest entropies and 0 for the others, in the order of the chosen rollouts.
    /// The bound is a quantile over the whole mini-batch, so all entropies are computed before the first loss. The passes
    /// are those of the losses, with the same dropout masks.
    fn high_entropies(
        &self,
        share: f64,
        actor: &Learner<Actor>,
        batch: MiniBatch<'_>,
        lanes: Lanes,
        passes: &[Vec<(usize, Range<usize>)>],
    ) -> Result<Vec<f32>, String> {
        let MiniBatch { experience, chosen, dropout, .. } = batch;
        let policy = actor.frozen().policy;
        let of_pass = |(number, pass): &(usize, Range<usize>)| {
            let rows = actor::batch(&policy.trunk, experience, &chosen[pass.clone()]);
            let rows = rows.dropping(dropout.map(|stream| stream.part(2 * *number)));
            read(&policy.logprobs(&rows, self.temperature).entropies_m)
        };
        let of_lane = |lane: usize| Ok::<_, String>(passes[lane].iter().flat_map(&of_pass).collect::<Vec<f32>>());
        let entropies = lanes.run("entropies of rollouts", of_lane)?.concat();
        Ok(high_entropy_mask(&entropies, share))
    }
}

/// Data that the passes of a step share.
#[derive(Clone, Copy)]
struct Step<'a> {
    loss: &'a PolicyLoss,
    batch: MiniBatch<'a>,
    /// Counted tokens of each rollout.
    counts_b: &'a [usize],
    /// 1 for each counted token that carries the policy loss, otherwise 0; `None` if all carry it.
    mask: Option<&'a [f32]>,
    /// Number of tokens that carry the entropy bonus.
    with_bonus: usize,
    reducer: &'a Reducer,
}

impl Step<'_> {
    /// Returns the part of the mask for the tokens of a pass; `None` if all tokens carry the loss.
    fn mask_of(&self, pass: &Range<usize>) -> Option<Vec<f32>> {
        let before = |rollout: usize| self.counts_b[..rollout].iter().sum::<usize>();
        self.mask.map(|mask| mask[before(pass.start)..before(pass.end)].to_vec())
    }

    /// Runs one forward and one backward pass over adjacent rollouts of the step; `number` counts passes from 0.
    fn pass(
        &self,
        learners: &mut Learners<'_>,
        number: usize,
        pass: &Range<usize>,
        readings: &mut Readings<LaneTotals>,
    ) {
        let Self { loss, reducer, .. } = *self;
        let MiniBatch { experience, advantages, chosen, dropout, old, .. } = self.batch;
        let (part, counts_b) = (&chosen[pass.clone()], &self.counts_b[pass.clone()]);
        // 1. Forward.
        let rows = actor::batch(&learners.actor.module().policy.trunk, experience, part);
        let masks = |learner: usize| dropout.map(|stream| stream.part(2 * number + learner));
        let forward = learners.actor.module().forward(&rows.clone().dropping(masks(0)), loss.temperature);
        let Forward { logprobs: found, values_m } = forward;
        let device = found.logprobs_m.device();

        // 2. The loss of each token, and the contribution to the loss of the step.
        let needs_host = loss.off_policy_threshold.is_some() || matches!(loss.surrogate, Surrogate::Vespo(_));
        let new = needs_host.then(|| read(&found.logprobs_m));
        let old = old.of(experience, part).or_else(|| new.clone());
        let old_m = match &old {
            Some(old) => constant(old.clone(), &device),
            None => found.logprobs_m.clone().detach(),
        };
        let advantages_m = advantages.gather(part);
        // VESPO applies the ratios in its weights.
        let weighted_m = match loss.surrogate {
            Surrogate::Vespo(_) => advantages_m.clone(),
            _ => experience.weighted(advantages, part),
        };
        let ratios = experience.ratios(part);
        let own = Tokens {
            logprobs_m: found.logprobs_m.clone(),
            log_ratios_m: loss.level.log_ratios(found.logprobs_m.clone(), old_m, counts_b),
            on_host: new.as_deref().zip(old.as_deref()).map(|(new, old)| [new, old]),
            advantages: &weighted_m,
            counts_b,
            ratios: ratios.as_deref(),
        };
        let (mut losses_m, weights_b) = own.losses(&loss.surrogate);
        let mut left_out = 0;
        if let (Some(threshold), Some([new, old])) = (loss.off_policy_threshold, own.on_host) {
            let sampler = experience.gather(part, |scored| Some(&scored.off_policy.as_ref()?.sampler_t));
            let sampler = sampler.unwrap_or_else(|| old.to_vec());
            let mask = off_policy_masks(&sampler, new, &advantages_m, counts_b, threshold);
            left_out = mask.iter().filter(|kept| **kept == 0.0).count();
            losses_m = losses_m * constant(mask, &device);
        }
        let mask = self.mask_of(pass);
        let mask_m = mask.as_ref().map(|mask| constant(mask.clone(), &device));
        if let Some(mask_m) = &mask_m {
            losses_m = losses_m * mask_m.clone();
        }
        let mut policy = reducer.reduce(losses_m, pass, counts_b);
        let mut kl_m = None;
        let reference = loss.kl.and_then(|_| experience.gather(part, |scored| scored.reference_t.as_ref()));
        if let (Some((coefficient, correction)), Some(reference)) = (loss.kl, reference) {
            let reference_m = constant(reference, &device);
            let term_m = kl_term(found.logprobs_m.clone(), reference_m, own.log_ratios_m.clone(), correction);
            policy = policy + reducer.reduce(term_m.clone(), pass, counts_b) * coefficient;
            kl_m = Some(term_m);
        }
        let mut total = policy.clone() * loss.coefficient;
        if loss.entropy_coefficient != 0.0 {
            let entropies_m = match mask_m {
                Some(mask_m) => found.entropies_m.clone() * mask_m,
                None => found.entropies_m.clone(),
            };
            let weight = loss.entropy_coefficient / self.with_bonus.max(1) as f64;
            total = total - crate::loss::reduce::sum(entropies_m) * weight;
        }
        let value_of = |loss: ValueLoss, values_m: Tensor<1>| {
            let losses_m = loss.of_tokens(values_m.clone(), advantages, part);
            Value { loss, values_m, reduced: reducer.reduce(losses_m, pass, counts_b) }
        };
        let shared = loss.value.zip(values_m).map(|(loss, values_m)| value_of(loss, values_m));

        // 3. What is logged, which is read after the backward passes of the lane.
        let (level, clip, counts) = (loss.level, loss.surrogate.clip(), counts_b.to_vec());
        let weights = (sum(&weights_b), weights_b.len());
        let old_of_pass = old.clone();
        let tensors = [&policy, &total, &found.logprobs_m, &found.entropies_m];
        readings.later(tensors, move |[policy, total, logprobs, entropies], lane| {
            lane.losses.policy += f64::from(policy[0]);
            lane.losses.total += lane.finite("policy loss", total[0]);
            let old = old_of_pass.as_ref().unwrap_or(&logprobs);
            let pass_stats = &mut lane.pass_stats;
            // Without the ratios of trainer and sampler: the sign of an advantage still counts where its ratio is 0.
            pass_stats.ratios.add(&Statistics::at(level, &logprobs, old, &advantages_m, &counts, &clip));
            pass_stats.tokens += logprobs.len();
            pass_stats.weights = (pass_stats.weights.0 + weights.0, pass_stats.weights.1 + weights.1);
            pass_stats.off_policy += left_out;
            let entropy = sum(&entropies);
            lane.losses.entropy += entropy;
            pass_stats.entropy += entropy;
            let with_bonus = match &mask {
                None => (entropy, entropies.len()),
                Some(mask) => {
                    let kept = entropies.iter().zip(mask).filter(|(_, kept)| **kept != 0.0);
                    let kept: Vec<f32> = kept.map(|(entropy, _)| *entropy).collect();
                    (sum(&kept), kept.len())
                }
            };
            pass_stats.with_bonus = (pass_stats.with_bonus.0 + with_bonus.0, pass_stats.with_bonus.1 + with_bonus.1);
        });
        if let Some(kl_m) = &kl_m {
            readings.later([kl_m], |[kl], lane| *lane.pass_stats.kl.get_or_insert_default() += sum(&kl));
        }
        if let Some(value) = shared {
            total = total + value.record(advantages, part, readings);
        }

        // 4. Backward.
        drop((policy, kl_m, own, found));
        learners.actor.accumulate(&total);

        // 5. A separate critic. The policy's graph has been freed, so only one graph is in memory at a time.
        if let (Some(loss), Some(Critic::Separate(critic))) = (loss.value, &mut learners.critic) {
            let value = value_of(loss, critic.values(&rows.dropping(masks(1))));
            critic.learner.accumulate(&value.record(advantages, part, readings));
        }
    }
}

impl Learners<'_> {
    /// Ends a lane.
    fn end_lane(&mut self, lane: usize, critic_learns: bool) {
        self.actor.end_lane(lane);
        if let Some(Critic::Separate(critic)) = self.critic.as_mut().filter(|_| critic_learns) {
            critic.learner.end_lane(lane);
        }
    }

    /// Sums gradients over all ranks, after all lanes have ended or one has failed.
    fn reduce(&mut self, lanes: Lanes, critic_learns: bool, is_ok: bool) {
        self.actor.reduce(lanes, is_ok);
        if let Some(Critic::Separate(critic)) = self.critic.as_mut().filter(|_| critic_learns) {
            critic.learner.reduce(lanes, is_ok);
        }
    }

    /// Updates the weights.
    fn step(&mut self, update: Update<'_>, clips_jointly: bool) -> Result<Norms, String> {
        let (settings, multiplier) = (update.settings, update.multiplier);
        let max_norm = settings.max_grad_norm;
        let (of_actor, of_critic) = match &self.critic {
            Some(Critic::Separate(critic)) if clips_jointly => {
                (self.actor.gradient_norm(), critic.learner.gradient_norm())
            }
            _ => (0.0, 0.0),
        };
        // Both learners are checked before either changes, so an error leaves the weights of the previous step.
        let actor = self.actor.ready_with_joint_norm(max_norm, of_critic)?;
        let critic = match &mut self.critic {
            Some(Critic::Separate(critic)) => {
                let rate = critic.learning_rate * multiplier;
                Some((critic.learner.ready_with_joint_norm(max_norm, of_actor)?, rate))
            }
            _ => None,
        };
        Ok(Norms {
            actor: actor.take(settings.learning_rate * multiplier),
            critic: critic.map(|(step, rate)| step.take(rate)),
        })
    }

    fn discard(&mut self) {
        self.actor.discard();
        if let Some(Critic::Separate(critic)) = &mut self.critic {
            critic.learner.discard();
        }
    }
}

/// Returns the mask of the tokens that carry loss, sequence by sequence ([`off_policy_mask`]).
fn off_policy_masks(
    sampler: &[f32],
    policy: &[f32],
    advantages: &[f32],
    counts_b: &[usize],
    threshold: f64,
) -> Vec<f32> {
    let mut start = 0;
    let of_sequence = |&count: &usize| {
        let at = start..start + count;
        start += count;
        off_policy_mask(&sampler[at.clone()], &policy[at.clone()], &advantages[at], threshold)
    };
    counts_b.iter().flat_map(of_sequence).collect()
}

/// A [`Denominator`] over the sequences of one step.
enum Reducer {
    /// Divisor of every sum.
    Divide(usize),
    /// Weight of each sequence's tokens.
    Weigh(Vec<f32>),
}

impl Reducer {
    fn new(denominator: Denominator, batch: MiniBatch<'_>, counts_b: &[usize], passes: &[Range<usize>]) -> Self {
        match denominator {
            Denominator::Tokens => Self::Divide(counts_b.iter().sum()),
            Denominator::Weights(reduction) => {
                Self::Weigh(token_weights(&[counts_b, &vec![0; batch.skipped.len()]].concat(), reduction))
            }
            Denominator::MicroBatches(reduction) => Self::Weigh(micro_mean_weights(counts_b, passes, reduction)),
            Denominator::Parts { size, summed, by_length } => {
                let mean_length = by_length.then(|| batch.experience.mean_length());
                Self::Weigh(part_weights(counts_b, size, summed, mean_length))
            }
        }
    }

    /// Returns the contribution of one pass's tokens to the step's loss, `[1]`.
    fn reduce(&self, values_m: Tensor<1>, pass: &Range<usize>, counts_b: &[usize]) -> Tensor<1> {
        match self {
            Self::Divide(tokens) => crate::loss::reduce::sum(values_m) / *tokens as f64,
            Self::Weigh(weights_b) => {
                let weights_m = constant(per_token(&weights_b[pass.clone()], counts_b), &values_m.device());
                weighted_sum(values_m, weights_m)
            }
        }
    }
}

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum()
}
