//! Common parts of the blocks of all encoder families.

#![expect(non_snake_case, reason = "fields have the names of the tensors on disk")]

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{
    Activated, AttentionExtras, AttentionShape, attention_across_with, attention_with, embedding, recompute_of,
};

use super::TextBatch;
use super::texts::TextAttention;
use crate::error::Error;
use crate::model::activation::Activation;
use crate::model::build::Builder;
use crate::model::directory::ModelDir;
use crate::model::dropout::{DropoutSite, Dropping, check_probability};
use crate::model::layers::{Embedding, LayerNorm, Linear};

/// Error when an encoder cannot be built.
pub(super) enum Problem {
    /// Problem with its configuration.
    Config(String),
    /// Any other error.
    Other(Error),
}

impl Problem {
    /// Converts to an error about the model in `dir`.
    pub fn of(self, dir: &ModelDir) -> Error {
        match self {
            Self::Config(message) => Error::model(dir.path.join("config.json"), message),
            Self::Other(error) => error,
        }
    }
}

/// Sizes that determine the memory, as numbers of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) struct Sizes {
    pub vocabulary: usize,
    pub width: usize,
    /// Number of computed blocks; some may share their weights.
    pub layers: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub max_positions: Option<usize>,
    /// Whether the feed-forward layer has a gate.
    pub gated: bool,
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Self::Config(message)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Dropout probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Probabilities {
    /// Dropout of the attention probabilities.
    pub attention: f32,
    /// Dropout of attention's output.
    pub attended: f32,
    /// Dropout of the feed-forward layer's output.
    pub fed: f32,
}

/// Settings that a block is computed with, in addition to its weights.
#[derive(Clone, Copy)]
pub(super) struct BlockSettings {
    pub block: usize,
    pub dropping: Dropping,
    pub probabilities: Probabilities,
    pub activation: Activation,
}

impl BlockSettings {
    /// Returns the dropout of the attention probabilities at `site`.
    pub fn extras(self, site: fn(usize) -> DropoutSite) -> AttentionExtras {
        let dropout = self.dropping.probabilities(self.probabilities.attention, site(self.block));
        AttentionExtras { bias: None, dropout }
    }

    /// Projects `x_nd` to queries, keys and values.
    pub fn project(self, layers: [&Linear; 3], x_nd: &Tensor<2>) -> [Tensor<2>; 3] {
        Linear::forward_each(layers, x_nd.clone(), self.dropping.stream)
    }

    /// Returns the states of the tokens that continue to the next layer, and their attention outputs. All tokens of `x_nd` continue, or
    /// with `first` only the first token of each text.
    pub fn attend(
        self,
        layers: [&Linear; 3],
        x_nd: Tensor<2>,
        text_attention: &TextAttention,
        shape: AttentionShape,
        first: bool,
    ) -> [Tensor<2>; 2] {
        let extras = self.extras(DropoutSite::Attention);
        if !first {
            let [q, k, v] = self.project(layers, &x_nd);
            return [x_nd, attention_with(q, k, v, extras, &text_attention.segments, shape)];
        }
        let own = embedding(x_nd.clone(), &text_attention.first.tokens);
        let [q, k, v] = layers;
        let q = q.forward(own.clone(), self.dropping.stream);
        let [k, v] = [k, v].map(|layer| layer.forward(x_nd.clone(), self.dropping.stream));
        [own, attention_across_with(q, k, v, extras, &text_attention.first.cross, shape)]
    }

    /// Projects the attention output by `output`, adds it to `x_nd` and normalizes.
    pub fn attended(self, output: &Linear, norm: &LayerNorm, x_nd: Tensor<2>, attended_nd: Tensor<2>) -> Tensor<2> {
        let added = output.forward(attended_nd, self.dropping.stream);
        norm.forward(x_nd + self.dropping.apply(added, self.probabilities.attended, DropoutSite::Attended(self.block)))
    }

    /// Adds the output of the feed-forward layer to `x_nd` and normalizes.
    pub fn fed(self, [inner, outer]: [&Linear; 2], norm: &LayerNorm, x_nd: Tensor<2>) -> Tensor<2> {
        let masks = self.dropping.stream;
        let read = inner.forward(x_nd.clone(), masks);
        let added = match self.activation {
            Activation::Gelu(form) => outer.forward_activated(Activated::Gelu(form, read), &[inner], masks),
            Activation::Relu => outer.forward_activated(Activated::Relu(read), &[inner], masks),
            Activation::Tanh => outer.forward(self.activation.of(read), masks),
        };
        norm.forward(x_nd + self.dropping.apply(added, self.probabilities.fed, DropoutSite::FedForward(self.block)))
    }
}

