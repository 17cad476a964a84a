//! Micro-kernels: one tile of up to [`ROWS`] × [`COLUMNS`] results, held in registers.
//!
//! Operands are words of 32 bits: one f32, or two bf16 that are neighbours along the inner dimension. A tile reads its
//! rows of A one word at a time, broadcast, and its columns of B a line of [`COLUMNS`] words at a time. Every result is
//! summed over the inner dimension in order, so it does not depend on which tile it falls into.

use std::sync::OnceLock;

/// Rows of a tile.
pub(super) const ROWS: usize = 12;
/// Columns of a tile: two AVX-512 registers.
pub(super) const COLUMNS: usize = 32;
/// Words of the inner dimension taken at a time: a panel of B (32 KiB) stays in the first-level cache.
pub(super) const DEPTH: usize = 256;
/// Words from one packed row of A to the next: a little over [`DEPTH`], so that rows do not share cache sets.
pub(super) const ROW_STRIDE: usize = DEPTH + 16;

/// How operands are held while they are multiplied; sums are in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16: the upper half of an f32, rounded to nearest even.
    Bf16,
}

impl Precision {
    /// Numbers in a word.
    pub(super) fn per_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// One tile: `c = scale · Σ a·b` over `depth` words, or `c += …` where `add`.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// First row of A, rows [`ROW_STRIDE`] apart.
    pub a: *const u32,
    /// Panel of B: `depth` lines of [`COLUMNS`] words.
    pub b: *const u32,
    /// First result, rows `c_stride` apart.
    pub c: *mut f32,
    pub c_stride: usize,
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    pub scale: f32,
    pub add: bool,
}

/// The instruction sets there are kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// Plain loops, vectorised by the compiler for the baseline of the target.
    Portable,
    /// The same loops compiled for AVX2 with fused multiply-adds.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 for f32; bf16 is widened to f32.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with products of bf16 pairs.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Kernel {
    /// Those that this processor runs, the fastest last.
    pub(super) fn available() -> Vec<Self> {
        let mut kernels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") {
                kernels.push(Self::Avx2);
            }
            if crate::simd::has_avx512() {
                kernels.push(Self::Avx512);
                if has!("avx512bf16") {
                    kernels.push(Self::Avx512Bf16);
                }
            }
        }
        kernels
    }

    /// The fastest that this processor runs.
    pub(super) fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().expect("the portable kernel is always there"))
    }

    /// Computes one tile.
    ///
    /// # Safety
    /// The pointers of `tile` must cover what its sizes say, `rows ≤ ROWS`, `columns ≤ COLUMNS`, and the processor must
    /// have what `self` names.
    #[inline]
    pub(super) unsafe fn run(self, precision: Precision, tile: Tile) {
        debug_assert!((1..=ROWS).contains(&tile.rows) && (1..=COLUMNS).contains(&tile.columns));
        macro_rules! by_rows {
            ($($kernel:ident)::+) => {
                match tile.rows {
                    1 => $($kernel)::+::<1>(tile),
                    2 => $($kernel)::+::<2>(tile),
                    3 => $($kernel)::+::<3>(tile),
                    4 => $($kernel)::+::<4>(tile),
                    5 => $($kernel)::+::<5>(tile),
                    6 => $($kernel)::+::<6>(tile),
                    7 => $($kernel)::+::<7>(tile),
                    8 => $($kernel)::+::<8>(tile),
                    9 => $($kernel)::+::<9>(tile),
                    10 => $($kernel)::+::<10>(tile),
                    11 => $($kernel)::+::<11>(tile),
                    _ => $($kernel)::+::<12>(tile),
                }
            };
        }
        // SAFETY: passed on from the caller.
        unsafe {
            match (self, precision) {
                #[cfg(target_arch = "x86_64")]
                (Self::Avx512 | Self::Avx512Bf16, Precision::F32) => by_rows!(avx512::f32_tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx512Bf16, Precision::Bf16) => by_rows!(avx512::bf16_tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx512, Precision::Bf16) => by_rows!(avx512::widened_tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2, Precision::F32) => portable::avx2_f32_tile(tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2, Precision::Bf16) => portable::avx2_bf16_tile(tile),
                (Self::Portable, Precision::F32) => portable::tile::<1, { portable::FUSED }>(tile, portable::whole),
                (Self::Portable, Precision::Bf16) => portable::tile::<2, { portable::FUSED }>(tile, portable::halves),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{COLUMNS, DEPTH, ROW_STRIDE, Tile};

    /// Which of the two registers' lanes are columns of the result.
    #[inline(always)]
    fn masks(columns: usize) -> [__mmask16; 2] {
        let mask = |n: usize| ((1u32 << n.min(16)) - 1) as __mmask16;
        [mask(columns), mask(columns.saturating_sub(16))]
    }

    macro_rules! tile_kernel {
        ($(#[$meta:meta])* $name:ident, $features:literal, |$a:ident, $b:ident, $acc:ident| $step:expr) => {
            $(#[$meta])*
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name<const R: usize>(tile: Tile) {
                // SAFETY: the caller's promise of `Kernel::run`.
                unsafe {
                    let Tile { a, b, c, c_stride, depth, columns, scale, add, .. } = tile;
                    let scale = _mm512_set1_ps(scale);
                    let masks = masks(columns);
                    for r in 0..R {
                        _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(r * c_stride).cast());
                        _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(r * c_stride + 16).cast());
                    }
                    let mut sums = [[_mm512_setzero_ps(); 2]; R];
                    for k in 0..depth {
                        let line = b.add(k * COLUMNS);
                        // What follows this stretch of the panel comes from memory while there is arithmetic to do.
                        _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(DEPTH * COLUMNS).cast());
                        _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(DEPTH * COLUMNS + 16).cast());
                        let line = [_mm512_loadu_si512(line.cast()), _mm512_loadu_si512(line.add(16).cast())];
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let $a = _mm512_set1_epi32(*a.add(r * ROW_STRIDE + k) as i32);
                            for ($acc, $b) in sums.iter_mut().zip(line) {
                                *$acc = $step;
                            }
                        }
                    }
                    for (r, sums) in sums.iter().enumerate() {
                        for i in 0..2 {
                            let to = c.wrapping_add(r * c_stride + i * 16);
                            let before = if add { _mm512_maskz_loadu_ps(masks[i], to) } else { _mm512_setzero_ps() };
                            _mm512_mask_storeu_ps(to, masks[i], _mm512_add_ps(_mm512_mul_ps(sums[i], scale), before));
                        }
                    }
                }
            }
        };
    }

    tile_kernel!(f32_tile, "avx512f", |a, b, acc| _mm512_fmadd_ps(
        _mm512_castsi512_ps(a),
        _mm512_castsi512_ps(b),
        *acc
    ));

    tile_kernel!(bf16_tile, "avx512f,avx512bf16", |a, b, acc| _mm512_dpbf16_ps(
        *acc,
        std::mem::transmute::<__m512i, __m512bh>(a),
        std::mem::transmute::<__m512i, __m512bh>(b)
    ));

    tile_kernel!(
        /// Both halves widened to f32 by shifting: for processors without products of bf16.
        widened_tile,
        "avx512f",
        |a, b, acc| {
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            let odd = |x| _mm512_castsi512_ps(_mm512_and_si512(x, high));
            let even = |x| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x));
            _mm512_fmadd_ps(odd(a), odd(b), _mm512_fmadd_ps(even(a), even(b), *acc))
        }
    );
}

