//! Tiles in AVX-512. A row of a tile is two registers; CPUs without products of bf16 pairs widen them to f32.

use std::arch::x86_64::*;

use super::{COLUMNS, DEPTH, ROW_STRIDE, Tile};

/// Masks of the lanes that are columns of the result, for both registers.
#[inline(always)]
fn masks(columns: usize) -> [__mmask16; 2] {
    let mask = |n: usize| ((1u32 << n.min(16)) - 1) as __mmask16;
    [mask(columns), mask(columns.saturating_sub(16))]
}

macro_rules! tile_kernel {
    ($(#[$meta:meta])* $name:ident, $features:literal, $load:ident, |$a:ident, $b:ident, $acc:ident| $step:expr) => {
        $(#[$meta])*
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name<const R: usize>(tile: Tile) {
            // SAFETY: the caller's promise of `Kernel::run`.
            unsafe {
                let Tile { a, b, c, c_stride, depth, columns, scale, scales, start, add, .. } = tile;
                let scale = _mm512_set1_ps(scale);
                let masks = masks(columns);
                for r in 0..R {
                    _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(r * c_stride).cast());
                    _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(r * c_stride + 16).cast());
                }
                let mut sums = [[_mm512_setzero_ps(); 2]; R];
                for k in 0..depth {
                    let line = $load(b, k);
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let $a = _mm512_set1_epi32(*a.add(r * ROW_STRIDE + k) as i32);
                        for ($acc, $b) in sums.iter_mut().zip(line) {
                            *$acc = $step;
                        }
                    }
                }
                let mut factors = [scale; 2];
                if !scales.is_null() {
                    for i in 0..2 {
                        factors[i] = _mm512_mul_ps(scale, _mm512_maskz_loadu_ps(masks[i], scales.wrapping_add(i * 16)));
                    }
                }
                let mut starts = [_mm512_setzero_ps(); 2];
                if !start.is_null() {
                    for i in 0..2 {
                        starts[i] = _mm512_maskz_loadu_ps(masks[i], start.wrapping_add(i * 16));
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    for i in 0..2 {
                        let to = c.wrapping_add(r * c_stride + i * 16);
                        let before = if add { _mm512_maskz_loadu_ps(masks[i], to) } else { starts[i] };
                        _mm512_mask_storeu_ps(to, masks[i], _mm512_add_ps(_mm512_mul_ps(sums[i], factors[i]), before));
                    }
                }
            }
        }
    };
}

/// Loads line `k` of words. Prefetches the next stretch of the panel while arithmetic keeps the units busy.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn words(b: *const u32, k: usize) -> [__m512i; 2] {
    let line = b.wrapping_add(k * COLUMNS);
    // SAFETY: the panel has line `k`; a prefetch may use any address.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(DEPTH * COLUMNS).cast());
        _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(DEPTH * COLUMNS + 16).cast());
        [_mm512_loadu_si512(line.cast()), _mm512_loadu_si512(line.add(16).cast())]
    }
}

/// Loads line `k` of bytes, widened to bf16. An integer up to 127 as f32 has zeros in its lower half.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn bytes(b: *const u32, k: usize) -> [__m512i; 2] {
    let line = b.wrapping_add(k * COLUMNS / 2);
    let widened = |pairs: __m256i| {
        let pairs = _mm512_cvtepi16_epi32(pairs);
        let first = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(pairs)));
        let second = _mm512_cvtepi32_ps(_mm512_srai_epi32::<8>(pairs));
        let first = _mm512_srli_epi32::<16>(_mm512_castps_si512(first));
        _mm512_or_si512(first, _mm512_castps_si512(second))
    };
    // SAFETY: as in `words`.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(DEPTH * COLUMNS / 2).cast());
        [widened(_mm256_loadu_si256(line.cast())), widened(_mm256_loadu_si256(line.add(8).cast()))]
    }
}

/// `acc + a₀b₀ + a₁b₁` of bf16 pairs, widened to f32 by shifting.
#[target_feature(enable = "avx512f")]
#[inline]
fn widened_step(a: __m512i, b: __m512i, acc: __m512) -> __m512 {
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let odd = |x| _mm512_castsi512_ps(_mm512_and_si512(x, high));
    let even = |x| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x));
    _mm512_fmadd_ps(odd(a), odd(b), _mm512_fmadd_ps(even(a), even(b), acc))
}

/// `acc + a₀b₀ + a₁b₁` of bf16 pairs.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn pair_step(a: __m512i, b: __m512i, acc: __m512) -> __m512 {
    // SAFETY: both types are plain 512 bits.
    let [a, b] = [a, b].map(|x| unsafe { std::mem::transmute::<__m512i, __m512bh>(x) });
    _mm512_dpbf16_ps(acc, a, b)
}

tile_kernel!(f32_tile, "avx512f", words, |a, b, acc| _mm512_fmadd_ps(
    _mm512_castsi512_ps(a),
    _mm512_castsi512_ps(b),
    *acc
));
tile_kernel!(bf16_tile, "avx512f,avx512bf16", words, |a, b, acc| pair_step(a, b, *acc));
tile_kernel!(int8_tile, "avx512f,avx512bf16", bytes, |a, b, acc| pair_step(a, b, *acc));
tile_kernel!(
    /// For CPUs without bf16 products.
    widened_bf16_tile, "avx512f", words, |a, b, acc| widened_step(a, b, *acc)
);
tile_kernel!(
    /// For CPUs without bf16 products.
    widened_int8_tile, "avx512f", bytes, |a, b, acc| widened_step(a, b, *acc)
);
