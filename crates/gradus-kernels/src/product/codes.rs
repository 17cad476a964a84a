//! Storage of panel lines, and conversion of quantized codes to the words of panels and back.

use rayon::prelude::*;

use super::format::{Precision, Quantization, WeightFormat};
use super::tile::{COLUMNS, Lines};

/// 4-bit codes per word: neighbors along the inner dimension, the first in the lowest bits.
pub(super) const CODES: usize = 8;

impl WeightFormat {
    /// Storage of a panel's lines, or `None` if they are expanded.
    pub(super) fn lines(self) -> Option<Lines> {
        match self {
            Self::Float(precision) => Some(precision.into()),
            Self::Quantized(Quantization::Int8) => Some(Lines::Int8),
            Self::Quantized(Quantization::Nf4) => None,
        }
    }

    /// Precision of the operands of products.
    pub(super) fn operand(self) -> Precision {
        self.lines().map_or(Precision::F32, Lines::operand)
    }

    /// Words of a panel with `rows` rows.
    pub(super) fn panel_words(self, rows: usize) -> usize {
        match self.lines() {
            Some(lines) => rows.div_ceil(lines.operand().per_word()) * lines.width(),
            None => rows.div_ceil(CODES) * COLUMNS,
        }
    }
}

/// Returns the word of byte `line` of column `column`, and its bit offset.
fn byte_place(line: usize, column: usize, rows: usize) -> (usize, usize) {
    let panel = column / COLUMNS * rows.div_ceil(2) * COLUMNS / 2;
    (panel + line / 2 * COLUMNS / 2 + column % COLUMNS / 2, 16 * (column % 2) + 8 * (line % 2))
}

/// Packs bytes `[columns, rows]` into panels.
pub(super) fn pack_bytes(codes: &[i8], rows: usize, columns: usize) -> Vec<u32> {
    let panel = WeightFormat::INT8.panel_words(rows);
    let mut words = vec![0u32; panel * columns.div_ceil(COLUMNS)];
    words.par_chunks_mut(panel.max(1)).enumerate().for_each(|(number, words)| {
        for c in 0..COLUMNS.min(columns - number * COLUMNS) {
            for (line, &code) in codes[(number * COLUMNS + c) * rows..][..rows].iter().enumerate() {
                let (at, shift) = byte_place(line, c, rows);
                words[at] |= u32::from(code as u8) << shift;
            }
        }
    });
    words
}

/// Inverse of [`pack_bytes`].
pub(super) fn unpack_bytes(words: &[u32], rows: usize, columns: usize) -> Vec<i8> {
    let mut codes = vec![0i8; rows * columns];
    codes.par_chunks_mut(rows.max(1)).enumerate().for_each(|(column, codes)| {
        for (line, code) in codes.iter_mut().enumerate() {
            let (at, shift) = byte_place(line, column, rows);
            *code = (words[at] >> shift) as u8 as i8;
        }
    });
    codes
}

/// Packs codes `[columns, rows]` into panels. A byte holds two codes, the first in its upper half.
pub(super) fn pack_codes(codes: &[u8], rows: usize, columns: usize) -> Vec<u32> {
    let panel = WeightFormat::NF4.panel_words(rows);
    let mut words = vec![0u32; panel * columns.div_ceil(COLUMNS)];
    words.par_chunks_mut(panel.max(1)).enumerate().for_each(|(number, words)| {
        for c in 0..COLUMNS.min(columns - number * COLUMNS) {
            let first = (number * COLUMNS + c) * rows;
            for line in 0..rows {
                let code = codes[(first + line) / 2] >> (4 * (1 - (first + line) % 2)) & 15;
                words[line / CODES * COLUMNS + c] |= u32::from(code) << (4 * (line % CODES));
            }
        }
    });
    words
}

/// Inverse of [`pack_codes`]. An unused last half byte holds 7, the code of zero.
pub(super) fn unpack_codes(words: &[u32], rows: usize, columns: usize) -> Vec<u8> {
    let (size, panel) = (rows * columns, WeightFormat::NF4.panel_words(rows));
    let code = |i: usize| {
        let (column, line) = (i / rows, i % rows);
        let word = words[column / COLUMNS * panel + line / CODES * COLUMNS + column % COLUMNS];
        (word >> (4 * (line % CODES)) & 15) as u8
    };
    let byte = |i: usize| code(2 * i) << 4 | if 2 * i + 1 < size { code(2 * i + 1) } else { 7 };
    (0..size.div_ceil(2)).into_par_iter().with_min_len(1 << 14).map(byte).collect()
}
