//! Odds ratio preference optimization, one value per pair.
//!
//! Hong et al. 2024, <https://arxiv.org/abs/2403.07691>. Follows TRL 1.16's experimental trainer.

use burn::tensor::Tensor;

use super::numeric::{log_sigmoid, log1mexp};

/// `log odds(w) − log odds(l)`, where `log odds(p) = log p − log(1 − p)`.
///
/// `chosen_p` and `rejected_p` are `[P]`, carry gradient and are negative: the mean logprobs of each completion's tokens.
///
/// # Panics
/// When the lengths differ.
pub fn log_odds_ratio(chosen_p: Tensor<1>, rejected_p: Tensor<1>) -> Tensor<1> {
    assert_eq!(rejected_p.dims(), chosen_p.dims(), "rejected_p");
    (chosen_p.clone() - rejected_p.clone()) - (log1mexp(chosen_p) - log1mexp(rejected_p))
}

/// `−log σ(r)` of the log odds ratio `r`; equation 7. The whole loss is the negative log-likelihood of the chosen text
/// plus β times this.
///
/// `log_odds_ratio_p` is `[P]` and carries gradient.
pub fn odds_ratio(log_odds_ratio_p: Tensor<1>) -> Tensor<1> {
    -log_sigmoid(log_odds_ratio_p)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{VALUE_TOLERANCE, close, leaf, values};

    #[test]
    #[should_panic(expected = "rejected_p")]
    fn both_sides_have_one_length() {
        let _ = log_odds_ratio(leaf(&[-1.0, -2.0, -3.0]), leaf(&[-1.0]));
    }

    #[test]
    fn equal_odds_cost_ln_2_and_better_ones_less() {
        // p = 1/2 has odds 1, p = 1/5 has odds 1/4: the ratio is 4, σ(ln 4) = 4/5.
        let (half, fifth) = (0.5f32.ln(), 0.2f32.ln());
        let ratios_p = log_odds_ratio(leaf(&[half, half, fifth]), leaf(&[half, fifth, half]));
        let found = values(&odds_ratio(ratios_p));
        close(&found, &[2f64.ln(), 1.25f64.ln(), 5f64.ln()], VALUE_TOLERANCE);
    }
}
