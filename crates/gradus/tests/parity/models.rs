//! Every model family agrees with `transformers` on random small weights.
//!
//! The fixtures are written by `tools/parity/models.py`.

use std::path::{Path, PathBuf};

use crate::tensors::{GRADIENTS, assert_close, check_gradients, host, is_noise, prefix, tensors};
use burn::module::Module;
use std::sync::Arc;

use burn::tensor::Device;
use gradus::generate::{Completion, Engine, Event, NoStopRule, Request, SamplingParams, generate};
use gradus::model::decoder::DecoderFamily;
use gradus::model::{
    Batch, CausalLm, DropoutStream, EmbeddingNoise, Family, Layers, ModelDir, ModelShape, Precision, RewardModel, Rows,
    Sequence, WeightFormat, named_tensors, register_family, save_causal, save_reward_model,
};
use gradus::rng::{Purpose, Seed};
use serde_json::Value;

use crate::device::{choice, device, slack};
use crate::support::skipped;

/// Logits: largest difference allowed, relative to the largest logit of the model (at least 1).
const LOGITS: f32 = 1e-4;
/// Sampled against recomputed logprobs: largest difference allowed, relative to the logprob (at least 1).
const SAMPLER: f32 = 1e-5;
/// Distances of log-probabilities of sampling in bf16 from those of training in bf16, on every device: the mean and the largest of a model.
/// A sum in another order may round the operand of a product to the next number of bf16.
const SAMPLER_BF16: [f32; 2] = [1e-3, 2e-2];

fn fixtures() -> PathBuf {
    crate::tensors::fixtures().join("models")
}

fn models(of_rewards: bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixtures()).expect("fixtures");
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.is_dir() && path.to_string_lossy().ends_with("-reward") == of_rewards)
        .collect();
    found.sort();
    assert!(found.len() >= 3, "fixtures are missing");
    found
}

fn expected(dir: &Path) -> Value {
    let text = std::fs::read_to_string(dir.join("expected.json")).expect("expected.json");
    serde_json::from_str(&text).expect("JSON")
}

fn sequences(expected: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(expected["sequences"].clone()).expect("sequences")
}

#[test]
fn logits_and_gradients_agree_packed_and_alone() {
    for path in models(false) {
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let (dir, expected, reference) =
            (ModelDir::open(&path).expect("opens"), expected(&path), tensors(&path.join("expected.safetensors")));
        let sequences = sequences(&expected);
        let plain = CausalLm::load(&dir, &device()).expect("loads");
        let vocabulary = plain.vocab_size();
        let batch = plain.batch(&Rows::texts(&sequences));
        let together = host(plain.logits(&batch));
        for (i, ids) in sequences.iter().enumerate() {
            let alone = host(plain.logits(&plain.batch(&Rows::texts(&[ids]))));
            assert_close(&format!("{name}: logits {i}"), &alone, &reference[&format!("logits.{i}")], LOGITS, 1.0);
            let from = batch.packed().index(i, 0) * vocabulary;
            let part = &together[from..from + ids.len() * vocabulary];
            assert_close(&format!("{name}: packed logits {i}"), part, &alone, 1e-5, 1.0);
        }
        let model = CausalLm::load(&dir, &device().autodiff()).expect("loads").train();
        let loss = -model.logprobs(&batch, 1.0).logprobs_m.mean();
        let value = host(loss.clone())[0];
        let expected_loss = expected["loss"].as_f64().expect("loss") as f32;
        assert!(
            (value - expected_loss).abs() <= 1e-5 * slack() as f32 * expected_loss,
            "{name}: loss {value} instead of {expected_loss}"
        );
        check_gradients(&name, &model, &loss.backward(), prefix(&dir), &reference);
    }
}

