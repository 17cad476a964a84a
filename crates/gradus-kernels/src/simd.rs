//! Vector code without intrinsics: a function body is compiled for several instruction sets, and one is chosen at run time.
//!
//! The bodies are plain loops that the compiler vectorizes. Rust does not reorder sums or contract a multiplication and an addition into
//! one instruction unless told to. So every variant gives the same bits; `every_level` in the tests runs the kernels in each.

/// Defines functions compiled for AVX-512, AVX2 and the baseline. Calls use the best variant for the CPU.
macro_rules! simd {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

                if crate::simd::has_avx512() {
                    // SAFETY: the CPU has every feature that the function is compiled for.
                    return unsafe { avx512($($arg),*) };
                }
                if crate::simd::has_avx2() {
                    // SAFETY: as above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    )*};
}
pub(crate) use simd;

/// Whether the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    #[cfg(test)]
    if testing::limit() < testing::Level::Avx2 {
        return false;
    }
    std::arch::is_x86_feature_detected!("avx2")
}

/// Whether the CPU has the AVX-512 subsets that [`simd!`] compiles for.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    use std::arch::is_x86_feature_detected as has;
    #[cfg(test)]
    if testing::limit() < testing::Level::Avx512 {
        return false;
    }
    has!("avx512f") && has!("avx512vl") && has!("avx512dq") && has!("avx512bw")
}

/// eˣ within 2 ulp for |x| ≤ 87, without branches. Beyond that, the value at the bound. NaN stays NaN.
///
/// `x = n·ln 2 + r` with integer n and |r| ≤ ½ ln 2; eʳ by a polynomial of degree 6, 2ⁿ by its bits (Cody & Waite 1980).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// 1.5 · 2²³: adding and subtracting it rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts. The first has few bits, so that n times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let polynomial = 1.0
        + r * (1.0 + r * (0.5 + r * (1.666_666_5e-1 + r * (4.166_579_6e-2 + r * (8.333_452e-3 + r * 1.398_199_9e-3)))));
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    polynomial * power
}

/// 1 / (1 + e⁻ˣ). It is 0 below −87, so that its product with the largest number is 0 too.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    if x < -87.0 { 0.0 } else { 1.0 / (1.0 + exp(-x)) }
}

/// tanh x, as x·P(x²)/Q(x²) with polynomials of degree 6 and 3; ±1 beyond ±7.9, where f32 has no closer value.
///
/// The coefficients are those of Eigen's `generic_fast_tanh_float`: a minimax fit on [−7.9, 7.9].
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    const P: [f32; 7] =
        [-2.760_768_4e-16, 2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619e-4, 4.893_524_6e-3];
    const Q: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
    let x = x.clamp(-7.905_311, 7.905_311);
    let square = x * x;
    let polynomial = |coefficients: &[f32]| coefficients.iter().fold(0.0, |sum, c| sum * square + c);
    x * polynomial(&P) / polynomial(&Q)
}

/// Like `exp` for x ≤ 0, but 0 below −87, so that −∞ has weight 0.
#[inline(always)]
pub fn exp_or_zero(x: f32) -> f32 {
    if x < -87.0 { 0.0 } else { exp(x) }
}

/// Number of running values in the reductions below: one AVX-512 register.
const LANES: usize = 16;

/// Largest value. NaN is ignored. An empty slice gives −∞.
#[inline(always)]
pub(crate) fn max(values: &[f32]) -> f32 {
    let pick = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let blocks = values.chunks_exact(LANES);
    let tail = blocks.remainder();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = pick(lanes[i], block[i]);
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |a, &b| pick(a, b))
}

/// Replaces every value by e^(value − shift) and returns their sum.
#[inline(always)]
pub(crate) fn exp_in_place(values: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut blocks = values.chunks_exact_mut(LANES);
    for block in &mut blocks {
        for i in 0..LANES {
            block[i] = exp(block[i] - shift);
            lanes[i] += block[i];
        }
    }
    let mut sum: f32 = lanes.iter().sum();
    for value in blocks.into_remainder() {
        *value = exp(*value - shift);
        sum += *value;
    }
    sum
}

