//! Layer norm and RMS norm, one group of units per row; the mathematics is in [`crate::norm`].
//!
//! Both passes read each number once. The backward pass also sums the gradients of scale and shift over the rows of its cube. RMS norm of
//! heads can rotate its result, which saves a pass over queries and keys: a unit holds both numbers of each pair.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::product::narrower;
use super::sums::column_sums;
use super::{
    Before, GpuOp, InputGradients, UNITS, arg, as_dtype, dims, element, elements, empty, empty_f32, grid, sum_of_lanes,
    table_arg,
};
use crate::norm::Norm;
use crate::table::Table;

/// Number of units per row of `d` numbers: a power of two. A short row, such as a head, does not keep a whole cube waiting.
fn lanes(d: usize) -> usize {
    d.div_ceil(4).next_power_of_two().clamp(32, UNITS as usize)
}

/// Number of elements per unit of a row of `d` numbers. A unit holds them in registers.
fn each(d: usize) -> usize {
    d.div_ceil(lanes(d))
}

/// Computes `y`, and mean and reciprocal deviation of each row. Then rotates `turn` pairs of each unit. `heads` rows share their angles.
#[cube(launch)]
fn norm_forward<F: Float, G: Float>(
    x: &[F],
    gamma: &[f32],
    beta: &[f32],
    cos: &[f32],
    sin: &[f32],
    y: &mut [G],
    stats: &mut [f32],
    width: u32,
    heads: u32,
    epsilon: f32,
    #[comptime] centered: bool,
    #[comptime] turn: usize,
    #[comptime] lanes: usize,
    #[comptime] each: usize,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let d = width as usize;
    let lane = UNIT_POS as usize % lanes;
    let own = CUBE_POS * comptime!(UNITS as usize / lanes) + UNIT_POS as usize / lanes;
    let rows = stats.len() / 2;
    // All units of a cube reach every barrier. Units without a row read the last one, and write nothing.
    let row = min(own, rows - 1);
    let from = row * d;
    let mut values = Array::<f32>::new(each);
    #[unroll]
    for j in 0..each {
        let i = lane + j * lanes;
        values[j] = 0.0f32;
        if i < d {
            values[j] = f32::cast_from(x[from + i]);
        }
    }
    let mut mean = 0.0f32;
    if comptime!(centered) {
        let mut sum = 0.0f32;
        #[unroll]
        for j in 0..each {
            sum += values[j];
        }
        mean = sum_of_lanes(sum, &mut scratch, lanes) / f32::cast_from(width);
    }
    let mut squares = 0.0f32;
    #[unroll]
    for j in 0..each {
        if lane + j * lanes < d {
            let value = values[j] - mean;
            squares += value * value;
        }
    }
    let square = sum_of_lanes(squares, &mut scratch, lanes) / f32::cast_from(width);
    let scale = 1.0f32 / (square + epsilon).sqrt();
    #[unroll]
    for j in 0..each {
        let i = lane + j * lanes;
        if i < d {
            let mut value = (values[j] - mean) * scale * gamma[i];
            if comptime!(centered) {
                value += beta[i];
            }
            values[j] = value;
        }
    }
    let angles = row / (heads as usize) * comptime!(turn * lanes) + lane;
    #[unroll]
    for j in 0..turn {
        let (c, s) = (cos[angles + j * lanes], sin[angles + j * lanes]);
        let (a, b) = (values[j], values[j + turn]);
        values[j] = a * c - b * s;
        values[j + turn] = b * c + a * s;
    }
    if own < rows {
        #[unroll]
        for j in 0..each {
            let i = lane + j * lanes;
            if i < d {
                y[from + i] = G::cast_from(values[j]);
            }
        }
        if lane == 0 {
            stats[row * 2] = mean;
            stats[row * 2 + 1] = scale;
        }
    }
}

