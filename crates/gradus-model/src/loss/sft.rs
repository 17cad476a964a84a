//! Supervised fine-tuning: the negative log-likelihood of the counted tokens.

use burn::tensor::Tensor;

/// `−logprob`, one value per token.
///
/// `logprobs_m` is `[M]`, in nats, and carries gradient.
pub fn nll(logprobs_m: Tensor<1>) -> Tensor<1> {
    -logprobs_m
}

/// Negative log-likelihood against a target mixed with the uniform distribution, one value per token.
///
/// `(1−ε)·(−logprob) + ε·meanᵥ(−log pᵥ)`, where `meanᵥ(−log pᵥ) = log Σᵥ e^(zᵥ) − meanᵥ zᵥ`: only the partition
/// function and the mean logit depend on the vocabulary. Szegedy et al. 2016, section 7,
/// <https://arxiv.org/abs/1512.00567>; ε as `label_smoothing_factor` in transformers 5.23.
///
/// All tensors are `[M]` and carry gradient.
///
/// # Panics
/// When the lengths differ.
pub fn nll_smoothed(
    logprobs_m: Tensor<1>,
    mean_logits_m: Tensor<1>,
    log_partitions_m: Tensor<1>,
    label_smoothing: f64,
) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!(mean_logits_m.dims(), [m], "mean_logits_m");
    assert_eq!(log_partitions_m.dims(), [m], "log_partitions_m");

    let uniform_m = log_partitions_m - mean_logits_m;
    -logprobs_m * (1.0 - label_smoothing) + uniform_m * label_smoothing
}

/// Dynamic fine-tuning: `−p·logprob` with the probability `p` held constant, one value per token.
///
/// Wu et al. 2025, equation 9, <https://arxiv.org/abs/2508.05629>; `loss_type="dft"` in TRL 1.16.
///
/// `logprobs_m` carries gradient.
pub fn dft(logprobs_m: Tensor<1>) -> Tensor<1> {
    let probabilities_m = logprobs_m.clone().detach().exp();
    -logprobs_m * probabilities_m
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, mean_is, plain, values};

    #[test]
    fn seven_tokens_of_two_completions() {
        let logprobs_m = leaf(&[-0.5, -1.0, -0.25, -0.7, -0.2, -0.9, -0.4]);
        mean_is(&nll(logprobs_m.clone()), 0.564_285_71);
        assert_eq!(gradient(&nll(logprobs_m.clone()), &logprobs_m), [-1.0; 7]);
        let weighted = dft(logprobs_m.clone());
        close(&values(&weighted)[..1], &[0.5 * (-0.5f64).exp()], VALUE_TOLERANCE);
        close(&gradient(&weighted, &logprobs_m)[..1], &[-(-0.5f64).exp()], GRADIENT_TOLERANCE);
    }

    #[test]
    fn smoothing_over_three_logits() {
        // Logits (1, 2, 3), target 2: log Z = 3.407606, mean logit 2, logprob −0.407606, mean −log p = 1.407606.
        let smoothed = nll_smoothed(plain(&[-0.407_605_96]), plain(&[2.0]), plain(&[3.407_606]), 0.1);
        mean_is(&smoothed, 0.9 * 0.407_605_964 + 0.1 * 1.407_605_964);
        mean_is(&nll_smoothed(plain(&[-0.4]), plain(&[2.0]), plain(&[3.4]), 0.0), 0.4);
    }
}
