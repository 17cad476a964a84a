//! Dropout: `y = m ∘ x`, where each `mᵢ` is 0 with probability p, else `1 / (1 − p)`; `∂x = m ∘ g`.
//!
//! The mask is a function of a key and of the position in `x`. The backward pass draws it again, so nothing is kept for it.
//! Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>.

use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use crate::fused::{Dense, Op, apply, supports};
use crate::parts::{PART, one_in_parts, part_of};
use crate::simd::simd;

/// The increment of SplitMix64, and the factors of its finalizer.
pub(crate) const WEYL: u64 = 0x9E37_79B9_7F4A_7C15;
pub(crate) const FIRST: u64 = 0xBF58_476D_1CE4_E5B9;
pub(crate) const SECOND: u64 = 0x94D0_49BB_1331_11EB;

/// Returns the random number of `index`, from which masks are made. SplitMix64's finalizer over a Weyl sequence (Steele et al. 2014,
/// <https://doi.org/10.1145/2714064.2660195>).
#[inline(always)]
pub fn mix(index: u64) -> u64 {
    let z = index.wrapping_mul(WEYL).wrapping_add(WEYL);
    let z = (z ^ (z >> 30)).wrapping_mul(FIRST);
    let z = (z ^ (z >> 27)).wrapping_mul(SECOND);
    z ^ (z >> 31)
}

/// Turns random numbers into factors of a mask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Keeping {
    /// Random numbers whose upper half is below this are dropped.
    pub threshold: u32,
    /// Factor of the numbers that are kept.
    pub factor: f32,
}

impl Keeping {
    /// `probability` is that of dropping, at least 0 and below 1.
    pub(crate) fn new(probability: f32) -> Self {
        Self { threshold: (f64::from(probability) * 2f64.powi(32)) as u32, factor: 1.0 / (1.0 - probability) }
    }

    /// Factor for a random number.
    #[inline(always)]
    pub(crate) fn of(self, random: u64) -> f32 {
        if (random >> 32) as u32 >= self.threshold { self.factor } else { 0.0 }
    }
}

/// Multiplies `x_nd` by a mask: each number becomes 0 with `probability`, otherwise it is divided by 1 − `probability`. The input carries
/// gradient. `key` and the position of a number decide whether it is dropped.
///
/// `probability` is at least 0 and below 1.
pub fn dropout(x_nd: Tensor<2>, probability: f32, key: u64) -> Tensor<2> {
    let op = Dropout { keeping: Keeping::new(probability), key };
    // A GPU counts positions in words of 32 bits.
    let is_countable = u32::try_from(x_nd.dims().iter().product::<usize>()).is_ok();
    match is_countable && supports(&op, &x_nd.device(), x_nd.dtype()) {
        true => apply(op, vec![x_nd.into_dispatch()]),
        false => reference(x_nd, probability, key),
    }
}

/// The definition, in plain tensors.
pub fn reference(x_nd: Tensor<2>, probability: f32, key: u64) -> Tensor<2> {
    let ([n, d], device, keeping) = (x_nd.dims(), x_nd.device(), Keeping::new(probability));
    let mask = (0..n * d).into_par_iter().map(|i| keeping.of(mix(key.wrapping_add(i as u64))));
    x_nd * Tensor::<2>::from_data(TensorData::new(mask.collect::<Vec<f32>>(), [n, d]), &device)
}

#[derive(Debug)]
pub(crate) struct Dropout {
    pub(crate) keeping: Keeping,
    pub(crate) key: u64,
}

simd! {
    /// The random numbers of `x` are those of `first` and the following indices.
    fn masked(y: &mut [f32], x: &[f32], first: u64, keeping: Keeping) {
        for (i, (y, &x)) in y.iter_mut().zip(x).enumerate() {
            *y = x * keeping.of(mix(first.wrapping_add(i as u64)));
        }
    }
}

impl Dropout {
    fn masked(&self, x: &Dense) -> Dense {
        let values = one_in_parts(x.values().len(), PART, |i, y| {
            masked(y, part_of(x.values(), i, PART), self.key.wrapping_add((i * PART) as u64), self.keeping);
        });
        Dense::new(values, &x.dims())
    }
}

impl Op for Dropout {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        (self.masked(&inputs[0]), Vec::new())
    }

    fn backward(&self, _: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        vec![Some(self.masked(grad))]
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn crate::gpu::GpuOp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, given, host, leaf};

    #[test]
    fn agrees_with_the_reference() {
        // One value, an odd size, and one that ends within a task. The last key wraps around.
        for (shape, key) in [([1, 1], 7), ([9, 11], 7), ([129, 131], u64::MAX - 100)] {
            for probability in [0.0, 0.3, 0.999_999_94] {
                check(
                    &format!("dropout of {shape:?} with {probability}"),
                    &[leaf(shape, 1)],
                    |x| dropout(x[0].clone(), probability, key),
                    |x| reference(x[0].clone(), probability, key),
                    0.0,
                );
            }
        }
    }

    #[test]
    fn random_numbers_are_splitmix64s() {
        // The first three numbers of the generator with seed 0, as published with it.
        let known = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
        assert_eq!([0, 1, 2].map(mix), known);
    }

    #[test]
    fn the_gradient_has_the_mask_of_the_value() {
        let x = given([1, 400], &[1.0; 400]);
        let y = dropout(x.clone(), 0.25, 3);
        let (value, gradient) = (host(y.clone().inner()), host(x.grad(&y.backward()).expect("gradient")));
        assert_eq!(value, gradient);
        let dropped = value.iter().filter(|y| **y == 0.0).count();
        assert!((60..140).contains(&dropped) && value.iter().all(|&y| y == 0.0 || y == 1.0 / 0.75), "{dropped}");
    }
}
