//! Numbers in eight bits: one code per number and one largest magnitude per block.
//!
//! A code selects a value from a fixed map, which is multiplied by the largest magnitude in the block. The map is dynamic: its values are
//! dense near 0, so a block may hold numbers of very different magnitudes. Dettmers et al. 2022, <https://arxiv.org/abs/2110.02861>. Maps,
//! codes and magnitudes equal those of bitsandbytes on a CPU, to the bit. As there, codes are looked up in 65,536 steps from −1 to 1. So
//! numbers below a thirty-thousandth of the largest share one code.

use std::sync::LazyLock;

use crate::simd::simd;

/// Numbers that share one largest magnitude.
pub(crate) const BLOCK: usize = 256;

/// Steps from −1 to 1, each with its code.
pub(crate) const STEPS: usize = 1 << 16;

/// Index of the last step.
const LAST_STEP: f32 = (STEPS - 1) as f32;

/// Numbers in eight bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Codes {
    /// The code of each number.
    pub codes: Vec<u8>,
    /// Largest magnitude of each block of 256 numbers.
    pub sizes: Vec<f32>,
}

impl Codes {
    /// Creates `n` zeros.
    pub(crate) fn zeros(n: usize) -> Self {
        Self { codes: vec![0; n], sizes: vec![0.0; n.div_ceil(BLOCK)] }
    }

    /// Returns the part at `range`, which must begin at the start of a block and end at the end of one or of the numbers.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        let sizes = self.sizes[range.start / BLOCK..range.end.div_ceil(BLOCK)].to_vec();
        Self { codes: self.codes[range].to_vec(), sizes }
    }
}

/// Map from codes to values and back.
#[derive(Debug)]
pub(crate) struct DynamicMap {
    /// Value of each code, in increasing order.
    pub(crate) values: [f32; 256],
    /// Code of each step from −1 to 1.
    pub(crate) codes: Vec<u8>,
}

/// Map of signed numbers, for first moments.
pub(crate) static SIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(true));

/// Map of unsigned numbers, for second moments.
pub(crate) static UNSIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(false));

impl DynamicMap {
    /// Splits each power of ten from 10⁻⁶ to 1 into equal parts, twice as many for each larger power. The values are the midpoints of the
    /// parts, and 0 and 1.
    fn new(signed: bool) -> Self {
        let mut values = vec![0.0, 1.0];
        for power in 0..7 {
            let parts = 1 << if signed { power } else { power + 1 };
            let scale = 10f64.powi(power - 6) as f32;
            for part in 0..parts {
                let value = scale * ((boundary(part, parts) + boundary(part + 1, parts)) / 2.0);
                values.push(value);
                values.extend(signed.then_some(-value));
            }
        }
        values.sort_by(f32::total_cmp);
        let values: [f32; 256] = values.try_into().expect("254 parts, 0 and 1");
        let mut code = 0;
        let code_of = |step: usize| {
            let number = -1.0 + (2 * step) as f32 / LAST_STEP;
            while code < values.len() - 1 && 0.5 * (values[code] + values[code + 1]) < number {
                code += 1;
            }
            code as u8
        };
        Self { values, codes: (0..STEPS).map(code_of).collect() }
    }

    /// Writes the codes of a block and returns its largest magnitude.
    pub(crate) fn encode(&self, numbers: &[f32], codes: &mut [u8]) -> f32 {
        // The largest magnitude is finite, so decoded numbers are too.
        let largest = largest_size(numbers).min(f32::MAX);
        if largest == 0.0 {
            codes.fill(0);
            return 0.0;
        }
        let mut steps = [0u16; BLOCK];
        steps_of(numbers, 1.0 / largest, &mut steps);
        for (code, step) in codes.iter_mut().zip(steps) {
            *code = self.codes[usize::from(step)];
        }
        largest
    }

    /// Decodes the numbers of a block.
    pub(crate) fn decode(&self, codes: &[u8], largest: f32, numbers: &mut [f32]) {
        for (number, code) in numbers.iter_mut().zip(codes) {
            *number = self.values[usize::from(*code)] * largest;
        }
    }
}

/// Start of part `i` of `parts` equal ones from 0.1 to 1: `torch.linspace` in f32, which counts from the nearer end.
fn boundary(i: usize, parts: usize) -> f32 {
    let (start, end) = (0.1f32, 1.0f32);
    let step = (end - start) / parts as f32;
    if i < parts.div_ceil(2) { step.mul_add(i as f32, start) } else { (-step).mul_add((parts - i) as f32, end) }
}

