//! Importance weights of completions that were sampled by another policy than the trained one, and a mask for those that are too far off.
//!
//! The same policy on a server counts as another policy, because its kernels round differently. Follows TRL 1.16.

/// Correction of the loss by the ratio of the trainer's to the sampler's probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// Use one ratio per sequence, the product of its tokens' ratios, instead of one per token.
    pub of_sequences: bool,
    /// Set ratios outside the bounds to 0 instead of clamping them.
    pub masks: bool,
    /// Lower bound of the ratios; `None` for no bound.
    pub low: Option<f64>,
    /// Upper bound of the ratios; `None` for no bound.
    pub high: Option<f64>,
}

impl Correction {
    /// Returns the factor of each token's loss, from its log-probabilities under the trainer and under the sampler. A token for which the
    /// sampler reports no log-probability (NaN) has the ratio 1.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn weights(&self, trainer_t: &[f32], sampler_t: &[f32]) -> Vec<f32> {
        assert_eq!(trainer_t.len(), sampler_t.len(), "one log-probability a token");
        let differences = trainer_t.iter().zip(sampler_t).map(|(trainer, sampler)| difference(*trainer, *sampler));
        match self.of_sequences {
            true => vec![self.bound(differences.sum::<f64>().exp()); trainer_t.len()],
            false => differences.map(|difference| self.bound(difference.exp())).collect(),
        }
    }

    fn bound(&self, ratio: f64) -> f32 {
        let (low, high) = (self.low.unwrap_or(f64::NEG_INFINITY), self.high.unwrap_or(f64::INFINITY));
        let bounded = match self.masks {
            true if ratio < low || ratio > high => 0.0,
            true => ratio,
            false => ratio.max(low).min(high),
        };
        bounded as f32
    }
}

/// `trainer − sampler`; 0 if either is unknown (NaN).
fn difference(trainer: f32, sampler: f32) -> f64 {
    let difference = f64::from(trainer) - f64::from(sampler);
    if difference.is_nan() { 0.0 } else { difference }
}

/// Returns 1 for each token that is trained on and 0 for the others (the off-policy sequence mask of DeepSeek-V3.2). All tokens are trained
/// on if the sampler is at most `threshold` nats per token away from the policy; otherwise only those with an advantage of at least 0.
///
/// # Panics
/// When the lengths differ.
pub fn off_policy_mask(sampler_t: &[f32], policy_t: &[f32], advantages_t: &[f32], threshold: f64) -> Vec<f32> {
    assert_eq!((sampler_t.len(), policy_t.len()), (advantages_t.len(), advantages_t.len()), "one value a token");
    let sum: f64 = sampler_t.iter().zip(policy_t).map(|(sampler, policy)| difference(*sampler, *policy)).sum();
    let is_near = sum / sampler_t.len().max(1) as f64 <= threshold;
    advantages_t.iter().map(|advantage| if is_near || *advantage >= 0.0 { 1.0 } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_cut_or_dropped_at_the_bounds() {
        let (trainer, sampler) = ([-1.0, -2.0, -0.5], [-1.0, -0.5, f32::NAN]);
        let of =
            |of_sequences, masks, low, high| Correction { of_sequences, masks, low, high }.weights(&trainer, &sampler);
        let far = (-1.5f64).exp() as f32;
        assert_eq!(of(false, false, None, Some(3.0)), [1.0, far, 1.0]);
        assert_eq!(of(false, false, Some(0.5), None), [1.0, 0.5, 1.0]);
        assert_eq!(of(false, true, Some(0.5), None), [1.0, 0.0, 1.0]);
        assert_eq!(of(true, true, None, Some(3.0)), [far; 3]);
        assert_eq!(of(true, true, None, Some(0.1)), [0.0; 3]);
        assert_eq!(of(true, false, None, Some(0.1)), [0.1; 3]);
    }

    #[test]
    fn only_what_is_bad_and_far_is_dropped() {
        let mask =
            |sampler: f32, advantage: f32| off_policy_mask(&[sampler, sampler], &[-1.0, -1.0], &[advantage; 2], 0.5);
        assert_eq!(mask(-0.4, -1.0), [0.0, 0.0]);
        assert_eq!(mask(-0.4, 1.0), [1.0, 1.0]);
        assert_eq!(mask(-0.5, -1.0), [1.0, 1.0]);
        assert_eq!(mask(-9.0, -1.0), [1.0, 1.0], "far to the other side is not far");
        assert_eq!(mask(f32::NAN, -1.0), [1.0, 1.0]);
    }
}
