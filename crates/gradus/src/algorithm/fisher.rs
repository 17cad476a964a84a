//! Whole distributions of a policy: how far two policies are apart, and products with the curvature of that distance.
//!
//! At the old policy the Hessian of the mean `KL(new ‖ old)` is the Fisher matrix `F = E[Jᵀ (diag p − p pᵀ) J]`, where `J`
//! is the Jacobian of a token's logits (Schulman et al. 2015, appendix C, <https://arxiv.org/abs/1502.05477>). A product
//! `F v` usually goes back through the gradient a second time. Here it is taken apart: `J v` is how the logits change along
//! `v`, a difference of four forward passes (`(8(z₊ − z₋) − (z₊₊ − z₋₋))/12h`, whose error falls with h⁴); the middle
//! factor is known in closed form; and `Jᵀ` is one backward pass. Only the difference is not exact, and the product stays
//! symmetric and positive up to it. A difference of the KL's gradients, which vanish here, would lose more digits and take
//! a backward pass each.

use burn::tensor::{Tensor, activation};

use super::Experience;
use super::actor::{self, Actor, lengths};
use crate::batches::MicroBatch;
use crate::host::{constant, read};
use crate::learner::Learner;
use crate::model::{Batch, CausalLm};

/// Logits in memory at a time, unless one sequence has more: 16 Mi values, 64 MiB.
const LOGITS: usize = 16 << 20;

/// The first step along a direction, as a share of the parameters' norm.
const SHARE: f64 = 1e-4;

/// How far logits are moved to see how they change, as a root mean square. At 0.03 what the difference cuts off is an error
/// of 6e-4 on a small model, at 0.003 roundings are one of 1e-4, here both are below 3e-5.
const CHANGE: f64 = 0.01;

/// The tokens whose distributions are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Distributions<'a> {
    /// The rollouts.
    pub experience: &'a Experience,
    /// Which of them.
    pub chosen: &'a [usize],
    /// Temperature of the logits.
    pub temperature: f32,
    /// How large a pass may be at most.
    pub passes: MicroBatch,
}

/// A policy beside an older one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distance {
    /// Mean of `KL(new ‖ old)` over tokens, of whole distributions.
    pub kl: f64,
    /// Mean of `Â·ρ` over tokens, with the ratio `ρ` to what was recorded.
    pub objective: f64,
}

