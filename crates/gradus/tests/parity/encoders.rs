//! Classifiers on encoders agree with `transformers` on random small weights.
//!
//! The fixtures are written by `tools/parity/encoders.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tensors::{GRADIENTS, assert_close, host, tensors};
use burn::module::Module;
use burn::tensor::{Gradients, Tensor, TensorData};
use gradus::model::{
    CausalLm, Classifier, DropoutStream, Layers, ModelDir, NamedVisitor, Reading, RewardModel, Scope, Task, Text,
    TextBatch, WeightFormat, save_classifier, visit_named,
};
use gradus::rng::{Purpose, Seed};
use gradus::text::{Cut, Tokenizer};
use serde_json::Value;

use crate::device::{device, slack};

/// Logits: largest difference allowed, relative to the largest logit of the text (at least 1).
const LOGITS: f32 = 1e-4;

fn fixtures() -> PathBuf {
    crate::tensors::fixtures().join("encoders")
}

/// A row of a fixture.
struct Row {
    ids: Vec<u32>,
    types: Vec<u32>,
    global: Option<Vec<usize>>,
}

impl Row {
    fn text(&self) -> Text<'_> {
        Text { ids: &self.ids, types: &self.types, global: self.global.as_deref() }
    }
}

fn list<T: serde::de::DeserializeOwned + Default>(value: &Value) -> T {
    if value.is_null() { T::default() } else { serde_json::from_value(value.clone()).expect("a list") }
}

/// A classifier of the fixtures, and transformers' outputs for it.
struct Case {
    name: String,
    path: PathBuf,
    dir: ModelDir,
    expected: Value,
    rows: Vec<Row>,
}

impl Case {
    fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(fixtures()).expect("fixtures");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        assert!(names.len() >= 21, "fixtures are missing");
        names.iter().map(|name| Self::named(name)).collect()
    }

    fn named(name: &str) -> Self {
        let path = fixtures().join(name);
        let text = std::fs::read_to_string(path.join("expected.json")).expect("a fixture");
        let expected: Value = serde_json::from_str(&text).expect("JSON");
        let rows = expected["rows"].as_array().expect("rows").iter().map(|row| Row {
            ids: list(&row["ids"]),
            types: list(&row["types"]),
            global: (!row["global"].is_null()).then(|| list(&row["global"])),
        });
        let rows = rows.collect();
        Self { name: name.into(), dir: ModelDir::open(&path).expect("opens"), path, expected, rows }
    }

    fn load(&self) -> Classifier {
        Classifier::load(&self.dir, &device()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn trained(&self) -> Classifier {
        Classifier::load(&self.dir, &device().autodiff()).expect("loads").train()
    }

    fn texts(&self) -> Vec<Text<'_>> {
        self.rows.iter().map(Row::text).collect()
    }

    fn reference(&self) -> BTreeMap<String, Vec<f32>> {
        tensors(&self.path.join("expected.safetensors"))
    }

    /// Computes the sum of all logits, each times its weight.
    fn loss(&self, logits: Tensor<2>) -> Tensor<1> {
        let reference = self.reference();
        let weights: Vec<f32> = (0..self.rows.len()).flat_map(|i| reference[&format!("weights.{i}")].clone()).collect();
        let weights = Tensor::<2>::from_data(TensorData::new(weights, logits.dims()), &logits.device());
        (logits * weights).sum()
    }
}

/// Returns the existing gradients by their names in files.
fn gradients(model: &Classifier, gradients: &Gradients, case: &Case) -> BTreeMap<String, Vec<f32>> {
    struct Collect<'a>(&'a Gradients, BTreeMap<String, Vec<f32>>);
    impl NamedVisitor for Collect<'_> {
        fn visit<const R: usize>(&mut self, name: String, param: &burn::module::Param<Tensor<R>>) {
            if let Some(gradient) = param.val().grad(self.0) {
                self.1.insert(name, host(gradient));
            }
        }
    }
    let mut collect = Collect(gradients, BTreeMap::new());
    visit_named(model, &mut collect);
    let named = collect.1.into_iter();
    named.map(|(name, gradient)| (Classifier::name_on_disk(&name, &case.dir).expect("a family"), gradient)).collect()
}

