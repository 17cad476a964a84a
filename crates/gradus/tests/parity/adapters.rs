//! Adapters agree with peft: logits, gradients, merged weights, files.
//!
//! The fixtures are written by `tools/parity/adapters.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::device::device;
use crate::tensors::{assert_close, fixtures, host, prefix, tensors};
use burn::module::Module;
use burn::tensor::{Gradients, Tensor};
use gradus::generate::{NoStopRule, SamplingParams, generate};
use gradus::model::adapter::{Adaptable, LoraConfig, TaskType};
use gradus::model::{
    CausalLm, Classifier, Layers, ModelDir, Reading, RewardModel, Rows, Scope, Sequence, Task, Text, WeightFormat,
    save_causal, save_classifier, save_reward_model,
};
use gradus::rng::{Purpose, Seed};
use serde_json::Value;

/// Values are compared relative to the largest one, but at least to this.
const SCALE: f32 = 1e-3;

fn base(name: &str) -> ModelDir {
    ModelDir::open(&fixtures().join("models").join(name)).expect("opens")
}

/// A fixture: its folder, its base model with the adapter, and peft's outputs.
struct Case {
    name: String,
    path: PathBuf,
    dir: ModelDir,
    expected: Value,
    tensors: BTreeMap<String, Vec<f32>>,
    sequences: Vec<Vec<u32>>,
}

fn cases(of_rewards: bool) -> Vec<Case> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(fixtures().join("adapters"))
        .expect("fixtures")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.to_string_lossy().ends_with("-reward") == of_rewards)
        .collect();
    found.sort();
    assert!(found.len() >= 2, "fixtures are missing");
    found.into_iter().map(case).collect()
}

fn case(path: PathBuf) -> Case {
    let text = std::fs::read_to_string(path.join("expected.json")).expect("expected.json");
    let expected: Value = serde_json::from_str(&text).expect("JSON");
    let dir = base(expected["base"].as_str().expect("base")).with_adapter(&path).expect("an adapter");
    let sequences = serde_json::from_value(expected["sequences"].clone()).expect("sequences");
    let name = path.file_name().expect("name").to_string_lossy().into_owned();
    Case { name, tensors: tensors(&path.join("expected.safetensors")), path, dir, expected, sequences }
}

/// Returns gradients under the names of the adapter's file.
fn gradients<M: Module>(model: &M, gradients: &Gradients, prefix: &str) -> BTreeMap<String, Vec<f32>> {
    let rename = |(name, values): (String, Vec<f32>)| {
        let name = name.replace("head_lora.", "lm_head.lora.");
        let name = name.replace(".lora.lora_a", ".lora_A.weight").replace(".lora.lora_b", ".lora_B.weight");
        let name = name.replace(".lora.magnitude", ".lora_magnitude_vector");
        let name = name.strip_prefix("trunk.").map_or(name.clone(), |rest| format!("{prefix}{rest}"));
        (format!("grad.base_model.model.{name}"), values)
    };
    crate::tensors::gradients(model, gradients).into_iter().map(rename).collect()
}

fn check_gradients(case: &Case, found: &BTreeMap<String, Vec<f32>>, scale: f32) {
    let expected: Vec<&String> = case.tensors.keys().filter(|key| key.starts_with("grad.")).collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected, "{}", case.name);
    for key in expected {
        assert_close(&format!("{}: {key}", case.name), &found[key], &case.tensors[key], 1e-4, scale);
    }
}

