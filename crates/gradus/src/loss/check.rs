//! What the tests of this module share: tensors from literals, values and gradients back.

use burn::tensor::{Device, Tensor};

/// Golden values hold within this, relative to 1 or the value, whichever is larger.
pub const VALUE_TOLERANCE: f64 = 1e-6;
/// Gradients hold within this.
pub const GRADIENT_TOLERANCE: f64 = 1e-5;

/// A tensor without gradient, on a device that can track.
pub fn plain(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &Device::flex().autodiff())
}

/// A leaf whose gradient is asked for.
pub fn leaf(values: &[f32]) -> Tensor<1> {
    plain(values).require_grad()
}

/// The values of a tensor.
pub fn values(tensor: &Tensor<1>) -> Vec<f32> {
    tensor.to_data().try_to_vec::<f32>().expect("f32 values")
}

/// The gradient of `Σ loss` with respect to `leaf`.
pub fn gradient(loss: &Tensor<1>, leaf: &Tensor<1>) -> Vec<f32> {
    let gradients = loss.clone().sum().backward();
    values(&leaf.grad(&gradients).expect("the leaf is tracked"))
}

/// Asserts that `found` is `expected` within `tolerance`, element by element.
pub fn close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{found:?} against {expected:?}");
    for (&found, expected) in found.iter().zip(expected) {
        let bound = tolerance * expected.abs().max(1.0);
        assert!((f64::from(found) - expected).abs() <= bound, "{found} against {expected}");
    }
}

/// Asserts that the mean of the values is `expected`, a golden value.
pub fn mean_is(tensor: &Tensor<1>, expected: f64) {
    let values = values(tensor);
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
    assert!((mean - expected).abs() <= VALUE_TOLERANCE * expected.abs().max(1.0), "{mean} against {expected}");
}