/// Computes `∂x` of `passes` groups of rows per cube, and adds `before` if `is_added`. With `is_summed`, also sums each cube's `g ∘ x̂` to
/// `sums`, for the gradient of the scale, and with `centered` its `g` to `shifts`. `turn` and `heads` are those of the forward pass.
#[cube(launch)]
fn norm_backward<F: Float, E: Float, G: Float>(
    x: &[F],
    gamma: &[f32],
    stats: &[f32],
    grad: &[E],
    before: &[f32],
    cos: &[f32],
    sin: &[f32],
    grad_x: &mut [G],
    sums: &mut [f32],
    shifts: &mut [f32],
    width: u32,
    passes: u32,
    heads: u32,
    #[comptime] centered: bool,
    #[comptime] is_summed: bool,
    #[comptime] is_added: bool,
    #[comptime] turn: usize,
    #[comptime] lanes: usize,
    #[comptime] each: usize,
    #[define(F, E, G)] _dtypes: [ElemType; 3],
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let d = width as usize;
    let groups = comptime!(UNITS as usize / lanes);
    let unit = UNIT_POS as usize;
    let (lane, group) = (unit % lanes, unit / lanes);
    let rows = stats.len() / 2;
    let mut scales = Array::<f32>::new(each);
    let mut of_gamma = Array::<f32>::new(each);
    let mut of_beta = Array::<f32>::new(each);
    #[unroll]
    for j in 0..each {
        scales[j] = 0.0f32;
        of_gamma[j] = 0.0f32;
        of_beta[j] = 0.0f32;
        if lane + j * lanes < d {
            scales[j] = gamma[lane + j * lanes];
        }
    }
    let mut pass = 0u32;
    while pass < passes {
        let own = (CUBE_POS * (passes as usize) + pass as usize) * groups + group;
        // As in the forward pass.
        let row = min(own, rows - 1);
        let from = row * d;
        let (mean, scale) = (stats[row * 2], stats[row * 2 + 1]);
        let mut hats = Array::<f32>::new(each);
        let mut grads = Array::<f32>::new(each);
        let mut sum_h = 0.0f32;
        let mut sum_hx = 0.0f32;
        #[unroll]
        for j in 0..each {
            let i = lane + j * lanes;
            hats[j] = 0.0f32;
            grads[j] = 0.0f32;
            if i < d {
                hats[j] = (f32::cast_from(x[from + i]) - mean) * scale;
                grads[j] = f32::cast_from(grad[from + i]);
            }
        }
        let angles = row / (heads as usize) * comptime!(turn * lanes) + lane;
        #[unroll]
        for j in 0..turn {
            let (c, s) = (cos[angles + j * lanes], sin[angles + j * lanes]);
            let (a, b) = (grads[j], grads[j + turn]);
            grads[j] = a * c + b * s;
            grads[j + turn] = b * c - a * s;
        }
        #[unroll]
        for j in 0..each {
            let h = scales[j] * grads[j];
            sum_h += h;
            sum_hx += h * hats[j];
        }
        let mean_hx = sum_of_lanes(sum_hx, &mut scratch, lanes) / f32::cast_from(width);
        let mut mean_h = 0.0f32;
        if comptime!(centered) {
            mean_h = sum_of_lanes(sum_h, &mut scratch, lanes) / f32::cast_from(width);
        }
        if own < rows {
            #[unroll]
            for j in 0..each {
                let i = lane + j * lanes;
                if i < d {
                    let mut value = scale * (scales[j] * grads[j] - mean_h - hats[j] * mean_hx);
                    if comptime!(is_added) {
                        value += before[from + i];
                    }
                    grad_x[from + i] = G::cast_from(value);
                }
                if comptime!(is_summed) {
                    of_gamma[j] += grads[j] * hats[j];
                    if comptime!(centered) {
                        of_beta[j] += grads[j];
                    }
                }
            }
        }
        pass += 1;
    }
    if comptime!(is_summed) {
        #[unroll]
        for j in 0..each {
            let i = lane + j * lanes;
            let is_written = group == 0 && i < d && CUBE_POS < sums.len() / d;
            let total = sum_of_groups(of_gamma[j], &mut scratch, lanes);
            if is_written {
                sums[CUBE_POS * d + i] = total;
            }
            if comptime!(centered) {
                let total = sum_of_groups(of_beta[j], &mut scratch, lanes);
                if is_written {
                    shifts[CUBE_POS * d + i] = total;
                }
            }
        }
    }
}

