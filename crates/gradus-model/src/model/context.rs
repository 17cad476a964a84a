//! Context of a forward pass: the packed batch itself, or a KV cache that the pass extends.
//!
//! The layers of a model are written once; training, prefill and decoding differ only in the context.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{
    AttentionDropout, AttentionExtras, AttentionShape, CacheRow, CrossSegments, LayerCache, Segments,
    attention_across_with, attention_fused, attention_fused_dropping, attention_with, recompute,
};

use super::batch::{Batch, Input, Sources};
use super::dropout::DropoutStream;
use super::packed::Packed;

/// Keys and values of every layer.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    /// Keys and values of the sources, in a model with an encoder; numbered like the prompts.
    across: Vec<LayerCache>,
}

impl KvCache {
    /// Creates an empty cache with these attention shapes, for the layers' own tokens and for the sources (`across`). It has `slots` rows
    /// and initial room for `capacity` new tokens.
    pub(crate) fn new(
        layers: impl Iterator<Item = AttentionShape>,
        across: impl Iterator<Item = AttentionShape>,
        slots: usize,
        capacity: usize,
    ) -> Self {
        Self {
            layers: layers.map(|shape| LayerCache::new(shape, slots, capacity)).collect(),
            across: across.map(|shape| LayerCache::new(shape, 0, 0)).collect(),
        }
    }

    /// Copies rows with `length` new tokens to other slots, for each `(from, to)`.
    pub(crate) fn copy_slots(&mut self, copies: &[(usize, usize)], length: usize) {
        let of_layer = |layer: &mut LayerCache| copies.iter().for_each(|&(from, to)| layer.copy_slot(from, to, length));
        self.layers.iter_mut().for_each(of_layer);
    }

    /// Removes a prompt that no row continues.
    pub(crate) fn drop_prompt(&mut self, prompt: usize) {
        self.layers.iter_mut().chain(&mut self.across).for_each(|layer| layer.drop_prompt(prompt));
    }
}

/// Attention of a layer: from queries, keys and values to its output.
pub(super) type Attend<'a> = dyn FnMut([Tensor<2>; 3]) -> Tensor<2> + 'a;

/// Tokens of a forward pass and what they attend to.
pub enum Context<'a> {
    /// Whole sequences, each attending to itself, with the dropout of the pass: training and scoring.
    Packed(&'a Batch),
    /// Whole prompts, whose keys and values are stored in the cache.
    Prefill {
        /// Prompts.
        input: &'a Input,
        /// Cache for their keys and values.
        cache: &'a mut KvCache,
    },
    /// One new token per row of a cache.
    Decode {
        /// New tokens, `[B]`.
        ids: &'a [u32],
        /// Their positions, `[B]`.
        positions: &'a [u32],
        /// Rows that they continue, `[B]`.
        rows: &'a [CacheRow],
        /// Cache of the rows.
        cache: &'a mut KvCache,
    },
}

impl<'a> Context<'a> {
    /// Tokens, `[N]`.
    pub(crate) fn ids(&self) -> &[u32] {
        match self {
            Self::Packed(batch) => batch.packed().ids(),
            Self::Prefill { input, .. } => input.packed.ids(),
            Self::Decode { ids, .. } => ids,
        }
    }

