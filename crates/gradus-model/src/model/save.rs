//! Writing model directories that `transformers` loads without missing or unexpected names.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::Module;
use gradus_kernels::FrozenWeight;
use safetensors::tensor::View;
use serde_json::{Map, Value, json};

use super::adapter::{self, Adaptable};
use super::causal::CausalLm;
use super::classifier::{Classifier, Head};
use super::decoder::family::DecoderFamily;
use super::directory::{ModelDir, SavedWeights, write_head};
use super::family::Family;
use super::gpt_neox;
use super::parameters::{SharedTensor, shared_tensors, write_safetensors};
use super::quantized;
use super::reward_model::RewardModel;
use super::rope::{ORIGINAL, PARTIAL};
use super::trunk::Trunk;
use crate::error::{Error, Result};

/// Largest size of a weight file in bytes; larger models are sharded (the limit of transformers 5).
const SHARD_BYTES: usize = 50_000_000_000;

/// Writes `model` into the existing directory `to`: configuration, weights, generation configuration and the tokenizer files of `source`.
/// For a model with an adapter, only the adapter is written, in peft's format.
///
/// # Errors
/// When a file cannot be written.
pub fn save_causal(model: &CausalLm, source: &ModelDir, to: &Path) -> Result<()> {
    if let Some(config) = model.adapter() {
        return adapter::save(&model.trunk, model.head_tensors(), config, source, to);
    }
    let mut config = source.config.clone();
    config.insert("architectures".into(), json!([source.family()?.language_class()]));
    if model.lm_head.is_some() {
        config.insert("tie_word_embeddings".into(), json!(false));
        if source.model_type() == "t5" {
            // Without this key, readers would infer from the separate head that the states are not scaled.
            config.insert("scale_decoder_outputs".into(), json!(model.trunk.head_scale() != 1.0));
        }
    }
    describe_quantization(&mut config, &model.trunk, &head_modules(source.family()?));
    for key in ["num_labels", "id2label", "label2id"] {
        if source.is_reward_model() {
            config.remove(key);
        }
    }
    write_json(&to.join("config.json"), finish_config(config, source)?)?;
    let generation =
        source.generation_config.clone().unwrap_or_else(|| derived_generation_config(&source.whole_config()));
    write_json(&to.join("generation_config.json"), generation)?;
    let mut tensors = tensors_on_disk(model, &model.trunk, source)?;
    tensors.extend(model.logits_bias().map(|bias| SharedTensor::new("final_logits_bias".into(), bias)));
    save_weights(tensors, source.saved_weights, to, SHARD_BYTES)?;
    source.copy_tokenizer(to)
}

/// Writes `model` into the existing directory `to` as a `…ForSequenceClassification` model with one label. For a model with an adapter,
/// only the adapter and the head are written.
///
/// `pad_id` must differ from every end-of-sequence id, because readers find a row's last token by it.
///
/// # Errors
/// When a file cannot be written.
pub fn save_reward_model(model: &RewardModel, source: &ModelDir, to: &Path, pad_id: u32) -> Result<()> {
    if let Some(config) = model.adapter() {
        let mut score = shared_tensors(&model.score);
        score.iter_mut().for_each(|tensor| tensor.name = format!("score.{}", tensor.name));
        return adapter::save(&model.trunk, score, config, source, to);
    }
    let mut config = source.config.clone();
    config.insert("architectures".into(), json!([format!("{}ForSequenceClassification", source.family()?.class())]));
    config.insert("num_labels".into(), json!(1));
    config.insert("id2label".into(), json!({ "0": "LABEL_0" }));
    config.insert("label2id".into(), json!({ "LABEL_0": 0 }));
    config.insert("pad_token_id".into(), json!(pad_id));
    describe_quantization(&mut config, &model.trunk, &["score"]);
    write_json(&to.join("config.json"), finish_config(config, source)?)?;
    save_weights(tensors_on_disk(model, &model.trunk, source)?, source.saved_weights, to, SHARD_BYTES)?;
    source.copy_tokenizer(to)
}

