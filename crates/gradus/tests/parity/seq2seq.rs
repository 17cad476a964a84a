//! Models with an encoder agree with `transformers` on random small weights.
//!
//! The fixtures are written by `tools/parity/seq2seq.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tensors::{GRADIENTS, assert_close, check_gradients, host, prefix, tensors};
use burn::module::Module;
use gradus::generate::{
    BeamParams, Completion, EarlyStopping, Hooks, NoStopRule, SamplingParams, beam_search, generate,
};
use gradus::model::adapter::{Adaptable, LoraConfig, TaskType};
use gradus::model::{
    Batch, CausalLm, DropoutStream, Layers, ModelDir, Precision, RewardModel, Rows, Sequence, WeightFormat,
    named_tensors, save_causal,
};
use gradus::rng::{Purpose, Seed};
use serde_json::{Value, json};

use crate::device::{device, slack};

/// Logits: largest difference allowed, relative to the largest logit of the model (at least 1).
const LOGITS: f32 = 1e-4;
/// Sampled against recomputed logprobs: largest difference allowed, relative to the logprob (at least 1).
const SAMPLER: f32 = 1e-5;

fn fixtures() -> PathBuf {
    crate::tensors::fixtures().join("seq2seq")
}

fn models() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixtures()).expect("fixtures");
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.expect("entry").path()).filter(|path| path.join("config.json").exists()).collect();
    found.sort();
    assert!(found.len() >= 8, "fixtures are missing");
    found
}

fn json_of(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn rows_of_ids(value: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(value.clone()).expect("rows of ids")
}

/// A model of the fixtures, and transformers' outputs for it.
struct Case {
    name: String,
    path: PathBuf,
    dir: ModelDir,
    expected: Value,
    sources: Vec<Vec<u32>>,
    targets: Vec<Vec<u32>>,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        models().into_iter().map(|path| {
            let expected = json_of(&path.join("expected.json"));
            Self {
                name: path.file_name().expect("name").to_string_lossy().into_owned(),
                dir: ModelDir::open(&path).expect("opens"),
                sources: rows_of_ids(&expected["sources"]),
                targets: rows_of_ids(&expected["targets"]),
                path,
                expected,
            }
        })
    }

    fn load(&self) -> CausalLm {
        CausalLm::load(&self.dir, &device()).expect("loads")
    }

    fn trained(&self) -> CausalLm {
        CausalLm::load(&self.dir, &device().autodiff()).expect("loads").train()
    }

    fn pairs(&self) -> Vec<Sequence<'_>> {
        self.sources.iter().zip(&self.targets).map(|(source, target)| Sequence::completion(source, target)).collect()
    }
}

#[test]
fn logits_and_gradients_agree_packed_and_alone() {
    for case in Case::all() {
        let (name, pairs, plain) = (&case.name, case.pairs(), case.load());
        let reference = tensors(&case.path.join("expected.safetensors"));
        let batch = plain.batch(&Rows::Alone(pairs.clone()));
        let together = host(plain.logits(&batch));
        for (i, pair) in pairs.iter().enumerate() {
            let alone = host(plain.logits(&plain.batch(&Rows::Alone(vec![*pair]))));
            assert_close(&format!("{name}: logits {i}"), &alone, &reference[&format!("logits.{i}")], LOGITS, 1.0);
            let from = batch.packed().index(i, 0) * plain.vocab_size();
            let part = &together[from..from + pair.target.len() * plain.vocab_size()];
            assert_close(&format!("{name}: packed logits {i}"), part, &alone, 1e-5, 1.0);
        }
        let model = case.trained();
        let loss = -model.logprobs(&batch, 1.0).logprobs_m.mean();
        let value = host(loss.clone())[0];
        let expected = case.expected["loss"].as_f64().expect("loss") as f32;
        assert!(
            (value - expected).abs() <= 1e-5 * slack() as f32 * expected,
            "{name}: loss {value} instead of {expected}"
        );
        check_gradients(name, &model, &loss.backward(), prefix(&case.dir), &reference);
    }
}

