//! Direct preference optimization and its relatives, one value per pair.
//!
//! Rafailov et al. 2023, <https://arxiv.org/abs/2305.18290>. Names of the variants as in TRL 1.16.
//!
//! `s_w` and `s_l` are the log-ratios of the chosen and the rejected completion: `Σₜ logprobₜ − Σₜ reference_logprobₜ`
//! over their counted tokens; `Δ = s_w − s_l`. `w` is better than `l`. All tensors are `[P]` and carry gradient. `beta` is the strength of
//! the pull towards the reference.
//!
//! With a divergence other than the reverse KL, the losses of Δ use the scores of [`super::divergence`] for `s`.
//!
//! Differs from TRL: `sigmoid` honors `label_smoothing` (the conservative DPO of Mitchell 2023), where TRL ignores it.
//! TRL's `sft`, the negative log-likelihood of the chosen completions, is [`super::sft::nll`].

use burn::tensor::{Tensor, activation};

use super::numeric::log_sigmoid;

/// `−(1−ε)·log σ(βΔ) − ε·log σ(−βΔ)`.
///
/// Rafailov et al. 2023, equation 7; ε = `label_smoothing`, the assumed share of flipped labels (Mitchell 2023,
/// <https://ericmitchell.ai/cdpo.pdf>).
pub fn sigmoid(delta_p: Tensor<1>, beta: f64, label_smoothing: f64) -> Tensor<1> {
    let logits_p = delta_p * beta;
    if label_smoothing == 0.0 {
        return -log_sigmoid(logits_p);
    }
    -log_sigmoid(logits_p.clone()) * (1.0 - label_smoothing) - log_sigmoid(-logits_p) * label_smoothing
}

/// `max(0, 1 − βΔ)`.
///
/// Zhao et al. 2023 (SLiC), <https://arxiv.org/abs/2305.10425>, normalized as in Liu et al. 2024 (RSO).
pub fn hinge(delta_p: Tensor<1>, beta: f64) -> Tensor<1> {
    activation::relu(1.0 - delta_p * beta)
}

/// `(Δ̄ − 1/(2β))²`, where `Δ̄ = s_w/n_w − s_l/n_l` is the difference between the means over tokens.
///
/// Azar et al. 2024, equation 17, <https://arxiv.org/abs/2310.12036>; with means instead of sums, as in TRL.
pub fn ipo(mean_delta_p: Tensor<1>, beta: f64) -> Tensor<1> {
    (mean_delta_p - 1.0 / (2.0 * beta)).square()
}

/// `−log σ(β·Δ̄)`, [`sigmoid`] on means over tokens instead of sums.
pub fn sigmoid_norm(mean_delta_p: Tensor<1>, beta: f64) -> Tensor<1> {
    -log_sigmoid(mean_delta_p * beta)
}

/// `[−(1−ε)·log σ(βΔ) + ε·log σ(−βΔ)] / (1 − 2ε)`: unbiased when a share ε < ½ of the labels is flipped.
///
/// Chowdhury et al. 2024, equation 12, <https://arxiv.org/abs/2403.00409>.
pub fn robust(delta_p: Tensor<1>, beta: f64, label_smoothing: f64) -> Tensor<1> {
    let logits_p = delta_p * beta;
    let right_p = log_sigmoid(logits_p.clone()) * (label_smoothing - 1.0);
    (right_p + log_sigmoid(-logits_p) * label_smoothing) / (1.0 - 2.0 * label_smoothing)
}

/// `σ(βΔ)·(log σ(βΔ) − log(1−ε)) + σ(−βΔ)·(log σ(−βΔ) − log ε)`: the reverse KL to labels that are right with probability 1 − ε. ε must be
/// positive; 1e-3 is usual.
///
/// Ji et al. 2024, equation 16, <https://arxiv.org/abs/2402.00856>.
pub fn exo_pair(delta_p: Tensor<1>, beta: f64, label_smoothing: f64) -> Tensor<1> {
    let (chosen_p, rejected_p) = (log_sigmoid(delta_p.clone() * beta), log_sigmoid(delta_p * -beta));
    chosen_p.clone().exp() * (chosen_p - (1.0 - label_smoothing).ln())
        + rejected_p.clone().exp() * (rejected_p - label_smoothing.ln())
}

/// `−log σ(βΔ)·(1−g) + e^(−βΔ)·g` with `g = σ(βΔ/τ)`: log-ratio modulated loss.
///
/// Lu et al. 2024, equation 5, <https://arxiv.org/abs/2406.08414>, where τ = 0.05.
pub fn discopop(delta_p: Tensor<1>, beta: f64, tau: f64) -> Tensor<1> {
    let logits_p = delta_p * beta;
    let gate_p = activation::sigmoid(logits_p.clone() / tau);
    let logistic_p = -log_sigmoid(logits_p.clone());
    // The gate is near 0 where βΔ is far below 0. The bound prevents 0·∞ there.
    let exponential_p = (-logits_p).clamp_max(80.0).exp();
    logistic_p.clone() + (exponential_p - logistic_p) * gate_p
}

