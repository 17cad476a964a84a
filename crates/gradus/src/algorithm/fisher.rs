//! Full distributions of a policy: the KL between two policies, and products with its curvature.
//!
//! At the old policy the Hessian of the mean `KL(new ‖ old)` is the Fisher matrix `F = E[Jᵀ (diag p − p pᵀ) J]`, where
//! `J` is the Jacobian of a token's logits (Schulman et al. 2015, appendix C, <https://arxiv.org/abs/1502.05477>). A
//! product `F v` usually differentiates the gradient a second time. Here it is computed in three factors:
//!
//! - `J v` is the change of the logits along `v`, by finite differences of four forward passes:
//!   `(8(z₊ − z₋) − (z₊₊ − z₋₋))/12h`, with an error of order h⁴.
//! - The middle factor has a closed form.
//! - `Jᵀ` is one backward pass.
//!
//! Only the finite difference is inexact; up to its error the product is symmetric and positive. A finite difference of
//! the KL's gradients, which are 0 at the old policy, would lose more digits and need a backward pass each.

use burn::tensor::{Tensor, activation};

use super::Experience;
use super::actor::{self, Actor, lengths};
use crate::batches::MicroBatch;
use crate::host::{constant, read};
use crate::learner::Learner;
use crate::model::{Batch, CausalLm};

/// Maximum number of logits in memory at a time, unless one sequence has more: 16 Mi values, 64 MiB.
const LOGITS: usize = 16 << 20;

/// First step along a direction, as a share of the parameters' norm.
const SHARE: f64 = 1e-4;

/// Target root mean square of the change of the logits in a finite difference. On a small model the truncation error is
/// 6e-4 at 0.03, and the rounding error is 1e-4 at 0.003. At this value both are below 3e-5.
const CHANGE: f64 = 0.01;

/// The tokens whose distributions are compared.
#[derive(Debug, Clone, Copy)]
pub struct Distributions<'a> {
    /// The rollouts.
    pub experience: &'a Experience,
    /// Indices of the rollouts to use.
    pub chosen: &'a [usize],
    /// Temperature of the logits.
    pub temperature: f32,
    /// Maximum size of a pass.
    pub passes: MicroBatch,
}

/// Distance of a policy from an older one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distance {
    /// Mean over tokens of `KL(new ‖ old)`, computed from full distributions.
    pub kl: f64,
    /// Mean over tokens of `Â·ρ`, with the ratio `ρ` to the recorded logprobs.
    pub objective: f64,
}

