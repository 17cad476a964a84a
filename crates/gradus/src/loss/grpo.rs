//! Group relative policy optimisation: the clipped token loss with separate bounds, its cap, and the KL term.
//!
//! Shao et al. 2024, equation 3, <https://arxiv.org/abs/2402.03300>. Which mean is taken over tokens and sequences
//! (GRPO, Dr. GRPO, DAPO, BNPO) is a matter of weights: [`crate::math::weights`]. Follows TRL 1.16.

use burn::tensor::Tensor;

/// The bounds of the token loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrpoLoss {
    /// The ratio is clipped below at `1 − clip_low`.
    pub clip_low: f64,
    /// … and above at `1 + clip_high`.
    pub clip_high: f64,
    /// Cap of the unclipped ratio, which otherwise grows without bound where the advantage is negative (two-sided
    /// clipping, INTELLECT-2, section 3.4, <https://arxiv.org/abs/2505.07291>).
    pub delta: Option<f64>,
}

/// Whether the KL term is multiplied by the importance ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KlCorrection {
    /// Yes: its gradient becomes that of the reverse KL (DeepSeek-V3.2, section 3.1; TRL's default).
    ImportanceRatio,
    /// No: plain k3, as in the GRPO paper.
    None,
}

/// `Lₜ = −min(min(ρₜ, δ)·Âₜ, clip(ρₜ, 1−ε_low, 1+ε_high)·Âₜ)`, one value per token.
///
/// With `ρₜ = exp(logprobₜ − old_logprobₜ)`. All tensors are `[M]`; `logprobs_m` carries gradient, the others do not.
///
/// # Panics
/// When the lengths differ.
pub fn token_loss(
    logprobs_m: Tensor<1>,
    old_logprobs_m: Tensor<1>,
    advantages_m: Tensor<1>,
    bounds: &GrpoLoss,
) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!(old_logprobs_m.dims(), [m], "old_logprobs_m");
    assert_eq!(advantages_m.dims(), [m], "advantages_m");

    let ratio_m = (logprobs_m - old_logprobs_m).exp();
    let clipped_m = ratio_m.clone().clamp(1.0 - bounds.clip_low, 1.0 + bounds.clip_high);
    let capped_m = match bounds.delta {
        Some(delta) => ratio_m.clamp_max(delta),
        None => ratio_m,
    };
    -(capped_m * advantages_m.clone()).min_pair(clipped_m * advantages_m)
}

/// The KL term, one value per token: k3 of the policy against the reference, times the ratio when corrected.
///
/// All tensors are `[M]`; `logprobs_m` carries gradient, the others do not.
///
/// # Panics
/// When the lengths differ.
pub fn kl_term(
    logprobs_m: Tensor<1>,
    reference_m: Tensor<1>,
    old_logprobs_m: Tensor<1>,
    bias_correction: KlCorrection,
) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!(old_logprobs_m.dims(), [m], "old_logprobs_m");
    let k3_m = super::kl::k3(logprobs_m.clone(), reference_m);
    match bias_correction {
        KlCorrection::ImportanceRatio => k3_m * (logprobs_m - old_logprobs_m).exp(),
        KlCorrection::None => k3_m,
    }
}

/// Which tokens were clipped, counted over an update from values read to the host; micro-batches are added up.
///
/// A token is clipped low when its ratio is below `1 − clip_low` and its advantage negative, high when the ratio is
/// above `1 + clip_high` and the advantage positive: where the loss has no gradient.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClipCounts {
    /// How many tokens.
    pub tokens: usize,
    /// Tokens clipped low.
    pub low: usize,
    /// Tokens clipped high.
    pub high: usize,
    /// The smallest share of low-clipped tokens in a sequence; `None` before any.
    pub low_min: Option<f64>,
    /// The largest share of high-clipped tokens in a sequence; `None` before any.
    pub high_max: Option<f64>,
}