    /// Input of the encoder. `None` while decoding, because the cache holds the encoder's output.
    pub(crate) fn sources(&self) -> Option<&'a Sources> {
        match self {
            Self::Packed(batch) => batch.input().sources.as_ref(),
            Self::Prefill { input, .. } => input.sources.as_ref(),
            Self::Decode { .. } => None,
        }
    }

    /// Position of each token in its sequence, `[N]`.
    pub(crate) fn positions(&self) -> Vec<u32> {
        match self {
            Self::Packed(batch) => batch.packed().positions(),
            Self::Prefill { input, .. } => input.packed.positions(),
            Self::Decode { positions, .. } => positions.to_vec(),
        }
    }

    /// Length of each token's sequence so far, `[N]`, for dynamic rotary scaling.
    pub(crate) fn lengths(&self) -> Vec<u32> {
        let of_sequences = |packed: &Packed| {
            let segments = packed.segments().iter();
            segments.flat_map(|s| std::iter::repeat_n(s.length() as u32, s.tokens.len())).collect()
        };
        match self {
            Self::Packed(batch) => of_sequences(batch.packed()),
            Self::Prefill { input, .. } => of_sequences(&input.packed),
            Self::Decode { positions, .. } => positions.iter().map(|position| position + 1).collect(),
        }
    }

    /// Stream of the dropout masks; `None` in sampling and scoring.
    pub(crate) fn dropout(&self) -> Option<DropoutStream> {
        match self {
            Self::Packed(batch) => batch.dropout(),
            Self::Prefill { .. } | Self::Decode { .. } => None,
        }
    }

    /// Adds the noise of the pass, if it has any, to the embeddings `x_nd`, `[N, D]`. Sampling has none.
    pub(crate) fn add_noise(&self, x_nd: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Packed(batch) => batch.add_noise(x_nd),
            Self::Prefill { .. } | Self::Decode { .. } => x_nd,
        }
    }

    /// Returns the segments with which the backward pass computes the blocks after `x_nd` again. `None` unless `recompute` is set and `x_nd`
    /// is in training.
    pub(crate) fn trained_segments(&self, recompute: bool, x_nd: &Tensor<2>) -> Option<Arc<Segments>> {
        match self {
            Self::Packed(batch) if recompute && x_nd.is_autodiff() => Some(Arc::new(batch.packed().segments().clone())),
            _ => None,
        }
    }

    /// Like [`trained_segments`](Self::trained_segments), for blocks of a decoder and their sources.
    ///
    /// # Panics
    /// When there are no sources.
    pub(crate) fn trained_across(
        &self,
        recompute: bool,
        x_nd: &Tensor<2>,
    ) -> Option<(Arc<Segments>, Arc<CrossSegments>)> {
        let segments = self.trained_segments(recompute, x_nd)?;
        Some((segments, Arc::new(self.sources().expect("an encoder has sources").cross.clone())))
    }

    /// Runs `module`, the layer with number `layer`, on `x_nd`. `forward` computes it with the attention of this pass. With `again`, the
    /// backward pass computes it again over these segments.
    pub(super) fn run_layer<M: Module + Sync + 'static>(
        &mut self,
        again: Option<Arc<Segments>>,
        (layer, shape, extras): (usize, AttentionShape, AttentionExtras),
        module: &M,
        x_nd: Tensor<2>,
        forward: impl Fn(&M, Tensor<2>, &mut Attend<'_>) -> Tensor<2> + Send + Sync + 'static,
    ) -> Tensor<2> {
        match again {
            Some(segments) => recompute(module, x_nd, move |module, x_nd| {
                forward(module, x_nd, &mut |[q, k, v]| attention_with(q, k, v, extras.clone(), &segments, shape))
            }),
            None => forward(module, x_nd, &mut |qkv| self.attend(layer, shape, extras.clone(), qkv)),
        }
    }

    /// Computes attention of layer `layer`, with an optional bias by position and the dropout of the pass. Widths as in
    /// [`gradus_kernels::attention`].
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        shape: AttentionShape,
        extras: AttentionExtras,
        [q_nd, k_nd, v_nd]: [Tensor<2>; 3],
    ) -> Tensor<2> {
        match self {
            Self::Packed(batch) => attention_with(q_nd, k_nd, v_nd, extras, batch.packed().segments(), shape),
            Self::Prefill { input, cache } => {
                let segments = input.packed.segments();
                cache.layers[layer].add_prompts(k_nd.clone(), v_nd.clone(), segments);
                attention_with(q_nd, k_nd, v_nd, extras, segments, shape)
            }
            Self::Decode { rows, cache, .. } => {
                cache.layers[layer].extend_biased(q_nd, k_nd, v_nd, extras.bias.as_ref(), rows, shape.scale)
            }
        }
    }

    /// Computes attention of layer `layer` to the sources. `keys_and_values` computes those of the sources, unless the cache holds them.
    /// Widths as in [`gradus_kernels::attention_across`].
    ///
    /// # Panics
    /// When there are no sources.
    pub(crate) fn attend_across(
        &mut self,
        layer: usize,
        shape: AttentionShape,
        dropout: Option<AttentionDropout>,
        q_nd: Tensor<2>,
        keys_and_values: impl FnOnce() -> [Tensor<2>; 2],
    ) -> Tensor<2> {
        let sources = self.sources();
        let cross = || &sources.expect("an encoder has sources").cross;
        let extras = AttentionExtras { bias: None, dropout };
        match self {
            Self::Packed(_) => {
                let [k_md, v_md] = keys_and_values();
                attention_across_with(q_nd, k_md, v_md, extras, cross(), shape)
            }
            Self::Prefill { cache, .. } => {
                let [k_md, v_md] = keys_and_values();
                let sources = sources.expect("an encoder has sources").packed.segments();
                cache.across[layer].add_prompts(k_md.clone(), v_md.clone(), sources);
                attention_across_with(q_nd, k_md, v_md, extras, cross(), shape)
            }
            Self::Decode { rows, cache, .. } => cache.across[layer].attend(q_nd, None, rows, shape.scale),
        }
    }

    /// Like [`attend`](Self::attend), with queries, keys and values side by side in one tensor.
    pub(crate) fn attend_fused(
        &mut self,
        layer: usize,
        shape: AttentionShape,
        dropout: Option<AttentionDropout>,
        qkv_nd: Tensor<2>,
    ) -> Tensor<2> {
        match self {
            Self::Packed(batch) => attention_fused_dropping(qkv_nd, dropout, batch.packed().segments(), shape),
            Self::Prefill { input, cache } => {
                let segments = input.packed.segments();
                cache.layers[layer].add_prompts_fused(qkv_nd.clone(), segments);
                attention_fused(qkv_nd, segments, shape)
            }
            Self::Decode { rows, cache, .. } => cache.layers[layer].extend_fused(qkv_nd, rows, shape.scale),
        }
    }
}