impl Distributions<'_> {
    /// Returns the number of counted tokens.
    fn tokens(&self) -> usize {
        self.chosen.iter().map(|&i| self.experience.rollout(i).counted()).sum()
    }

    /// Splits `chosen` into passes whose logits fit into memory, grouped by lane.
    fn parts(&self, vocabulary: usize) -> Vec<Vec<&[usize]>> {
        let tokens = self.passes.tokens.min(LOGITS / vocabulary);
        let passes = MicroBatch { tokens, ..self.passes }.in_lanes(&lengths(self.experience, self.chosen));
        passes.into_iter().map(|lane| lane.into_iter().map(|(_, range)| &self.chosen[range]).collect()).collect()
    }

    /// Returns the sum of `of` over all parts. Ranks share the lanes.
    fn sum(&self, vocabulary: usize, of: impl Fn(&[usize]) -> f64) -> f64 {
        let parts = self.parts(vocabulary);
        let of_lane = |lane: usize| Ok::<_, ()>(parts[lane].iter().map(|part| of(part)).sum::<f64>());
        self.passes.lanes.run("distances", of_lane).unwrap_or_default().into_iter().sum()
    }

    fn batch(&self, model: &CausalLm, part: &[usize]) -> Batch {
        actor::batch(&model.trunk, self.experience, part)
    }

    /// Returns the logits of a batch's target tokens at the temperature, `[M, V]`.
    fn logits(&self, model: &CausalLm, batch: &Batch) -> Tensor<2> {
        model.token_logits(model.hidden(batch), batch.targets(), self.temperature)
    }

    /// Returns the distance of `new` from `old`, with the objective for `advantages`, a function of the rollouts of a part.
    pub fn distance(&self, new: &CausalLm, old: &CausalLm, advantages: &dyn Fn(&[usize]) -> Vec<f32>) -> Distance {
        let kl = self.sum(new.vocab_size(), |part| {
            let batch = self.batch(new, part);
            let [new_mv, old_mv] = [new, old].map(|model| activation::log_softmax(self.logits(model, &batch), 1));
            let kl_m = (new_mv.clone().exp() * (new_mv.clone() - old_mv)).sum_dim(1);
            sum(read(&kl_m.squeeze_dim::<1>(1)))
        });
        Distance { kl: kl / self.tokens().max(1) as f64, objective: self.objective(new, advantages) }
    }

    /// Returns the mean of `Â·ρ` under `model`: bit for bit the [`objective`](Distance::objective) of its distance.
    pub fn objective(&self, model: &CausalLm, advantages: &dyn Fn(&[usize]) -> Vec<f32>) -> f64 {
        let of_part = |part: &[usize]| self.objective_of(model, &self.batch(model, part), part, &advantages(part));
        self.sum(model.vocab_size(), of_part) / self.tokens().max(1) as f64
    }

    /// Returns Σ `Â·ρ` over the tokens of a part.
    fn objective_of(&self, model: &CausalLm, batch: &Batch, part: &[usize], advantages: &[f32]) -> f64 {
        let logprobs = read(&model.logprobs(batch, self.temperature).logprobs_m);
        let recorded = actor::old_logprobs(self.experience, part);
        let tokens = logprobs.iter().zip(&recorded).zip(advantages);
        tokens.map(|((new, old), advantage)| (f64::from(*new) - f64::from(*old)).exp() * f64::from(*advantage)).sum()
    }

    /// Returns `F v` at the learner's parameters, in the order of [`Learner::layout`]. Entries are 0 for parameters
    /// that the policy does not depend on. Parameters stay unchanged; accumulated gradients are discarded.
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
            let logit_difference = |a: &CausalLm, b: &CausalLm| self.logits(a, &batch) - self.logits(b, &batch);
            let along_mv =
                (logit_difference(&ahead, &behind) * 8.0 - logit_difference(&far_ahead, &far_behind)) / (12.0 * step);
            let logits_mv = self.logits(&learner.module().policy, &batch);
            // (diag p − p pᵀ) J v, without gradient.
            let probabilities_mv = activation::softmax(logits_mv.clone().inner(), 1);
            let mean_m1 = (probabilities_mv.clone() * along_mv.clone()).sum_dim(1);
            let weights_mv = probabilities_mv * (along_mv - mean_m1) / tokens;
            let [m, v] = weights_mv.dims();
            let weights_mv = constant(read(&weights_mv.reshape([m * v])), &logits_mv.device()).reshape([m, v]);
            learner.accumulate(&crate::loss::reduce::sum(logits_mv * weights_mv));
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

    /// Returns the step along `vector` that changes the logits by [`CHANGE`], extrapolated from a much smaller step.
    /// `None` if the logits do not change.
    fn step_along(&self, learner: &Learner<Actor>, vector: &Tensor<1>) -> Option<f64> {
        let norm = |x: &Tensor<1>| f64::from(read(&crate::loss::reduce::sum(x.clone().square()))[0]).sqrt();
        let parameters = learner.parameters();
        let (length, size) = (norm(vector), norm(&parameters));
        let small = SHARE * size / length;
        let here = learner.frozen().policy;
        let part = self.parts(here.vocab_size()).iter().flatten().next().copied()?;
        let there = learner.frozen_with(&(parameters + vector.clone() * small)).policy;
        let batch = self.batch(&here, part);
        let change_mv = self.logits(&there, &batch) - self.logits(&here, &batch);
        let numbers = change_mv.shape().num_elements() as f64;
        let change = f64::from(read(&(crate::loss::reduce::sum(change_mv.square()) / numbers))[0]).sqrt();
        (length > 0.0 && change > 0.0 && change.is_finite()).then(|| small * CHANGE / change)
    }
}

fn sum(values: Vec<f32>) -> f64 {
    values.into_iter().map(f64::from).sum()
}
