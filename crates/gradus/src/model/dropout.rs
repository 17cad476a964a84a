//! Dropout whose masks are a function of where training stands, so that a resumed run draws the same ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::{Tensor, TensorData};
use rand::Rng;

use crate::rng::{Purpose, Seed};

/// What the masks of the current pass are drawn from. The training loop sets it before each pass; the layers read it.
#[derive(Debug, Clone, Default)]
pub struct DropoutKey(Arc<AtomicU64>);

impl DropoutKey {
    /// The masks of pass `pass` of step `step`, both counted from 0.
    pub fn set(&self, seed: Seed, step: u64, pass: u64) {
        self.0.store(seed.stream(Purpose::Dropout, step, pass).random(), Ordering::Relaxed);
    }
}

/// One layer's dropout: each number is 0 with probability p, and else divided by 1 − p.
#[derive(Debug, Clone)]
pub(crate) struct Dropout {
    probability: f32,
    key: DropoutKey,
    /// Tells the layer from the others.
    layer: u64,
}

impl Dropout {
    pub(crate) fn new(probability: f32, key: DropoutKey, layer: usize) -> Self {
        Self { probability, key, layer: layer as u64 }
    }

    /// `x_nd` times this pass's mask.
    pub(crate) fn apply(&self, x_nd: Tensor<2>) -> Tensor<2> {
        let ([n, d], device) = (x_nd.dims(), x_nd.device());
        let key = self.key.0.load(Ordering::Relaxed) ^ mix(self.layer + 1);
        let (threshold, kept) = ((f64::from(self.probability) * 2f64.powi(32)) as u64, 1.0 / (1.0 - self.probability));
        let draw = |i: usize| mix(key.wrapping_add(i as u64)) >> 32;
        let mask: Vec<f32> = (0..n * d).map(|i| if draw(i) < threshold { 0.0 } else { kept }).collect();
        x_nd * Tensor::<2>::from_data(TensorData::new(mask, [n, d]), &device)
    }
}

/// SplitMix64's finaliser over a Weyl sequence (Steele et al. 2014, <https://doi.org/10.1145/2714064.2660195>).
fn mix(index: u64) -> u64 {
    let z = index.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn masks(key: &DropoutKey, layer: usize) -> Vec<f32> {
        let ones = Tensor::<2>::ones([40, 250], &Device::flex());
        Dropout::new(0.3, key.clone(), layer).apply(ones).into_data().try_to_vec().expect("f32")
    }

    #[test]
    fn masks_depend_on_step_pass_and_layer_and_keep_the_mean() {
        let key = DropoutKey::default();
        let at = |step, pass, layer| {
            key.set(Seed(7), step, pass);
            masks(&key, layer)
        };
        let first = at(0, 0, 0);
        assert_eq!(first, at(0, 0, 0));
        for other in [at(1, 0, 0), at(0, 1, 0), at(0, 0, 1)] {
            assert_ne!(first, other);
        }
        let dropped = first.iter().filter(|x| **x == 0.0).count() as f32 / first.len() as f32;
        assert!((dropped - 0.3).abs() < 0.015, "{dropped}");
        assert!(first.iter().all(|&x| x == 0.0 || x == 1.0 / 0.7));
    }
}