#[test]
fn a_shared_prompt_gives_the_same_logprobs_and_gradients() {
    for path in models(false) {
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let dir = ModelDir::open(&path).expect("opens");
        let model = CausalLm::load(&dir, &device().autodiff()).expect("loads").train();
        let prompt: Vec<u32> = (0..6).map(|t| (t * 5 + 1) % 29).collect();
        let completions: Vec<Vec<u32>> =
            (0..4u32).map(|i| (0..i + 2).map(|t| (t * 7 + i * 3) % 29).collect()).collect();
        let sequences: Vec<Sequence<'_>> = completions.iter().map(|ids| Sequence::completion(&prompt, ids)).collect();
        let run = |batch: &Batch| {
            let logprobs_m = model.logprobs(batch, 1.0).logprobs_m;
            let gradients = logprobs_m.clone().powi_scalar(2).sum().backward();
            (host(logprobs_m), crate::tensors::gradients(&model, &gradients))
        };
        let (alone, expected) = run(&model.batch(&Rows::Alone(sequences.clone())));
        let batch = model.batch(&Rows::Groups(vec![sequences[..3].to_vec(), sequences[3..].to_vec()]));
        let depends_on_length = name.contains("dynamic") || name.contains("longrope");
        assert_eq!(batch.tokens() < alone.len() + 4 * 6, !depends_on_length, "{name}: who shares");
        let (together, found) = run(&batch);
        assert_close(&format!("{name}: logprobs"), &together, &alone, 1e-5, 1.0);
        let largest = expected.values().flatten().fold(0.0f32, |most, value| most.max(value.abs()));
        for (key, found) in &found {
            let scale = if is_noise(key) { 0.1 * largest } else { 1e-2 };
            assert_close(&format!("{name}: gradient of {key}"), found, &expected[key], 1e-4, scale);
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    for path in models(false) {
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let dir = ModelDir::open(&path).expect("opens");
        let mut model = CausalLm::load(&dir, &device().autodiff()).expect("loads").train();
        let sequences = sequences(&expected(&path));
        // Everything twice, so that prompts are shared too.
        let twice = sequences.iter().chain(&sequences).map(|ids| Sequence::text(ids)).collect();
        let batch = model.batch(&Rows::Groups(vec![twice]));
        let runs = [false, true].map(|recompute| {
            model.trunk.set_recompute(recompute);
            let logprobs_m = model.logprobs(&batch, 1.0).logprobs_m;
            let gradients = logprobs_m.clone().powi_scalar(2).sum().backward();
            (host(logprobs_m), crate::tensors::gradients(&model, &gradients))
        });
        assert_eq!(runs[0], runs[1], "{name}");
    }
}

#[test]
fn packed_weights_give_the_logits_of_their_format() {
    for path in models(false) {
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let model = CausalLm::load(&ModelDir::open(&path).expect("opens"), &device()).expect("loads");
        let batch = model.batch(&Rows::texts(&sequences(&expected(&path))));
        let plain = host(model.logits(&batch));
        let largest = plain.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let off = |model: &CausalLm| {
            let far = host(model.logits(&batch)).iter().zip(&plain).map(|(a, b)| (a - b).abs()).sum::<f32>();
            far / plain.len() as f32 / largest
        };
        // These are means over small models with large weights, far above those of real models.
        for (format, bound) in [
            (WeightFormat::F32, 1e-6),
            (WeightFormat::BF16, 0.01),
            (WeightFormat::INT8, 0.02),
            (WeightFormat::NF4, 0.15),
        ] {
            let found = off(&model.clone().into_frozen(format));
            assert!(found <= bound, "{name}: {found} in {format:?}");
        }
        let found = off(&model.clone().with_compute(Precision::Bf16));
        assert!(found <= 0.01, "{name}: {found} computed in bf16");
    }
}

#[test]
fn rewards_and_their_gradients_agree() {
    for path in models(true) {
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let (dir, expected, reference) =
            (ModelDir::open(&path).expect("opens"), expected(&path), tensors(&path.join("expected.safetensors")));
        let sequences = sequences(&expected);
        let model = RewardModel::load(&dir, &device().autodiff()).expect("loads").train();
        let rewards = model.rewards(&model.batch(&Rows::scored(&sequences)));
        let expected_rewards: Vec<f32> =
            (0..sequences.len()).map(|i| *reference[&format!("scores.{i}")].last().expect("a score")).collect();
        assert_close(&format!("{name}: rewards"), &host(rewards.clone()), &expected_rewards, LOGITS, 1.0);
        check_gradients(&name, &model, &rewards.sum().backward(), prefix(&dir), &reference);
    }
}

#[test]
fn dropout_falls_where_transformers_has_it() {
    let folder = fixtures().join("../dropout");
    let text = std::fs::read_to_string(folder.join("fixture.json")).expect("fixture");
    let fixture: Value = serde_json::from_str(&text).expect("JSON");
    let key = fixture["key"].as_str().expect("a key").parse().expect("a number");
    for case in fixture["cases"].as_array().expect("cases") {
        let name = case["model"].as_str().expect("a name");
        let reference = tensors(&folder.join(format!("{name}.safetensors")));
        let mut dir = ModelDir::open(&fixtures().join(name)).expect("opens");
        dir.config.extend(case["probabilities"].as_object().expect("probabilities").clone());
        let mut model = CausalLm::load(&dir, &device().autodiff()).expect("loads").train();
        let sequences = sequences(case);
        let batch = model.batch(&Rows::texts(&sequences));
        let plain = host(model.logits(&batch));
        let batch = batch.dropping(Some(DropoutStream::of_key(key)));
        assert_eq!(host(model.logits(&batch)), plain, "{name}: dropout is off unless it is turned on");
        model.trunk.set_dropout(true);
        let logits = [reference["logits.0"].clone(), reference["logits.1"].clone()].concat();
        for recompute in [false, true] {
            model.trunk.set_recompute(recompute);
            assert_close(&format!("{name}: logits"), &host(model.logits(&batch)), &logits, LOGITS, 1.0);
            let loss = -model.logprobs(&batch, 1.0).logprobs_m.mean();
            let (value, expected) = (host(loss.clone())[0], case["loss"].as_f64().expect("loss") as f32);
            assert!((value - expected).abs() <= 1e-5 * expected, "{name}: loss {value} instead of {expected}");
            let gradients = loss.backward();
            let found = crate::tensors::gradients(&model, &gradients);
            let expected = reference.iter().filter_map(|(key, values)| Some((key.strip_prefix("grad.")?, values)));
            let mut checked = 0;
            for (key, expected) in expected {
                let ours = key.strip_prefix(prefix(&dir)).map(|rest| format!("trunk.{rest}")).expect("of the trunk");
                assert_close(&format!("{name}: gradient of {key}"), &found[&ours], expected, GRADIENTS, 1e-3);
                checked += 1;
            }
            assert!(checked >= 2, "{name}: {checked} gradients");
        }
        // Without masks nothing is dropped, as in evaluation and sampling.
        assert_eq!(host(model.logits(&batch.dropping(None))), plain, "{name}");
    }
}

#[test]
fn noise_falls_where_transformers_adds_it() {
    let text = std::fs::read_to_string(fixtures().join("../dropout/fixture.json")).expect("fixture");
    let fixture: Value = serde_json::from_str(&text).expect("JSON");
    let key = fixture["key"].as_str().expect("a key").parse().expect("a number");
    let cases = fixture["noise"].as_array().expect("cases");
    assert!(cases.len() >= 4);
    for case in cases {
        let name = case["model"].as_str().expect("a name");
        let dir = ModelDir::open(&fixtures().join(name)).expect("opens");
        let mut model = CausalLm::load(&dir, &device().autodiff()).expect("loads").train();
        let (sequences, rows) = (sequences(case), case["last_logits"].clone());
        let noise = EmbeddingNoise::of_key(case["alpha"].as_f64().expect("a number"), key);
        let batch = model.batch_with_noise(&Rows::texts(&sequences), Some(noise));
        let last_logits: Vec<Vec<f32>> = serde_json::from_value(rows).expect("logits");
        let squares = case["squares"].as_object().expect("gradients");
        let largest = squares.values().fold(0.0, |most: f64, value| most.max(value.as_f64().expect("a number")));
        let mut of_first = None;
        for recompute in [false, true] {
            model.trunk.set_recompute(recompute);
            let (logits, vocabulary) = (host(model.logits(&batch)), model.vocab_size());
            for (i, expected) in last_logits.iter().enumerate() {
                let from = batch.last_indices()[i] * vocabulary;
                let found = &logits[from..from + vocabulary];
                assert_close(&format!("{name}: last logits of {i}"), found, expected, LOGITS, 1.0);
            }
            let loss = -model.logprobs(&batch, 1.0).logprobs_m.mean();
            let (value, expected) = (host(loss.clone())[0], case["loss"].as_f64().expect("loss") as f32);
            assert!(
                (value - expected).abs() <= 1e-5 * slack() as f32 * expected,
                "{name}: loss {value}, not {expected}"
            );
            let found = crate::tensors::gradients(&model, &loss.backward());
            assert_eq!(found.len(), squares.len(), "{name}: number of gradients");
            for (key, values) in &found {
                let on_disk = key.strip_prefix("trunk.").map_or(key.clone(), |rest| format!("{}{rest}", prefix(&dir)));
                let square: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
                let expected = squares[&on_disk].as_f64().expect("a number");
                let close = (square - expected).abs() <= 1e-3 * slack() * expected.max(1e-4 * largest);
                assert!(close, "{name}: gradient of {on_disk}: {square} instead of {expected}");
            }
            // Recomputed blocks read the same noise.
            let of_first = of_first.get_or_insert_with(|| (logits.clone(), found.clone()));
            assert_eq!(*of_first, (logits, found), "{name}, recompute: {recompute}");
        }
        let plain = model.batch(&Rows::texts(&sequences));
        assert_eq!(model.batch_with_noise(&Rows::texts(&sequences), None), plain);
        assert_ne!(host(model.logits(&plain)), of_first.expect("two passes").0, "{name}");
    }
}

#[test]
fn a_round_trip_keeps_every_bit_and_every_unknown_key() {
    let unknown = ModelDir::open(&fixtures().join("gpt2-unknown-keys")).expect("opens");
    for path in models(false) {
        let dir = ModelDir::open(&path).expect("opens");
        let model = CausalLm::load(&dir, &device()).expect("loads");
        let to = tempfile::tempdir().expect("temporary directory");
        save_causal(&model, &dir, to.path()).expect("saves");
        let again = ModelDir::open(to.path()).expect("opens");
        for (key, value) in &dir.config {
            let rewritten =
                ["dtype", "torch_dtype", "use_cache", "rope_parameters", "rope_scaling", "rope_theta", "architectures"];
            assert!(
                rewritten.contains(&key.as_str()) || again.config.get(key) == Some(value),
                "{key} of {}",
                path.display()
            );
        }
        let reloaded = CausalLm::load(&again, &device()).expect("loads what was saved");
        assert_eq!(named_tensors(&model), named_tensors(&reloaded), "{}", path.display());
    }
    assert!(unknown.config.keys().len() > 5);
    for path in models(true) {
        let dir = ModelDir::open(&path).expect("opens");
        let model = RewardModel::load(&dir, &device()).expect("loads");
        let to = tempfile::tempdir().expect("temporary directory");
        save_reward_model(&model, &dir, to.path(), dir.pad_id().expect("pad id")).expect("saves");
        let again = RewardModel::load(&ModelDir::open(to.path()).expect("opens"), &device()).expect("loads");
        assert_eq!(named_tensors(&model), named_tensors(&again), "{}", path.display());
    }
}

#[test]
fn a_family_that_a_program_adds_computes_what_the_built_in_one_does() {
    for (name, model_type) in [("granite", "my_granite"), ("phi3-window", "my_phi3"), ("gemma3", "my_gemma3")] {
        let dir = ModelDir::open(&fixtures().join(name)).expect("opens");
        let Ok(Family::Decoder(family)) = dir.family() else { panic!("{name} is a decoder") };
        let added = DecoderFamily { model_type, class: "Mine", language_class: "MineForCausalLM", ..*family };
        let mut mine = dir.clone();
        mine.config.insert("model_type".into(), model_type.into());
        let error = CausalLm::load(&mine, &device()).expect_err("nobody has added it");
        assert!(error.to_string().contains(&format!("model type `{model_type}` is not supported")), "{error}");
        register_family(added).expect("a new name");

        let sequences = sequences(&expected(&fixtures().join(name)));
        let logits = |dir: &ModelDir| {
            let model = CausalLm::load(dir, &device()).expect("loads");
            host(model.logits(&model.batch(&Rows::texts(&sequences))))
        };
        assert_eq!(logits(&mine), logits(&dir), "{name}");
        let shape = |dir: &ModelDir| ModelShape::of(dir).expect("a shape");
        assert_eq!(shape(&mine), shape(&dir), "{name}");
        let saved = tempfile::tempdir().expect("temporary directory");
        let model = CausalLm::load(&mine, &device()).expect("loads");
        save_causal(&model, &mine, saved.path()).expect("saves");
        let again = ModelDir::open(saved.path()).expect("opens");
        assert_eq!((again.model_type(), again.architecture()), (model_type, "MineForCausalLM"));
        assert_eq!(logits(&again), logits(&dir), "{name}");
    }
    let refused = |family: DecoderFamily, expected: &str| {
        let error = register_family(family).expect_err("not possible");
        assert!(error.to_string().ends_with(expected), "{error}");
    };
    for taken in ["my_granite", "llama", "t5", "bert"] {
        refused(DecoderFamily::new(taken, "Mine", "MineForCausalLM"), "another family has this `model_type`");
    }
    refused(DecoderFamily::new("", "Mine", "MineForCausalLM"), "its `model_type` is empty");
    let broken = DecoderFamily { defaults: "[1]", ..DecoderFamily::new("broken", "Mine", "MineForCausalLM") };
    refused(broken, "its `defaults` are not a JSON object");
}

#[test]
fn the_older_spelling_of_rotary_parameters_gives_the_same_logits() {
    let mut seen = 0;
    for path in models(false) {
        let legacy = path.join("config_legacy.json");
        if !legacy.exists() {
            continue;
        }
        seen += 1;
        let dir = ModelDir::open(&path).expect("opens");
        let text = std::fs::read_to_string(legacy).expect("legacy");
        let old = ModelDir { config: serde_json::from_str(&text).expect("JSON"), ..dir.clone() };
        let sequences = sequences(&expected(&path));
        let logits = |dir: &ModelDir| {
            let model = CausalLm::load(dir, &device()).expect("loads");
            host(model.logits(&model.batch(&Rows::texts(&sequences))))
        };
        assert_eq!(logits(&dir), logits(&old), "{}", path.display());
    }
    assert!(seen >= 3, "no legacy configurations found");
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, max_new_tokens: 12, ..SamplingParams::default() }
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    let mut checked = 0;
    for path in models(false) {
        let (dir, expected) = (ModelDir::open(&path).expect("opens"), expected(&path));
        let model = CausalLm::load(&dir, &device()).expect("loads");
        let sequences = sequences(&expected);
        let expected_ids: Vec<Vec<u32>> = serde_json::from_value(expected["greedy"].clone()).expect("greedy");
        for (ids, expected_ids) in sequences.iter().zip(&expected_ids) {
            // A model whose angles depend on the length refuses to sample beyond its positions.
            if model.max_positions().is_some_and(|limit| ids.len() + 12 > limit) {
                continue;
            }
            let stream = |_| Seed(1).stream(Purpose::Generate, 0, 0);
            let found = generate(&model, &[ids], 1, &greedy(), &mut NoStopRule, &stream).expect("generates");
            assert_eq!(&found[0].ids, expected_ids, "{}", path.display());
            checked += 1;
        }
    }
    assert!(checked >= 30, "only {checked} sequences were checked");
}

/// Samples two completions of every prompt, three rows at a time, so that rows of one prompt start at different steps.
fn sample_in_turns(model: &CausalLm, prompts: &[&[u32]], params: &SamplingParams) -> Vec<Completion> {
    let mut engine = Engine::new(model, 3, params.max_new_tokens);
    for (i, prompt) in prompts.iter().enumerate() {
        let stream = |g| Seed(11).stream(Purpose::Rollout, 0, (2 * i + g) as u64);
        let (prompt, params) = (prompt.to_vec(), Arc::new(params.clone()));
        let request = Request { prompt, params, streams: (0..2).map(stream).collect(), is_kept: false };
        engine.submit(request).expect("a good request");
    }
    let mut completions = vec![None; 2 * prompts.len()];
    while engine.is_busy() {
        for event in engine.step(&mut NoStopRule) {
            if let Event::Finished { row, completion } = event {
                completions[row] = Some(completion);
            }
        }
    }
    completions.into_iter().map(|completion| completion.expect("every row ends")).collect()
}

/// A GPU draws tokens itself; the processor draws them on the host.
#[test]
fn a_device_samples_what_the_processor_samples() {
    let plain = || SamplingParams { max_new_tokens: 6, stop_ids: vec![3], ..Default::default() };
    let settings = [
        plain(),
        SamplingParams { temperature: 0.0, repetition_penalty: 1.5, ..plain() },
        SamplingParams { temperature: 0.7, top_k: Some(9), top_p: 0.8, min_p: 0.02, ..plain() },
        SamplingParams { repetition_penalty: 1.3, no_repeat_ngram_size: 2, min_new_tokens: 3, ..plain() },
        SamplingParams { temperature: 1.5, untempered: true, suppress_tokens: vec![1, 2, 5], ..plain() },
        SamplingParams { forced_eos_token_id: Some(9), ..plain() },
        // These are left to the host on every device.
        SamplingParams { typical_p: 0.7, likeliest: 2, ..plain() },
    ];
    for path in models(false) {
        let dir = ModelDir::open(&path).expect("opens");
        let [here, there] = [Device::flex(), device()].map(|device| CausalLm::load(&dir, &device).expect("loads"));
        let sequences = sequences(&expected(&path));
        let limit = here.max_positions().unwrap_or(usize::MAX);
        let prompts: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).filter(|ids| ids.len() + 6 <= limit).collect();
        for params in &settings {
            let what = format!("{}, {params:?}", path.display());
            let [expected, found] = [&here, &there].map(|model| sample_in_turns(model, &prompts, params));
            for (expected, found) in expected.iter().zip(&found) {
                assert_eq!((&found.ids, found.stop), (&expected.ids, expected.stop), "{what}");
                let both =
                    [(&found.logprobs, &expected.logprobs), (&found.sampled_logprobs, &expected.sampled_logprobs)];
                for (found, expected) in both.into_iter().flat_map(|(a, b)| a.iter().zip(b)) {
                    let tolerance = LOGITS * slack() as f32 * expected.abs().max(1.0);
                    assert!((found - expected).abs() <= tolerance, "{what}: {found} and {expected}");
                }
            }
        }
    }
}

