//! GPT-NeoX, the family of Pythia: layer norms, rotary positions on a part of each head, attention and the feed-forward layer side by side.
//!
//! Field names are those of `transformers`' `GPTNeoXModel`; config keys are those of its `config.json`.

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{AttentionExtras, AttentionShape, Mask, Operands, Precision, attention_operands};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::activation::{Activation, FeedForward};
use super::body::{Body, Running, TrunkInfo};
use super::build::Builder;
use super::context::Context;
use super::defaults::{deviation, yes};
use super::dropout::{DropoutSite, Dropping};
use super::layers::{Embedding, LayerNorm, Linear, Linears, linears};
use super::rope::{self, Angles, PARTIAL, Rope};

/// The keys of `config.json` that the computation depends on, without the rotary ones.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct GptNeoxConfig {
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Width of the hidden states, D.
    pub hidden_size: usize,
    /// Number of layers, L.
    pub num_hidden_layers: usize,
    /// Number of heads, H.
    pub num_attention_heads: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Length of the longest sequence.
    #[serde(default = "max_positions")]
    pub max_position_embeddings: usize,
    /// `gelu`, `gelu_new`, `gelu_pytorch_tanh` or `relu`.
    #[serde(default = "gelu")]
    pub hidden_act: String,
    /// ε of the layer norms.
    #[serde(default = "epsilon")]
    pub layer_norm_eps: f64,
    /// Standard deviation of newly initialized weights.
    #[serde(default = "deviation")]
    pub initializer_range: f32,
    /// Whether the attention projections have biases.
    #[serde(default = "yes")]
    pub attention_bias: bool,
    /// Whether the feed-forward layer reads the input of attention, not its output.
    #[serde(default = "yes")]
    pub use_parallel_residual: bool,
    /// Whether the LM head is the embedding table.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Dropout of the attention's probabilities.
    #[serde(default)]
    pub attention_dropout: f32,
    /// Dropout of the embeddings, and of the outputs of attention and the feed-forward layer.
    #[serde(default)]
    pub hidden_dropout: f32,
}

fn max_positions() -> usize {
    2048
}
fn gelu() -> String {
    "gelu".into()
}
fn epsilon() -> f64 {
    1e-5
}

impl GptNeoxConfig {
    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }
}

/// Returns the rotary keys of `config.json`, complete and under the names of `transformers` 5.
pub(crate) fn rotary_keys(config: &Map<String, Value>) -> Map<String, Value> {
    let object = |key: &str| config.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
    let old = object("rope_scaling");
    let keys = if old.is_empty() { object("rope_parameters") } else { old };
    let or =
        |key: &str, default: f64| config.get(key).filter(|value| !value.is_null()).cloned().unwrap_or(json!(default));
    let part: Map<String, Value> = [(PARTIAL.to_owned(), or("rotary_pct", 0.25))].into_iter().collect();
    rope::complete(keys, or("rotary_emb_base", 10_000.0), &part, true)
}

/// Writes the rotary keys under the new names and the old ones, for readers of either.
pub(crate) fn agree_on_rope(config: &mut Map<String, Value>) {
    let keys = rotary_keys(config);
    config.insert("rotary_emb_base".into(), keys["rope_theta"].clone());
    config.insert("rotary_pct".into(), keys[PARTIAL].clone());
    let mut scaling = keys.clone();
    scaling.remove("rope_theta");
    scaling.remove(PARTIAL);
    let is_plain = keys["rope_type"] == "default";
    config.insert("rope_scaling".into(), if is_plain { Value::Null } else { Value::Object(scaling) });
    config.insert("rope_parameters".into(), Value::Object(keys));
}

/// Returns the rotary angles of a model.
///
/// # Errors
/// When they are not supported.
pub(crate) fn angles(config: &GptNeoxConfig, all: &Map<String, Value>) -> Result<Rope, String> {
    Rope::new(&rotary_keys(all), config.head_dim(), config.max_position_embeddings)
}

