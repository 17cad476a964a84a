//! Both forms of GELU.
//!
//! Exact: `y = x·Φ(x)`, `Φ(x) = ½(1 + erf(x/√2))`; `y' = Φ(x) + x·φ(x)`.
//! Tanh (`gelu_new`, `gelu_pytorch_tanh`): `y = ½x(1 + tanh u) = x·σ(2u)`, `u = √(2/π)(x + 0.044715 x³)`;
//! `y' = σ(2u) + x·σ(2u)(1 − σ(2u))·2u'`. Hendrycks & Gimpel 2016, <https://arxiv.org/abs/1606.08415>.

use burn::tensor::Tensor;

use crate::fused::{Dense, Op, apply, supports};
use crate::parts::{PART, one_in_parts, part_of};
use crate::simd::{exp_or_zero, sigmoid, simd};

/// Form of GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// With the error function.
    Exact,
    /// With the hyperbolic tangent.
    Tanh,
}

/// √(2/π)
pub(crate) const SQRT_2_OVER_PI: f32 = 0.797_884_6;
/// 1/√(2π)
pub(crate) const FRAC_1_SQRT_2_PI: f32 = 0.398_942_3;
/// The cubic coefficient of the tanh form.
pub(crate) const CUBIC: f32 = 0.044_715;

/// Applies GELU to every element, `[N, D]` to `[N, D]`. The input carries gradient.
pub fn gelu(x_nd: Tensor<2>, form: Gelu) -> Tensor<2> {
    match supports(&GeluOp(form), &x_nd.device(), x_nd.dtype()) {
        true => apply(GeluOp(form), vec![x_nd.into_dispatch()]),
        false => reference(x_nd, form),
    }
}

/// The definition, in plain tensors.
pub fn reference(x: Tensor<2>, form: Gelu) -> Tensor<2> {
    match form {
        Gelu::Exact => x.clone() * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5,
        Gelu::Tanh => {
            let u = (x.clone() + x.clone().powi_scalar(3) * CUBIC) * SQRT_2_OVER_PI;
            x * (u.tanh() + 1.0) * 0.5
        }
    }
}

#[derive(Debug)]
pub(crate) struct GeluOp(pub(crate) Gelu);

/// `Φ(−|x|) / exp(−x²/2)` as a polynomial in `t = 1 / (1 + |x|/4)` from t¹⁰ down to t, fitted for a relative error below
/// 5e-8 at every x.
pub(crate) const TAIL: [f32; 10] = [
    0.020_153_577,
    -0.082_505_77,
    0.098_586_57,
    -0.034_699_996,
    0.065_452_99,
    0.058_358_97,
    0.081_728_01,
    0.093_453_05,
    0.099_737_04,
    0.099_735_56,
];

/// Value and derivative of the exact form. The tail of Φ is computed directly, so nothing cancels at negative x.
#[inline(always)]
pub(crate) fn exact(x: f32) -> (f32, f32) {
    let bell = exp_or_zero(-0.5 * x * x);
    let t = 1.0 / (1.0 + 0.25 * x.abs());
    let mut sum = 0.0;
    for coefficient in TAIL {
        sum = sum * t + coefficient;
    }
    let tail = bell * t * sum;
    let cdf = if x < 0.0 { tail } else { 1.0 - tail };
    (x * cdf, cdf + x * bell * FRAC_1_SQRT_2_PI)
}

/// Value and derivative of the tanh form, as `x·σ(2u)`, which is also accurate where 1 + tanh u cancels.
#[inline(always)]
pub(crate) fn tanh_form(x: f32) -> (f32, f32) {
    let s = sigmoid(2.0 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    // Beyond ±10, σ(1 − σ) is exactly 0 and must not be multiplied by an infinite square.
    let near = x.clamp(-10.0, 10.0);
    let slope = 2.0 * SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * near * near);
    (x * s, s + x * s * (1.0 - s) * slope)
}

simd! {
    fn exact_values(y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = exact(x).0;
        }
    }

    fn exact_gradients(y: &mut [f32], x: &[f32], g: &[f32]) {
        for ((y, &x), g) in y.iter_mut().zip(x).zip(g) {
            *y = g * exact(x).1;
        }
    }

    fn tanh_values(y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = tanh_form(x).0;
        }
    }

    fn tanh_gradients(y: &mut [f32], x: &[f32], g: &[f32]) {
        for ((y, &x), g) in y.iter_mut().zip(x).zip(g) {
            *y = g * tanh_form(x).1;
        }
    }
}

