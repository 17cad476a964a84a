//! Expands the words of a packed matrix into numbers: one stretch of one panel at a time, or the whole matrix.

use std::ops::Range;

use rayon::prelude::*;

use super::codes::CODES;
use super::format::Precision;
use super::packed::{Columns, PackedMatrix, Scaling};
use super::tile::COLUMNS;
use super::{Mat, Orientation, TURNED, pack, with_scratch};
use crate::quantized::BLOCK;
use crate::simd::simd;

/// Lines expanded at a time. At most a block of NF4, so that each column touches at most two blocks.
const LINES: usize = 64;

impl Columns<'_> {
    /// Writes the words `depth` of panel `panel` of the matrix, or of its transpose, for tiles of the operands' precision.
    pub(super) fn expand(&self, orientation: Orientation, panel: usize, depth: &Range<usize>, words: &mut [u32]) {
        match orientation {
            Orientation::AsStored => self.expand_panel(panel, depth, words),
            Orientation::Transpose => self.expand_transposed(panel, depth, words),
        }
    }

    fn expand_panel(&self, panel: usize, depth: &Range<usize>, words: &mut [u32]) {
        let per_word = self.matrix.operand.per_word();
        let lines = depth.start * per_word..(depth.end * per_word).min(self.matrix.rows);
        for (from, words) in lines.clone().step_by(LINES).zip(words.chunks_mut(LINES / per_word * COLUMNS)) {
            let lines = from..(from + LINES).min(lines.end);
            match self.matrix.operand {
                Precision::F32 => self.numbers(panel, &lines, as_numbers(words), COLUMNS),
                Precision::Bf16 => {
                    let mut numbers = [0.0; LINES * COLUMNS];
                    self.numbers(panel, &lines, &mut numbers, COLUMNS);
                    join(words, &numbers[..lines.len() * COLUMNS]);
                }
            }
        }
    }

    fn expand_transposed(&self, panel: usize, depth: &Range<usize>, words: &mut [u32]) {
        let per_word = self.matrix.operand.per_word();
        let columns = depth.start * per_word..(depth.end * per_word).min(self.columns);
        let lines = panel * COLUMNS..((panel + 1) * COLUMNS).min(self.matrix.rows);
        let stride = columns.len().next_multiple_of(COLUMNS);
        with_scratch(&TURNED, lines.len() * stride, |turned| {
            let numbers = as_numbers(turned);
            for from in columns.clone().step_by(COLUMNS) {
                self.numbers(from / COLUMNS, &lines, &mut numbers[from - columns.start..], stride);
            }
            let matrix = Mat::strided(numbers, lines.len(), columns.len(), stride).t();
            pack::pack_panels(words, words.len(), &matrix, 0, &(0..depth.len()), self.matrix.operand);
        });
    }

    /// Like [`PackedMatrix::numbers`], with panels counted from the first column.
    fn numbers(&self, panel: usize, lines: &Range<usize>, target: &mut [f32], stride: usize) {
        self.matrix.numbers(self.first + panel, lines, target, stride);
    }
}

impl PackedMatrix {
    /// Writes lines `lines` of panel `panel` as numbers, [`COLUMNS`] per line, to `target`, whose lines are `stride` apart.
    ///
    /// Takes at most [`LINES`] lines, starting at a multiple of [`CODES`].
    fn numbers(&self, panel: usize, lines: &Range<usize>, target: &mut [f32], stride: usize) {
        let words = &self.words[panel * self.format.panel_words(self.rows)..];
        match (&*self.scaling, self.format) {
            (Scaling::Columns { scales, .. }, _) => {
                let scales = scales[panel * COLUMNS..].first_chunk().expect("whole panels");
                of_bytes(target, stride, words, lines, scales);
            }
            (Scaling::Blocks { map, absmax }, _) => {
                let words = &words[lines.start / CODES * COLUMNS..][..lines.len().div_ceil(CODES) * COLUMNS];
                let mut scales =
                    BlockScales { first: [0.0; COLUMNS], second: [0.0; COLUMNS], left: [LINES as u32; COLUMNS] };
                for c in 0..COLUMNS.min(self.columns - panel * COLUMNS) {
                    let at = (panel * COLUMNS + c) * self.rows + lines.start;
                    scales.first[c] = absmax.at(at / BLOCK);
                    scales.left[c] = (BLOCK - at % BLOCK) as u32;
                    if BLOCK - at % BLOCK < lines.len() {
                        scales.second[c] = absmax.at(at / BLOCK + 1);
                    }
                }
                of_codes(target, stride, words, lines.len(), map, &scales);
            }
            (Scaling::None, _) => of_floats(target, stride, words, lines, self.format.operand()),
        }
    }

    /// Returns the whole matrix, dense and row-major, with its rounded values.
    pub(crate) fn unpacked(&self) -> Vec<f32> {
        let mut values = vec![0.0f32; self.rows * self.columns];
        let parts = values.par_chunks_mut((LINES * self.columns).max(1)).enumerate();
        parts.for_each(|(part, values)| {
            let lines = part * LINES..((part + 1) * LINES).min(self.rows);
            let mut numbers = [0.0; LINES * COLUMNS];
            for column in (0..self.columns).step_by(COLUMNS) {
                self.numbers(column / COLUMNS, &lines, &mut numbers, COLUMNS);
                let width = COLUMNS.min(self.columns - column);
                for (row, numbers) in values.chunks_exact_mut(self.columns).zip(numbers.chunks_exact(COLUMNS)) {
                    row[column..column + width].copy_from_slice(&numbers[..width]);
                }
            }
        });
        values
    }
}

