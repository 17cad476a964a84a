//! Tables of words that list which queries of a batch read which keys, for kernels that compute attention tile by tile.

use std::ops::Range;

use super::Mask;
use crate::segments::{CrossSegments, Segments};

/// Larger than the length of any sequence.
const FAR: u32 = 1 << 30;

/// Range of a query's view: the key at position j is visible from i if `j ≤ i + after` and `i ≤ j + before`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) before: u32,
    pub(crate) after: u32,
}

impl From<Mask> for View {
    fn from(mask: Mask) -> Self {
        let near = |distance: usize| u32::try_from(distance).map_or(FAR, |distance| distance.min(FAR));
        match mask {
            Mask::Causal => Self { before: FAR, after: 0 },
            Mask::CausalWindow(window) => Self { before: near(window.get() - 1), after: 0 },
            Mask::Bidirectional => Self { before: FAR, after: FAR },
            Mask::BidirectionalWindow(distance) => Self { before: near(distance), after: near(distance) },
        }
    }
}

/// Neighboring queries of one sequence, and the rows of the sequence's keys.
struct Reader {
    queries: Range<usize>,
    /// Position of the first query in the sequence.
    position: usize,
    prefix: Range<usize>,
    own: Range<usize>,
}

/// Neighboring keys, the position of the first, and the readers that see them.
struct Read {
    keys: Range<usize>,
    position: usize,
    readers: Vec<usize>,
}

/// Words per tile of queries: first row, number of rows, position of the first; first row and length of the prefix;
/// first row of its own keys; and the length of the sequence.
pub(crate) const QUERY_WORDS: usize = 7;
/// Words per tile of keys: first row, number of rows, position of the first, and its readers.
pub(crate) const KEY_WORDS: usize = 5;
/// Words per reader of keys: first row, number of rows, position of the first.
pub(crate) const READER_WORDS: usize = 3;

/// Words of the tables.
#[derive(Debug, Default)]
pub(crate) struct Tiles {
    pub(crate) queries: Vec<u32>,
    pub(crate) keys: Vec<u32>,
    pub(crate) readers: Vec<u32>,
}

/// Which tokens attend to which.
#[derive(Debug, Clone)]
pub(crate) enum Batch {
    /// Sequences attend to themselves.
    Within(Segments),
    /// Sequences attend to those of another batch.
    Across(CrossSegments),
}

impl Batch {
    /// Returns the readers, and the keys with their readers.
    fn readers(&self) -> (Vec<Reader>, Vec<Read>) {
        let (mut readers, mut reads) = (Vec::new(), Vec::new());
        match self {
            Self::Within(segments) => {
                for tree in segments.trees() {
                    let (first, root) = (readers.len(), tree.start..tree.start + tree.root);
                    for segment in tree.segments(tree.start) {
                        let (position, queries) = (segment.prefix.len(), segment.tokens.clone());
                        readers.push(Reader { queries, position, prefix: segment.prefix, own: segment.tokens });
                    }
                    // All segments read the root. Each continuation reads itself.
                    reads.push(Read { keys: root, position: 0, readers: (first..readers.len()).collect() });
                    for (i, reader) in readers.iter().enumerate().skip(first + 1) {
                        reads.push(Read { keys: reader.own.clone(), position: reader.position, readers: vec![i] });
                    }
                }
            }
            Self::Across(cross) => {
                let mut of_source: Vec<(Range<usize>, Vec<usize>)> =
                    cross.sources().map(|source| (source, Vec::new())).collect();
                for (tree, source) in cross.trees() {
                    for segment in tree.segments(tree.start) {
                        let of = of_source.iter_mut().find(|(range, _)| *range == source);
                        of.expect("a source of the batch").1.push(readers.len());
                        let (position, queries) = (segment.prefix.len(), segment.tokens);
                        readers.push(Reader { queries, position, prefix: 0..0, own: source.clone() });
                    }
                }
                reads.extend(of_source.into_iter().map(|(keys, readers)| Read { keys, position: 0, readers }));
            }
        }
        (readers, reads)
    }

    /// Returns the words of the tables, for tiles of `tile` rows.
    pub(crate) fn tiles(&self, tile: usize) -> Tiles {
        let word = |number: usize| u32::try_from(number).expect("a batch has fewer than 2³² tokens");
        let ((readers, reads), mut tiles) = (self.readers(), Tiles::default());
        for reader in &readers {
            for from in reader.queries.clone().step_by(tile) {
                let rows = (reader.queries.end - from).min(tile);
                let position = reader.position + from - reader.queries.start;
                let sequence = [reader.prefix.start, reader.prefix.len(), reader.own.start];
                let length = reader.prefix.len() + reader.own.len();
                tiles.queries.extend([from, rows, position].into_iter().chain(sequence).chain([length]).map(word));
            }
        }
        for Read { keys: range, position, readers: of } in &reads {
            let first = tiles.readers.len() / READER_WORDS;
            for reader in of.iter().map(|&i| &readers[i]) {
                tiles.readers.extend([reader.queries.start, reader.queries.len(), reader.position].map(word));
            }
            let last = tiles.readers.len() / READER_WORDS;
            for from in range.clone().step_by(tile) {
                let (rows, at) = ((range.end - from).min(tile), position + from - range.start);
                tiles.keys.extend([from, rows, at, first, last].map(word));
            }
        }
        tiles
    }
}
