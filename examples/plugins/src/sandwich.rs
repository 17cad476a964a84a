//! A family of models: Llama with norms around attention and the feed-forward layer, whose outputs are scaled.

use gradus::model::decoder::{DecoderConfig, DecoderFamily, DecoderStructure, Norms};
use serde_json::{Map, Value};

/// The family of model directories with `"model_type": "sandwich"`.
pub const SANDWICH: DecoderFamily = DecoderFamily {
    defaults: r#"{"residual_factor": 1.0, "max_position_embeddings": 64}"#,
    structure,
    ..DecoderFamily::new("sandwich", "Sandwich", "SandwichForCausalLM")
};

/// Changes Llama's structure into that of a model with this configuration.
fn structure(
    _: &DecoderConfig,
    config: &Map<String, Value>,
    structure: &mut DecoderStructure,
) -> std::result::Result<(), String> {
    let factor = config["residual_factor"].as_f64().filter(|factor| *factor > 0.0);
    structure.residual_scale = factor.ok_or("`residual_factor` is not a number above 0")? as f32;
    structure.norms = Norms::Around;
    Ok(())
}