/// Writes `model` into the existing directory `to` as a `…ForSequenceClassification` or `…ForTokenClassification` model with its labels.
/// For a model with an adapter, only the adapter, the trained part of the head and the labels are written.
///
/// # Errors
/// When a file cannot be written.
pub fn save_classifier(model: &Classifier, source: &ModelDir, to: &Path) -> Result<()> {
    let (family, task) = (source.encoder_family()?, model.task());
    if let Some(config) = model.adapter() {
        let mut tensors = shared_tensors(model);
        tensors.iter_mut().for_each(|tensor| tensor.name = Classifier::on_disk(&tensor.name, family));
        tensors.retain(|tensor| Head::part(family, &tensor.name).is_some_and(|part| config.trains_head(part)));
        adapter::save(&model.encoder, tensors, config, source, to)?;
        let mut head = Map::new();
        task.describe(&mut head);
        return write_head(head, to);
    }
    let mut config = source.config.clone();
    config.insert("architectures".into(), json!([format!("{}{}", family.class(), task.scope.class_end())]));
    task.describe(&mut config);
    name_dtype(&mut config, source.saved_weights);
    config.remove("quantization_config");
    write_json(&to.join("config.json"), config)?;
    let mut tensors = shared_tensors(model);
    tensors.iter_mut().for_each(|tensor| tensor.name = Classifier::on_disk(&tensor.name, family));
    save_weights(tensors, source.saved_weights, to, SHARD_BYTES)?;
    source.copy_tokenizer(to)
}

/// Returns the parameters under their names on disk. Names in the trunk get the family's prefix, and a quantized layer becomes several
/// tensors.
fn tensors_on_disk<M: Module>(model: &M, trunk: &Trunk, source: &ModelDir) -> Result<Vec<SharedTensor>> {
    let family = source.family()?;
    let prefix = family.base_prefix();
    let mut packed: BTreeMap<String, FrozenWeight> = trunk.packed_weights().into_iter().collect();
    let mut tensors = Vec::new();
    for mut tensor in shared_tensors(model) {
        let Some(rest) = tensor.name.strip_prefix("trunk.") else {
            if tensor.name == "lm_head.weight" {
                tensor.name = format!("{}.weight", family.head_name());
            }
            tensors.push(tensor);
            continue;
        };
        let name = format!("{prefix}{rest}");
        match rest.strip_suffix(".weight").and_then(|layer| packed.remove(layer)) {
            None => {
                tensor.name = name;
                tensors.push(tensor);
            }
            Some(weight) => {
                let weight = weight.quantized().ok_or_else(|| {
                    Error::model(&source.path, format!("`{name}` is packed for sampling, and cannot be written"))
                })?;
                tensors.extend(quantized::tensors(name.trim_end_matches(".weight"), weight));
            }
        }
    }
    Ok(tensors)
}

/// Returns the names of the LM head as a module. transformers 5 gave GPT-NeoX's another one.
fn head_modules(family: Family) -> Vec<&'static str> {
    let mut names = vec!["lm_head"];
    names.extend(Some(family.head_name()).filter(|name| !names.contains(name)));
    names
}

/// Sets the quantization of the trunk in `config`, or removes it; `head` has the names of the head.
fn describe_quantization(config: &mut Map<String, Value>, trunk: &Trunk, head: &[&str]) {
    match trunk.quantization() {
        Some(format) => config.insert("quantization_config".into(), quantized::quantization_config(format, head)),
        None => config.remove("quantization_config"),
    };
}

/// Sets the type of the weights under the new key and the old one.
fn name_dtype(config: &mut Map<String, Value>, weights: SavedWeights) {
    for key in ["dtype", "torch_dtype"] {
        config.insert(key.into(), json!(weights.dtype()));
    }
}

/// Sets the keys that every saved configuration has.
fn finish_config(mut config: Map<String, Value>, source: &ModelDir) -> Result<Map<String, Value>> {
    name_dtype(&mut config, source.saved_weights);
    config.insert("use_cache".into(), json!(true));
    match source.family()? {
        Family::Decoder(family) => agree_on_rope(family, &mut config),
        Family::GptNeox => gpt_neox::agree_on_rope(&mut config),
        Family::Gpt2
        | Family::Opt
        | Family::T5
        | Family::Mt5
        | Family::Bart
        | Family::Blenderbot
        | Family::BlenderbotSmall => {}
    }
    Ok(config)
}