impl ClipCounts {
    /// The counts of one micro-batch; `counts_b` says how many of the `M` tokens each sequence has.
    ///
    /// # Panics
    /// When the lengths differ, or the counts do not sum to `M`.
    pub fn new(
        logprobs_m: &[f32],
        old_logprobs_m: &[f32],
        advantages_m: &[f32],
        counts_b: &[usize],
        bounds: &GrpoLoss,
    ) -> Self {
        assert_eq!(old_logprobs_m.len(), logprobs_m.len(), "old_logprobs_m");
        assert_eq!(advantages_m.len(), logprobs_m.len(), "advantages_m");
        assert_eq!(counts_b.iter().sum::<usize>(), logprobs_m.len(), "counts_b sum to M");
        let mut total = Self::default();
        let mut start = 0;
        for &count in counts_b.iter().filter(|count| **count > 0) {
            let mut sequence = Self { tokens: count, ..Self::default() };
            for m in start..start + count {
                let ratio = (f64::from(logprobs_m[m]) - f64::from(old_logprobs_m[m])).exp();
                let ratio = bounds.delta.map_or(ratio, |delta| ratio.min(delta));
                sequence.low += usize::from(ratio < 1.0 - bounds.clip_low && advantages_m[m] < 0.0);
                sequence.high += usize::from(ratio > 1.0 + bounds.clip_high && advantages_m[m] > 0.0);
            }
            sequence.low_min = Some(sequence.low_fraction());
            sequence.high_max = Some(sequence.high_fraction());
            total.add(&sequence);
            start += count;
        }
        total
    }

