//! Reward models: the Bradley–Terry likelihood of preferences.
//!
//! Stiennon et al. 2020, section 3.4, <https://arxiv.org/abs/2009.01325>; margins from Touvron et al. 2023, equation 2,
//! <https://arxiv.org/abs/2307.09288>; centering from Eisenstein et al. 2023, equation 2,
//! <https://arxiv.org/abs/2312.09244>. Follows TRL 1.16, but returns one value per pair where TRL returns a mean.

use burn::tensor::Tensor;

use super::numeric::log_sigmoid;

/// `−log σ(r_chosen − r_rejected − margin)`, one value per pair.
///
/// All tensors are `[P]`; the rewards carry gradient, the margins do not.
///
/// # Panics
/// When the lengths differ.
pub fn bradley_terry(chosen_p: Tensor<1>, rejected_p: Tensor<1>, margins_p: Option<Tensor<1>>) -> Tensor<1> {
    let [p] = chosen_p.dims();
    assert_eq!(rejected_p.dims(), [p], "rejected_p");
    let mut difference_p = chosen_p - rejected_p;
    if let Some(margins_p) = margins_p {
        assert_eq!(margins_p.dims(), [p], "margins_p");
        difference_p = difference_p - margins_p;
    }
    -log_sigmoid(difference_p)
}

/// `(r_chosen + r_rejected)²`, one value per pair. Added to the loss with a small weight, it keeps rewards near 0.
///
/// Both are `[P]` and carry gradient.
///
/// # Panics
/// When the lengths differ.
pub fn centering(chosen_p: Tensor<1>, rejected_p: Tensor<1>) -> Tensor<1> {
    let [p] = chosen_p.dims();
    assert_eq!(rejected_p.dims(), [p], "rejected_p");
    (chosen_p + rejected_p).square()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, close, gradient, leaf, mean_is, plain, values};

    #[test]
    fn two_pairs_as_in_trl() {
        // TRL 1.16.0 on the same rewards.
        let (chosen_p, rejected_p) = (plain(&[1.0, 0.5]), plain(&[0.2, 0.7]));
        let loss_p = bradley_terry(chosen_p.clone(), rejected_p.clone(), None);
        mean_is(&loss_p, 0.584_619_77);
        mean_is(&bradley_terry(chosen_p.clone(), rejected_p.clone(), Some(plain(&[0.0, 0.5]))), 0.737_143_36);
        mean_is(&(loss_p + centering(chosen_p, rejected_p) * 0.01), 0.599_019_77);
    }

    #[test]
    fn the_gradient_pushes_the_sides_apart_and_the_sum_to_zero() {
        let (chosen_p, rejected_p) = (leaf(&[1.0, 0.5]), leaf(&[0.2, 0.7]));
        let wrong = |difference: f64| 1.0 / (1.0 + difference.exp());
        let loss_p = bradley_terry(chosen_p.clone(), rejected_p.clone(), None);
        close(&gradient(&loss_p, &chosen_p), &[-wrong(0.8), -wrong(-0.2)], GRADIENT_TOLERANCE);
        let loss_p = bradley_terry(chosen_p.clone(), rejected_p.clone(), None);
        close(&gradient(&loss_p, &rejected_p), &[wrong(0.8), wrong(-0.2)], GRADIENT_TOLERANCE);
        close(&gradient(&centering(chosen_p.clone(), rejected_p), &chosen_p), &[2.4, 2.4], GRADIENT_TOLERANCE);
    }

    #[test]
    fn rewards_far_apart_stay_finite() {
        let (chosen_p, rejected_p) = (leaf(&[200.0, -200.0]), plain(&[-200.0, 200.0]));
        let loss_p = bradley_terry(chosen_p.clone(), rejected_p, None);
        assert_eq!(values(&loss_p), [0.0, 400.0]);
        assert_eq!(gradient(&loss_p, &chosen_p), [0.0, -1.0]);
    }
}
