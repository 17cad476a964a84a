//! Peak rates of this machine, with which training and sampling are compared.

use std::time::Instant;

use rayon::prelude::*;

use crate::product::{Mat, Precision, Product, one_tile};
use crate::simd::simd;

/// Rows and columns of the product. The size makes the cost of the edges negligible and still takes only moments.
const SIZE: usize = 2048;

/// Tiles per thread: some tens of milliseconds.
const TILES: usize = 50_000;

/// Words that the bandwidth probe reads: 512 MiB, more than any last-level cache that a thread reaches.
const WORDS: usize = 64 << 20;

/// Words per parallel task.
const CHUNK: usize = 64 << 10;

/// GFLOP/s (10⁹ additions and multiplications per second) of a 2048³ matrix product on all threads with operands in `precision`. Returns
/// the best of `repetitions`, because other load can only slow a product down.
///
/// The product runs the same code as every linear layer.
pub fn matrix_gflops(precision: Precision, repetitions: usize) -> f64 {
    // Small values, because denormal or infinite ones could change the speed.
    let matrix = |seed: usize| (0..SIZE * SIZE).map(|i| ((i * 7 + seed) % 64) as f32 / 64.0 - 0.5).collect::<Vec<_>>();
    let (a, b) = (matrix(1), matrix(5));
    let mut output = vec![0.0f32; SIZE * SIZE];
    let mut product = || {
        let (a, b) = (Mat::dense(&a, SIZE, SIZE), Mat::dense(&b, SIZE, SIZE));
        Product::new(precision).store(&mut output, SIZE, a, b);
    };
    2.0 * (SIZE as f64).powi(3) / fastest(repetitions, &mut product) / 1e9
}

/// GFLOP/s of the inner loop of products alone, on all threads, the best of `repetitions`. It computes one tile repeatedly, with operands
/// in the first-level cache. This is the rate of the multiply-add units, which no product can exceed.
pub fn arithmetic_gflops(precision: Precision, repetitions: usize) -> f64 {
    let threads = rayon::current_num_threads();
    let mut work = 0;
    let mut run = || work = (0..threads).into_par_iter().map(|_| one_tile(precision, TILES)).sum();
    let seconds = fastest(repetitions, &mut run);
    work as f64 / seconds / 1e9
}

/// GB/s (10⁹ bytes per second) that all threads together read from memory, the best of `repetitions` over 512 MiB.
pub fn read_gb_s(repetitions: usize) -> f64 {
    let words: Vec<u64> = (0..WORDS as u64).collect();
    let mut total = 0u64;
    let mut read = || {
        total = total.wrapping_add(words.par_chunks(CHUNK).map(sum).reduce(|| 0, u64::wrapping_add));
    };
    let seconds = fastest(repetitions, &mut read);
    // The sum is used, so the compiler cannot remove the reads.
    std::hint::black_box(total);
    size_of_val(&words[..]) as f64 / seconds / 1e9
}

simd! {
    /// Integer additions may be reordered, so the compiler runs many of them in parallel.
    fn sum(words: &[u64]) -> u64 {
        words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
    }
}

/// Seconds of the fastest of `repetitions` runs (at least one), after one uncounted run.
fn fastest(repetitions: usize, run: &mut dyn FnMut()) -> f64 {
    fastest_by(repetitions, || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    })
}

/// Like [`fastest`]; `seconds` runs once and returns the time that it took.
fn fastest_by(repetitions: usize, mut seconds: impl FnMut() -> f64) -> f64 {
    seconds();
    (0..repetitions.max(1)).map(|_| seconds()).fold(f64::INFINITY, f64::min).max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_run_counts_and_the_first_does_not() {
        let mut seconds = [0.0, 0.2, 0.005, 0.2].into_iter();
        let fastest = fastest_by(3, || seconds.next().expect("one run more than repetitions"));
        assert_eq!((fastest, seconds.next()), (0.005, None));
    }

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (1..=1000).collect();
        assert_eq!(sum(&words), 500_500);
    }
}
