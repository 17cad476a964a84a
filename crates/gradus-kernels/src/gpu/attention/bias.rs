//! The bias by distance that is added to scores.

use std::sync::Arc;

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::attention::PositionBuckets;
use crate::gpu::{Words, empty_f32};

/// A bias on the device: the buckets of the distances, and its values `[H, R]`. Without a bias, neither is read.
pub(super) struct Biases {
    pub buckets: Arc<Words>,
    pub values: CubeTensor,
}

impl Biases {
    pub fn new(bias: Option<(&PositionBuckets, &CubeTensor)>, like: &CubeTensor) -> Self {
        match bias {
            Some((buckets, values)) => Self { buckets: buckets.on_device(like), values: values.clone() },
            None => Self { buckets: Arc::new(Words::shared(like, &[])), values: empty_f32(like, &[1]) },
        }
    }
}

/// Returns the bucket of the distance from the query at position `standing` to the key at position `key`.
#[cube]
pub(super) fn bucket_of(buckets: &[u32], key: usize, standing: usize) -> u32 {
    let reach = buckets.len() / 2;
    let mut place = reach;
    if key >= standing {
        place += min(key - standing, reach);
    } else {
        place -= min(standing - key, reach);
    }
    buckets[place]
}
