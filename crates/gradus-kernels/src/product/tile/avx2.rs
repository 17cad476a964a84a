//! Tiles in AVX2 with fused multiply-adds. A tile is computed in parts of 16 columns and a few rows, whose sums fit into the 16 registers.

use std::arch::x86_64::*;

use super::{COLUMNS, ROW_STRIDE, Tile};

/// Columns per part: two registers.
const PART_COLUMNS: usize = 16;

/// Defines the kernel `$name`, which computes `$rows` rows at once. `$line` loads the numbers of 16 columns of B, `$broadcast` those of a
/// word of A. Their products are added in order, as all kernels do.
macro_rules! tile_kernel {
    ($name:ident, $rows:literal, $line:ident, $broadcast:ident) => {
        #[target_feature(enable = "avx2,fma")]
        pub(super) unsafe fn $name(tile: Tile) {
            /// Computes `R` rows from `row` and 16 columns from `column`.
            #[target_feature(enable = "avx2,fma")]
            unsafe fn part<const R: usize>(tile: &Tile, row: usize, column: usize) {
                // SAFETY: the caller's promise of `Kernel::run`.
                unsafe {
                    let a = tile.a.add(row * ROW_STRIDE);
                    for r in 0..R {
                        _mm_prefetch::<_MM_HINT_T0>(tile.c.wrapping_add((row + r) * tile.c_stride + column).cast());
                    }
                    let mut sums = [[_mm256_setzero_ps(); 2]; R];
                    for k in 0..tile.depth {
                        let line = $line(tile.b, k * COLUMNS + column);
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let numbers = $broadcast(*a.add(r * ROW_STRIDE + k));
                            for (a, b) in numbers.into_iter().zip(line) {
                                for (sum, b) in sums.iter_mut().zip(b) {
                                    *sum = _mm256_fmadd_ps(a, b, *sum);
                                }
                            }
                        }
                    }
                    store(tile, row, column, &sums);
                }
            }
            for column in (0..tile.columns).step_by(PART_COLUMNS) {
                for row in (0..tile.rows).step_by($rows) {
                    // SAFETY: the part is inside the caller's tile.
                    unsafe {
                        match (tile.rows - row).min($rows) {
                            1 => part::<1>(&tile, row, column),
                            2 => part::<2>(&tile, row, column),
                            3 => part::<3>(&tile, row, column),
                            4 => part::<4>(&tile, row, column),
                            5 => part::<5>(&tile, row, column),
                            _ => part::<$rows>(&tile, row, column),
                        }
                    }
                }
            }
        }
    };
}

tile_kernel!(f32_tile, 6, f32_line, broadcast_f32);
tile_kernel!(bf16_tile, 4, bf16_line, broadcast_bf16);
tile_kernel!(int8_tile, 4, int8_line, broadcast_bf16);

/// Scales the sums of 16 columns from `column` and writes them to their rows.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn store<const R: usize>(tile: &Tile, row: usize, column: usize, sums: &[[__m256; 2]; R]) {
    let scale = _mm256_set1_ps(tile.scale);
    for i in 0..2 {
        let column = column + i * 8;
        let left = tile.columns.saturating_sub(column).min(8) as i32;
        let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        // SAFETY: scales and starts have one number per column, and the tile's results are at `c`. The mask hides all other lanes.
        unsafe {
            let factors = if tile.scales.is_null() {
                scale
            } else {
                _mm256_mul_ps(scale, _mm256_maskload_ps(tile.scales.wrapping_add(column), mask))
            };
            let starts = if tile.start.is_null() {
                _mm256_setzero_ps()
            } else {
                _mm256_maskload_ps(tile.start.wrapping_add(column), mask)
            };
            for (r, sums) in sums.iter().enumerate() {
                let to = tile.c.wrapping_add((row + r) * tile.c_stride + column);
                let before = if tile.add { _mm256_maskload_ps(to, mask) } else { starts };
                let result = _mm256_add_ps(_mm256_mul_ps(sums[i], factors), before);
                // A masked store is slow on some CPUs.
                if left == 8 {
                    _mm256_storeu_ps(to, result);
                } else {
                    _mm256_maskstore_ps(to, mask, result);
                }
            }
        }
    }
}

/// Loads the words of 16 columns, at word `at` of a panel.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn words(b: *const u32, at: usize) -> [__m256i; 2] {
    // SAFETY: the panel has these words.
    unsafe { [_mm256_loadu_si256(b.add(at).cast()), _mm256_loadu_si256(b.add(at + 8).cast())] }
}

/// The first numbers of pairs of bf16, as f32.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn firsts(pairs: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))
}

/// The second numbers of pairs of bf16, as f32.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn seconds(pairs: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32)))
}

#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn f32_line(b: *const u32, at: usize) -> [[__m256; 2]; 1] {
    // SAFETY: as in `words`.
    let [left, right] = unsafe { words(b, at) };
    [[_mm256_castsi256_ps(left), _mm256_castsi256_ps(right)]]
}

#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn bf16_line(b: *const u32, at: usize) -> [[__m256; 2]; 2] {
    // SAFETY: as in `words`.
    let [left, right] = unsafe { words(b, at) };
    [[firsts(left), firsts(right)], [seconds(left), seconds(right)]]
}

#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn int8_line(b: *const u32, at: usize) -> [[__m256; 2]; 2] {
    // SAFETY: a line holds two bytes per column.
    let pairs = unsafe { _mm256_loadu_si256(b.cast::<u16>().add(at).cast()) };
    let left = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(pairs));
    let right = _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(pairs));
    let first = |pairs| _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(pairs)));
    let second = |pairs| _mm256_cvtepi32_ps(_mm256_srai_epi32::<8>(pairs));
    [[first(left), first(right)], [second(left), second(right)]]
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn broadcast_f32(word: u32) -> [__m256; 1] {
    [_mm256_set1_ps(f32::from_bits(word))]
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn broadcast_bf16(word: u32) -> [__m256; 2] {
    let pairs = _mm256_set1_epi32(word as i32);
    [firsts(pairs), seconds(pairs)]
}