#[test]
fn logits_and_gradients_agree_packed_and_alone() {
    for case in Case::all() {
        let (name, reference, plain) = (&case.name, case.reference(), case.load());
        let (texts, labels) = (case.texts(), plain.task().labels.len());
        let together = host(plain.logits(&plain.batch(&texts)));
        let mut from = 0;
        for (i, text) in texts.iter().enumerate() {
            plain.encoder.check(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let alone = host(plain.logits(&plain.batch(&[*text])));
            assert_close(&format!("{name}: logits {i}"), &alone, &reference[&format!("logits.{i}")], LOGITS, 1.0);
            let rows = if plain.task().scope == Scope::Token { text.ids.len() } else { 1 };
            let part = &together[from..from + rows * labels];
            assert_close(&format!("{name}: packed logits {i}"), part, &alone, 1e-5, 1.0);
            from += rows * labels;
        }
        let model = case.trained();
        let graph = case.loss(model.logits(&model.batch(&texts))).backward();
        let found = gradients(&model, &graph, &case);
        let expected: BTreeMap<&str, &Vec<f32>> =
            reference.iter().filter_map(|(key, values)| Some((key.strip_prefix("grad.")?, values))).collect();
        // The gradient of a bias that softmax cancels (that of keys) is rounding noise.
        let largest = expected.values().flat_map(|values| values.iter()).fold(0.0f32, |m, v| m.max(v.abs()));
        for (key, expected) in &expected {
            let found = found.get(*key).unwrap_or_else(|| panic!("{name}: no gradient of {key}"));
            assert_close(&format!("{name}: gradient of {key}"), found, expected, GRADIENTS, largest * 1e-2);
        }
        // Parameters without a gradient in the reference have none here, or only zeros.
        for (key, found) in found.iter().filter(|(key, _)| !expected.contains_key(key.as_str())) {
            assert!(found.iter().all(|&value| value == 0.0), "{name}: a gradient of {key}");
        }
    }
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    for case in Case::all() {
        let mut model = case.trained();
        model.set_dropout(true);
        let texts = case.texts();
        let batch = model.batch(&texts).dropping(Some(DropoutStream::of_key(5)));
        let runs = [false, true].map(|recompute| {
            model.encoder.set_recompute(recompute);
            let logits = model.logits(&batch);
            let graph = case.loss(logits.clone()).backward();
            (host(logits), gradients(&model, &graph, &case))
        });
        assert_eq!(runs[0].0, runs[1].0, "{}", case.name);
        // ALBERT's blocks share their weights, so sums of their gradients have another order.
        let tolerance = if case.name.starts_with("albert") { 1e-5 } else { 0.0 };
        for (key, expected) in &runs[0].1 {
            assert_close(&format!("{}: {key}", case.name), &runs[1].1[key], expected, tolerance, 1.0);
        }
    }
}

/// The defaults of other `transformers` classes for keys missing in `config.json` differ from BERT's.
#[test]
fn families_fill_in_what_a_configuration_lacks() {
    for (name, lacking) in [
        ("albert", &["hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"][..]),
        ("deberta-v2", &["layer_norm_eps"]),
        // All texts fit into both windows.
        ("longformer-wide", &["attention_window"]),
    ] {
        let mut case = Case::named(name);
        let logits = |case: &Case| {
            let mut model = case.trained();
            model.set_dropout(true);
            host(model.logits(&model.batch(&case.texts()).dropping(Some(DropoutStream::of_key(5)))))
        };
        let expected = logits(&case);
        for key in lacking {
            assert!(case.dir.config.remove(*key).is_some(), "{name} has `{key}`");
        }
        assert_eq!(logits(&case), expected, "{name} without {lacking:?}");
    }
}

#[test]
fn dropout_falls_where_transformers_has_it() {
    let text = std::fs::read_to_string(crate::tensors::fixtures().join("dropout/fixture.json")).expect("a fixture");
    let fixture: Value = serde_json::from_str(&text).expect("JSON");
    let key: u64 = fixture["key"].as_str().expect("a key").parse().expect("a number");
    let classifiers = fixture["classifiers"].as_array().expect("classifiers");
    assert!(classifiers.len() >= 8);
    for expected in classifiers {
        let mut case = Case::named(expected["model"].as_str().expect("a name"));
        let given = expected["probabilities"].as_object().expect("probabilities").clone();
        case.dir.config.extend(given);
        case.rows.truncate(2);
        let (name, mut model) = (&case.name, case.trained());
        let batch = model.batch(&case.texts()).dropping(Some(DropoutStream::of_key(key)));
        let plain = host(case.load().logits(&case.load().batch(&case.texts())));
        // Dropout is off by default.
        assert_close(&format!("{name}: at first"), &host(model.logits(&batch)), &plain, 1e-5, 1.0);
        model.set_dropout(true);
        let logits = model.logits(&batch);
        let expected_logits: Vec<f32> =
            expected["logits"].as_array().expect("rows").iter().flat_map(all_numbers).collect();
        assert_close(&format!("{name}: logits"), &host(logits.clone()), &expected_logits, LOGITS, 1.0);
        let found = gradients(&model, &case.loss(logits).backward(), &case);
        let squares = expected["squares"].as_object().expect("gradients");
        let largest = squares.values().fold(0.0, |most: f64, value| most.max(value.as_f64().expect("a number")));
        for (key, expected_square) in squares {
            let found: f64 = found[key].iter().map(|&x| f64::from(x).powi(2)).sum();
            let expected_square = expected_square.as_f64().expect("a number");
            let close = (found - expected_square).abs() <= 1e-3 * slack() * expected_square.max(1e-4 * largest);
            assert!(close, "{name}: gradient of {key}: {found} instead of {expected_square}");
        }
    }
}

/// Returns the numbers of a list of any depth.
fn all_numbers(value: &Value) -> Vec<f32> {
    match value.as_array() {
        Some(list) => list.iter().flat_map(all_numbers).collect(),
        None => vec![value.as_f64().expect("a number") as f32],
    }
}

#[test]
fn what_is_saved_is_what_was_read() {
    for case in Case::all() {
        let model = case.load();
        let to = tempfile::tempdir().expect("a directory");
        save_classifier(&model, &case.dir, to.path()).expect("written");
        let [written, read] = [to.path(), &case.path].map(|path| tensors(&path.join("model.safetensors")));
        assert_eq!(written, read, "{}", case.name);
        let again = ModelDir::open(to.path()).expect("opens");
        assert_eq!(Task::of(&again).expect("a task"), *model.task(), "{}", case.name);
        assert_eq!(again.architecture(), case.dir.architecture());
        Classifier::load(&again, &device()).expect("loads");
    }
}

#[test]
fn texts_are_tokenized_and_scored_as_there() {
    let mut found = 0;
    for case in Case::all().iter().filter(|case| case.path.join("tokenizer.json").exists()) {
        let (name, model) = (&case.name, case.load());
        let tokenizer = Tokenizer::from_dir(&case.path).expect("a tokenizer");
        let limit = case.expected["limit"].as_u64().expect("a limit") as usize;
        for text in case.expected["texts"].as_array().expect("texts") {
            let (first, second) = (text["text"].as_str().expect("a text"), text["pair"].as_str());
            let made = tokenizer.encode_joined(first, second, None).expect("encodes");
            assert_eq!(made.ids, list::<Vec<u32>>(&text["ids"]), "{name}: {first}");
            assert_eq!(made.types, list::<Vec<u32>>(&text["types"]), "{name}: types of {first}");
            for (cut, key) in [(Cut::Left(limit), "cut_left"), (Cut::Right(limit), "cut_right")] {
                let cut = tokenizer.encode_joined(first, second, Some(cut)).expect("encodes");
                assert_eq!(cut.ids, list::<Vec<u32>>(&text[key]), "{name}: {key} of {first}");
            }
            let read = Text { ids: &made.ids, types: &made.types, global: None };
            let logits = host(model.logits(&model.batch(&[read])));
            let expected = all_numbers(&text["logits"]);
            assert_close(&format!("{name}: {first}"), &logits, &expected, LOGITS, 1.0);
            found += 1;
        }
    }
    assert!(found >= 20, "{found} texts");
}

#[test]
fn packed_weights_give_the_same_logits() {
    for case in Case::all() {
        let (texts, plain) = (case.texts(), case.load());
        let packed = Classifier::load_packed(&case.dir, WeightFormat::F32, &device()).expect("loads");
        let packed = packed.into_frozen(WeightFormat::F32);
        let [expected, found] = [&plain, &packed].map(|model| host(model.logits(&model.batch(&texts))));
        assert_close(&case.name, &found, &expected, 1e-5, 1.0);
    }
}

/// Copies a fixture and changes its tensors.
fn changed(name: &str, change: impl Fn(&mut BTreeMap<String, (Vec<usize>, Vec<u8>)>)) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a directory");
    let from = fixtures().join(name);
    std::fs::copy(from.join("config.json"), to.path().join("config.json")).expect("copied");
    let bytes = std::fs::read(from.join("model.safetensors")).expect("tensors");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut tensors = file
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec())))
        .collect::<BTreeMap<_, _>>();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        let dtype = safetensors::Dtype::F32;
        (name, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &to.path().join("model.safetensors")).expect("written");
    to
}

