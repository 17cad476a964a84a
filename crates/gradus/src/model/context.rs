//! What a forward pass attends to: the packed batch itself, or a cache that it extends.
//!
//! The layers of a model are written once; training, prefill and decoding differ only in the context they run in.

use std::sync::Arc;

use burn::tensor::Tensor;
use gradus_kernels::{AttentionShape, CacheRow, LayerCache, Segments, attention, attention_fused};

use super::Packed;

/// Keys and values of every layer.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<LayerCache>,
}

impl KvCache {
    /// An empty cache of `layers` layers with `slots` rows of at most `capacity` new tokens.
    pub(crate) fn new(shape: AttentionShape, layers: usize, slots: usize, capacity: usize) -> Self {
        Self { layers: (0..layers).map(|_| LayerCache::new(shape, slots, capacity)).collect() }
    }

    /// Forgets the prompts before `prompt`: no row continues them any more.
    pub fn drop_prompts_before(&mut self, prompt: usize) {
        self.layers.iter_mut().for_each(|layer| layer.drop_prompts_before(prompt));
    }
}

/// The tokens of a forward pass and what they see.
pub enum Context<'a> {
    /// Whole sequences, each seeing itself: training and scoring.
    Packed(&'a Packed),
    /// Whole prompts, whose keys and values are kept in the cache.
    Prefill {
        /// The prompts.
        packed: &'a Packed,
        /// Where their keys and values go.
        cache: &'a mut KvCache,
    },
    /// One new token for each row of a cache.
    Decode {
        /// The new tokens, `[B]`.
        ids: &'a [u32],
        /// Their positions, `[B]`.
        positions: &'a [u32],
        /// The rows they continue, `[B]`.
        rows: &'a [CacheRow],
        /// The cache.
        cache: &'a mut KvCache,
    },
}

impl Context<'_> {
    /// The tokens, `[N]`.
    pub(crate) fn ids(&self) -> &[u32] {
        match self {
            Self::Packed(packed) | Self::Prefill { packed, .. } => packed.ids(),
            Self::Decode { ids, .. } => ids,
        }
    }

    /// The position of each token in its sequence, `[N]`.
    pub(crate) fn positions(&self) -> Vec<u32> {
        match self {
            Self::Packed(packed) | Self::Prefill { packed, .. } => packed.positions(),
            Self::Decode { positions, .. } => positions.to_vec(),
        }
    }

    /// The length of each token's sequence so far, `[N]`: what dynamic rotary scaling depends on.
    pub(crate) fn lengths(&self) -> Vec<u32> {
        match self {
            Self::Packed(packed) | Self::Prefill { packed, .. } => {
                let segments = packed.segments().iter();
                segments.flat_map(|s| std::iter::repeat_n(s.length() as u32, s.tokens.len())).collect()
            }
            Self::Decode { positions, .. } => positions.iter().map(|position| position + 1).collect(),
        }
    }

    /// What the backward pass needs to run the blocks that follow `x_nd` again, where that is `wanted` and `x_nd` is in
    /// training.
    pub(crate) fn trained_segments(&self, wanted: bool, x_nd: &Tensor<2>) -> Option<Arc<Segments>> {
        match self {
            Self::Packed(packed) if wanted && x_nd.is_autodiff() => Some(Arc::new(packed.segments().clone())),
            _ => None,
        }
    }

    /// Attention of layer `layer`. Widths as in [`gradus_kernels::attention`].
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        shape: AttentionShape,
        q_nd: Tensor<2>,
        k_nd: Tensor<2>,
        v_nd: Tensor<2>,
    ) -> Tensor<2> {
        match self {
            Self::Packed(packed) => attention(q_nd, k_nd, v_nd, packed.segments(), shape),
            Self::Prefill { packed, cache } => {
                cache.layers[layer].add_prompts(k_nd.clone(), v_nd.clone(), packed.segments());
                attention(q_nd, k_nd, v_nd, packed.segments(), shape)
            }
            Self::Decode { rows, cache, .. } => cache.layers[layer].extend(q_nd, k_nd, v_nd, rows, shape.scale),
        }
    }

    /// [`attend`](Self::attend) for queries, keys and values side by side in one tensor.
    pub(crate) fn attend_fused(&mut self, layer: usize, shape: AttentionShape, qkv_nd: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Packed(packed) => attention_fused(qkv_nd, packed.segments(), shape),
            Self::Prefill { packed, cache } => {
                cache.layers[layer].add_prompts_fused(qkv_nd.clone(), packed.segments());
                attention_fused(qkv_nd, packed.segments(), shape)
            }
            Self::Decode { rows, cache, .. } => cache.layers[layer].extend_fused(qkv_nd, rows, shape.scale),
        }
    }
}
