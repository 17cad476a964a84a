//! Activations; the mathematics is in [`crate::gelu`], [`crate::swiglu`], [`crate::geglu`],
//! [`crate::relu`] and [`crate::softcap`].

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::product::held;
use super::{
    EACH, GpuOp, UNITS, arg, element, elements, empty, empty_like, grid_of_groups, grid_of_units, nth_element,
};
use crate::activation::Activation;
use crate::geglu::Geglu;
use crate::gelu::{CUBIC, FRAC_1_SQRT_2_PI, Gelu, GeluOp, SQRT_2_OVER_PI, TAIL};
use crate::product::Precision;
use crate::relu::Relu;
use crate::softcap::Softcap;
use crate::swiglu::Swiglu;

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Curve {
    /// max(x, 0).
    Relu,
    /// x·σ(x).
    Silu,
    /// GELU with the error function.
    GeluExact,
    /// GELU with the hyperbolic tangent.
    GeluTanh,
}

impl From<Gelu> for Curve {
    fn from(form: Gelu) -> Self {
        match form {
            Gelu::Exact => Self::GeluExact,
            Gelu::Tanh => Self::GeluTanh,
        }
    }
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (-x).exp())
}

/// Value and slope of a curve at `x`.
#[cube]
fn curve_at(x: f32, #[comptime] curve: Curve) -> (f32, f32) {
    let mut value = x;
    let mut slope = 1.0f32;
    if comptime!(curve == Curve::Relu) {
        if x <= 0.0f32 {
            value = 0.0f32;
            slope = 0.0f32;
        }
    } else if comptime!(curve == Curve::Silu) {
        let s = sigmoid(x);
        value = x * s;
        slope = s * (1.0f32 + x * (1.0f32 - s));
    } else if comptime!(curve == Curve::GeluExact) {
        let bell = (x * x * -0.5f32).exp();
        let size = x.abs();
        let t = 1.0f32 / (1.0f32 + 0.25f32 * size);
        let mut sum = t * comptime!(TAIL[0]) + comptime!(TAIL[1]);
        sum = sum * t + comptime!(TAIL[2]);
        sum = sum * t + comptime!(TAIL[3]);
        sum = sum * t + comptime!(TAIL[4]);
        sum = sum * t + comptime!(TAIL[5]);
        sum = sum * t + comptime!(TAIL[6]);
        sum = sum * t + comptime!(TAIL[7]);
        sum = sum * t + comptime!(TAIL[8]);
        sum = sum * t + comptime!(TAIL[9]);
        let tail = bell * t * sum;
        let cdf = select(x < 0.0f32, tail, 1.0f32 - tail);
        value = x * cdf;
        slope = cdf + x * bell * FRAC_1_SQRT_2_PI;
    } else {
        let s = sigmoid(2.0f32 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
        // Beyond ±10, σ(1 − σ) is exactly 0 and must not be multiplied by an infinite square.
        let near = clamp(x, -10.0f32, 10.0f32);
        let steepness = 2.0f32 * SQRT_2_OVER_PI * (1.0f32 + 3.0f32 * CUBIC * near * near);
        value = x * s;
        slope = s + x * s * (1.0f32 - s) * steepness;
    }
    (value, slope)
}

#[cube(launch)]
fn curve_forward<F: Float, G: Float>(
    x: &[F],
    y: &mut [G],
    #[comptime] curve: Curve,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS < y.len() {
        let (value, _slope) = curve_at(f32::cast_from(x[ABSOLUTE_POS]), curve);
        y[ABSOLUTE_POS] = G::cast_from(value);
    }
}

#[cube(launch)]
fn curve_backward<F: Float>(
    x: &[F],
    grad: &[F],
    grad_x: &mut [F],
    #[comptime] curve: Curve,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < grad_x.len() {
        let (_value, slope) = curve_at(f32::cast_from(x[ABSOLUTE_POS]), curve);
        grad_x[ABSOLUTE_POS] = F::cast_from(f32::cast_from(grad[ABSOLUTE_POS]) * slope);
    }
}

#[cube(launch)]
fn gated_forward<F: Float, G: Float>(
    gate: &[F],
    up: &[F],
    y: &mut [G],
    #[comptime] curve: Curve,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let mut values = Array::<f32>::new(EACH);
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < y.len() {
            let (value, _slope) = curve_at(f32::cast_from(gate[at]), curve);
            values[j] = value * f32::cast_from(up[at]);
        }
    }
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < y.len() {
            y[at] = G::cast_from(values[j]);
        }
    }
}