#[test]
fn the_sampler_records_the_logprobs_that_training_computes_in_bf16() {
    if !choice().multiplies_in(Precision::Bf16) {
        skipped("products in bf16", "log-probabilities of sampling in bf16");
        return;
    }
    for path in models(false) {
        let load = || CausalLm::load(&ModelDir::open(&path).expect("opens"), &device()).expect("loads");
        let model = load().with_compute(Precision::Bf16);
        let sampler = load().with_compute(Precision::Bf16).into_frozen(WeightFormat::BF16);
        let sequences = sequences(&expected(&path));
        let limit = model.max_positions().unwrap_or(usize::MAX);
        let prompts: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).filter(|ids| ids.len() + 9 <= limit).collect();
        let params = SamplingParams { max_new_tokens: 9, stop_ids: vec![3], ..Default::default() };
        let stream = |i| Seed(5).stream(Purpose::Rollout, 0, i as u64);
        let all = generate(&sampler, &prompts, 4, &params, &mut NoStopRule, &stream).expect("generates");
        let whole = all.iter().enumerate().map(|(i, c)| Sequence::completion(prompts[i / 4], &c.ids)).collect();
        let trained = host(model.logprobs(&model.batch(&Rows::Alone(whole)), 1.0).logprobs_m);
        let recorded: Vec<f32> = all.iter().flat_map(|c| c.logprobs.clone()).collect();
        assert_eq!(recorded.len(), trained.len(), "{}", path.display());
        let distances: Vec<f32> = recorded.iter().zip(&trained).map(|(r, t)| (r - t).abs()).collect();
        let mean = distances.iter().sum::<f32>() / distances.len() as f32;
        let largest = distances.iter().copied().fold(0.0, f32::max);
        assert!(mean <= SAMPLER_BF16[0] && largest <= SAMPLER_BF16[1], "{}: {mean}, {largest}", path.display());
    }
}

