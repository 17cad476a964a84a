//! A soft cap: `y = c·tanh(x / c)`, which is close to x near 0 and stays within ±c.
//!
//! `∂x = g·(1 − (y/c)²)`. Gemma 2 caps attention scores and the final logits: Riviere et al. 2024,
//! <https://arxiv.org/abs/2408.00118>, section 2.

use burn::tensor::Tensor;

use crate::fused::{Dense, Op, apply, supports};
use crate::parts::{PART, in_parts, one_in_parts, part_of};
use crate::simd::{simd, tanh};

/// Computes `cap · tanh(x / cap)` for every element, `[N, D]` to `[N, D]`. The input carries gradient.
pub fn softcap(x_nd: Tensor<2>, cap: f32) -> Tensor<2> {
    match supports(&Softcap(cap), &x_nd.device(), x_nd.dtype()) {
        true => apply(Softcap(cap), vec![x_nd.into_dispatch()]),
        false => reference(x_nd, cap),
    }
}

/// The definition, in plain tensors.
pub fn reference<const R: usize>(x: Tensor<R>, cap: f32) -> Tensor<R> {
    (x / cap).tanh() * cap
}

#[derive(Debug)]
pub(crate) struct Softcap(pub(crate) f32);

/// Caps one value; `inverse` is 1 / `cap`.
#[inline(always)]
fn capped(x: f32, cap: f32, inverse: f32) -> f32 {
    cap * tanh(x * inverse)
}

/// ∂y/∂x at the value `y`.
#[inline(always)]
pub(crate) fn slope(y: f32, inverse: f32) -> f32 {
    let t = y * inverse;
    1.0 - t * t
}

simd! {
    fn values(y: &mut [f32], x: &[f32], cap: f32) {
        let inverse = 1.0 / cap;
        for (y, &x) in y.iter_mut().zip(x) {
            *y = capped(x, cap, inverse);
        }
    }

    fn gradients(grad_x: &mut [f32], y: &[f32], grad: &[f32], cap: f32) {
        let inverse = 1.0 / cap;
        for ((grad_x, &y), g) in grad_x.iter_mut().zip(y).zip(grad) {
            *grad_x = g * slope(y, inverse);
        }
    }

    /// Caps every value and multiplies it by `scale`.
    pub(crate) fn cap_in_place(values: &mut [f32], cap: f32, scale: f32) {
        let (inverse, cap) = (1.0 / cap, cap * scale);
        for value in values {
            *value = capped(*value, cap, inverse);
        }
    }
}

impl Op for Softcap {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let x = &inputs[0];
        let y = one_in_parts(x.values().len(), PART, |i, y| values(y, part_of(x.values(), i, PART), self.0));
        let y = Dense::new(y, &x.dims());
        (y.clone(), vec![y])
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        let y = &saved[0];
        let ([grad_x], _) = in_parts(y.values().len(), PART, |i, [grad_x]| {
            gradients(grad_x, part_of(y.values(), i, PART), part_of(grad.values(), i, PART), self.0);
        });
        vec![Some(Dense::new(grad_x, &grad.dims()))]
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
        for shape in [[1, 1], [9, 11], [129, 131]] {
            for cap in [0.5, 30.0] {
                let x = [leaf(shape, 1)];
                check("softcap", &x, |x| softcap(x[0].clone(), cap), |x| reference(x[0].clone(), cap), 1e-5);
            }
        }
    }

    #[test]
    fn far_from_zero_it_is_the_cap_and_near_zero_the_input() {
        let x = given([1, 4], &[1e38, -1e38, 1e-20, 0.0]);
        let y = softcap(x.clone(), 30.0);
        let values = host(y.clone().inner());
        assert!(
            (values[0] - 30.0).abs() < 1e-4 && values[1] == -values[0] && values[2..] == [1e-20, 0.0],
            "{values:?}"
        );
        let gradient = host(x.grad(&y.backward()).expect("gradient"));
        assert!(gradient[0].abs() < 1e-5 && gradient[1].abs() < 1e-5 && gradient[2..] == [1.0, 1.0], "{gradient:?}");
    }
}
