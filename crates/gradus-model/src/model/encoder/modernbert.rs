//! ModernBERT, Warner et al. 2024, <https://arxiv.org/abs/2412.13663>: rotary positions, gates, norms before the layers, and windows in
//! most blocks.
//!
//! Field names are those of `transformers`' `ModernBertModel`; config keys are those of its `config.json`, in the format of version 5
//! (`layer_types`, `rope_parameters` by type) or the earlier one (`global_attn_every_n_layers`, `…_rope_theta`).

#![expect(non_snake_case, reason = "fields have the names of the tensors on disk")]

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{AttentionShape, Mask, Precision, attention_with, rope};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::block::{Problem, Sizes, check_probabilities, check_sizes, stack};
use super::{Body, EncoderInfo, Running, TextBatch};
use crate::model::activation::Gate;
use crate::model::body::equal_heads;
use crate::model::build::Builder;
use crate::model::defaults::{deviation, gelu};
use crate::model::directory::ModelDir;
use crate::model::dropout::{DropoutSite, Dropping};
use crate::model::layers::{Embedding, LayerNorm, Linear, Linears, linears};
use crate::model::rope::{Angles, Rope, complete};

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct ModernBertConfig {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    max_position_embeddings: usize,
    #[serde(default = "gelu")]
    hidden_activation: String,
    #[serde(default = "epsilon")]
    norm_eps: f64,
    #[serde(default)]
    norm_bias: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "window")]
    local_attention: usize,
    #[serde(default)]
    layer_types: Option<Vec<LayerType>>,
    #[serde(default = "third")]
    global_attn_every_n_layers: usize,
    #[serde(default)]
    embedding_dropout: f32,
    #[serde(default)]
    attention_dropout: f32,
    #[serde(default)]
    mlp_dropout: f32,
    #[serde(default = "deviation")]
    initializer_range: f32,
}

/// Kind of attention of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LayerType {
    FullAttention,
    SlidingAttention,
}

fn epsilon() -> f64 {
    1e-5
}
fn window() -> usize {
    128
}
fn third() -> usize {
    3
}

impl ModernBertConfig {
    /// Returns the kind of attention of each block.
    fn layer_types(&self) -> Result<Vec<LayerType>, String> {
        let layers = self.num_hidden_layers;
        match (&self.layer_types, self.global_attn_every_n_layers) {
            (Some(types), _) if types.len() == layers => Ok(types.clone()),
            (Some(types), _) => Err(format!("`layer_types` names {} layers of {layers}", types.len())),
            (None, 0) => Err("`global_attn_every_n_layers` is 0, but at least 1 is needed".into()),
            (None, every) => Ok((0..layers)
                .map(|i| if i % every == 0 { LayerType::FullAttention } else { LayerType::SlidingAttention })
                .collect()),
        }
    }

    /// Returns the rotary angles of layers of this kind.
    fn rope(&self, config: &Map<String, Value>, kind: LayerType) -> Result<Rope, String> {
        let (key, old, usual) = match kind {
            LayerType::FullAttention => ("full_attention", "global_rope_theta", 160_000.0),
            LayerType::SlidingAttention => ("sliding_attention", "local_rope_theta", 10_000.0),
        };
        let keys = match config.get("rope_parameters").and_then(|all| all.get(key)) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(keys)) => keys.clone(),
            Some(other) => return Err(format!("`rope_parameters.{key}` is `{other}`, but an object is needed")),
        };
        let theta = config.get(old).and_then(Value::as_f64).unwrap_or(usual);
        let keys = complete(keys, json!(theta), config, false);
        Rope::new(&keys, self.hidden_size / self.num_attention_heads, self.max_position_embeddings)
    }
}

/// Reads the sizes of the model in `dir`.
pub(super) fn sizes(dir: &ModelDir) -> Result<Sizes, Problem> {
    let config: ModernBertConfig = dir.read_config()?;
    let (d, heads, inner) = (config.hidden_size, config.num_attention_heads, config.intermediate_size);
    let layers = config.num_hidden_layers;
    check_sizes([("hidden_size", d), ("num_attention_heads", heads)], layers, config.vocab_size)?;
    Ok(Sizes {
        vocabulary: config.vocab_size,
        width: d,
        layers,
        heads,
        head_dim: d / heads,
        inner,
        max_positions: Some(config.max_position_embeddings),
        gated: true,
    })
}

