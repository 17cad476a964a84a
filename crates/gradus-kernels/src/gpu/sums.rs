//! Sums over the rows of a matrix, and sums of squares, each in a fixed order.

use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{UNITS, arg, cube_sum, dims, element, elements, empty, empty_f32, grid};

/// Columns per cube.
const COLUMNS: u32 = 32;
/// Units that share a column.
const LANES: u32 = 8;
/// Rows that one cube sums.
const ROWS: usize = 128;

/// Sums each column of `x` over [`ROWS`] rows.
#[cube(launch)]
fn sum_rows<F: Float, G: Float>(
    x: &[F],
    out: &mut [G],
    rows: u32,
    width: u32,
    blocks: u32,
    #[comptime] rows_of_cube: usize,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!((COLUMNS * LANES) as usize));
    let (d, n) = (width as usize, rows as usize);
    // Cubes are numbered column by column within a block of rows.
    let (block, tile) = (CUBE_POS / (blocks as usize), CUBE_POS % (blocks as usize));
    let columns = comptime!(COLUMNS as usize);
    let lanes = comptime!(LANES as usize);
    let lane = UNIT_POS as usize / columns;
    let column = UNIT_POS as usize % columns;
    let at = tile * columns + column;
    let mut sum = 0.0f32;
    let mut row = block * rows_of_cube + lane;
    let end = min((block + 1) * rows_of_cube, n);
    while row < end {
        if at < d {
            sum += f32::cast_from(x[row * d + at]);
        }
        row += lanes;
    }
    scratch[UNIT_POS as usize] = sum;
    sync_cube();
    if lane == 0 && at < d && block * rows_of_cube < n {
        let mut total = 0.0f32;
        for i in 0..lanes {
            total += scratch[i * columns + column];
        }
        out[block * d + at] = G::cast_from(total);
    }
}

/// Sums each column of `x`, `[d]`.
pub(super) fn column_sums(x: &CubeTensor, dtype: DType) -> CubeTensor {
    let [n, d] = dims(x);
    let blocks = n.div_ceil(ROWS).max(1);
    let out = |dtype| empty(x, &[blocks, d], dtype);
    let out = out(if blocks == 1 { dtype } else { DType::F32 });
    if d > 0 {
        let tiles = d.div_ceil(COLUMNS as usize);
        // A matrix without rows sums to zero.
        if n == 0 {
            return super::zeros(x, &[d], dtype);
        }
        sum_rows::launch(
            &x.client,
            grid(blocks * tiles),
            CubeDim::new_1d(COLUMNS * LANES),
            arg(x),
            arg(&out),
            n as u32,
            d as u32,
            tiles as u32,
            ROWS,
            [element(x), element(&out)],
        );
    }
    if blocks > 1 {
        return column_sums(&out, dtype);
    }
    flat(out, d)
}

/// Returns the gradient of a bias, if there is one, from the gradient of what it was added to. `None` within if it is not needed.
pub(super) fn gradient_of_bias(grad: &CubeTensor, needed: Option<&bool>) -> Option<Option<CubeTensor>> {
    needed.map(|needed| needed.then(|| column_sums(grad, DType::F32)))
}

/// Returns a matrix of one row as a vector.
fn flat(matrix: CubeTensor, d: usize) -> CubeTensor {
    let CubeTensor { client, device, handle, dtype, .. } = matrix;
    CubeTensor::new_contiguous(client, device, burn::tensor::Shape::from(vec![d]), handle, dtype)
}

/// Elements whose squares one cube sums.
const SQUARES: usize = 16 * UNITS as usize;

/// Largest number of tensors per launch.
const TENSORS: usize = 32;

