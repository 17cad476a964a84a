//! Llama, Mistral, Qwen2 and Qwen3: rotary positions, RMS norm, SwiGLU, grouped queries; Qwen2 adds biases to queries, keys
//! and values, Qwen3 normalises queries and keys, and all but Llama may have layers that see a window only.
//!
//! Field names are those of `transformers`' `LlamaModel`, `MistralModel`, `Qwen2Model` and `Qwen3Model`, config keys those
//! of their `config.json`.

use std::num::NonZeroUsize;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{Activated, AttentionExtras, AttentionShape, Mask, attention_with, recompute, rope};
use serde::Deserialize;

use super::build::Builder;
use super::context::Context;
use super::dropout::{DropoutStream, Dropping};
use super::layers::{Embedding, Linear, RmsNorm};
use super::rope::Rope;

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LlamaConfig {
    /// V
    pub vocab_size: usize,
    /// D
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// L
    pub num_hidden_layers: usize,
    /// H
    pub num_attention_heads: usize,
    /// Key and value heads; H when absent.
    #[serde(default)]
    pub num_key_value_heads: Option<usize>,
    /// Width of one head; D / H when absent.
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Longest sequence.
    #[serde(default = "max_positions")]
    pub max_position_embeddings: usize,
    /// ε of the norms.
    #[serde(default = "epsilon")]
    pub rms_norm_eps: f64,
    /// Standard deviation of fresh weights.
    #[serde(default = "deviation")]
    pub initializer_range: f64,
    /// Biases on the attention projections.
    #[serde(default)]
    pub attention_bias: bool,
    /// Biases on the feed-forward projections.
    #[serde(default)]
    pub mlp_bias: bool,
    /// The gate's activation; only `silu`.
    #[serde(default = "silu")]
    pub hidden_act: String,
    /// Whether the LM head is the embedding table.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Tokens that a layer with a window sees, itself included.
    #[serde(default = "window")]
    pub sliding_window: Option<NonZeroUsize>,
    /// Whether some layers see a window only (Qwen2, Qwen3).
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Layers before the first with a window, where `layer_types` does not say (Qwen2, Qwen3).
    #[serde(default = "max_window_layers")]
    pub max_window_layers: usize,
    /// `full_attention` or `sliding_attention` for each layer (Qwen2, Qwen3).
    #[serde(default)]
    pub layer_types: Option<Vec<String>>,
    /// Dropout of the attention's probabilities.
    #[serde(default)]
    pub attention_dropout: f32,
}

fn max_positions() -> usize {
    2048
}
fn window() -> Option<NonZeroUsize> {
    NonZeroUsize::new(4096)
}
fn max_window_layers() -> usize {
    28
}
fn epsilon() -> f64 {
    1e-6
}
fn deviation() -> f64 {
    0.02
}
fn silu() -> String {
    "silu".into()
}

impl LlamaConfig {
    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }
}

/// What tells the families apart that their configuration does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Llama, Mistral.
    Llama,
    /// Queries, keys and values have biases, whatever the configuration says, and the output has none.
    Qwen2,
    /// Queries and keys are normalised head by head before rotation.
    Qwen3,
}

impl Kind {
    /// Whether queries and keys are normalised.
    pub(crate) fn has_qk_norm(self) -> bool {
        self == Self::Qwen3
    }

    /// Whether queries, keys and values have biases, and whether attention's output has one.
    pub(crate) fn attention_biases(self, config: &LlamaConfig) -> [bool; 2] {
        match self {
            Self::Qwen2 => [true, false],
            Self::Llama | Self::Qwen3 => [config.attention_bias; 2],
        }
    }
}

/// The trunk of Llama, Mistral, Qwen2 and Qwen3, `model.*`.
#[derive(Module, Debug)]
pub struct LlamaModel {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    #[module(skip)]
    config: LlamaConfig,
    #[module(skip)]
    rope: Rope,
    /// What each layer sees.
    #[module(skip)]
    masks: Vec<Mask>,
    /// Whether the backward pass runs the layers again instead of keeping what they computed.
    #[module(skip)]
    pub(super) recompute: bool,
    /// Whether numbers are dropped, as the configuration says, in passes that have masks.
    #[module(skip)]
    pub(super) dropout: bool,
}

#[derive(Module, Debug)]
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
}

