//! Clipped importance sampling: the weight of a token is bounded, but every token keeps its gradient.
//!
//! MiniMax 2025 (MiniMax-M1), equations 4 and 5, <https://arxiv.org/abs/2506.13585>. Follows TRL 1.16.

use burn::tensor::Tensor;

use super::surrogate::ratio;

/// `−sg(min(ρₜ, cap))·Âₜ·log πₜ`, one value per token; `sg` stops the gradient.
///
/// All tensors are `[M]`; `logprobs_m` carries gradient. The log-ratios are those of [`super::surrogate::Level`].
///
/// # Panics
/// When the lengths differ.
pub fn cispo(logprobs_m: Tensor<1>, log_ratios_m: Tensor<1>, advantages_m: Tensor<1>, cap: f64) -> Tensor<1> {
    cispo_within(logprobs_m, log_ratios_m, advantages_m, [0.0, cap])
}

/// Like [`cispo`], with a lower bound of the ratio, too: `−sg(clip(ρₜ, low, high))·Âₜ·log πₜ`. A `low` of 0 has no
/// effect.
///
/// # Panics
/// As [`cispo`].
pub fn cispo_within(
    logprobs_m: Tensor<1>,
    log_ratios_m: Tensor<1>,
    advantages_m: Tensor<1>,
    [low, high]: [f64; 2],
) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!((log_ratios_m.dims(), advantages_m.dims()), ([m], [m]), "log_ratios_m and advantages_m");
    -(ratio(log_ratios_m.detach()).clamp(low, high) * advantages_m * logprobs_m)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    #[test]
    fn weights_are_bounded_and_have_no_gradient() {
        // Ratios 2 and ½ with cap 1.5: weights 1.5 and ½. The slope is −weight·Â.
        let logprobs_m = leaf(&[-1.0, -2.0]);
        let log_ratios_m = logprobs_m.clone() - plain(&[-1.0 - 2f32.ln(), -2.0 + 2f32.ln()]);
        let loss_m = cispo(logprobs_m.clone(), log_ratios_m, plain(&[1.0, -2.0]), 1.5);
        close(&values(&loss_m), &[1.5, -2.0], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &logprobs_m), &[-1.5, 1.0], GRADIENT_TOLERANCE);
        // With the lower bound ¾, the second weight is ¾.
        let log_ratios_m = logprobs_m.clone() - plain(&[-1.0 - 2f32.ln(), -2.0 + 2f32.ln()]);
        let loss_m = cispo_within(logprobs_m.clone(), log_ratios_m, plain(&[1.0, -2.0]), [0.75, 1.5]);
        close(&gradient(&loss_m, &logprobs_m), &[-1.5, 1.5], GRADIENT_TOLERANCE);
    }
}
