//! Interface of every family's trunk to the rest of the program.

use burn::tensor::Tensor;
use gradus_kernels::{AttentionShape, Mask, Precision};

use super::context::Context;

/// Body of a [`Trunk`](super::Trunk): token ids in, hidden states out.
pub(super) trait Body {
    /// Computes final hidden states, `[N, D]`.
    fn forward(&self, context: &mut Context<'_>) -> Tensor<2>;

    /// Returns the embedding table, `[V, D]`.
    fn embedding(&self) -> Tensor<2>;

    /// Returns the shapes of every layer's attention (of the decoder) to its own tokens, and to the sources.
    fn attention(&self) -> [Vec<AttentionShape>; 2];

    /// Returns properties from its configuration.
    fn info(&self) -> TrunkInfo;
}

/// Properties of a trunk that the rest of the program uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TrunkInfo {
    /// Vocabulary size, V.
    pub vocabulary: usize,
    /// Width of the hidden states, D.
    pub width: usize,
    /// Length of the longest sequence that it can compute; `None` if there is no limit.
    pub max_positions: Option<usize>,
    /// Whether rotary angles of every token depend on the final length of its sequence.
    pub angles_vary: bool,
    /// Standard deviation of newly initialized weights.
    pub initializer_range: f32,
    /// Whether the configuration ties the LM head to the embedding.
    pub ties_head: bool,
    /// Factor of hidden states before the LM head.
    pub head_scale: f32,
    /// Soft cap of logits.
    pub logit_cap: Option<f32>,
    /// Start id of the decoder in training, in a model with an encoder.
    pub decoder_start: Option<u32>,
}

/// Runtime settings of a trunk or an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Running {
    /// Whether the backward pass computes blocks again instead of storing their results.
    pub recompute: bool,
    /// Whether the configured dropout applies in passes that have masks.
    pub dropout: bool,
    /// Precision of the operands of attention's products, on devices with kernels for it.
    pub compute: Precision,
    /// Start id of the decoder in sampling, in a model with an encoder.
    pub sampling_start: Option<u32>,
}

/// Returns the shape of attention under `mask` with heads that divide `width`, each with its own keys and values.
pub(super) fn equal_heads(width: usize, heads: usize, mask: Mask, precision: Precision) -> AttentionShape {
    let head_dim = width / heads;
    AttentionShape { heads, kv_heads: heads, head_dim, scale: (head_dim as f32).powf(-0.5), mask, cap: None, precision }
}
