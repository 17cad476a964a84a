//! One step of the policy, and of the critic beside it: what all online algorithms share.
//!
//! An algorithm plugs in the parts of its loss ([`PolicyLoss`]) and says which rollouts make a step ([`MiniBatch`]).
//! [`PolicyLoss::accumulate`] goes forward and back, micro-batch by micro-batch, and leaves the gradients with their
//! learners; [`PolicyLoss::step`] then moves the weights. The result does not depend on how passes split a mini-batch.

use std::ops::Range;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::actor::{self, Actor, Forward, concat, gather, lengths};
use super::critic::Critic;
use super::{Advantages, Experience, Update};
use crate::batches::MicroBatch;
use crate::host::{constant, read, read_all};
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
use crate::math::{Reduction, token_weights};
use crate::model::DropoutStream;
use crate::ranks::Lanes;
use crate::rollout::Rollouts;

/// The parts of a policy's loss.
#[derive(Debug, Clone)]
pub struct PolicyLoss {
    /// Temperature of the logprobs: that of the sampler.
    pub temperature: f32,
    /// What is made of advantages.
    pub surrogate: Surrogate,
    /// The weight of the surrogate in the loss.
    pub coefficient: f64,
    /// The unit that has an importance ratio: a token or a sequence.
    pub level: Level,
    /// What the sum of the tokens' losses is divided by.
    pub denominator: Denominator,
    /// The weight of a KL term in the loss, and its form; it needs the reference's logprobs.
    pub kl: Option<(f64, KlCorrection)>,
    /// Weight of the entropy bonus, a mean over the mini-batch's tokens.
    pub entropy_coefficient: f64,
    /// The critic's loss, where one learns too.
    pub value: Option<ValueLoss>,
    /// Sequences whose sampler is more nats a token away from the policy than this teach only where their advantage is at least 0.
    pub off_policy_threshold: Option<f64>,
    /// Whether the gradients of actor and critic are clipped by their norm together, or each by its own.
    pub clips_jointly: bool,
}

/// What a policy's loss makes of advantages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Surrogate {
    /// Those times the clipped ratio to the policy that sampled.
    Clipped(Clip),
    /// CISPO: those times the logprob, times the ratio without gradient, capped at this.
    Cispo(f64),
    /// SAPO: those times a smooth gate of the ratio; the temperatures where they are positive and where not.
    Sapo(f64, f64),
    /// VESPO: those times the logprob, times a weight of the sequence's whole ratio.
    Vespo(Gamma),
    /// Those times the logprob.
    PolicyGradient,
}

impl Surrogate {
    /// The bounds of the ratio, which never ends where there are none.
    fn clip(&self) -> Clip {
        match *self {
            Self::Clipped(clip) => clip,
            Self::Cispo(cap) => Clip { low: 1.0, high: cap - 1.0, delta: None },
            Self::Sapo(..) | Self::Vespo(_) | Self::PolicyGradient => {
                Clip { low: 1.0, high: f64::INFINITY, delta: None }
            }
        }
    }
}

/// The tokens of one pass.
struct Tokens<'a> {
    logprobs_m: Tensor<1>,
    /// At the level of the loss.
    log_ratios_m: Tensor<1>,
    old: &'a [f32],
    advantages: &'a [f32],
    counts_b: &'a [usize],
    /// The ratios of trainer and sampler, where the loss uses them itself.
    ratios: Option<&'a [f32]>,
}

