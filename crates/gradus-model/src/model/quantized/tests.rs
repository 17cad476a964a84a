//! Comparison with bitsandbytes: `tools/parity/quantised.py` quantizes small models with it and writes them with `transformers`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use gradus_kernels::{Absmax, Quantized};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::model::{
    CausalLm, ModelDir, Precision, Quantization, RewardModel, Rows, WeightFormat, save_causal, save_reward_model,
};

const NAMES: [&str; 5] = ["gpt2-nf4", "llama-nf4", "llama-nf4-plain", "gpt2-int8", "llama-int8"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/quantised").join(name)
}

fn load(path: &Path) -> CausalLm {
    CausalLm::load(&ModelDir::open(path).expect("a model directory"), &Device::flex()).expect("loads")
}

/// Unquantized model of fixture `name`, in a temporary directory.
fn source(name: &str) -> (tempfile::TempDir, CausalLm) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = ModelDir::open(&fixture(name)).expect("fixture").config;
    config.remove("quantization_config");
    std::fs::write(dir.path().join("config.json"), Value::Object(config).to_string()).expect("written");
    std::fs::copy(fixture(name).join("source.safetensors"), dir.path().join("model.safetensors")).expect("copied");
    let model = load(dir.path());
    (dir, model)
}

/// Type, shape and bytes of every tensor in a file.
fn tensors(path: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path).expect("tensors");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let part = |view: safetensors::tensor::TensorView<'_>| {
        (format!("{:?}", view.dtype()), view.shape().to_vec(), view.data().to_vec())
    };
    file.tensors().into_iter().map(|(name, view)| (name, part(view))).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn host<const R: usize>(tensor: Tensor<R>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32")
}

#[track_caller]
fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let scale = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * scale, "{what}[{i}]: {f} instead of {e} (scale {scale})");
    }
}

/// Values of every quantized layer, `[out, in]`, by its name in the trunk.
fn values(model: &CausalLm) -> BTreeMap<String, Vec<f32>> {
    let number = |weight: Quantized| match weight {
        Quantized::Nf4(weight) => weight.values(),
        Quantized::Int8(weight) => {
            let width = weight.shape()[1];
            let value = |(i, &code): (usize, &i8)| f32::from(code) * weight.absmax()[i / width] / 127.0;
            weight.codes().iter().enumerate().map(value).collect()
        }
    };
    let weights = model.trunk.packed_weights().into_iter();
    weights.map(|(name, weight)| (name, number(weight.quantized().expect("quantized")))).collect()
}

fn sequences(name: &str) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).expect("expected.json");
    serde_json::from_value(serde_json::from_str::<Value>(&text).expect("JSON")["sequences"].clone()).expect("sequences")
}

#[test]
fn what_bitsandbytes_wrote_holds_the_numbers_that_it_says() {
    for name in NAMES {
        let (model, expected) = (load(&fixture(name)), tensors(&fixture(name).join("expected.safetensors")));
        let format = if name.contains("int8") { Quantization::Int8 } else { Quantization::Nf4 };
        assert_eq!(model.trunk.quantization(), Some(format), "{name}");
        assert_eq!(ModelDir::open(&fixture(name)).expect("opens").quantization(), Some(format), "{name}");
        let values = values(&model);
        let layers = expected.keys().filter(|key| key.starts_with("values."));
        assert_eq!(layers.count(), values.len(), "{name}: layers");
        for (layer, found) in &values {
            let of = |prefix: &str| expected.get(&format!("values.{prefix}.{layer}"));
            let (_, _, bytes) = of("transformer").or_else(|| of("model")).expect("the layer");
            assert_close(&format!("{name}: {layer}"), found, &floats(bytes), 1e-6);
        }
        // INT8 weights are multiplied by activations in bf16.
        let tolerance = if format == Quantization::Int8 { 2e-2 } else { 1e-5 };
        for (i, ids) in sequences(name).iter().enumerate() {
            let (_, _, logits) = &expected[&format!("logits.{i}")];
            let found = host(model.logits(&model.batch(&Rows::texts(&[ids]))));
            assert_close(&format!("{name}: logits {i}"), &found, &floats(logits), tolerance);
        }
    }
}

