//! What is computed in parallel.

use super::block::Block;
use super::stretches::Stretch;

/// One stretch of keys and one key/value head: the unit of parallel work.
#[derive(Clone, Copy)]
pub(super) struct Unit<'a> {
    pub stretch: &'a Stretch,
    pub kv_head: usize,
}

impl<'a> Unit<'a> {
    /// What one query head of the unit computes, block by block.
    pub fn blocks(self, group: usize) -> impl Iterator<Item = (usize, Block<'a>)> {
        self.stretch
            .readers
            .iter()
            .flat_map(move |reader| (0..group).flat_map(move |g| Block::all(reader).map(move |block| (g, block))))
    }

    /// Scores that a block has at most.
    pub fn block_size(self) -> usize {
        self.blocks(1).map(|(_, block)| block.queries.len() * block.keys).max().unwrap_or(0)
    }

    pub fn keys(self) -> usize {
        self.stretch.keys.len()
    }
}
