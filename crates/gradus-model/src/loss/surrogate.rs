//! The clipped surrogate of PPO and GRPO, and statistics of its ratios.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::reduce::{segment_mean, segment_sum, spread};

/// Bound of `logprob − old logprob` before the exponential. An f32 can hold `e^20` times an advantage. As in verl; TRL has no bound.
pub const LOG_RATIO_BOUND: f64 = 20.0;

/// Bounds of the importance ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// Clips below at `1 − low`.
    pub low: f64,
    /// Clips above at `1 + high`. It may differ from `low` (Yu et al. 2025, section 3.1, <https://arxiv.org/abs/2503.14476>).
    pub high: f64,
    /// Cap of the unclipped ratio. Without it, the loss is unbounded for negative advantages (two-sided clipping, INTELLECT-2, section 3.4,
    /// <https://arxiv.org/abs/2505.07291>).
    pub delta: Option<f64>,
}

impl Clip {
    /// Clips by `range` below and above 1.
    pub fn symmetric(range: f64) -> Self {
        Self { low: range, high: range, delta: None }
    }
}

/// Unit of the importance ratio: a token or a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// One ratio per token (PPO, GRPO).
    Token,
    /// One ratio per sequence: the geometric mean of its tokens' ratios (Zheng et al. 2025, GSPO, equation 7,
    /// <https://arxiv.org/abs/2507.18071>).
    SequenceMean,
    /// One ratio per sequence: the product of its tokens' ratios (RLOO).
    SequenceProduct,
}

impl Level {
    /// Computes the log-ratios `x = logprob − old_logprob` at this level. The log-ratio of a sequence is repeated for each of its tokens.
    ///
    /// All are `[M]`; `logprobs_m` carries gradient, `old_logprobs_m` does not.
    ///
    /// # Panics
    /// When the lengths differ, or the counts do not sum to `M`.
    pub fn log_ratios(self, logprobs_m: Tensor<1>, old_logprobs_m: Tensor<1>, counts_b: &[usize]) -> Tensor<1> {
        let [m] = logprobs_m.dims();
        assert_eq!(old_logprobs_m.dims(), [m], "old_logprobs_m");
        let log_ratios_m = logprobs_m - old_logprobs_m;
        match self {
            Self::Token => log_ratios_m,
            Self::SequenceMean => spread(segment_mean(log_ratios_m, counts_b), counts_b),
            Self::SequenceProduct => spread(segment_sum(log_ratios_m, counts_b), counts_b),
        }
    }
}

/// `ρ = eˣ` with the log-ratio `x` bounded by [`LOG_RATIO_BOUND`]; both `[M]`.
pub fn ratio(log_ratios_m: Tensor<1>) -> Tensor<1> {
    log_ratios_m.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
}

/// The clipped surrogate, one value per token, not yet reduced.
///
/// `Lₜ = −min(min(ρₜ, δ)·Âₜ, clip(ρₜ, 1−ε_low, 1+ε_high)·Âₜ)` with `ρₜ` the [`ratio`] of a token or of its sequence ([`Level`]). Schulman
/// et al. 2017, equation 7, <https://arxiv.org/abs/1707.06347>; Shao et al. 2024, equation 3, <https://arxiv.org/abs/2402.03300>, which
/// differs only in advantages, reduction and KL term. Follows TRL 1.12 (its last PPO trainer) and 1.16 (GRPO), but returns one value per
/// token where TRL returns a mean.
/// All tensors are `[M]`.
/// `log_ratios_m` carries gradient; `advantages_m` does not.
///
/// # Panics
/// When the lengths differ.
pub fn clipped_surrogate(log_ratios_m: Tensor<1>, advantages_m: Tensor<1>, clip: &Clip) -> Tensor<1> {
    let [m] = log_ratios_m.dims();
    assert_eq!(advantages_m.dims(), [m], "advantages_m");

    let ratio_m = ratio(log_ratios_m);
    let clipped_m = ratio_m.clone().clamp(1.0 - clip.low, 1.0 + clip.high);
    let capped_m = match clip.delta {
        Some(delta) => ratio_m.clamp_max(delta),
        None => ratio_m,
    };
    -(capped_m * advantages_m.clone()).min_pair(clipped_m * advantages_m)
}