#[test]
fn logits_and_merged_logits_agree() {
    for case in cases(false) {
        let model = CausalLm::load(&case.dir, &device()).expect("loads");
        let merged = model.merged();
        let frozen = model.clone().into_frozen(WeightFormat::F32);
        for (i, ids) in case.sequences.iter().enumerate() {
            let (batch, expected) = (model.batch(&Rows::texts(&[ids])), &case.tensors[&format!("logits.{i}")]);
            let found = host(model.logits(&batch));
            assert_close(&format!("{}: logits {i}", case.name), &found, expected, 1e-5, SCALE);
            let merged = host(merged.logits(&batch));
            assert_close(
                &format!("{}: merged {i}", case.name),
                &merged,
                &case.tensors[&format!("merged.{i}")],
                1e-5,
                SCALE,
            );
            assert_close(&format!("{}: merged against unmerged {i}", case.name), &merged, &found, 1e-5, SCALE);
            assert_close(&format!("{}: frozen {i}", case.name), &host(frozen.logits(&batch)), expected, 1e-5, SCALE);
        }
        let plain = CausalLm::load(&case.dir.without_adapter(), &device()).expect("loads");
        let batch = model.batch(&Rows::texts(&case.sequences));
        assert_eq!(host(model.without_adapter().logits(&batch)), host(plain.logits(&batch)), "{}", case.name);
    }
}

#[test]
fn only_the_adapter_has_gradients_and_they_agree() {
    for case in cases(false) {
        for recompute in [false, true] {
            let model = CausalLm::load(&case.dir, &device().autodiff()).expect("loads");
            let mut model = model.train_adapter(WeightFormat::F32);
            model.trunk.set_recompute(recompute);
            let batch = model.batch(&Rows::texts(&case.sequences));
            let loss = -model.logprobs(&batch, 1.0).logprobs_m.mean();
            assert_close(
                &case.name,
                &host(loss.clone().inner()),
                &[case.expected["loss"].as_f64().expect("loss") as f32],
                1e-5,
                SCALE,
            );
            check_gradients(&case, &gradients(&model, &loss.backward(), prefix(&case.dir)), SCALE);
        }
    }
}

/// Returns the adapters on classifiers, each on the classifier of its name.
fn on_classifiers() -> Vec<Case> {
    let folder = fixtures().join("encoder_adapters");
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("fixtures").map(|entry| entry.expect("entry").path()).collect();
    found.sort();
    assert!(found.len() >= 8, "fixtures are missing");
    let open = |path: PathBuf| {
        let text = std::fs::read_to_string(path.join("expected.json")).expect("expected.json");
        let expected: Value = serde_json::from_str(&text).expect("JSON");
        let base = fixtures().join("encoders").join(expected["base"].as_str().expect("base"));
        let dir = ModelDir::open(&base).expect("opens").with_adapter(&path).expect("an adapter");
        let sequences = serde_json::from_value(expected["sequences"].clone()).expect("sequences");
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        Case { name, tensors: tensors(&path.join("expected.safetensors")), path, dir, expected, sequences }
    };
    found.into_iter().map(open).collect()
}

#[test]
fn classifiers_agree() {
    for case in on_classifiers() {
        let model = Classifier::load(&case.dir, &device().autodiff()).expect("loads");
        let texts: Vec<Text<'_>> = case.sequences.iter().map(|ids| Text::new(ids)).collect();
        let expected: Vec<Vec<f32>> = serde_json::from_value(case.expected["logits"].clone()).expect("logits");
        let expected = expected.concat();
        let merged = model.merged();
        assert_close(&case.name, &host(merged.logits(&merged.batch(&texts))), &expected, 1e-5, 1.0);
        let model = model.train_adapter(WeightFormat::F32);
        let logits = model.logits(&model.batch(&texts));
        assert_close(&case.name, &host(logits.clone().inner()), &expected, 1e-5, 1.0);
        let gradients = crate::tensors::gradients(&model, &logits.sum().backward()).into_iter();
        let found = gradients.map(|(name, values)| {
            let name = name.replace(".lora.lora_a", ".lora_A.weight").replace(".lora.lora_b", ".lora_B.weight");
            let name = name.replace(".lora.magnitude", ".lora_magnitude_vector");
            let name = Classifier::name_on_disk(&name, &case.dir).expect("a family");
            (format!("grad.base_model.model.{name}"), values)
        });
        let gradients = case.tensors.iter().filter(|(key, _)| key.starts_with("grad.")).flat_map(|(_, values)| values);
        let largest = gradients.fold(0.0f32, |most, value| most.max(value.abs()));
        check_gradients(&case, &found.collect(), largest * 1e-2);
        // The written file equals the one read, bit for bit, and the labels are saved as well.
        let out = tempfile::tempdir().expect("temporary directory");
        save_classifier(&model, &case.dir, out.path()).expect("written");
        let file = "adapter_model.safetensors";
        assert_eq!(tensors(&out.path().join(file)), tensors(&case.path.join(file)), "{}", case.name);
        let again = case.dir.without_adapter().with_adapter(out.path()).expect("an adapter");
        let again = Classifier::load(&again, &device()).expect("loads");
        assert_eq!((again.task(), host(again.logits(&again.batch(&texts)))), (model.task(), host(logits_of(&case))));
    }
}

