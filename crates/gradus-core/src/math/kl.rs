//! KL estimators on recorded log-probabilities, and the controller of the KL coefficient.
//!
//! The estimators are named k1, k2 and k3 after Schulman 2020, <http://joschu.net/blog/kl-approx.html>.
//! These are values without gradient, as for a reward penalty; the estimators of losses are in `loss::kl`.

fn each(logprobs_t: &[f32], reference_t: &[f32], estimate: impl Fn(f64) -> f64) -> Vec<f32> {
    assert_eq!(logprobs_t.len(), reference_t.len(), "one reference logprob per logprob");
    let pairs = logprobs_t.iter().zip(reference_t);
    pairs.map(|(&logprob, &reference)| estimate(f64::from(logprob) - f64::from(reference)) as f32).collect()
}

/// `d = logprob − reference`: unbiased, positive or negative.
///
/// # Panics
/// When the lengths differ.
pub fn k1(logprobs_t: &[f32], reference_t: &[f32]) -> Vec<f32> {
    each(logprobs_t, reference_t, |d| d)
}

/// KL(policy ‖ reference) of one sampled sequence in nats: Σ `d` over its tokens.
///
/// # Panics
/// When the lengths differ.
pub fn of_sequence(logprobs_t: &[f32], reference_t: &[f32]) -> f64 {
    k1(logprobs_t, reference_t).iter().map(|&kl| f64::from(kl)).sum()
}

/// `d²/2`: biased, never negative, low variance.
///
/// # Panics
/// When the lengths differ.
pub fn k2(logprobs_t: &[f32], reference_t: &[f32]) -> Vec<f32> {
    each(logprobs_t, reference_t, |d| 0.5 * d * d)
}

/// `e^(−d) − 1 + d`: unbiased, never negative.
///
/// # Panics
/// When the lengths differ.
pub fn k3(logprobs_t: &[f32], reference_t: &[f32]) -> Vec<f32> {
    each(logprobs_t, reference_t, |d| (-d).exp_m1() + d)
}

/// Bound of the absolute proportional error (Ziegler et al. 2019, section 2.2).
const ERROR_BOUND: f64 = 0.2;

/// Rule that sets the coefficient of the KL penalty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KlController {
    /// The coefficient is constant.
    Fixed {
        /// The coefficient, β.
        coefficient: f64,
    },
    /// The coefficient follows the measured KL towards a target (Ziegler et al. 2019, section 2.2, <https://arxiv.org/abs/1909.08593>).
    Adaptive {
        /// The current coefficient, β.
        coefficient: f64,
        /// Target of the KL, in the unit of the measured KL.
        target: f64,
        /// Number of sequences over which the whole proportional error is corrected.
        horizon: f64,
    },
    /// The coefficient changes by a fixed share of the error per iteration, independent of the number of sequences (RL4LMs).
    Proportional {
        /// The current coefficient, β.
        coefficient: f64,
        /// Target of the KL, in the unit of the measured KL.
        target: f64,
        /// Share of the error; 0.1 in RL4LMs.
        rate: f64,
    },
}

impl KlController {
    /// Current coefficient.
    pub fn coefficient(&self) -> f64 {
        match *self {
            Self::Fixed { coefficient }
            | Self::Adaptive { coefficient, .. }
            | Self::Proportional { coefficient, .. } => coefficient,
        }
    }

    /// Updates the coefficient with the KL measured over `sequences` sequences: `e = clip(kl/target − 1, ±0.2)`, `β ← β·(1 + e·n/horizon)`,
    /// or `β ← β·(1 + rate·e)`.
    pub fn update(&mut self, kl: f64, sequences: usize) {
        match self {
            Self::Fixed { .. } => {}
            Self::Adaptive { coefficient, target, horizon } => {
                let error = (kl / *target - 1.0).clamp(-ERROR_BOUND, ERROR_BOUND);
                *coefficient *= 1.0 + error * sequences as f64 / *horizon;
            }
            Self::Proportional { coefficient, target, rate } => {
                let error = ((kl - *target) / *target).clamp(-ERROR_BOUND, ERROR_BOUND);
                *coefficient *= 1.0 + *rate * error;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Seed};
    use proptest::prelude::*;
    use rand::Rng;

    #[test]
    fn estimators_by_hand() {
        // d = 0.2, −0.1, 0
        let (logprobs_t, reference_t) = ([-1.0, -0.6, -2.0], [-1.2, -0.5, -2.0]);
        for (found, expected) in [
            (k1(&logprobs_t, &reference_t), [0.2, -0.1, 0.0]),
            (k2(&logprobs_t, &reference_t), [0.02, 0.005, 0.0]),
            (k3(&logprobs_t, &reference_t), [0.018_730_753, 0.005_170_918, 0.0]),
        ] {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-7, "{found} against {expected}");
            }
        }
    }

