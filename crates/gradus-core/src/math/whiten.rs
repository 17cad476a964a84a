//! Whitening: rewards or advantages scaled to unit variance.
//!
//! Ziegler et al. 2019 whiten rewards without changing their mean, and advantages to mean 0, <https://arxiv.org/abs/1909.08593>. Their code
//! divides by the biased variance, TRL and verl by the unbiased one. Other systems use other divisors ([`Divisor`]).

use super::stats::{self, Variance};

/// Added to the variance before the root in the 2019 code, TRL and verl, and to the divisors of other systems.
pub const VARIANCE_EPSILON: f64 = 1e-8;

/// Divisor of the deviations from the mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Divisor {
    /// `√(σ² + 1e-8)`.
    Root(Variance),
    /// `σ + 1e-8` (Stable-Baselines3, RL4LMs).
    Deviation(Variance),
    /// `√(σ + 1e-8)` with the biased σ, as in FineGrainedRLHF. The results do not have unit variance.
    RootOfDeviation,
}

impl Divisor {
    /// Reciprocal of the divisor. A single value has no unbiased variance, which counts as 0.
    fn inverse(self, values: &[f32]) -> f64 {
        let variance = |kind| stats::variance(values, kind).unwrap_or(0.0);
        match self {
            Self::Root(kind) => 1.0 / (variance(kind) + VARIANCE_EPSILON).sqrt(),
            Self::Deviation(kind) => 1.0 / (variance(kind).sqrt() + VARIANCE_EPSILON),
            Self::RootOfDeviation => 1.0 / (variance(Variance::Biased).sqrt() + VARIANCE_EPSILON).sqrt(),
        }
    }
}

impl From<Variance> for Divisor {
    fn from(kind: Variance) -> Self {
        Self::Root(kind)
    }
}

/// What happens to the mean of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whiten {
    /// Shift it to 0 (advantages).
    ZeroMean,
    /// Keep it (rewards, where a shift would change the preferred length of completions).
    KeepMean,
}

/// Returns `(x − μ) / d`, plus `μ` for [`Whiten::KeepMean`]; `d` is the divisor.
///
/// `values` are the counted values of the whole batch, end to end. A single value has no unbiased variance, which counts as 0. Equal values
/// become 0 (or do not change), however large they are.
pub fn whiten(values: &[f32], mean_becomes: Whiten, divisor: impl Into<Divisor>) -> Vec<f32> {
    whiten_with(values, mean_becomes, divisor, 0.0).0
}

/// Like [`whiten`], and transforms `other` in the same way. `other` does not enter the mean or the variance.
pub fn whiten_with(values: &[f32], mean_becomes: Whiten, divisor: impl Into<Divisor>, other: f32) -> (Vec<f32>, f32) {
    let Some(mean) = stats::mean(values) else { return (Vec::new(), other) };
    let scale = divisor.into().inverse(values);
    let kept = match mean_becomes {
        Whiten::ZeroMean => 0.0,
        Whiten::KeepMean => mean,
    };
    let whitened = |v: f32| ((f64::from(v) - mean) * scale + kept) as f32;
    (values.iter().map(|&v| whitened(v)).collect(), whitened(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn three_values_by_hand() {
        // Mean 2, biased variance 2/3, unbiased 1.
        assert_eq!(whiten(&[1.0, 2.0, 3.0], Whiten::ZeroMean, Variance::Unbiased), [-1.0, 0.0, 1.0]);
        assert_eq!(whiten(&[1.0, 2.0, 3.0], Whiten::KeepMean, Variance::Unbiased), [1.0, 2.0, 3.0]);
        let biased = whiten(&[1.0, 2.0, 3.0], Whiten::ZeroMean, Variance::Biased);
        assert!((biased[2] - 1.5f32.sqrt()).abs() < 1e-6, "{biased:?}");
    }

    #[test]
    fn divisors_by_hand() {
        // Standard deviations: 1 unbiased, √(2/3) biased.
        let third = |divisor: Divisor| f64::from(whiten(&[1.0, 2.0, 3.0], Whiten::ZeroMean, divisor)[2]);
        let biased = (2.0f64 / 3.0).sqrt();
        for (divisor, expected) in [
            (Divisor::Deviation(Variance::Unbiased), 1.0),
            (Divisor::Deviation(Variance::Biased), 1.0 / biased),
            (Divisor::RootOfDeviation, 1.0 / biased.sqrt()),
        ] {
            assert!((third(divisor) - expected).abs() < 1e-6, "{divisor:?}: {}", third(divisor));
        }
    }

    #[test]
    fn nothing_one_and_equal_values_stay_finite() {
        assert!(whiten(&[], Whiten::ZeroMean, Variance::Unbiased).is_empty());
        assert_eq!(whiten(&[5.0], Whiten::ZeroMean, Variance::Unbiased), [0.0]);
        assert_eq!(whiten(&[5.0], Whiten::KeepMean, Variance::Unbiased), [5.0]);
        assert_eq!(whiten(&[0.5; 4], Whiten::ZeroMean, Variance::Biased), [0.0; 4]);
    }

    proptest! {
        #[test]
        fn mean_and_variance_are_as_promised(values in prop::collection::vec(-10.0f32..10.0, 2..60)) {
            for kind in [Variance::Biased, Variance::Unbiased] {
                prop_assume!(stats::variance(&values, kind).expect("two values") > 0.1);
                let zero = whiten(&values, Whiten::ZeroMean, kind);
                prop_assert!(stats::mean(&zero).expect("values").abs() < 1e-6);
                prop_assert!((stats::variance(&zero, kind).expect("values") - 1.0).abs() < 1e-6);
                let kept = whiten(&values, Whiten::KeepMean, kind);
                let (before, after) = (stats::mean(&values).expect("values"), stats::mean(&kept).expect("values"));
                prop_assert!((before - after).abs() < 1e-5);
                prop_assert!((stats::variance(&kept, kind).expect("values") - 1.0).abs() < 1e-5);
            }
        }
    }
}