/// Sums the squares of each [`SQUARES`] elements of many tensors. Tensor `t` begins at cube `segments[2 t]`.
#[cube(launch)]
fn sum_squares<F: Float>(
    tensors: &Sequence<Box<[F]>>,
    segments: &[u32],
    out: &mut [f32],
    #[comptime] of_cube: usize,
    #[comptime] count: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let mut sum = 0.0f32;
    #[unroll]
    for t in 0..count {
        let begin = segments[2 * t] as usize;
        let end = segments[2 * t + 2] as usize;
        if CUBE_POS >= begin && CUBE_POS < end {
            let mut i = (CUBE_POS - begin) * of_cube + (UNIT_POS as usize);
            let last = min((CUBE_POS - begin + 1) * of_cube, tensors[t].len());
            while i < last {
                let value = f32::cast_from(tensors[t][i]);
                sum += value * value;
                i += CUBE_DIM as usize;
            }
        }
    }
    let total = cube_sum(sum, &mut scratch);
    if UNIT_POS == 0 && CUBE_POS < out.len() {
        out[CUBE_POS] = total;
    }
}

/// Returns partial sums of the squares of GPU tensors, each over some thousand elements. Each launch takes as many tensors as the device
/// binds.
pub(crate) fn squares_of(tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
    let tensors = tensors.into_iter().map(|tensor| burn_cubecl::kernel::into_contiguous(super::cube_of(tensor)));
    let tensors: Vec<CubeTensor> = tensors.filter(|tensor| elements(tensor) > 0).collect();
    let Some(first) = tensors.first() else { return Vec::new() };
    let (client, device) = (first.client.clone(), first.device.clone());
    let of_batch = |batch: &[CubeTensor]| {
        let cubes = batch.iter().map(|tensor| (elements(tensor).div_ceil(SQUARES), 0));
        let (cubes, segments) = super::segments(cubes, &client, &device);
        let out = empty_f32(&batch[0], &[cubes]);
        let (args, dtype) = (batch.iter().map(arg).collect(), element(&batch[0]));
        let (grid, dim) = (grid(cubes), CubeDim::new_1d(UNITS));
        sum_squares::launch(&client, grid, dim, args, segments.arg(), arg(&out), SQUARES, batch.len(), dtype);
        super::tensor_of(out)
    };
    let alike = tensors.chunk_by(|a, b| a.dtype == b.dtype);
    alike.flat_map(|tensors| tensors.chunks(super::batch(&client, 1, TENSORS))).map(of_batch).collect()
}

/// Adds `x` times `factor` to `sum`.
#[cube(launch)]
fn add<F: Float, G: Float>(sum: &mut [F], x: &[G], factor: f32, #[define(F, G)] _dtypes: [ElemType; 2]) {
    if ABSOLUTE_POS < sum.len() {
        let value = f32::cast_from(sum[ABSOLUTE_POS]) + factor * f32::cast_from(x[ABSOLUTE_POS]);
        sum[ABSOLUTE_POS] = F::cast_from(value);
    }
}

/// Adds `x` times `factor` to `sum` in place, even if other handles share `sum`.
pub(crate) fn accumulate(sum: &CubeTensor, x: &CubeTensor, factor: f32) {
    if elements(sum) > 0 {
        let grid = super::grid_of_units(elements(sum));
        add::launch(&sum.client, grid, CubeDim::new_1d(UNITS), arg(sum), arg(x), factor, [element(sum), element(x)]);
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let f32 = super::offline::F32;
    let mut sources = Vec::new();
    for dtype in offline.dtypes() {
        let ([a, b], settings) = (offline.buffers(), offline.settings(COLUMNS * LANES));
        let (device, target) = (offline.device(), offline.target());
        let kernel = sum_rows::SumRows::new(settings, device, target, a, b, (), (), (), ROWS, [dtype, f32]);
        sources.push(offline.source("column sums", dtype, &kernel));
        let ([segments, out], settings) = (offline.buffers(), offline.settings(UNITS));
        let kernel = sum_squares::SumSquares::new(
            settings,
            offline.device(),
            offline.target(),
            offline.buffers::<TENSORS>().into_iter().collect(),
            segments,
            out,
            SQUARES,
            TENSORS,
            dtype,
        );
        sources.push(offline.source("squares", dtype, &kernel));
        let ([a, b], settings) = (offline.buffers(), offline.settings(UNITS));
        let kernel = add::Add::new(settings, offline.device(), offline.target(), a, b, (), [f32, dtype]);
        sources.push(offline.source("sum", dtype, &kernel));
    }
    sources
}
