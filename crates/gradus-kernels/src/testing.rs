//! Helpers for tests of kernels, in the library and in `tests/`.

#![allow(dead_code, reason = "not every test needs all of it")]

use burn::tensor::{Device, Tensor};

/// Pseudo-random values in (−1, 1), the same on every machine.
pub(crate) fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
        })
        .collect()
}

/// A tracked leaf on the CPU.
pub(crate) fn leaf<const R: usize>(shape: [usize; R], seed: u64) -> Tensor<R> {
    let data = burn::tensor::TensorData::new(values(shape.iter().product(), seed), shape);
    Tensor::from_data(data, &Device::flex().autodiff()).require_grad()
}

/// A tracked leaf with the given values.
pub(crate) fn given<const R: usize>(shape: [usize; R], values: &[f32]) -> Tensor<R> {
    let data = burn::tensor::TensorData::new(values.to_vec(), shape);
    Tensor::from_data(data, &Device::flex().autodiff()).require_grad()
}

/// Row-major values.
pub(crate) fn host<const R: usize>(tensor: Tensor<R>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32")
}

/// Asserts that two slices agree within `tolerance` of the larger magnitude (at least 1).
pub(crate) fn assert_close(name: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{name}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let scale = e.abs().max(1.0);
        assert!((f - e).abs() <= tolerance * scale, "{name}[{i}]: {f} instead of {e}");
    }
}

/// Compares value and gradients of `fused` with those of `reference` on the same inputs.
pub(crate) fn check<const R: usize>(
    name: &str,
    inputs: &[Tensor<2>],
    fused: impl Fn(&[Tensor<2>]) -> Tensor<R>,
    reference: impl Fn(&[Tensor<2>]) -> Tensor<R>,
    tolerance: f32,
) {
    let (a, b) = (fused(inputs), reference(inputs));
    assert_eq!(a.dims(), b.dims(), "{name}: shape");
    assert_close(name, &host(a.clone().inner()), &host(b.clone().inner()), tolerance);
    // A weighted sum gives every output element a different gradient.
    let weights = Tensor::<R>::from_data(
        burn::tensor::TensorData::new(values(a.dims().iter().product(), 99), a.dims()),
        &a.device(),
    );
    let (ga, gb) = ((a * weights.clone()).sum().backward(), (b * weights).sum().backward());
    for (i, input) in inputs.iter().enumerate() {
        let (found, expected) = (input.grad(&ga).expect("gradient"), input.grad(&gb).expect("gradient"));
        assert_close(&format!("{name}: gradient {i}"), &host(found), &host(expected), tolerance);
    }
}
