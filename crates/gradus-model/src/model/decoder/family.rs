//! Families of decoders: what distinguishes each from Llama.
//!
//! A family is a row of data. The rows of this file are built in; a program adds its own with [`register_family`](crate::model::register_family). Everything else
//! (checks, sizes, forecasts, adapters, saving) reads the row, so that both kinds work alike.

use std::sync::{PoisonError, RwLock};

use gradus_kernels::Gelu;
use serde_json::{Map, Value, json};

use super::config::DecoderConfig;
use super::structure::{DecoderStructure, Norms, QkNorm};
use super::windows::{Rotation, Rule, Windows};
use crate::model::activation::Gate;
use crate::model::rope::{self, ORIGINAL, PARTIAL, Rope, has_original};

/// A family of decoders whose blocks are those of Llama, up to the differences that a [`DecoderStructure`] describes.
///
/// Its tensors have the names of `transformers`' `LlamaForCausalLM`: `model.layers.0.self_attn.q_proj.weight` and so on.
#[derive(Debug, Clone, Copy)]
pub struct DecoderFamily {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Class prefix in `architectures`, such as `Llama`.
    pub class: &'static str,
    /// Class of language models in `architectures`, such as `LlamaForCausalLM`.
    pub language_class: &'static str,
    /// Values for keys that are missing in `config.json`, where they differ from Llama's: a JSON object. A family whose defaults have
    /// `hidden_activation` reads its activation from this key, the others read `hidden_act`. Only a family whose defaults have
    /// `partial_rotary_factor` uses this key for angles that are not scaled.
    pub defaults: &'static str,
    /// Layers with windows.
    pub windows: Windows,
    /// Rotary angles of the layers.
    pub rotation: Rotation,
    /// Whether one linear layer computes queries, keys and values, and another gate and up.
    pub fused: bool,
    /// Name of the architecture of llama.cpp that computes it; `None` if it cannot be exported as GGUF.
    pub gguf: Option<&'static str>,
    /// Changes the structure, which is Llama's, where the family differs. It reads the typed configuration, and the whole one for other
    /// keys; both contain the defaults. An error explains which value is not supported.
    pub structure: StructureOf,
}

/// See [`DecoderFamily::structure`].
pub type StructureOf = fn(&DecoderConfig, &Map<String, Value>, &mut DecoderStructure) -> Result<(), String>;

impl PartialEq for DecoderFamily {
    /// A `model_type` belongs to one family.
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

impl Eq for DecoderFamily {}

impl DecoderFamily {
    /// Returns a family that differs from Llama only in its names.
    pub const fn new(model_type: &'static str, class: &'static str, language_class: &'static str) -> Self {
        Self {
            model_type,
            class,
            language_class,
            defaults: "{}",
            windows: Windows::Never,
            rotation: Rotation::Everywhere,
            fused: false,
            gguf: None,
            structure: |_, _, _| Ok(()),
        }
    }

    /// Adds the defaults for missing keys to `config`.
    pub(crate) fn with_defaults(&self, config: &Map<String, Value>) -> Map<String, Value> {
        let mut all: Map<String, Value> = serde_json::from_str(self.defaults).expect("checked when it was registered");
        let unused = if all.contains_key("hidden_activation") { "hidden_act" } else { "hidden_activation" };
        all.extend(config.iter().map(|(key, value)| (key.clone(), value.clone())));
        all.remove(unused);
        all
    }

    /// Whether a part of each head can be rotated by angles that are not scaled (Phi-3).
    pub(crate) fn rotates_part(&self) -> bool {
        self.with_defaults(&Map::new()).contains_key(PARTIAL)
    }

