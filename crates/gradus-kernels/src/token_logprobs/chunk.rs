//! Chunks of the logits that are in memory at a time.

use std::ops::Range;

use crate::product::COLUMNS_UNIT;

/// Rows of the stacked result.
pub(crate) const ROWS: usize = 5;

/// Logits held at a time: 16 Mi values, 64 MiB.
const CHUNK_VALUES: usize = 16 << 20;
/// Largest number of rows per chunk.
pub(super) const CHUNK_ROWS: usize = 4096;
/// Vocabulary tokens whose sums are computed separately. Chunks consist of whole blocks.
pub(super) const BLOCK: usize = 2048;
const _: () = assert!(BLOCK.is_multiple_of(COLUMNS_UNIT) && CHUNK_ROWS * BLOCK <= CHUNK_VALUES);

/// Some vocabulary tokens for some rows.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(crate) rows: Range<usize>,
    pub(crate) tokens: Range<usize>,
}

impl Chunk {
    /// All chunks of `m` rows of `v` logits.
    pub(crate) fn all(m: usize, v: usize) -> Vec<Self> {
        let parts = |total: usize, each: usize| (0..total).step_by(each).map(move |at| at..(at + each).min(total));
        let of_rows = |rows: Range<usize>| {
            let width = (CHUNK_VALUES / rows.len() / BLOCK * BLOCK).max(BLOCK);
            parts(v, width).map(move |tokens| Self { rows: rows.clone(), tokens })
        };
        parts(m, CHUNK_ROWS).flat_map(of_rows).collect()
    }

    pub(super) fn values(&self) -> usize {
        self.rows.len() * self.tokens.len()
    }

    /// Returns the position of a target in the chunk, if the chunk contains it.
    pub(super) fn place(&self, target: u32) -> Option<usize> {
        let target = target as usize;
        self.tokens.contains(&target).then(|| target - self.tokens.start)
    }
}