impl Distributions<'_> {
    /// How many tokens there are.
    fn tokens(&self) -> usize {
        self.chosen.iter().map(|&i| self.experience.rollouts.rollouts[i].counted()).sum()
    }

    /// Passes whose logits fit, as parts of `chosen`, lane after lane.
    fn parts(&self, vocabulary: usize) -> Vec<Vec<&[usize]>> {
        let tokens = self.passes.tokens.min(LOGITS / vocabulary);
        let passes = MicroBatch { tokens, ..self.passes }.in_lanes(&lengths(&self.experience.rollouts, self.chosen));
        passes.into_iter().map(|lane| lane.into_iter().map(|(_, range)| &self.chosen[range]).collect()).collect()
    }

    /// The sum over all parts of what `of` makes of each. Lanes are shared by ranks.
    fn sum(&self, vocabulary: usize, of: impl Fn(&[usize]) -> f64) -> f64 {
        let parts = self.parts(vocabulary);
        let of_lane = |lane: usize| Ok::<_, ()>(parts[lane].iter().map(|part| of(part)).sum::<f64>());
        self.passes.lanes.run("distances", of_lane).unwrap_or_default().into_iter().sum()
    }

    fn batch(&self, model: &CausalLm, part: &[usize]) -> Batch {
        actor::batch(&model.trunk, &self.experience.rollouts, part)
    }

    /// Logits of the tokens of a batch at the temperature, `[M, V]`.
    fn logits(&self, model: &CausalLm, batch: &Batch) -> Tensor<2> {
        model.token_logits(model.hidden(batch), batch.targets(), self.temperature)
    }

    /// How far `new` is from `old`, and what its ratios make of `advantages`.
    pub fn distance(&self, new: &CausalLm, old: &CausalLm, advantages: &[Vec<f32>]) -> Distance {
        let kl = self.sum(new.vocab_size(), |part| {
            let batch = self.batch(new, part);
            let [new_mv, old_mv] = [new, old].map(|model| activation::log_softmax(self.logits(model, &batch), 1));
            let kl_m = (new_mv.clone().exp() * (new_mv.clone() - old_mv)).sum_dim(1);
            sum(read(&kl_m.squeeze_dim::<1>(1)))
        });
        Distance { kl: kl / self.tokens().max(1) as f64, objective: self.objective(new, advantages) }
    }

    /// What the ratios of `model` make of `advantages`: the [`objective`](Distance::objective) of its distance, to the bit.
    pub fn objective(&self, model: &CausalLm, advantages: &[Vec<f32>]) -> f64 {
        let of_part = |part: &[usize]| self.objective_of(model, &self.batch(model, part), part, advantages);
        self.sum(model.vocab_size(), of_part) / self.tokens().max(1) as f64
    }

    /// Σ `Â·ρ` over the tokens of a part.
    fn objective_of(&self, model: &CausalLm, batch: &Batch, part: &[usize], advantages: &[Vec<f32>]) -> f64 {
        let logprobs = read(&model.logprobs(batch, self.temperature).logprobs_m);
        let recorded = actor::old_logprobs(&self.experience.rollouts, part);
        let advantages = actor::concat(advantages, part);
        let tokens = logprobs.iter().zip(&recorded).zip(&advantages);
        tokens.map(|((new, old), advantage)| (f64::from(*new) - f64::from(*old)).exp() * f64::from(*advantage)).sum()
    }

    /// `F v` at the learner's parameters, in the order of [`Learner::layout`]; 0 where the policy does not depend on a
    /// parameter. No parameter moves, and gradients that had been gathered are lost.
    pub fn product(&self, learner: &mut Learner<Actor>, vector: &Tensor<1>) -> Vec<f32> {
        learner.discard();
        let Some(step) = self.step_along(learner, vector) else { return vec![0.0; vector.dims()[0]] };
        let parameters = learner.parameters();
        let at = |steps: f64| learner.frozen_with(&(parameters.clone() + vector.clone() * (steps * step))).policy;
        let [ahead, behind, far_ahead, far_behind] = [1.0, -1.0, 2.0, -2.0].map(at);
        let tokens = self.tokens() as f64;
        let (lanes, parts) = (self.passes.lanes, self.parts(ahead.vocab_size()));
        let of_part = |learner: &mut Learner<Actor>, part: &[usize]| {
            let batch = self.batch(&ahead, part);
            let apart = |a: &CausalLm, b: &CausalLm| self.logits(a, &batch) - self.logits(b, &batch);
            let along_mv = (apart(&ahead, &behind) * 8.0 - apart(&far_ahead, &far_behind)) / (12.0 * step);
            let logits_mv = self.logits(&learner.module().policy, &batch);
            // (diag p − p pᵀ) J v, without gradient.
            let probabilities_mv = activation::softmax(logits_mv.clone().inner(), 1);
            let mean_m1 = (probabilities_mv.clone() * along_mv.clone()).sum_dim(1);
            let weights_mv = probabilities_mv * (along_mv - mean_m1) / tokens;
            let [m, v] = weights_mv.dims();
            let weights_mv = constant(read(&weights_mv.reshape([m * v])), &logits_mv.device()).reshape([m, v]);
            learner.accumulate(&(logits_mv * weights_mv).sum());
        };
        for lane in lanes.own() {
            parts[lane].iter().for_each(|part| of_part(learner, part));
            learner.end_lane(lane);
        }
        learner.reduce(lanes, true);
        let product = read(&learner.gradient());
        learner.discard();
        product
    }

    /// How far to go along `vector` so that logits change by [`CHANGE`], by how they change over a far smaller step. `None`
    /// where they do not change.
    fn step_along(&self, learner: &Learner<Actor>, vector: &Tensor<1>) -> Option<f64> {
        let norm = |x: &Tensor<1>| f64::from(read(&x.clone().square().sum())[0]).sqrt();
        let parameters = learner.parameters();
        let (length, size) = (norm(vector), norm(&parameters));
        let small = SHARE * size / length;
        let here = learner.frozen().policy;
        let part = self.parts(here.vocab_size()).iter().flatten().next().copied()?;
        let there = learner.frozen_with(&(parameters + vector.clone() * small)).policy;
        let batch = self.batch(&here, part);
        let change_mv = self.logits(&there, &batch) - self.logits(&here, &batch);
        let change = f64::from(read(&change_mv.square().mean())[0]).sqrt();
        (length > 0.0 && change > 0.0 && change.is_finite()).then(|| small * CHANGE / change)
    }
}

fn sum(values: Vec<f32>) -> f64 {
    values.into_iter().map(f64::from).sum()
}