/// The trunk of GPT-NeoX, `gpt_neox.*`.
#[derive(Module, Debug)]
pub struct GptNeoxModel {
    embed_in: Embedding,
    layers: Vec<Layer>,
    final_layer_norm: LayerNorm,
    #[module(skip)]
    config: GptNeoxConfig,
    #[module(skip)]
    rope: Rope,
    #[module(skip)]
    activate: FeedForward,
    /// Runtime settings.
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
struct Layer {
    input_layernorm: LayerNorm,
    attention: Attention,
    post_attention_layernorm: LayerNorm,
    mlp: Mlp,
}

#[derive(Module, Debug)]
struct Attention {
    query_key_value: Linear,
    dense: Linear,
}

#[derive(Module, Debug)]
struct Mlp {
    dense_h_to_4h: Linear,
    dense_4h_to_h: Linear,
}

impl GptNeoxModel {
    /// # Errors
    /// When the activation is unknown.
    pub(crate) fn build(mut b: Builder<'_>, config: GptNeoxConfig, rope: Rope) -> Result<Self, String> {
        let activate = Activation::feed_forward("hidden_act", &config.hidden_act)?;
        let (d, std) = (config.hidden_size, config.initializer_range);
        let (inner, epsilon, bias) = (config.intermediate_size, config.layer_norm_eps, config.attention_bias);
        let embed_in = Embedding::build(b.enter("embed_in"), config.vocab_size, d, std);
        let layers = (0..config.num_hidden_layers).map(|i| {
            let mut b = b.enter("layers");
            let mut b = b.enter(i);
            let input_layernorm = LayerNorm::build(b.enter("input_layernorm"), d, epsilon);
            let post_attention_layernorm = LayerNorm::build(b.enter("post_attention_layernorm"), d, epsilon);
            let mut a = b.enter("attention");
            let attention = Attention {
                query_key_value: Linear::build(a.enter("query_key_value"), d, 3 * d, bias, std),
                dense: Linear::build(a.enter("dense"), d, d, bias, std),
            };
            let mut m = b.enter("mlp");
            let mlp = Mlp {
                dense_h_to_4h: Linear::build(m.enter("dense_h_to_4h"), d, inner, true, std),
                dense_4h_to_h: Linear::build(m.enter("dense_4h_to_h"), inner, d, true, std),
            };
            Layer { input_layernorm, attention, post_attention_layernorm, mlp }
        });
        let layers = layers.collect();
        let final_layer_norm = LayerNorm::build(b.enter("final_layer_norm"), d, epsilon);
        Ok(Self { embed_in, layers, final_layer_norm, config, rope, activate, running: Running::default() })
    }

    /// The configuration.
    pub fn config(&self) -> &GptNeoxConfig {
        &self.config
    }

    /// Shape of every layer's attention.
    fn attention_shape(&self) -> AttentionShape {
        let (heads, head_dim) = (self.config.num_attention_heads, self.config.head_dim());
        AttentionShape {
            heads,
            kv_heads: heads,
            head_dim,
            scale: (head_dim as f64).powf(-0.5) as f32,
            mask: Mask::Causal,
            cap: None,
            precision: self.running.compute,
        }
    }
}

linears! {
    GptNeoxModel: layers;
    Layer: attention, mlp;
    Attention: query_key_value, dense;
    Mlp: dense_h_to_4h, dense_4h_to_h;
}

impl Body for GptNeoxModel {
    fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        let dropping = Dropping { stream: context.dropout(), own: self.running.dropout };
        let angles = self.rope.angles(&context.positions(), &context.lengths());
        let (shape, probability) = (self.attention_shape(), self.config.hidden_dropout);
        let mut x = dropping.apply(
            context.add_noise(self.embed_in.forward(context.ids())),
            probability,
            DropoutSite::Embedding,
        );
        let again = context.trained_segments(self.running.recompute, &x);
        for (i, layer) in self.layers.iter().enumerate() {
            let extras = AttentionExtras { bias: None, dropout: dropping.attention(self.config.attention_dropout, i) };
            let settings = LayerSettings {
                layer: i,
                activate: self.activate,
                dropping,
                probability,
                is_parallel: self.config.use_parallel_residual,
                angles: angles.clone(),
                shape,
                operands: attention_operands(&shape, &x.device()),
            };
            x = context.run_layer(again.clone(), (i, shape, extras), layer, x, move |layer: &Layer, x, attend| {
                layer.forward(x, &settings, attend)
            });
        }
        self.final_layer_norm.forward(x)
    }

    fn embedding(&self) -> Tensor<2> {
        self.embed_in.weight.val()
    }

    fn attention(&self) -> [Vec<AttentionShape>; 2] {
        [vec![self.attention_shape(); self.config.num_hidden_layers], Vec::new()]
    }

