//! Variational sequence-level soft policy optimization: sequences are weighted by a gamma kernel of their ratio.
//!
//! Equation 12 of <https://arxiv.org/abs/2602.10693>. Follows TRL 1.16.

use burn::tensor::Tensor;

use super::surrogate::LOG_RATIO_BOUND;

/// Shape of the kernel, for sequences with an advantage of at least 0 and for the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gamma {
    /// Exponent `k` of the ratio.
    pub k: [f64; 2],
    /// Rate `λ`.
    pub lambda: [f64; 2],
}

/// Smallest log-ratio of a sequence, ln 1e-8.
const LEAST: f64 = -18.420_680_743_952_367;

impl Gamma {
    /// Computes `φ(w) = w^k·e^(λ(1 − w))` of each sequence, with `w` the product of its tokens' ratios. It is 1 for a ratio of 1.
    ///
    /// `log_ratios_m` holds the log-ratios of tokens; an empty sequence has the ratio 1. `corrections_m` holds further ratios of the tokens
    /// to the sampler, if that is not the policy of `log_ratios_m`.
    ///
    /// # Panics
    /// When the lengths differ, or the counts do not sum to `M`.
    pub fn weights(
        &self,
        log_ratios_m: &[f32],
        corrections_m: Option<&[f32]>,
        advantages_m: &[f32],
        counts_b: &[usize],
    ) -> Vec<f32> {
        assert_eq!(log_ratios_m.len(), advantages_m.len(), "advantages_m");
        assert!(corrections_m.is_none_or(|corrections_m| corrections_m.len() == advantages_m.len()), "corrections_m");
        assert_eq!(counts_b.iter().sum::<usize>(), log_ratios_m.len(), "counts_b sum to M");
        let mut start = 0;
        let weight = |&count: &usize| {
            let tokens = start..start + count;
            start += count;
            let side = usize::from(advantages_m.get(tokens.start).is_some_and(|advantage| *advantage < 0.0));
            let bounded = |x: &f32| f64::from(*x).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND);
            let corrected = |ratio: &f32| f64::from(*ratio).ln().clamp(LEAST, LOG_RATIO_BOUND);
            let corrections = corrections_m.map_or(&[][..], |corrections_m| &corrections_m[tokens.clone()]);
            let log_w =
                log_ratios_m[tokens].iter().map(bounded).sum::<f64>() + corrections.iter().map(corrected).sum::<f64>();
            let log_w = log_w.clamp(LEAST, LOG_RATIO_BOUND);
            let lambda = self.lambda[side].max(1e-4);
            (lambda + self.k[side] * log_w - lambda * log_w.exp()).exp() as f32
        };
        counts_b.iter().map(weight).collect()
    }
}

/// `−φ·Âₜ·log πₜ`, one value per token; the weight `φ` of its sequence ([`Gamma::weights`]) carries no gradient.
///
/// All tensors are `[M]`; `logprobs_m` carries gradient.
///
/// # Panics
/// When the lengths differ.
pub fn vespo(logprobs_m: Tensor<1>, advantages_m: Tensor<1>, weights_m: Tensor<1>) -> Tensor<1> {
    let [m] = logprobs_m.dims();
    assert_eq!((advantages_m.dims(), weights_m.dims()), ([m], [m]), "advantages_m and weights_m");
    -(weights_m * advantages_m * logprobs_m)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{VALUE_TOLERANCE, close};

    #[test]
    fn what_has_not_moved_weighs_one_and_what_has_moved_far_nothing() {
        let gamma = Gamma { k: [2.0, 3.0], lambda: [3.0, 2.0] };
        // w = 1; w = e^0.5 with k = 2, λ = 3; w = e^−1 with k = 3, λ = 2; w = e^20.
        let log_ratios_m = [0.0, 0.2, 0.3, -1.0, 30.0];
        let weights_b = gamma.weights(&log_ratios_m, None, &[1.0, 1.0, 1.0, -1.0, 1.0], &[1, 2, 1, 1, 0]);
        let expected = |k: f64, lambda: f64, log_w: f64| (lambda + k * log_w - lambda * log_w.exp()).exp();
        let expected = [1.0, expected(2.0, 3.0, 0.5), expected(3.0, 2.0, -1.0), 0.0, 1.0];
        close(&weights_b, &expected, VALUE_TOLERANCE);
    }
}