#[test]
fn quantizing_gives_the_codes_that_bitsandbytes_gives() {
    for name in NAMES {
        let format = if name.contains("int8") { Quantization::Int8 } else { Quantization::Nf4 };
        let (_dir, model) = source(name);
        let ours = model.quantized(format).trunk.packed_weights();
        let theirs = load(&fixture(name)).trunk.packed_weights();
        assert!(!ours.is_empty() && ours.len() == theirs.len());
        for ((layer, ours), (_, theirs)) in ours.iter().zip(&theirs) {
            match (ours.quantized().expect("quantized"), theirs.quantized().expect("quantized")) {
                (Quantized::Int8(ours), Quantized::Int8(theirs)) => {
                    // bitsandbytes rounds the weight to half precision first.
                    assert_close("magnitudes", ours.absmax(), theirs.absmax(), 5e-4);
                    let difference = |(ours, theirs): (&i8, &i8)| ours.abs_diff(*theirs);
                    let differences: Vec<u8> = ours.codes().iter().zip(theirs.codes()).map(difference).collect();
                    assert!(differences.iter().all(|&steps| steps <= 1), "{name}: {layer}");
                    let moved = differences.iter().filter(|&&steps| steps > 0).count();
                    assert!(moved * 50 < differences.len(), "{name}: {layer}, {moved} of {}", differences.len());
                }
                (Quantized::Nf4(ours), Quantized::Nf4(theirs)) => {
                    assert!(ours.codes() == theirs.codes(), "{name}: {layer}");
                    assert_eq!(ours.map(), theirs.map());
                    let (Absmax::Nested(ours), Absmax::Nested(theirs)) = (ours.absmax(), theirs.absmax()) else {
                        continue;
                    };
                    // The mean is summed in another order, and the map of magnitudes in other steps, so the last bit may differ.
                    assert_close("offset", &[ours.offset], &[theirs.offset], 1e-6);
                    assert_close("nested magnitudes", &ours.absmax, &theirs.absmax, 1e-6);
                    assert_close("map", &ours.map, &theirs.map, 1.3e-7);
                    let difference = |(ours, theirs): (&u8, &u8)| ours.abs_diff(*theirs);
                    let differences: Vec<u8> = ours.codes.iter().zip(&theirs.codes).map(difference).collect();
                    assert!(differences.iter().all(|&steps| steps <= 1), "{name}: {layer}, magnitudes");
                    assert!(differences.iter().filter(|&&steps| steps > 0).count() <= 1, "{name}: {layer}, magnitudes");
                }
                _ => panic!("{name}: {layer} in another format"),
            }
        }
    }
}

#[test]
fn saving_keeps_every_bit_of_codes_and_scales() {
    for name in NAMES {
        let (dir, to) = (ModelDir::open(&fixture(name)).expect("opens"), tempfile::tempdir().expect("directory"));
        let model = load(&fixture(name));
        save_causal(&model, &dir, to.path()).expect("saved");
        let (before, after) =
            (tensors(&fixture(name).join("model.safetensors")), tensors(&to.path().join("model.safetensors")));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{name}");
        for (tensor, before) in &before {
            if tensor.contains("quant_state") {
                let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
                assert_eq!(json(&before.2), json(&after[tensor].2), "{name}: {tensor}");
            } else {
                assert!(*before == after[tensor], "{name}: {tensor}");
            }
        }
        let config = ModelDir::open(to.path()).expect("opens").config;
        let quantization = &config["quantization_config"];
        assert_eq!(quantization["quant_method"], "bitsandbytes");
        assert_eq!(quantization["load_in_8bit"], name.contains("int8"));
        let batch = model.batch(&Rows::texts(&sequences(name)));
        assert!(host(load(to.path()).logits(&batch)) == host(model.logits(&batch)), "{name}: logits");
    }
}

#[test]
fn a_reward_model_keeps_its_head_in_floats() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/models/gpt2-reward");
    let (dir, to) = (ModelDir::open(&from).expect("opens"), tempfile::tempdir().expect("directory"));
    let model = RewardModel::load(&dir, &Device::flex()).expect("loads");
    let batch = model.batch(&Rows::scored(&[vec![5u32, 9, 40, 7], vec![3, 11]]));
    let before = host(model.rewards(&batch));
    for format in [Quantization::Int8, Quantization::Nf4] {
        let quantized = model.clone().quantized(format);
        save_reward_model(&quantized, &dir, to.path(), 0).expect("saved");
        let written = tensors(&to.path().join("model.safetensors"));
        assert_eq!(written["score.weight"].0, "F32");
        let again = RewardModel::load(&ModelDir::open(to.path()).expect("opens"), &Device::flex()).expect("loads");
        assert!(host(again.rewards(&batch)) == host(quantized.rewards(&batch)), "{format:?}");
        assert_close("rewards", &host(again.rewards(&batch)), &before, 0.3);
    }
}