/// The encoder of ModernBERT.
#[derive(Module, Debug)]
pub struct ModernBertModel {
    pub(super) embeddings: Embeddings,
    layers: Vec<Block>,
    final_norm: LayerNorm,
    #[module(skip)]
    config: ModernBertConfig,
    #[module(skip)]
    gate: Gate,
    /// Attention shape of each block, and the index of its rotary angles.
    #[module(skip)]
    views: Vec<(AttentionShape, usize)>,
    /// Rotary angles of blocks with full attention, and of those with a window.
    #[module(skip)]
    ropes: [Rope; 2],
    #[module(skip)]
    pub(super) info: EncoderInfo,
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
pub(super) struct Embeddings {
    tok_embeddings: Embedding,
    norm: LayerNorm,
}

impl Embeddings {
    /// Table of words, `[V, D]`.
    pub fn words(&self) -> Tensor<2> {
        self.tok_embeddings.weight.val()
    }
}

#[derive(Module, Debug)]
struct Block {
    /// Absent in the first block.
    attn_norm: Option<LayerNorm>,
    attn: Attention,
    mlp_norm: LayerNorm,
    mlp: FeedForward,
}

#[derive(Module, Debug)]
struct Attention {
    Wqkv: Linear,
    Wo: Linear,
}

#[derive(Module, Debug)]
struct FeedForward {
    Wi: Linear,
    Wo: Linear,
}

impl ModernBertModel {
    pub(super) fn build(mut b: Builder<'_>, dir: &ModelDir) -> Result<Self, Problem> {
        let config: ModernBertConfig = dir.read_config()?;
        let (d, heads, inner) = (config.hidden_size, config.num_attention_heads, config.intermediate_size);
        check_sizes([("hidden_size", d), ("num_attention_heads", heads)], config.num_hidden_layers, config.vocab_size)?;
        check_probabilities(&[
            ("embedding_dropout", config.embedding_dropout),
            ("attention_dropout", config.attention_dropout),
            ("mlp_dropout", config.mlp_dropout),
        ])?;
        let gate = Gate::named("hidden_activation", &config.hidden_activation)?;
        let views = config.layer_types()?.into_iter().map(|kind| match kind {
            LayerType::FullAttention => (equal_heads(d, heads, Mask::Bidirectional, Precision::F32), 0),
            LayerType::SlidingAttention => {
                (equal_heads(d, heads, Mask::BidirectionalWindow(config.local_attention / 2), Precision::F32), 1)
            }
        });
        let views = views.collect();
        let rope = |kind| config.rope(&dir.config, kind);
        let ropes = [rope(LayerType::FullAttention)?, rope(LayerType::SlidingAttention)?];
        let std = config.initializer_range;
        // The initial weights of the last projection of a layer have a smaller deviation.
        let last = std / (2.0 * config.num_hidden_layers as f32).sqrt();
        let norm = |b: Builder<'_>| LayerNorm::build_with(b, d, config.norm_eps, config.norm_bias);
        let embeddings = Embeddings {
            tok_embeddings: Embedding::build(b.enter("embeddings.tok_embeddings"), config.vocab_size, d, std),
            norm: norm(b.enter("embeddings.norm")),
        };
        let layers = (0..config.num_hidden_layers).map(|i| {
            let mut b = b.enter(format_args!("layers.{i}"));
            let (attention, fed) = (config.attention_bias, config.mlp_bias);
            Block {
                attn_norm: (i > 0).then(|| norm(b.enter("attn_norm"))),
                attn: Attention {
                    Wqkv: Linear::build(b.enter("attn.Wqkv"), d, 3 * d, attention, std),
                    Wo: Linear::build(b.enter("attn.Wo"), d, d, attention, last),
                },
                mlp_norm: norm(b.enter("mlp_norm")),
                mlp: FeedForward {
                    Wi: Linear::build(b.enter("mlp.Wi"), d, 2 * inner, fed, std),
                    Wo: Linear::build(b.enter("mlp.Wo"), inner, d, fed, last),
                },
            }
        });
        let layers = layers.collect();
        let final_norm = norm(b.enter("final_norm"));
        let info = EncoderInfo {
            has_global: false,
            vocabulary: config.vocab_size,
            width: d,
            // Rotary angles have no limit, but the model was not trained on longer texts.
            max_positions: Some(config.max_position_embeddings),
            types: 1,
            initializer_range: std,
        };
        let running = Running::default();
        Ok(Self { embeddings, layers, final_norm, config, gate, views, ropes, info, running })
    }