#[derive(Module, Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl LlamaModel {
    pub(crate) fn build(mut b: Builder<'_>, config: LlamaConfig, rope: Rope, masks: Vec<Mask>, kind: Kind) -> Self {
        let (d, std, epsilon) = (config.hidden_size, config.initializer_range as f32, config.rms_norm_eps);
        let (head_dim, [bias, output_bias]) = (config.head_dim(), kind.attention_biases(&config));
        let (width, kv_width) = (config.num_attention_heads * head_dim, config.kv_heads() * head_dim);
        let layers = (0..config.num_hidden_layers).map(|i| {
            let mut b = b.enter("layers");
            let mut b = b.enter(i);
            let input_layernorm = RmsNorm::build(b.enter("input_layernorm"), d, epsilon);
            let mut a = b.enter("self_attn");
            let norm = |name: &str, a: &mut Builder<'_>| {
                kind.has_qk_norm().then(|| RmsNorm::build(a.enter(name), head_dim, epsilon))
            };
            let self_attn = Attention {
                q_proj: Linear::build(a.enter("q_proj"), d, width, bias, std),
                k_proj: Linear::build(a.enter("k_proj"), d, kv_width, bias, std),
                v_proj: Linear::build(a.enter("v_proj"), d, kv_width, bias, std),
                o_proj: Linear::build(a.enter("o_proj"), width, d, output_bias, std),
                q_norm: norm("q_norm", &mut a),
                k_norm: norm("k_norm", &mut a),
            };
            let post_attention_layernorm = RmsNorm::build(b.enter("post_attention_layernorm"), d, epsilon);
            let mut m = b.enter("mlp");
            let (inner, bias) = (config.intermediate_size, config.mlp_bias);
            let mlp = Mlp {
                gate_proj: Linear::build(m.enter("gate_proj"), d, inner, bias, std),
                up_proj: Linear::build(m.enter("up_proj"), d, inner, bias, std),
                down_proj: Linear::build(m.enter("down_proj"), inner, d, bias, std),
            };
            Layer { input_layernorm, self_attn, post_attention_layernorm, mlp }
        });
        let layers = layers.collect();
        Self {
            embed_tokens: Embedding::build(b.enter("embed_tokens"), config.vocab_size, d, std),
            layers,
            norm: RmsNorm::build(b.enter("norm"), d, epsilon),
            config,
            rope,
            masks,
            recompute: false,
            dropout: false,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// The embedding table, `[V, D]`.
    pub fn embedding(&self) -> Tensor<2> {
        self.embed_tokens.weight.val()
    }

    /// All linear layers with their names.
    pub(crate) fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        let parts = self.layers.iter_mut().enumerate().flat_map(|(i, layer)| {
            let Layer { self_attn: a, mlp, .. } = layer;
            [
                (format!("layers.{i}.self_attn.q_proj"), &mut a.q_proj),
                (format!("layers.{i}.self_attn.k_proj"), &mut a.k_proj),
                (format!("layers.{i}.self_attn.v_proj"), &mut a.v_proj),
                (format!("layers.{i}.self_attn.o_proj"), &mut a.o_proj),
                (format!("layers.{i}.mlp.gate_proj"), &mut mlp.gate_proj),
                (format!("layers.{i}.mlp.up_proj"), &mut mlp.up_proj),
                (format!("layers.{i}.mlp.down_proj"), &mut mlp.down_proj),
            ]
        });
        parts.collect()
    }

    /// Whether positions beyond the configured maximum change the angles of earlier ones.
    pub(crate) fn depends_on_length(&self) -> bool {
        self.rope.depends_on_length()
    }

    /// The attention of layer `layer`.
    pub(crate) fn layer_shape(&self, layer: usize) -> AttentionShape {
        let head_dim = self.config.head_dim();
        AttentionShape {
            heads: self.config.num_attention_heads,
            kv_heads: self.config.kv_heads(),
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            mask: self.masks[layer],
        }
    }

    /// Final hidden states, `[N, D]`.
    pub(crate) fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        let (cos, sin) = self.rope.tables(&context.positions(), &context.lengths());
        let angles = Angles { cos, sin, head_dim: self.config.head_dim() };
        let dropping = Dropping { stream: context.dropout(), own: self.dropout };
        let masks = dropping.stream;
        let mut x = self.embed_tokens.forward(context.ids());
        let again = context.trained_segments(self.recompute, &x);
        for (i, layer) in self.layers.iter().enumerate() {
            let dropout = dropping.attention(self.config.attention_dropout, i);
            let (shape, extras) = (self.layer_shape(i), AttentionExtras { bias: None, dropout });
            x = match again.clone() {
                Some(segments) => {
                    let angles = angles.clone();
                    recompute(layer, x, move |layer: &Layer, x| {
                        layer.forward(x, &angles, masks, |[q, k, v]| {
                            attention_with(q, k, v, extras.clone(), &segments, shape)
                        })
                    })
                }
                None => layer.forward(x, &angles, masks, |qkv| context.attend(i, shape, extras, qkv)),
            };
        }
        self.norm.forward(x)
    }
}

/// By which angles the heads of each token are turned.
#[derive(Clone)]
struct Angles {
    cos: Arc<[f32]>,
    sin: Arc<[f32]>,
    head_dim: usize,
}

impl Layer {
    /// `x_nd` with attention and the feed-forward layer added; `attend` turns queries, keys and values into what each
    /// token attends to.
    fn forward(
        &self,
        x_nd: Tensor<2>,
        angles: &Angles,
        masks: Option<DropoutStream>,
        attend: impl FnOnce([Tensor<2>; 3]) -> Tensor<2>,
    ) -> Tensor<2> {
        let a = &self.self_attn;
        let normed = self.input_layernorm.forward(x_nd.clone());
        let rotate = |x: Tensor<2>, norm: &Option<RmsNorm>| {
            let x = match norm {
                Some(norm) => norm.forward_heads(x),
                None => x,
            };
            rope(x, &angles.cos, &angles.sin, angles.head_dim)
        };
        let q = rotate(a.q_proj.forward(normed.clone(), masks), &a.q_norm);
        let k = rotate(a.k_proj.forward(normed.clone(), masks), &a.k_norm);
        let v = a.v_proj.forward(normed, masks);
        let x = x_nd + a.o_proj.forward(attend([q, k, v]), masks);
        let normed = self.post_attention_layernorm.forward(x.clone());
        let gate = self.mlp.gate_proj.forward(normed.clone(), masks);
        let inner = Activated::Swiglu(gate, self.mlp.up_proj.forward(normed, masks));
        x + self.mlp.down_proj.forward_activated(inner, masks)
    }
}
