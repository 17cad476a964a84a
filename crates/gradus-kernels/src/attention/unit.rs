//! Units of parallel work.

use super::block::Block;
use super::spans::KeySpan;

/// One span of keys and one key/value head: the unit of parallel work.
#[derive(Clone, Copy)]
pub(super) struct Unit<'a> {
    pub span: &'a KeySpan,
    pub kv_head: usize,
}

impl<'a> Unit<'a> {
    /// Returns the blocks of each query head of the unit.
    pub fn blocks(self, group: usize) -> impl Iterator<Item = (usize, Block<'a>)> {
        self.span.query_spans.iter().flat_map(move |query_span| {
            (0..group).flat_map(move |g| Block::all(query_span).map(move |block| (g, block)))
        })
    }

    /// Largest number of scores in a block.
    pub fn block_size(self) -> usize {
        self.blocks(1).map(|(_, block)| block.queries.len() * block.keys).max().unwrap_or(0)
    }

    pub fn keys(self) -> usize {
        self.span.keys.len()
    }
}