simd! {
    /// Softmax of `row` in place; returns its log-sum-exp.
    pub(crate) fn softmax_in_place(row: &mut [f32]) -> f32 {
        let max = max(row);
        let sum = exp_in_place(row, max);
        let scale = 1.0 / sum;
        row.iter_mut().for_each(|x| *x *= scale);
        max + sum.ln()
    }

    /// Largest value. NaN is ignored. An empty slice gives −∞.
    pub fn maximum(values: &[f32]) -> f32 {
        max(values)
    }

    /// `Σ exp(value − maximum)` over a few hundred values, summed in f32. −∞ adds 0, and NaN gives NaN.
    pub fn sum_exp(values: &[f32], maximum: f32) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let (blocks, tail) = values.as_chunks::<LANES>();
        for block in blocks {
            for (lane, &x) in lanes.iter_mut().zip(block) {
                *lane += exp_or_zero(x - maximum);
            }
        }
        lanes.iter().sum::<f32>() + tail.iter().map(|&x| exp_or_zero(x - maximum)).sum::<f32>()
    }

    /// Σ aᵢbᵢ.
    pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let (blocks_a, blocks_b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
        let tail: f32 = blocks_a.remainder().iter().zip(blocks_b.remainder()).map(|(a, b)| a * b).sum();
        for (a, b) in blocks_a.zip(blocks_b) {
            for i in 0..LANES {
                lanes[i] += a[i] * b[i];
            }
        }
        lanes.iter().sum::<f32>() + tail
    }
}

/// Lets tests run variants that the CPU would not choose.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;

    /// Instruction sets that bodies are compiled for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Level {
        /// The target's baseline.
        Baseline,
        /// AVX2.
        Avx2,
        /// AVX-512.
        Avx512,
    }

    thread_local! {
        static LIMIT: Cell<Level> = const { Cell::new(Level::Avx512) };
    }

    /// Highest level that this thread may use.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "nothing is chosen at run time there"))]
    pub(crate) fn limit() -> Level {
        LIMIT.get()
    }

    /// Runs `run` in a pool of two threads that use nothing above `level`.
    pub(crate) fn at<T: Send>(level: Level, run: impl FnOnce() -> T + Send) -> T {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).start_handler(move |_| LIMIT.set(level)).build();
        pool.expect("two threads").install(run)
    }

    /// Results of `run` at every level, the baseline first.
    pub(crate) fn every_level<T: Send>(run: impl Fn() -> T + Sync) -> Vec<(Level, T)> {
        [Level::Baseline, Level::Avx2, Level::Avx512].map(|level| (level, at(level, &run))).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_exact_to_two_ulp() {
        for i in -86_999..=87_000 {
            let x = i as f32 * 1e-3;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.4e-7, "exp({x}): relative error {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1e30) < 2e-38 && exp(f32::NEG_INFINITY) < 2e-38 && exp(1e30).is_finite());
    }

    #[test]
    fn the_hyperbolic_tangent_is_exact_to_single_precision() {
        for i in -200_000..=200_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).tanh();
            let error = (f64::from(tanh(x)) - exact).abs();
            assert!(error <= 5e-7 * exact.abs(), "tanh({x}): {error}");
        }
        // Small numbers are mapped to themselves, and no result exceeds 1.
        assert!([1e-30, 1e-6].into_iter().all(|x: f32| (tanh(x) / x - 1.0).abs() < 5e-7) && tanh(0.0) == 0.0);
        assert!([9.0, 1e38, f32::INFINITY].into_iter().all(|x| (tanh(x) - 1.0).abs() < 1e-6 && tanh(-x) == -tanh(x)));
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn softmax_of_extremes_is_finite() {
        let mut row = vec![1e30, -1e30, 0.0];
        assert_eq!(softmax_in_place(&mut row), 1e30);
        assert!((row[0] - 1.0).abs() < 1e-6 && row[1] < 1e-30);
        let mut nan = vec![0.0, f32::NAN];
        assert!(softmax_in_place(&mut nan).is_nan());
    }
}
