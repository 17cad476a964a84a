//! Activations; the mathematics is in [`crate::gelu`], [`crate::swiglu`], [`crate::geglu`],
//! [`crate::relu`] and [`crate::softcap`].

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::product::{held, narrower};
use super::{
    Before, EACH, GpuOp, InputGradients, UNITS, arg, element, elements, empty, empty_f32, empty_like, grid_of_groups,
    grid_of_units, nth_element,
};
use crate::activation::{Activation, Between};
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

/// Computes the gradient of `x` and, with `has_value`, the curve again. Otherwise nothing is written to `value`.
#[cube(launch)]
fn curve_backward<F: Float, G: Float, V: Float>(
    x: &[F],
    grad: &[F],
    grad_x: &mut [G],
    value: &mut [V],
    #[comptime] curve: Curve,
    #[comptime] has_value: bool,
    #[define(F, G, V)] _dtypes: [ElemType; 3],
) {
    if ABSOLUTE_POS < grad_x.len() {
        let (at_x, slope) = curve_at(f32::cast_from(x[ABSOLUTE_POS]), curve);
        grad_x[ABSOLUTE_POS] = G::cast_from(f32::cast_from(grad[ABSOLUTE_POS]) * slope);
        if comptime!(has_value) {
            value[ABSOLUTE_POS] = V::cast_from(at_x);
        }
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

/// Computes the gradients of `gate` and `up` and, with `has_value`, the value again. Otherwise nothing is written to `value`.
#[cube(launch)]
fn gated_backward<F: Float, E: Float, G: Float, V: Float>(
    gate: &[F],
    up: &[F],
    grad: &[E],
    grad_gate: &mut [G],
    grad_up: &mut [G],
    value: &mut [V],
    #[comptime] curve: Curve,
    #[comptime] has_value: bool,
    #[define(F, E, G, V)] _dtypes: [ElemType; 4],
) {
    let mut of_gate = Array::<f32>::new(EACH);
    let mut of_up = Array::<f32>::new(EACH);
    let mut values = Array::<f32>::new(EACH);
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < grad_gate.len() {
            let (g, other) = (f32::cast_from(grad[at]), f32::cast_from(up[at]));
            let (at_gate, slope) = curve_at(f32::cast_from(gate[at]), curve);
            of_gate[j] = g * other * slope;
            of_up[j] = g * at_gate;
            values[j] = at_gate * other;
        }
    }
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < grad_gate.len() {
            grad_gate[at] = G::cast_from(of_gate[j]);
            grad_up[at] = G::cast_from(of_up[j]);
            if comptime!(has_value) {
                value[at] = V::cast_from(values[j]);
            }
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

/// Types that a backward pass writes.
#[derive(Clone, Copy)]
struct Written {
    gradients: DType,
    /// Type of the activation's value, if it is computed again.
    value: Option<DType>,
}

impl Written {
    /// Only gradients, in the type of `x`.
    fn gradients(x: &CubeTensor) -> Self {
        Self { gradients: x.dtype, value: None }
    }

    /// Returns a tensor for the value like `x`. It is small if the value is not computed.
    fn room(self, x: &CubeTensor) -> CubeTensor {
        self.value.map_or_else(|| empty_f32(x, &[1]), |dtype| empty(x, &x.shape().to_vec(), dtype))
    }
}

fn backward_of_one(x: &CubeTensor, grad: &CubeTensor, curve: Curve, written: Written) -> [CubeTensor; 2] {
    let (grad_x, value) = (empty(x, &x.shape().to_vec(), written.gradients), written.room(x));
    if elements(x) > 0 {
        let (grid, units) = (grid_of_units(elements(x)), CubeDim::new_1d(UNITS));
        let (dtypes, has_value) = ([element(x), element(&grad_x), element(&value)], written.value.is_some());
        let (of_x, of_grad, to_grad, to_value) = (arg(x), arg(grad), arg(&grad_x), arg(&value));
        curve_backward::launch(&x.client, grid, units, of_x, of_grad, to_grad, to_value, curve, has_value, dtypes);
    }
    [grad_x, value]
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

fn backward_of_gated(
    [gate, up]: [&CubeTensor; 2],
    grad: &CubeTensor,
    curve: Curve,
    written: Written,
) -> [CubeTensor; 3] {
    let [grad_gate, grad_up] = [gate, up].map(|x| empty(x, &x.shape().to_vec(), written.gradients));
    let value = written.room(gate);
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
            arg(&value),
            curve,
            written.value.is_some(),
            [element(gate), element(grad), element(&grad_gate), element(&value)],
        );
    }
    [grad_gate, grad_up, value]
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

    /// Returns the gradient of each input, and the value as in [`value_on_gpu`](Self::value_on_gpu).
    ///
    /// `inputs` is the precision of the products that made the inputs, as in [`Operands::input`](crate::Operands::input).
    pub(super) fn backward_on_gpu(
        self,
        of: &[CubeTensor],
        grad: &CubeTensor,
        precision: Precision,
        inputs: Precision,
    ) -> (InputGradients, CubeTensor) {
        let value = Some(held(&of[0].device, precision));
        self.written(of, grad, Written { gradients: narrower(&of[0], inputs), value })
    }

    /// Returns the gradient of each input, and room for the value.
    fn written(self, of: &[CubeTensor], grad: &CubeTensor, written: Written) -> (InputGradients, CubeTensor) {
        match of {
            [x] => {
                let [grad_x, value] = backward_of_one(x, grad, self.curve(), written);
                (vec![Some(grad_x)], value)
            }
            [gate, up] => {
                let [grad_gate, grad_up, value] = backward_of_gated([gate, up], grad, self.curve(), written);
                (vec![Some(grad_gate), Some(grad_up)], value)
            }
            _ => unreachable!("an activation has one or two inputs"),
        }
    }
}

impl GpuOp for Between {
    fn supports(&self, device: &CubeDevice, dtype: DType) -> bool {
        let is_narrow = |precision| held(device, precision) != DType::F32;
        super::computes(device, dtype) && (is_narrow(self.1.result) || is_narrow(self.1.input))
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (self.0.value_on_gpu(&inputs, self.1.result), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        let gradients = narrower(&saved[0], self.1.input);
        self.0.written(saved, &grad, Written { gradients, value: None }).0
    }
}

impl GpuOp for Relu {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (one(&inputs[0], Curve::Relu, inputs[0].dtype), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        Activation::Relu.written(saved, &grad, Written::gradients(&saved[0])).0
    }
}

impl GpuOp for GeluOp {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (one(&inputs[0], self.0.into(), inputs[0].dtype), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        Activation::Gelu(self.0).written(saved, &grad, Written::gradients(&saved[0])).0
    }
}

impl GpuOp for Swiglu {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (gated(&inputs[0], &inputs[1], Curve::Silu, inputs[0].dtype), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        Activation::Swiglu.written(saved, &grad, Written::gradients(&saved[0])).0
    }
}

impl GpuOp for Geglu {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (gated(&inputs[0], &inputs[1], self.0.into(), inputs[0].dtype), inputs)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        Activation::Geglu(self.0).written(saved, &grad, Written::gradients(&saved[0])).0
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

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
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
            let [a, b, c, d] = offline.buffers();
            let types = [super::offline::F32, dtype, dtype];
            let kernel =
                curve_backward::CurveBackward::new(settings(), device(), target(), a, b, c, d, curve, true, types);
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
            let ([a, b, c, d, e, f], settings) = (offline.buffers(), settings());
            let types = [dtype; 4];
            let kernel =
                gated_backward::GatedBackward::new(settings, device(), target(), a, b, c, d, e, f, curve, true, types);
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
