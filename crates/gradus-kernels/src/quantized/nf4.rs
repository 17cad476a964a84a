//! 4-bit NormalFloat with double quantization (QLoRA; Dettmers et al. 2023, <https://arxiv.org/abs/2305.14314>).
//!
//! The numbers of a weight are stored output after output, in blocks of 64. A number is one of 16 quantiles of the normal distribution
//! times the largest magnitude of its block. That magnitude, minus the mean of all magnitudes, is one of 256 values times the largest of
//! 256 such magnitudes. In total, 4.127 bits per number.

use rayon::prelude::*;

use super::check;
use crate::simd::simd;

/// Numbers that share a largest magnitude.
pub const BLOCK: usize = 64;
/// Number of largest magnitudes that are quantized together.
pub const NESTED_BLOCK: usize = 256;

/// The quantiles, with bitsandbytes' values.
#[expect(clippy::excessive_precision, reason = "the digits of the reference")]
pub const NF4_MAP: [f32; 16] = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
];

/// A weight in 4 bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Nf4 {
    shape: [usize; 2],
    codes: Vec<u8>,
    map: [f32; 16],
    absmax: Absmax,
}

/// Largest magnitude of each block.
#[derive(Debug, Clone, PartialEq)]
pub enum Absmax {
    /// Unquantized.
    Plain(Vec<f32>),
    /// Quantized as well.
    Nested(NestedAbsmax),
}

/// Largest magnitudes in 8 bits: number `i` is `map[codes[i]] · absmax[i / 256] + offset`.
#[derive(Debug, Clone, PartialEq)]
pub struct NestedAbsmax {
    /// One code per block of the weight.
    pub codes: Vec<u8>,
    /// 256 values from −1 to 1, in order.
    pub map: Vec<f32>,
    /// One per [`NESTED_BLOCK`] codes.
    pub absmax: Vec<f32>,
    /// The mean of all largest magnitudes.
    pub offset: f32,
}

impl Absmax {
    /// Largest magnitude of block `block`.
    #[inline(always)]
    pub(crate) fn at(&self, block: usize) -> f32 {
        match self {
            Self::Plain(absmax) => absmax[block],
            Self::Nested(nested) => {
                nested.map[usize::from(nested.codes[block])] * nested.absmax[block / NESTED_BLOCK] + nested.offset
            }
        }
    }

    /// Size in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Plain(absmax) => size_of_val(&absmax[..]),
            Self::Nested(nested) => {
                size_of_val(&nested.codes[..]) + size_of_val(&nested.map[..]) + size_of_val(&nested.absmax[..])
            }
        }
    }

    fn check(&self, blocks: usize) -> Result<(), String> {
        match self {
            Self::Plain(absmax) => check("largest magnitudes", absmax.len(), blocks),
            Self::Nested(nested) => {
                check("largest magnitudes", nested.codes.len(), blocks)?;
                check("numbers in the nested map", nested.map.len(), 256)?;
                check("nested largest magnitudes", nested.absmax.len(), blocks.div_ceil(NESTED_BLOCK))
            }
        }
    }
}

impl Nf4 {
    /// Creates a weight of `shape`, `[out, in]`, from its parts. A byte holds two codes, the first in its upper half.
    ///
    /// # Errors
    /// If the number of codes or scales does not fit the shape.
    pub fn new(shape: [usize; 2], codes: Vec<u8>, map: [f32; 16], absmax: Absmax) -> Result<Self, String> {
        let size = shape[0] * shape[1];
        check("bytes of codes", codes.len(), size.div_ceil(2))?;
        absmax.check(size.div_ceil(BLOCK))?;
        Ok(Self { shape, codes, map, absmax })
    }

