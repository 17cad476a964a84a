//! What every family's trunk does, and what the rest of the program asks about one.

use burn::tensor::Tensor;
use gradus_kernels::{AttentionShape, Precision};

use super::context::Context;
use super::layers::Linear;

/// The body of a [`Trunk`](super::Trunk): token ids in, hidden states out.
pub(super) trait Body {
    /// Final hidden states, `[N, D]`.
    fn forward(&self, context: &mut Context<'_>) -> Tensor<2>;

    /// The embedding table, `[V, D]`.
    fn embedding(&self) -> Tensor<2>;

    /// All linear layers with their names in the trunk, such as `h.0.attn.c_attn`.
    fn linears_mut(&mut self) -> Vec<(String, &mut Linear)>;

    /// The attention of every layer (of the decoder) to its own tokens, and to the sources.
    fn attention(&self) -> [Vec<AttentionShape>; 2];

    /// What its configuration says of it.
    fn facts(&self) -> Facts;

    /// How it is run.
    fn running(&self) -> Running;

    /// The same, to change it.
    fn running_mut(&mut self) -> &mut Running;
}

/// What the rest of the program asks about a trunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Facts {
    /// Ids, V.
    pub vocabulary: usize,
    /// Width of the hidden states, D.
    pub width: usize,
    /// The longest sequence that can be computed, where there is a limit.
    pub max_positions: Option<usize>,
    /// Whether rotary angles of every token depend on how long its sequence becomes.
    pub angles_vary: bool,
    /// The standard deviation of fresh weights.
    pub initializer_range: f32,
    /// Whether the configuration ties the LM head to the embedding.
    pub ties_head: bool,
    /// The factor of hidden states before the LM head.
    pub head_scale: f32,
    /// Where logits are softly capped.
    pub logit_cap: Option<f32>,
    /// The id that the decoder begins with, of a model with an encoder.
    pub decoder_start: Option<u32>,
}

/// How a trunk or an encoder is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Running {
    /// Whether the backward pass runs the blocks again instead of keeping what they computed.
    pub recompute: bool,
    /// Whether numbers are dropped, as the configuration says, in passes that have masks.
    pub dropout: bool,
    /// How the operands of attention's products are held, where a device has kernels for that.
    pub compute: Precision,
}