impl Tokens<'_> {
    /// One value a token, and what each sequence was weighted with where it was.
    fn losses(&self, surrogate: &Surrogate) -> (Tensor<1>, Vec<f32>) {
        let device = self.logprobs_m.device();
        let (logprobs_m, log_ratios_m) = (|| self.logprobs_m.clone(), || self.log_ratios_m.clone());
        let advantages_m = constant(self.advantages.to_vec(), &device);
        let losses_m = match surrogate {
            Surrogate::Clipped(clip) => clipped_surrogate(log_ratios_m(), advantages_m, clip),
            Surrogate::Cispo(cap) => cispo::cispo(logprobs_m(), log_ratios_m(), advantages_m, *cap),
            Surrogate::Sapo(positive, negative) => sapo::sapo(log_ratios_m(), advantages_m, *positive, *negative),
            Surrogate::Vespo(gamma) => {
                let logprobs = read(&self.logprobs_m);
                let log_ratios: Vec<f32> = logprobs.iter().zip(self.old).map(|(new, old)| new - old).collect();
                let weights_b = gamma.weights(&log_ratios, self.ratios, self.advantages, self.counts_b);
                let weights_m = spread(constant(weights_b.clone(), &device), self.counts_b);
                return (vespo::vespo(logprobs_m(), advantages_m, weights_m), weights_b);
            }
            Surrogate::PolicyGradient => policy_gradient(logprobs_m(), advantages_m),
        };
        (losses_m, Vec::new())
    }
}

/// The critic's part of the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueLoss {
    /// Its weight.
    pub coefficient: f64,
    /// How far a value may move from what it was; `None` for the plain squared error.
    pub clip: Option<ValueClip>,
}

/// How far a value may move from what it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueClip {
    /// So far.
    pub range: f64,
    /// Whether the larger of the clipped and the unclipped error counts, or always the clipped one.
    pub larger: bool,
}

impl ValueLoss {
    /// The error of each value, not yet weighted.
    fn of_tokens(&self, values_m: Tensor<1>, advantages: &Advantages, part: &[usize]) -> Tensor<1> {
        let device = values_m.device();
        let returns_m = gather(&advantages.returns, part, &device);
        let old_values_m = || gather(&advantages.values, part, &device);
        match self.clip {
            None => value::plain(values_m, returns_m),
            Some(ValueClip { range, larger: true }) => value::clipped(values_m, old_values_m(), returns_m, range),
            Some(ValueClip { range, larger: false }) => {
                value::plain(value::near(values_m, old_values_m(), range), returns_m)
            }
        }
    }
}

/// What a critic says of the tokens of one pass, and how far off it is.
struct Value {
    loss: ValueLoss,
    values_m: Tensor<1>,
    /// The pass' part of the step's loss, `[1]`, not yet weighted.
    reduced: Tensor<1>,
}

impl Value {
    /// What [`look`](Self::look) wants to read.
    fn wanted(&self) -> [&Tensor<1>; 2] {
        [&self.reduced, &self.values_m]
    }

    /// Notes the loss, which must be finite, and how many values were clipped.
    fn look(
        &self,
        [reduced, values]: [Vec<f32>; 2],
        advantages: &Advantages,
        part: &[usize],
        losses: &mut Losses,
        seen: &mut Seen,
    ) -> Result<(), String> {
        losses.value += finite("value loss", reduced[0])?;
        if let Some(ValueClip { range, .. }) = self.loss.clip {
            let (old_values, returns) = (concat(&advantages.values, part), concat(&advantages.returns, part));
            seen.value_clipped += value::clip_fraction(&values, &old_values, &returns, range) * values.len() as f64;
        }
        Ok(())
    }

    /// What the gradient is of.
    fn weighted(self) -> Tensor<1> {
        self.reduced * self.loss.coefficient
    }
}

/// How the losses of a mini-batch's tokens become one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Denominator {
    /// Their sum is divided by the tokens (PPO).
    Tokens,
    /// Each has the weight that the reduction gives it (GRPO and most relatives).
    Weights(Reduction),
    /// Reduced within each micro-batch, then averaged over micro-batches (BNPO).
    MicroBatches(Reduction),
    /// The means of parts of `size` sequences, added up or averaged; with the mean length of all sequences of the
    /// iteration each part weighs what it is long ([`part_weights`]).
    Parts {
        /// Sequences of a part.
        size: usize,
        /// Whether parts are added up.
        summed: bool,
        /// The mean length of all sequences.
        mean_length: Option<f64>,
    },
}