    /// Quantizes `values`, `[out, in]` row-major, to the nearest codes, and the largest magnitudes as well.
    ///
    /// # Panics
    /// If `values` has another size.
    pub fn quantize(values: &[f32], shape: [usize; 2]) -> Self {
        assert_eq!(values.len(), shape[0] * shape[1], "one value an element");
        let mut absmax = vec![0.0f32; values.len().div_ceil(BLOCK)];
        let mut codes = vec![0u8; values.len().div_ceil(2)];
        let bounds: [f32; 15] = std::array::from_fn(|i| f32::midpoint(NF4_MAP[i], NF4_MAP[i + 1]));
        let parts = values.par_chunks(BLOCK).zip(&mut absmax).zip(codes.par_chunks_mut(BLOCK / 2));
        parts.with_min_len(256).for_each(|((values, absmax), codes)| {
            let mut numbers = [0u32; BLOCK];
            *absmax = to_unit(values, &mut numbers, &bounds);
            // An unused last half byte holds the code of zero.
            numbers[values.len()..].fill(7);
            for (code, [first, second]) in codes.iter_mut().zip(numbers.as_chunks::<2>().0) {
                *code = (first << 4 | second) as u8;
            }
        });
        Self { shape, codes, map: NF4_MAP, absmax: Absmax::Nested(NestedAbsmax::quantize(&absmax)) }
    }

    /// Numbers of outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Two codes per byte, the first in the upper half.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Values of the codes.
    pub fn map(&self) -> &[f32; 16] {
        &self.map
    }

    /// Largest magnitude of each block.
    pub fn absmax(&self) -> &Absmax {
        &self.absmax
    }

    /// Returns the parts: codes, map and largest magnitudes.
    pub(crate) fn into_parts(self) -> (Vec<u8>, [f32; 16], Absmax) {
        (self.codes, self.map, self.absmax)
    }

    /// Returns the decoded numbers, `[out, in]` row-major.
    pub fn values(&self) -> Vec<f32> {
        let number = |i: usize| {
            let code = self.codes[i / 2] >> (4 * (1 - i % 2)) & 15;
            self.map[usize::from(code)] * self.absmax.at(i / BLOCK)
        };
        (0..self.shape[0] * self.shape[1]).map(number).collect()
    }
}

impl NestedAbsmax {
    fn quantize(absmax: &[f32]) -> Self {
        let mean = absmax.iter().map(|&x| f64::from(x)).sum::<f64>() / absmax.len().max(1) as f64;
        let (offset, map) = (mean as f32, dynamic_map());
        let bounds: Vec<f32> = map.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect();
        let (mut codes, mut nested) = (Vec::with_capacity(absmax.len()), Vec::new());
        for block in absmax.chunks(NESTED_BLOCK) {
            let centered = block.iter().map(|x| x - offset);
            let largest = centered.clone().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let unit = Unit::new(largest, block.len() == NESTED_BLOCK);
            codes.extend(centered.map(|x| {
                let x = unit.scaled(x);
                bounds.partition_point(|&bound| bound < x) as u8
            }));
            nested.push(unit.absmax);
        }
        Self { codes, map, absmax: nested, offset }
    }
}

/// Scales a block to the range from −1 to 1: a whole block by multiplication, a partial one by division.
#[derive(Clone, Copy)]
struct Unit {
    absmax: f32,
    inverse: Option<f32>,
}

impl Unit {
    #[inline(always)]
    fn new(largest: f32, is_whole: bool) -> Self {
        let divisor = largest.max(1e-38);
        match is_whole {
            true => Self { absmax: largest, inverse: Some(1.0 / divisor) },
            false => Self { absmax: divisor, inverse: None },
        }
    }

    #[inline(always)]
    fn scaled(self, x: f32) -> f32 {
        self.inverse.map_or_else(|| x / self.absmax, |inverse| x * inverse).clamp(-1.0, 1.0)
    }
}

