//! DistilBERT, Sanh et al. 2019, <https://arxiv.org/abs/1910.01108>: BERT with half of the blocks and without token
//! types.
//!
//! Field names are those of `transformers`' `DistilBertModel`; config keys are those of its `config.json`.

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::Mask;
use serde::Deserialize;

use super::block::{
    BlockSettings, EmbeddingSizes, Embeddings, Probabilities, Problem, Sizes, check_probabilities, check_sizes, stack,
};
use super::{Body, EncoderInfo, Running, TextBatch};
use crate::model::activation::Activation;
use crate::model::body::equal_heads;
use crate::model::build::Builder;
use crate::model::defaults::{deviation, gelu, tenth};
use crate::model::directory::ModelDir;
use crate::model::dropout::{DropoutSite, Dropping};
use crate::model::layers::{LayerNorm, Linear, Linears, linears};

/// ε of the norms, which is not configurable.
const EPSILON: f64 = 1e-12;

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct DistilBertConfig {
    vocab_size: usize,
    dim: usize,
    n_layers: usize,
    n_heads: usize,
    hidden_dim: usize,
    max_position_embeddings: usize,
    #[serde(default = "gelu")]
    activation: String,
    #[serde(default = "tenth")]
    dropout: f32,
    #[serde(default = "tenth")]
    attention_dropout: f32,
    #[serde(default = "deviation")]
    initializer_range: f32,
}

/// Reads the sizes of the model in `dir`.
pub(super) fn sizes(dir: &ModelDir) -> Result<Sizes, Problem> {
    let config: DistilBertConfig = dir.read_config()?;
    check_sizes([("dim", config.dim), ("n_heads", config.n_heads)], config.n_layers, config.vocab_size)?;
    let (d, layers, inner) = (config.dim, config.n_layers, config.hidden_dim);
    Ok(Sizes {
        vocabulary: config.vocab_size,
        width: d,
        layers,
        heads: config.n_heads,
        head_dim: d / config.n_heads,
        inner,
        max_positions: Some(config.max_position_embeddings),
        gated: false,
    })
}

/// The encoder of DistilBERT.
#[derive(Module, Debug)]
pub struct DistilBertModel {
    pub(super) embeddings: Embeddings,
    transformer: Blocks,
    #[module(skip)]
    config: DistilBertConfig,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    pub(super) info: EncoderInfo,
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
struct Blocks {
    layer: Vec<Block>,
}

#[derive(Module, Debug)]
struct Block {
    attention: Attention,
    sa_layer_norm: LayerNorm,
    ffn: FeedForward,
    output_layer_norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Attention {
    q_lin: Linear,
    k_lin: Linear,
    v_lin: Linear,
    out_lin: Linear,
}

#[derive(Module, Debug)]
struct FeedForward {
    lin1: Linear,
    lin2: Linear,
}

impl DistilBertModel {
    pub(super) fn build(mut b: Builder<'_>, dir: &ModelDir) -> Result<Self, Problem> {
        let config: DistilBertConfig = dir.read_config()?;
        check_sizes([("dim", config.dim), ("n_heads", config.n_heads)], config.n_layers, config.vocab_size)?;
        check_probabilities(&[("dropout", config.dropout), ("attention_dropout", config.attention_dropout)])?;
        let activation = Activation::named("activation", &config.activation)?;
        let (d, inner, std) = (config.dim, config.hidden_dim, config.initializer_range);
        let sizes = EmbeddingSizes {
            vocabulary: config.vocab_size,
            positions: config.max_position_embeddings,
            types: 0,
            width: d,
            output: d,
            epsilon: EPSILON,
            deviation: std,
        };
        let embeddings = Embeddings::build(b.enter("embeddings"), sizes);
        let layer = (0..config.n_layers).map(|i| {
            let mut b = b.enter(format_args!("transformer.layer.{i}"));
            let mut linear =
                |name: &str, input: usize, output: usize| Linear::build(b.enter(name), input, output, true, std);
            let attention = Attention {
                q_lin: linear("attention.q_lin", d, d),
                k_lin: linear("attention.k_lin", d, d),
                v_lin: linear("attention.v_lin", d, d),
                out_lin: linear("attention.out_lin", d, d),
            };
            let ffn = FeedForward { lin1: linear("ffn.lin1", d, inner), lin2: linear("ffn.lin2", inner, d) };
            Block {
                attention,
                sa_layer_norm: LayerNorm::build(b.enter("sa_layer_norm"), d, EPSILON),
                ffn,
                output_layer_norm: LayerNorm::build(b.enter("output_layer_norm"), d, EPSILON),
            }
        });
        let transformer = Blocks { layer: layer.collect() };
        let info = EncoderInfo {
            has_global: false,
            vocabulary: config.vocab_size,
            width: d,
            max_positions: Some(config.max_position_embeddings),
            types: 1,
            initializer_range: std,
        };
        Ok(Self { embeddings, transformer, config, activation, info, running: Running::default() })
    }
}

impl DistilBertModel {
    /// Computes final states of all tokens, or with `first` only of the first token of each text.
    fn states(&self, texts: &TextBatch, first: bool) -> Tensor<2> {
        let dropping = Dropping { stream: texts.dropout(), own: self.running.dropout };
        let embedded = self.embeddings.forward(texts, &texts.packed().positions());
        let x = dropping.apply(embedded, self.config.dropout, DropoutSite::Embedding);
        let shape = equal_heads(self.config.dim, self.config.n_heads, Mask::Bidirectional, self.running.compute);
        let DistilBertConfig { dropout, attention_dropout, .. } = self.config;
        // Attention's output has no dropout.
        let probabilities = Probabilities { attention: attention_dropout, attended: 0.0, fed: dropout };
        let activation = self.activation;
        let blocks = &self.transformer.layer;
        stack(blocks.iter(), x, self.running.recompute, |i| {
            let (settings, text_attention) =
                (BlockSettings { block: i, dropping, probabilities, activation }, texts.text_attention());
            let first = first && i + 1 == blocks.len();
            move |block: &Block, [x]| {
                let Attention { q_lin, k_lin, v_lin, out_lin } = &block.attention;
                let [x, attended] = settings.attend([q_lin, k_lin, v_lin], x, &text_attention, shape, first);
                let x = settings.attended(out_lin, &block.sa_layer_norm, x, attended);
                settings.fed([&block.ffn.lin1, &block.ffn.lin2], &block.output_layer_norm, x)
            }
        })
    }
}

linears! {
    DistilBertModel: transformer;
    Blocks: layer;
    Block: attention, ffn;
    Attention: q_lin, k_lin, v_lin, out_lin;
    FeedForward: lin1, lin2;
}

impl Body for DistilBertModel {
    fn forward(&self, texts: &TextBatch) -> Tensor<2> {
        self.states(texts, false)
    }

    fn first(&self, texts: &TextBatch) -> Tensor<2> {
        self.states(texts, true)
    }

    fn keep_layers(&mut self, layers: usize) -> usize {
        let all = self.transformer.layer.len();
        self.transformer.layer.truncate(layers);
        all
    }
}
