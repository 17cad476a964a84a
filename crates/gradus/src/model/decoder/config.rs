//! What `config.json` says of a decoder.

use std::num::NonZeroUsize;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::model::family::Family;

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct DecoderConfig {
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
    /// The gate's activation; Gemma calls it `hidden_activation`.
    #[serde(default = "silu", alias = "hidden_activation")]
    pub hidden_act: String,
    /// Whether the LM head is the embedding table.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Tokens that a layer with a window sees, itself included.
    #[serde(default)]
    pub sliding_window: Option<NonZeroUsize>,
    /// Whether some layers see a window only (Qwen2, Qwen3, SmolLM3).
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Layers before the first with a window, where `layer_types` does not say (Qwen2, Qwen3).
    #[serde(default = "max_window_layers")]
    pub max_window_layers: usize,
    /// Every so manieth layer sees all, where `layer_types` does not say (Gemma).
    #[serde(default = "one")]
    pub sliding_window_pattern: usize,
    /// `full_attention` or `sliding_attention` for each layer.
    #[serde(default)]
    pub layer_types: Option<Vec<String>>,
    /// 0 for each layer that turns nothing by its position (SmolLM3).
    #[serde(default)]
    pub no_rope_layers: Option<Vec<usize>>,
    /// Every so manieth layer is such a one, where `no_rope_layers` does not say (SmolLM3).
    #[serde(default = "one")]
    pub no_rope_layer_interval: usize,
    /// What scores are divided by the root of; the width of a head when absent (Gemma).
    #[serde(default)]
    pub query_pre_attn_scalar: Option<f64>,
    /// Where scores are softly capped (Gemma 2).
    #[serde(default)]
    pub attn_logit_softcapping: Option<f32>,
    /// Where logits are softly capped (Gemma).
    #[serde(default)]
    pub final_logit_softcapping: Option<f32>,
    /// Whether tokens see what comes after them (encoders made of Gemma).
    #[serde(default)]
    pub use_bidirectional_attention: Option<bool>,
    /// Dropout of the attention's probabilities.
    #[serde(default)]
    pub attention_dropout: f32,
    /// Dropout of what attention and feed-forward layer add (Phi-3).
    #[serde(default)]
    pub resid_pdrop: f32,
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
fn deviation() -> f64 {
    0.02
}
fn silu() -> String {
    "silu".into()
}
fn one() -> usize {
    1
}

/// What `transformers` takes for keys that are absent, where families differ.
#[deny(clippy::wildcard_enum_match_arm)]
fn defaults(family: Family) -> &'static str {
    match family {
        Family::Mistral => r#"{"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}"#,
        Family::Qwen2 => r#"{"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096}"#,
        Family::Qwen3 => {
            r#"{"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768, "sliding_window": 4096}"#
        }
        Family::Gemma2 => {
            r#"{"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
                "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}"#
        }
        Family::Gemma3 => {
            r#"{"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
                "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                "sliding_window_pattern": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}"#
        }
        Family::SmolLm3 => {
            r#"{"num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": true,
                "no_rope_layer_interval": 4, "rope_theta": 2000000.0}"#
        }
        Family::Phi3 => {
            r#"{"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5}"#
        }
        Family::Olmo2 => r#"{"rms_norm_eps": 1e-5}"#,
        Family::Llama
        | Family::Gpt2
        | Family::T5
        | Family::Mt5
        | Family::Bart
        | Family::Blenderbot
        | Family::BlenderbotSmall => "{}",
    }
}

/// `config` with what `transformers` takes for the keys that it lacks.
pub(crate) fn with_defaults(family: Family, config: &Map<String, Value>) -> Map<String, Value> {
    let mut all: Map<String, Value> = serde_json::from_str(defaults(family)).expect("an object");
    all.extend(config.iter().map(|(key, value)| (key.clone(), value.clone())));
    // Of two names for one thing, the other is not the family's.
    all.remove(if family.is_gemma() { "hidden_act" } else { "hidden_activation" });
    all
}

impl DecoderConfig {
    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Widths of all query heads, and of all key or value heads.
    pub(crate) fn widths(&self) -> [usize; 2] {
        [self.num_attention_heads, self.kv_heads()].map(|heads| heads * self.head_dim())
    }
}
