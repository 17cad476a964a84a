//! GEGLU: `y = gelu(a) ∘ b`, with either form of [`Gelu`].
//!
//! `∂a = g ∘ b ∘ gelu'(a)`, `∂b = g ∘ gelu(a)`. Shazeer 2020, <https://arxiv.org/abs/2002.05202>.

use burn::tensor::Tensor;

use crate::fused::{Dense, Op, apply, supports};
use crate::gelu::{Gelu, exact, reference as gelu_reference, tanh_form};
use crate::parts::{PART, in_parts, one_in_parts, part_of};
use crate::simd::simd;

/// Computes `gelu(gate) ∘ up` for each element. Both inputs and the result are `[N, D]`. Both inputs carry gradient.
///
/// # Panics
/// If the shapes differ.
pub fn geglu(gate_nd: Tensor<2>, up_nd: Tensor<2>, form: Gelu) -> Tensor<2> {
    assert_eq!(up_nd.dims(), gate_nd.dims(), "up_nd");
    if supports(&Geglu(form), &gate_nd.device(), gate_nd.dtype()) {
        apply(Geglu(form), vec![gate_nd.into_dispatch(), up_nd.into_dispatch()])
    } else {
        reference(gate_nd, up_nd, form)
    }
}

/// The definition, in plain tensors.
pub fn reference(gate_nd: Tensor<2>, up_nd: Tensor<2>, form: Gelu) -> Tensor<2> {
    gelu_reference(gate_nd, form) * up_nd
}

#[derive(Debug)]
pub(crate) struct Geglu(pub(crate) Gelu);

simd! {
    fn exact_values(y: &mut [f32], a: &[f32], b: &[f32]) {
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = exact(a).0 * b;
        }
    }

    fn tanh_values(y: &mut [f32], a: &[f32], b: &[f32]) {
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = tanh_form(a).0 * b;
        }
    }

    fn exact_gradients(grad_a: &mut [f32], grad_b: &mut [f32], a: &[f32], b: &[f32], g: &[f32]) {
        for ((((grad_a, grad_b), &a), &b), &g) in grad_a.iter_mut().zip(grad_b).zip(a).zip(b).zip(g) {
            let (value, slope) = exact(a);
            *grad_a = g * b * slope;
            *grad_b = g * value;
        }
    }

    fn tanh_gradients(grad_a: &mut [f32], grad_b: &mut [f32], a: &[f32], b: &[f32], g: &[f32]) {
        for ((((grad_a, grad_b), &a), &b), &g) in grad_a.iter_mut().zip(grad_b).zip(a).zip(b).zip(g) {
            let (value, slope) = tanh_form(a);
            *grad_a = g * b * slope;
            *grad_b = g * value;
        }
    }
}

/// y.
pub(crate) fn values(form: Gelu, a: &Dense, b: &Dense) -> Dense {
    let y = one_in_parts(a.values().len(), PART, |i, y| {
        let (a, b) = (part_of(a.values(), i, PART), part_of(b.values(), i, PART));
        match form {
            Gelu::Exact => exact_values(y, a, b),
            Gelu::Tanh => tanh_values(y, a, b),
        }
    });
    Dense::new(y, &a.dims())
}

/// ∂a and ∂b.
pub(crate) fn gradients(form: Gelu, a: &Dense, b: &Dense, grad: &Dense) -> [Dense; 2] {
    let (gradients, _) = in_parts(a.values().len(), PART, |i, [grad_a, grad_b]| {
        let [a, b, g] = [a, b, grad].map(|x| part_of(x.values(), i, PART));
        match form {
            Gelu::Exact => exact_gradients(grad_a, grad_b, a, b, g),
            Gelu::Tanh => tanh_gradients(grad_a, grad_b, a, b, g),
        }
    });
    gradients.map(|gradient| Dense::new(gradient, &grad.dims()))
}

impl Op for Geglu {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (values(self.0, &inputs[0], &inputs[1]), inputs.to_vec())
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        gradients(self.0, &saved[0], &saved[1], grad).map(Some).into()
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
        for form in [Gelu::Exact, Gelu::Tanh] {
            // One value, an odd size, and one that ends within a task.
            for shape in [[1, 1], [9, 11], [129, 131]] {
                check(
                    "geglu",
                    &[leaf(shape, 1), leaf(shape, 2)],
                    |x| geglu(x[0].clone(), x[1].clone(), form),
                    |x| reference(x[0].clone(), x[1].clone(), form),
                    1e-5,
                );
            }
        }
    }

    #[test]
    #[should_panic(expected = "up_nd")]
    fn both_inputs_have_one_shape() {
        let _ = geglu(leaf([2, 4], 1), leaf([4, 2], 2), Gelu::Exact);
    }

    #[test]
    fn far_from_zero_the_gate_is_open_or_closed() {
        for form in [Gelu::Exact, Gelu::Tanh] {
            for x in [100.0f32, 1e4, 1e20, 1e38] {
                let (gate, up) = (given([1, 2], &[x, -x]), given([1, 2], &[0.5, 0.5]));
                let y = geglu(gate.clone(), up.clone(), form);
                assert_eq!(host(y.clone().inner()), [0.5 * x, 0.0], "{form:?} ±{x}");
                let gradients = y.backward();
                assert_eq!(host(gate.grad(&gradients).expect("gradient")), [0.5, 0.0], "{form:?} gate ±{x}");
                assert_eq!(host(up.grad(&gradients).expect("gradient")), [x, 0.0], "{form:?} up ±{x}");
            }
        }
    }
}
