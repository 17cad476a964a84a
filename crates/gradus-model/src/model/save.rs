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
use super::directory::{ModelDir, SavedWeights, write_head};
use super::parameters::{SharedTensor, shared_tensors, write_safetensors};
use super::quantized;
use super::reward_model::RewardModel;
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
    describe_quantization(&mut config, &model.trunk, "lm_head");
    for key in ["num_labels", "id2label", "label2id"] {
        if source.is_reward_model() {
            config.remove(key);
        }
    }
    write_json(&to.join("config.json"), finish_config(config, source.saved_weights))?;
    let generation = source.generation_config.clone().unwrap_or_else(|| derived_generation_config(&source.config));
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
    describe_quantization(&mut config, &model.trunk, "score");
    write_json(&to.join("config.json"), finish_config(config, source.saved_weights))?;
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
    let prefix = source.family()?.base_prefix();
    let mut packed: BTreeMap<String, FrozenWeight> = trunk.packed_weights().into_iter().collect();
    let mut tensors = Vec::new();
    for mut tensor in shared_tensors(model) {
        let Some(rest) = tensor.name.strip_prefix("trunk.") else {
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

/// Sets the quantization of the trunk in `config`, or removes it; `head` is the name of the head.
fn describe_quantization(config: &mut Map<String, Value>, trunk: &Trunk, head: &str) {
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
fn finish_config(mut config: Map<String, Value>, weights: SavedWeights) -> Map<String, Value> {
    name_dtype(&mut config, weights);
    config.insert("use_cache".into(), json!(true));
    agree_on_rope(&mut config);
    config
}

/// Writes rotary parameters under the new key and the old ones, with equal values, for readers of either.
fn agree_on_rope(config: &mut Map<String, Value>) {
    let new = config.get("rope_parameters").and_then(Value::as_object).cloned();
    let old = config.get("rope_scaling").and_then(Value::as_object).cloned();
    if config.get("model_type").is_some_and(|name| name == "gemma3_text") {
        return agree_on_two_ropes(config, new, old);
    }
    if new.is_none() && old.is_none() && !config.contains_key("rope_theta") {
        return;
    }
    let mut parameters = new.or_else(|| old.clone()).unwrap_or_default();
    let theta = parameters.get("rope_theta").or_else(|| config.get("rope_theta")).cloned().unwrap_or(json!(10_000.0));
    if let Some(kind) = parameters.remove("type") {
        parameters.entry("rope_type").or_insert(kind);
    }
    parameters.insert("rope_theta".into(), theta.clone());
    parameters.entry("rope_type").or_insert(json!("default"));
    let scaling = if parameters["rope_type"] == "default" {
        Value::Null
    } else {
        let mut scaling = parameters.clone();
        scaling.remove("rope_theta");
        Value::Object(scaling)
    };
    // Older readers of Phi-3 also use these keys.
    for key in ["partial_rotary_factor", "original_max_position_embeddings"] {
        if let (Some(value), true) = (parameters.get(key), config.get("model_type").is_some_and(|name| name == "phi3"))
        {
            config.insert(key.into(), value.clone());
        }
    }
    config.insert("rope_theta".into(), theta);
    config.insert("rope_scaling".into(), scaling);
    config.insert("rope_parameters".into(), Value::Object(parameters));
}

/// Like [`agree_on_rope`], for Gemma 3: the angles of layers with full attention are scaled, those of layers with a window never.
fn agree_on_two_ropes(
    config: &mut Map<String, Value>,
    new: Option<Map<String, Value>>,
    old: Option<Map<String, Value>>,
) {
    let scaled = new.is_none().then_some(old).flatten();
    let mut new = new.unwrap_or_default();
    for (kind, key, base) in
        [("full_attention", "rope_theta", 1_000_000.0), ("sliding_attention", "rope_local_base_freq", 10_000.0)]
    {
        let keys = new.entry(kind).or_insert_with(|| json!({}));
        let mut keys = keys.as_object().cloned().unwrap_or_default();
        if kind == "full_attention" {
            keys.extend(scaled.clone().unwrap_or_default());
        }
        if let Some(name) = keys.remove("type") {
            keys.entry("rope_type").or_insert(name);
        }
        keys.entry("rope_type").or_insert(json!("default"));
        let theta = keys.entry("rope_theta").or_insert_with(|| config.get(key).cloned().unwrap_or(json!(base))).clone();
        config.insert(key.into(), theta);
        if kind == "full_attention" {
            let mut scaling = keys.clone();
            scaling.remove("rope_theta");
            let is_plain = scaling["rope_type"] == "default";
            config.insert("rope_scaling".into(), if is_plain { Value::Null } else { Value::Object(scaling) });
        }
        new.insert(kind.into(), Value::Object(keys));
    }
    config.insert("rope_parameters".into(), Value::Object(new));
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