#[cube(launch)]
fn gated_backward<F: Float>(
    gate: &[F],
    up: &[F],
    grad: &[F],
    grad_gate: &mut [F],
    grad_up: &mut [F],
    #[comptime] curve: Curve,
    #[define(F)] _dtype: ElemType,
) {
    let mut of_gate = Array::<f32>::new(EACH);
    let mut of_up = Array::<f32>::new(EACH);
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < grad_gate.len() {
            let g = f32::cast_from(grad[at]);
            let (value, slope) = curve_at(f32::cast_from(gate[at]), curve);
            of_gate[j] = g * f32::cast_from(up[at]) * slope;
            of_up[j] = g * value;
        }
    }
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < grad_gate.len() {
            grad_gate[at] = F::cast_from(of_gate[j]);
            grad_up[at] = F::cast_from(of_up[j]);
        }
    }
}

#[cube(launch)]
fn softcap_forward<F: Float>(x: &[F], y: &mut [F], cap: f32, #[define(F)] _dtype: ElemType) {
    if ABSOLUTE_POS < y.len() {
        y[ABSOLUTE_POS] = F::cast_from(cap * capped(f32::cast_from(x[ABSOLUTE_POS]) / cap));
    }
}

#[cube(launch)]
fn softcap_backward<F: Float>(x: &[F], grad: &[F], grad_x: &mut [F], cap: f32, #[define(F)] _dtype: ElemType) {
    if ABSOLUTE_POS < grad_x.len() {
        let t = capped(f32::cast_from(x[ABSOLUTE_POS]) / cap);
        grad_x[ABSOLUTE_POS] = F::cast_from(f32::cast_from(grad[ABSOLUTE_POS]) * (1.0f32 - t * t));
    }
}

/// Computes tanh. The argument is clamped because some drivers overflow far from zero, where tanh is ±1.
#[cube]
pub(super) fn capped(x: f32) -> f32 {
    clamp(x, -20.0f32, 20.0f32).tanh()
}

/// Returns the curve at `x` in `dtype`.
fn one(x: &CubeTensor, curve: Curve, dtype: DType) -> CubeTensor {
    let y = empty(x, &x.shape().to_vec(), dtype);
    if elements(x) > 0 {
        let grid = grid_of_units(elements(x));
        curve_forward::launch(
            &x.client,
            grid,
            CubeDim::new_1d(UNITS),
            arg(x),
            arg(&y),
            curve,
            [element(x), element(&y)],
        );
    }
    y
}

fn gradient_of_one(x: &CubeTensor, grad: &CubeTensor, curve: Curve) -> CubeTensor {
    let grad_x = empty_like(x);
    if elements(x) > 0 {
        let (grid, units) = (grid_of_units(elements(x)), CubeDim::new_1d(UNITS));
        curve_backward::launch(&x.client, grid, units, arg(x), arg(grad), arg(&grad_x), curve, element(x));
    }
    grad_x
}

/// Returns the curve at `gate`, times `up`, in `dtype`.
fn gated(gate: &CubeTensor, up: &CubeTensor, curve: Curve, dtype: DType) -> CubeTensor {
    let y = empty(gate, &gate.shape().to_vec(), dtype);
    if elements(gate) > 0 {
        let (grid, units) = (grid_of_groups(elements(gate)), CubeDim::new_1d(UNITS));
        let dtypes = [element(gate), element(&y)];
        gated_forward::launch(&gate.client, grid, units, arg(gate), arg(up), arg(&y), curve, dtypes);
    }
    y
}

fn gradients_of_gated(gate: &CubeTensor, up: &CubeTensor, grad: &CubeTensor, curve: Curve) -> [CubeTensor; 2] {
    let (grad_gate, grad_up) = (empty_like(gate), empty_like(up));
    if elements(gate) > 0 {
        gated_backward::launch(
            &gate.client,
            grid_of_groups(elements(gate)),
            CubeDim::new_1d(UNITS),
            arg(gate),
            arg(up),
            arg(grad),
            arg(&grad_gate),
            arg(&grad_up),
            curve,
            element(gate),
        );
    }
    [grad_gate, grad_up]
}

impl Activation {
    fn curve(self) -> Curve {
        match self {
            Self::Gelu(form) | Self::Geglu(form) => form.into(),
            Self::Relu => Curve::Relu,
            Self::Swiglu => Curve::Silu,
        }
    }

