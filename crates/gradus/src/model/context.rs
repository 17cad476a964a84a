//! What a forward pass attends to: the packed batch itself, or a cache that it extends.
//!
//! The layers of a model are written once; training, prefill and decoding differ only in the context they run in.

use std::sync::Arc;

use burn::tensor::Tensor;
use gradus_kernels::{
    AttentionDropout, AttentionShape, CacheRow, LayerCache, Segments, attention, attention_dropping, attention_fused,
    attention_fused_dropping,
};

use super::batch::Batch;
use super::dropout::DropoutStream;
use super::packed::Packed;

/// Keys and values of every layer.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<LayerCache>,
}

impl KvCache {
    /// An empty cache of layers of these shapes with `slots` rows that have room for `capacity` new
    /// tokens at first.
    pub(crate) fn new(layers: impl Iterator<Item = AttentionShape>, slots: usize, capacity: usize) -> Self {
        Self { layers: layers.map(|shape| LayerCache::new(shape, slots, capacity)).collect() }
    }

    /// Gives slots what others hold of rows that have added `length` tokens: `(from, to)` each.
    pub(crate) fn copy_slots(&mut self, copies: &[(usize, usize)], length: usize) {
        let of_layer = |layer: &mut LayerCache| copies.iter().for_each(|&(from, to)| layer.copy_slot(from, to, length));
        self.layers.iter_mut().for_each(of_layer);
    }

    /// Forgets a prompt that no row continues any more.
    pub(crate) fn drop_prompt(&mut self, prompt: usize) {
        self.layers.iter_mut().for_each(|layer| layer.drop_prompt(prompt));
    }
}

/// The tokens of a forward pass and what they see.
pub enum Context<'a> {
    /// Whole sequences, each seeing itself, and the dropout of the pass: training and scoring.
    Packed(&'a Batch),
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
            Self::Packed(batch) => batch.packed().ids(),
            Self::Prefill { packed, .. } => packed.ids(),
            Self::Decode { ids, .. } => ids,
        }
    }

    /// The position of each token in its sequence, `[N]`.
    pub(crate) fn positions(&self) -> Vec<u32> {
        match self {
            Self::Packed(batch) => batch.packed().positions(),
            Self::Prefill { packed, .. } => packed.positions(),
            Self::Decode { positions, .. } => positions.to_vec(),
        }
    }

    /// The length of each token's sequence so far, `[N]`: what dynamic rotary scaling depends on.
    pub(crate) fn lengths(&self) -> Vec<u32> {
        let of_sequences = |packed: &Packed| {
            let segments = packed.segments().iter();
            segments.flat_map(|s| std::iter::repeat_n(s.length() as u32, s.tokens.len())).collect()
        };
        match self {
            Self::Packed(batch) => of_sequences(batch.packed()),
            Self::Prefill { packed, .. } => of_sequences(packed),
            Self::Decode { positions, .. } => positions.iter().map(|position| position + 1).collect(),
        }
    }

    /// What the masks of dropout are drawn from: none while sampling and scoring.
    pub(crate) fn dropout(&self) -> Option<DropoutStream> {
        match self {
            Self::Packed(batch) => batch.dropout(),
            Self::Prefill { .. } | Self::Decode { .. } => None,
        }
    }

    /// What the backward pass needs to run the blocks that follow `x_nd` again, where that is `wanted` and `x_nd` is in
    /// training.
    pub(crate) fn trained_segments(&self, wanted: bool, x_nd: &Tensor<2>) -> Option<Arc<Segments>> {
        match self {
            Self::Packed(batch) if wanted && x_nd.is_autodiff() => Some(Arc::new(batch.packed().segments().clone())),
            _ => None,
        }
    }

    /// Attention of layer `layer`, with the dropout of a pass that has one. Widths as in [`gradus_kernels::attention`].
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        shape: AttentionShape,
        dropout: Option<AttentionDropout>,
        [q_nd, k_nd, v_nd]: [Tensor<2>; 3],
    ) -> Tensor<2> {
        match self {
            Self::Packed(batch) => attention_dropping(q_nd, k_nd, v_nd, dropout, batch.packed().segments(), shape),
            Self::Prefill { packed, cache } => {
                cache.layers[layer].add_prompts(k_nd.clone(), v_nd.clone(), packed.segments());
                attention(q_nd, k_nd, v_nd, packed.segments(), shape)
            }
            Self::Decode { rows, cache, .. } => cache.layers[layer].extend(q_nd, k_nd, v_nd, rows, shape.scale),
        }
    }

    /// [`attend`](Self::attend) for queries, keys and values side by side in one tensor.
    pub(crate) fn attend_fused(
        &mut self,
        layer: usize,
        shape: AttentionShape,
        dropout: Option<AttentionDropout>,
        qkv_nd: Tensor<2>,
    ) -> Tensor<2> {
        match self {
            Self::Packed(batch) => attention_fused_dropping(qkv_nd, dropout, batch.packed().segments(), shape),
            Self::Prefill { packed, cache } => {
                cache.layers[layer].add_prompts_fused(qkv_nd.clone(), packed.segments());
                attention_fused(qkv_nd, packed.segments(), shape)
            }
            Self::Decode { rows, cache, .. } => cache.layers[layer].extend_fused(qkv_nd, rows, shape.scale),
        }
    }
}
