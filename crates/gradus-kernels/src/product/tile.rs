//! Micro-kernels: one tile of up to [`ROWS`] × [`COLUMNS`] results, held in registers.
//!
//! Operands are words of 32 bits: one f32, or two bf16 that are neighbors along the inner dimension. A tile reads one word of each of its
//! rows of A at a time, broadcast, and one line of [`COLUMNS`] words of B. Lines of INT8 hold two bytes per column, which are widened
//! exactly to bf16 as they are read. Every result is summed over the inner dimension in order, so it does not depend on its tile.

use std::sync::OnceLock;

use super::format::Precision;

/// Rows per tile.
pub(super) const ROWS: usize = 12;
/// Columns per tile: two AVX-512 registers.
pub(super) const COLUMNS: usize = 32;
/// Words of the inner dimension per stretch. A panel of B (32 KiB) stays in the first-level cache.
pub(super) const DEPTH: usize = 256;
/// Parts of the inner dimension begin at multiples of this number, so they contain whole blocks of all formats.
pub(super) const DEPTH_UNIT: usize = 64;
/// Words from one packed row of A to the next: a little over [`DEPTH`], so that rows do not share cache sets.
pub(super) const ROW_STRIDE: usize = DEPTH + 16;

impl Precision {
    /// Numbers per word.
    pub(super) fn per_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// Storage format of a panel's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lines {
    /// One word per column: one f32.
    F32,
    /// One word per column: two bf16.
    Bf16,
    /// Two bytes per column.
    Int8,
}

impl Lines {
    /// Precision of the other operand.
    pub(super) fn operand(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 | Self::Int8 => Precision::Bf16,
        }
    }

    /// Words of a line of [`COLUMNS`].
    pub(super) fn width(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => COLUMNS,
            Self::Int8 => COLUMNS / 2,
        }
    }
}

impl From<Precision> for Lines {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

/// One tile: `c = scale · Σ a·b` over `depth` words, or `c += …` if `add`. If `scales` is not null, each column is also multiplied by its
/// entry.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// First row of A, rows [`ROW_STRIDE`] apart.
    pub a: *const u32,
    /// Panel of B: `depth` lines.
    pub b: *const u32,
    /// First result, rows `c_stride` apart.
    pub c: *mut f32,
    pub c_stride: usize,
    pub depth: usize,
    pub rows: usize,
    pub columns: usize,
    pub scale: f32,
    pub scales: *const f32,
    /// Start values if not `add`, one number per column; null means 0.
    pub start: *const f32,
    pub add: bool,
}