fn logits_of(dir: &Path, case: &Case) -> Vec<f32> {
    let model = Classifier::load(&ModelDir::open(dir).expect("opens"), &device()).expect("loads");
    host(model.logits(&model.batch(&case.texts())))
}

#[test]
fn older_files_and_those_of_pre_training_are_read() {
    let case = Case::named("bert");
    let expected = logits_of(&case.path, &case);
    let old = changed("bert", |tensors| {
        for (name, tensor) in std::mem::take(tensors) {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
            tensors.insert(name, tensor);
        }
        let zeros = |n: usize| (vec![n], vec![0u8; 4 * n]);
        tensors.insert("bert.embeddings.position_ids".into(), zeros(30));
        tensors.insert("cls.predictions.bias".into(), zeros(150));
    });
    assert_eq!(logits_of(old.path(), &case), expected);
    // DeBERTa v3 was published with a table of positions that is never used.
    let deberta = Case::named("deberta");
    let with_table = changed("deberta", |tensors| {
        tensors.insert("deberta.embeddings.position_embeddings.weight".into(), (vec![2, 3], vec![0; 24]));
    });
    assert_eq!(logits_of(with_table.path(), &deberta), logits_of(&deberta.path, &deberta));
    // A token head does not use the pooler.
    let token = Case::named("bert-token");
    let pooled = changed("bert-token", |tensors| {
        tensors.insert("bert.pooler.dense.bias".into(), (vec![24], vec![0u8; 96]));
    });
    assert_eq!(logits_of(pooled.path(), &token), logits_of(&token.path, &token));
    let missing = changed("bert", |tensors| {
        tensors.remove("classifier.bias");
        tensors.insert("bert.encoder.layer.7.output.dense.bias".into(), (vec![1], vec![0; 4]));
    });
    let error = Classifier::load(&ModelDir::open(missing.path()).expect("opens"), &device()).expect_err("spoiled");
    let error = error.to_string();
    assert!(error.contains("missing tensor `classifier.bias` [3]"), "{error}");
    assert!(error.contains("unexpected tensor `bert.encoder.layer.7.output.dense.bias`"), "{error}");
}

