//! The blocks of scores that are computed at a time.

use std::ops::Range;

use super::stretches::Reader;

/// Queries per block.
const BLOCK: usize = 64;

/// A block of queries of one reader and the keys that it sees. Its columns are the keys of the prefix, the sequence's
/// own keys, and the copies of global tokens, in this order.
pub(super) struct Block<'a> {
    reader: &'a Reader,
    /// Range of the queries within the reader.
    pub queries: Range<usize>,
    /// Position of the first key in the sequence.
    first: usize,
    /// Ranges of keys, counted from the start of the stretch, each with its first column in the block's scores.
    stretches: [(Range<usize>, usize); 4],
    /// Number of columns before those of global tokens, and of all columns.
    pub near: usize,
    pub keys: usize,
}

impl<'a> Block<'a> {
    /// Returns the blocks of a reader, except those that see no key.
    pub fn all(reader: &'a Reader) -> impl Iterator<Item = Self> {
        let n = reader.queries.len();
        let blocks = (0..n).step_by(BLOCK).map(move |from| Self::new(reader, from..(from + BLOCK).min(n)));
        blocks.filter(|block| block.keys > 0)
    }

    fn new(reader: &'a Reader, queries: Range<usize>) -> Self {
        let Reader { prefix, own, mask, global, .. } = reader;
        let of = |i: usize| mask.keys(reader.position(i), reader.length());
        let seen = of(queries.start).start..of(queries.end - 1).end;
        // Positions in the sequence; the prefix comes first.
        let continued = prefix.len();
        let of_prefix = prefix.start + seen.start.min(continued)..prefix.start + seen.end.min(continued);
        let of_own = own.start + seen.start.max(continued) - continued..own.start + seen.end.max(continued) - continued;
        let (column, near) = (of_prefix.len(), seen.len());
        let [of_global, own_global] = global.copies.clone();
        let after = near + of_global.len();
        let keys = after + own_global.len();
        let stretches = [(of_prefix, 0), (of_own, column), (of_global, near), (own_global, after)];
        Self { reader, queries, first: seen.start, stretches, near, keys }
    }

    pub fn stretches(&self) -> impl Iterator<Item = &(Range<usize>, usize)> {
        self.stretches.iter().filter(|(keys, _)| !keys.is_empty())
    }

    /// Position of query `i` of the block in its sequence.
    #[inline]
    pub fn position(&self, i: usize) -> usize {
        self.reader.position(self.queries.start + i)
    }

    /// Row of the first query, and its index among all queries of the stretch.
    pub fn places(&self) -> [usize; 2] {
        [self.reader.queries.start, self.reader.at].map(|first| first + self.queries.start)
    }

    /// Columns before those of global tokens that query `i` sees, apart from the originals of global tokens.
    #[inline]
    pub fn seen(&self, i: usize) -> Range<usize> {
        let keys = self.reader.mask.keys(self.position(i), self.reader.length());
        keys.start - self.first..keys.end - self.first
    }

    /// Positions in the sequence of the keys in columns before those of global tokens.
    #[inline]
    pub fn standing(&self, columns: &Range<usize>) -> Range<usize> {
        self.first + columns.start..self.first + columns.end
    }

    /// Positions in the sequence of the global tokens that query `i` sees; they are the first of the global columns.
    #[inline]
    pub fn global(&self, i: usize) -> &'a [usize] {
        let positions = &self.reader.global.positions;
        let seen = self.reader.mask.without_window().keys(self.position(i), self.reader.length());
        &positions[..positions.partition_point(|&position| position < seen.end)]
    }

    /// Writes `value` to the columns of `row` that query `i` does not see.
    #[inline]
    pub fn hide(&self, row: &mut [f32], i: usize, seen: &Range<usize>, value: f32) {
        row[..seen.start].fill(value);
        row[seen.end..self.near].fill(value);
        if !self.has_global() {
            return;
        }
        row[self.near + self.global(i).len()..].fill(value);
        for &original in &self.reader.global.positions {
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
