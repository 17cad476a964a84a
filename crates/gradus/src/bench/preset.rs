//! Models to measure without any file: configurations that are built in, with random weights.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::model::ModelDir;

/// The names of the built-in configurations.
pub const PRESETS: [&str; 3] = ["gpt2", "gpt2-tiny", "qwen3-0.6b"];

/// A directory that does not exist, with the configuration of the preset `name`.
///
/// # Errors
/// When there is no such preset.
pub fn preset(name: &str) -> Result<ModelDir> {
    let config = match name {
        // openai-community/gpt2: 124 million parameters.
        "gpt2" => gpt2(50257, 768, 12, 12),
        // 3.7 million parameters, most of them in matrices: where a step's fixed costs show.
        "gpt2-tiny" => gpt2(2048, 256, 4, 4),
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
            return Err(Error::input(format!("there is no preset `{name}`")).with_hint(format!("there are {known}")));
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
        // The first and the last as on their model cards, counted by transformers 5.23.0; the tiny one by hand:
        // (2048 + 1024)·256 in tables, 4 · (12·256² + 13·256) in blocks, 2·256 in the last norm.
        let expected = [124_439_808, 3_945_984, 596_049_920];
        for (name, parameters) in PRESETS.into_iter().zip(expected) {
            let shape = ModelShape::of(&preset(name).expect("a preset")).expect("a known family");
            assert_eq!(shape.parameters(), parameters, "{name}");
        }
        assert!(preset("gpt3").is_err());
    }
}
