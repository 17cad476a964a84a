//! Layer norm and RMS norm, one group of units per row; the mathematics is in [`crate::norm`].

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::sums::column_sums;
use super::{GpuOp, UNITS, arg, dims, element, elements, empty_f32, empty_like, grid, sum_of_lanes};
use crate::norm::Norm;

/// Number of units per row of `d` numbers: a power of two. A short row, such as a head, does not keep a whole cube waiting.
fn lanes(d: usize) -> usize {
    d.div_ceil(4).next_power_of_two().clamp(32, UNITS as usize)
}

/// Computes `y`, and mean and reciprocal deviation of each row.
#[cube(launch)]
fn norm_forward<F: Float>(
    x: &[F],
    gamma: &[F],
    beta: &[F],
    y: &mut [F],
    stats: &mut [f32],
    width: u32,
    epsilon: f32,
    #[comptime] centered: bool,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let d = width as usize;
    let lane = UNIT_POS as usize % lanes;
    let own = CUBE_POS * comptime!(UNITS as usize / lanes) + UNIT_POS as usize / lanes;
    let rows = stats.len() / 2;
    // All units of a cube reach every barrier. Units without a row read the last one, and write nothing.
    let row = min(own, rows - 1);
    let from = row * d;
    let mut mean = 0.0f32;
    if comptime!(centered) {
        let mut sum = 0.0f32;
        let mut i = lane;
        while i < d {
            sum += f32::cast_from(x[from + i]);
            i += lanes;
        }
        mean = sum_of_lanes(sum, &mut scratch, lanes) / f32::cast_from(width);
    }
    let mut squares = 0.0f32;
    let mut i = lane;
    while i < d {
        let value = f32::cast_from(x[from + i]) - mean;
        squares += value * value;
        i += lanes;
    }
    let square = sum_of_lanes(squares, &mut scratch, lanes) / f32::cast_from(width);
    let scale = 1.0f32 / (square + epsilon).sqrt();
    if own < rows {
        let mut i = lane;
        while i < d {
            let mut value = (f32::cast_from(x[from + i]) - mean) * scale * f32::cast_from(gamma[i]);
            if comptime!(centered) {
                value += f32::cast_from(beta[i]);
            }
            y[from + i] = F::cast_from(value);
            i += lanes;
        }
        if lane == 0 {
            stats[row * 2] = mean;
            stats[row * 2 + 1] = scale;
        }
    }
}

/// Computes `∂x`, and the contribution of each element to the gradient of its column's scale: `g ∘ x̂`.
#[cube(launch)]
fn norm_backward<F: Float>(
    x: &[F],
    gamma: &[F],
    stats: &[f32],
    grad: &[F],
    grad_x: &mut [F],
    width: u32,
    #[comptime] centered: bool,
    #[comptime] lanes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let d = width as usize;
    let lane = UNIT_POS as usize % lanes;
    let own = CUBE_POS * comptime!(UNITS as usize / lanes) + UNIT_POS as usize / lanes;
    let rows = stats.len() / 2;
    // As in the forward pass.
    let row = min(own, rows - 1);
    let from = row * d;
    let (mean, scale) = (stats[row * 2], stats[row * 2 + 1]);
    let mut sum_h = 0.0f32;
    let mut sum_hx = 0.0f32;
    let mut i = lane;
    while i < d {
        let h = f32::cast_from(gamma[i]) * f32::cast_from(grad[from + i]);
        sum_h += h;
        sum_hx += h * (f32::cast_from(x[from + i]) - mean) * scale;
        i += lanes;
    }
    let mean_hx = sum_of_lanes(sum_hx, &mut scratch, lanes) / f32::cast_from(width);
    let mut mean_h = 0.0f32;
    if comptime!(centered) {
        mean_h = sum_of_lanes(sum_h, &mut scratch, lanes) / f32::cast_from(width);
    }
    if own < rows {
        let mut i = lane;
        while i < d {
            let h = f32::cast_from(gamma[i]) * f32::cast_from(grad[from + i]);
            let hat = (f32::cast_from(x[from + i]) - mean) * scale;
            grad_x[from + i] = F::cast_from(scale * (h - mean_h - hat * mean_hx));
            i += lanes;
        }
    }
}

/// Grid for `n` rows of `d` numbers, and the units per row.
fn rows_on_grid(n: usize, d: usize) -> (CubeCount, usize) {
    let lanes = lanes(d);
    (grid(n.div_ceil(UNITS as usize / lanes)), lanes)
}

impl GpuOp for Norm {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let (x, gamma) = (&inputs[0], &inputs[1]);
        let [n, d] = dims(x);
        let (y, stats) = (empty_like(x), empty_f32(x, &[n, 2]));
        if elements(x) > 0 {
            let (grid, lanes) = rows_on_grid(n, d);
            norm_forward::launch(
                &x.client,
                grid,
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
                element(x),
            );
        }
        (y, vec![x.clone(), gamma.clone(), stats])
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        let [x, gamma, stats] = saved else { unreachable!("the forward pass keeps three tensors") };
        let [n, d] = dims(x);
        let grad_x = needed[0].then(|| {
            let grad_x = empty_like(x);
            if elements(x) > 0 {
                let (grid, lanes) = rows_on_grid(n, d);
                norm_backward::launch(
                    &x.client,
                    grid,
                    CubeDim::new_1d(UNITS),
                    arg(x),
                    arg(gamma),
                    arg(stats),
                    arg(&grad),
                    arg(&grad_x),
                    d as u32,
                    self.centered,
                    lanes,
                    element(x),
                );
            }
            grad_x
        });
        let mut gradients = vec![grad_x, needed[1].then(|| column_sums(&grad, Some((x, stats)), gamma.dtype()))];
        if let Some(&needed) = needed.get(2) {
            gradients.push(needed.then(|| column_sums(&grad, None, gamma.dtype())));
        }
        gradients
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let mut sources = Vec::new();
    for dtype in offline.dtypes() {
        for centered in [false, true] {
            let [a, b, c, d, e] = offline.buffers();
            let kernel = norm_forward::NormForward::new(
                offline.settings(UNITS),
                offline.device(),
                offline.target(),
                a,
                b,
                c,
                d,
                e,
                (),
                (),
                centered,
                32,
                dtype,
            );
            sources.push(offline.source("norm forward", dtype, &kernel));
            let [a, b, c, d, e] = offline.buffers();
            let kernel = norm_backward::NormBackward::new(
                offline.settings(UNITS),
                offline.device(),
                offline.target(),
                a,
                b,
                c,
                d,
                e,
                (),
                centered,
                32,
                dtype,
            );
            sources.push(offline.source("norm backward", dtype, &kernel));
        }
    }
    sources
}