/// The rollouts of one step.
#[derive(Debug, Clone, Copy)]
pub struct MiniBatch<'a> {
    /// Where they come from.
    pub experience: &'a Experience,
    /// What their tokens are worth.
    pub advantages: &'a Advantages,
    /// Which they are, in the order of the passes.
    pub chosen: &'a [usize],
    /// Further rollouts that carry no loss: they are not passed through the model, but count among the sequences.
    pub silent: usize,
    /// What the masks of dropout are drawn from, for models that drop while they learn; they depend on how passes split the
    /// mini-batch.
    pub dropout: Option<DropoutStream>,
    /// What ratios are taken to.
    pub old: OldLogprobs<'a>,
}

/// The logprobs that the importance ratios of a step are taken to.
#[derive(Debug, Clone, Copy)]
pub enum OldLogprobs<'a> {
    /// Those of the policy that sampled, which drops nothing.
    Sampled,
    /// Those of the step's own pass, without gradient: every ratio is 1. For the one step of an iteration with dropout.
    Own,
    /// These, one list a rollout.
    Given(&'a [Vec<f32>]),
}

impl OldLogprobs<'_> {
    /// Those of `part`, whose own pass gave `found_m`.
    fn of(self, rollouts: &Rollouts, part: &[usize], found_m: &Tensor<1>) -> Vec<f32> {
        match self {
            Self::Sampled => actor::old_logprobs(rollouts, part),
            Self::Own => read(found_m),
            Self::Given(all) => concat(all, part),
        }
    }
}

/// Who learns.
pub struct Learners<'a> {
    /// The policy.
    pub actor: &'a mut Learner<Actor>,
    /// The critic, where there is one.
    pub critic: Option<&'a mut Critic>,
}

/// The losses of one step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Losses {
    /// The surrogate and the KL term.
    pub policy: f64,
    /// The same times its coefficient, less the entropy bonus: what the policy's gradient is of.
    pub total: f64,
    /// The critic's, not yet weighted; 0 without one.
    pub value: f64,
    /// The mean entropy of the tokens.
    pub entropy: f64,
}

/// The norms of a step's gradients, before they were clipped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norms {
    /// The actor's.
    pub actor: f64,
    /// That of a critic with weights of its own.
    pub critic: Option<f64>,
}

/// What passes over tokens measured; several steps are added up in one.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Seen {
    /// How many tokens there were.
    pub tokens: usize,
    /// What the ratios were, of tokens or of sequences.
    pub ratios: Statistics,
    /// Σ of what sequences were weighted with, and how many there were; 0 where they were not.
    pub weights: (f64, usize),
    /// Σ entropy.
    pub entropy: f64,
    /// Σ of the KL term, not yet weighted; `None` without one.
    pub kl: Option<f64>,
    /// Tokens whose value loss was clipped.
    pub value_clipped: f64,
    /// Tokens that taught nothing because their sampler was too far from the policy.
    pub off_policy: usize,
}

impl Losses {
    /// Adds those of the next lane.
    fn add(&mut self, other: &Self) {
        self.policy += other.policy;
        self.total += other.total;
        self.value += other.value;
        self.entropy += other.entropy;
    }
}

impl Seen {
    /// Adds what the passes of the next lane measured.
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
    }
}

impl PolicyLoss {
    /// One optimizer step of everyone who learns. On an error no gradient is left behind.
    ///
    /// # Errors
    /// What was not finite.
    pub fn step(
        &self,
        learners: &mut Learners<'_>,
        batch: MiniBatch<'_>,
        update: Update<'_>,
        seen: &mut Seen,
    ) -> Result<(Losses, Norms), String> {
        let (losses, norms) = self.step_if(learners, batch, update, seen, |_| true)?;
        Ok((losses, norms.expect("it is always taken")))
    }