#[test]
fn quantized_layers_stay_what_they_are() {
    for name in ["gpt2-nf4", "llama-int8"] {
        let model = load(&fixture(name));
        let batch = model.batch(&Rows::texts(&sequences(name)));
        let before = host(model.logits(&batch));
        for weights in [WeightFormat::F32, WeightFormat::NF4, WeightFormat::INT8, WeightFormat::BF16] {
            let frozen = model.clone().into_frozen(weights);
            assert_eq!(frozen.trunk.quantization(), model.trunk.quantization());
            if weights == WeightFormat::F32 {
                assert!(host(frozen.logits(&batch)) == before, "{name}");
            }
        }
        let coarse = host(model.clone().with_compute(Precision::Bf16).logits(&batch));
        assert!(coarse != before, "{name}: the head at least is computed in bf16");
        assert_close(name, &coarse, &before, 2e-2);
        // Panels are padded to 32 outputs.
        assert!(
            model.trunk.linear_bytes() * if name == "gpt2-nf4" { 4 } else { 2 }
                < 4 * values(&model).values().map(Vec::len).sum::<usize>(),
            "{name}"
        );
    }
}

#[test]
fn training_all_weights_is_refused() {
    let dir = ModelDir::open(&fixture("gpt2-nf4")).expect("opens");
    let error = load(&dir.path).trunk.check_trainable(&dir).expect_err("quantized");
    assert!(error.to_string().contains("nf4"), "{error}");
    assert!(error.hint().expect("a hint").contains("adapter"));
    let (_dir, plain) = source("gpt2-nf4");
    assert!(!plain.trunk.is_quantized() && plain.trunk.check_trainable(&dir).is_ok());
}

/// A copy of fixture `name` with its tensors changed.
fn spoiled(name: &str, change: impl Fn(&mut BTreeMap<String, (String, Vec<usize>, Vec<u8>)>)) -> String {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::copy(fixture(name).join("config.json"), dir.path().join("config.json")).expect("copied");
    let mut tensors = tensors(&fixture(name).join("model.safetensors"));
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let dtype = serde_json::from_value(Value::String(dtype.clone())).expect("a type");
        (name, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).expect("written");
    let error = CausalLm::load(&ModelDir::open(dir.path()).expect("opens"), &Device::flex()).expect_err("spoiled");
    error.to_string().replace(&dir.path().display().to_string(), "[DIR]")
}

#[test]
fn damaged_layers_are_named() {
    let layer = "transformer.h.0.attn.c_attn";
    let without = |suffix: &'static str| {
        move |tensors: &mut BTreeMap<_, _>| drop(tensors.remove(&format!("{layer}.{suffix}")).expect("there"))
    };
    for (name, message, found) in [
        ("gpt2-nf4", "weight.absmax", spoiled("gpt2-nf4", without("weight.absmax"))),
        ("gpt2-nf4", "weight.nested_quant_map", spoiled("gpt2-nf4", without("weight.nested_quant_map"))),
        ("gpt2-int8", "SCB", spoiled("gpt2-int8", without("SCB"))),
    ] {
        let expected = format!("[DIR]: the weights do not fit `config.json`: missing tensor `{layer}.{message}`");
        assert_eq!(found, expected, "{name}");
    }
    let state = format!("{layer}.weight.quant_state.bitsandbytes__nf4");
    let found = spoiled("gpt2-nf4", |tensors| {
        let mut part = tensors.remove(&state).expect("there");
        part.2 = String::from_utf8(part.2).expect("JSON").replace("64", "32").into_bytes();
        tensors.insert(state.clone(), part);
    });
    assert!(found.contains("`blocksize` of") && found.ends_with("is 32, expected 64"), "{found}");
    let found = spoiled("gpt2-nf4", |tensors| {
        let part = tensors.remove(&state).expect("there");
        tensors.insert(state.replace("nf4", "fp4"), part);
    });
    assert!(found.contains("holds 4-bit floats (fp4); nf4 can be read"), "{found}");
    let found = spoiled("gpt2-int8", |tensors| {
        tensors.get_mut(&format!("{layer}.weight")).expect("there").1 = vec![32, 96];
    });
    assert!(found.contains("has shape [32, 96], expected [96, 32]"), "{found}");
}

#[test]
fn other_ways_to_quantize_are_refused() {
    let (dir, _) = source("gpt2-nf4");
    let mut opened = ModelDir::open(dir.path()).expect("opens");
    opened.config.insert("quantization_config".into(), serde_json::json!({ "quant_method": "gptq" }));
    let error = CausalLm::load(&opened, &Device::flex()).expect_err("gptq");
    assert!(error.to_string().ends_with("weights quantized by `gptq`"), "{error}");
    assert!(error.hint().expect("a hint").contains("gradus quantize"));
}