#[test]
fn the_sampler_records_the_logprobs_that_training_computes() {
    for path in models(false) {
        let model = CausalLm::load(&ModelDir::open(&path).expect("opens"), &device()).expect("loads");
        let sequences = sequences(&expected(&path));
        let limit = model.max_positions().unwrap_or(usize::MAX);
        let prompts: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).filter(|ids| ids.len() + 9 <= limit).collect();
        let params = SamplingParams { temperature: 0.7, max_new_tokens: 9, stop_ids: vec![3], ..Default::default() };
        let stream = |i| Seed(5).stream(Purpose::Rollout, 0, i as u64);
        let all = generate(&model, &prompts, 4, &params, &mut NoStopRule, &stream).expect("generates");
        let whole = all.iter().enumerate().map(|(i, c)| Sequence::completion(prompts[i / 4], &c.ids)).collect();
        let trained = host(model.logprobs(&model.batch(&Rows::Alone(whole)), 0.7).logprobs_m);
        let recorded: Vec<f32> = all.iter().flat_map(|c| c.logprobs.clone()).collect();
        for (i, (r, t)) in recorded.iter().zip(&trained).enumerate() {
            assert!(
                (r - t).abs() <= SAMPLER * slack() as f32 * t.abs().max(1.0),
                "{}: token {i}: {r} and {t}",
                path.display()
            );
        }
        // Alone, a row samples the same ids: the other rows of the batch do not matter.
        for (p, prompt) in prompts.iter().enumerate() {
            let stream = |g| Seed(5).stream(Purpose::Rollout, 0, (p * 4 + g) as u64);
            let alone = generate(&model, &[prompt], 4, &params, &mut NoStopRule, &stream).expect("generates");
            for g in 0..4 {
                assert_eq!(alone[g].ids, all[p * 4 + g].ids);
            }
        }
    }
}

