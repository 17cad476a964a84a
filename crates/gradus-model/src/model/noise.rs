//! Noise on the embeddings of a training step: NEFTune, Jain et al. 2023, <https://arxiv.org/abs/2310.05914>.
//!
//! The noise of a number is a function of the step, the row, the sequence within the row, and the number's place in the sequence. So it does
//! not depend on the split of a step into passes, on ranks, or on earlier steps.

use burn::tensor::{Tensor, TensorData};
use gradus_kernels::mix;
use rand::Rng;
use rayon::prelude::*;

use super::packed::Packed;
use crate::rng::{Purpose, Seed};

/// Noise on the embeddings of a step: uniform in [−1, 1) times `alpha` / √(L·D), for a sequence of L tokens and embeddings of width D.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingNoise {
    alpha: f64,
    key: u64,
    /// Number of the first row of the pass within the step.
    first: usize,
}

impl EmbeddingNoise {
    /// Creates the noise of step `step`, counted from 0.
    pub fn new(alpha: f64, seed: Seed, step: u64) -> Self {
        Self::of_key(alpha, seed.stream(Purpose::EmbeddingNoise, step, 0).random())
    }

    /// Creates the noise of a step from a key.
    pub fn of_key(alpha: f64, key: u64) -> Self {
        Self { alpha, key, first: 0 }
    }

    /// Returns the noise of a pass that begins with row `first` of the step.
    #[must_use]
    pub fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Returns the noise of the sequences of a pass. `places_b` holds the row of each sequence, counted from the first row of the pass, and
    /// the sequence's place within that row.
    pub(super) fn of(self, places_b: &[(usize, usize)]) -> SequenceNoise {
        let key = |&(row, part): &(usize, usize)| {
            let row = (self.first + row) as u64;
            mix(self.key ^ mix((row << 32) + part as u64 + 1))
        };
        SequenceNoise { alpha: self.alpha as f32, keys_b: places_b.iter().map(key).collect() }
    }
}

/// Noise on the embeddings of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SequenceNoise {
    alpha: f32,
    /// Key of each sequence, `[B]`.
    keys_b: Vec<u64>,
}

impl SequenceNoise {
    /// Adds the noise to the embeddings `x_nd`, `[N, D]`, of sequences that lie end to end and share no tokens. `x_nd` carries gradient.
    ///
    /// # Panics
    /// When the sequences are not those of this noise, or share tokens.
    pub fn added(&self, x_nd: Tensor<2>, packed: &Packed) -> Tensor<2> {
        let ([n, d], device) = (x_nd.dims(), x_nd.device());
        assert_eq!(packed.sequences(), self.keys_b.len(), "one key per sequence");
        let mut noise = Vec::<f32>::with_capacity(n * d);
        for (i, &key) in self.keys_b.iter().enumerate() {
            let count = packed.length(i) * d;
            // In f32, as in transformers.
            let largest = self.alpha / (count as f32).sqrt();
            let number = |j: usize| unit(mix(key.wrapping_add(j as u64))) * largest;
            noise.par_extend((0..count).into_par_iter().map(number));
        }
        assert_eq!(noise.len(), n * d, "sequences with noise share no tokens");
        x_nd + Tensor::<2>::from_data(TensorData::new(noise, [n, d]), &device)
    }
}

/// Returns a uniform number in [−1, 1) from the upper 24 bits of a random number: all that f32 holds exactly.
fn unit(random: u64) -> f32 {
    (random >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::host::read;

    /// Noise of each sequence, for sequences of these lengths and embeddings of width `d`.
    fn values(noise: EmbeddingNoise, places_b: &[(usize, usize)], lengths_b: &[usize], d: usize) -> Vec<Vec<f32>> {
        let packed = Packed::new(lengths_b.iter().map(|&length| vec![1u32; length]));
        let zeros = Tensor::<2>::zeros([packed.tokens(), d], &Device::flex());
        let values = read(&noise.of(places_b).added(zeros, &packed).flatten::<1>(0, 1));
        let mut rest = values.as_slice();
        let of_sequence = |&length: &usize| {
            let (own, others) = rest.split_at(length * d);
            rest = others;
            own.to_vec()
        };
        lengths_b.iter().map(of_sequence).collect()
    }

    #[test]
    fn numbers_are_uniform_within_alpha_over_the_root_of_the_size() {
        let (lengths, d, alpha) = ([50, 200], 40, 5.0f32);
        let noise = EmbeddingNoise::new(f64::from(alpha), Seed(7), 3);
        for (found, length) in values(noise, &[(0, 0), (1, 0)], &lengths, d).iter().zip(lengths) {
            let largest = alpha / ((length * d) as f32).sqrt();
            let scaled: Vec<f64> = found.iter().map(|x| f64::from(x / largest)).collect();
            assert!(scaled.iter().all(|x| (-1.0..=1.0).contains(x)));
            let mean = |of: &dyn Fn(f64) -> f64| scaled.iter().map(|&x| of(x)).sum::<f64>() / scaled.len() as f64;
            // Each bound is four standard errors.
            let error = 4.0 / (scaled.len() as f64).sqrt();
            assert!(mean(&|x| x).abs() < error * 0.58, "the mean is {}", mean(&|x| x));
            assert!((mean(&|x| x * x) - 1.0 / 3.0).abs() < error * 0.3, "the variance is {}", mean(&|x| x * x));
            for low in [-1.0f64, -0.5, 0.0, 0.5] {
                let share = mean(&|x| if (low..low + 0.5).contains(&x) { 1.0 } else { 0.0 });
                assert!((share - 0.25).abs() < error * 0.44, "{share} of the numbers are in the quarter from {low}");
            }
        }
    }

    #[test]
    fn a_sequence_has_its_own_noise_whatever_pass_it_is_in() {
        let places = [(0, 0), (1, 0), (0, 1), (1, 1)];
        let of = |step, first, chosen: &[usize]| {
            let noise = EmbeddingNoise::new(2.0, Seed(1), step).starting_at(first);
            let places: Vec<_> = chosen.iter().map(|&i| (places[i].0 - first, places[i].1)).collect();
            values(noise, &places, &vec![3; chosen.len()], 8)
        };
        let whole = of(0, 0, &[0, 1, 2, 3]);
        assert_eq!(of(0, 0, &[0, 2]), [whole[0].clone(), whole[2].clone()]);
        assert_eq!(of(0, 1, &[1, 3]), [whole[1].clone(), whole[3].clone()], "the second row in a pass of its own");
        let mut all = [whole, of(1, 0, &[0, 1, 2, 3])].concat().concat();
        let count = all.len();
        all.sort_by(f32::total_cmp);
        all.dedup();
        assert!(all.len() > count - 3, "rows, sequences of a row and steps differ: {} of {count} numbers", all.len());
    }
}