/// Computes the logits of a case's model on its texts.
fn logits_of(case: &Case) -> Tensor<2> {
    let model = Classifier::load(&case.dir, &device()).expect("loads");
    let texts: Vec<Text<'_>> = case.sequences.iter().map(|ids| Text::new(ids)).collect();
    model.logits(&model.batch(&texts))
}

/// A head that the base model lacks is saved with the adapter as a whole. peft alone would train it without saving it.
#[test]
fn what_was_drawn_of_a_head_is_saved_with_the_adapter() {
    let task =
        |scope: Scope| Task { scope, reading: Reading::OneOf, labels: (0..3).map(|k| format!("label {k}")).collect() };
    // The bases have heads of both kinds. Those of RoBERTa and DistilBERT have other layers for texts than for tokens.
    for (name, scope, parts) in [
        ("bert", Scope::Sequence, "classifier score"),
        ("distilbert", Scope::Sequence, "classifier score pre_classifier"),
        ("deberta-token", Scope::Sequence, "classifier score pooler"),
        ("roberta", Scope::Sequence, "classifier score"),
        ("roberta-token", Scope::Sequence, "classifier score"),
        ("roberta", Scope::Token, "classifier score"),
        ("distilbert", Scope::Token, "classifier score"),
        ("longformer", Scope::Token, "classifier score"),
    ] {
        let task = task(scope);
        let dir = ModelDir::open(&fixtures().join("encoders").join(name)).expect("opens");
        let mut stream = Seed(3).stream(Purpose::Init, 0, 0);
        let device = device().autodiff();
        let model = Classifier::with_fresh_head(&dir, task.clone(), None, &mut stream, &device).expect("loads");
        let config = LoraConfig { rank: 2, ..LoraConfig::default() };
        let config = config.peft_config(&dir, TaskType::SequenceClassification, "base".into()).expect("a config");
        let model = model.with_fresh_adapter(&dir, config, &mut stream).expect("an adapter");
        let out = tempfile::tempdir().expect("temporary directory");
        save_classifier(&model, &dir, out.path()).expect("written");
        let written = std::fs::read_to_string(out.path().join("adapter_config.json")).expect("the file");
        let written: Value = serde_json::from_str(&written).expect("JSON");
        let heads: Vec<&str> =
            written["modules_to_save"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert_eq!(heads.join(" "), parts, "{name}");
        let again = dir.with_adapter(out.path()).expect("an adapter");
        let again = Classifier::load(&again, &device.inner()).expect("loads");
        assert_eq!(again.task(), &task, "{name}");
        let texts = [Text::new(&[5, 6, 7, 8]), Text::new(&[9, 10])];
        let model = model.valid();
        assert_eq!(host(again.logits(&again.batch(&texts))), host(model.logits(&model.batch(&texts))), "{name}");
    }
}

/// peft gives the poolers of BERT, ALBERT and DeBERTa low-rank parts with `all-linear`.
#[test]
fn an_adapter_of_the_pooler_is_refused_with_its_name() {
    let (from, out) = (fixtures().join("encoder_adapters/bert"), tempfile::tempdir().expect("temporary directory"));
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(from.join(name), out.path().join(name)).expect("copied");
    }
    // Renames a layer in the header of the file.
    let file = out.path().join("adapter_model.safetensors");
    let bytes = std::fs::read(&file).expect("the file");
    let length = 8 + u64::from_le_bytes(*bytes.first_chunk().expect("a header")) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..length]).expect("JSON");
    let layer = header.keys().find_map(|name| name.strip_suffix(".lora_A.weight")).expect("a layer");
    let renamed =
        header.iter().map(|(name, tensor)| (name.replace(layer, "base_model.model.bert.pooler.dense"), tensor.clone()));
    let mut header = Value::Object(renamed.collect()).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let parts = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[length..]];
    std::fs::write(&file, parts.concat()).expect("written");
    let base = ModelDir::open(&fixtures().join("encoders/bert")).expect("opens");
    let error = Classifier::load(&base.with_adapter(out.path()).expect("an adapter"), &device()).expect_err("refused");
    let message = error.to_string();
    assert!(
        message.contains("the adapter changes `bert.pooler.dense`, but the head is outside the encoder"),
        "{message}"
    );
}