    fn info(&self) -> TrunkInfo {
        let config = &self.config;
        TrunkInfo {
            vocabulary: config.vocab_size,
            width: config.hidden_size,
            max_positions: Some(self.rope.max_sampled()),
            angles_vary: self.rope.limit().is_some(),
            initializer_range: config.initializer_range,
            ties_head: config.tie_word_embeddings,
            head_scale: 1.0,
            logit_cap: None,
            decoder_start: None,
        }
    }
}

/// Settings that a layer is computed with, in addition to its weights.
struct LayerSettings {
    layer: usize,
    activate: FeedForward,
    dropping: Dropping,
    /// Dropout of the outputs of attention and the feed-forward layer.
    probability: f32,
    /// Whether the feed-forward layer reads the input of attention.
    is_parallel: bool,
    angles: Angles,
    shape: AttentionShape,
    /// Precision in which attention takes queries, keys and values.
    operands: Precision,
}

impl Layer {
    /// Adds attention and the feed-forward layer to `x_nd`; `attend` computes the attention output from queries, keys and values.
    fn forward(
        &self,
        x_nd: Tensor<2>,
        settings: &LayerSettings,
        attend: impl FnOnce([Tensor<2>; 3]) -> Tensor<2>,
    ) -> Tensor<2> {
        let LayerSettings { layer, dropping, probability, .. } = *settings;
        let masks = dropping.stream;
        let (Attention { query_key_value, dense }, up) = (&self.attention, &self.mlp.dense_h_to_4h);
        let read = self.input_layernorm.forward_for(query_key_value, x_nd.clone(), masks);
        let attended = dense.forward(attend(split(query_key_value.forward(read, masks), settings)), masks);
        let attended = dropping.apply(attended, probability, DropoutSite::Attended(layer));
        let fed = |x: Tensor<2>| {
            let inner = up.forward(self.post_attention_layernorm.forward_for(up, x, masks), masks);
            let fed = self.mlp.dense_4h_to_h.forward_activated((settings.activate)(inner), &[up], masks);
            dropping.apply(fed, probability, DropoutSite::FedForward(layer))
        };
        if settings.is_parallel {
            return fed(x_nd.clone()) + attended + x_nd;
        }
        let x = attended + x_nd;
        fed(x.clone()) + x
    }
}

/// Returns rotated queries, rotated keys and values. In `qkv`, `[N, 3 D]`, the three of a head stand side by side.
fn split(qkv: Tensor<2>, settings: &LayerSettings) -> [Tensor<2>; 3] {
    let ([n, _], AttentionShape { heads, head_dim, .. }) = (qkv.dims(), settings.shape);
    let width = heads * head_dim;
    let by_kind = qkv.reshape([n, heads, 3, head_dim]).swap_dims(1, 2).reshape([n, 3 * width]);
    let part = |at: usize| by_kind.clone().narrow(1, at * width, width);
    let operands = Operands { result: settings.operands, input: Precision::F32 };
    let turned = |x: Tensor<2>| settings.angles.turn(x, head_dim, operands);
    [turned(part(0)), turned(part(1)), part(2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotary_keys_are_those_of_transformers() {
        for (config, expected) in [
            (json!({}), json!({ "rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25 })),
            (
                json!({ "rotary_pct": 1.0, "rotary_emb_base": 700 }),
                json!({ "rope_type": "default", "rope_theta": 700, "partial_rotary_factor": 1.0 }),
            ),
            (
                json!({ "rotary_pct": 0.5, "rope_scaling": { "type": "linear", "factor": 2.0 } }),
                json!({ "factor": 2.0, "rope_type": "linear", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5 }),
            ),
            (
                json!({ "rotary_pct": 0.5, "rope_parameters": { "rope_theta": 700.0, "partial_rotary_factor": 0.75 } }),
                json!({ "rope_theta": 700.0, "partial_rotary_factor": 0.75, "rope_type": "default" }),
            ),
        ] {
            let config = config.as_object().expect("an object");
            assert_eq!(Value::Object(rotary_keys(config)), expected, "{config:?}");
            let mut saved = config.clone();
            agree_on_rope(&mut saved);
            assert_eq!(Value::Object(rotary_keys(&saved)), expected, "{saved:?}");
            saved.remove("rope_parameters");
            assert_eq!(Value::Object(rotary_keys(&saved)), expected, "an older reader: {saved:?}");
        }
    }
}