    /// [`step`](Self::step), unless `takes` refuses it: it is told k3 over the mini-batch before any weight moves, and what
    /// it refuses leaves no gradient behind.
    ///
    /// # Errors
    /// What was not finite.
    pub fn step_if(
        &self,
        learners: &mut Learners<'_>,
        batch: MiniBatch<'_>,
        update: Update<'_>,
        seen: &mut Seen,
        takes: impl Fn(f64) -> bool,
    ) -> Result<(Losses, Option<Norms>), String> {
        let before = seen.ratios;
        let stepped = self.accumulate(learners, batch, update.settings.passes, seen).and_then(|losses| {
            let ratios = seen.ratios.tokens - before.tokens;
            let taken = takes((seen.ratios.k3_sum - before.k3_sum) / ratios.max(1) as f64);
            Ok((losses, if taken { Some(learners.step(update, self.clips_jointly)?) } else { None }))
        });
        if !matches!(stepped, Ok((_, Some(_)))) {
            learners.discard();
        }
        stepped
    }

    /// Adds the gradients of the mini-batch to those that the learners have gathered, and moves no weight.
    ///
    /// # Errors
    /// A loss that is not finite.
    pub fn accumulate(
        &self,
        learners: &mut Learners<'_>,
        batch: MiniBatch<'_>,
        passes: MicroBatch,
        seen: &mut Seen,
    ) -> Result<Losses, String> {
        let MiniBatch { experience, chosen, silent, .. } = batch;
        let rollouts = &experience.rollouts;
        let counts_b: Vec<usize> = chosen.iter().map(|&i| rollouts.rollouts[i].counted()).collect();
        let tokens: usize = counts_b.iter().sum();
        let (lanes, passes) = (passes.lanes, passes.in_lanes(&lengths(rollouts, chosen)));
        let all: Vec<Range<usize>> = passes.iter().flatten().map(|(_, pass)| pass.clone()).collect();
        let reducer = Reducer::new(self.denominator, &counts_b, silent, &all);
        let step = Step { loss: self, batch, counts_b: &counts_b, tokens, reducer: &reducer };
        let of_lane = |lane: usize| {
            let (mut losses, mut seen) = (Losses::default(), Seen::default());
            for (i, (number, pass)) in passes[lane].iter().enumerate() {
                if i + 1 == passes[lane].len() {
                    learners.actor.begin_last_pass(lane, lanes);
                }
                step.pass(learners, *number, pass, &mut losses, &mut seen)?;
            }
            learners.end_lane(lane, self.value.is_some());
            Ok::<_, String>((losses, seen))
        };
        let own = lanes.run_own(of_lane);
        learners.reduce(lanes, self.value.is_some(), own.is_ok());
        let mut losses = Losses::default();
        for (of_lane, found) in lanes.share("losses of rollouts", own)? {
            losses.add(&of_lane);
            seen.add(&found);
        }
        losses.entropy /= tokens.max(1) as f64;
        Ok(losses)
    }
}

/// What the passes of a step have in common.
#[derive(Clone, Copy)]
struct Step<'a> {
    loss: &'a PolicyLoss,
    batch: MiniBatch<'a>,
    /// Tokens of each rollout that carry loss.
    counts_b: &'a [usize],
    /// All of them.
    tokens: usize,
    reducer: &'a Reducer,
}