/// Writes rotary parameters under the new key and the old ones, with equal values, for readers of either. If layers with a window have their
/// own angles, `rope_scaling` is about the other layers.
fn agree_on_rope(family: &DecoderFamily, config: &mut Map<String, Value>) {
    let all = family.rotary_keys(config);
    let full = &all[0];
    let mut scaling = full.clone();
    scaling.remove("rope_theta");
    if family.rotates_part() {
        // Older readers of Phi-3 accept only `type` and the factors in `rope_scaling`, and expect these keys outside.
        for key in [PARTIAL, ORIGINAL] {
            if let Some(value) = scaling.remove(key) {
                config.insert(key.into(), value);
            }
        }
        if let Some(kind) = scaling.remove("rope_type") {
            scaling.insert("type".into(), kind);
        }
    }
    let is_plain = full["rope_type"] == "default";
    config.insert("rope_scaling".into(), if is_plain { Value::Null } else { Value::Object(scaling) });
    config.insert("rope_theta".into(), full["rope_theta"].clone());
    let new = match all.as_slice() {
        [full, windows] => {
            config.insert("rope_local_base_freq".into(), windows["rope_theta"].clone());
            json!({ "full_attention": full, "sliding_attention": windows })
        }
        _ => json!(full),
    };
    config.insert("rope_parameters".into(), new);
}

/// Creates the generation configuration of a model without one.
fn derived_generation_config(config: &Map<String, Value>) -> Map<String, Value> {
    let keys = [
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
    ];
    let kept = keys.iter().filter_map(|key| config.get(*key).map(|value| ((*key).to_string(), value.clone())));
    let mut generation: Map<String, Value> = [("_from_model_config".to_string(), json!(true))].into_iter().collect();
    generation.extend(kept.filter(|(_, value)| !value.is_null()));
    generation
}

fn write_json(path: &Path, object: Map<String, Value>) -> Result<()> {
    let mut text = serde_json::to_string_pretty(&Value::Object(object)).expect("JSON values serialize");
    text.push('\n');
    std::fs::write(path, text).map_err(|error| Error::io(path, error))
}