/// `−log σ(β s_w) − ½·log σ(−β s_w) − ½·log σ(−β s_l)`.
///
/// Chen et al. 2024 (noise contrastive alignment), <https://arxiv.org/abs/2402.05369>.
///
/// # Panics
/// When the lengths differ.
pub fn nca_pair(chosen_p: Tensor<1>, rejected_p: Tensor<1>, beta: f64) -> Tensor<1> {
    assert_eq!(rejected_p.dims(), chosen_p.dims(), "rejected_p");
    let (chosen_p, rejected_p) = (chosen_p * beta, rejected_p * beta);
    -log_sigmoid(chosen_p.clone()) - (log_sigmoid(-chosen_p) + log_sigmoid(-rejected_p)) * 0.5
}

/// `−log σ(β s_w) − log σ(−β s_l)`, without a running shift.
///
/// Jung et al. 2024 (binary classifier optimization), <https://arxiv.org/abs/2404.04656>.
///
/// # Panics
/// When the lengths differ.
pub fn bco_pair(chosen_p: Tensor<1>, rejected_p: Tensor<1>, beta: f64) -> Tensor<1> {
    assert_eq!(rejected_p.dims(), chosen_p.dims(), "rejected_p");
    -log_sigmoid(chosen_p * beta) - log_sigmoid(rejected_p * -beta)
}

/// `(s_w − 1/(2β))² + (s_l + 1/(2β))²`.
///
/// Wu et al. 2024 (self-play preference optimization), <https://arxiv.org/abs/2405.00675>, with win rates 1 and 0.
///
/// # Panics
/// When the lengths differ.
pub fn sppo_hard(chosen_p: Tensor<1>, rejected_p: Tensor<1>, beta: f64) -> Tensor<1> {
    assert_eq!(rejected_p.dims(), chosen_p.dims(), "rejected_p");
    let target = 1.0 / (2.0 * beta);
    (chosen_p - target).square() + (rejected_p + target).square()
}

/// `1 − σ(β s_w) + σ(β s_l)`: makes the chosen completion likelier and the rejected one less likely.
///
/// D'Oosterlinck et al. 2024 (anchored preference optimization), <https://arxiv.org/abs/2408.06266>.
///
/// # Panics
/// When the lengths differ.
pub fn apo_zero(chosen_p: Tensor<1>, rejected_p: Tensor<1>, beta: f64) -> Tensor<1> {
    assert_eq!(rejected_p.dims(), chosen_p.dims(), "rejected_p");
    activation::sigmoid(chosen_p * -beta) + activation::sigmoid(rejected_p * beta)
}

/// `σ(β s_w) + 1 − σ(β (s_w − s_l))`: makes both less likely, the rejected one more so.
///
/// D'Oosterlinck et al. 2024, <https://arxiv.org/abs/2408.06266>.
///
/// # Panics
/// When the lengths differ.
pub fn apo_down(chosen_p: Tensor<1>, rejected_p: Tensor<1>, beta: f64) -> Tensor<1> {
    assert_eq!(rejected_p.dims(), chosen_p.dims(), "rejected_p");
    activation::sigmoid(chosen_p.clone() * beta) + activation::sigmoid((chosen_p - rejected_p) * -beta)
}

/// [`sigmoid`] of `d − d̂`: compares the distribution of preferences under the policy with that under the reference.
///
/// `d = Σ logprobs of w − Σ logprobs of l` under the policy. `d̂` is the same difference under the reference, for the pair that has `d`'s
/// rank in the step ([`gradus_core::math::rank`]). It carries no gradient. Melnyk et al. 2024 (alignment via optimal transport, paired),
/// <https://arxiv.org/abs/2406.05882>.
///
/// # Panics
/// When the lengths differ.
pub fn aot(differences_p: Tensor<1>, matched_reference_p: Tensor<1>, beta: f64, label_smoothing: f64) -> Tensor<1> {
    assert_eq!(matched_reference_p.dims(), differences_p.dims(), "matched_reference_p");
    sigmoid(differences_p - matched_reference_p, beta, label_smoothing)
}

