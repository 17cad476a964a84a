//! Dropout, whose masks are those of the processor; the mathematics is in [`crate::dropout`].
//!
//! A number of 64 bits is two words, because WGSL has no larger integers.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{
    Before, EACH, GpuOp, InputGradients, UNITS, arg, element, elements, empty_like, grid_of_groups, nth_element,
};
use crate::attention::AttentionDropout;
use crate::dropout::{Dropout, FIRST, Keeping, SECOND, WEYL};

/// Returns the lower 64 bits of the product of two numbers.
#[cube]
fn times(low: u32, high: u32, #[comptime] by: u64) -> (u32, u32) {
    let by_low = comptime!(by as u32).runtime();
    let by_high = comptime!((by >> 32) as u32).runtime();
    (low * by_low, low.mul_hi(by_low) + low * by_high + high * by_low)
}

/// Returns the lower 64 bits of the sum of a number and a word.
#[cube]
fn plus(low: u32, high: u32, word: u32) -> (u32, u32) {
    let sum = low + word;
    (sum, high + select(sum < word, 1u32, 0u32))
}

/// [`mix`](crate::dropout::mix).
#[cube]
fn mixed(low: u32, high: u32) -> (u32, u32) {
    let (a, b) = times(low, high, WEYL);
    let (a, b) = plus(a, b, comptime!(WEYL as u32).runtime());
    let b = b + comptime!((WEYL >> 32) as u32).runtime();
    let (a, b) = times(a ^ (a >> 30u32) ^ (b << 2u32), b ^ (b >> 30u32), FIRST);
    let (a, b) = times(a ^ (a >> 27u32) ^ (b << 5u32), b ^ (b >> 27u32), SECOND);
    (a ^ (a >> 31u32) ^ (b << 1u32), b ^ (b >> 31u32))
}

/// Returns the key of the probabilities of one head and query.
#[cube]
pub(super) fn row_key(head: usize, query: usize, low: u32, high: u32) -> (u32, u32) {
    let (of_low, of_high) = mixed(query as u32, head as u32);
    mixed(low ^ of_low, high ^ of_high)
}

/// Whether the number with this index after `key` is dropped.
#[cube]
pub(super) fn is_dropped(low: u32, high: u32, index: usize, threshold: u32) -> bool {
    let (low, high) = plus(low, high, index as u32);
    let (_low, high) = mixed(low, high);
    high < threshold
}

#[cube(launch)]
fn masked<F: Float>(
    x: &[F],
    y: &mut [F],
    low: u32,
    high: u32,
    threshold: u32,
    factor: f32,
    #[define(F)] _dtype: ElemType,
) {
    let mut values = Array::<f32>::new(EACH);
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < y.len() {
            let kept = select(is_dropped(low, high, at, threshold), 0.0f32, factor);
            values[j] = f32::cast_from(x[at]) * kept;
        }
    }
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < y.len() {
            y[at] = F::cast_from(values[j]);
        }
    }
}

/// What kernels need of a dropout: the words of the key, the threshold, and the factor of what is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Masks {
    pub low: u32,
    pub high: u32,
    pub threshold: u32,
    pub factor: f32,
}

impl Masks {
    fn new(key: u64, keeping: Keeping) -> Self {
        let Keeping { threshold, factor } = keeping;
        Self { low: key as u32, high: (key >> 32) as u32, threshold, factor }
    }

    /// Those of attention probabilities. Without dropout, nothing reads them.
    pub fn of_attention(dropout: Option<AttentionDropout>) -> Self {
        let AttentionDropout { probability, key } = dropout.unwrap_or(AttentionDropout { probability: 0.0, key: 0 });
        Self::new(key, Keeping::new(probability))
    }
}

impl Dropout {
    fn masked_on_gpu(&self, x: &CubeTensor) -> CubeTensor {
        let (y, Masks { low, high, threshold, factor }) = (empty_like(x), Masks::new(self.key, self.keeping));
        if elements(x) > 0 {
            let (grid, units) = (grid_of_groups(elements(x)), CubeDim::new_1d(UNITS));
            masked::launch(&x.client, grid, units, arg(x), arg(&y), low, high, threshold, factor, element(x));
        }
        y
    }
}

impl GpuOp for Dropout {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (self.masked_on_gpu(&inputs[0]), Vec::new())
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        vec![Some(self.masked_on_gpu(&grad))]
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let of = |dtype| {
        let ([a, b], settings) = (offline.buffers(), offline.settings(UNITS));
        let (device, target) = (offline.device(), offline.target());
        let kernel = masked::Masked::new(settings, device, target, a, b, (), (), (), (), dtype);
        offline.source("dropout", dtype, &kernel)
    };
    offline.dtypes().map(of).into()
}
