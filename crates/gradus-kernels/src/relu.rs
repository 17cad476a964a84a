//! ReLU: `y = max(x, 0)`; `∂x = g` where `x > 0`, else 0. NaN stays NaN, and its gradient passes.

use burn::tensor::{Tensor, activation};

use crate::fused::{Dense, Op, apply, supports};
use crate::parts::{PART, one_in_parts, part_of};
use crate::simd::simd;

/// Computes `max(x, 0)` for each element. The input carries gradient.
pub(crate) fn relu(x_nd: Tensor<2>) -> Tensor<2> {
    match supports(&Relu, &x_nd.device(), x_nd.dtype()) {
        true => apply(Relu, vec![x_nd.into_dispatch()]),
        false => reference(x_nd),
    }
}

/// The definition, in plain tensors.
pub(crate) fn reference(x_nd: Tensor<2>) -> Tensor<2> {
    activation::relu(x_nd)
}

#[derive(Debug)]
pub(crate) struct Relu;

simd! {
    fn forward(y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = if x <= 0.0 { 0.0 } else { x };
        }
    }

    fn backward(grad_x: &mut [f32], x: &[f32], g: &[f32]) {
        for ((grad_x, &x), &g) in grad_x.iter_mut().zip(x).zip(g) {
            *grad_x = if x <= 0.0 { 0.0 } else { g };
        }
    }
}

/// y.
pub(crate) fn values(x: &Dense) -> Dense {
    let y = one_in_parts(x.values().len(), PART, |i, y| forward(y, part_of(x.values(), i, PART)));
    Dense::new(y, &x.dims())
}

/// ∂x.
pub(crate) fn gradient(x: &Dense, grad: &Dense) -> Dense {
    let grad_x = one_in_parts(grad.values().len(), PART, |i, grad_x| {
        backward(grad_x, part_of(x.values(), i, PART), part_of(grad.values(), i, PART));
    });
    Dense::new(grad_x, &grad.dims())
}

impl Op for Relu {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (values(&inputs[0]), inputs.to_vec())
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        vec![Some(gradient(&saved[0], grad))]
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn crate::gpu::GpuOp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, given, host, leaf};

    #[test]
    fn agrees_with_the_reference() {
        // One value, an odd size, and one that ends within a task.
        for shape in [[1, 1], [9, 11], [129, 131]] {
            check("relu", &[leaf(shape, 1)], |x| relu(x[0].clone()), |x| reference(x[0].clone()), 0.0);
        }
    }

    #[test]
    fn nothing_passes_at_zero_and_nan_stays() {
        let x = given([1, 5], &[0.0, -0.0, -1e-40, 1e-40, f32::INFINITY]);
        let y = relu(x.clone());
        assert_eq!(host(y.clone().inner()), [0.0, 0.0, 0.0, 1e-40, f32::INFINITY]);
        assert_eq!(host(x.grad(&y.backward()).expect("gradient")), [0.0, 0.0, 0.0, 1.0, 1.0]);
        let x = given([1, 1], &[f32::NAN]);
        let y = relu(x.clone());
        assert!(host(y.clone().inner())[0].is_nan());
        assert_eq!(host(x.grad(&y.backward()).expect("gradient")), [1.0]);
    }
}
