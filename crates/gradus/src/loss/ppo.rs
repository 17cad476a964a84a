//! Proximal policy optimisation: the clipped surrogate, and what to watch while it runs.

use burn::tensor::Tensor;

/// Bound of `logprob − old logprob` before it is exponentiated: `e^20` still fits an f32 with room for an advantage.
/// As in verl; TRL has none.
pub const LOG_RATIO_BOUND: f64 = 20.0;

/// PPO's clipped surrogate, one value per token, not yet reduced.
///
/// `Lₜ = −min(ρₜ Âₜ, clip(ρₜ, 1−ε_low, 1+ε_high) Âₜ)` with `ρₜ = exp(logprobₜ − old_logprobₜ)`.
/// Schulman et al. 2017, equation 7, <https://arxiv.org/abs/1707.06347>; the bounds may differ (Yu et al. 2025,
/// section 3.1, <https://arxiv.org/abs/2503.14476>).
/// Follows TRL 1.12 (its last PPO trainer); differs in returning tokens where TRL returns a mean.
///
/// All tensors are `[M]`; logprobs are in nats.
/// `logprobs_m` carries gradient; `old_logprobs_m` and `advantages_m` do not.
///
/// # Panics
/// When the three lengths differ.
pub fn clipped_surrogate(
    logprobs_m: Tensor<1>,
    old_logprobs_m: Tensor<1>,
    advantages_m: Tensor<1>,
    clip_low: f64,
    clip_high: f64,
) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!(old_logprobs_m.dims(), [m], "old_logprobs_m");
    assert_eq!(advantages_m.dims(), [m], "advantages_m");

    let ratio_m = (logprobs_m - old_logprobs_m).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp();
    let clipped_m = ratio_m.clone().clamp(1.0 - clip_low, 1.0 + clip_high);
    -(ratio_m * advantages_m.clone()).min_pair(clipped_m * advantages_m)
}

/// Sums over the tokens of an update, from values read to the host; micro-batches are added up.
///
/// With `x = logprob − old logprob` and `ρ = eˣ`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Statistics {
    /// How many tokens.
    pub tokens: usize,
    /// Tokens whose clipped term was the larger loss: those without gradient.
    pub clipped: usize,
    /// `Σ x²`.
    pub square_sum: f64,
    /// `Σ (ρ − 1 − x)`.
    pub k3_sum: f64,
    /// `Σ ρ`.
    pub ratio_sum: f64,
    /// `Σ ρ²`.
    pub ratio_square_sum: f64,
    /// The largest ρ.
    pub ratio_max: f64,
}