#[test]
fn packed_prompts_give_what_left_padded_ones_give() {
    let text = std::fs::read_to_string(fixtures().join("../padding/fixture.json")).expect("fixture");
    let fixture: Value = serde_json::from_str(&text).expect("JSON");
    for case in fixture["cases"].as_array().expect("cases") {
        let name = case["model"].as_str().expect("a name");
        let rows = |key: &str| -> Vec<Vec<u32>> { serde_json::from_value(case[key].clone()).expect("rows of ids") };
        let logprobs: Vec<Vec<f32>> = serde_json::from_value(case["logprobs"].clone()).expect("rows of numbers");
        let (prompts, tokens) = (rows("prompts"), rows("tokens"));
        let model = CausalLm::load(&ModelDir::open(&fixtures().join(name)).expect("opens"), &device()).expect("loads");
        let whole = prompts.iter().zip(&tokens).map(|(a, b)| Sequence::completion(a, b)).collect();
        let scored = host(model.logprobs(&model.batch(&Rows::Alone(whole)), 1.0).logprobs_m);
        assert_close(&format!("{name}: scored"), &scored, &logprobs.concat(), 1e-5, 1.0);
        let count = tokens[0].len();
        let params = SamplingParams {
            temperature: 0.0,
            max_new_tokens: count,
            min_new_tokens: count,
            ..SamplingParams::default()
        };
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let stream = |i: usize| Seed(0).stream(Purpose::Generate, 0, i as u64);
        let sampled = generate(&model, &prompts, 1, &params, &mut NoStopRule, &stream).expect("samples");
        for ((completion, tokens), logprobs) in sampled.iter().zip(&tokens).zip(&logprobs) {
            assert_eq!(completion.ids, *tokens, "{name}: greedy tokens");
            assert_close(&format!("{name}: sampled"), &completion.logprobs, logprobs, 1e-5, 1.0);
        }
    }
}