/// Instruction sets that have kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// Plain loops, vectorized by the compiler for the target's baseline.
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
    /// Kernels that this CPU runs, the fastest last.
    pub(super) fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "no other kernel there"))]
        let mut kernels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if crate::simd::has_avx2() && has!("fma") {
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

    /// The fastest kernel that this CPU runs.
    pub(super) fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        let best = || *Self::available().last().expect("the portable kernel is always there");
        // In tests, threads may have different limits.
        if cfg!(test) { best() } else { *BEST.get_or_init(best) }
    }

    /// Computes one tile.
    ///
    /// # Safety
    /// The pointers of `tile` must cover the sizes in `tile`, `rows ≤ ROWS`, `columns ≤ COLUMNS`, and the CPU must have the instruction set
    /// of `self`.
    #[inline]
    pub(super) unsafe fn run(self, lines: Lines, tile: Tile) {
        debug_assert!((1..=ROWS).contains(&tile.rows) && (1..=COLUMNS).contains(&tile.columns));
        #[cfg(target_arch = "x86_64")]
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
        // SAFETY: the caller upholds the contract.
        unsafe {
            match (self, lines) {
                #[cfg(target_arch = "x86_64")]
                (Self::Avx512 | Self::Avx512Bf16, Lines::F32) => by_rows!(avx512::f32_tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx512Bf16, Lines::Bf16) => by_rows!(avx512::bf16_tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx512Bf16, Lines::Int8) => by_rows!(avx512::int8_tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx512, Lines::Bf16) => by_rows!(avx512::widened_bf16_tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx512, Lines::Int8) => by_rows!(avx512::widened_int8_tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2, Lines::F32) => portable::avx2_f32_tile(tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2, Lines::Bf16) => portable::avx2_bf16_tile(tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2, Lines::Int8) => portable::avx2_int8_tile(tile),
                (Self::Portable, Lines::F32) => portable::f32_tile::<{ portable::FUSED }>(tile),
                (Self::Portable, Lines::Bf16) => portable::bf16_tile::<{ portable::FUSED }>(tile),
                (Self::Portable, Lines::Int8) => portable::int8_tile::<{ portable::FUSED }>(tile),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
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
}

mod portable {
    use super::{COLUMNS, ROW_STRIDE, Tile};

    /// Whether the target's baseline multiplies and adds in one instruction.
    pub(super) const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    /// Returns the two numbers of a bf16 word, the first from its lower half.
    #[inline(always)]
    fn halves(word: u32) -> [f32; 2] {
        [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
    }

    /// A tile of f32.
    ///
    /// # Safety
    /// As for `Kernel::run`; the same holds for the other tiles.
    #[inline(always)]
    pub(super) unsafe fn f32_tile<const F: bool>(tile: Tile) {
        let number = |word| [f32::from_bits(word)];
        // SAFETY: the caller upholds the contract.
        unsafe { self::tile::<1, F>(tile, number, |b, at| number(*b.add(at))) }
    }

    /// A tile of bf16.
    #[inline(always)]
    pub(super) unsafe fn bf16_tile<const F: bool>(tile: Tile) {
        // SAFETY: the caller upholds the contract.
        unsafe { self::tile::<2, F>(tile, halves, |b, at| halves(*b.add(at))) }
    }

    /// A tile whose B is in INT8.
    #[inline(always)]
    pub(super) unsafe fn int8_tile<const F: bool>(tile: Tile) {
        // SAFETY: the caller upholds the contract; a line holds two bytes per column.
        unsafe { self::tile::<2, F>(tile, halves, |b, at| (*b.cast::<[i8; 2]>().add(at)).map(f32::from)) }
    }

    macro_rules! compiled_for_avx2 {
        ($($name:ident: $tile:ident),*) => {$(
            /// The same tile, compiled for AVX2.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            pub(super) unsafe fn $name(tile: Tile) {
                // SAFETY: the caller upholds the contract.
                unsafe { $tile::<true>(tile) }
            }
        )*};
    }
    compiled_for_avx2!(avx2_f32_tile: f32_tile, avx2_bf16_tile: bf16_tile, avx2_int8_tile: int8_tile);

    /// Rows per pass: their sums and a line of B fill the registers of AVX2.
    const AT_ONCE: usize = 2;

    /// Computes one tile in plain loops. `of_a` splits a word of A into `N` numbers; `of_b` reads `N` numbers at a position of a panel.
    #[inline(always)]
    unsafe fn tile<const N: usize, const F: bool>(
        tile: Tile,
        of_a: impl Fn(u32) -> [f32; N] + Copy,
        of_b: impl Fn(*const u32, usize) -> [f32; N] + Copy,
    ) {
        for from in (0..tile.rows).step_by(AT_ONCE) {
            // SAFETY: `from` is below `rows`.
            let (a, c) = unsafe { (tile.a.add(from * ROW_STRIDE), tile.c.add(from * tile.c_stride)) };
            let part = Tile { a, c, ..tile };
            // SAFETY: this is a part of the caller's tile.
            unsafe {
                match tile.rows - from {
                    1 => sums::<1, N, F>(part, of_a, of_b),
                    _ => sums::<AT_ONCE, N, F>(part, of_a, of_b),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn sums<const R: usize, const N: usize, const F: bool>(
        tile: Tile,
        of_a: impl Fn(u32) -> [f32; N] + Copy,
        of_b: impl Fn(*const u32, usize) -> [f32; N] + Copy,
    ) {
        let mut sums = [[0.0f32; COLUMNS]; R];
        for k in 0..tile.depth {
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: row `r` has `depth` words.
                let a = of_a(unsafe { *tile.a.add(r * ROW_STRIDE + k) });
                for (column, sum) in sums.iter_mut().enumerate() {
                    let b = of_b(tile.b, k * COLUMNS + column);
                    for n in 0..N {
                        *sum = if F { a[n].mul_add(b[n], *sum) } else { *sum + a[n] * b[n] };
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (column, sum) in sums.iter().enumerate().take(tile.columns) {
                // SAFETY: scales and starts have one number per column, and the tile's results are at `c`. The old result is read only if
                // it is added to.
                unsafe {
                    let own = if tile.scales.is_null() { 1.0 } else { *tile.scales.add(column) };
                    let result = tile.c.add(r * tile.c_stride + column);
                    let before = match (tile.add, tile.start.is_null()) {
                        (true, _) => *result,
                        (false, true) => 0.0,
                        (false, false) => *tile.start.add(column),
                    };
                    *result = before + sum * (tile.scale * own);
                }
            }
        }
    }
}
