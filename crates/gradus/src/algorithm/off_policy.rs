//! Rollouts that were sampled by another engine or by an earlier policy, and the correction for it.

use std::borrow::Cow;

use super::{Advantages, Experience};
use crate::math::importance::Correction;
use crate::rollout::{Rollout, StopReason};
use crate::stats::Stats;

/// Log-probabilities of the sampler of a rollout, and the weights of the losses derived from them.
#[derive(Debug, Clone, PartialEq)]
pub struct OffPolicy {
    /// The sampler's log-probabilities of the counted tokens; NaN if the sampler returned none.
    pub sampler_t: Vec<f32>,
    /// Factors of the losses of these tokens; `None` without a correction.
    pub ratios_t: Option<Vec<f32>>,
}

impl Experience {
    /// Compares the log-probabilities that the rollouts were sampled with to those of the trained policy, which by now
    /// are stored as the rollouts' own. Metrics have TRL's names. With `masks_truncated`, they leave out the tokens of completions that were
    /// cut off, which carry no loss.
    pub(crate) fn compare_with_sampler(
        &mut self,
        correction: Option<&Correction>,
        masks_truncated: bool,
        stats: &mut Stats,
    ) {
        let counts = |rollout: &Rollout| !(masks_truncated && rollout.stop == StopReason::Length);
        for scored in &mut self.rollouts {
            let (rollout, own_t) = (&scored.rollout, scored.rollout.counted_logprobs());
            let sampler_t: Vec<f32> = rollout.only_counted(&rollout.sampled_logprobs).copied().collect();
            // As in TRL, the ratio of a sequence is the product over the tokens that carry loss, so 1 without such a token.
            let compared_t: &[f32] = if counts(rollout) { &sampler_t } else { &own_t };
            let ratios_t = correction.map(|correction| correction.weights(&own_t, compared_t));
            scored.off_policy = Some(OffPolicy { sampler_t, ratios_t });
        }
        let compared =
            || self.rollouts.iter().filter_map(|scored| Some((&scored.rollout, scored.off_policy.as_ref()?)));
        let with_loss = || compared().filter(|(rollout, _)| counts(rollout));
        let pairs = || with_loss().map(|(rollout, off_policy)| (rollout.counted_logprobs(), &off_policy.sampler_t));
        let logprob_differences = |(own_t, sampler_t): (Cow<'_, [f32]>, &Vec<f32>)| -> Vec<f32> {
            let differences = own_t.iter().zip(sampler_t).map(|(own, sampler)| (own - sampler).abs());
            differences.filter(|difference| !difference.is_nan()).collect()
        };
        let differences: Vec<f32> = pairs().flat_map(logprob_differences).collect();
        stats.mean_of("sampling/sampling_logp_difference/mean", &differences);
        if let Some(largest) = differences.iter().copied().reduce(f32::max) {
            stats.max("sampling/sampling_logp_difference/max", f64::from(largest));
        }
        let Some(correction) = correction else { return };
        let each: Vec<f32> = match correction.of_sequences {
            true => compared().filter_map(|(_, off_policy)| off_policy.ratios_t.as_ref()?.first().copied()).collect(),
            false => {
                with_loss().filter_map(|(_, off_policy)| off_policy.ratios_t.as_deref()).flatten().copied().collect()
            }
        };
        stats.mean_of("sampling/importance_sampling_ratio/mean", &each);
        let ends = (each.iter().copied().reduce(f32::min), each.iter().copied().reduce(f32::max));
        if let (Some(least), Some(most)) = ends {
            stats.min("sampling/importance_sampling_ratio/min", f64::from(least));
            stats.max("sampling/importance_sampling_ratio/max", f64::from(most));
        }
    }

    /// Returns the advantages of the chosen rollouts, end to end, each times its ratio. Ratios are at least 0, and for a
    /// fixed sign losses are proportional to advantages, so this multiplies the losses.
    pub(super) fn weighted(&self, advantages: &Advantages, chosen: &[usize]) -> Vec<f32> {
        let advantages = advantages.gather(chosen);
        match self.ratios(chosen) {
            Some(ratios) => advantages.iter().zip(&ratios).map(|(advantage, ratio)| advantage * ratio).collect(),
            None => advantages,
        }
    }

    /// Returns the ratios of the chosen rollouts, end to end; `None` without a correction.
    pub(super) fn ratios(&self, chosen: &[usize]) -> Option<Vec<f32>> {
        self.gather(chosen, |scored| scored.off_policy.as_ref()?.ratios_t.as_ref())
    }
}
