//! Layer norm and RMS norm, one cube per row; the mathematics is in [`crate::norm`].

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::sums::column_sums;
use super::{GpuOp, UNITS, arg, cube_sum, dims, element, elements, empty_f32, empty_like, grid};
use crate::norm::Norm;

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
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let d = width as usize;
    let row = CUBE_POS;
    if row * 2 < stats.len() {
        let (from, units) = (row * d, CUBE_DIM as usize);
        let mut mean = 0.0f32;
        if comptime!(centered) {
            let mut sum = 0.0f32;
            let mut i = UNIT_POS as usize;
            while i < d {
                sum += f32::cast_from(x[from + i]);
                i += units;
            }
            mean = cube_sum(sum, &mut scratch) / f32::cast_from(width);
        }
        let mut squares = 0.0f32;
        let mut i = UNIT_POS as usize;
        while i < d {
            let value = f32::cast_from(x[from + i]) - mean;
            squares += value * value;
            i += units;
        }
        let square = cube_sum(squares, &mut scratch) / f32::cast_from(width);
        let scale = 1.0f32 / (square + epsilon).sqrt();
        let mut i = UNIT_POS as usize;
        while i < d {
            let mut value = (f32::cast_from(x[from + i]) - mean) * scale * f32::cast_from(gamma[i]);
            if comptime!(centered) {
                value += f32::cast_from(beta[i]);
            }
            y[from + i] = F::cast_from(value);
            i += units;
        }
        if UNIT_POS == 0 {
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
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let d = width as usize;
    let row = CUBE_POS;
    if row * 2 < stats.len() {
        let (from, units) = (row * d, CUBE_DIM as usize);
        let (mean, scale) = (stats[row * 2], stats[row * 2 + 1]);
        let mut sum_h = 0.0f32;
        let mut sum_hx = 0.0f32;
        let mut i = UNIT_POS as usize;
        while i < d {
            let h = f32::cast_from(gamma[i]) * f32::cast_from(grad[from + i]);
            sum_h += h;
            sum_hx += h * (f32::cast_from(x[from + i]) - mean) * scale;
            i += units;
        }
        let mean_hx = cube_sum(sum_hx, &mut scratch) / f32::cast_from(width);
        let mut mean_h = 0.0f32;
        if comptime!(centered) {
            mean_h = cube_sum(sum_h, &mut scratch) / f32::cast_from(width);
        }
        let mut i = UNIT_POS as usize;
        while i < d {
            let h = f32::cast_from(gamma[i]) * f32::cast_from(grad[from + i]);
            let hat = (f32::cast_from(x[from + i]) - mean) * scale;
            grad_x[from + i] = F::cast_from(scale * (h - mean_h - hat * mean_hx));
            i += units;
        }
    }
}

impl GpuOp for Norm {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let (x, gamma) = (&inputs[0], &inputs[1]);
        let [n, d] = dims(x);
        let (y, stats) = (empty_like(x), empty_f32(x, &[n, 2]));
        if elements(x) > 0 {
            norm_forward::launch(
                &x.client,
                grid(n),
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
                norm_backward::launch(
                    &x.client,
                    grid(n),
                    CubeDim::new_1d(UNITS),
                    arg(x),
                    arg(gamma),
                    arg(stats),
                    arg(&grad),
                    arg(&grad_x),
                    d as u32,
                    self.centered,
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
                dtype,
            );
            sources.push(offline.source("norm backward", dtype, &kernel));
        }
    }
    sources
}
