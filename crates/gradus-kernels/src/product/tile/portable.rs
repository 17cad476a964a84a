//! Tiles in plain loops, for all CPUs.

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

/// Rows per pass.
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
    let mut factors = [tile.scale; COLUMNS];
    if !tile.scales.is_null() {
        for (column, factor) in factors.iter_mut().enumerate().take(tile.columns) {
            // SAFETY: there is one scale per column.
            *factor *= unsafe { *tile.scales.add(column) };
        }
    }
    // The loop over `tile.columns` below has no fixed length. If it read `sums`, the compiler would keep them in memory, one number each,
    // and not vectorize the loop above. So it reads a copy.
    let mut results = sums;
    for sums in &mut results {
        for (sum, factor) in sums.iter_mut().zip(&factors) {
            *sum *= factor;
        }
    }
    for (r, results) in results.iter().enumerate() {
        for (column, &result) in results.iter().enumerate().take(tile.columns) {
            // SAFETY: starts have one number per column, and the tile's results are at `c`. The old result is read only if it is added to.
            unsafe {
                let to = tile.c.add(r * tile.c_stride + column);
                let before = match (tile.add, tile.start.is_null()) {
                    (true, _) => *to,
                    (false, true) => 0.0,
                    (false, false) => *tile.start.add(column),
                };
                *to = before + result;
            }
        }
    }
}
