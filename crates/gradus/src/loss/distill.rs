//! Generalised knowledge distillation, one value per token: how far the student's next-token distribution is from the
//! teacher's.
//!
//! Agarwal et al. 2024, equation 1, <https://arxiv.org/abs/2306.13649>. Follows TRL 1.16's experimental trainer.

use burn::tensor::{Tensor, activation};

/// The generalised Jensen–Shannon divergence of each row, `[R]`: `β·KL(T ‖ M) + (1 − β)·KL(S ‖ M)` with
/// `M = β·T + (1 − β)·S`; `KL(T ‖ S)` for β = 0 and `KL(S ‖ T)` for β = 1, its limits but for a factor.
///
/// Both are logits, `[R, V]`; `student_rv` carries gradient, `teacher_rv` does not.
///
/// # Panics
/// When the shapes differ.
pub fn jensen_shannon(student_rv: Tensor<2>, teacher_rv: Tensor<2>, beta: f64) -> Tensor<1> {
    assert_eq!(student_rv.dims(), teacher_rv.dims(), "both see one vocabulary");
    let student_rv = activation::log_softmax(student_rv, 1);
    let teacher_rv = activation::log_softmax(teacher_rv, 1);
    // Σ p·(log p − log q) of each row.
    let divergence = |p_rv: Tensor<2>, q_rv: Tensor<2>| {
        let terms_rv = p_rv.clone().exp() * (p_rv - q_rv);
        terms_rv.sum_dim(1).squeeze_dim::<1>(1)
    };
    if beta == 0.0 {
        return divergence(teacher_rv, student_rv);
    }
    if beta == 1.0 {
        return divergence(student_rv, teacher_rv);
    }
    let (of_student, of_teacher) = (student_rv.clone() + (-beta).ln_1p(), teacher_rv.clone() + beta.ln());
    // log(e^a + e^b) = max + log1p(e^−|a − b|)
    let apart_rv = (of_student.clone() - of_teacher.clone()).abs();
    let mixture_rv = of_student.max_pair(of_teacher) + (-apart_rv).exp().log1p();
    divergence(teacher_rv, mixture_rv.clone()) * beta + divergence(student_rv, mixture_rv) * (1.0 - beta)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::loss::check::{VALUE_TOLERANCE, close, values};

    fn logits(probabilities: &[[f64; 2]]) -> Tensor<2> {
        let rows: Vec<[f32; 2]> = probabilities.iter().map(|row| row.map(|p| p.ln() as f32)).collect();
        let flat: Vec<f32> = rows.into_iter().flatten().collect();
        Tensor::<1>::from_floats(flat.as_slice(), &Device::flex().autodiff()).reshape([probabilities.len(), 2])
    }

    #[test]
    fn between_both_directions_of_the_kl() {
        // S = (¾, ¼), T = (½, ½).
        let (s, t) = ([0.75, 0.25], [0.5, 0.5]);
        let kl = |p: [f64; 2], q: [f64; 2]| p[0] * (p[0] / q[0]).ln() + p[1] * (p[1] / q[1]).ln();
        for beta in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let m = [0, 1].map(|v| beta * t[v] + (1.0 - beta) * s[v]);
            let expected = match beta {
                0.0 => kl(t, s),
                1.0 => kl(s, t),
                beta => beta * kl(t, m) + (1.0 - beta) * kl(s, m),
            };
            close(&values(&jensen_shannon(logits(&[s]), logits(&[t]), beta)), &[expected], VALUE_TOLERANCE);
        }
    }

    #[test]
    fn equal_distributions_have_no_distance_and_no_gradient_and_far_ones_stay_finite() {
        for beta in [0.0, 0.5, 1.0] {
            let student_rv = logits(&[[0.3, 0.7], [0.5, 0.5]]).require_grad();
            let far_rv = Tensor::<2>::from_floats([[80.0, -80.0], [0.0, 0.0]], &student_rv.device());
            let same = jensen_shannon(student_rv.clone(), logits(&[[0.3, 0.7], [0.5, 0.5]]), beta);
            close(&values(&same), &[0.0, 0.0], VALUE_TOLERANCE);
            for loss in [same, jensen_shannon(student_rv.clone(), far_rv, beta)] {
                let gradient = student_rv.grad(&loss.sum().backward()).expect("it is tracked");
                let found: Vec<f32> = gradient.into_data().try_to_vec().expect("f32");
                assert!(found.iter().all(|x| x.is_finite()), "β {beta}: {found:?}");
            }
        }
    }
}