simd! {
    fn largest_size(numbers: &[f32]) -> f32 {
        const LANES: usize = 16;
        let mut largest = [0.0f32; LANES];
        let (whole, rest) = numbers.as_chunks::<LANES>();
        for numbers in whole.iter().map(<[f32; LANES]>::as_slice).chain([rest]) {
            for (largest, number) in largest.iter_mut().zip(numbers) {
                *largest = if number.abs() > *largest { number.abs() } else { *largest };
            }
        }
        largest.into_iter().fold(0.0, f32::max)
    }

    /// Returns the step of each number after multiplication with `factor`, the reciprocal of the largest magnitude.
    fn steps_of(numbers: &[f32], factor: f32, steps: &mut [u16; BLOCK]) {
        for (step, number) in steps.iter_mut().zip(numbers) {
            *step = (((number * factor).clamp(-1.0, 1.0) + 1.0) * 0.5 * LAST_STEP + 0.5) as u16;
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    /// Results of bitsandbytes for the numbers that [`number`] returns, and for steps over them; see `tools/parity/moments.py`.
    const FIXTURE: &str = include_str!("../fixtures/moments.txt");

    /// The values of a line of the fixture.
    fn line(name: &str) -> Vec<&'static str> {
        let line = FIXTURE.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no line `{name}`")).split(' ').collect()
    }

    /// Bits of f32 numbers.
    pub(crate) fn bits(name: &str) -> Vec<u32> {
        line(name).into_iter().map(|word| u32::from_str_radix(word, 16).expect("bits of an f32")).collect()
    }

    /// Codes of numbers.
    pub(crate) fn codes(name: &str) -> Vec<u8> {
        let text = line(name)[0];
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("a code")).collect()
    }

    /// Numbers of mixed magnitudes that Python computes identically: integers over a power of two.
    pub(crate) fn number(i: u32, signed: bool) -> f32 {
        let mixed = i.wrapping_mul(2_654_435_761) ^ i.wrapping_mul(40_503).rotate_left(13);
        let (fraction, halvings) = ((mixed >> 8) as f32, mixed & 15);
        let size = fraction / (1u64 << (24 + halvings)) as f32;
        if signed && mixed & 16 != 0 { -size } else { size }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{bits, codes, number};
    use super::*;

    #[test]
    fn maps_are_those_of_bitsandbytes_to_the_bit() {
        for (name, map) in [("signed map", &SIGNED), ("unsigned map", &UNSIGNED)] {
            assert_eq!(map.values.map(f32::to_bits).to_vec(), bits(name), "{name}");
        }
    }

    #[test]
    fn codes_are_those_of_bitsandbytes_to_the_bit() {
        for (name, map, signed) in [("signed", &SIGNED, true), ("unsigned", &UNSIGNED, false)] {
            let (expected, sizes) = (codes(&format!("{name} codes")), bits(&format!("{name} sizes")));
            let numbers: Vec<f32> = (0..expected.len() as u32).map(|i| number(i, signed)).collect();
            let mut found = vec![0; numbers.len()];
            let blocks = numbers.chunks(BLOCK).zip(found.chunks_mut(BLOCK));
            let found_sizes: Vec<u32> = blocks.map(|(of, codes)| map.encode(of, codes).to_bits()).collect();
            assert_eq!(found_sizes, sizes, "{name}");
            let differing: Vec<usize> = (0..found.len()).filter(|&i| found[i] != expected[i]).collect();
            assert!(differing.is_empty(), "{name}: {} codes differ, at {differing:?}", differing.len());
            let mut decoded = vec![0.0; BLOCK];
            map.decode(&found[..BLOCK], f32::from_bits(sizes[0]), &mut decoded);
            let decoded: Vec<u32> = decoded.iter().map(|number| number.to_bits()).collect();
            assert_eq!(decoded, bits(&format!("{name} numbers")), "{name}");
        }
    }

    #[test]
    fn no_number_gives_a_nan() {
        for numbers in [[0.0; 3], [f32::INFINITY, 1.0, 0.0], [1e-45, 0.0, -1e-45], [f32::MAX, -f32::MAX, 1.0]] {
            for map in [&SIGNED, &UNSIGNED] {
                let (mut codes, mut decoded) = ([0; 3], [f32::NAN; 3]);
                let largest = map.encode(&numbers, &mut codes);
                map.decode(&codes, largest, &mut decoded);
                assert!(decoded.iter().all(|number| number.is_finite()), "{numbers:?} as {decoded:?}");
            }
        }
    }
}
