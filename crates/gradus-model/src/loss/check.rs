//! Helpers of this module's tests: tensors from literals, and their values and gradients.

use burn::tensor::{Device, Tensor};

/// Tolerance of golden values, relative to 1 or the value, whichever is larger.
pub const VALUE_TOLERANCE: f64 = 1e-6;
/// Tolerance of gradients.
pub const GRADIENT_TOLERANCE: f64 = 1e-5;

/// Tensor without gradient, on a device with autodiff.
pub fn plain(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &Device::flex().autodiff())
}

/// Leaf tensor that requires a gradient.
pub fn leaf(values: &[f32]) -> Tensor<1> {
    plain(values).require_grad()
}

/// Values of a tensor.
pub fn values(tensor: &Tensor<1>) -> Vec<f32> {
    tensor.to_data().try_to_vec::<f32>().expect("f32 values")
}

/// Gradient of `Σ loss` with respect to `leaf`.
pub fn gradient(loss: &Tensor<1>, leaf: &Tensor<1>) -> Vec<f32> {
    let gradients = loss.clone().sum().backward();
    values(&leaf.grad(&gradients).expect("the leaf is tracked"))
}

/// Asserts that `found` equals `expected` within `tolerance`, element by element.
pub fn close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{found:?} against {expected:?}");
    for (&found, expected) in found.iter().zip(expected) {
        let bound = tolerance * expected.abs().max(1.0);
        assert!((f64::from(found) - expected).abs() <= bound, "{found} against {expected}");
    }
}

/// Asserts that the mean of the values equals `expected`, a golden value.
pub fn mean_is(tensor: &Tensor<1>, expected: f64) {
    let values = values(tensor);
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
    assert!((mean - expected).abs() <= VALUE_TOLERANCE * expected.abs().max(1.0), "{mean} against {expected}");
}
