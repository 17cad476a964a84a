//! The blocks of scores that are computed at a time.

use std::ops::Range;

use super::spans::QuerySpan;

/// Queries per block.
const BLOCK: usize = 64;

/// A block of queries of one reader and the keys that it sees. Its columns are the keys of the prefix, the sequence's
/// own keys, and the copies of global tokens, in this order.
pub(super) struct Block<'a> {
    query_span: &'a QuerySpan,
    /// Range of the queries within the reader.
    pub queries: Range<usize>,
    /// Position of the first key in the sequence.
    first: usize,
    /// Ranges of keys, counted from the start of the span, each with its first column in the block's scores.
    spans: [(Range<usize>, usize); 4],
    /// Number of columns before those of global tokens, and of all columns.
    pub near: usize,
    pub keys: usize,
}

impl<'a> Block<'a> {
    /// Returns the blocks of a reader, except those that see no key.
    pub fn all(query_span: &'a QuerySpan) -> impl Iterator<Item = Self> {
        let n = query_span.queries.len();
        let blocks = (0..n).step_by(BLOCK).map(move |from| Self::new(query_span, from..(from + BLOCK).min(n)));
        blocks.filter(|block| block.keys > 0)
    }

    fn new(query_span: &'a QuerySpan, queries: Range<usize>) -> Self {
        let QuerySpan { prefix, own, mask, global, .. } = query_span;
        let of = |i: usize| mask.keys(query_span.position(i), query_span.length());
        let visible = of(queries.start).start..of(queries.end - 1).end;
        // Positions in the sequence; the prefix comes first.
        let continued = prefix.len();
        let of_prefix = prefix.start + visible.start.min(continued)..prefix.start + visible.end.min(continued);
        let of_own =
            own.start + visible.start.max(continued) - continued..own.start + visible.end.max(continued) - continued;
        let (column, near) = (of_prefix.len(), visible.len());
        let [of_global, own_global] = global.copies.clone();
        let after = near + of_global.len();
        let keys = after + own_global.len();
        let spans = [(of_prefix, 0), (of_own, column), (of_global, near), (own_global, after)];
        Self { query_span, queries, first: visible.start, spans, near, keys }
    }

    pub fn spans(&self) -> impl Iterator<Item = &(Range<usize>, usize)> {
        self.spans.iter().filter(|(keys, _)| !keys.is_empty())
    }

    /// Position of query `i` of the block in its sequence.
    #[inline]
    pub fn position(&self, i: usize) -> usize {
        self.query_span.position(self.queries.start + i)
    }

    /// Row of the first query, and its index among all queries of the span.
    pub fn first_query(&self) -> [usize; 2] {
        [self.query_span.queries.start, self.query_span.at].map(|first| first + self.queries.start)
    }

    /// Columns before those of global tokens that query `i` sees, apart from the originals of global tokens.
    #[inline]
    pub fn visible_columns(&self, i: usize) -> Range<usize> {
        let keys = self.query_span.mask.keys(self.position(i), self.query_span.length());
        keys.start - self.first..keys.end - self.first
    }

    /// Positions in the sequence of the keys in columns before those of global tokens.
    #[inline]
    pub fn key_positions(&self, columns: &Range<usize>) -> Range<usize> {
        self.first + columns.start..self.first + columns.end
    }

    /// Positions in the sequence of the global tokens that query `i` sees; they are the first of the global columns.
    #[inline]
    pub fn global(&self, i: usize) -> &'a [usize] {
        let positions = &self.query_span.global.positions;
        let visible = self.query_span.mask.without_window().keys(self.position(i), self.query_span.length());
        &positions[..positions.partition_point(|&position| position < visible.end)]
    }

    /// Writes `value` to the columns of `row` that query `i` does not see.
    #[inline]
    pub fn hide(&self, row: &mut [f32], i: usize, visible: &Range<usize>, value: f32) {
        row[..visible.start].fill(value);
        row[visible.end..self.near].fill(value);
        if !self.has_global() {
            return;
        }
        row[self.near + self.global(i).len()..].fill(value);
        for &original in &self.query_span.global.positions {
            if let Some(column) = original.checked_sub(self.first).filter(|&column| column < self.near) {
                row[column] = value;
            }
        }
    }

    #[inline]
    pub fn has_global(&self) -> bool {
        self.near < self.keys
    }
}
