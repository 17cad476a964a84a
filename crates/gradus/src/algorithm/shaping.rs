//! Penalties and whitening, per token and on the host: the steps between a reward and an algorithm.
//!
//! Algorithms pick the parts they need. The KL penalty and its controller: Ziegler et al. 2019, section 2.2,
//! <https://arxiv.org/abs/1909.08593>. Metrics have the names of TRL 1.12's PPO trainer.

use super::actor::concat;
use super::kl_config::{KlConfig, KlEstimator, KlUnit};
use super::{Experience, ScoredRollout};
use crate::math::kl::{self, KlController};
use crate::math::{Divisor, Whiten, whiten_with};
use crate::rollout::StopReason;
use crate::stats::Stats;

/// KL penalty per token, and the controller of its weight.
#[derive(Debug, Clone)]
pub struct KlPenalty {
    estimator: KlEstimator,
    unit: KlUnit,
    controller: KlController,
}

/// Rewards that consist of penalties only, and the KL behind them.
#[derive(Debug, Clone)]
pub struct Penalties {
    /// `−β·k` per token, one list per rollout; 0 without a reference.
    pub rewards: Vec<Vec<f32>>,
    /// KL over all tokens, without the weight β; `None` without a reference.
    pub kl: Option<MeasuredKl>,
}

/// KL of a batch of rollouts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeasuredKl {
    /// Sum over all tokens.
    pub sum: f64,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of sequences.
    pub sequences: usize,
}

impl KlPenalty {
    /// Creates the penalty from `config`; `adapted` is the coefficient to which the controller of a resumed run has moved.
    pub fn new(config: &KlConfig, adapted: Option<f64>) -> Self {
        let coefficient = adapted.unwrap_or(config.coefficient);
        let controller = match (config.target, config.rate) {
            (Some(target), Some(rate)) => KlController::Proportional { coefficient, target, rate },
            (Some(target), None) => KlController::Adaptive { coefficient, target, horizon: config.horizon },
            (None, _) => KlController::Fixed { coefficient: config.coefficient },
        };
        Self { estimator: config.estimator, unit: config.unit, controller }
    }

    /// Returns the current weight β.
    pub fn coefficient(&self) -> f64 {
        self.controller.coefficient()
    }

    /// Returns the penalty of one rollout, per token and without the weight β.
    fn estimate(&self, logprobs_t: &[f32], reference_t: &[f32]) -> Vec<f32> {
        match self.estimator {
            KlEstimator::K1 => kl::k1(logprobs_t, reference_t),
            KlEstimator::K2 => kl::k2(logprobs_t, reference_t),
            KlEstimator::K3 => kl::k3(logprobs_t, reference_t),
        }
    }

    /// Returns the penalties for distance from the reference.
    pub fn penalties(&self, experience: &Experience) -> Penalties {
        let coefficient = self.coefficient() as f32;
        let mut rewards: Vec<Vec<f32>> = experience.iter().map(|rollout| vec![0.0; rollout.counted()]).collect();
        let mut measured = MeasuredKl { sequences: experience.len(), ..MeasuredKl::default() };
        for (scored, rewards_t) in experience.rollouts.iter().zip(&mut rewards) {
            let Some(reference_t) = &scored.reference_t else { return Penalties { rewards, kl: None } };
            let kl_t = self.estimate(&scored.logprobs_of_kl(), reference_t);
            for (reward, kl) in rewards_t.iter_mut().zip(&kl_t) {
                *reward -= coefficient * kl;
            }
            measured.sum += sum(&kl_t);
            measured.tokens += kl_t.len();
        }
        Penalties { rewards, kl: Some(measured) }
    }

    /// Updates the weight for the next iteration through the controller.
    pub fn adapt(&mut self, measured: MeasuredKl, stats: &mut Stats) {
        let MeasuredKl { sum, tokens, sequences } = measured;
        stats.last("kl_coef", self.coefficient());
        let measured = match self.unit {
            KlUnit::Sequence => sum / sequences as f64,
            KlUnit::Token => {
                let mean = sum / tokens.max(1) as f64;
                stats.last("objective/kl_per_token", mean);
                mean
            }
        };
        self.controller.update(measured, sequences);
    }
}

/// Adds scores to penalties. A completion without a stop id loses `missing_eos_penalty` at its last token.
pub fn add_scores(
    rewards: &mut [Vec<f32>],
    experience: &Experience,
    missing_eos_penalty: Option<f64>,
    stats: &mut Stats,
) {
    for (ScoredRollout { rollout, rewards_t: score_t, .. }, rewards_t) in experience.rollouts.iter().zip(rewards) {
        let non_score = sum(rewards_t);
        stats.mean("objective/non_score_reward", non_score, 1.0);
        stats.mean("objective/entropy", -sum(&rollout.counted_logprobs()), 1.0);
        let Some(score_t) = score_t else { continue };
        for (reward, score) in rewards_t.iter_mut().zip(score_t) {
            *reward += score;
        }
        let missing = rollout.stop == StopReason::Length;
        let penalty = missing_eos_penalty.filter(|_| missing).unwrap_or(0.0);
        *rewards_t.last_mut().expect("a completion is never empty") -= penalty as f32;
        let score = sum(score_t) - penalty;
        stats.mean("objective/scores", score, 1.0);
        stats.mean("objective/rlhf_reward", score + non_score, 1.0);
    }
}

/// Whitens over all values of the chosen lists together. Returns the value that a 0 would have been mapped to.
pub fn whiten_lists(lists: &mut [Vec<f32>], chosen: &[usize], mean_becomes: Whiten, divisor: Divisor) -> f32 {
    let (whitened, zero) = whiten_with(&concat(lists, chosen), mean_becomes, divisor, 0.0);
    let mut rest = whitened.as_slice();
    for &i in chosen {
        let (own, others) = rest.split_at(lists[i].len());
        lists[i].copy_from_slice(own);
        rest = others;
    }
    zero
}

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kl_per_token_is_logged_if_the_controller_follows_it() {
        let logged = |unit: KlUnit| {
            let config = KlConfig { target: Some(0.1), rate: Some(0.1), unit, ..KlConfig::default() };
            let mut stats = Stats::default();
            KlPenalty::new(&config, None).adapt(MeasuredKl { sum: 3.0, tokens: 12, sequences: 2 }, &mut stats);
            stats.value("objective/kl_per_token")
        };
        assert_eq!((logged(KlUnit::Token), logged(KlUnit::Sequence)), (Some(0.25), None));
    }

    #[test]
    fn only_an_adaptive_coefficient_continues_where_it_was() {
        let resumed = |target, rate| {
            let config = KlConfig { coefficient: 0.3, target, rate, ..KlConfig::default() };
            KlPenalty::new(&config, Some(0.07)).coefficient()
        };
        assert_eq!([resumed(Some(1.0), None), resumed(Some(1.0), Some(0.1)), resumed(None, None)], [0.07, 0.07, 0.3]);
    }
}
