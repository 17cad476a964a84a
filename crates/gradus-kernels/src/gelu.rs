//! GELU, both forms.
//!
//! Exact: `y = x·Φ(x)`, `Φ(x) = ½(1 + erf(x/√2))`; `y' = Φ(x) + x·φ(x)`.
//! Tanh (`gelu_new`, `gelu_pytorch_tanh`): `y = ½x(1 + tanh u) = x·σ(2u)`, `u = √(2/π)(x + 0.044715 x³)`;
//! `y' = σ(2u) + x·σ(2u)(1 − σ(2u))·2u'`. Hendrycks & Gimpel 2016, <https://arxiv.org/abs/1606.08415>.

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::fused::{Dense, Op, apply, is_fused};
use crate::simd::{sigmoid, simd};

/// Which form of GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// With the error function.
    Exact,
    /// With the hyperbolic tangent.
    Tanh,
}

/// √(2/π)
const SQRT_2_OVER_PI: f32 = 0.797_884_6;
/// The cubic coefficient of the tanh form.
const CUBIC: f32 = 0.044_715;
/// Elements per parallel task.
const CHUNK: usize = 16 * 1024;

/// GELU of every element. The input carries gradient.
pub fn gelu(x_nd: Tensor<2>, form: Gelu) -> Tensor<2> {
    if is_fused(&x_nd.device()) { apply(GeluOp(form), vec![x_nd.into_dispatch()]) } else { reference(x_nd, form) }
}

fn reference(x: Tensor<2>, form: Gelu) -> Tensor<2> {
    match form {
        Gelu::Exact => x.clone() * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5,
        Gelu::Tanh => {
            let u = (x.clone() + x.clone().powi_scalar(3) * CUBIC) * SQRT_2_OVER_PI;
            x * (u.tanh() + 1.0) * 0.5
        }
    }
}

#[derive(Debug)]
struct GeluOp(Gelu);

/// The error function to about 1e-7: Abramowitz & Stegun 7.1.26 is too coarse, so the series below 2 and the
/// continued fraction above.
fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    let a = x.abs();
    let value = if a < 2.0 {
        let (mut term, mut sum) = (a, a);
        let square = a * a;
        for n in 1..30 {
            term *= -square / f64::from(n);
            let add = term / f64::from(2 * n + 1);
            sum += add;
            if add.abs() < 1e-12 {
                break;
            }
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if a < 6.0 {
        let mut fraction = a;
        for k in (1..40).rev() {
            fraction = a + f64::from(k) / 2.0 / fraction;
        }
        1.0 - (-a * a).exp() / fraction * std::f64::consts::FRAC_2_SQRT_PI / 2.0
    } else {
        1.0
    };
    value.copysign(x) as f32
}

/// Value and derivative of the exact form.
fn exact(x: f32) -> (f32, f32) {
    let cdf = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
    let density = (-0.5 * x * x).exp() * 0.398_942_3;
    (x * cdf, cdf + x * density)
}

/// Value and derivative of the tanh form, as `x·σ(2u)`: exact also where 1 + tanh u cancels.
#[inline(always)]
fn tanh_form(x: f32) -> (f32, f32) {
    let s = sigmoid(2.0 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    let slope = 2.0 * SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
    (x * s, s + x * s * (1.0 - s) * slope)
}

simd! {
    fn tanh_values(y: &mut [f32], x: &[f32]) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = tanh_form(x).0);
    }

    fn tanh_gradients(y: &mut [f32], x: &[f32], g: &[f32]) {
        y.iter_mut().zip(x).zip(g).for_each(|((y, &x), g)| *y = g * tanh_form(x).1);
    }
}

impl Op for GeluOp {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let x = &inputs[0];
        let mut y = vec![0.0f32; x.values().len()];
        y.par_chunks_mut(CHUNK).zip(x.values().par_chunks(CHUNK)).for_each(|(y, x)| match self.0 {
            Gelu::Exact => y.iter_mut().zip(x).for_each(|(y, &x)| *y = exact(x).0),
            Gelu::Tanh => tanh_values(y, x),
        });
        (Dense::new(y, &x.dims()), vec![x.clone()])
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        let mut out = vec![0.0f32; grad.values().len()];
        out.par_chunks_mut(CHUNK)
            .zip(saved[0].values().par_chunks(CHUNK).zip(grad.values().par_chunks(CHUNK)))
            .for_each(|(out, (x, g))| match self.0 {
                Gelu::Exact => out.iter_mut().zip(x).zip(g).for_each(|((out, &x), g)| *out = g * exact(x).1),
                Gelu::Tanh => tanh_gradients(out, x, g),
            });
        vec![Some(Dense::new(out, &grad.dims()))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, leaf};

    #[test]
    fn agrees_with_the_reference() {
        for form in [Gelu::Exact, Gelu::Tanh] {
            let inputs = [leaf([13, 7], 1) * 5.0];
            let inputs = [inputs[0].clone().detach().require_grad()];
            check("gelu", &inputs, |x| gelu(x[0].clone(), form), |x| reference(x[0].clone(), form), 1e-5);
        }
    }

    #[test]
    fn the_error_function_is_exact_to_single_precision() {
        // Values of erf from Abramowitz & Stegun, table 7.1.
        for (x, expected) in
            [(0.0, 0.0), (0.5, 0.520_499_9), (1.0, 0.842_700_8), (2.0, 0.995_322_3), (3.0, 0.999_977_9)]
        {
            assert!((erf(x) - expected).abs() < 2e-7, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(100.0), 1.0);
    }
}