mod portable {
    use super::{COLUMNS, ROW_STRIDE, Tile};

    /// Whether the target's baseline multiplies and adds in one instruction.
    pub(super) const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    /// The number of a word of f32.
    #[inline(always)]
    pub(super) fn whole(word: u32) -> [f32; 1] {
        [f32::from_bits(word)]
    }

    /// The two numbers of a word of bf16, the first in its lower half.
    #[inline(always)]
    pub(super) fn halves(word: u32) -> [f32; 2] {
        [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
    }

    /// [`tile`] of f32, compiled for AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2_f32_tile(tile: Tile) {
        // SAFETY: as `Kernel::run`.
        unsafe { self::tile::<1, true>(tile, whole) }
    }

    /// [`tile`] of bf16, compiled for AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2_bf16_tile(tile: Tile) {
        // SAFETY: as `Kernel::run`.
        unsafe { self::tile::<2, true>(tile, halves) }
    }

    /// Rows taken together: their sums and a line of B fill the registers of AVX2.
    const AT_ONCE: usize = 2;

    /// One tile in plain loops; a word holds `N` numbers.
    ///
    /// # Safety
    /// As `Kernel::run`.
    #[inline(always)]
    pub(super) unsafe fn tile<const N: usize, const F: bool>(tile: Tile, numbers: impl Fn(u32) -> [f32; N] + Copy) {
        for from in (0..tile.rows).step_by(AT_ONCE) {
            // SAFETY: `from` is below `rows`.
            let (a, c) = unsafe { (tile.a.add(from * ROW_STRIDE), tile.c.add(from * tile.c_stride)) };
            let part = Tile { a, c, ..tile };
            // SAFETY: a part of the caller's tile.
            unsafe {
                match tile.rows - from {
                    1 => sums::<1, N, F>(part, numbers),
                    _ => sums::<AT_ONCE, N, F>(part, numbers),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn sums<const R: usize, const N: usize, const F: bool>(
        tile: Tile,
        numbers: impl Fn(u32) -> [f32; N] + Copy,
    ) {
        let mut sums = [[0.0f32; COLUMNS]; R];
        for k in 0..tile.depth {
            // SAFETY: the panel has `depth` lines.
            let line = unsafe { &*tile.b.add(k * COLUMNS).cast::<[u32; COLUMNS]>() };
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: row `r` has `depth` words.
                let a = numbers(unsafe { *tile.a.add(r * ROW_STRIDE + k) });
                for (sum, &word) in sums.iter_mut().zip(line) {
                    for (a, b) in a.iter().zip(numbers(word)) {
                        *sum = if F { a.mul_add(b, *sum) } else { *sum + a * b };
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            // SAFETY: the tile's results lie at `c`.
            let results = unsafe { std::slice::from_raw_parts_mut(tile.c.add(r * tile.c_stride), tile.columns) };
            for (result, sum) in results.iter_mut().zip(sums) {
                let scaled = sum * tile.scale;
                *result = if tile.add { *result + scaled } else { scaled };
            }
        }
    }
}