    /// Adds another micro-batch.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.low += other.low;
        self.high += other.high;
        self.low_min = [self.low_min, other.low_min].into_iter().flatten().reduce(f64::min);
        self.high_max = [self.high_max, other.high_max].into_iter().flatten().reduce(f64::max);
    }

    fn per_token(&self, count: usize) -> f64 {
        if self.tokens == 0 { 0.0 } else { count as f64 / self.tokens as f64 }
    }

    /// The share of tokens clipped low (`clip_ratio/low_mean` in TRL); 0 without tokens.
    pub fn low_fraction(&self) -> f64 {
        self.per_token(self.low)
    }

    /// The share of tokens clipped high (`clip_ratio/high_mean` in TRL); 0 without tokens.
    pub fn high_fraction(&self) -> f64 {
        self.per_token(self.high)
    }

    /// The share of tokens clipped at all (`clip_ratio/region_mean` in TRL); 0 without tokens.
    pub fn region_fraction(&self) -> f64 {
        self.per_token(self.low + self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, gradient, leaf, plain, values};
    use crate::loss::reduce::weighted_sum;
    use crate::math::{Reduction, token_weights, weights::per_token};

    // Two completions of three and two counted tokens, advantages 1 and −½, ε = 0.2; values from TRL 1.16.0.
    const LOGPROBS_M: [f32; 5] = [-1.0, -0.5, -2.0, -0.2, -1.5];
    const OLD_M: [f32; 5] = [-1.1, -0.9, -1.7, -0.5, -1.2];
    const REFERENCE_M: [f32; 5] = [-1.2, -0.6, -1.5, -0.4, -1.0];
    const ADVANTAGES_M: [f32; 5] = [1.0, 1.0, 1.0, -0.5, -0.5];
    const COUNTS_B: [usize; 2] = [3, 2];
    const BOUNDS: GrpoLoss = GrpoLoss { clip_low: 0.2, clip_high: 0.2, delta: None };

    fn check(loss_m: Tensor<1>, logprobs_m: &Tensor<1>, reduction: Reduction, loss: f64, slope_sum: Option<f64>) {
        let weights_m = per_token(&token_weights(&COUNTS_B, reduction), &COUNTS_B);
        let reduced = weighted_sum(loss_m, plain(&weights_m));
        let found = f64::from(values(&reduced)[0]);
        assert!((found - loss).abs() < VALUE_TOLERANCE, "{reduction:?}: {found} against {loss}");
        let found: f64 = gradient(&reduced, logprobs_m).iter().map(|g| f64::from(g.abs())).sum();
        let expected = slope_sum.unwrap_or(found);
        assert!((found - expected).abs() < GRADIENT_TOLERANCE, "{reduction:?}: Σ|gradient| {found} against {expected}");
    }

    #[test]
    fn every_reduction_as_in_trl() {
        for (reduction, loss, slope_sum) in [
            (Reduction::SequenceMean, -0.238_932_51, 0.476_397_21),   // grpo
            (Reduction::TokenMean, -0.394_211_95, 0.504_183_71),      // dapo, bnpo
            (Reduction::FixedLength(4), -0.246_382_47, 0.315_114_82), // dr_grpo
            (Reduction::SequenceSum, -0.985_529_87, 1.260_459_27),    // luspo
        ] {
            let logprobs_m = leaf(&LOGPROBS_M);
            let loss_m = token_loss(logprobs_m.clone(), plain(&OLD_M), plain(&ADVANTAGES_M), &BOUNDS);
            check(loss_m, &logprobs_m, reduction, loss, Some(slope_sum));
        }
    }

    #[test]
    fn kl_and_cap_as_in_trl() {
        let logprobs_m = leaf(&LOGPROBS_M);
        for (correction, loss) in [(KlCorrection::ImportanceRatio, -0.392_023_53), (KlCorrection::None, -0.391_494_02)]
        {
            let policy_m = token_loss(logprobs_m.clone(), plain(&OLD_M), plain(&ADVANTAGES_M), &BOUNDS);
            let kl_m = kl_term(logprobs_m.clone(), plain(&REFERENCE_M), plain(&OLD_M), correction);
            check(policy_m + kl_m * 0.04, &logprobs_m, Reduction::TokenMean, loss, None);
        }
        let kl_m = kl_term(logprobs_m.clone(), plain(&REFERENCE_M), plain(&OLD_M), KlCorrection::ImportanceRatio);
        check(kl_m, &logprobs_m, Reduction::TokenMean, 0.054_71, None);
        let bounds = GrpoLoss { delta: Some(1.3), ..BOUNDS };
        let capped_m = token_loss(logprobs_m.clone(), plain(&OLD_M), plain(&ADVANTAGES_M), &bounds);
        check(capped_m, &logprobs_m, Reduction::TokenMean, -0.399_197_83, None);
    }

    #[test]
    fn clip_counts_as_in_trl() {
        let counts = ClipCounts::new(&LOGPROBS_M, &OLD_M, &ADVANTAGES_M, &COUNTS_B, &BOUNDS);
        assert_eq!((counts.low_fraction(), counts.high_fraction(), counts.region_fraction()), (0.2, 0.2, 0.4));
        assert_eq!((counts.low_min, counts.high_max), (Some(0.0), Some(1.0 / 3.0)));
        let mut parts = ClipCounts::new(&LOGPROBS_M[..3], &OLD_M[..3], &ADVANTAGES_M[..3], &[3, 0], &BOUNDS);
        parts.add(&ClipCounts::new(&LOGPROBS_M[3..], &OLD_M[3..], &ADVANTAGES_M[3..], &[2], &BOUNDS));
        assert_eq!(counts, parts);
        assert_eq!(ClipCounts::new(&[], &[], &[], &[0], &BOUNDS), ClipCounts::default());
    }

    #[test]
    fn no_advantage_no_gradient() {
        let logprobs_m = leaf(&LOGPROBS_M);
        let loss_m = token_loss(logprobs_m.clone(), plain(&OLD_M), plain(&[0.0; 5]), &BOUNDS);
        assert!(gradient(&loss_m, &logprobs_m).iter().all(|g| *g == 0.0));
    }
}