    /// Returns the rotary keys of the layers, complete and under the names of `transformers` 5: one object, or two if layers with a window have
    /// their own angles. The second is for these layers.
    ///
    /// What reads `config.json` and what writes it share this function, so that a saved model has the angles of its source.
    pub(crate) fn rotary_keys(&self, config: &Map<String, Value>) -> Vec<Map<String, Value>> {
        let config = self.with_defaults(config);
        let object = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
        let complete = |keys: Map<String, Value>, base: &str| {
            let theta = config.get(base).filter(|theta| !theta.is_null()).cloned().unwrap_or(json!(10_000.0));
            rope::complete(keys, theta, &config, self.rotates_part())
        };
        let (new, mut old) = (config.get("rope_parameters"), object(config.get("rope_scaling")));
        if self.rotation != Rotation::OwnInWindows {
            let mut keys = complete(if old.is_empty() { object(new) } else { old }, "rope_theta");
            let original = config.get(ORIGINAL).filter(|original| !original.is_null());
            if let (Some(original), true) = (original, has_original(&keys)) {
                keys.insert(ORIGINAL.into(), original.clone());
            }
            return vec![keys];
        }
        let of = |kind: &str| object(new.and_then(|kinds| kinds.get(kind)));
        let mut full = of("full_attention");
        // The older key is about layers with full attention only.
        if let Some(name) = old.remove("type") {
            old.entry("rope_type").or_insert(name);
        }
        full.extend(old);
        vec![complete(full, "rope_theta"), complete(of("sliding_attention"), "rope_local_base_freq")]
    }

