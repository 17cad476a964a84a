//! Micro-kernels: one tile of up to [`ROWS`] × [`COLUMNS`] results, held in registers.
//!
//! Operands are words of 32 bits: one f32, or two bf16 that are neighbors along the inner dimension. A tile reads one word of each of its
//! rows of A at a time, broadcast, and one line of [`COLUMNS`] words of B. Lines of INT8 hold two bytes per column, which are widened
//! exactly to bf16 as they are read. Every result is summed over the inner dimension in order, so it does not depend on its tile.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

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
    /// AVX2 with fused multiply-adds; bf16 is widened to f32.
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
                (Self::Avx2, Lines::F32) => avx2::f32_tile(tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2, Lines::Bf16) => avx2::bf16_tile(tile),
                #[cfg(target_arch = "x86_64")]
                (Self::Avx2, Lines::Int8) => avx2::int8_tile(tile),
                (Self::Portable, Lines::F32) => portable::f32_tile::<{ portable::FUSED }>(tile),
                (Self::Portable, Lines::Bf16) => portable::bf16_tile::<{ portable::FUSED }>(tile),
                (Self::Portable, Lines::Int8) => portable::int8_tile::<{ portable::FUSED }>(tile),
            }
        }
    }
}
