//! KL estimators with gradient, one value per token: `d = logprob − reference`, on tokens sampled from the policy.
//!
//! Schulman 2020, <http://joschu.net/blog/kl-approx.html>. As values k1 and k3 are unbiased; as differentiated losses
//! only k2 has the gradient of the reverse KL. Estimators without gradient are in [`crate::math::kl`].

use burn::tensor::Tensor;

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
}
