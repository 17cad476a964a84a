//! Packs slices of f32 into the words that tiles read.

use std::ops::Range;

use super::Mat;
use super::format::Precision;
use super::tile::{COLUMNS, DEPTH, ROW_STRIDE};
use crate::simd::simd;

/// Words per side of a transposed block.
const BLOCK: usize = 16;

/// Number of lines, or blocks along a row, to prefetch ahead.
const AHEAD: usize = 4;

/// Bits of `x` as bf16, in the lower half, rounded to nearest even. NaN stays NaN.
#[inline(always)]
pub(crate) fn bf16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { 0x7fc0 } else { rounded }
}

/// Number `index` of a word.
pub(super) fn number(word: u32, index: usize, precision: Precision) -> f32 {
    match (precision, index) {
        (Precision::F32, _) => f32::from_bits(word),
        (Precision::Bf16, 0) => f32::from_bits(word << 16),
        (Precision::Bf16, _) => f32::from_bits(word & 0xffff_0000),
    }
}

/// Packs neighbors along the inner dimension into the words of a row.
///
/// Whole blocks have a size known at compile time. A copy of unknown size would be a call for every 64 bytes.
#[inline(always)]
fn along(values: &[f32], precision: Precision, words: &mut [u32]) {
    match precision {
        Precision::F32 => {
            let ((blocks, rest), (to, words)) = (values.as_chunks::<BLOCK>(), words.as_chunks_mut::<BLOCK>());
            to.iter_mut().zip(blocks).for_each(|(words, block)| *words = block.map(f32::to_bits));
            let words = to[blocks.len()..].as_flattened_mut().iter_mut().chain(words);
            words.zip(rest).for_each(|(word, x)| *word = x.to_bits());
        }
        Precision::Bf16 => {
            let (pairs, rest) = values.as_chunks::<2>();
            for (word, [a, b]) in words.iter_mut().zip(pairs) {
                *word = bf16_bits(*a) | bf16_bits(*b) << 16;
            }
            if let [last] = rest {
                words[pairs.len()] = bf16_bits(*last);
            }
        }
    }
}

/// Packs one word for each of `N` columns. `first` and `second` are neighboring rows along the inner dimension; a word of f32 holds only
/// the first.
#[inline(always)]
fn across<const N: usize>(first: &[f32; N], second: &[f32; N], precision: Precision, words: &mut [u32; N]) {
    for ((word, &a), &b) in words.iter_mut().zip(first).zip(second) {
        *word = match precision {
            Precision::F32 => a.to_bits(),
            Precision::Bf16 => bf16_bits(a) | bf16_bits(b) << 16,
        };
    }
}

/// Returns the first `N` of `values`, padded with zeros.
#[inline(always)]
fn padded<const N: usize>(values: &[f32]) -> [f32; N] {
    match values.first_chunk() {
        Some(values) => *values,
        None => std::array::from_fn(|i| values.get(i).copied().unwrap_or(0.0)),
    }
}

/// Swaps rows and columns.
#[inline(always)]
fn transpose(block: &mut [[u32; BLOCK]; BLOCK]) {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::has_avx512() {
        // SAFETY: the CPU has AVX-512.
        return unsafe { transpose_avx512(block) };
    }
    for i in 1..BLOCK {
        let (above, below) = block.split_at_mut(i);
        for (j, above) in above.iter_mut().enumerate() {
            std::mem::swap(&mut above[i], &mut below[0][j]);
        }
    }
}

