//! KL estimators with gradient, one value per token: `d = logprob − reference`, on tokens sampled from the policy.
//!
//! Schulman 2020, <http://joschu.net/blog/kl-approx.html>. k1 and k3 are unbiased as values. As differentiated losses, only k2 has the
//! gradient of the reverse KL. Estimators without gradient are in [`gradus_core::math::kl`].

use burn::tensor::Tensor;

use super::surrogate::ratio;

fn difference(logprobs_m: Tensor<1>, reference_m: Tensor<1>) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!(reference_m.dims(), [m], "reference_m");
    logprobs_m - reference_m
}

/// `d`.
///
/// Both are `[M]`; `logprobs_m` carries gradient, `reference_m` does not.
///
/// # Panics
/// When the lengths differ.
pub fn k1(logprobs_m: Tensor<1>, reference_m: Tensor<1>) -> Tensor<1> {
    difference(logprobs_m, reference_m)
}

/// `d²/2`.
///
/// Both are `[M]`; `logprobs_m` carries gradient, `reference_m` does not.
///
/// # Panics
/// When the lengths differ.
pub fn k2(logprobs_m: Tensor<1>, reference_m: Tensor<1>) -> Tensor<1> {
    difference(logprobs_m, reference_m).square() * 0.5
}

/// `e^(−d) − 1 + d`, at least 0.
///
/// Both are `[M]`; `logprobs_m` carries gradient, `reference_m` does not.
///
/// # Panics
/// When the lengths differ.
pub fn k3(logprobs_m: Tensor<1>, reference_m: Tensor<1>) -> Tensor<1> {
    let difference_m = difference(logprobs_m, reference_m);
    (-difference_m.clone()).exp() - 1.0 + difference_m
}

/// Correction of a loss's KL term by the importance ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KlCorrection {
    /// Multiply by the ratio: the gradient becomes that of the reverse KL (DeepSeek-V3.2, section 3.1; TRL's default).
    ImportanceRatio,
    /// No correction: plain k3, as in the GRPO paper.
    None,
}

/// KL term of GRPO, one value per token: k3 of the policy against the reference, times the ratio if corrected.
///
/// All tensors are `[M]`; `logprobs_m` and `log_ratios_m` (of [`super::surrogate::Level`]) carry gradient, the reference does not. Follows
/// TRL 1.16.
///
/// # Panics
/// When the lengths differ.
pub fn kl_term(
    logprobs_m: Tensor<1>,
    reference_m: Tensor<1>,
    log_ratios_m: Tensor<1>,
    correction: KlCorrection,
) -> Tensor<1> {
    let k3_m = k3(logprobs_m, reference_m);
    match correction {
        KlCorrection::ImportanceRatio => k3_m * ratio(log_ratios_m),
        KlCorrection::None => k3_m,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    #[test]
    fn values_and_gradients_by_hand() {
        // d = 0.2, −0.1, 0: slopes 1; d; 1 − e^(−d).
        let (logprobs_m, reference_m) = (leaf(&[-1.0, -0.6, -2.0]), plain(&[-1.2, -0.5, -2.0]));
        for (loss_m, expected, slopes) in [
            (k1(logprobs_m.clone(), reference_m.clone()), [0.2, -0.1, 0.0], [1.0, 1.0, 1.0]),
            (k2(logprobs_m.clone(), reference_m.clone()), [0.02, 0.005, 0.0], [0.2, -0.1, 0.0]),
            (
                k3(logprobs_m.clone(), reference_m),
                [0.018_730_753, 0.005_170_918, 0.0],
                [0.181_269_25, -0.105_170_92, 0.0],
            ),
        ] {
            close(&values(&loss_m), &expected, VALUE_TOLERANCE);
            close(&gradient(&loss_m, &logprobs_m), &slopes, GRADIENT_TOLERANCE);
        }
    }

    #[test]
    fn the_term_of_a_loss_as_in_trl() {
        // Five counted tokens; TRL 1.16.0 logs the mean of the corrected term as `kl`. The rest of the loss is that of `loss/surrogate`
        // (−0.394 211 95), which is subtracted from the loss with β = 0.04.
        let (logprobs_m, old_m) = (plain(&[-1.0, -0.5, -2.0, -0.2, -1.5]), plain(&[-1.1, -0.9, -1.7, -0.5, -1.2]));
        let reference_m = plain(&[-1.2, -0.6, -1.5, -0.4, -1.0]);
        for (correction, loss) in [(KlCorrection::ImportanceRatio, -0.392_023_53), (KlCorrection::None, -0.391_494_02)]
        {
            let kl_m = kl_term(logprobs_m.clone(), reference_m.clone(), logprobs_m.clone() - old_m.clone(), correction);
            let mean = values(&kl_m).iter().map(|&kl| f64::from(kl)).sum::<f64>() / 5.0;
            assert!((mean * 0.04 - 0.394_211_95 - loss).abs() < VALUE_TOLERANCE, "{correction:?}: {mean}");
        }
    }
}