/// [`sigmoid`] of `s_w − ŝ_l`, where `ŝ_l` is the rejected log-ratio of the same rank in the step: compares the distribution of chosen
/// log-ratios with that of rejected ones.
///
/// `beside_chosen_p` is `ŝ_l`; `beside_rejected_p` is the chosen log-ratio with the rank of `s_l`. Neither carries gradient. The two
/// completions of a sorted pair may be in different passes, so each pass computes the term for its own completion. The value is counted
/// only with the chosen one.
/// Melnyk et al. 2024 (alignment via optimal transport, unpaired), <https://arxiv.org/abs/2406.05882>.
///
/// # Panics
/// When the lengths differ.
pub fn aot_unpaired(
    [chosen_p, beside_chosen_p]: [Tensor<1>; 2],
    [rejected_p, beside_rejected_p]: [Tensor<1>; 2],
    beta: f64,
    label_smoothing: f64,
) -> Tensor<1> {
    assert_eq!(beside_chosen_p.dims(), chosen_p.dims(), "beside_chosen_p");
    assert_eq!(rejected_p.dims(), chosen_p.dims(), "rejected_p");
    assert_eq!(beside_rejected_p.dims(), chosen_p.dims(), "beside_rejected_p");
    let of_chosen_p = sigmoid(chosen_p - beside_chosen_p, beta, label_smoothing);
    let of_rejected_p = sigmoid(beside_rejected_p - rejected_p, beta, label_smoothing);
    of_chosen_p + (of_rejected_p.clone() - of_rejected_p.detach())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, close, gradient, leaf, mean_is, plain, values};
    use proptest::prelude::*;

    // Two pairs: completions of 3 and 4 tokens against 2 and 3 tokens. Sums of logprobs: −1.75, −2.2 and −2.25, −2.0. Sums of reference
    // logprobs: −2, −2 and −2, −2.5. Values from TRL 1.16.0.
    const BETA: f64 = 0.1;
    const CHOSEN_P: [f32; 2] = [0.25, -0.2];
    const REJECTED_P: [f32; 2] = [-0.25, 0.5];
    const DELTA_P: [f32; 2] = [0.5, -0.7];
    const MEAN_DELTA_P: [f32; 2] = [0.25 / 3.0 + 0.25 / 2.0, -0.2 / 4.0 - 0.5 / 3.0];

    #[test]
    fn losses_of_delta_as_in_trl() {
        let delta_p = || plain(&DELTA_P);
        mean_is(&sigmoid(delta_p(), BETA, 0.0), 0.698_609_60);
        mean_is(&hinge(delta_p(), BETA), 1.01);
        mean_is(&ipo(plain(&MEAN_DELTA_P), BETA), 25.086_840_28);
        mean_is(&sigmoid_norm(plain(&MEAN_DELTA_P), BETA), 0.693_411_98);
        mean_is(&robust(delta_p(), BETA, 0.1), 0.699_859_60);
        mean_is(&exo_pair(delta_p(), BETA, 0.1), 0.516_775_96);
        mean_is(&discopop(delta_p(), BETA, 0.05), 0.835_969_75);
    }

    #[test]
    fn losses_of_both_sides_as_in_trl() {
        let sides = || (plain(&CHOSEN_P), plain(&REJECTED_P));
        for (loss, expected) in [
            (nca_pair as fn(Tensor<1>, Tensor<1>, f64) -> Tensor<1>, 1.388_988_10),
            (bco_pair, 1.391_553_72),
            (sppo_hard, 51.207_5),
            (apo_zero, 1.002_498_94),
            (apo_down, 1.003_122_65),
        ] {
            let (chosen_p, rejected_p) = sides();
            mean_is(&loss(chosen_p, rejected_p, BETA), expected);
        }
    }

    /// Without a check, a single value would be broadcast.
    #[test]
    fn one_value_is_no_side_of_several_pairs() {
        let (three, one) = (|| plain(&[1.0, 2.0, 3.0]), || plain(&[1.0]));
        let calls: [fn(Tensor<1>, Tensor<1>) -> Tensor<1>; 7] = [
            |a, b| nca_pair(a, b, BETA),
            |a, b| bco_pair(a, b, BETA),
            |a, b| sppo_hard(a, b, BETA),
            |a, b| apo_zero(a, b, BETA),
            |a, b| apo_down(a, b, BETA),
            |a, b| aot(a, b, BETA, 0.0),
            |a, b| aot_unpaired([a.clone(), a], [b.clone(), b], BETA, 0.0),
        ];
        for (i, call) in calls.into_iter().enumerate() {
            for (a, b) in [(three(), one()), (one(), three())] {
                assert!(catch_unwind(AssertUnwindSafe(|| call(a, b))).is_err(), "loss {i}");
            }
        }
    }

    #[test]
    fn gradients_by_hand() {
        let wrong = |logit: f64| 1.0 / (1.0 + logit.exp());
        for (loss, slopes) in [
            (sigmoid as fn(Tensor<1>, f64, f64) -> Tensor<1>, [-BETA * wrong(0.05), -BETA * wrong(-0.07)]),
            (|delta_p, beta, _| hinge(delta_p, beta), [-BETA, -BETA]),
            (|delta_p, beta, _| ipo(delta_p, beta), [2.0 * (0.5 - 5.0), 2.0 * (-0.7 - 5.0)]),
        ] {
            let delta_p = leaf(&DELTA_P);
            close(&gradient(&loss(delta_p.clone(), BETA, 0.0), &delta_p), &slopes, GRADIENT_TOLERANCE);
        }
        // Smoothing: −β·((1−ε)·σ(−βΔ) − ε·σ(βΔ)).
        let delta_p = leaf(&DELTA_P);
        let slope = |logit: f64| -BETA * (0.9 * wrong(logit) - 0.1 * wrong(-logit));
        close(
            &gradient(&sigmoid(delta_p.clone(), BETA, 0.1), &delta_p),
            &[slope(0.05), slope(-0.07)],
            GRADIENT_TOLERANCE,
        );
    }

    #[test]
    fn a_sorted_pair_of_two_passes_has_the_gradient_of_both() {
        // Chosen 0.25 and −0.2, rejected −0.25 and 0.5. Sorted, −0.2 is paired with −0.25, and 0.25 with 0.5.
        let (chosen_p, rejected_p) = (leaf(&CHOSEN_P), leaf(&REJECTED_P));
        let loss_p = || {
            let chosen = [chosen_p.clone(), plain(&[0.5, -0.25])];
            aot_unpaired(chosen, [rejected_p.clone(), plain(&[-0.2, 0.25])], BETA, 0.0)
        };
        let loss = |delta: f64| (1.0 + (-BETA * delta).exp()).ln();
        mean_is(&loss_p(), (loss(-0.25) + loss(0.05)) / 2.0);
        let wrong = |delta: f64| BETA / (1.0 + (BETA * delta).exp());
        close(&gradient(&loss_p(), &chosen_p), &[-wrong(-0.25), -wrong(0.05)], GRADIENT_TOLERANCE);
        close(&gradient(&loss_p(), &rejected_p), &[wrong(0.05), wrong(-0.25)], GRADIENT_TOLERANCE);
    }

    #[test]
    fn at_the_reference_the_loss_is_log_two() {
        for smoothing in [0.0, 0.1, 0.4] {
            let loss = values(&sigmoid(plain(&[0.0]), BETA, smoothing))[0];
            assert!((loss - std::f32::consts::LN_2).abs() <= 1e-7, "{loss}");
        }
    }

    #[test]
    fn large_differences_stay_finite() {
        let extreme = [1e4f32, -1e4, 0.0];
        for loss in [
            (|delta_p| sigmoid(delta_p, 1.0, 0.1)) as fn(Tensor<1>) -> Tensor<1>,
            |delta_p| hinge(delta_p, 1.0),
            |delta_p| ipo(delta_p, 1.0),
            |delta_p| robust(delta_p, 1.0, 0.1),
            |delta_p| exo_pair(delta_p, 1.0, 0.1),
            |delta_p| discopop(delta_p, 1.0, 0.05),
            |delta_p| nca_pair(delta_p.clone(), -delta_p, 1.0),
            |delta_p| bco_pair(delta_p.clone(), -delta_p, 1.0),
            |delta_p| apo_zero(delta_p.clone(), -delta_p, 1.0),
            |delta_p| apo_down(delta_p.clone(), -delta_p, 1.0),
        ] {
            let delta_p = leaf(&extreme);
            let loss_p = loss(delta_p.clone());
            let found = [values(&loss_p), gradient(&loss_p, &delta_p)].concat();
            assert!(found.iter().all(|v| v.is_finite()), "{found:?}");
        }
    }

    proptest! {
        #[test]
        fn equal_completions_have_no_gradient(log_ratio in -5.0f32..5.0) {
            // Chosen = rejected: both sides are the same tensor, and Δ's two gradients cancel exactly.
            let side_p = leaf(&[log_ratio]);
            let loss_p = sigmoid(side_p.clone() - side_p.clone(), BETA, 0.0);
            prop_assert_eq!(gradient(&loss_p, &side_p), vec![0.0]);
        }

        #[test]
        fn swapping_the_pair_swaps_the_likelihood(delta in -20.0f32..20.0) {
            // σ(x) + σ(−x) = 1
            let right = values(&sigmoid(plain(&[delta]), BETA, 0.0))[0];
            let swapped = values(&sigmoid(plain(&[-delta]), BETA, 0.0))[0];
            prop_assert!(((-right).exp() + (-swapped).exp() - 1.0).abs() < 1e-6);
        }
    }
}
