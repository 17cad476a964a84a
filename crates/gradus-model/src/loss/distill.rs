//! Generalized knowledge distillation, one value per token: the divergence of the student's next-token distribution from the teacher's.
//!
//! Agarwal et al. 2024, equation 1, <https://arxiv.org/abs/2306.13649>. Follows TRL 1.16's experimental trainers.

use burn::tensor::{Bool, Int, Tensor, activation};

/// Log-probability of an impossible token: finite, but its exponential is 0.
const NOTHING: f32 = -1e4;

/// Upper bound of the log-probability of the known ids together, so that the log-probability of the rest is finite (as in TRL).
const KNOWN_MOST: f32 = -1e-7;

/// Generalized Jensen–Shannon divergence of each row, `[R]`: `β·KL(T ‖ M) + (1 − β)·KL(S ‖ M)` with `M = β·T + (1 − β)·S`. For β = 0 it is
/// `KL(T ‖ S)`, for β = 1 `KL(S ‖ T)`: the limits of the formula up to a factor.
///
/// Both are logits, `[R, V]`; `student_rv` carries gradient, `teacher_rv` does not.
///
/// # Panics
/// When the shapes differ.
pub fn jensen_shannon(student_rv: Tensor<2>, teacher_rv: Tensor<2>, beta: f64) -> Tensor<1> {
    assert_eq!(student_rv.dims(), teacher_rv.dims(), "both see one vocabulary");
    divergence_of(activation::log_softmax(student_rv, 1), activation::log_softmax(teacher_rv, 1), beta)
}

/// Log-probabilities that a teacher reports for a few ids of each row.
#[derive(Debug, Clone)]
pub struct Support {
    /// The ids, `[R, K]`, without repetition within a row.
    pub ids_rk: Tensor<2, Int>,
    /// The teacher's log-probabilities of these ids, `[R, K]`.
    pub teacher_rk: Tensor<2>,
    /// Mask of the entries that hold no id, `[R, K]`.
    pub absent_rk: Tensor<2, Bool>,
}

/// [`jensen_shannon`] over the ids of `support` alone, `[R]`. With `has_rest`, all other ids together count as one more id with the
/// remaining probability. Without it, both distributions are normalized over the support.
///
/// `student_rv` are logits, `[R, V]`, and carry gradient.
pub fn jensen_shannon_among(student_rv: Tensor<2>, support: Support, beta: f64, has_rest: bool) -> Tensor<1> {
    let Support { ids_rk, teacher_rk, absent_rk } = support;
    let student_rk = activation::log_softmax(student_rv, 1).gather(1, ids_rk);
    let complete = |logprobs_rk: Tensor<2>| {
        let logprobs_rk = logprobs_rk.mask_fill(absent_rk.clone(), NOTHING);
        let known_r1 = log_sum(logprobs_rk.clone());
        match has_rest {
            true => Tensor::cat(vec![logprobs_rk, log_rest(known_r1)], 1),
            false => logprobs_rk - known_r1,
        }
    };
    divergence_of(complete(student_rk), complete(teacher_rk), beta)
}

/// Logarithm of a sum of probabilities, `[R, 1]`, from their logarithms.
fn log_sum(logprobs_rk: Tensor<2>) -> Tensor<2> {
    let most_r1 = logprobs_rk.clone().max_dim(1).detach();
    (logprobs_rk - most_r1.clone()).exp().sum_dim(1).log() + most_r1
}

/// `ln(1 − e^x)`.
fn log_rest(known_r1: Tensor<2>) -> Tensor<2> {
    // e^x − 1 = 2·tanh(x/2) / (1 − tanh(x/2)), which is exact near 0.
    let half_r1 = (known_r1.clamp_max(KNOWN_MOST) * 0.5).tanh();
    (half_r1.clone() * -2.0).log() - (-half_r1).log1p()
}

