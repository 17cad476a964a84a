//! A row's distribution over the vocabulary, and draws from it.

use gradus_kernels::{exp_or_zero as exp, maximum, sum_exp};
use rand::Rng;

use crate::rng::Stream;

/// Ids whose mass is summed before the next sum is started: a draw walks over blocks, then within one.
const BLOCK: usize = 256;

/// `softmax(logits)`, as the sums of its blocks.
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

    /// The id at which the summed mass first exceeds a uniform share of the whole.
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
            // Rounding: the parts of a block can sum to a little less than the block.
            return last.unwrap_or(start);
        }
        argmax(logits_v)
    }
}
/// The likeliest id, the lowest of several.
pub(super) fn argmax(logits_v: &[f32]) -> usize {
    let largest = maximum(logits_v);
    logits_v.iter().position(|logit| *logit == largest).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