/// Sums `value` over the units that have the same lane in their groups, in order. The first group gets the sums.
#[cube]
fn sum_of_groups(value: f32, scratch: &mut Shared<[f32]>, #[comptime] lanes: usize) -> f32 {
    let unit = UNIT_POS as usize;
    // Other units may still be reading the previous values.
    sync_cube();
    scratch[unit] = value;
    sync_cube();
    let mut total = 0.0f32;
    if unit < lanes {
        let mut i = unit;
        while i < comptime!(UNITS as usize) {
            total += scratch[i];
            i += lanes;
        }
    }
    total
}

/// Cubes of [`norm_backward`] if there are enough rows. Each adds one row to the sums of the columns.
const CUBES: usize = 1024;

/// Rotation of the heads of the result.
#[derive(Debug)]
pub(crate) struct Turn {
    cos: Table<f32>,
    sin: Table<f32>,
    /// Rows that share their angles: the heads of a token.
    heads: usize,
    /// Pairs per unit.
    pairs: usize,
}

impl Turn {
    /// The rotation of `rows` heads of `d` numbers by their tokens' angles. `None` if the numbers of a pair are held by different units.
    pub(crate) fn new(cos: &Table<f32>, sin: &Table<f32>, [rows, d]: [usize; 2], heads: usize) -> Option<Self> {
        let half = cos.len() / (rows / heads).max(1);
        let is_in_units = half > 0 && half.is_multiple_of(lanes(d)) && 2 * half <= d;
        is_in_units.then(|| Self { cos: cos.clone(), sin: sin.clone(), heads, pairs: half / lanes(d) })
    }

    /// Cosines and sines as kernel arguments, rows that share them, and pairs per unit. Without a rotation, `like` is bound and never read.
    fn args(turn: Option<&Self>, like: &CubeTensor) -> ([BufferArg; 2], u32, usize) {
        match turn {
            Some(turn) => {
                let tables = [&turn.cos, &turn.sin].map(|table| table_arg(table, like));
                (tables, turn.heads as u32, turn.pairs)
            }
            None => ([arg(like), arg(like)], 1, 0),
        }
    }
}

impl Norm {
    /// Computes the norm, and then the rotation. Saves input, scale, and mean and reciprocal deviation of each row.
    fn value(&self, inputs: &[CubeTensor], turn: Option<&Turn>) -> (CubeTensor, Vec<CubeTensor>) {
        let x = &inputs[0];
        let [gamma, beta @ ..] = &inputs[1..] else { unreachable!("a scale") };
        let (gamma, beta) = (as_dtype(gamma, DType::F32), beta.first().map(|beta| as_dtype(beta, DType::F32)));
        let [n, d] = dims(x);
        let (y, stats) = (empty(x, &[n, d], narrower(x, self.operands.result)), empty_f32(x, &[n, 2]));
        if elements(x) > 0 {
            let lanes = lanes(d);
            let ([cos, sin], heads, pairs) = Turn::args(turn, &gamma);
            norm_forward::launch(
                &x.client,
                grid(n.div_ceil(UNITS as usize / lanes)),
                CubeDim::new_1d(UNITS),
                arg(x),
                arg(&gamma),
                // RMS norm has no shift; gamma is bound in its place and never read.
                arg(beta.as_ref().unwrap_or(&gamma)),
                cos,
                sin,
                arg(&y),
                arg(&stats),
                d as u32,
                heads,
                self.epsilon as f32,
                self.centered,
                pairs,
                lanes,
                each(d),
                [element(x), element(&y)],
            );
        }
        (y, vec![x.clone(), inputs[1].clone(), stats])
    }

