//! A row's distribution over the vocabulary, and sampling from it.

use gradus_kernels::{exp_or_zero as exp, maximum, sum_exp};
use rand::Rng;

use crate::rng::Stream;

/// Number of ids per block. A draw searches the sums of the blocks first, then one block.
const BLOCK: usize = 256;

/// `softmax(logits)`, stored as sums over blocks.
#[derive(Debug, Clone)]
pub(super) struct Distribution {
    maximum: f32,
    /// `Σ exp(logit − maximum)` over each block.
    masses: Vec<f64>,
    mass: f64,
}

impl Distribution {
    pub(super) fn new(logits_v: &[f32]) -> Self {
        let maximum = maximum(logits_v);
        let masses: Vec<f64> = logits_v.chunks(BLOCK).map(|block| f64::from(sum_exp(block, maximum))).collect();
        let mass = masses.iter().sum();
        Self { maximum, masses, mass }
    }

    pub(super) fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.maximum) - self.mass.ln()) as f32
    }

    /// Returns the `count` likeliest ids with their log-probabilities, likeliest first. Ties go to the lower id.
    pub(super) fn likeliest(&self, logits_v: &[f32], count: usize) -> Vec<(u32, f32)> {
        likeliest(logits_v, count).into_iter().map(|id| (id, self.logprob(logits_v[id as usize]))).collect()
    }

    /// Samples the id at which the cumulative mass first exceeds a uniform share of the total.
    pub(super) fn draw(&self, logits_v: &[f32], rng: &mut Stream) -> usize {
        let mut left = rng.random::<f64>() * self.mass;
        for (block, &mass) in self.masses.iter().enumerate() {
            if left >= mass {
                left -= mass;
                continue;
            }
            let (start, mut last) = (block * BLOCK, None);
            for (offset, &logit) in logits_v[start..].iter().take(BLOCK).enumerate() {
                let mass = f64::from(exp(logit - self.maximum));
                if mass > 0.0 {
                    if left < mass {
                        return start + offset;
                    }
                    left -= mass;
                    last = Some(start + offset);
                }
            }
            // Because of rounding, the entries of a block can sum to slightly less than the block.
            return last.unwrap_or(start);
        }
        argmax(logits_v)
    }
}

/// Returns the ids of the `count` largest of `logits_v`, largest first. Ties go to the lower id.
fn likeliest(logits_v: &[f32], count: usize) -> Vec<u32> {
    let count = count.min(logits_v.len());
    let mut found: Vec<u32> = Vec::with_capacity(count + 1);
    for (id, logit) in logits_v.iter().enumerate() {
        let is_full = found.len() == count;
        if count == 0 || (is_full && found.last().is_some_and(|last| *logit <= logits_v[*last as usize])) {
            continue;
        }
        let place = found.partition_point(|other| logits_v[*other as usize] >= *logit);
        found.insert(place, id as u32);
        found.truncate(count);
    }
    found
}

/// Returns the likeliest id. Ties go to the lowest id.
pub(super) fn argmax(logits_v: &[f32]) -> usize {
    let largest = maximum(logits_v);
    logits_v.iter().position(|logit| *logit == largest).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_are_those_of_a_sort() {
        let logits_v = [0.5, 2.0, -1.0, 2.0, f32::NEG_INFINITY, 0.75];
        let sorted = [1, 3, 5, 0, 2, 4];
        for count in 0..=8 {
            assert_eq!(likeliest(&logits_v, count), &sorted[..count.min(6)], "{count}");
        }
        let all = Distribution::new(&logits_v);
        let partition = logits_v.iter().map(|z| f64::from(*z).exp()).sum::<f64>().ln();
        for (id, logprob) in all.likeliest(&logits_v, 3) {
            assert!((f64::from(logprob) - (f64::from(logits_v[id as usize]) - partition)).abs() < 1e-6);
        }
    }

    #[test]
    fn exp_is_exact_enough_everywhere_it_is_used() {
        let mut worst = 0.0f64;
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            worst = worst.max((f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs());
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert_eq!([exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
        assert!(exp(f32::NAN).is_nan());
    }
}
