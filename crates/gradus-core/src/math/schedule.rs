//! Learning rate schedules, as multipliers of the peak rate: a linear warm-up, then one of three shapes.
//!
//! `update` is the number of optimizer steps already made, 0 for the first. So a linear schedule without warm-up has
//! the multipliers N/N, (N−1)/N, …, 1/N, and the first update of a warm-up has multiplier 0. As in transformers 5.23.

use std::f64::consts::PI;

/// Returns the number of warm-up updates: `warmup` itself or, if `warmup` is below 1, that share of `updates`, rounded
/// up.
pub fn warmup_updates(warmup: f64, updates: usize) -> usize {
    if warmup >= 1.0 { warmup as usize } else { (warmup.max(0.0) * updates as f64).ceil() as usize }
}

fn warming(update: usize, warmup: usize) -> Option<f64> {
    (update < warmup).then(|| update as f64 / warmup.max(1) as f64)
}

/// Falls linearly from 1 after the warm-up to 0 after the last of `updates`.
pub fn linear(update: usize, updates: usize, warmup: usize) -> f64 {
    let left = updates.saturating_sub(update) as f64 / updates.saturating_sub(warmup).max(1) as f64;
    warming(update, warmup).unwrap_or(left)
}

/// Falls from 1 to 0 along half a cosine: `(1 + cos(π·progress))/2`.
pub fn cosine(update: usize, updates: usize, warmup: usize) -> f64 {
    let progress = update.saturating_sub(warmup) as f64 / updates.saturating_sub(warmup).max(1) as f64;
    warming(update, warmup).unwrap_or_else(|| (0.5 * (1.0 + (PI * progress).cos())).max(0.0))
}

/// Stays at 1 after the warm-up.
pub fn constant(update: usize, warmup: usize) -> f64 {
    warming(update, warmup).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: impl Fn(usize) -> f64, expected: &[f64]) {
        for (update, expected) in expected.iter().enumerate() {
            assert!((found(update) - expected).abs() < 1e-12, "update {update}: {} against {expected}", found(update));
        }
    }

    #[test]
    fn multipliers_are_those_of_transformers() {
        // transformers 5.23: get_linear_schedule_with_warmup and its siblings, multipliers of the first updates.
        check(|k| linear(k, 4, 0), &[1.0, 0.75, 0.5, 0.25, 0.0]);
        check(|k| linear(k, 6, 2), &[0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]);
        check(|k| cosine(k, 4, 0), &[1.0, 0.853_553_390_593_273_8, 0.5, 0.146_446_609_406_726_2, 0.0]);
        check(|k| cosine(k, 6, 2), &[0.0, 0.5, 1.0, 0.853_553_390_593_273_8, 0.5]);
        check(|k| constant(k, 3), &[0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0, 1.0]);
    }

    #[test]
    fn the_learning_rates_of_fine_grained_rlhf() {
        // Two GPUs: 100 · 4 · 2 units of warm-up, 1250 · 4 · 2 in total, a peak of 1e-5.
        for (unit, expected) in [(0, 0.0), (800, 1e-5), (5000, 5.4348e-6), (10_000, 0.0)] {
            let found = 1e-5 * linear(unit, 10_000, 800);
            assert!((found - expected).abs() < 5e-11, "unit {unit}: {found}");
        }
    }

    #[test]
    fn warm_up_as_a_share_is_rounded_up() {
        for (warmup, updates, expected) in [(0.0, 10, 0), (0.1, 11, 2), (0.05, 1, 1), (1.0, 10, 1), (30.0, 10, 30)] {
            assert_eq!(warmup_updates(warmup, updates), expected, "{warmup} of {updates}");
        }
    }

    #[test]
    fn a_warm_up_as_long_as_the_run_and_updates_past_its_end() {
        assert_eq!([linear(3, 4, 4), linear(4, 4, 4), linear(9, 4, 0)], [0.75, 0.0, 0.0]);
        assert!(cosine(9, 4, 4).is_finite() && cosine(0, 0, 0).is_finite() && linear(0, 0, 0).is_finite());
    }
}