impl Step<'_> {
    /// One forward and one backward pass over neighboring rollouts of the step; `number` counts passes from 0.
    fn pass(
        &self,
        learners: &mut Learners<'_>,
        number: usize,
        pass: &Range<usize>,
        losses: &mut Losses,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let Self { loss, reducer, tokens, .. } = *self;
        let MiniBatch { experience, advantages, chosen, dropout, old, .. } = self.batch;
        let rollouts = &experience.rollouts;
        let (part, counts_b) = (&chosen[pass.clone()], &self.counts_b[pass.clone()]);
        // 1. Forward.
        let rows = actor::batch(&learners.actor.module().policy.trunk, rollouts, part);
        let masks = |learner: usize| dropout.map(|stream| stream.part(2 * number + learner));
        let forward = learners.actor.module().forward(&rows.clone().dropping(masks(0)), loss.temperature);
        let Forward { logprobs: found, values_m } = forward;
        let device = found.logprobs_m.device();

        // 2. The loss of each token, and its part of the step's.
        let old = old.of(rollouts, part, &found.logprobs_m);
        // VESPO has the ratios in its weights.
        let advantages_m = match loss.surrogate {
            Surrogate::Vespo(_) => concat(&advantages.advantages, part),
            _ => concat(&advantages.weighted(), part),
        };
        let off_policy = advantages.off_policy.as_ref();
        let ratios = off_policy.and_then(|off| Some(concat(off.ratios.as_ref()?, part)));
        let of_level = |logprobs_m| loss.level.log_ratios(logprobs_m, constant(old.clone(), &device), counts_b);
        let own = Tokens {
            logprobs_m: found.logprobs_m.clone(),
            log_ratios_m: of_level(found.logprobs_m.clone()),
            old: &old,
            advantages: &advantages_m,
            counts_b,
            ratios: ratios.as_deref(),
        };
        let (mut losses_m, weights_b) = own.losses(&loss.surrogate);
        if let Some(threshold) = loss.off_policy_threshold {
            let sampler = off_policy.map_or_else(|| old.clone(), |off| concat(&off.sampler, part));
            let mask = off_policy_masks(&sampler, &read(&found.logprobs_m), &own, threshold);
            seen.off_policy += mask.iter().filter(|kept| **kept == 0.0).count();
            losses_m = losses_m * constant(mask, &device);
        }
        let mut policy = reducer.reduce(losses_m, pass, counts_b);
        let mut kl_m = None;
        if let (Some((coefficient, correction)), Some(reference)) = (loss.kl, &experience.reference) {
            let reference_m = gather(reference, part, &device);
            let term_m = kl_term(found.logprobs_m.clone(), reference_m, own.log_ratios_m.clone(), correction);
            policy = policy + reducer.reduce(term_m.clone(), pass, counts_b) * coefficient;
            kl_m = Some(term_m);
        }
        let mut total = policy.clone() * loss.coefficient;
        if loss.entropy_coefficient != 0.0 {
            total = total - found.entropies_m.clone().sum() * (loss.entropy_coefficient / tokens as f64);
        }
        let value_of = |loss: ValueLoss, values_m: Tensor<1>| {
            let losses_m = loss.of_tokens(values_m.clone(), advantages, part);
            Value { loss, values_m, reduced: reducer.reduce(losses_m, pass, counts_b) }
        };
        let shared = loss.value.zip(values_m).map(|(loss, values_m)| value_of(loss, values_m));

        // 3. Look at everything at once.
        let mut wanted = vec![&policy, &total, &found.logprobs_m, &found.entropies_m];
        wanted.extend(&kl_m);
        wanted.extend(shared.iter().flat_map(Value::wanted));
        let mut read = read_all(&wanted).into_iter();
        let mut next = || read.next().expect("one list per tensor");
        losses.policy += f64::from(next()[0]);
        losses.total += finite("policy loss", next()[0])?;
        let clip = loss.surrogate.clip();
        seen.ratios.add(&Statistics::at(loss.level, &next(), &old, &advantages_m, counts_b, &clip));
        seen.tokens += old.len();
        seen.weights = (seen.weights.0 + sum(&weights_b), seen.weights.1 + weights_b.len());
        let entropy = sum(&next());
        (losses.entropy, seen.entropy) = (losses.entropy + entropy, seen.entropy + entropy);
        if kl_m.is_some() {
            *seen.kl.get_or_insert_default() += sum(&next());
        }
        if let Some(value) = shared {
            value.look([next(), next()], advantages, part, losses, seen)?;
            total = total + value.weighted();
        }

        // 4. Back.
        drop((policy, kl_m, own, found));
        learners.actor.accumulate(&total);

        // 5. A critic of its own: what was recorded of the policy is gone, so one pass is in memory at a time.
        if let (Some(loss), Some(Critic::Separate(critic))) = (loss.value, &mut learners.critic) {
            let value = value_of(loss, critic.values(&rows.dropping(masks(1))));
            let read = read_all(&value.wanted()).try_into().expect("one list per tensor");
            value.look(read, advantages, part, losses, seen)?;
            critic.learner.accumulate(&value.weighted());
        }
        Ok(())
    }
}

