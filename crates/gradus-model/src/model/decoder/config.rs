//! Configuration of a decoder in `config.json`.

use std::num::NonZeroUsize;

use serde::Deserialize;

use crate::model::defaults::{deviation, one};

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct DecoderConfig {
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Width of the hidden states, D.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Number of layers, L.
    pub num_hidden_layers: usize,
    /// Number of query heads, H.
    pub num_attention_heads: usize,
    /// Number of key and value heads; H when absent.
    #[serde(default)]
    pub num_key_value_heads: Option<usize>,
    /// Width of one head; D / H when absent.
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Length of the longest sequence.
    #[serde(default = "max_positions")]
    pub max_position_embeddings: usize,
    /// ε of the norms.
    #[serde(default = "epsilon")]
    pub rms_norm_eps: f64,
    /// Standard deviation of newly initialized weights.
    #[serde(default = "deviation")]
    pub initializer_range: f32,
    /// Whether the attention projections have biases.
    #[serde(default)]
    pub attention_bias: bool,
    /// Whether the feed-forward projections have biases.
    #[serde(default)]
    pub mlp_bias: bool,
    /// Activation of the gate; `hidden_activation` in Gemma.
    #[serde(default = "silu", alias = "hidden_activation")]
    pub hidden_act: String,
    /// Whether the LM head is the embedding table.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Number of tokens in the window of a layer, including the current one.
    #[serde(default)]
    pub sliding_window: Option<NonZeroUsize>,
    /// Whether some layers have a window (Qwen2, Qwen3, SmolLM3).
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Number of layers before the first one with a window, if `layer_types` is absent (Qwen2, Qwen3).
    #[serde(default = "max_window_layers")]
    pub max_window_layers: usize,
    /// Every n-th layer has full attention, if `layer_types` is absent (Gemma).
    #[serde(default = "one")]
    pub sliding_window_pattern: usize,
    /// `full_attention` or `sliding_attention` for each layer.
    #[serde(default)]
    pub layer_types: Option<Vec<String>>,
    /// 0 for each layer without rotary positions (SmolLM3).
    #[serde(default)]
    pub no_rope_layers: Option<Vec<usize>>,
    /// Every n-th layer has no rotary positions, if `no_rope_layers` is absent (SmolLM3).
    #[serde(default = "one")]
    pub no_rope_layer_interval: usize,
    /// Scores are divided by the square root of this value; the width of a head when absent (Gemma).
    #[serde(default)]
    pub query_pre_attn_scalar: Option<f64>,
    /// Soft cap of scores (Gemma 2).
    #[serde(default)]
    pub attn_logit_softcapping: Option<f32>,
    /// Soft cap of logits (Gemma).
    #[serde(default)]
    pub final_logit_softcapping: Option<f32>,
    /// Whether tokens attend to later tokens (encoders based on Gemma).
    #[serde(default)]
    pub use_bidirectional_attention: Option<bool>,
    /// Dropout of the attention's probabilities.
    #[serde(default)]
    pub attention_dropout: f32,
    /// Dropout of the outputs of attention and the feed-forward layer (Phi-3).
    #[serde(default)]
    pub resid_pdrop: f32,
    /// The same under Seed-OSS' name.
    #[serde(default)]
    pub residual_dropout: f32,
    /// Whether attention's output has a bias (Seed-OSS).
    #[serde(default)]
    pub attention_out_bias: bool,
    /// Factor of the embeddings (Granite).
    #[serde(default = "unscaled")]
    pub embedding_multiplier: f32,
    /// Factor of the scores (Granite).
    #[serde(default = "unscaled")]
    pub attention_multiplier: f32,
    /// Factor of the outputs of attention and the feed-forward layer (Granite).
    #[serde(default = "unscaled")]
    pub residual_multiplier: f32,
    /// Divisor of the logits (Granite).
    #[serde(default = "unscaled")]
    pub logits_scaling: f32,
}

fn max_positions() -> usize {
    2048
}
fn max_window_layers() -> usize {
    28
}
fn epsilon() -> f64 {
    1e-6
}
fn silu() -> String {
    "silu".into()
}
fn unscaled() -> f32 {
    1.0
}

impl DecoderConfig {
    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Number of key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Width of all query heads, and of all key or value heads.
    pub(crate) fn widths(&self) -> [usize; 2] {
        [self.num_attention_heads, self.kv_heads()].map(|heads| heads * self.head_dim())
    }
}
