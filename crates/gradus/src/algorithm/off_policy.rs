//! Rollouts that were sampled by another engine or by an earlier policy, and the correction for it.

use std::borrow::Cow;

use super::Advantages;
use crate::math::importance::Correction;
use crate::rollout::{Rollout, Rollouts};
use crate::stats::Stats;

/// Log-probabilities of the sampler, and the weights of the losses derived from them.
#[derive(Debug, Clone, PartialEq)]
pub struct OffPolicy {
    /// The sampler's log-probabilities of the counted tokens, one list per rollout; NaN if the sampler returned none.
    pub sampler: Vec<Vec<f32>>,
    /// Factors of the losses of these tokens; `None` without a correction.
    pub ratios: Option<Vec<Vec<f32>>>,
}

impl OffPolicy {
    /// Compares the log-probabilities that `rollouts` were sampled with to those of the trained policy, which by now
    /// are stored as the rollouts' own. Metrics have TRL's names.
    pub fn of(rollouts: &Rollouts, correction: Option<&Correction>, stats: &mut Stats) -> Self {
        let of_sampler =
            |rollout: &Rollout| -> Vec<f32> { rollout.only_counted(&rollout.sampled_logprobs).copied().collect() };
        let sampler: Vec<Vec<f32>> = rollouts.rollouts.iter().map(of_sampler).collect();
        let pairs = || rollouts.rollouts.iter().map(|rollout| rollout.counted_logprobs()).zip(&sampler);
        let logprob_differences = |(own_t, sampler_t): (Cow<'_, [f32]>, &Vec<f32>)| -> Vec<f32> {
            let differences = own_t.iter().zip(sampler_t).map(|(own, sampler)| (own - sampler).abs());
            differences.filter(|difference| !difference.is_nan()).collect()
        };
        let differences: Vec<f32> = pairs().flat_map(logprob_differences).collect();
        stats.mean_of("sampling/sampling_logp_difference/mean", &differences);
        if let Some(largest) = differences.iter().copied().reduce(f32::max) {
            stats.max("sampling/sampling_logp_difference/max", f64::from(largest));
        }
        let Some(correction) = correction else { return Self { sampler, ratios: None } };
        let ratios: Vec<Vec<f32>> = pairs().map(|(own_t, sampler_t)| correction.weights(&own_t, sampler_t)).collect();
        let each: Vec<f32> = match correction.of_sequences {
            true => ratios.iter().filter_map(|ratios_t| ratios_t.first().copied()).collect(),
            false => ratios.concat(),
        };
        stats.mean_of("sampling/importance_sampling_ratio/mean", &each);
        let ends = (each.iter().copied().reduce(f32::min), each.iter().copied().reduce(f32::max));
        if let (Some(least), Some(most)) = ends {
            stats.min("sampling/importance_sampling_ratio/min", f64::from(least));
            stats.max("sampling/importance_sampling_ratio/max", f64::from(most));
        }
        Self { sampler, ratios: Some(ratios) }
    }
}

impl Advantages {
    /// Returns the advantages, each times its ratio. Ratios are at least 0, and for a fixed sign losses are
    /// proportional to advantages, so this multiplies the losses.
    pub(super) fn weighted(&self) -> Cow<'_, [Vec<f32>]> {
        let Some(ratios) = self.off_policy.as_ref().and_then(|off_policy| off_policy.ratios.as_ref()) else {
            return Cow::Borrowed(&self.advantages);
        };
        let times = |(advantages_t, ratios_t): (&Vec<f32>, &Vec<f32>)| -> Vec<f32> {
            advantages_t.iter().zip(ratios_t).map(|(advantage, ratio)| advantage * ratio).collect()
        };
        self.advantages.iter().zip(ratios).map(times).collect()
    }
}