/// Like [`transpose`], in registers: pairs of words, then pairs of pairs, then the quarters of the registers, twice.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn transpose_avx512(block: &mut [[u32; BLOCK]; BLOCK]) {
    use std::arch::x86_64::*;
    // SAFETY: every row is 16 words long.
    let rows: [__m512i; 16] = std::array::from_fn(|i| unsafe { _mm512_loadu_si512(block[i].as_ptr().cast()) });
    let pairs: [__m512i; 16] = std::array::from_fn(|i| match i % 2 {
        0 => _mm512_unpacklo_epi32(rows[i], rows[i + 1]),
        _ => _mm512_unpackhi_epi32(rows[i - 1], rows[i]),
    });
    let fours: [__m512i; 16] = std::array::from_fn(|i| {
        let (first, second) = (pairs[i / 4 * 4 + i % 4 / 2], pairs[i / 4 * 4 + i % 4 / 2 + 2]);
        if i % 2 == 0 { _mm512_unpacklo_epi64(first, second) } else { _mm512_unpackhi_epi64(first, second) }
    });
    for j in 0..4 {
        let even = |i: usize| _mm512_shuffle_i32x4::<0x88>(fours[i + j], fours[i + 4 + j]);
        let odd = |i: usize| _mm512_shuffle_i32x4::<0xdd>(fours[i + j], fours[i + 4 + j]);
        let columns = [
            (j, _mm512_shuffle_i32x4::<0x88>(even(0), even(8))),
            (4 + j, _mm512_shuffle_i32x4::<0x88>(odd(0), odd(8))),
            (8 + j, _mm512_shuffle_i32x4::<0xdd>(even(0), even(8))),
            (12 + j, _mm512_shuffle_i32x4::<0xdd>(odd(0), odd(8))),
        ];
        for (column, words) in columns {
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(block[column].as_mut_ptr().cast(), words) };
        }
    }
}

simd! {
    /// Packs rows `rows` and words `words` of `a`, with rows [`ROW_STRIDE`] apart.
    pub(super) fn pack_rows(target: &mut [u32], a: &Mat<'_>, rows: &Range<usize>, words: &Range<usize>, precision: Precision) {
        let per_word = precision.per_word();
        let (from, to) = (words.start * per_word, (words.end * per_word).min(a.columns));
        if a.column_stride == 1 {
            for (row, target) in rows.clone().zip(target.chunks_mut(ROW_STRIDE)) {
                let at = row * a.row_stride;
                along(&a.values[at + from..at + to], precision, target);
            }
            return;
        }
        // Blocks of rows in sequence, because they are neighbors in memory.
        for (j, words) in blocks(words).enumerate() {
            for (i, rows) in blocks(rows).enumerate() {
                let mut block = lines(a, &rows, &words, precision);
                transpose(&mut block);
                for (r, row) in block.iter().take(rows.len()).enumerate() {
                    let target = &mut target[(i * BLOCK + r) * ROW_STRIDE + j * BLOCK..];
                    match target.first_chunk_mut() {
                        Some(target) if words.len() == BLOCK => *target = *row,
                        _ => target[..words.len()].copy_from_slice(&row[..words.len()]),
                    }
                }
            }
        }
    }

    /// Packs words `words` of the columns of `b`, starting at `column`, into panels of [`COLUMNS`] with `stride` words each. It fills
    /// `target`. A panel holds one line of columns after the other.
    pub(super) fn pack_panels(
        target: &mut [u32],
        stride: usize,
        b: &Mat<'_>,
        column: usize,
        words: &Range<usize>,
        precision: Precision,
    ) {
        let per_word = precision.per_word();
        if b.column_stride == 1 {
            // Row by row across all panels, because they are neighbors in memory.
            for (i, word) in words.clone().enumerate() {
                let row = |k: usize| &b.values[k * b.row_stride..][..b.columns];
                let first = row(per_word * word);
                let second = (per_word == 2 && 2 * word + 1 < b.rows).then(|| row(2 * word + 1));
                for (column, panel) in (column..).step_by(COLUMNS).zip(target.chunks_exact_mut(stride)) {
                    for row in 0..per_word {
                        let ahead = (AHEAD * per_word + row) * b.row_stride;
                        prefetch(&first[column..], ahead);
                        prefetch(&first[column..], ahead + COLUMNS / 2);
                    }
                    let line = panel[i * COLUMNS..].first_chunk_mut::<COLUMNS>().expect("a line");
                    let second = second.map_or([0.0; COLUMNS], |row| padded(&row[column..]));
                    across(&padded(&first[column..]), &second, precision, line);
                }
            }
            return;
        }
        for (column, target) in (column..).step_by(COLUMNS).zip(target.chunks_exact_mut(stride)) {
            let columns = (b.columns - column).min(COLUMNS);
            for i in (0..COLUMNS).step_by(BLOCK) {
                for (j, words) in blocks(words).enumerate() {
                    let (from, to) = (words.start * per_word, (words.end * per_word).min(b.rows));
                    let mut block = [[0u32; BLOCK]; BLOCK];
                    for (c, line) in block.iter_mut().enumerate().take(columns.saturating_sub(i)) {
                        let row = &b.values[(column + i + c) * b.column_stride + from..];
                        prefetch(row, AHEAD * BLOCK * per_word);
                        along(&row[..to - from], precision, line);
                    }
                    transpose(&mut block);
                    let lines = target[j * BLOCK * COLUMNS..].as_chunks_mut::<COLUMNS>().0;
                    for (line, target) in block.iter().take(words.len()).zip(lines) {
                        *target[i..].first_chunk_mut().expect("half a line") = *line;
                    }
                }
            }
        }
    }
}

