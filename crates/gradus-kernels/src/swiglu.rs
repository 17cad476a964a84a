//! SwiGLU: `y = silu(a) ∘ b` with `silu(a) = a·σ(a)`.
//!
//! `∂a = g ∘ b ∘ σ(a)(1 + a(1 − σ(a)))`, `∂b = g ∘ silu(a)`. Shazeer 2020, <https://arxiv.org/abs/2002.05202>.

use burn::tensor::{Tensor, activation};

use crate::fused::{Dense, Op, apply, supports};
use crate::parts::{PART, in_parts, one_in_parts, part_of};
use crate::simd::{sigmoid, simd};

/// Computes `silu(gate) ∘ up` for each element. Both inputs and the result are `[N, D]`. Both inputs carry gradient.
///
/// # Panics
/// If the shapes differ.
pub fn swiglu(gate_nd: Tensor<2>, up_nd: Tensor<2>) -> Tensor<2> {
    assert_eq!(up_nd.dims(), gate_nd.dims(), "up_nd");
    if supports(&Swiglu, &gate_nd.device(), gate_nd.dtype()) {
        apply(Swiglu, vec![gate_nd.into_dispatch(), up_nd.into_dispatch()])
    } else {
        reference(gate_nd, up_nd)
    }
}

/// The definition, in plain tensors.
pub fn reference(gate_nd: Tensor<2>, up_nd: Tensor<2>) -> Tensor<2> {
    activation::silu(gate_nd) * up_nd
}

#[derive(Debug)]
pub(crate) struct Swiglu;

simd! {
    fn forward(y: &mut [f32], a: &[f32], b: &[f32]) {
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = a * sigmoid(a) * b;
        }
    }

    fn backward(grad_a: &mut [f32], grad_b: &mut [f32], a: &[f32], b: &[f32], g: &[f32]) {
        for ((((grad_a, grad_b), &a), &b), &g) in grad_a.iter_mut().zip(grad_b).zip(a).zip(b).zip(g) {
            let s = sigmoid(a);
            *grad_a = g * b * s * (1.0 + a * (1.0 - s));
            *grad_b = g * a * s;
        }
    }
}

/// y.
pub(crate) fn values(a: &Dense, b: &Dense) -> Dense {
    let y = one_in_parts(a.values().len(), PART, |i, y| {
        forward(y, part_of(a.values(), i, PART), part_of(b.values(), i, PART));
    });
    Dense::new(y, &a.dims())
}

/// ∂a and ∂b.
pub(crate) fn gradients(a: &Dense, b: &Dense, grad: &Dense) -> [Dense; 2] {
    let (gradients, _) = in_parts(a.values().len(), PART, |i, [grad_a, grad_b]| {
        let (a, b) = (part_of(a.values(), i, PART), part_of(b.values(), i, PART));
        backward(grad_a, grad_b, a, b, part_of(grad.values(), i, PART));
    });
    gradients.map(|gradient| Dense::new(gradient, &grad.dims()))
}

impl Op for Swiglu {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (values(&inputs[0], &inputs[1]), inputs.to_vec())
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        gradients(&saved[0], &saved[1], grad).map(Some).into()
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
            check(
                "swiglu",
                &[leaf(shape, 1), leaf(shape, 2)],
                |x| swiglu(x[0].clone(), x[1].clone()),
                |x| reference(x[0].clone(), x[1].clone()),
                1e-5,
            );
        }
    }

    #[test]
    #[should_panic(expected = "up_nd")]
    fn both_inputs_have_one_shape() {
        let _ = swiglu(leaf([2, 4], 1), leaf([1, 4], 2));
    }

    #[test]
    fn far_from_zero_the_gate_is_open_or_closed() {
        for x in [100.0f32, 1e4, 1e20, 1e38] {
            let (gate, up) = (given([1, 2], &[x, -x]), given([1, 2], &[0.5, 0.5]));
            let y = swiglu(gate.clone(), up.clone());
            assert_eq!(host(y.clone().inner()), [0.5 * x, 0.0], "±{x}");
            let gradients = y.backward();
            assert_eq!(host(gate.grad(&gradients).expect("gradient")), [0.5, 0.0], "gate ±{x}");
            assert_eq!(host(up.grad(&gradients).expect("gradient")), [x, 0.0], "up ±{x}");
        }
        assert_eq!(host(swiglu(given([1, 2], &[1e-40, 2.0]), given([1, 2], &[1.0, 0.0])).inner()), [5e-41, 0.0]);
    }
}
