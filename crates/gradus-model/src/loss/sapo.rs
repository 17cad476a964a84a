//! Soft adaptive policy optimization: a smooth gate in place of the clipped ratio.
//!
//! Gao et al. 2025, equations 5 and 6, <https://arxiv.org/abs/2511.20347>. Follows TRL 1.16.

use burn::tensor::{Tensor, activation};

use super::surrogate::ratio;

/// `−(4/τ)·σ(τ(ρₜ − 1))·Âₜ`, one value per token. The `τ` of a token is `positive` if its advantage is above 0, else `negative`. At ratio 1
/// the slope equals that of `−ρ·Â`.
///
/// Both tensors are `[M]`; `log_ratios_m` ([`super::surrogate::Level`]) carries gradient.
///
/// # Panics
/// When the lengths differ.
pub fn sapo(log_ratios_m: Tensor<1>, advantages_m: Tensor<1>, positive: f64, negative: f64) -> Tensor<1> {
    let [m] = log_ratios_m.dims();
    assert_eq!(advantages_m.dims(), [m], "advantages_m");
    let is_positive_m = advantages_m.clone().greater_scalar(0.0);
    let tau_m = Tensor::full([m], negative, &advantages_m.device()).mask_fill(is_positive_m, positive);
    let gate_m = activation::sigmoid((ratio(log_ratios_m) - 1.0) * tau_m.clone());
    -(gate_m * 4.0 / tau_m * advantages_m)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    #[test]
    fn at_ratio_one_the_gradient_is_reinforce() {
        // σ(0) = ½ and σ'(0) = ¼: the value is −(4/τ)·½·Â, and the slope is −Â for any τ.
        let log_ratios_m = leaf(&[0.0, 0.0]);
        let loss_m = sapo(log_ratios_m.clone(), plain(&[3.0, -2.0]), 1.0, 2.0);
        close(&values(&loss_m), &[-6.0, 2.0], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &log_ratios_m), &[-3.0, 2.0], GRADIENT_TOLERANCE);
    }
}