/// Writes tensors as one safetensors file, or as shards of at most `limit` bytes with an index.
///
/// # Errors
/// When a value exceeds the range of `weights`, or a file cannot be written.
fn save_weights(tensors: Vec<SharedTensor>, weights: SavedWeights, to: &Path, limit: usize) -> Result<()> {
    let tensors: Vec<SharedTensor> = tensors.into_iter().map(|tensor| tensor.saved_as(weights)).collect();
    for tensor in &tensors {
        if let Some(value) = tensor.out_of_range() {
            let message = format!("`{}` holds {value}, which is too large for {}", tensor.name, weights.name());
            return Err(Error::model(to, message).with_hint("save the weights as f32"));
        }
    }
    let mut shards: Vec<Vec<&SharedTensor>> = vec![Vec::new()];
    let mut size = 0;
    for tensor in &tensors {
        let bytes = tensor.data_len();
        if size + bytes > limit && size > 0 {
            shards.push(Vec::new());
            size = 0;
        }
        size += bytes;
        shards.last_mut().expect("at least one shard").push(tensor);
    }
    if let [only] = shards.as_slice() {
        return write_safetensors(only, &to.join("model.safetensors"));
    }
    let mut weight_map = Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        write_safetensors(shard, &to.join(&name))?;
        weight_map.extend(shard.iter().map(|tensor| (tensor.name.clone(), json!(name))));
    }
    let total: usize = tensors.iter().map(|tensor| tensor.data_len()).sum();
    let parameters: usize = tensors.iter().map(|tensor| tensor.dims().iter().product::<usize>()).sum();
    let index = json!({
        "metadata": { "total_parameters": parameters, "total_size": total },
        "weight_map": weight_map,
    });
    let Value::Object(index) = index else { unreachable!("an object literal") };
    write_json(&to.join("model.safetensors.index.json"), index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};

    /// Returns the saved configuration of a model, which must have the angles of its source.
    fn saved_rope(model_type: &str, config: &Value) -> Map<String, Value> {
        let Some(Family::Decoder(family)) = Family::named(model_type) else { panic!("{model_type} is a decoder") };
        let mut config = config.as_object().cloned().expect("an object");
        let before = family.rotary_keys(&config);
        agree_on_rope(family, &mut config);
        assert_eq!(family.rotary_keys(&config), before, "{model_type}");
        config
    }

    #[test]
    fn a_saved_model_has_the_angles_of_its_source() {
        // The base is the default of the class.
        let config = saved_rope("smollm3", &json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }));
        assert_eq!(config["rope_theta"], 2_000_000.0);
        assert_eq!(config["rope_scaling"], json!({ "rope_type": "linear", "factor": 2.0 }));
        let complete = json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 2_000_000.0 });
        assert_eq!(config["rope_parameters"], complete);

        // Both forms of two sets of angles.
        let scaling = json!({ "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16 });
        let mut full = scaling.clone();
        full["rope_theta"] = json!(700.0);
        let windows = json!({ "rope_type": "default", "rope_theta": 500_000.0 });
        let kinds = json!({ "full_attention": full, "sliding_attention": windows });
        for source in [json!({ "rope_theta": 700.0, "rope_scaling": scaling }), json!({ "rope_parameters": kinds })] {
            let config = saved_rope("olmo3", &source);
            assert_eq!(config["rope_parameters"], kinds, "{source}");
            assert_eq!((&config["rope_theta"], &config["rope_scaling"]), (&json!(700.0), &scaling), "{source}");
        }
        let config = saved_rope("gemma3_text", &json!({}));
        assert_eq!((&config["rope_theta"], &config["rope_local_base_freq"]), (&json!(1e6), &json!(1e4)));
        assert_eq!(config["rope_scaling"], Value::Null);

        // Older readers of Phi-3 accept these three keys only.
        let factors = json!({ "type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.0, 3.0] });
        let config = json!({ "original_max_position_embeddings": 16, "rope_scaling": factors });
        let config = saved_rope("phi3", &config);
        assert_eq!(config["rope_scaling"], factors);
        assert_eq!(config["original_max_position_embeddings"], 16);
        assert_eq!(config["rope_parameters"]["rope_type"], "longrope");
        assert_eq!(config["rope_parameters"]["original_max_position_embeddings"], 16);
    }

    #[test]
    fn weights_over_the_limit_are_sharded_with_an_index() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let tensor = |name: &str| SharedTensor::new(name.into(), Tensor::<2>::ones([2, 3], &Device::flex()));
        save_weights(vec![tensor("a"), tensor("b"), tensor("c")], SavedWeights::F32, dir.path(), 50).expect("written");
        let index = std::fs::read_to_string(dir.path().join("model.safetensors.index.json")).expect("index");
        let index: Value = serde_json::from_str(&index).expect("JSON");
        assert_eq!(index["weight_map"]["b"], "model-00001-of-00002.safetensors");
        assert_eq!(index["weight_map"]["c"], "model-00002-of-00002.safetensors");
        assert_eq!(index["metadata"]["total_size"], 72);
    }

    #[test]
    fn weights_are_rounded_on_disk_or_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        // Halfway between two numbers of bf16, and slightly above.
        let values = [1.0 + 1.0 / 256.0, 1.0 + 1.0 / 256.0 + 1.0 / 4096.0, -65_519.0];
        let tensor = |values: &[f32]| SharedTensor::new("a".into(), Tensor::<1>::from_floats(values, &Device::flex()));
        let read = |weights: SavedWeights| {
            save_weights(vec![tensor(&values)], weights, dir.path(), 50).expect("written");
            let bytes = std::fs::read(dir.path().join("model.safetensors")).expect("weights");
            let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
            let found = file.tensor("a").expect("the tensor");
            let halves: Vec<u16> =
                found.data().chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
            (found.dtype(), halves)
        };
        assert_eq!(read(SavedWeights::Bf16), (safetensors::Dtype::BF16, vec![0x3f80, 0x3f81, 0xc780]));
        assert_eq!(read(SavedWeights::F16), (safetensors::Dtype::F16, vec![0x3c04, 0x3c04, 0xfbff]));
        for (weights, value) in [(SavedWeights::F16, 65_520.0), (SavedWeights::Bf16, f32::MAX)] {
            let error = save_weights(vec![tensor(&[value])], weights, dir.path(), 50).expect_err("too large");
            assert!(error.to_string().contains("is too large for"), "{error}");
            save_weights(vec![tensor(&[f32::INFINITY])], weights, dir.path(), 50).expect("it is what it was");
        }
    }
}