/// Divergence of each row, from log-probabilities.
fn divergence_of(student_rv: Tensor<2>, teacher_rv: Tensor<2>, beta: f64) -> Tensor<1> {
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
    let distance_rv = (of_student.clone() - of_teacher.clone()).abs();
    let mixture_rv = of_student.max_pair(of_teacher) + (-distance_rv).exp().log1p();
    divergence(teacher_rv, mixture_rv.clone()) * beta + divergence(student_rv, mixture_rv) * (1.0 - beta)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use burn::tensor::TensorData;

    use super::*;
    use crate::loss::check::{VALUE_TOLERANCE, close, values};

    /// Builds a support from rows of ids and probabilities. A probability of 0 marks an absent id.
    fn support(rows: &[&[(i64, f64)]]) -> Support {
        let (device, shape) = (Device::flex().autodiff(), [rows.len(), rows[0].len()]);
        let all = || rows.iter().copied().flatten();
        let logprobs = all().map(|(_, p)| p.ln().max(-9999.0) as f32).collect::<Vec<f32>>();
        Support {
            ids_rk: Tensor::from_data(TensorData::new(all().map(|(id, _)| *id).collect::<Vec<i64>>(), shape), &device),
            teacher_rk: Tensor::from_data(TensorData::new(logprobs, shape), &device),
            absent_rk: Tensor::from_data(
                TensorData::new(all().map(|(_, p)| *p == 0.0).collect::<Vec<bool>>(), shape),
                &device,
            ),
        }
    }

    #[test]
    fn few_ids_and_the_rest_are_a_distribution() {
        // S = (¼, ¼, ½). The teacher reports only the first id, with ½. The rest has probability ¾ and ½.
        let student_rv = || {
            let logits: Vec<f32> = [0.25f32, 0.25, 0.5].iter().map(|p| p.ln() + 3.0).collect();
            Tensor::<1>::from_floats(logits.as_slice(), &Device::flex().autodiff()).reshape([1, 3])
        };
        let kl = |p: [f64; 2], q: [f64; 2]| p[0] * (p[0] / q[0]).ln() + p[1] * (p[1] / q[1]).ln();
        let (s, t) = ([0.25, 0.75], [0.5, 0.5]);
        for (beta, expected) in [(0.0, kl(t, s)), (1.0, kl(s, t))] {
            let found = jensen_shannon_among(student_rv(), support(&[&[(0, 0.5), (2, 0.0)]]), beta, true);
            close(&values(&found), &[expected], VALUE_TOLERANCE);
        }
        // Without the rest, the distributions have only the two ids.
        let (s, t) = ([1.0 / 3.0, 2.0 / 3.0], [0.75, 0.25]);
        let found = jensen_shannon_among(student_rv(), support(&[&[(1, 0.3), (2, 0.1)]]), 0.0, false);
        close(&values(&found), &[kl(t, s)], VALUE_TOLERANCE);
    }

    #[test]
    fn all_ids_are_the_whole_distribution() {
        for beta in [0.0, 0.3, 1.0] {
            let student_rv = logits(&[[0.3, 0.7], [0.5, 0.5], [1e-30, 1.0]]).require_grad();
            let reported = support(&[&[(1, 0.8), (0, 0.2)], &[(0, 0.5), (1, 0.5)], &[(0, 1e-9), (1, 1.0 - 1e-9)]]);
            let whole = jensen_shannon(student_rv.clone(), logits(&[[0.2, 0.8], [0.5, 0.5], [1e-9, 1.0]]), beta);
            let found = jensen_shannon_among(student_rv.clone(), reported, beta, true);
            close(&values(&found), &values(&whole).iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), 1e-5);
            let gradient = student_rv.grad(&found.sum().backward()).expect("it is tracked");
            let gradient: Vec<f32> = gradient.into_data().try_to_vec().expect("f32");
            assert!(gradient.iter().all(|x| x.is_finite()), "β {beta}: {gradient:?}");
        }
    }

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
