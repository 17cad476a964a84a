//! Losses of classifiers, one value per text or token.
//!
//! Logits are `[M, K]`: M texts or tokens, K labels.

use burn::tensor::{Int, Tensor, TensorData, activation};

/// Cross-entropy, `−ln softmax(z)[y]`, `[M]`. `logits_mk` carries gradient.
///
/// # Panics
/// When there is not one label per row, or a label is not below K.
pub fn cross_entropy(logits_mk: Tensor<2>, labels_m: &[usize]) -> Tensor<1> {
    let [m, k] = logits_mk.dims();
    assert_eq!(labels_m.len(), m, "one label a row");
    assert!(labels_m.iter().all(|&label| label < k), "a label is below K");
    let labels: Vec<i64> = labels_m.iter().map(|&label| label as i64).collect();
    let labels_m1 = Tensor::<2, Int>::from_data(TensorData::new(labels, [m, 1]), &logits_mk.device());
    -activation::log_softmax(logits_mk, 1).gather(1, labels_m1).reshape([m])
}

/// Mean over labels of the binary cross-entropy, `−(y ln σ(z) + (1 − y) ln σ(−z))`, `[M]`. `logits_mk` carries gradient. `targets_mk` is 1
/// for labels that apply and 0 for others.
///
/// # Panics
/// When the shapes differ.
pub fn binary_cross_entropy(logits_mk: Tensor<2>, targets_mk: Tensor<2>) -> Tensor<1> {
    let [m, k] = logits_mk.dims();
    assert_eq!(targets_mk.dims(), [m, k], "targets_mk");
    let (yes, no) = (activation::log_sigmoid(logits_mk.clone()), activation::log_sigmoid(-logits_mk));
    let losses_mk = -(targets_mk.clone() * yes + (targets_mk.ones_like() - targets_mk) * no);
    losses_mk.mean_dim(1).reshape([m])
}

/// Mean over outputs of the squared error, `[M]`. `outputs_mk` carries gradient.
///
/// # Panics
/// When the shapes differ.
pub fn squared_error(outputs_mk: Tensor<2>, targets_mk: Tensor<2>) -> Tensor<1> {
    let [m, k] = outputs_mk.dims();
    assert_eq!(targets_mk.dims(), [m, k], "targets_mk");
    (outputs_mk - targets_mk).powi_scalar(2).mean_dim(1).reshape([m])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::check::{GRADIENT_TOLERANCE, VALUE_TOLERANCE, close, gradient, leaf, plain, values};

    #[test]
    fn cross_entropy_of_two_rows() {
        // exp: 1, 2, 5 and 1, 1, 2. Probabilities: 1/8, 2/8, 5/8 and 1/4, 1/4, 1/2.
        let z = leaf(&[0.0, 2f32.ln(), 5f32.ln(), 0.0, 0.0, 2f32.ln()]);
        let loss_m = cross_entropy(z.clone().reshape([2, 3]), &[1, 2]);
        close(&values(&loss_m), &[4f64.ln(), 2f64.ln()], VALUE_TOLERANCE);
        // Probabilities, minus 1 at the label.
        let expected = [0.125, -0.75, 0.625, 0.25, 0.25, -0.5];
        close(&gradient(&loss_m, &z), &expected, GRADIENT_TOLERANCE);
        let far = leaf(&[200.0, -200.0]);
        let loss_m = cross_entropy(far.clone().reshape([1, 2]), &[1]);
        assert_eq!((values(&loss_m), gradient(&loss_m, &far)), (vec![400.0], vec![1.0, -1.0]));
    }

    #[test]
    fn binary_cross_entropy_is_a_mean_over_labels() {
        let (z, y) = (leaf(&[0.0, 3f32.ln(), -200.0, 200.0]), plain(&[1.0, 0.0, 0.0, 1.0]));
        let loss_m = binary_cross_entropy(z.clone().reshape([2, 2]), y.reshape([2, 2]));
        // −ln ½ and −ln ¼; in the second row, f32 cannot distinguish the probabilities from 0 and 1.
        close(&values(&loss_m), &[(2f64.ln() + 4f64.ln()) / 2.0, 0.0], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &z), &[-0.25, 0.375, 0.0, 0.0], GRADIENT_TOLERANCE);
    }

    #[test]
    fn squared_error_is_a_mean_over_outputs() {
        let (z, y) = (leaf(&[1.0, 2.0]), plain(&[3.0, 2.5]));
        let loss_m = squared_error(z.clone().reshape([1, 2]), y.reshape([1, 2]));
        close(&values(&loss_m), &[(4.0 + 0.25) / 2.0], VALUE_TOLERANCE);
        close(&gradient(&loss_m, &z), &[-2.0, -0.5], GRADIENT_TOLERANCE);
    }
}