simd! {
    /// Computes the code of each value after scaling: the number of `bounds` below it. Returns the largest magnitude.
    fn to_unit(values: &[f32], codes: &mut [u32; BLOCK], bounds: &[f32; 15]) -> f32 {
        let mut largest = 0.0f32;
        for x in values {
            largest = if x.abs() > largest { x.abs() } else { largest };
        }
        let unit = Unit::new(largest, values.len() == BLOCK);
        for (code, &x) in codes.iter_mut().zip(values) {
            let x = unit.scaled(x);
            *code = bounds.iter().map(|&bound| u32::from(bound < x)).sum();
        }
        unit.absmax
    }
}

/// The 256 values for largest magnitudes: for every power of ten down to 10⁻⁶, the midpoints of 1, 2, 4, … equal parts from 0.1 to 1, with
/// both signs; and 0 and 1 (Dettmers 2016, <https://arxiv.org/abs/1511.04561>).
fn dynamic_map() -> Vec<f32> {
    let mut map = vec![0.0f32, 1.0];
    for exponent in 0..7 {
        let (parts, power) = (1 << exponent, 10f32.powi(exponent - 6));
        let bound = |i: i32| (0.1 + 0.9 * f64::from(i) / f64::from(parts)) as f32;
        for i in 0..parts {
            let middle = power * f32::midpoint(bound(i), bound(i + 1));
            map.extend([middle, -middle]);
        }
    }
    map.sort_by(f32::total_cmp);
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::values;
    use crate::simd::testing::every_level;

    #[test]
    fn every_number_gets_its_nearest_code() {
        for shape in [[1, 1], [3, 7], [5, 64], [4, 100], [70, 300]] {
            let values = values(shape[0] * shape[1], 1);
            let nf4 = Nf4::quantize(&values, shape);
            let Absmax::Nested(nested) = nf4.absmax() else { panic!("quantized twice") };
            for (i, &x) in values.iter().enumerate() {
                let block = &values[i / BLOCK * BLOCK..(i / BLOCK * BLOCK + BLOCK).min(values.len())];
                let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                let code = nf4.codes()[i / 2] >> (4 * (1 - i % 2)) & 15;
                let distance = |code: f32| (x / largest - code).abs();
                let nearest = NF4_MAP.iter().map(|&code| distance(code)).fold(f32::INFINITY, f32::min);
                assert!(distance(NF4_MAP[usize::from(code)]) <= nearest + 1e-6, "{shape:?} at {i}");
                // The magnitudes are within 0.9 of their mean; the widest gap of the map is 0.9 / 64.
                let spread = nested.absmax[i / BLOCK / NESTED_BLOCK];
                assert!((nf4.absmax().at(i / BLOCK) - largest).abs() <= 0.015 * spread + 1e-6, "{shape:?} at {i}");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_codes() {
        let values = values(33 * 100, 5);
        let found = every_level(|| Nf4::quantize(&values, [33, 100]));
        assert!(found.iter().all(|(_, nf4)| *nf4 == found[0].1));
    }

    #[test]
    fn zeros_and_nothing_stay_what_they_are() {
        assert!(Nf4::quantize(&[0.0; 130], [2, 65]).values().iter().all(|x| x.abs() < 1e-30));
        assert!(Nf4::quantize(&[], [0, 5]).values().is_empty());
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let absmax = || Absmax::Plain(vec![1.0; 2]);
        assert!(Nf4::new([2, 64], vec![0; 64], NF4_MAP, absmax()).is_ok());
        assert!(Nf4::new([2, 64], vec![0; 63], NF4_MAP, absmax()).is_err());
        assert!(Nf4::new([3, 64], vec![0; 96], NF4_MAP, absmax()).is_err());
    }

    #[test]
    fn the_map_of_magnitudes_has_256_numbers_in_order() {
        let map = dynamic_map();
        assert_eq!((map.len(), map[127], map[255]), (256, 0.0, 1.0));
        assert!(map.windows(2).all(|pair| pair[0] < pair[1]));
        assert!((map[128] - 5.5e-7).abs() < 1e-12 && (map[254] - 0.992_968_74).abs() < 1e-6);
    }
}