impl Gelu {
    /// y.
    pub(crate) fn values(self, x: &Dense) -> Dense {
        let y = one_in_parts(x.values().len(), PART, |i, y| {
            let x = part_of(x.values(), i, PART);
            match self {
                Self::Exact => exact_values(y, x),
                Self::Tanh => tanh_values(y, x),
            }
        });
        Dense::new(y, &x.dims())
    }

    /// ∂x.
    pub(crate) fn gradient(self, x: &Dense, grad: &Dense) -> Dense {
        let grad_x = one_in_parts(grad.values().len(), PART, |i, grad_x| {
            let (x, g) = (part_of(x.values(), i, PART), part_of(grad.values(), i, PART));
            match self {
                Self::Exact => exact_gradients(grad_x, x, g),
                Self::Tanh => tanh_gradients(grad_x, x, g),
            }
        });
        Dense::new(grad_x, &grad.dims())
    }
}

impl Op for GeluOp {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (self.0.values(&inputs[0]), inputs.to_vec())
    }

    fn backward(&self, saved: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        vec![Some(self.0.gradient(&saved[0], grad))]
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
            for shape in [[1, 1], [13, 7], [129, 131]] {
                let input = (leaf(shape, 1) * 5.0).detach().require_grad();
                check("gelu", &[input], |x| gelu(x[0].clone(), form), |x| reference(x[0].clone(), form), 1e-5);
            }
        }
    }

    #[test]
    fn far_from_zero_it_is_the_input_or_nothing() {
        for form in [Gelu::Exact, Gelu::Tanh] {
            for x in [20.0f32, 1e4, 1e13, 1e25, 1e38] {
                let input = given([1, 2], &[x, -x]);
                let y = gelu(input.clone(), form);
                assert_eq!(host(y.clone().inner()), [x, 0.0], "{form:?} of ±{x}");
                assert_eq!(host(input.grad(&y.backward()).expect("gradient")), [1.0, 0.0], "{form:?}' of ±{x}");
            }
            // Around zero the slope is ½, down to the smallest number.
            assert_eq!(host(gelu(given([1, 3], &[0.0, 1e-40, -1e-40]), form).inner()), [0.0, 5e-41, -5e-41]);
        }
    }

    /// Φ in f64, by the series of erf below 2 and its continued fraction above.
    fn cdf(x: f64) -> f64 {
        let a = x.abs() / std::f64::consts::SQRT_2;
        let tail = if a < 2.0 {
            let (mut term, mut sum) = (a, a);
            for n in 1..60 {
                term *= -a * a / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            0.5 - 0.5 * sum * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            let fraction = (1..200).rev().fold(a, |fraction, k| a + f64::from(k) / 2.0 / fraction);
            (-a * a).exp() / fraction * std::f64::consts::FRAC_2_SQRT_PI / 4.0
        };
        if x < 0.0 { tail } else { 1.0 - tail }
    }

    #[test]
    fn the_exact_form_is_exact_to_single_precision() {
        // Values of Φ from Abramowitz & Stegun, table 26.1.
        for (x, expected) in [(0.0, 0.5), (1.0, 0.841_344_746_068_5), (-3.0, 0.001_349_898_031_6)] {
            assert!((cdf(x) - expected).abs() < 1e-12, "Φ({x}) = {}", cdf(x));
        }
        for i in -12_000..=12_000 {
            let x = i as f32 * 1e-3;
            let (wide, (value, slope)) = (f64::from(x), exact(x));
            let density = (-0.5 * wide * wide).exp() * f64::from(FRAC_1_SQRT_2_PI);
            let expected = [wide * cdf(wide), cdf(wide) + wide * density];
            for (found, expected) in [f64::from(value), f64::from(slope)].into_iter().zip(expected) {
                assert!((found - expected).abs() <= 3e-7 * expected.abs().max(0.5), "x = {x}: {found}, not {expected}");
            }
            // The tail keeps its relative accuracy: only the rounding of x² is lost.
            if (-9.0..0.0).contains(&x) {
                assert!((f64::from(value) / expected[0] - 1.0).abs() < 4e-6, "x = {x}: {value}, not {}", expected[0]);
            }
        }
    }
}