/// Four targets of one source and two of another, some with a common prefix.
fn groups() -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let sources = [6, 4].map(|length: u32| (0..length).map(|t| (t * 5 + length) % 29).collect()).to_vec();
    let targets = (0..6u32).map(|i| (0..i + 2).map(|t| if t < 2 { 7 } else { (t * 7 + i * 3) % 29 }).collect());
    (sources, targets.collect())
}

#[test]
fn a_shared_source_gives_the_same_logprobs_and_gradients() {
    for case in Case::all() {
        let (name, model, (sources, targets)) = (&case.name, case.trained(), groups());
        let pair = |i: usize| Sequence::completion(&sources[i / 4], &targets[i]);
        let run = |batch: &Batch| {
            let logprobs_m = model.logprobs(batch, 1.0).logprobs_m;
            let gradients = logprobs_m.clone().powi_scalar(2).sum().backward();
            (host(logprobs_m), crate::tensors::gradients(&model, &gradients))
        };
        let alone = model.batch(&Rows::Alone((0..6).map(pair).collect()));
        let grouped = model.batch(&Rows::Groups(vec![(0..4).map(pair).collect(), (4..6).map(pair).collect()]));
        // Saved tokens: three times the first source, the start and the first id; once the second source, the start and
        // two ids.
        assert_eq!(alone.tokens() - grouped.tokens(), 3 * (6 + 2) + 4 + 3, "{name}");
        let ((expected, expected_gradients), (found, gradients)) = (run(&alone), run(&grouped));
        assert_close(&format!("{name}: logprobs"), &found, &expected, 1e-5, 1.0);
        // The gradient of the bias of keys, which softmax cancels, is rounding noise.
        let floor = 1e-3 * expected_gradients.values().flatten().fold(0.0f32, |most, value| most.max(value.abs()));
        for (key, found) in &gradients {
            assert_close(&format!("{name}: gradient of {key}"), found, &expected_gradients[key], 1e-4, floor);
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    for case in Case::all() {
        let mut model = case.trained();
        let pairs = case.pairs();
        let twice = pairs.iter().chain(&pairs).copied().collect();
        let batch = model.batch(&Rows::Groups(vec![twice]));
        let runs = [false, true].map(|recompute| {
            model.trunk.set_recompute(recompute);
            let logprobs_m = model.logprobs(&batch, 1.0).logprobs_m;
            let gradients = logprobs_m.clone().powi_scalar(2).sum().backward();
            (host(logprobs_m), crate::tensors::gradients(&model, &gradients))
        });
        assert_eq!(runs[0], runs[1], "{}", case.name);
    }
}

#[test]
fn dropout_falls_where_transformers_has_it() {
    let folder = crate::tensors::fixtures().join("dropout");
    let fixture = json_of(&folder.join("fixture.json"));
    let key = fixture["key"].as_str().expect("a key").parse().expect("a number");
    for case in fixture["across"].as_array().expect("cases") {
        let name = case["model"].as_str().expect("a name");
        let reference = tensors(&folder.join(format!("{name}.safetensors")));
        let mut dir = ModelDir::open(&fixtures().join(name)).expect("opens");
        dir.config.extend(case["probabilities"].as_object().expect("probabilities").clone());
        let mut model = CausalLm::load(&dir, &device().autodiff()).expect("loads").train();
        let (sources, targets) = (rows_of_ids(&case["sources"]), rows_of_ids(&case["targets"]));
        let pairs = sources.iter().zip(&targets).map(|(source, target)| Sequence::completion(source, target));
        let batch = model.batch(&Rows::Alone(pairs.collect()));
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
            let found = crate::tensors::gradients(&model, &loss.backward());
            let expected = reference.iter().filter_map(|(key, values)| Some((key.strip_prefix("grad.")?, values)));
            let mut checked = 0;
            for (key, expected) in expected {
                let found = &found[&format!("trunk.{}", key.strip_prefix(prefix(&dir)).expect("of the trunk"))];
                assert_close(&format!("{name}: gradient of {key}"), found, expected, GRADIENTS, 1e-3);
                checked += 1;
            }
            assert!(checked >= 6, "{name}: {checked} gradients");
        }
        assert_eq!(host(model.logits(&batch.dropping(None))), plain, "{name}");
    }
}

fn sample(model: &CausalLm, sources: &[&[u32]], group: usize, params: &SamplingParams) -> Vec<Completion> {
    let stream = |i| Seed(5).stream(Purpose::Rollout, 0, i as u64);
    generate(model, sources, group, params, &mut NoStopRule, &stream).expect("generates")
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    for case in Case::all() {
        let model = case.load();
        let expected = rows_of_ids(&case.expected["greedy"]);
        let params = SamplingParams { temperature: 0.0, max_new_tokens: expected[0].len(), ..Default::default() };
        let sources: Vec<&[u32]> = case.sources.iter().map(Vec::as_slice).collect();
        for (i, found) in sample(&model, &sources, 2, &params).iter().enumerate() {
            assert_eq!(found.ids, expected[i / 2], "{}: source {}", case.name, i / 2);
        }
    }
}

#[test]
fn beams_and_processors_find_what_transformers_finds() {
    for case in Case::all() {
        let (model, beams) = (case.load(), &case.expected["beams"]);
        let sources: Vec<&[u32]> = case.sources.iter().map(Vec::as_slice).collect();
        let stop: Vec<u32> = serde_json::from_value(beams["stop"].clone()).expect("ids");
        for search in beams["searches"].as_array().expect("searches") {
            let number = |key: &str| search[key].as_u64();
            let id = |key: &str| number(key).map(|id| id as u32);
            let params = SamplingParams {
                temperature: 0.0,
                max_new_tokens: 11,
                min_new_tokens: number("min_new_tokens").unwrap_or(0) as usize,
                no_repeat_ngram_size: number("no_repeat_ngram_size").unwrap_or(0) as usize,
                repetition_penalty: search["repetition_penalty"].as_f64().unwrap_or(1.0) as f32,
                forced_bos_token_id: id("forced_bos_token_id"),
                forced_eos_token_id: id("forced_eos_token_id"),
                stop_ids: stop.clone(),
                ..Default::default()
            };
            let returned = number("num_return_sequences").unwrap_or(1) as usize;
            let found: Vec<(Vec<u32>, f64)> = match number("num_beams") {
                Some(1) => sample(&model, &sources, 1, &params).into_iter().map(|c| (c.ids, 0.0)).collect(),
                beams => {
                    let early = search["early_stopping"].as_bool() == Some(true);
                    let beams = BeamParams {
                        num_beams: beams.expect("beams") as usize,
                        length_penalty: search["length_penalty"].as_f64().unwrap_or(1.0) as f32,
                        early_stopping: if early { EarlyStopping::FirstEnded } else { EarlyStopping::Heuristic },
                        ..BeamParams::default()
                    };
                    let stream = |p| Seed(5).stream(Purpose::Generate, 0, p as u64);
                    let search = (&params, &beams);
                    let found =
                        beam_search(&model, &sources, returned, search, Hooks::unwatched(&mut NoStopRule), &stream);
                    found.expect("finds").into_iter().map(|f| (f.completion.ids, f64::from(f.score))).collect()
                }
            };
            for (i, (ids, score)) in found.iter().enumerate() {
                let expected = &search["found"][i / returned];
                assert_eq!(json!(ids), expected["ids"][i % returned], "{}: {search}", case.name);
                let expected = expected["scores"][i % returned].as_f64().unwrap_or(0.0);
                assert!(
                    (score - expected).abs() <= 1e-4 * expected.abs().max(1.0),
                    "{}: {score}, {expected}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn adapters_of_peft_give_its_logits() {
    for name in ["t5", "bart-dora"] {
        let path = fixtures().join("adapters").join(name);
        let reference = tensors(&path.join("expected.safetensors"));
        let base =
            json_of(&path.join("adapter_config.json"))["base_model_name_or_path"].as_str().expect("a base").to_owned();
        let case = Case::all().find(|case| case.name == base).expect("its base");
        let dir = case.dir.clone().with_adapter(&path).expect("an adapter");
        let model = CausalLm::load(&dir, &device()).expect("loads");
        let merged = model.merged();
        for (i, pair) in case.pairs().into_iter().enumerate() {
            let batch = model.batch(&Rows::Alone(vec![pair]));
            let expected = |what: &str| &reference[&format!("{what}.{i}")];
            assert_close(&format!("{name}: logits {i}"), &host(model.logits(&batch)), expected("logits"), LOGITS, 1.0);
            assert_close(&format!("{name}: merged {i}"), &host(merged.logits(&batch)), expected("merged"), LOGITS, 1.0);
        }
        let to = tempfile::tempdir().expect("temporary directory");
        save_causal(&model, &dir, to.path()).expect("saves");
        let saved = json_of(&to.path().join("adapter_config.json"));
        assert_eq!((&saved["task_type"], &saved["use_dora"]), (&json!("SEQ_2_SEQ_LM"), &json!(name == "bart-dora")));
        let again = CausalLm::load(&case.dir.clone().with_adapter(to.path()).expect("an adapter"), &device());
        let batch = model.batch(&Rows::Alone(case.pairs()));
        assert_eq!(host(again.expect("loads").logits(&batch)), host(model.logits(&batch)), "{name}");
    }
}

/// The maximum number of parameters of a block: two matrices and a vector on each of its layers.
#[test]
fn adapters_on_every_layer_learn_with_recomputed_blocks_too() {
    for case in Case::all() {
        let config = LoraConfig { rank: 2, dora: true, targets: vec!["all-linear".into()], ..LoraConfig::default() };
        let peft = config.peft_config(&case.dir, TaskType::Seq2SeqLm, String::new()).expect("a configuration");
        let mut stream = Seed(1).stream(Purpose::Init, 0, 0);
        let model = case.trained().with_fresh_adapter(&case.dir, peft, &mut stream).expect("fits");
        let mut model = model.train_adapter(WeightFormat::F32);
        let batch = model.batch(&Rows::Alone(case.pairs()));
        let runs = [false, true].map(|recompute| {
            model.trunk.set_recompute(recompute);
            let logprobs_m = model.logprobs(&batch, 1.0).logprobs_m;
            let gradients = logprobs_m.clone().sum().backward();
            (host(logprobs_m), crate::tensors::gradients(&model, &gradients))
        });
        assert_eq!(runs[0], runs[1], "{}", case.name);
        assert!(runs[0].1.keys().any(|name| name.contains("magnitude")), "{}", case.name);
    }
}

#[test]
fn coarser_formats_compute_with_what_they_hold() {
    /// Returns √(Σ (a − b)² / Σ b²).
    fn far(a: &[f32], b: &[f32]) -> f32 {
        let square: f32 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
        (square / b.iter().map(|b| b * b).sum::<f32>()).sqrt()
    }
    for case in Case::all() {
        let (name, model) = (&case.name, case.load());
        let batch = model.batch(&Rows::Alone(case.pairs()));
        let exact = host(model.logits(&batch));
        let bf16 = far(&host(model.clone().with_compute(Precision::Bf16).logits(&batch)), &exact);
        assert!(bf16 < 0.05 && (bf16 > 0.0 || !crate::device::has_kernels("bf16")), "{name}: bf16 is off by {bf16}");
        for format in [WeightFormat::INT8, WeightFormat::NF4] {
            let frozen = model.clone().into_frozen(format);
            let found = host(frozen.logits(&batch));
            assert!(far(&found, &exact) > 0.0005, "{name}: {format:?} changes nothing");
            let off = far(&found, &host(frozen.merged().logits(&batch)));
            assert!(off < 0.03, "{name}: {format:?} is off by {off} from the same weights in f32");
        }
    }
}

#[test]
fn the_sampler_records_the_logprobs_that_training_computes() {
    for case in Case::all() {
        let (model, sources): (_, Vec<&[u32]>) = (case.load(), case.sources.iter().map(Vec::as_slice).collect());
        let params = SamplingParams { temperature: 0.7, max_new_tokens: 9, stop_ids: vec![3], ..Default::default() };
        let all = sample(&model, &sources, 4, &params);
        let group = |p: usize| all[p * 4..][..4].iter().map(|c| Sequence::completion(sources[p], &c.ids)).collect();
        let rows = Rows::Groups((0..sources.len()).map(group).collect());
        let trained = host(model.logprobs(&model.batch(&rows), 0.7).logprobs_m);
        let recorded: Vec<f32> = all.iter().flat_map(|c| c.logprobs.clone()).collect();
        assert_eq!(recorded.len(), trained.len());
        for (i, (r, t)) in recorded.iter().zip(&trained).enumerate() {
            let fits = (r - t).abs() <= SAMPLER * slack() as f32 * t.abs().max(1.0);
            assert!(fits, "{}: token {i}: {r} and {t}", case.name);
        }
        assert!((1..4).any(|g| all[g].ids != all[0].ids), "{}: one group, several completions", case.name);
    }
}

#[test]
fn a_round_trip_keeps_every_bit_and_every_key() {
    for case in Case::all() {
        let (name, model) = (&case.name, case.load());
        let to = tempfile::tempdir().expect("temporary directory");
        save_causal(&model, &case.dir, to.path()).expect("saves");
        let again = ModelDir::open(to.path()).expect("opens");
        for (key, value) in &case.dir.config {
            let rewritten = ["dtype", "torch_dtype", "use_cache", "architectures", "tie_word_embeddings"];
            assert!(rewritten.contains(&key.as_str()) || again.config.get(key) == Some(value), "{key} of {name}");
        }
        assert_eq!(case.dir.architecture(), again.architecture(), "{name}");
        let reloaded = CausalLm::load(&again, &device()).expect("loads what was saved");
        assert_eq!(named_tensors(&model), named_tensors(&reloaded), "{name}");
        let batch = model.batch(&Rows::Alone(case.pairs()));
        assert_eq!(host(model.logits(&batch)), host(reloaded.logits(&batch)), "{name}");
    }
}

/// Whole rows of logits and logprobs describe the same distribution, including T5's scaled states and BART's bias.
#[test]
fn whole_logits_and_logprobs_say_the_same() {
    for case in Case::all() {
        let (name, model) = (&case.name, case.load());
        let batch = model.batch(&Rows::Alone(case.pairs()));
        for temperature in [1.0, 0.7] {
            let logits_mv = model.token_logits(model.hidden(&batch), batch.targets(), temperature);
            let (v, logits) = (model.vocab_size(), host(logits_mv));
            let of_target = |(row, &id): (&[f32], &u32)| {
                let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = row.iter().map(|z| f64::from(z - most).exp()).sum();
                row[id as usize] - most - sum.ln() as f32
            };
            let found: Vec<f32> = logits.chunks_exact(v).zip(&batch.targets().ids).map(of_target).collect();
            let expected = host(model.logprobs(&batch, temperature).logprobs_m);
            assert_close(&format!("{name} at {temperature}"), &found, &expected, 1e-5, 1.0);
        }
    }
}

/// Any language model can become a reward model, whatever its head has besides weights.
#[test]
fn a_reward_model_stands_on_every_one() {
    for case in Case::all() {
        let mut stream = Seed(4).stream(Purpose::Init, 0, 0);
        let model = RewardModel::from_causal(&case.dir, None, &mut stream, &device());
        let model = model.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(host(model.rewards(&model.batch(&Rows::Alone(case.pairs())))).len(), case.sources.len());
    }
}

/// `facebook/bart-base` is a `BartModel`: its tensor names have no prefix, the embedding table occurs three times, and
/// its first files stated their format version.
#[test]
fn a_bart_without_its_head_and_its_prefix_is_read() {
    let case = Case::all().find(|case| case.name == "bart").expect("a fixture");
    let bytes = std::fs::read(case.path.join("model.safetensors")).expect("tensors");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (name, view) in file.tensors() {
        let tensor = (view.shape().to_vec(), view.data().to_vec());
        if let Some(name) = name.strip_prefix("model.") {
            tensors.insert(name.to_owned(), tensor);
        }
    }
    for stack in ["encoder", "decoder"] {
        tensors.insert(format!("{stack}.embed_tokens.weight"), tensors["shared.weight"].clone());
        tensors.insert(format!("{stack}.version"), (vec![1], 3f32.to_le_bytes().to_vec()));
    }
    let to = tempfile::tempdir().expect("temporary directory");
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &to.path().join("model.safetensors")).expect("written");
    std::fs::copy(case.path.join("config.json"), to.path().join("config.json")).expect("copied");
    let bare = CausalLm::load(&ModelDir::open(to.path()).expect("opens"), &device()).expect("loads");
    let hidden = |model: &CausalLm| host(model.hidden(&model.batch(&Rows::Alone(case.pairs()))));
    assert_eq!(hidden(&bare), hidden(&case.load()));
}

/// The defaults of `transformers` classes for keys missing in `config.json` differ between families.
#[test]
fn families_fill_in_what_a_configuration_lacks() {
    for (name, lacking, start) in [
        ("mt5", &["feed_forward_proj", "decoder_start_token_id"][..], 0),
        ("bart", &["decoder_start_token_id"], 2),
        ("blenderbot", &["decoder_start_token_id"], 1),
        ("blenderbot-small", &["decoder_start_token_id"], 1),
    ] {
        let case = Case::all().find(|case| case.name == name).expect("a fixture");
        let mut config = case.dir.config.clone();
        config.insert("decoder_start_token_id".into(), json!(start));
        let written = tempfile::tempdir().expect("temporary directory");
        let logits = |config: &serde_json::Map<String, Value>| {
            std::fs::write(written.path().join("config.json"), Value::Object(config.clone()).to_string())
                .expect("written");
            let weights = "model.safetensors";
            std::fs::copy(case.path.join(weights), written.path().join(weights)).expect("copied");
            let model = CausalLm::load(&ModelDir::open(written.path()).expect("opens"), &device()).expect("loads");
            host(model.hidden(&model.batch(&Rows::Alone(case.pairs()))))
        };
        let expected = logits(&config);
        for key in lacking {
            assert!(config.remove(*key).is_some(), "{name} has `{key}`");
        }
        assert_eq!(logits(&config), expected, "{name} without {lacking:?}");
    }
}

#[test]
fn what_a_configuration_lacks_is_said() {
    let refuse = |key: &str, value: Option<Value>| {
        let mut dir = ModelDir::open(&fixtures().join("t5")).expect("opens");
        match value {
            Some(value) => drop(dir.config.insert(key.into(), value)),
            None => drop(dir.config.remove(key)),
        }
        let changed = tempfile::tempdir().expect("temporary directory");
        let config = Value::Object(dir.config).to_string();
        std::fs::write(changed.path().join("config.json"), config).expect("written");
        let weights = "model.safetensors";
        std::fs::copy(fixtures().join("t5").join(weights), changed.path().join(weights)).expect("copied");
        let opened = ModelDir::open(changed.path());
        let error = opened.and_then(|dir| CausalLm::load(&dir, &device())).expect_err("refused");
        (error.to_string(), error.hint().unwrap_or_default().to_owned())
    };
    let (message, hint) = refuse("decoder_start_token_id", None);
    assert!(message.ends_with("no `decoder_start_token_id`: the first id of the decoder is unknown"), "{message}");
    assert!(hint.contains("T5 begins with its padding"), "{hint}");
    for (key, value, says) in [
        ("decoder_start_token_id", json!(90), "`decoder_start_token_id` is 90, but the vocabulary has 90 ids"),
        ("feed_forward_proj", json!("gated-tanh"), "`feed_forward_proj` `gated-tanh` is not supported"),
        ("num_decoder_layers", json!(0), "`num_decoder_layers` is `0`, but a whole number from 1"),
        (
            "relative_attention_num_buckets",
            json!(2),
            "`relative_attention_num_buckets` is `2`, but a whole number from 4",
        ),
        ("relative_attention_max_distance", json!(2), "more distances than half of the buckets"),
        ("dropout_rate", json!(1.0), "`dropout_rate` is `1.0`, but a probability"),
    ] {
        let (message, _) = refuse(key, Some(value));
        assert!(message.contains(says), "{message}");
    }
}