    /// Computes the angles of every token, for blocks with full attention and for those with a window.
    fn angles(&self, texts: &TextBatch) -> [Angles; 2] {
        let positions = texts.packed().positions();
        let lengths = texts.lengths_b();
        let lengths: Vec<u32> = lengths.into_iter().flat_map(|n| std::iter::repeat_n(n as u32, n)).collect();
        self.ropes.each_ref().map(|rope| rope.angles(&positions, &lengths))
    }
}

linears! {
    ModernBertModel: layers;
    Block: attn, mlp;
    Attention: Wqkv, Wo;
    FeedForward: Wi, Wo;
}

impl Body for ModernBertModel {
    fn forward(&self, texts: &TextBatch) -> Tensor<2> {
        let ModernBertConfig { embedding_dropout, attention_dropout, mlp_dropout, .. } = self.config;
        let dropping = Dropping { stream: texts.dropout(), own: self.running.dropout };
        let Embeddings { tok_embeddings, norm } = &self.embeddings;
        let embedded = norm.forward(tok_embeddings.forward(texts.packed().ids()));
        let x = dropping.apply(embedded, embedding_dropout, DropoutSite::Embedding);
        let (angles, gate) = (self.angles(texts), self.gate);
        let x = stack(self.layers.iter(), x, self.running.recompute, |i| {
            let ((shape, view), text_attention) = (self.views[i], texts.text_attention());
            let shape = AttentionShape { precision: self.running.compute, ..shape };
            let (Angles { cos, sin }, masks) = (angles[view].clone(), dropping.stream);
            move |block: &Block, [x]| {
                let Block { attn_norm, attn, mlp_norm, mlp } = block;
                let read = attn_norm.as_ref().map_or_else(|| x.clone(), |norm| norm.forward(x.clone()));
                let (qkv, d) = (attn.Wqkv.forward(read, masks), shape.heads * shape.head_dim);
                let part = |i: usize| qkv.clone().narrow(1, i * d, d);
                let [q, k] = [0, 1].map(|i| rope(part(i), &cos, &sin, shape.head_dim));
                let dropout = dropping.attention(attention_dropout, i);
                let extras = gradus_kernels::AttentionExtras { bias: None, dropout };
                let attended =
                    attn.Wo.forward(attention_with(q, k, part(2), extras, &text_attention.segments, shape), masks);
                let x = x + dropping.apply(attended, attention_dropout, DropoutSite::Attended(i));

                let both = mlp.Wi.forward(mlp_norm.forward(x.clone()), masks);
                let inner = both.dims()[1] / 2;
                let half = |i: usize| both.clone().narrow(1, i * inner, inner);
                let activated = gate.of(half(0), half(1));
                x + match dropping.drops(mlp_dropout) {
                    false => mlp.Wo.forward_activated(activated, &[], masks),
                    true => {
                        let dropped = dropping.apply(activated.tensor(), mlp_dropout, DropoutSite::Activation(i));
                        mlp.Wo.forward(dropped, masks)
                    }
                }
            }
        });
        self.final_norm.forward(x)
    }

    fn keep_layers(&mut self, layers: usize) -> usize {
        let all = self.layers.len();
        self.layers.truncate(layers);
        all
    }
}
