//! Layer norm and RMS norm, one group of units per row; the mathematics is in [`crate::norm`].
//!
//! Both passes read each number once. The backward pass also sums the gradients of scale and shift over the rows of its cube.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::product::narrower;
use super::sums::column_sums;
use super::{GpuOp, UNITS, arg, dims, element, elements, empty, empty_f32, grid, sum_of_lanes};
use crate::norm::Norm;

/// Number of units per row of `d` numbers: a power of two. A short row, such as a head, does not keep a whole cube waiting.
fn lanes(d: usize) -> usize {
    d.div_ceil(4).next_power_of_two().clamp(32, UNITS as usize)
}

/// Number of elements per unit of a row of `d` numbers. A unit holds them in registers.
fn each(d: usize) -> usize {
    d.div_ceil(lanes(d))
}

/// Computes `y`, and mean and reciprocal deviation of each row.
#[cube(launch)]
fn norm_forward<F: Float, G: Float>(
    x: &[F],
    gamma: &[F],
    beta: &[F],
    y: &mut [G],
    stats: &mut [f32],
    width: u32,
    epsilon: f32,
    #[comptime] centered: bool,
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
    if own < rows {
        #[unroll]
        for j in 0..each {
            let i = lane + j * lanes;
            if i < d {
                let mut value = (values[j] - mean) * scale * f32::cast_from(gamma[i]);
                if comptime!(centered) {
                    value += f32::cast_from(beta[i]);
                }
                y[from + i] = G::cast_from(value);
            }
        }
        if lane == 0 {
            stats[row * 2] = mean;
            stats[row * 2 + 1] = scale;
        }
    }
}

/// Computes `∂x` of `passes` groups of rows per cube. With `is_summed`, also sums each cube's `g ∘ x̂` to `sums`, for the gradient of the
/// scale, and with `centered` its `g` to `shifts`.
#[cube(launch)]
fn norm_backward<F: Float, E: Float, G: Float>(
    x: &[F],
    gamma: &[F],
    stats: &[f32],
    grad: &[E],
    grad_x: &mut [G],
    sums: &mut [f32],
    shifts: &mut [f32],
    width: u32,
    passes: u32,
    #[comptime] centered: bool,
    #[comptime] is_summed: bool,
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
            scales[j] = f32::cast_from(gamma[lane + j * lanes]);
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
                    grad_x[from + i] = G::cast_from(scale * (scales[j] * grads[j] - mean_h - hats[j] * mean_hx));
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

impl GpuOp for Norm {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let (x, gamma) = (&inputs[0], &inputs[1]);
        let [n, d] = dims(x);
        let (y, stats) = (empty(x, &[n, d], narrower(x, self.operands.result)), empty_f32(x, &[n, 2]));
        if elements(x) > 0 {
            let lanes = lanes(d);
            norm_forward::launch(
                &x.client,
                grid(n.div_ceil(UNITS as usize / lanes)),
                CubeDim::new_1d(UNITS),
                arg(x),
                arg(gamma),
                // RMS norm has no shift; gamma is bound in its place and never read.
                arg(inputs.get(2).unwrap_or(gamma)),
                arg(&y),
                arg(&stats),
                d as u32,
                self.epsilon as f32,
                self.centered,
                lanes,
                each(d),
                [element(x), element(&y)],
            );
        }
        (y, vec![x.clone(), gamma.clone(), stats])
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        let [x, gamma, stats] = saved else { unreachable!("the forward pass keeps three tensors") };
        let [n, d] = dims(x);
        let is_summed = needed[1..].contains(&true);
        let groups = UNITS as usize / lanes(d);
        let passes = n.div_ceil(groups * CUBES).max(1);
        let cubes = n.div_ceil(groups * passes);
        let grad_x = empty(x, &[n, d], narrower(x, self.operands.input));
        let columns = [is_summed, is_summed && self.centered];
        let [sums, shifts] = columns.map(|is_written| empty_f32(x, &if is_written { [cubes, d] } else { [1, 1] }));
        if elements(x) > 0 {
            norm_backward::launch(
                &x.client,
                grid(cubes),
                CubeDim::new_1d(UNITS),
                arg(x),
                arg(gamma),
                arg(stats),
                arg(&grad),
                arg(&grad_x),
                arg(&sums),
                arg(&shifts),
                d as u32,
                passes as u32,
                self.centered,
                is_summed,
                lanes(d),
                each(d),
                [element(x), element(&grad), element(&grad_x)],
            );
        }
        let parameters = needed[1..].iter().zip([sums, shifts]);
        let parameters = parameters.map(|(needed, sums)| needed.then(|| column_sums(&sums, gamma.dtype())));
        std::iter::once(needed[0].then_some(grad_x)).chain(parameters).collect()
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let mut sources = Vec::new();
    let (device, target) = (|| offline.device(), || offline.target());
    let settings = || offline.settings(UNITS);
    for dtypes @ [of_x, of_y] in offline.conversions() {
        for centered in [false, true] {
            let [a, b, c, d, e] = offline.buffers();
            let kernel = norm_forward::NormForward::new(
                settings(),
                device(),
                target(),
                a,
                b,
                c,
                d,
                e,
                (),
                (),
                centered,
                32,
                4,
                dtypes,
            );
            sources.push(offline.source("norm forward", of_y, &kernel));
            let [a, b, c, d, e, f, g] = offline.buffers();
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
                (),
                (),
                centered,
                true,
                32,
                4,
                [of_x, of_x, of_y],
            );
            sources.push(offline.source("norm backward", of_y, &kernel));
        }
    }
    sources
}