    /// Returns the gradient of each input from what [`value`](Self::value) saved. Adds `before` to that of the first.
    fn gradients(
        &self,
        saved: &[CubeTensor],
        grad: &CubeTensor,
        needed: &[bool],
        before: Before,
        turn: Option<&Turn>,
    ) -> InputGradients {
        let [x, gamma, stats] = saved else { unreachable!("the forward pass keeps three tensors") };
        let [n, d] = dims(x);
        let (dtype, gamma) = (gamma.dtype, as_dtype(gamma, DType::F32));
        let before = before.take().map(|before| as_dtype(&before, DType::F32));
        let is_summed = needed[1..].contains(&true);
        let groups = UNITS as usize / lanes(d);
        let passes = n.div_ceil(groups * CUBES).max(1);
        let cubes = n.div_ceil(groups * passes);
        let grad_x = empty(x, &[n, d], narrower(x, self.operands.input));
        let columns = [is_summed, is_summed && self.centered];
        let [sums, shifts] = columns.map(|is_written| empty_f32(x, &if is_written { [cubes, d] } else { [1, 1] }));
        if elements(x) > 0 {
            let ([cos, sin], heads, pairs) = Turn::args(turn, &gamma);
            norm_backward::launch(
                &x.client,
                grid(cubes),
                CubeDim::new_1d(UNITS),
                arg(x),
                arg(&gamma),
                arg(stats),
                arg(grad),
                // Without a sum, gamma is bound in its place and never read.
                arg(before.as_ref().unwrap_or(&gamma)),
                cos,
                sin,
                arg(&grad_x),
                arg(&sums),
                arg(&shifts),
                d as u32,
                passes as u32,
                heads,
                self.centered,
                is_summed,
                before.is_some(),
                pairs,
                lanes(d),
                each(d),
                [element(x), element(grad), element(&grad_x)],
            );
        }
        let parameters = needed[1..].iter().zip([sums, shifts]);
        let parameters = parameters.map(|(needed, sums)| needed.then(|| column_sums(&sums, dtype)));
        std::iter::once(needed[0].then_some(grad_x)).chain(parameters).collect()
    }
}

impl GpuOp for Norm {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        self.value(&inputs, None)
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], before: Before) -> InputGradients {
        self.gradients(saved, &grad, needed, before, None)
    }
}

/// RMS norm of heads and their rotation.
#[derive(Debug)]
pub(crate) struct TurnedNorm {
    pub(crate) norm: Norm,
    pub(crate) turn: Turn,
}

impl GpuOp for TurnedNorm {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        self.norm.value(&inputs, Some(&self.turn))
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], before: Before) -> InputGradients {
        self.norm.gradients(saved, &grad, needed, before, Some(&self.turn))
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let mut sources = Vec::new();
    let (device, target) = (|| offline.device(), || offline.target());
    let settings = || offline.settings(UNITS);
    for dtypes @ [of_x, of_y] in offline.conversions() {
        for centered in [false, true] {
            // Only RMS norm rotates.
            let turn = if centered { 0 } else { 2 };
            let [a, b, c, d, e, f, g] = offline.buffers();
            let kernel = norm_forward::NormForward::new(
                settings(),
                device(),
                target(),
                a,
                b,
                c,
                d,
                e,
                f,
                g,
                (),
                (),
                (),
                centered,
                turn,
                32,
                4,
                dtypes,
            );
            sources.push(offline.source("norm forward", of_y, &kernel));
            let [a, b, c, d, e, f, g, h, i, j] = offline.buffers();
            let kernel = norm_backward::NormBackward::new(
                settings(),
                device(),
                target(),
                a,
                b,
                c,
                d,
                e,
                f,
                g,
                h,
                i,
                j,
                (),
                (),
                (),
                centered,
                true,
                true,
                turn,
                32,
                4,
                [of_x, of_x, of_y],
            );
            sources.push(offline.source("norm backward", of_y, &kernel));
        }
    }
    sources
}