impl Statistics {
    /// The statistics of one micro-batch.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn new(
        logprobs_m: &[f32],
        old_logprobs_m: &[f32],
        advantages_m: &[f32],
        clip_low: f64,
        clip_high: f64,
    ) -> Self {
        assert_eq!(old_logprobs_m.len(), logprobs_m.len(), "old_logprobs_m");
        assert_eq!(advantages_m.len(), logprobs_m.len(), "advantages_m");
        let mut sums = Self::default();
        for ((&logprob, &old), &advantage) in logprobs_m.iter().zip(old_logprobs_m).zip(advantages_m) {
            let x = (f64::from(logprob) - f64::from(old)).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND);
            let (ratio, advantage) = (x.exp(), f64::from(advantage));
            let clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high);
            sums.tokens += 1;
            sums.clipped += usize::from(clipped * advantage < ratio * advantage);
            sums.square_sum += x * x;
            sums.k3_sum += x.exp_m1() - x;
            sums.ratio_sum += ratio;
            sums.ratio_square_sum += ratio * ratio;
            sums.ratio_max = sums.ratio_max.max(ratio);
        }
        sums
    }

    /// Adds another micro-batch.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.clipped += other.clipped;
        self.square_sum += other.square_sum;
        self.k3_sum += other.k3_sum;
        self.ratio_sum += other.ratio_sum;
        self.ratio_square_sum += other.ratio_square_sum;
        self.ratio_max = self.ratio_max.max(other.ratio_max);
    }

    fn per_token(&self, sum: f64) -> f64 {
        if self.tokens == 0 { 0.0 } else { sum / self.tokens as f64 }
    }

    /// The share of tokens that were clipped (`policy/clipfrac_avg` in TRL); 0 without tokens.
    pub fn clip_fraction(&self) -> f64 {
        self.per_token(self.clipped as f64)
    }

    /// `½·mean x²` (`policy/approxkl_avg` in TRL); 0 without tokens.
    pub fn approx_kl(&self) -> f64 {
        0.5 * self.per_token(self.square_sum)
    }

    /// `mean(ρ − 1 − x)`, the k3 estimate of KL(old ‖ new) that early stopping looks at; 0 without tokens.
    pub fn k3(&self) -> f64 {
        self.per_token(self.k3_sum)
    }

    /// The mean ratio (`val/ratio` in TRL); 0 without tokens.
    pub fn ratio(&self) -> f64 {
        self.per_token(self.ratio_sum)
    }

    /// The biased variance of the ratio over tokens; 0 without tokens.
    pub fn ratio_variance(&self) -> f64 {
        (self.per_token(self.ratio_square_sum) - self.ratio().powi(2)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};
    use proptest::prelude::*;

    #[test]
    fn inside_and_outside_on_both_sides() {
        // Ratios 1.1, 1.5, 1.5, 0.5, 0.5 with advantages 2, 2, −2, 2, −2 and ε = 0.2:
        // −2.2, −1.2·2, 1.5·2, −0.5·2, 0.8·2; the clipped ones (second and last) have no gradient.
        let ratios: [f32; 5] = [1.1, 1.5, 1.5, 0.5, 0.5];
        let logprobs_m = leaf(&ratios.map(f32::ln));
        let (old_m, advantages_m) = ([0.0f32; 5], [2.0f32, 2.0, -2.0, 2.0, -2.0]);
        let loss_m = clipped_surrogate(logprobs_m.clone(), plain(&old_m), plain(&advantages_m), 0.2, 0.2);
        close(&values(&loss_m), &[-2.2, -2.4, 3.0, -1.0, 1.6], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &logprobs_m), &[-2.2, 0.0, 3.0, -1.0, 0.0], GRADIENT_TOLERANCE);

        let statistics = Statistics::new(&ratios.map(f32::ln), &old_m, &advantages_m, 0.2, 0.2);
        assert_eq!((statistics.tokens, statistics.clipped), (5, 2));
        assert!((statistics.clip_fraction() - 0.4).abs() < 1e-12);
        assert!((statistics.ratio() - 1.02).abs() < 1e-6);
        assert!((statistics.ratio_variance() - 0.2016).abs() < 1e-6, "{}", statistics.ratio_variance());
    }

    #[test]
    fn bounds_may_differ() {
        let logprobs_m = plain(&[1.25f32.ln(), 0.75f32.ln()]);
        let loss_m = clipped_surrogate(logprobs_m, plain(&[0.0, 0.0]), plain(&[1.0, -1.0]), 0.2, 0.28);
        close(&values(&loss_m), &[-1.25, 0.8], VALUE_TOLERANCE);
    }

    #[test]
    fn far_apart_stays_finite() {
        let logprobs_m = leaf(&[0.0, -500.0, 0.0]);
        let loss_m =
            clipped_surrogate(logprobs_m.clone(), plain(&[-500.0, 0.0, -500.0]), plain(&[1.0, 1.0, -1.0]), 0.2, 0.2);
        assert!(values(&loss_m).iter().chain(&gradient(&loss_m, &logprobs_m)).all(|v| v.is_finite()));
    }

    #[test]
    fn micro_batches_add_up() {
        let (logprobs, old, advantages) = ([-1.0, -0.5, -2.0, -0.2], [-1.1, -0.9, -1.7, -0.5], [1.0, 1.0, -0.5, -0.5]);
        let whole = Statistics::new(&logprobs, &old, &advantages, 0.2, 0.2);
        let mut parts = Statistics::new(&logprobs[..1], &old[..1], &advantages[..1], 0.2, 0.2);
        parts.add(&Statistics::new(&logprobs[1..], &old[1..], &advantages[1..], 0.2, 0.2));
        assert!((whole.approx_kl() - parts.approx_kl()).abs() < 1e-12 && whole.clipped == parts.clipped);
        assert!((whole.k3() - parts.k3()).abs() < 1e-12 && whole.ratio_max == parts.ratio_max);
        assert_eq!(Statistics::default().clip_fraction(), 0.0);
    }

    proptest! {
        #[test]
        fn at_ratio_one_the_gradient_is_reinforce(
            tokens in prop::collection::vec((-5.0f32..0.0, -3.0f32..3.0), 1..20),
        ) {
            let (logprobs, advantages): (Vec<f32>, Vec<f32>) = tokens.into_iter().unzip();
            let logprobs_m = leaf(&logprobs);
            let loss_m = clipped_surrogate(logprobs_m.clone(), plain(&logprobs), plain(&advantages), 0.2, 0.2);
            let minus: Vec<f32> = advantages.iter().map(|a| -a).collect();
            prop_assert_eq!(gradient(&loss_m, &logprobs_m), minus.clone());
            prop_assert_eq!(values(&loss_m), minus);
            let statistics = Statistics::new(&logprobs, &logprobs, &advantages, 0.2, 0.2);
            prop_assert_eq!((statistics.clipped, statistics.approx_kl(), statistics.ratio()), (0, 0.0, 1.0));
        }
    }
}
