//! Where the queries and the keys of one sequence lie.

use std::ops::Range;

/// Queries of one sequence, and the keys that it is made of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sequence {
    /// Rows of the queries.
    pub queries: Range<usize>,
    /// Where the first stands in the sequence.
    pub position: usize,
    /// Rows of the keys, in the order of the sequence.
    pub keys: Vec<Range<usize>>,
    /// Positions that are global.
    pub global: Vec<usize>,
}
