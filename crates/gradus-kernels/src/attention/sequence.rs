//! Location of the queries and keys of one sequence.

use std::ops::Range;

/// Queries of one sequence, and all its keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sequence {
    /// Rows of the queries.
    pub queries: Range<usize>,
    /// Position of the first query in the sequence.
    pub position: usize,
    /// Rows of the keys, in sequence order.
    pub keys: Vec<Range<usize>>,
    /// Positions of global tokens.
    pub global: Vec<usize>,
}
