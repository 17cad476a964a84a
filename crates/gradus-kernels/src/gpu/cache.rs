//! The cache of keys and values for sampling: a matrix whose rows are written and moved in place.
//!
//! [`super::attention`] computes attention over it. Its tables list the rows of each sequence's keys.

use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::attention::precision_of_operands;
use super::product::narrower;
use super::{UNITS, Words, arg, cube_of, dims, element, elements, grid_of_units, tensor_of, zeros};
use crate::attention::AttentionShape;

/// Copies row `i` of `x` to row `rows[i]` of the matrix, in the type of the matrix.
#[cube(launch)]
fn put_rows<X: Float, M: Float>(
    x: &[X],
    rows: &[u32],
    matrix: &mut [M],
    width: u32,
    #[define(X, M)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS < x.len() {
        let (row, at) = (ABSOLUTE_POS / (width as usize), ABSOLUTE_POS % (width as usize));
        matrix[rows[row] as usize * (width as usize) + at] = M::cast_from(x[ABSOLUTE_POS]);
    }
}

/// Copies the numbers `from..from + count` to `to`. The ranges must not overlap.
#[cube(launch)]
fn move_numbers<F: Float>(matrix: &mut [F], from: u32, to: u32, count: u32, #[define(F)] _dtype: ElemType) {
    if ABSOLUTE_POS < count as usize {
        matrix[to as usize + ABSOLUTE_POS] = matrix[from as usize + ABSOLUTE_POS];
    }
}

/// Whether `device` writes rows of a matrix of `dtype` in place.
pub(crate) fn supports(device: &CubeDevice, dtype: DType) -> bool {
    super::computes(device, dtype)
}

/// Returns the matrix itself if this is its only handle, or else a copy.
fn own(matrix: Tensor<2>) -> CubeTensor {
    let matrix = cube_of(matrix);
    if matrix.handle.can_mut() { matrix } else { into_contiguous(matrix.copy()) }
}

/// Replaces the rows `rows` of `matrix` by `x`.
pub(crate) fn put(matrix: Tensor<2>, x: Tensor<2>, rows: &[u32]) -> Tensor<2> {
    let (matrix, x) = (own(matrix), into_contiguous(cube_of(x)));
    if elements(&x) > 0 {
        let (grid, units) = (grid_of_units(elements(&x)), CubeDim::new_1d(UNITS));
        let (client, [_, width]) = (&x.client, dims(&x));
        let rows = Words::shared(&x, rows);
        let dtypes = [element(&x), element(&matrix)];
        put_rows::launch(client, grid, units, arg(&x), rows.arg(), arg(&matrix), width as u32, dtypes);
    }
    tensor_of(matrix)
}

/// Copies `count` rows of `matrix` from row `from` to row `to`.
pub(crate) fn copied(matrix: Tensor<2>, from: usize, to: usize, count: usize) -> Tensor<2> {
    let matrix = own(matrix);
    let [_, width] = dims(&matrix);
    let numbers = |rows: usize| u32::try_from(rows * width).expect("a cache of fewer than 2³² numbers");
    if count * width > 0 {
        let (grid, units) = (grid_of_units(count * width), CubeDim::new_1d(UNITS));
        let (client, dtype) = (&matrix.client, element(&matrix));
        move_numbers::launch(client, grid, units, arg(&matrix), numbers(from), numbers(to), numbers(count), dtype);
    }
    tensor_of(matrix)
}

/// Returns a matrix of `rows` rows with the width of `like`, for attention of `shape`. It begins with the rows of `matrix`, if given.
///
/// Its type is bf16 if training reads keys and values of this shape in bf16. Both then compute with the same numbers.
pub(crate) fn grown(matrix: Option<Tensor<2>>, like: &Tensor<2>, rows: usize, shape: &AttentionShape) -> Tensor<2> {
    let like = cube_of(like.clone());
    let [_, width] = dims(&like);
    let dtype = narrower(&like, precision_of_operands(shape, &like.device));
    let larger = tensor_of(zeros(&like, &[rows, width], dtype));
    match matrix {
        None => larger,
        Some(matrix) => {
            let known: Vec<u32> = (0..matrix.dims()[0] as u32).collect();
            put(larger, matrix, &known)
        }
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let mut sources = Vec::new();
    for dtype in offline.dtypes() {
        for dtypes in [[super::offline::F32, dtype], [dtype, dtype]] {
            let ([a, b, c], settings) = (offline.buffers(), offline.settings(UNITS));
            let kernel = put_rows::PutRows::new(settings, offline.device(), offline.target(), a, b, c, (), dtypes);
            sources.push(offline.source("cache: put rows", dtype, &kernel));
        }
        let ([a], settings) = (offline.buffers(), offline.settings(UNITS));
        let kernel = move_numbers::MoveNumbers::new(settings, offline.device(), offline.target(), a, (), (), (), dtype);
        sources.push(offline.source("cache: move numbers", dtype, &kernel));
    }
    sources
}