/// Runs `blocks` one after the other. With `again`, the backward pass computes each block again instead of storing its results.
pub(super) fn stack<'a, L, F>(
    blocks: impl Iterator<Item = &'a L>,
    x_nd: Tensor<2>,
    again: bool,
    run: impl Fn(usize) -> F,
) -> Tensor<2>
where
    L: Module + Sync + 'static,
    F: Fn(&L, [Tensor<2>; 1]) -> Tensor<2> + Send + Sync + 'static,
{
    let again = again && x_nd.is_autodiff();
    blocks.enumerate().fold(x_nd, |x, (i, block)| {
        let run = run(i);
        if again { recompute_of(block, [x], run) } else { run(block, [x]) }
    })
}

/// Rejects invalid sizes.
pub(super) fn check_sizes(
    [(width_key, width), (heads_key, heads)]: [(&str, usize); 2],
    blocks: usize,
    vocabulary: usize,
) -> Result<(), String> {
    if blocks == 0 || vocabulary == 0 {
        return Err("an encoder has at least one block and one id".into());
    }
    match heads != 0 && width != 0 && width.is_multiple_of(heads) {
        true => Ok(()),
        false => Err(format!("`{width_key}` {width} is not a multiple of `{heads_key}` {heads}")),
    }
}

/// Rejects invalid dropout probabilities.
pub(super) fn check_probabilities(of_keys: &[(&str, f32)]) -> Result<(), String> {
    of_keys.iter().try_for_each(|&(key, value)| check_probability(key, value))
}

/// Sum of the embeddings of BERT and similar models, normalized.
#[derive(Module, Debug)]
pub(super) struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Option<Embedding>,
    token_type_embeddings: Option<Embedding>,
    /// Projection from the width of the embeddings to that of the encoder.
    embed_proj: Option<Linear>,
    LayerNorm: LayerNorm,
}

/// Sizes of embeddings.
#[derive(Debug, Clone, Copy)]
pub(super) struct EmbeddingSizes {
    pub vocabulary: usize,
    /// Number of rows of the position table; 0 without one.
    pub positions: usize,
    /// Number of rows of the type table; 0 without one.
    pub types: usize,
    /// Width of the tables.
    pub width: usize,
    /// Width of the normalized output.
    pub output: usize,
    pub epsilon: f64,
    pub deviation: f32,
}

impl Embeddings {
    pub fn build(mut b: Builder<'_>, sizes: EmbeddingSizes) -> Self {
        let EmbeddingSizes { vocabulary, positions, types, width, output, epsilon, deviation } = sizes;
        let mut table = |name: &str, rows: usize| Embedding::build(b.enter(name), rows, width, deviation);
        Self {
            word_embeddings: table("word_embeddings", vocabulary),
            position_embeddings: (positions > 0).then(|| table("position_embeddings", positions)),
            token_type_embeddings: (types > 0).then(|| table("token_type_embeddings", types)),
            embed_proj: (width != output)
                .then(|| Linear::build(b.enter("embed_proj"), width, output, false, deviation)),
            LayerNorm: LayerNorm::build(b.enter("LayerNorm"), output, epsilon),
        }
    }

    /// Computes the embedding of each token, `[N, D]`, at these positions, `[N]`.
    pub fn forward(&self, texts: &TextBatch, positions_n: &[u32]) -> Tensor<2> {
        let mut sum = self.word_embeddings.forward(texts.packed().ids());
        if let Some(table) = &self.token_type_embeddings {
            sum = sum + table.forward(texts.types_n());
        }
        if let Some(table) = &self.position_embeddings {
            sum = sum + table.forward(positions_n);
        }
        if let Some(projection) = &self.embed_proj {
            sum = projection.forward(sum, None);
        }
        self.LayerNorm.forward(sum)
    }

    /// Table of words, `[V, …]`.
    pub fn words(&self) -> Tensor<2> {
        self.word_embeddings.weight.val()
    }
}
