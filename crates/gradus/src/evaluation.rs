//! What is measured of rollouts: while training, and on held-out prompts.

use crate::algorithm::actor::logprobs;
use crate::error::Result;
use crate::math::kl;
use crate::math::stats::{Variance, std};
use crate::model::CausalLm;
use crate::reward::{self, Reward, Score};
use crate::rng::Purpose;
use crate::rollout::{self, Prompt, Rollouts, Sampler, StopReason};
use crate::settings::Settings;
use crate::stats::Stats;

/// An evaluation on held-out prompts: one completion each, from streams that never change.
pub struct Evaluation<'a> {
    /// The prompts.
    pub prompts: &'a [Prompt],
    /// How completions are sampled; temperature 0 is greedy.
    pub sampler: &'a Sampler<'a>,
    /// What the KL is measured against.
    pub reference: Option<&'a CausalLm>,
    /// The seed, and how large a forward pass may be.
    pub settings: &'a Settings,
}

/// What an evaluation found.
#[derive(Debug, Clone)]
pub struct Evaluated {
    /// The completions.
    pub rollouts: Rollouts,
    /// What they are worth.
    pub scores: Vec<Score>,
    /// The KL of each to the reference, in nats; none without a reference.
    pub kls: Option<Vec<f64>>,
    /// `reward`, `reward_std`, `kl` (nats per completion), `length`, `clipped_ratio`, `rewards/…`.
    pub stats: Stats,
}

impl Evaluation<'_> {
    /// Samples, scores and measures.
    ///
    /// # Errors
    /// A reward that fails.
    pub fn run(&self, policy: &CausalLm, reward: &mut dyn Reward) -> Result<Evaluated> {
        let stream = |i: usize| self.settings.seed.stream(Purpose::Evaluation, 0, i as u64);
        let rollouts = rollout::sample(policy, self.prompts.to_vec(), self.sampler, &stream)?;
        let scores = reward::apply(reward, &rollouts)?;
        let mut stats = Stats::default();
        observe_rewards(&reward.name(), &scores, &mut stats);
        let lengths: Vec<f32> = rollouts.rollouts.iter().map(|rollout| rollout.completion_ids.len() as f32).collect();
        let clipped = rollouts.rollouts.iter().filter(|rollout| rollout.stop == StopReason::Length).count();
        stats.mean_of("length", &lengths);
        stats.mean("clipped_ratio", clipped as f64, rollouts.len() as f64);
        let kls = self.reference.map(|reference| {
            // Greedy completions are measured at temperature 1, sampled ones at their own.
            let temperature = if self.sampler.params.temperature > 0.0 { self.sampler.params.temperature } else { 1.0 };
            let passes = self.settings.passes;
            let [policy, reference] = [policy, reference].map(|model| logprobs(model, &rollouts, temperature, passes));
            let of_one = |(policy_t, reference_t): (&Vec<f32>, &Vec<f32>)| {
                kl::k1(policy_t, reference_t).iter().map(|&kl| f64::from(kl)).sum()
            };
            policy.iter().zip(&reference).map(of_one).collect::<Vec<f64>>()
        });
        for &kl in kls.iter().flatten() {
            stats.mean("kl", kl, 1.0);
        }
        Ok(Evaluated { rollouts, scores, kls, stats })
    }
}

/// `reward`, `reward_std`, and mean and spread of the reward called `name` and of every part of it. Rollouts that were not
/// scored are left out.
pub fn observe_rewards(name: &str, scores: &[Score], stats: &mut Stats) {
    let totals: Vec<f32> = scores.iter().filter_map(Score::total).collect();
    stats.mean_of("reward", &totals);
    stats.mean("reward_std", std(&totals, Variance::Unbiased).unwrap_or(0.0), 1.0);
    let mut parts: Vec<(String, Vec<f32>)> = vec![(name.to_owned(), totals)];
    // A reward that is one part has that part's name.
    for part in scores.iter().flat_map(|score| &score.parts).filter(|part| part.name != name) {
        match parts.iter_mut().find(|(known, _)| *known == part.name) {
            Some((_, values)) => values.push(part.total()),
            None => parts.push((part.name.clone(), vec![part.total()])),
        }
    }
    for (part, values) in parts {
        stats.mean_of(&format!("rewards/{part}/mean"), &values);
        stats.mean(&format!("rewards/{part}/std"), std(&values, Variance::Unbiased).unwrap_or(0.0), 1.0);
    }
}

/// Lengths of completions under TRL's names: as there, only of what carries loss.
pub fn observe_rollouts(rollouts: &Rollouts, stats: &mut Stats) {
    for rollout in &rollouts.rollouts {
        let length = rollout.counted() as f64;
        let truncated = rollout.stop == StopReason::Length;
        stats.mean("completions/mean_length", length, 1.0);
        stats.min("completions/min_length", length);
        stats.max("completions/max_length", length);
        stats.mean("completions/clipped_ratio", f64::from(u8::from(truncated)), 1.0);
        if !truncated {
            stats.mean("completions/mean_terminated_length", length, 1.0);
            stats.min("completions/min_terminated_length", length);
            stats.max("completions/max_terminated_length", length);
        }
    }
    stats.sum("episodes", rollouts.len() as f64);
}
