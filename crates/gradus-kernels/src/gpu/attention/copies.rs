//! Copies of keys and values in shared memory.

use cubecl::prelude::*;

use super::scores::key_row;
use super::tiling::Tiling;

/// Fills `copy` with one head of the keys, or of the values, of a tile that begins at key `from` of a sequence. Rows behind the sequence are 0.
#[cube]
pub(super) fn copy_keys<F: Float>(
    rows: &[F],
    copy: &mut Shared<[f32]>,
    from: usize,
    prefix: usize,
    prefix_length: usize,
    own: usize,
    length: usize,
    width: usize,
    head: usize,
    #[comptime] tiling: Tiling,
) {
    let tile = comptime!(tiling.tile);
    let dim = comptime!(tiling.dim);
    let mut i = UNIT_POS as usize;
    while i < tile * dim {
        let r = i / dim;
        let c = i % dim;
        let mut value = 0.0f32;
        if from + r < length {
            let at = key_row(from + r, prefix, prefix_length, own);
            value = f32::cast_from(rows[at * width + head * dim + c]);
        }
        copy[r * comptime!(tiling.dim + 1) + c] = value;
        i += comptime!((tiling.tile / tiling.each) * (tiling.tile / tiling.each));
    }
}