    /// Reads `config.json` of a model of this family.
    ///
    /// # Errors
    /// When something in it is not supported, or does not fit.
    pub fn read(&self, config: &Map<String, Value>) -> Result<(DecoderConfig, DecoderStructure), String> {
        let all = self.with_defaults(config);
        let config: DecoderConfig =
            serde_json::from_value(Value::Object(all.clone())).map_err(|error| error.to_string())?;
        if config.use_bidirectional_attention == Some(true) {
            return Err("`use_bidirectional_attention` is set: an encoder, which predicts no tokens".into());
        }
        let rope = |keys: Map<String, Value>| Rope::new(&keys, config.head_dim(), config.max_position_embeddings);
        let ropes = self.rotary_keys(&all).into_iter().map(rope).collect::<Result<Vec<_>, _>>()?;
        let mut structure = DecoderStructure {
            norms: Norms::Before,
            norm_offset: 0.0,
            qk_norm: None,
            attention_biases: [config.attention_bias; 2],
            residual_dropout: config.resid_pdrop,
            fused: self.fused,
            gate: Gate::named("hidden_act", &config.hidden_act)?,
            embedding_scale: 1.0,
            noise_before_scale: false,
            residual_scale: 1.0,
            head_scale: 1.0,
            score_scale: (config.head_dim() as f64).powf(-0.5) as f32,
            score_cap: None,
            logit_cap: None,
            layers: config.layers(self.windows, self.rotation, ropes.len())?,
            ropes,
        };
        (self.structure)(&config, &all, &mut structure)?;
        Ok((config, structure))
    }
}

const MISTRAL: DecoderFamily = DecoderFamily {
    defaults: r#"{"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}"#,
    windows: Windows::ByLayer(Rule::All),
    gguf: Some("llama"),
    ..DecoderFamily::new("mistral", "Mistral", "MistralForCausalLM")
};

/// The families that are built in.
pub(crate) static BUILT_IN: [DecoderFamily; 14] = [
    DecoderFamily { gguf: Some("llama"), ..DecoderFamily::new("llama", "Llama", "LlamaForCausalLM") },
    MISTRAL,
    // The class by which transformers computes a `mistral` whose file has `layer_types`.
    DecoderFamily { model_type: "ministral", class: "Ministral", language_class: "MinistralForCausalLM", ..MISTRAL },
    DecoderFamily {
        defaults: r#"{"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096}"#,
        windows: Windows::ByLayer(Rule::Last),
        gguf: Some("qwen2"),
        structure: |_, _, structure| {
            // Independent of the configuration.
            structure.attention_biases = [true, false];
            Ok(())
        },
        ..DecoderFamily::new("qwen2", "Qwen2", "Qwen2ForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768, "sliding_window": 4096}"#,
        windows: Windows::ByLayer(Rule::Last),
        gguf: Some("qwen3"),
        structure: |_, _, structure| {
            structure.qk_norm = Some(QkNorm::Heads);
            Ok(())
        },
        ..DecoderFamily::new("qwen3", "Qwen3", "Qwen3ForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
            "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}"#,
        windows: Windows::ByLayer(Rule::Pattern),
        gguf: Some("gemma2"),
        structure: gemma,
        ..DecoderFamily::new("gemma2", "Gemma2", "Gemma2ForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
            "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "sliding_window_pattern": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}"#,
        windows: Windows::ByLayer(Rule::Pattern),
        rotation: Rotation::OwnInWindows,
        gguf: Some("gemma3"),
        structure: |config, all, structure| {
            if config.attn_logit_softcapping.is_some() {
                return Err("`attn_logit_softcapping` is set, but Gemma 3 has none".into());
            }
            structure.qk_norm = Some(QkNorm::Heads);
            gemma(config, all, structure)
        },
        ..DecoderFamily::new("gemma3_text", "Gemma3Text", "Gemma3ForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": true,
            "no_rope_layer_interval": 4, "rope_theta": 2000000.0}"#,
        windows: Windows::ByLayer(Rule::NoRope),
        rotation: Rotation::InSomeLayers,
        ..DecoderFamily::new("smollm3", "SmolLM3", "SmolLM3ForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 1.0}"#,
        windows: Windows::Everywhere,
        fused: true,
        structure: |_, _, structure| {
            structure.attention_biases = [false; 2];
            Ok(())
        },
        ..DecoderFamily::new("phi3", "Phi3", "Phi3ForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"rms_norm_eps": 1e-5}"#,
        structure: olmo2,
        ..DecoderFamily::new("olmo2", "Olmo2", "Olmo2ForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4, "rope_theta": 500000.0,
            "rope_local_base_freq": 500000.0}"#,
        windows: Windows::ByLayer(Rule::Pattern),
        rotation: Rotation::OwnInWindows,
        structure: olmo2,
        ..DecoderFamily::new("olmo3", "Olmo3", "Olmo3ForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192, "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": true}"#,
        structure: |config, _, structure| {
            structure.norm_offset = 1.0;
            structure.embedding_scale = (config.hidden_size as f32).sqrt();
            // The first files name the exact form, but the models were trained with the other.
            if config.hidden_act == "gelu" {
                structure.gate = Gate::Gelu(Gelu::Tanh);
            }
            Ok(())
        },
        ..DecoderFamily::new("gemma", "Gemma", "GemmaForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}"#,
        structure: |config, _, structure| {
            structure.embedding_scale = config.embedding_multiplier;
            structure.noise_before_scale = true;
            structure.score_scale = config.attention_multiplier;
            structure.residual_scale = config.residual_multiplier;
            structure.head_scale = 1.0 / config.logits_scaling;
            Ok(())
        },
        ..DecoderFamily::new("granite", "Granite", "GraniteForCausalLM")
    },
    DecoderFamily {
        defaults: r#"{"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288, "attention_bias": true,
            "attention_out_bias": false, "attention_dropout": 0.1, "residual_dropout": 0.1}"#,
        structure: |config, _, structure| {
            structure.attention_biases = [config.attention_bias, config.attention_out_bias];
            structure.residual_dropout = config.residual_dropout;
            Ok(())
        },
        ..DecoderFamily::new("seed_oss", "SeedOss", "SeedOssForCausalLM")
    },
];

/// Structure of Gemma 2 and 3.
fn gemma(config: &DecoderConfig, _: &Map<String, Value>, structure: &mut DecoderStructure) -> Result<(), String> {
    structure.norms = Norms::Around;
    structure.norm_offset = 1.0;
    structure.embedding_scale = (config.hidden_size as f32).sqrt();
    structure.score_scale = config.query_pre_attn_scalar.unwrap_or(config.head_dim() as f64).powf(-0.5) as f32;
    structure.score_cap = config.attn_logit_softcapping;
    structure.logit_cap = config.final_logit_softcapping;
    Ok(())
}

/// Structure of OLMo 2 and 3.
fn olmo2(_: &DecoderConfig, _: &Map<String, Value>, structure: &mut DecoderStructure) -> Result<(), String> {
    structure.norms = Norms::After;
    structure.qk_norm = Some(QkNorm::Whole);
    Ok(())
}

/// The families that the program has added.
static REGISTERED: RwLock<Vec<&'static DecoderFamily>> = RwLock::new(Vec::new());

/// All families: those that are built in, then those that the program has added.
pub(crate) fn all() -> Vec<&'static DecoderFamily> {
    let added = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    BUILT_IN.iter().chain(added.iter().copied()).collect()
}

/// Adds `family`; false if its `model_type` is taken.
pub(crate) fn add(family: DecoderFamily) -> bool {
    let mut added = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let is_free = BUILT_IN.iter().chain(added.iter().copied()).all(|known| *known != family);
    if is_free {
        added.push(Box::leak(Box::new(family)));
    }
    is_free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotary_keys(model_type: &str, config: &Value) -> Value {
        let family = all().into_iter().find(|family| family.model_type == model_type).expect("it is known");
        json!(family.rotary_keys(config.as_object().expect("an object")))
    }

    #[test]
    fn rotary_keys_are_those_of_transformers() {
        for (model_type, config, expected) in [
            // The default of the class.
            ("smollm3", json!({}), json!([{ "rope_type": "default", "rope_theta": 2_000_000.0 }])),
            // Both names of the type.
            (
                "llama",
                json!({ "rope_scaling": { "type": "linear", "rope_type": "linear", "factor": 2.0 } }),
                json!([{ "rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0 }]),
            ),
            // `rope_scaling` replaces `rope_parameters`, unless it is empty.
            (
                "llama",
                json!({
                    "rope_theta": 700.0, "rope_parameters": { "rope_type": "default", "rope_theta": 900.0 },
                    "rope_scaling": { "type": "linear", "factor": 2.0 }
                }),
                json!([{ "rope_type": "linear", "factor": 2.0, "rope_theta": 700.0 }]),
            ),
            (
                "llama",
                json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 900.0 }, "rope_scaling": {} }),
                json!([{ "rope_type": "default", "rope_theta": 900.0 }]),
            ),
            // The original length outside of the object counts.
            (
                "qwen2",
                json!({
                    "original_max_position_embeddings": 16,
                    "rope_scaling": { "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32 }
                }),
                json!([{
                    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10_000.0
                }]),
            ),
            // Only Phi-3 rotates a part by angles that are not scaled.
            (
                "llama",
                json!({ "partial_rotary_factor": 0.5, "rope_parameters": { "partial_rotary_factor": 0.5 } }),
                json!([{ "rope_type": "default", "rope_theta": 10_000.0 }]),
            ),
            (
                "llama",
                json!({ "partial_rotary_factor": 0.5, "rope_scaling": { "rope_type": "linear", "factor": 2.0 } }),
                json!([{ "rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0, "partial_rotary_factor": 0.5 }]),
            ),
            (
                "phi3",
                json!({ "partial_rotary_factor": 0.5 }),
                json!([{ "rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5 }]),
            ),
            // Layers with windows have their own angles, which are not scaled.
            (
                "olmo3",
                json!({ "rope_theta": 700.0, "rope_scaling": { "type": "linear", "factor": 2.0 } }),
                json!([
                    { "rope_type": "linear", "factor": 2.0, "rope_theta": 700.0 },
                    { "rope_type": "default", "rope_theta": 500_000.0 }
                ]),
            ),
        ] {
            assert_eq!(rotary_keys(model_type, &config), expected, "{model_type} {config}");
        }
    }

    #[test]
    fn angles_are_scaled_from_the_length_of_the_model_if_the_original_one_is_missing() {
        let llama = |keys: Value| {
            let keys = rotary_keys("llama", &json!({ "rope_parameters": keys }));
            Rope::new(keys[0].as_object().expect("an object"), 8, 64).expect("angles")
        };
        let scaled = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0 });
        let mut with_length = scaled.clone();
        with_length["original_max_position_embeddings"] = json!(64);
        assert_eq!(llama(scaled), llama(with_length));
    }
}