/// Combines a model of the fixtures with weights of `torch_weights.py`.
fn with_torch_weights(model: &Path, weights: &[&str]) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a directory");
    for name in ["config.json", "generation_config.json"] {
        std::fs::copy(model.join(name), to.path().join(name)).expect("copied");
    }
    for weights in weights {
        let from = crate::tensors::fixtures().join("torch_weights").join(weights);
        let name = match weights.rsplit_once('/') {
            Some((_, name)) => name,
            None => "pytorch_model.bin",
        };
        std::fs::copy(from, to.path().join(name)).expect("copied");
    }
    to
}

#[test]
fn pytorch_files_hold_what_safetensors_hold() {
    let bits = |dir: &Path| -> Vec<(String, Vec<u32>)> {
        let model = CausalLm::load(&ModelDir::open(dir).expect("opens"), &device()).expect("loads");
        let tensor = |tensor: gradus::model::NamedTensor<'_>| {
            (tensor.name.to_string(), tensor.values.iter().map(|value| value.to_bits()).collect())
        };
        gradus::model::named_tensors(&model).into_iter().map(tensor).collect()
    };
    let (gpt2, t5) = (fixtures().join("gpt2"), crate::tensors::fixtures().join("seq2seq/t5"));
    assert_eq!(bits(with_torch_weights(&gpt2, &["gpt2.bin"]).path()), bits(&gpt2), "an archive");
    let shards = ["00001", "00002"].map(|n| format!("t5/pytorch_model-{n}-of-00002.bin"));
    let files = [shards[0].as_str(), &shards[1], "t5/pytorch_model.bin.index.json"];
    assert_eq!(bits(with_torch_weights(&t5, &files).path()), bits(&t5), "shards of views");
    // bf16 keeps the upper half of the bits, rounded to even.
    let rounded = |bits: u32| (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    let expected: Vec<_> = bits(&gpt2)
        .into_iter()
        .map(|(name, values)| (name, values.into_iter().map(rounded).collect::<Vec<_>>()))
        .collect();
    assert_eq!(bits(with_torch_weights(&gpt2, &["gpt2-old.bin"]).path()), expected, "the form before archives");
}