    #[test]
    fn k1_and_k3_estimate_the_exact_kl() {
        let (policy, reference) = ([0.5f64, 0.3, 0.15, 0.05], [0.3f64, 0.3, 0.2, 0.2]);
        let exact: f64 = policy.iter().zip(reference).map(|(p, q)| p * (p / q).ln()).sum();
        let mut rng = Seed(7).stream(Purpose::Rollout, 0, 0);
        let (mut logprobs, mut references) = (Vec::new(), Vec::new());
        for _ in 0..20_000 {
            let (mut u, mut i) = (rng.random::<f64>(), 0);
            while i < 3 && u >= policy[i] {
                u -= policy[i];
                i += 1;
            }
            logprobs.push(policy[i].ln() as f32);
            references.push(reference[i].ln() as f32);
        }
        for estimates in [k1(&logprobs, &references), k3(&logprobs, &references)] {
            let mean = crate::math::stats::mean(&estimates).expect("values");
            let std = crate::math::stats::std(&estimates, crate::math::stats::Variance::Unbiased).expect("values");
            let standard_error = std / (estimates.len() as f64).sqrt();
            assert!((mean - exact).abs() < 3.0 * standard_error, "{mean} against {exact} ± {standard_error}");
        }
    }

    #[test]
    fn adaptive_coefficient_follows_a_recorded_series() {
        // lm-human-preferences' controller: β 0.15, target 6, horizon 10 000, 512 sequences each.
        let mut controller = KlController::Adaptive { coefficient: 0.15, target: 6.0, horizon: 10_000.0 };
        let mut expected = 0.15;
        for (kl, error) in [(0.0, -0.2), (6.0, 0.0), (6.6, 0.1), (50.0, 0.2)] {
            controller.update(kl, 512);
            expected *= 1.0 + error * 0.0512;
            assert!((controller.coefficient() - expected).abs() < 1e-12);
        }
        let mut fixed = KlController::Fixed { coefficient: 0.05 };
        fixed.update(100.0, 512);
        assert_eq!(fixed.coefficient(), 0.05);
    }

    #[test]
    fn proportional_coefficient_follows_that_of_rl4lms() {
        // Coefficient and target 0.1; per-token KL −0.2, 0.3, 0.4: one step down by 2 %, two up.
        let mut controller = KlController::Proportional { coefficient: 0.1, target: 0.1, rate: 0.1 };
        for (kl, expected) in [(-0.2, 0.098f64), (0.3, 0.09996), (0.4, 0.101_959_2)] {
            controller.update(kl, 1280);
            assert!((controller.coefficient() - expected).abs() < 1e-17 * 2.0, "{}", controller.coefficient());
        }
        let mut controller = KlController::Proportional { coefficient: 1.0, target: 0.1, rate: 0.1 };
        (0..50).for_each(|_| controller.update(0.0, 10));
        assert!((controller.coefficient() - 0.364).abs() < 5e-4, "{}", controller.coefficient());
        controller.update(0.105, 10);
        assert!(
            (controller.coefficient() / 0.98f64.powi(50) - 1.005).abs() < 1e-12,
            "an error of 5 % inside the bounds"
        );
    }

    proptest! {
        #[test]
        fn k2_and_k3_are_never_negative(logprob in -20.0f32..0.0, reference in -20.0f32..0.0) {
            prop_assert!(k2(&[logprob], &[reference])[0] >= 0.0);
            prop_assert!(k3(&[logprob], &[reference])[0] >= 0.0);
            for estimate in [k1, k2, k3] {
                prop_assert_eq!(estimate(&[logprob], &[logprob]), vec![0.0]);
            }
        }
    }
}
