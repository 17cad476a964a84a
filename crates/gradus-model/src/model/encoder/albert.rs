//! ALBERT, Lan et al. 2019, <https://arxiv.org/abs/1909.11942>: narrow embeddings, and blocks that share their weights.
//!
//! Field names are those of `transformers`' `AlbertModel`; config keys are those of its `config.json`.

#![expect(non_snake_case, reason = "fields have the names of the tensors on disk")]

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{Mask, attention_with};
use serde::Deserialize;

use super::bert::BertConfig;
use super::block::{BlockSettings, EmbeddingSizes, Embeddings, Probabilities, Problem, Sizes, stack};
use super::{Body, EncoderInfo, Running, TextBatch};
use crate::model::activation::Activation;
use crate::model::body::equal_heads;
use crate::model::build::Builder;
use crate::model::defaults::one;
use crate::model::directory::ModelDir;
use crate::model::dropout::{DropoutSite, Dropping};
use crate::model::layers::{LayerNorm, Linear, Linears, linears};

/// Keys of `config.json` that BERT does not have.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct AlbertConfig {
    embedding_size: usize,
    #[serde(default = "one")]
    num_hidden_groups: usize,
    #[serde(default = "one")]
    inner_group_num: usize,
}

/// Reads the sizes of the model in `dir`.
pub(super) fn sizes(dir: &ModelDir) -> Result<Sizes, Problem> {
    let (config, own): (BertConfig, AlbertConfig) = (dir.read_config()?, dir.read_config()?);
    config.check()?;
    let (d, inner) = (config.hidden_size, config.intermediate_size);
    Ok(Sizes {
        vocabulary: config.vocab_size,
        width: d,
        layers: config.num_hidden_layers * own.inner_group_num,
        heads: config.num_attention_heads,
        head_dim: d / config.num_attention_heads,
        inner,
        max_positions: Some(config.max_position_embeddings),
        gated: false,
    })
}

/// The encoder of ALBERT.
#[derive(Module, Debug)]
pub struct AlbertModel {
    pub(super) embeddings: Embeddings,
    encoder: Blocks,
    #[module(skip)]
    config: BertConfig,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    pub(super) info: EncoderInfo,
    #[module(skip)]
    pub(super) running: Running,
    /// Number of blocks that are computed.
    #[module(skip)]
    kept: usize,
}

#[derive(Module, Debug)]
struct Blocks {
    embedding_hidden_mapping_in: Linear,
    albert_layer_groups: Vec<Group>,
}

#[derive(Module, Debug)]
struct Group {
    albert_layers: Vec<Block>,
}

#[derive(Module, Debug)]
struct Block {
    full_layer_layer_norm: LayerNorm,
    attention: Attention,
    ffn: Linear,
    ffn_output: Linear,
}

#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    dense: Linear,
    LayerNorm: LayerNorm,
}