#[test]
fn pytorch_files_that_are_no_weights_are_refused_with_the_reason() {
    let gpt2 = fixtures().join("gpt2");
    let refused = |dir: &Path| {
        let dir = ModelDir::open(dir).expect("opens");
        CausalLm::load(&dir, &device()).expect_err("refused").to_string()
    };
    let found = refused(with_torch_weights(&gpt2, &["transposed.bin"]).path());
    assert!(found.contains("tensor `transformer.wte.weight` is a view with the strides [1, 3]"), "{found}");
    let found = refused(with_torch_weights(&gpt2, &["training.bin"]).path());
    assert!(found.contains("`optimizer` is a mapping: a training checkpoint"), "{found}");
    let directory = with_torch_weights(&gpt2, &["gpt2.bin"]);
    let path = directory.path().join("pytorch_model.bin");
    let whole = std::fs::read(&path).expect("readable");
    for bytes in
        [&whole[..whole.len() / 2], b"", b"PK\x03\x04", b"hello", b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R."]
    {
        std::fs::write(&path, bytes).expect("written");
        let found = refused(directory.path());
        assert!(found.contains("pytorch_model.bin"), "{found}");
    }
}

/// `transformers` accepts a general name for some keys (`attribute_map`).
#[test]
fn general_names_of_keys_are_read_and_written_again() {
    let bart = [
        ("d_model", "hidden_size"),
        ("encoder_attention_heads", "num_attention_heads"),
        ("encoder_layers", "num_hidden_layers"),
    ];
    let t5 = [
        ("d_model", "hidden_size"),
        ("num_heads", "num_attention_heads"),
        ("num_layers", "num_hidden_layers"),
        ("d_kv", "head_dim"),
    ];
    let gpt2 = [
        ("n_embd", "hidden_size"),
        ("n_head", "num_attention_heads"),
        ("n_layer", "num_hidden_layers"),
        ("n_positions", "max_position_embeddings"),
    ];
    let distilbert = [("dim", "hidden_size"), ("n_heads", "num_attention_heads"), ("n_layers", "num_hidden_layers")];
    for (name, keys) in [
        ("models/gpt2", &gpt2[..]),
        ("seq2seq/t5", &t5[..]),
        ("seq2seq/bart", &bart[..]),
        ("seq2seq/blenderbot", &bart[..]),
        ("encoders/distilbert", &distilbert[..]),
    ] {
        let path = crate::tensors::fixtures().join(name);
        let own = ModelDir::open(&path).expect("opens");
        let mut config = own.config.clone();
        for &(key, general) in keys {
            let value = config.remove(key).unwrap_or_else(|| panic!("{name} has no `{key}`"));
            config.insert(general.into(), value);
        }
        let renamed = tempfile::tempdir().expect("temporary directory");
        std::fs::write(renamed.path().join("config.json"), Value::Object(config).to_string()).expect("written");
        std::fs::copy(path.join("model.safetensors"), renamed.path().join("model.safetensors")).expect("copied");
        let general = ModelDir::open(renamed.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let [expected, found] = [&own, &general].map(|dir| ModelShape::of(dir).expect("a shape"));
        assert_eq!(found, expected, "{name}");
        if own.is_encoder() {
            continue;
        }
        let [expected, found] = [&own, &general].map(|dir| CausalLm::load(dir, &device()).expect("loads"));
        assert_eq!(named_tensors(&found), named_tensors(&expected), "{name}");
        let saved = tempfile::tempdir().expect("temporary directory");
        save_causal(&found, &general, saved.path()).expect("saves");
        let again = ModelDir::open(saved.path()).expect("opens");
        for &(key, general) in keys {
            assert!(again.config.contains_key(general) && !again.config.contains_key(key), "{name}: `{key}`");
        }
    }
}