/// In peft, the pattern would also select the activation `mlp.act_fn`, which cannot have an adapter.
#[test]
fn a_pattern_is_saved_as_the_names_of_its_layers() {
    let (dir, device) = (base("qwen3"), device().autodiff());
    let lora = LoraConfig { rank: 2, target_pattern: Some(r".*\.0\.mlp\..*".into()), ..LoraConfig::default() };
    let config = lora.peft_config(&dir, TaskType::CausalLm, "base".into()).expect("known");
    let mut stream = Seed(1).stream(Purpose::Init, 0, 0);
    let model = CausalLm::load(&dir, &device).expect("loads").with_fresh_adapter(&dir, config, &mut stream);
    let model = model.expect("adapted");
    let out = tempfile::tempdir().expect("temporary directory");
    save_causal(&model, &dir, out.path()).expect("written");
    let written = std::fs::read(out.path().join("adapter_config.json")).expect("the file");
    let written: Value = serde_json::from_slice(&written).expect("JSON");
    let mut names: Vec<&str> =
        written["target_modules"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    names.sort_unstable();
    let layer = |name: &str| format!("model.layers.0.mlp.{name}");
    assert_eq!(names, [layer("down_proj"), layer("gate_proj"), layer("up_proj")]);
    let again = CausalLm::load(&dir.with_adapter(out.path()).expect("an adapter"), &device).expect("loads");
    assert_eq!(again.adapter(), model.adapter());
}

#[test]
fn reward_models_agree() {
    for case in cases(true) {
        let model = RewardModel::load(&case.dir, &device().autodiff()).expect("loads").train_adapter(WeightFormat::F32);
        let scores = model.rewards(&model.batch(&Rows::scored(&case.sequences)));
        let expected: Vec<f32> = serde_json::from_value(case.expected["scores"].clone()).expect("scores");
        assert_close(&case.name, &host(scores.clone().inner()), &expected, 1e-5, SCALE);
        check_gradients(&case, &gradients(&model, &scores.sum().backward(), prefix(&case.dir)), SCALE);
        let merged = RewardModel::load(&case.dir, &device()).expect("loads").merged();
        let batch = merged.batch(&Rows::scored(&case.sequences));
        assert_close(&case.name, &host(merged.rewards(&batch)), &expected, 1e-5, SCALE);
    }
}

#[test]
fn a_round_trip_keeps_every_bit_and_every_key() {
    for case in cases(false).into_iter().chain(cases(true)) {
        let out = tempfile::tempdir().expect("temporary directory");
        if case.dir.is_reward_model() {
            let model = RewardModel::load(&case.dir, &device()).expect("loads");
            save_reward_model(&model, &case.dir, out.path(), 0).expect("written");
        } else {
            let model = CausalLm::load(&case.dir, &device()).expect("loads");
            save_causal(&model, &case.dir, out.path()).expect("written");
        }
        let file = "adapter_model.safetensors";
        let mut expected = tensors(&case.path.join(file));
        // peft saves the head next to an adapter on the head; the base model has it.
        expected.retain(|name, _| !name.contains(".base_layer."));
        assert_eq!(tensors(&out.path().join(file)), expected, "{}", case.name);
        let json = |path: &Path| -> Value {
            serde_json::from_slice(&std::fs::read(path.join("adapter_config.json")).expect("file")).expect("JSON")
        };
        assert_eq!(json(out.path()), json(&case.path), "{}", case.name);
    }
}

#[test]
fn a_fresh_adapter_changes_nothing_and_learns() {
    for (name, dora) in [("gpt2", false), ("gpt2", true), ("qwen3", true), ("llama-gqa", false)] {
        let (dir, device) = (base(name), device().autodiff());
        let lora = LoraConfig { rank: 4, targets: vec!["all-linear".into()], dora, ..LoraConfig::default() };
        let mut stream = Seed(1).stream(Purpose::Init, 0, 0);
        let plain = CausalLm::load(&dir, &device).expect("loads");
        let batch = plain.batch(&Rows::texts(&[[3u32, 4, 5, 6, 7, 8]]));
        let before = host(plain.logits(&batch).inner());
        let config = lora.peft_config(&dir, TaskType::CausalLm, name.into()).expect("known");
        let model = plain.with_fresh_adapter(&dir, config, &mut stream).expect("adapted");
        let model = model.train_adapter(WeightFormat::F32);
        assert_close(name, &host(model.logits(&batch).inner()), &before, 1e-6, SCALE);
        let loss = -model.logprobs(&batch, 1.0).logprobs_m.mean();
        let found = gradients(&model, &loss.backward(), prefix(&dir));
        let largest = |part: &str| {
            let of_part = found.iter().filter(|(key, _)| key.contains(part));
            of_part.flat_map(|(_, values)| values).fold(0.0f32, |max, value| max.max(value.abs()))
        };
        assert_eq!(largest("lora_A"), 0.0, "B is zero");
        assert!(largest("lora_B") > 0.0);
        assert_eq!(largest("magnitude") > 0.0, dora);
    }
}

#[test]
fn sampled_logprobs_are_those_of_training() {
    for case in cases(false) {
        let device = device().autodiff();
        let model = CausalLm::load(&case.dir, &device).expect("loads").train_adapter(WeightFormat::F32);
        let params = SamplingParams { max_new_tokens: 8, ..SamplingParams::default() };
        let seed = Seed(3);
        let stream = |i: usize| seed.stream(Purpose::Rollout, 0, i as u64);
        let prompts: Vec<&[u32]> = case.sequences.iter().map(Vec::as_slice).collect();
        let sampled = generate(&model.valid(), &prompts, 1, &params, &mut NoStopRule, &stream).expect("sampled");
        for (i, (prompt, completion)) in prompts.iter().zip(&sampled).enumerate() {
            let batch = model.batch(&Rows::Alone(vec![Sequence::completion(prompt, &completion.ids)]));
            let found = host(model.logprobs(&batch, 1.0).logprobs_m.inner());
            assert_close(&format!("{} {i}", case.name), &completion.logprobs, &found, 1e-5, SCALE);
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let adapter = fixtures().join("adapters/gpt2");
    let message = |dir: ModelDir| CausalLm::load(&dir, &device()).expect_err("refused").to_string();
    let found = message(base("llama-gqa").with_adapter(&adapter).expect("an adapter"));
    assert_eq!(found, "no linear layer of the model is called `attn.c_proj` or `c_attn`");
    let found = message(base("gpt2-inverse-layer").with_adapter(&adapter).expect("an adapter"));
    let expected = "the weights do not fit `adapter_config.json`: tensor \
                    `base_model.model.transformer.h.0.attn.c_attn.lora_A.weight` has shape [4, 32], expected [4, 24]; ";
    assert!(found.contains(expected), "{found}");
    let error = base("gpt2").with_adapter(&fixtures().join("models/gpt2")).expect_err("no adapter");
    assert!(error.to_string().ends_with("no `adapter_config.json`: this is not an adapter"), "{error}");
    let error = ModelDir::open(&adapter).expect_err("its base is not there");
    assert!(error.to_string().contains("its base `gpt2` cannot be opened"), "{error}");
}
