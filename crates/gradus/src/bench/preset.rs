//! Models to measure without files: built-in configurations with random weights.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::model::ModelDir;

/// Names of the built-in configurations.
pub const PRESETS: [&str; 5] = ["gpt2", "gpt2-tiny", "gemma-3-270m", "qwen2.5-0.5b", "qwen3-0.6b"];

/// Returns a directory that does not exist, with the configuration of the preset `name`.
///
/// # Errors
/// If there is no such preset.
pub fn preset(name: &str) -> Result<ModelDir> {
    let config = match name {
        // openai-community/gpt2: 124 million parameters.
        "gpt2" => gpt2(50257, 768, 12, 12),
        // 3.7 million parameters, most of them in matrices. It shows a step's fixed costs.
        "gpt2-tiny" => gpt2(2048, 256, 4, 4),
        // google/gemma-3-270m: 268 million parameters, 168 million of them in the embedding table.
        "gemma-3-270m" => json!({
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "vocab_size": 262_144,
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": true
        }),
        // Qwen/Qwen2.5-0.5B: 494 million parameters.
        "qwen2.5-0.5b" => json!({
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": true
        }),
        // Qwen/Qwen3-0.6B: 596 million parameters.
        "qwen3-0.6b" => json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": 151_936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "attention_bias": false,
            "tie_word_embeddings": true
        }),
        _ => {
            let known = PRESETS.map(|name| format!("`{name}`")).join(", ");
            return Err(
                Error::input(format!("there is no preset `{name}`")).with_hint(format!("the presets are {known}"))
            );
        }
    };
    Ok(ModelDir::unsaved(config.as_object().cloned().unwrap_or_else(Map::new)))
}

fn gpt2(vocabulary: usize, width: usize, layers: usize, heads: usize) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocabulary,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelShape;

    #[test]
    fn every_preset_has_the_size_it_is_known_by() {
        // As on their model cards, counted by transformers 5.23.0. The tiny one was counted by hand: (2048 + 1024)·256
        // in tables, 4 · (12·256² + 13·256) in blocks, 2·256 in the last norm.
        let expected = [124_439_808, 3_945_984, 268_098_176, 494_032_768, 596_049_920];
        for (name, parameters) in PRESETS.into_iter().zip(expected) {
            let shape = ModelShape::of(&preset(name).expect("a preset")).expect("a known family");
            assert_eq!(shape.parameters(), parameters, "{name}");
        }
        assert!(preset("gpt3").is_err());
    }
}