/// Largest magnitudes of each column's current block, and of the next block, which begins after `left` lines.
struct BlockScales {
    first: [f32; COLUMNS],
    second: [f32; COLUMNS],
    left: [u32; COLUMNS],
}

/// Reinterprets words as f32 numbers.
fn as_numbers(words: &mut [u32]) -> &mut [f32] {
    // SAFETY: both types are four bytes, equally aligned, and every bit pattern is a value of either.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}

/// Converts 4-bit codes to numbers: the value of the code times the scale of its block.
fn of_codes(target: &mut [f32], stride: usize, words: &[u32], lines: usize, map: &[f32; 16], scales: &BlockScales) {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::has_avx512() {
        // SAFETY: the CPU has AVX-512.
        return unsafe { of_codes_avx512(target, stride, words, lines, map, scales) };
    }
    of_codes_portable(target, stride, words, lines, map, scales);
}

/// Like [`of_codes`], with the 16 values in one register and permutations as look-ups.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn of_codes_avx512(
    target: &mut [f32],
    stride: usize,
    words: &[u32],
    lines: usize,
    map: &[f32; 16],
    scales: &BlockScales,
) {
    use std::arch::x86_64::*;
    // SAFETY: all arrays and rows below are as long as the reads and writes need.
    unsafe {
        let map = _mm512_loadu_ps(map.as_ptr());
        for half in [0, COLUMNS / 2] {
            let first = _mm512_loadu_ps(scales.first[half..].as_ptr());
            let second = _mm512_loadu_ps(scales.second[half..].as_ptr());
            let left = _mm512_loadu_si512(scales.left[half..].as_ptr().cast());
            for (group, words) in words.chunks_exact(COLUMNS).enumerate() {
                let mut codes = _mm512_loadu_si512(words[half..].as_ptr().cast());
                for line in group * CODES..((group + 1) * CODES).min(lines) {
                    let is_second = _mm512_cmple_epu32_mask(left, _mm512_set1_epi32(line as i32));
                    let scale = _mm512_mask_blend_ps(is_second, first, second);
                    let numbers = _mm512_mul_ps(_mm512_permutexvar_ps(codes, map), scale);
                    let row = &mut target[line * stride + half..][..COLUMNS / 2];
                    _mm512_storeu_ps(row.as_mut_ptr(), numbers);
                    codes = _mm512_srli_epi32::<4>(codes);
                }
            }
        }
    }
}

simd! {
    fn of_codes_portable(
        target: &mut [f32],
        stride: usize,
        words: &[u32],
        lines: usize,
        map: &[f32; 16],
        scales: &BlockScales,
    ) {
        for (group, words) in words.as_chunks::<COLUMNS>().0.iter().enumerate() {
            for line in group * CODES..((group + 1) * CODES).min(lines) {
                let row: &mut [f32; COLUMNS] = target[line * stride..].first_chunk_mut().expect("a line");
                for c in 0..COLUMNS {
                    let scale = if scales.left[c] <= line as u32 { scales.second[c] } else { scales.first[c] };
                    row[c] = map[(words[c] >> (4 * (line % CODES)) & 15) as usize] * scale;
                }
            }
        }
    }

    /// Converts lines of bytes to numbers.
    fn of_bytes(target: &mut [f32], stride: usize, words: &[u32], lines: &Range<usize>, scales: &[f32; COLUMNS]) {
        for (i, line) in lines.clone().enumerate() {
            let words: &[u32; COLUMNS / 2] = words[line / 2 * COLUMNS / 2..].first_chunk().expect("a line");
            let row: &mut [f32; COLUMNS] = target[i * stride..].first_chunk_mut().expect("a line");
            for c in 0..COLUMNS {
                let byte = words[c / 2] >> (16 * (c % 2) + 8 * (line % 2));
                row[c] = f32::from(byte as u8 as i8) * scales[c];
            }
        }
    }

    /// Converts lines of f32 or bf16 to numbers.
    fn of_floats(target: &mut [f32], stride: usize, words: &[u32], lines: &Range<usize>, precision: Precision) {
        let per_word = precision.per_word();
        for (i, line) in lines.clone().enumerate() {
            let words: &[u32; COLUMNS] = words[line / per_word * COLUMNS..].first_chunk().expect("a line");
            let row: &mut [f32; COLUMNS] = target[i * stride..].first_chunk_mut().expect("a line");
            for (number, &word) in row.iter_mut().zip(words) {
                *number = pack::number(word, line % per_word, precision);
            }
        }
    }

    /// Converts pairs of lines to words of two bf16. An odd last line is paired with zeros.
    fn join(words: &mut [u32], numbers: &[f32]) {
        let zeros = [0.0; COLUMNS];
        for (words, lines) in words.as_chunks_mut::<COLUMNS>().0.iter_mut().zip(numbers.chunks(2 * COLUMNS)) {
            let (first, second) = lines.split_at(COLUMNS);
            let second = second.first_chunk().unwrap_or(&zeros);
            for ((word, &a), &b) in words.iter_mut().zip(first).zip(second) {
                *word = pack::bf16_bits(a) | pack::bf16_bits(b) << 16;
            }
        }
    }
}
