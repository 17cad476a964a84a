//! Contrastive and simple preference optimization, one value per pair: their additions to the losses of a difference Δ
//! in [`super::dpo`].
//!
//! Neither has a reference. In CPO (Xu et al. 2024, <https://arxiv.org/abs/2401.08417>), Δ is the difference between
//! the summed logprobs of the chosen and the rejected completion; in SimPO, it is the difference between their means.
//! CPO's loss is [`super::dpo::sigmoid`] of Δ plus the negative log-likelihood of the chosen completions. Names as in
//! TRL 1.16's experimental trainer.

use burn::tensor::Tensor;

use super::dpo;

/// `−log σ(βΔ̄ − γ)`, smoothed as [`super::dpo::sigmoid`]. The chosen completion must be better by the margin γ.
///
/// `mean_delta_p` is `[P]` and carries gradient: the difference between the means over tokens.
/// Meng et al. 2024 (SimPO), equation 6, <https://arxiv.org/abs/2405.14734>.
pub fn simpo(mean_delta_p: Tensor<1>, beta: f64, gamma: f64, label_smoothing: f64) -> Tensor<1> {
    dpo::sigmoid(mean_delta_p - gamma / beta, beta, label_smoothing)
}

/// Shaped reward `(1 − π^(−α))/α` of a completion with logprob `log π`. For α → 0 it becomes `log π`.
///
/// `logprobs_b` is `[B]`, in nats, and carries gradient. The result is `[B]`.
/// Gupta et al. 2025 (AlphaPO), equation 7, <https://arxiv.org/abs/2501.03884>.
pub fn shaped(logprobs_b: Tensor<1>, alpha: f64) -> Tensor<1> {
    if alpha == 0.0 {
        return logprobs_b;
    }
    // 1 − e^(−y) = 2·sinh(y/2)·e^(−y/2), which is accurate near 0.
    let half_b = logprobs_b * (alpha / 2.0);
    half_b.clone().sinh() * (-half_b).exp() * (2.0 / alpha)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    #[test]
    fn a_margin_moves_the_point_where_the_loss_is_ln_2() {
        // β = 2, γ = 1: Δ̄ = ½ is exactly at the margin.
        let found = values(&simpo(plain(&[0.5, 0.0]), 2.0, 1.0, 0.0));
        close(&found, &[2f64.ln(), (1.0 + 1f64.exp()).ln()], VALUE_TOLERANCE);
    }

    #[test]
    fn rewards_of_alpha_are_those_of_probabilities() {
        // p = ¼ and α = ½: (1 − 2)/½ = −2; α = −1: (1 − ¼)/(−1) = −¾. The slope is π^(−α): 2 and ¼.
        for (alpha, value, slope) in [(0.5, -2.0, 2.0), (-1.0, -0.75, 0.25), (0.0, 0.25f64.ln(), 1.0)] {
            let logprobs_b = leaf(&[0.25f32.ln()]);
            let found = shaped(logprobs_b.clone() * 1.0, alpha);
            close(&values(&found), &[value], VALUE_TOLERANCE);
            close(&gradient(&found, &logprobs_b), &[slope], GRADIENT_TOLERANCE);
        }
        // Near 0 the reward is the logprob: (1 − e^(−αx))/α = x − αx²/2 + …
        close(&values(&shaped(plain(&[-1.0]), 1e-6)), &[-1.0 - 0.5e-6], VALUE_TOLERANCE);
    }
}