/// Statistics of the ratios of an update, from values on the host; micro-batches are added up.
///
/// `x = logprob − old logprob` and `ρ = eˣ`. A token is clipped low if its ratio is below `1 − low` and its advantage negative. It is
/// clipped high if its ratio is above `1 + high` and its advantage positive. Clipped tokens have no gradient.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// Number of tokens.
    pub tokens: usize,
    /// Number of tokens clipped low.
    pub low: usize,
    /// Number of tokens clipped high.
    pub high: usize,
    /// Smallest share of low-clipped tokens in a sequence; `None` without sequences.
    pub low_min: Option<f64>,
    /// Largest share of high-clipped tokens in a sequence; `None` without sequences.
    pub high_max: Option<f64>,
    /// `Σ x²`.
    pub square_sum: f64,
    /// `Σ (ρ − 1 − x)`.
    pub k3_sum: f64,
    /// `Σ ρ`.
    pub ratio_sum: f64,
    /// `Σ ρ²`.
    pub ratio_square_sum: f64,
    /// Largest ρ.
    pub ratio_max: f64,
}

impl Statistics {
    /// Computes the statistics of one micro-batch; `counts_b` holds the number of tokens of each sequence.
    ///
    /// # Panics
    /// When the lengths differ, or the counts do not sum to `M`.
    pub fn new(
        logprobs_m: &[f32],
        old_logprobs_m: &[f32],
        advantages_m: &[f32],
        counts_b: &[usize],
        clip: &Clip,
    ) -> Self {
        check_lengths(logprobs_m, old_logprobs_m, advantages_m, counts_b);
        let mut sums = Self::default();
        let mut start = 0;
        for &count in counts_b.iter().filter(|count| **count > 0) {
            let (low, high) = (sums.low, sums.high);
            for m in start..start + count {
                sums.add_token(f64::from(logprobs_m[m]) - f64::from(old_logprobs_m[m]), advantages_m[m], clip);
            }
            let share = |clipped: usize| Some(clipped as f64 / count as f64);
            sums.low_min = extreme(sums.low_min, share(sums.low - low), f64::min);
            sums.high_max = extreme(sums.high_max, share(sums.high - high), f64::max);
            start += count;
        }
        sums
    }

    /// Like [`new`](Self::new), but at `level`. At the level of sequences, each sequence counts as one token; empty sequences do not count.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn at(
        level: Level,
        logprobs_m: &[f32],
        old_logprobs_m: &[f32],
        advantages_m: &[f32],
        counts_b: &[usize],
        clip: &Clip,
    ) -> Self {
        if level == Level::Token {
            return Self::new(logprobs_m, old_logprobs_m, advantages_m, counts_b, clip);
        }
        check_lengths(logprobs_m, old_logprobs_m, advantages_m, counts_b);
        let (mut log_ratios_b, mut advantages_b, mut start) = (Vec::new(), Vec::new(), 0);
        for &count in counts_b.iter().filter(|count| **count > 0) {
            let tokens = start..start + count;
            let of_token = |m: usize| f64::from(logprobs_m[m]) - f64::from(old_logprobs_m[m]);
            let sum: f64 = tokens.clone().map(of_token).sum();
            let sum = if level == Level::SequenceMean { sum / count as f64 } else { sum };
            log_ratios_b.push(sum as f32);
            advantages_b.push(advantages_m[start]);
            start = tokens.end;
        }
        let (zeros_b, ones_b) = (vec![0.0; log_ratios_b.len()], vec![1; log_ratios_b.len()]);
        Self::new(&log_ratios_b, &zeros_b, &advantages_b, &ones_b, clip)
    }

    fn add_token(&mut self, log_ratio: f64, advantage: f32, clip: &Clip) {
        let x = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND);
        let ratio = x.exp();
        let capped = clip.delta.map_or(ratio, |delta| ratio.min(delta));
        self.tokens += 1;
        self.low += usize::from(capped < 1.0 - clip.low && advantage < 0.0);
        self.high += usize::from(capped > 1.0 + clip.high && advantage > 0.0);
        self.square_sum += x * x;
        self.k3_sum += x.exp_m1() - x;
        self.ratio_sum += ratio;
        self.ratio_square_sum += ratio * ratio;
        self.ratio_max = self.ratio_max.max(ratio);
    }

    /// Adds the statistics of another micro-batch.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.low += other.low;
        self.high += other.high;
        self.low_min = extreme(self.low_min, other.low_min, f64::min);
        self.high_max = extreme(self.high_max, other.high_max, f64::max);
        self.square_sum += other.square_sum;
        self.k3_sum += other.k3_sum;
        self.ratio_sum += other.ratio_sum;
        self.ratio_square_sum += other.ratio_square_sum;
        self.ratio_max = self.ratio_max.max(other.ratio_max);
    }

    fn per_token(&self, sum: f64) -> f64 {
        if self.tokens == 0 { 0.0 } else { sum / self.tokens as f64 }
    }

    /// Share of tokens clipped low (`clip_ratio/low_mean` in TRL); 0 without tokens.
    pub fn low_fraction(&self) -> f64 {
        self.per_token(self.low as f64)
    }

    /// Share of tokens clipped high (`clip_ratio/high_mean` in TRL); 0 without tokens.
    pub fn high_fraction(&self) -> f64 {
        self.per_token(self.high as f64)
    }

    /// Share of clipped tokens (`clip_ratio/region_mean` and `policy/clipfrac_avg` in TRL); 0 without tokens.
    pub fn clip_fraction(&self) -> f64 {
        self.per_token((self.low + self.high) as f64)
    }

    /// `½·mean x²` (`policy/approxkl_avg` in TRL); 0 without tokens.
    pub fn approx_kl(&self) -> f64 {
        0.5 * self.per_token(self.square_sum)
    }

    /// `mean(ρ − 1 − x)`, the k3 estimate of KL(old ‖ new) that early stopping uses; 0 without tokens.
    pub fn k3(&self) -> f64 {
        self.per_token(self.k3_sum)
    }

    /// Mean ratio (`val/ratio` in TRL); 0 without tokens.
    pub fn ratio(&self) -> f64 {
        self.per_token(self.ratio_sum)
    }

    /// Biased variance of the ratio over tokens; 0 without tokens.
    pub fn ratio_variance(&self) -> f64 {
        (self.per_token(self.ratio_square_sum) - self.ratio().powi(2)).max(0.0)
    }
}