#[test]
fn a_fresh_head_stands_on_the_same_encoder() {
    let task = Task { scope: Scope::Token, reading: Reading::OneOf, labels: vec!["O".into(), "X".into()] };
    for name in ["bert", "roberta", "distilbert", "longformer", "albert", "modernbert", "deberta", "deberta-v1"] {
        let case = Case::named(name);
        let fresh = |seed| {
            let mut stream = Seed(seed).stream(Purpose::Init, 0, 0);
            Classifier::with_fresh_head(&case.dir, task.clone(), None, &mut stream, &device()).expect("built")
        };
        let (model, plain) = (fresh(1), case.load());
        let batch = |model: &Classifier| model.batch(&[Text { global: Some(&[]), ..case.texts()[1] }]);
        let states = [&model, &plain].map(|model| host(model.encoder.forward(&batch(model))));
        assert_eq!(states[0], states[1], "{name}");
        let logits = |model: &Classifier| host(model.logits(&batch(model)));
        assert_eq!(logits(&model).len(), 2 * case.rows[1].ids.len());
        assert_eq!(logits(&model), logits(&fresh(1)));
        assert_ne!(logits(&model), logits(&fresh(2)));
        let to = tempfile::tempdir().expect("a directory");
        save_classifier(&model, &case.dir, to.path()).expect("written");
        let again = Classifier::load(&ModelDir::open(to.path()).expect("opens"), &device()).expect("loads");
        assert_eq!((logits(&again), again.task()), (logits(&model), &task));
    }
}

