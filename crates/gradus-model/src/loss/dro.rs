//! Direct reward optimization: a policy gradient with a penalty on the squared log-ratio to the behavior policy.
//!
//! Richemond et al. 2024, equation 8, <https://arxiv.org/abs/2405.19107>, per token, with the advantage in place of the reward minus the
//! value.

use burn::tensor::Tensor;

/// `−(Âₜ·log πₜ − β/2·(log πₜ − log qₜ)²)`, one value per token.
///
/// All tensors are `[M]`; only `logprobs_m` carries gradient.
///
/// # Panics
/// When the lengths differ.
pub fn dro(logprobs_m: Tensor<1>, old_logprobs_m: Tensor<1>, advantages_m: Tensor<1>, beta: f64) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!((old_logprobs_m.dims(), advantages_m.dims()), ([m], [m]), "old_logprobs_m and advantages_m");
    let log_ratios_m = logprobs_m.clone() - old_logprobs_m;
    log_ratios_m.square() * (0.5 * beta) - logprobs_m * advantages_m
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    #[test]
    fn the_penalty_pulls_back_to_what_sampled() {
        // −(2·(−1) − ¼·1²) = 2.25 and −(−3·(−2) − ¼·2²) = −5; slopes −2 + ½·1 and 3 + ½·(−2).
        let logprobs_m = leaf(&[-1.0, -2.0]);
        let loss_m = dro(logprobs_m.clone(), plain(&[-2.0, 0.0]), plain(&[2.0, -3.0]), 0.5);
        close(&values(&loss_m), &[2.25, -5.0], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &logprobs_m), &[-1.5, 2.0], GRADIENT_TOLERANCE);
    }
}