/// Prefetches the value `ahead` positions after the start of `values`.
#[inline(always)]
fn prefetch(values: &[f32], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch may use any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().wrapping_add(ahead).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, ahead);
}

/// Packs the [`COLUMNS`] columns of `b` from `column` in INT8, two bytes per column and line, and writes the largest magnitude of each to
/// `absmax`.
pub(super) fn pack_bytes(target: &mut [u32], absmax: &mut [f32], b: &Mat<'_>, column: usize) {
    let columns = (b.columns - column).min(COLUMNS);
    // With baseline instructions alone, a panel at a time would be slow. So its rows go through vector code.
    let mut numbers = vec![0.0f32; b.rows.next_multiple_of(2) * COLUMNS];
    for (k, line) in numbers.chunks_exact_mut(COLUMNS).enumerate().take(b.rows) {
        for (c, number) in line.iter_mut().enumerate().take(columns) {
            *number = b.values[k * b.row_stride + (column + c) * b.column_stride];
        }
    }
    quantize(target, absmax, &numbers);
}

simd! {
    /// Converts lines of [`COLUMNS`] numbers to bytes: `round(127 x / absmax)`, where `absmax` is the column's largest magnitude.
    fn quantize(target: &mut [u32], absmax: &mut [f32], numbers: &[f32]) {
        /// 1.5 · 2²³: adding it rounds to an integer, which the lowest bits then hold.
        const ROUND: f32 = 12_582_912.0;
        let mut largest = [0.0f32; COLUMNS];
        for line in numbers.as_chunks::<COLUMNS>().0 {
            for (largest, x) in largest.iter_mut().zip(line) {
                *largest = if x.abs() > *largest { x.abs() } else { *largest };
            }
        }
        let inverse = largest.map(|largest| if largest > 0.0 { 127.0 / largest } else { 0.0 });
        absmax.copy_from_slice(&largest);
        let byte = |x: f32, inverse: f32| (x * inverse + ROUND).to_bits() & 0xff;
        for (lines, target) in numbers.as_chunks::<{ 2 * COLUMNS }>().0.iter().zip(target.chunks_exact_mut(COLUMNS / 2)) {
            let (first, second) = lines.split_at(COLUMNS);
            let mut pairs = [0u32; COLUMNS];
            for (c, pair) in pairs.iter_mut().enumerate() {
                *pair = byte(first[c], inverse[c]) | byte(second[c], inverse[c]) << 8;
            }
            for (word, pairs) in target.iter_mut().zip(pairs.as_chunks::<2>().0) {
                *word = pairs[0] | pairs[1] << 16;
            }
        }
    }
}

/// Words `words` of rows `rows` of a matrix stored column by column, one line per word.
#[inline(always)]
fn lines(a: &Mat<'_>, rows: &Range<usize>, words: &Range<usize>, precision: Precision) -> [[u32; BLOCK]; BLOCK] {
    let mut block = [[0u32; BLOCK]; BLOCK];
    let per_word = precision.per_word();
    let column = |k: usize| {
        let values = &a.values[k * a.column_stride + rows.start..][..rows.len()];
        prefetch(values, BLOCK * per_word * a.column_stride);
        padded(values)
    };
    for (word, line) in words.clone().zip(&mut block) {
        let second = if per_word == 2 && 2 * word + 1 < a.columns { column(2 * word + 1) } else { [0.0; BLOCK] };
        across(&column(per_word * word), &second, precision, line);
    }
    block
}

/// `range` in parts of [`BLOCK`].
fn blocks(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.clone().step_by(BLOCK).map(move |from| from..(from + BLOCK).min(end))
}

const _: () = assert!(DEPTH.is_multiple_of(BLOCK) && COLUMNS.is_multiple_of(BLOCK));