impl AlbertModel {
    pub(super) fn build(mut b: Builder<'_>, dir: &ModelDir) -> Result<Self, Problem> {
        let (config, own): (BertConfig, AlbertConfig) = (dir.read_config()?, dir.read_config()?);
        config.check()?;
        let AlbertConfig { embedding_size, num_hidden_groups: groups, inner_group_num } = own;
        if groups == 0 || inner_group_num == 0 || groups > config.num_hidden_layers {
            return Err(Problem::Config(format!(
                "`num_hidden_groups` is {groups} and `inner_group_num` {inner_group_num}: both at least 1, and not more \
                 groups than the {} blocks",
                config.num_hidden_layers
            )));
        }
        let activation = Activation::named("hidden_act", &config.hidden_act)?;
        let (d, inner, std) = (config.hidden_size, config.intermediate_size, config.initializer_range);
        let sizes = EmbeddingSizes {
            vocabulary: config.vocab_size,
            positions: config.max_position_embeddings,
            types: config.type_vocab_size,
            width: embedding_size,
            output: embedding_size,
            epsilon: config.layer_norm_eps,
            deviation: std,
        };
        let embeddings = Embeddings::build(b.enter("embeddings"), sizes);
        let mapping = b.enter("encoder.embedding_hidden_mapping_in");
        let embedding_hidden_mapping_in = Linear::build(mapping, embedding_size, d, true, std);
        let mut block = |group: usize, i: usize| {
            let mut b = b.enter(format_args!("encoder.albert_layer_groups.{group}.albert_layers.{i}"));
            let mut linear =
                |name: &str, input: usize, output: usize| Linear::build(b.enter(name), input, output, true, std);
            let [query, key, value, dense] =
                ["query", "key", "value", "dense"].map(|name| linear(&format!("attention.{name}"), d, d));
            let (ffn, ffn_output) = (linear("ffn", d, inner), linear("ffn_output", inner, d));
            let mut norm = |name: &str| LayerNorm::build(b.enter(name), d, config.layer_norm_eps);
            Block {
                full_layer_layer_norm: norm("full_layer_layer_norm"),
                attention: Attention { query, key, value, dense, LayerNorm: norm("attention.LayerNorm") },
                ffn,
                ffn_output,
            }
        };
        let groups =
            (0..groups).map(|group| Group { albert_layers: (0..inner_group_num).map(|i| block(group, i)).collect() });
        let encoder = Blocks { embedding_hidden_mapping_in, albert_layer_groups: groups.collect() };
        let info = EncoderInfo {
            has_global: false,
            vocabulary: config.vocab_size,
            width: d,
            max_positions: Some(config.max_position_embeddings),
            types: config.type_vocab_size,
            initializer_range: std,
        };
        let kept = config.num_hidden_layers;
        Ok(Self { embeddings, encoder, config, activation, info, running: Running::default(), kept })
    }

    /// Returns the blocks in the order of computation. The blocks of each group are used several times.
    fn order(&self) -> impl Iterator<Item = &Block> {
        let (blocks, groups) = (self.config.num_hidden_layers, self.encoder.albert_layer_groups.len());
        let group = move |i: usize| (i as f64 / (blocks as f64 / groups as f64)) as usize;
        (0..self.kept).flat_map(move |i| &self.encoder.albert_layer_groups[group(i)].albert_layers)
    }
}

linears! {
    AlbertModel: encoder;
    Blocks: embedding_hidden_mapping_in, albert_layer_groups;
    Group: albert_layers;
    Block: attention, ffn, ffn_output;
    Attention: query, key, value, dense;
}

impl Body for AlbertModel {
    fn forward(&self, texts: &TextBatch) -> Tensor<2> {
        let dropping = Dropping { stream: texts.dropout(), own: self.running.dropout };
        let embedded = self.embeddings.forward(texts, &texts.packed().positions());
        let embedded = dropping.apply(embedded, self.config.hidden_dropout_prob, DropoutSite::Embedding);
        let x = self.encoder.embedding_hidden_mapping_in.forward(embedded, dropping.stream);
        let shape = equal_heads(
            self.config.hidden_size,
            self.config.num_attention_heads,
            Mask::Bidirectional,
            self.running.compute,
        );
        // The output of the feed-forward layer has no dropout.
        let probabilities = Probabilities { fed: 0.0, ..self.config.probabilities() };
        let activation = self.activation;
        stack(self.order(), x, self.running.recompute, |i| {
            let (settings, text_attention) =
                (BlockSettings { block: i, dropping, probabilities, activation }, texts.text_attention());
            move |block: &Block, [x]| {
                let Attention { query, key, value, dense, LayerNorm } = &block.attention;
                let [q, k, v] = settings.project([query, key, value], &x);
                let attended =
                    attention_with(q, k, v, settings.extras(DropoutSite::Attention), &text_attention.segments, shape);
                let x = settings.attended(dense, LayerNorm, x, attended);
                settings.fed([&block.ffn, &block.ffn_output], &block.full_layer_layer_norm, x)
            }
        })
    }

    fn keep_layers(&mut self, layers: usize) -> usize {
        let all = self.config.num_hidden_layers;
        self.kept = all.min(layers);
        all
    }
}