    /// Returns its value as an operand of products in `precision`.
    pub(super) fn value_on_gpu(self, of: &[CubeTensor], precision: Precision) -> CubeTensor {
        let dtype = held(&of[0].device, precision);
        match of {
            [x] => one(x, self.curve(), dtype),
            [gate, up] => gated(gate, up, self.curve(), dtype),
            _ => unreachable!("an activation has one or two inputs"),
        }
    }

    /// Returns the gradient of each input.
    pub(super) fn gradients_on_gpu(self, of: &[CubeTensor], grad: &CubeTensor) -> Vec<Option<CubeTensor>> {
        match of {
            [x] => vec![Some(gradient_of_one(x, grad, self.curve()))],
            [gate, up] => gradients_of_gated(gate, up, grad, self.curve()).map(Some).into(),
            _ => unreachable!("an activation has one or two inputs"),
        }
    }
}

impl GpuOp for Relu {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (one(&inputs[0], Curve::Relu, inputs[0].dtype), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool]) -> Vec<Option<CubeTensor>> {
        vec![Some(gradient_of_one(&saved[0], &grad, Curve::Relu))]
    }
}

impl GpuOp for GeluOp {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (one(&inputs[0], self.0.into(), inputs[0].dtype), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool]) -> Vec<Option<CubeTensor>> {
        vec![Some(gradient_of_one(&saved[0], &grad, self.0.into()))]
    }
}

impl GpuOp for Swiglu {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (gated(&inputs[0], &inputs[1], Curve::Silu, inputs[0].dtype), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool]) -> Vec<Option<CubeTensor>> {
        gradients_of_gated(&saved[0], &saved[1], &grad, Curve::Silu).map(Some).into()
    }
}

impl GpuOp for Geglu {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (gated(&inputs[0], &inputs[1], self.0.into(), inputs[0].dtype), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool]) -> Vec<Option<CubeTensor>> {
        gradients_of_gated(&saved[0], &saved[1], &grad, self.0.into()).map(Some).into()
    }
}

impl GpuOp for Softcap {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let x = &inputs[0];
        let y = empty_like(x);
        if elements(x) > 0 {
            let (grid, units) = (grid_of_units(elements(x)), CubeDim::new_1d(UNITS));
            softcap_forward::launch(&x.client, grid, units, arg(x), arg(&y), self.0, element(x));
        }
        (y, inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool]) -> Vec<Option<CubeTensor>> {
        let x = &saved[0];
        let grad_x = empty_like(x);
        if elements(x) > 0 {
            let (grid, units) = (grid_of_units(elements(x)), CubeDim::new_1d(UNITS));
            softcap_backward::launch(&x.client, grid, units, arg(x), arg(&grad), arg(&grad_x), self.0, element(x));
        }
        vec![Some(grad_x)]
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let mut sources = Vec::new();
    let (device, target) = (|| offline.device(), || offline.target());
    let settings = || offline.settings(UNITS);
    for dtype in offline.dtypes() {
        for curve in [Curve::Relu, Curve::Silu, Curve::GeluExact, Curve::GeluTanh] {
            let [a, b] = offline.buffers();
            let kernel = curve_forward::CurveForward::new(
                settings(),
                device(),
                target(),
                a,
                b,
                curve,
                [super::offline::F32, dtype],
            );
            sources.push(offline.source("activation forward", dtype, &kernel));
            let [a, b, c] = offline.buffers();
            let kernel = curve_backward::CurveBackward::new(settings(), device(), target(), a, b, c, curve, dtype);
            sources.push(offline.source("activation backward", dtype, &kernel));
            let [a, b, c] = offline.buffers();
            let kernel = gated_forward::GatedForward::new(
                settings(),
                device(),
                target(),
                a,
                b,
                c,
                curve,
                [super::offline::F32, dtype],
            );
            sources.push(offline.source("gated activation forward", dtype, &kernel));
            let [a, b, c, d, e] = offline.buffers();
            let kernel =
                gated_backward::GatedBackward::new(settings(), device(), target(), a, b, c, d, e, curve, dtype);
            sources.push(offline.source("gated activation backward", dtype, &kernel));
        }
        let [a, b] = offline.buffers();
        let kernel = softcap_forward::SoftcapForward::new(settings(), device(), target(), a, b, (), dtype);
        sources.push(offline.source("soft cap forward", dtype, &kernel));
        let [a, b, c] = offline.buffers();
        let kernel = softcap_backward::SoftcapBackward::new(settings(), device(), target(), a, b, c, (), dtype);
        sources.push(offline.source("soft cap backward", dtype, &kernel));
    }
    sources
}