impl Learners<'_> {
    /// The lane is over.
    fn end_lane(&mut self, lane: usize, critic_learns: bool) {
        self.actor.end_lane(lane);
        if let Some(Critic::Separate(critic)) = self.critic.as_mut().filter(|_| critic_learns) {
            critic.learner.end_lane(lane);
        }
    }

    /// All lanes are over, or one has failed: everyone who learned gets the sum of all ranks.
    fn reduce(&mut self, lanes: Lanes, critic_learns: bool, is_ok: bool) {
        self.actor.reduce(lanes, is_ok);
        if let Some(Critic::Separate(critic)) = self.critic.as_mut().filter(|_| critic_learns) {
            critic.learner.reduce(lanes, is_ok);
        }
    }

    /// Moves the weights.
    fn step(&mut self, update: Update<'_>, clips_jointly: bool) -> Result<Norms, String> {
        let (settings, multiplier) = (update.settings, update.multiplier);
        let max_norm = settings.max_grad_norm;
        let (of_actor, of_critic) = match &self.critic {
            Some(Critic::Separate(critic)) if clips_jointly => {
                (self.actor.gradient_norm(), critic.learner.gradient_norm())
            }
            _ => (0.0, 0.0),
        };
        // Both are asked before either moves: an error leaves the weights of the step before.
        let actor = self.actor.ready_beside(max_norm, of_critic)?;
        let critic = match &mut self.critic {
            Some(Critic::Separate(critic)) => {
                let rate = critic.learning_rate * multiplier;
                Some((critic.learner.ready_beside(max_norm, of_actor)?, rate))
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

/// Which of the tokens of one pass teach, sequence after sequence ([`off_policy_mask`]).
fn off_policy_masks(sampler: &[f32], policy: &[f32], tokens: &Tokens<'_>, threshold: f64) -> Vec<f32> {
    let mut start = 0;
    let of_sequence = |&count: &usize| {
        let at = start..start + count;
        start += count;
        off_policy_mask(&sampler[at.clone()], &policy[at.clone()], &tokens.advantages[at], threshold)
    };
    tokens.counts_b.iter().flat_map(of_sequence).collect()
}

/// A [`Denominator`] over the sequences of one step.
enum Reducer {
    /// The divisor of every sum.
    Divide(usize),
    /// The weight of each sequence's tokens.
    Weigh(Vec<f32>),
}

impl Reducer {
    fn new(denominator: Denominator, counts_b: &[usize], silent: usize, passes: &[Range<usize>]) -> Self {
        match denominator {
            Denominator::Tokens => Self::Divide(counts_b.iter().sum()),
            Denominator::Weights(reduction) => {
                Self::Weigh(token_weights(&[counts_b, &vec![0; silent]].concat(), reduction))
            }
            Denominator::MicroBatches(reduction) => Self::Weigh(micro_mean_weights(counts_b, passes, reduction)),
            Denominator::Parts { size, summed, mean_length } => {
                Self::Weigh(part_weights(counts_b, size, summed, mean_length))
            }
        }
    }

    /// What the tokens of one pass contribute to the step's loss, `[1]`.
    fn reduce(&self, values_m: Tensor<1>, pass: &Range<usize>, counts_b: &[usize]) -> Tensor<1> {
        match self {
            Self::Divide(tokens) => values_m.sum() / *tokens as f64,
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

/// Refuses a loss that is not a number.
fn finite(name: &str, loss: f32) -> Result<f64, String> {
    if loss.is_finite() { Ok(f64::from(loss)) } else { Err(format!("the {name} is {loss}")) }
}
