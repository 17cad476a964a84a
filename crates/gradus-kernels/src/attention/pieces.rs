//! Assembles packed tensors from the results of units.

use std::ops::Range;

use super::spans::KeySpan;
use super::unit::Unit;
use crate::fused::Dense;
use crate::parts::{one_in_parts, part_of};

/// Neighboring rows of a tensor that one unit computes.
pub(super) struct Piece {
    rows: Range<usize>,
    /// Index of the first row within the unit's result.
    from: usize,
    unit: usize,
    kv_head: usize,
}

/// Returns the pieces of all units; `rows` gives the rows of a span.
pub(super) fn pieces<R: IntoIterator<Item = (Range<usize>, usize)>>(
    units: &[Unit<'_>],
    rows: impl Fn(&KeySpan) -> R,
) -> Vec<Piece> {
    let of_unit = |(i, unit): (usize, &Unit<'_>)| {
        let kv_head = unit.kv_head;
        rows(unit.span).into_iter().map(move |(rows, from)| Piece { rows, from, unit: i, kv_head })
    };
    units.iter().enumerate().flat_map(of_unit).collect()
}

/// Results of all units, `[T, width]` each, and the first column of the first head.
pub(super) struct Blocks<'a> {
    pub offset: usize,
    pub width: usize,
    pub of_units: Vec<&'a [f32]>,
}

/// Copies the blocks of all units into one packed tensor `[n, stride]`.
pub(super) fn side_by_side(pieces: &[Piece], n: usize, stride: usize, blocks: &[Blocks<'_>]) -> Dense {
    /// Rows per parallel task.
    const ROWS: usize = 32;
    let values = one_in_parts(n * stride, ROWS * stride, |part, values| {
        let rows = part * ROWS..part * ROWS + values.len() / stride;
        for piece in pieces {
            for row in rows.start.max(piece.rows.start)..rows.end.min(piece.rows.end) {
                for Blocks { offset, width, of_units } in blocks {
                    let at = (row - rows.start) * stride + offset + piece.kv_head * width;
                    let made = part_of(of_units[piece.unit], piece.from + row - piece.rows.start, *width);
                    values[at..at + width].copy_from_slice(made);
                }
            }
        }
    });
    Dense::new(values, &[n, stride])
}
