//! Kahneman–Tversky optimization, one value per completion.
//!
//! Ethayarajh et al. 2024, equations 7 and 8, <https://arxiv.org/abs/2402.01306>. Follows TRL 1.16.

use burn::tensor::{Tensor, activation};

/// `σ(−β(s − z))` of a desirable completion, `σ(−β(z − s))` of an undesirable one. The loss falls as a desirable completion becomes
/// likelier than the reference point `z`, and an undesirable one less likely.
///
/// `log_ratios_b` is `s = Σₜ logprobₜ − Σₜ reference_logprobₜ` and carries gradient; `signs_b` is 1 for desirable and −1 for undesirable
/// completions. Both are `[B]`. `z ≥ 0` estimates the KL of policy and reference. With `z = 0` it is the unpaired form of anchored
/// preference optimization (`apo_zero_unpaired`; D'Oosterlinck et al. 2024, equation 7, <https://arxiv.org/abs/2408.06266>).
///
/// # Panics
/// When the lengths differ.
pub fn kto(log_ratios_b: Tensor<1>, signs_b: Tensor<1>, z: f64, beta: f64) -> Tensor<1> {
    assert_eq!(signs_b.dims(), log_ratios_b.dims(), "signs_b");
    activation::sigmoid((log_ratios_b - z) * signs_b * -beta)
}

/// Reference point `z` of a step: the mean log-ratio of its prompts with completions of other prompts, at least 0. 0 without log-ratios.
pub fn reference_point(log_ratios: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = log_ratios.len().max(1);
    (log_ratios.sum::<f64>() / count as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    #[test]
    fn desirable_and_not_around_the_point_of_reference() {
        // β = ½, z = 1: s = 3 gives 1 − σ(1), s = −1 gives 1 − σ(−1). The values of undesirable completions are swapped.
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (log_ratios_b, signs_b) = (leaf(&[3.0, -1.0, 3.0, -1.0]), plain(&[1.0, 1.0, -1.0, -1.0]));
        let loss_b = kto(log_ratios_b.clone(), signs_b, 1.0, 0.5);
        let [near, far] = [sigmoid(-1.0), sigmoid(1.0)];
        close(&values(&loss_b), &[near, far, far, near], VALUE_TOLERANCE);
        // σ'(x) = σ(x)(1 − σ(x)), times β, against the sign.
        let slope = 0.5 * near * far;
        let slopes = [-slope, -slope, slope, slope];
        close(&gradient(&loss_b, &log_ratios_b), &slopes, GRADIENT_TOLERANCE);
    }

    #[test]
    #[should_panic(expected = "signs_b")]
    fn each_completion_has_a_sign() {
        let _ = kto(plain(&[1.0, 2.0, 3.0]), plain(&[1.0]), 0.0, 1.0);
    }

    #[test]
    fn the_point_of_reference_is_no_less_than_zero() {
        assert_eq!(reference_point([1.0, 2.0, -0.75].into_iter()), 0.75);
        assert_eq!(reference_point([1.0, -2.0].into_iter()), 0.0);
        assert_eq!(reference_point([].into_iter()), 0.0);
    }

    #[test]
    fn far_away_stays_finite() {
        let log_ratios_b = leaf(&[1e4, -1e4]);
        let loss_b = kto(log_ratios_b.clone(), plain(&[1.0, -1.0]), 0.0, 1.0);
        let found = [values(&loss_b), gradient(&loss_b, &log_ratios_b)].concat();
        assert!(found.iter().all(|v| v.is_finite()), "{found:?}");
    }
}
