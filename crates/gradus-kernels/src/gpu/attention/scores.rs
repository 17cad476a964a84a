//! What all attention kernels in CubeCL compute of a key: its row, and its score.

use cubecl::prelude::*;

use crate::gpu::activation::capped;

/// Score of a hidden key, below any real score.
pub(super) const HIDDEN: f32 = -1.0e30;

/// Returns the row of the key at `position` of a sequence.
#[cube]
pub(super) fn key_row(position: usize, prefix: usize, prefix_length: usize, own: usize) -> usize {
    let mut row = prefix + position;
    if position >= prefix_length {
        row = own + position - prefix_length;
    }
    row
}

/// Returns the score from the product of a query and a key, and its slope (1 without a cap).
#[cube]
pub(super) fn score(product: f32, scale: f32, cap: f32, #[comptime] is_capped: bool) -> (f32, f32) {
    let mut s = product * scale;
    let mut slope = 1.0f32;
    if comptime!(is_capped) {
        let t = capped(s / cap);
        s = cap * t;
        slope = 1.0f32 - t * t;
    }
    (s, slope)
}
