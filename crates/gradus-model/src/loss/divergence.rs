//! Divergences between policy and reference for DPO, other than the reverse KL.
//!
//! Wang et al. 2024 (f-DPO), <https://arxiv.org/abs/2309.16240>. DPO uses the log-ratio `s = log u` with `u = π/π_ref`; any other
//! divergence `D_f` uses `f′(u)` instead. This works for losses of differences. It does not for losses of a single completion, because the
//! partition function does not cancel there. Follows TRL 1.16.
//!
//! All tensors are `[B]`, one value per completion, and carry gradient.

use burn::tensor::Tensor;

use super::numeric::log_sigmoid;

/// `f′(u) = 1 − 1/u`.
pub fn forward_kl(ratios_b: Tensor<1>) -> Tensor<1> {
    1.0 - (-ratios_b).exp()
}

/// `f′(u) = log(2u/(1 + u)) = log 2 + log σ(s)`: the Jensen–Shannon divergence.
pub fn jensen_shannon(ratios_b: Tensor<1>) -> Tensor<1> {
    log_sigmoid(ratios_b) + std::f64::consts::LN_2
}

/// Upper bound of the exponent in [`alpha`], so that the exponential fits an `f32` (as in TRL).
const EXPONENT_MAX: f64 = 80.0;

/// `f′(u) = (u^(α−1) − 1)/(α − 1)`; `s` itself, the reverse KL, at `α = 1`. At `α = 0` it is [`forward_kl`].
pub fn alpha(ratios_b: Tensor<1>, alpha: f64) -> Tensor<1> {
    let power = alpha - 1.0;
    if power.abs() < 1e-6 {
        return ratios_b;
    }
    ((ratios_b * power).clamp_max(EXPONENT_MAX).exp() - 1.0) / power
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    /// Likelihood ratios of 1/2, 1 and 4.
    fn ratios_b() -> Tensor<1> {
        leaf(&[0.5f32.ln(), 0.0, 4.0f32.ln()])
    }

    #[test]
    fn scores_of_likelihood_ratios() {
        close(&values(&forward_kl(ratios_b())), &[-1.0, 0.0, 0.75], VALUE_TOLERANCE);
        let logarithms = [(2.0f64 / 3.0).ln(), 0.0, 1.6f64.ln()];
        close(&values(&jensen_shannon(ratios_b())), &logarithms, VALUE_TOLERANCE);
        // (√u⁻¹ − 1)/(−½) and u − 1
        close(&values(&alpha(ratios_b(), 0.5)), &[-2.0 * (2.0f64.sqrt() - 1.0), 0.0, 1.0], VALUE_TOLERANCE);
        close(&values(&alpha(ratios_b(), 2.0)), &[-0.5, 0.0, 3.0], VALUE_TOLERANCE);
        assert_eq!(values(&alpha(ratios_b(), 1.0)), values(&ratios_b()));
    }

    #[test]
    fn at_the_reference_all_are_zero() {
        for (score, slope) in [
            (forward_kl as fn(Tensor<1>) -> Tensor<1>, 1.0),
            (jensen_shannon, 0.5),
            (|ratios_b| alpha(ratios_b, 0.3), 1.0),
            (|ratios_b| alpha(ratios_b, 1.7), 1.0),
        ] {
            let ratios_b = leaf(&[0.0]);
            close(&values(&score(ratios_b.clone())), &[0.0], VALUE_TOLERANCE);
            close(&gradient(&score(ratios_b.clone()), &ratios_b), &[slope], GRADIENT_TOLERANCE);
        }
    }

    #[test]
    fn far_from_the_reference_alpha_stays_finite() {
        let found = values(&alpha(plain(&[1e4, -1e4]), 0.5));
        assert!(found.iter().all(|score| score.is_finite()), "{found:?}");
    }
}