#[test]
fn what_is_no_classifier_is_refused() {
    let encoder = ModelDir::open(&fixtures().join("bert")).expect("opens");
    let error = CausalLm::load(&encoder, &device()).expect_err("an encoder");
    assert!(error.to_string().contains("model type `bert` is an encoder, which predicts no text"), "{error}");
    assert!(RewardModel::load(&encoder, &device()).is_err());
    let language = ModelDir::open(&crate::tensors::fixtures().join("models/gpt2")).expect("opens");
    let error = Classifier::load(&language, &device()).expect_err("a language model");
    assert!(error.to_string().contains("model type `gpt2` is not a supported encoder"), "{error}");
    assert!(encoder.is_classifier() && !language.is_classifier());
}

#[test]
fn texts_that_cannot_be_read_are_told() {
    let model = Case::named("bert").load();
    let check = |ids: &[u32], types: &[u32]| model.encoder.check(&Text { ids, types, global: None });
    assert_eq!(check(&[5, 6], &[0, 1]), Ok(()));
    assert_eq!(check(&[], &[]), Err("the text has no tokens".into()));
    assert_eq!(check(&[5; 31], &[]), Err("the text has 31 tokens, but the model has 30 positions".into()));
    assert_eq!(check(&[150], &[]), Err("id 150 is not in the vocabulary of 150 ids".into()));
    assert_eq!(check(&[5, 6], &[0]), Err("1 types for 2 tokens".into()));
    assert_eq!(check(&[5], &[2]), Err("type 2, but the model has only types below 2".into()));
    let roberta = Case::named("roberta").load();
    assert_eq!(roberta.encoder.max_positions(), Some(30));
    let global = Text { global: Some(&[2]), ..Text::new(&[5, 6]) };
    assert_eq!(model.encoder.check(&global), Err("token 2 is global, but the text has 2 tokens".into()));
}

#[test]
fn longformer_sees_what_lies_in_its_windows_and_its_global_tokens() {
    let case = Case::named("longformer");
    let model = case.load();
    let states = |ids: &[u32], global: &[usize]| {
        let batch: TextBatch = model.batch(&[Text { ids, types: &[], global: Some(global) }]);
        host(model.encoder.forward(&batch))
    };
    let ids: Vec<u32> = (0..26).map(|t| 5 + t * 3).collect();
    let mut other = ids.clone();
    other[25] = 7;
    // Two layers with 2 and 4 tokens to each side reach 6 tokens.
    let reached = |global: &[usize]| {
        let (a, b) = (states(&ids, global), states(&other, global));
        let differs = |t: &usize| a[t * 24..][..24] != b[t * 24..][..24];
        (0..26).filter(differs).collect::<Vec<_>>()
    };
    assert_eq!(reached(&[]), (19..26).collect::<Vec<_>>());
    assert_eq!(reached(&[0]), (0..26).collect::<Vec<_>>());
    assert!(slack() >= 1.0);
}