/// Rejects lists that are not one number per token, and sequences that are not all tokens.
fn check_lengths(logprobs_m: &[f32], old_logprobs_m: &[f32], advantages_m: &[f32], counts_b: &[usize]) {
    assert_eq!(old_logprobs_m.len(), logprobs_m.len(), "old_logprobs_m");
    assert_eq!(advantages_m.len(), logprobs_m.len(), "advantages_m");
    assert_eq!(counts_b.iter().sum::<usize>(), logprobs_m.len(), "counts_b sum to M");
}

/// Combines two optional values with `of` (minimum or maximum).
fn extreme(a: Option<f64>, b: Option<f64>, of: fn(f64, f64) -> f64) -> Option<f64> {
    [a, b].into_iter().flatten().reduce(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};
    use crate::loss::reduce::weighted_sum;
    use gradus_core::math::{Reduction, token_weights, weights::per_token};
    use proptest::prelude::*;

    #[test]
    fn inside_and_outside_on_both_sides() {
        // Ratios 1.1, 1.5, 1.5, 0.5, 0.5 with advantages 2, 2, −2, 2, −2 and ε = 0.2:
        // −2.2, −1.2·2, 1.5·2, −0.5·2, 0.8·2; the clipped ones (second and last) have no gradient.
        let ratios: [f32; 5] = [1.1, 1.5, 1.5, 0.5, 0.5];
        let (logprobs_m, clip) = (leaf(&ratios.map(f32::ln)), Clip::symmetric(0.2));
        let (old_m, advantages_m) = ([0.0f32; 5], [2.0f32, 2.0, -2.0, 2.0, -2.0]);
        let loss_m = clipped_surrogate(logprobs_m.clone() - plain(&old_m), plain(&advantages_m), &clip);
        close(&values(&loss_m), &[-2.2, -2.4, 3.0, -1.0, 1.6], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &logprobs_m), &[-2.2, 0.0, 3.0, -1.0, 0.0], GRADIENT_TOLERANCE);

        let statistics = Statistics::new(&ratios.map(f32::ln), &old_m, &advantages_m, &[5], &clip);
        assert_eq!((statistics.tokens, statistics.low, statistics.high), (5, 1, 1));
        assert!((statistics.clip_fraction() - 0.4).abs() < 1e-12);
        assert!((statistics.ratio() - 1.02).abs() < 1e-6);
        assert!((statistics.ratio_variance() - 0.2016).abs() < 1e-6, "{}", statistics.ratio_variance());
    }

    #[test]
    fn bounds_may_differ() {
        let logprobs_m = plain(&[1.25f32.ln(), 0.75f32.ln()]);
        let clip = Clip { high: 0.28, ..Clip::symmetric(0.2) };
        let loss_m = clipped_surrogate(logprobs_m, plain(&[1.0, -1.0]), &clip);
        close(&values(&loss_m), &[-1.25, 0.8], VALUE_TOLERANCE);
    }

    #[test]
    fn far_apart_stays_finite() {
        let logprobs_m = leaf(&[0.0, -500.0, 0.0, 0.0]);
        let (old_m, advantages_m) = (plain(&[-500.0, 0.0, -500.0, -500.0]), plain(&[1.0, 1.0, -1.0, 0.0]));
        for delta in [None, Some(2.0)] {
            let clip = Clip { delta, ..Clip::symmetric(0.2) };
            let loss_m = clipped_surrogate(logprobs_m.clone() - old_m.clone(), advantages_m.clone(), &clip);
            assert!(values(&loss_m).iter().chain(&gradient(&loss_m, &logprobs_m)).all(|v| v.is_finite()));
        }
    }

    // Two completions of three and two counted tokens, advantages 1 and −½, ε = 0.2; values from TRL 1.16.0.
    const LOGPROBS_M: [f32; 5] = [-1.0, -0.5, -2.0, -0.2, -1.5];
    const OLD_M: [f32; 5] = [-1.1, -0.9, -1.7, -0.5, -1.2];
    const ADVANTAGES_M: [f32; 5] = [1.0, 1.0, 1.0, -0.5, -0.5];
    const COUNTS_B: [usize; 2] = [3, 2];

    #[test]
    fn every_reduction_and_the_cap_as_in_trl() {
        let capped = Some(1.3);
        for (reduction, delta, loss, slope_sum) in [
            (Reduction::SequenceMean, None, -0.238_932_51, Some(0.476_397_21)), // grpo
            (Reduction::TokenMean, None, -0.394_211_95, Some(0.504_183_71)),    // dapo, bnpo
            (Reduction::FixedLength(4), None, -0.246_382_47, Some(0.315_114_82)), // dr_grpo
            (Reduction::SequenceSum, None, -0.985_529_87, Some(1.260_459_27)),  // luspo
            (Reduction::TokenMean, capped, -0.399_197_83, None),
        ] {
            let (logprobs_m, clip) = (leaf(&LOGPROBS_M), Clip { delta, ..Clip::symmetric(0.2) });
            let loss_m = clipped_surrogate(logprobs_m.clone() - plain(&OLD_M), plain(&ADVANTAGES_M), &clip);
            let weights_m = per_token(&token_weights(&COUNTS_B, reduction), &COUNTS_B);
            let reduced = weighted_sum(loss_m, plain(&weights_m));
            close(&values(&reduced), &[loss], VALUE_TOLERANCE);
            let found: f64 = gradient(&reduced, &logprobs_m).iter().map(|g| f64::from(g.abs())).sum();
            let expected = slope_sum.unwrap_or(found);
            assert!((found - expected).abs() < GRADIENT_TOLERANCE, "{reduction:?}: Σ|gradient| {found}");
        }
    }

    #[test]
    fn clipped_shares_as_in_trl() {
        let clip = Clip::symmetric(0.2);
        let found = Statistics::new(&LOGPROBS_M, &OLD_M, &ADVANTAGES_M, &COUNTS_B, &clip);
        assert_eq!((found.low_fraction(), found.high_fraction(), found.clip_fraction()), (0.2, 0.2, 0.4));
        assert_eq!((found.low_min, found.high_max), (Some(0.0), Some(1.0 / 3.0)));
        assert_eq!(Statistics::new(&[], &[], &[], &[0], &clip), Statistics::default());
        assert_eq!(Statistics::default().clip_fraction(), 0.0);
    }

    #[test]
    #[should_panic(expected = "old_logprobs_m")]
    fn sequences_have_old_values_for_all_tokens() {
        let _ = Statistics::at(Level::SequenceMean, &[0.1, 0.2], &[0.0], &[1.0; 2], &[2], &Clip::symmetric(0.2));
    }

    #[test]
    #[should_panic(expected = "counts_b sum to M")]
    fn sequences_hold_all_tokens() {
        let _ = Statistics::at(Level::SequenceMean, &[0.1, 0.2], &[0.0; 2], &[1.0; 2], &[1], &Clip::symmetric(0.2));
    }

    #[test]
    fn ratios_of_sequences_are_means_or_products() {
        // Log-ratios 0.1, 0.3 and 0.2 in the first sequence, none in the second, −0.4 in the last.
        let (logprobs_m, old_m) = (leaf(&[0.1, 0.3, 0.2, -0.4]), plain(&[0.0; 4]));
        let counts_b = [3, 0, 1];
        let at = |level: Level| level.log_ratios(logprobs_m.clone(), old_m.clone(), &counts_b);
        close(&values(&at(Level::SequenceMean)), &[0.2, 0.2, 0.2, -0.4], VALUE_TOLERANCE);
        close(&values(&at(Level::SequenceProduct)), &[0.6, 0.6, 0.6, -0.4], VALUE_TOLERANCE);
        close(&gradient(&at(Level::SequenceMean), &logprobs_m), &[1.0; 4], GRADIENT_TOLERANCE);
        close(&gradient(&at(Level::SequenceProduct), &logprobs_m), &[3.0, 3.0, 3.0, 1.0], GRADIENT_TOLERANCE);

        let (host, clip) = ([0.1f32, 0.3, 0.2, -0.4], Clip::symmetric(0.25));
        let statistics = |level| Statistics::at(level, &host, &[0.0; 4], &[1.0, 1.0, 1.0, -1.0], &counts_b, &clip);
        // e^0.2 < 1.25 < e^0.6, and e^−0.4 < 0.75.
        let (mean, product) = (statistics(Level::SequenceMean), statistics(Level::SequenceProduct));
        assert_eq!((mean.tokens, mean.low, mean.high), (2, 1, 0));
        assert_eq!((product.tokens, product.low, product.high), (2, 1, 1));
        assert_eq!((statistics(Level::Token).tokens, statistics(Level::Token).high), (4, 1));
    }

    #[test]
    fn micro_batches_add_up() {
        let clip = Clip::symmetric(0.2);
        let whole = Statistics::new(&LOGPROBS_M, &OLD_M, &ADVANTAGES_M, &COUNTS_B, &clip);
        let mut parts = Statistics::new(&LOGPROBS_M[..3], &OLD_M[..3], &ADVANTAGES_M[..3], &[3, 0], &clip);
        parts.add(&Statistics::new(&LOGPROBS_M[3..], &OLD_M[3..], &ADVANTAGES_M[3..], &[2], &clip));
        assert_eq!(
            (whole.low, whole.high, whole.low_min, whole.high_max),
            (parts.low, parts.high, parts.low_min, parts.high_max)
        );
        assert!((whole.approx_kl() - parts.approx_kl()).abs() < 1e-12 && (whole.k3() - parts.k3()).abs() < 1e-12);
        assert_eq!((whole.tokens, whole.ratio_max), (parts.tokens, parts.ratio_max));
    }

    #[test]
    fn no_advantage_no_gradient() {
        let logprobs_m = leaf(&LOGPROBS_M);
        let loss_m = clipped_surrogate(logprobs_m.clone() - plain(&OLD_M), plain(&[0.0; 5]), &Clip::symmetric(0.2));
        assert!(gradient(&loss_m, &logprobs_m).iter().all(|g| *g == 0.0));
    }

    proptest! {
        #[test]
        fn at_ratio_one_the_gradient_is_reinforce(
            tokens in prop::collection::vec((-5.0f32..0.0, -3.0f32..3.0), 1..20),
        ) {
            let (logprobs, advantages): (Vec<f32>, Vec<f32>) = tokens.into_iter().unzip();
            let (logprobs_m, clip) = (leaf(&logprobs), Clip::symmetric(0.2));
            let loss_m = clipped_surrogate(logprobs_m.clone() - plain(&logprobs), plain(&advantages), &clip);
            let minus: Vec<f32> = advantages.iter().map(|a| -a).collect();
            prop_assert_eq!(gradient(&loss_m, &logprobs_m), minus.clone());
            prop_assert_eq!(values(&loss_m), minus);
            let statistics = Statistics::new(&logprobs, &logprobs, &advantages, &[logprobs.len()], &clip);
            prop_assert_eq!((statistics.clip_fraction(), statistics.approx_kl(), statistics.ratio()), (0.0, 0.0, 1.0));
        }
    }
}
