//! Training classifiers: ten steps compared to torch, labels of rows, and the results of a run.
//!
//! The fixture is written by `tools/parity/classify.py`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use std::path::{Path, PathBuf};

use gradus::config::{Plan, RunConfig};
use gradus::machine::Machine;
use gradus::model::{Classifier, ModelDir, Reading, Scope, Text, named_tensors};
use gradus::run::read_metrics;
use gradus::text::Tokenizer;
use gradus::train::observer::Silent;
use serde_json::{Value, json};

use crate::device::{choice, device, slack};

/// Tolerance, relative to the size of the number or 1, whichever is larger.
const CURVE: f64 = 1e-3;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity")
}

fn encoder(name: &str) -> PathBuf {
    fixtures().join("encoders").join(name)
}

/// A finished run.
struct Run {
    _directory: tempfile::TempDir,
    path: PathBuf,
    model: PathBuf,
}

impl Run {
    fn report(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path.join("evaluation/report.json")).unwrap()).unwrap()
    }

    fn loaded(&self) -> Classifier {
        Classifier::load(&ModelDir::open(&self.model).unwrap(), &device()).unwrap()
    }
}

/// Trains a classifier from `model` on `data` as a user does; `keys` are those of the method, `train` more keys of
/// `train`.
fn train(model: &Path, data: &Path, keys: &str, train: &str) -> gradus::Result<Run> {
    train_by(model, data, &format!("classify: {{ {keys} }}"), train)
}

/// The same with another method.
fn train_by(model: &Path, data: &Path, method: &str, train: &str) -> gradus::Result<Run> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let text = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nmethod: {{ {method} }}\ntrain:\n  device: {}\n{train}",
        model.display(),
        data.display(),
        path.display(),
        choice(),
    );
    let plan = Plan::check(&RunConfig::parse(&text).unwrap(), &Machine::detect())?;
    let outcome = gradus::train::run(&plan, &mut Silent)?;
    Ok(Run { _directory: directory, path: outcome.directory, model: outcome.model })
}

fn rows(lines: &[Value]) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[track_caller]
fn close(what: &str, found: f64, expected: f64) {
    let distance = (found - expected).abs() / expected.abs().max(1.0);
    assert!(distance <= CURVE * slack(), "{what}: {found}, but torch has {expected}");
}

#[test]
fn ten_steps_are_those_of_torch() {
    let folder = fixtures().join("trajectories/classify");
    let fixture: Value = serde_json::from_slice(&std::fs::read(folder.join("fixture.json")).unwrap()).unwrap();
    for (case, method) in [
        ("texts", "classify: { class_weights: [{ label: bad, weight: 3 }, { label: so-so, weight: 0.5 }] }"),
        ("words", "classify: { task: tokens }"),
        ("segments", "classify: { task: tokens, label_column: feedback_tags, ignored_label: LABEL_0 }"),
        ("pairs", "reward: {}"),
    ] {
        let expected = &fixture["cases"][case];
        // Weights and loss of a step do not depend on how it is split.
        for split in ["", "  micro_batch_size: 3\n"] {
            let keys = format!(
                "  max_steps: 10\n  shuffle: false\n  batch_size: 4\n  learning_rate: 1e-3\n  lr_schedule: linear\n  \
                 weight_decay: 0.01\n  max_grad_norm: 1\n  eval_steps: -1\n{split}"
            );
            let start = expected["start"].as_str().unwrap();
            let own = folder.join(start);
            let start = if own.is_dir() { own } else { encoder(start) };
            let run = train_by(&start, &folder.join(format!("{case}.jsonl")), method, &keys).unwrap();
            let found = read_metrics(&run.path.join("metrics.jsonl")).unwrap();
            let steps = expected["steps"].as_array().unwrap();
            assert_eq!(found.len(), steps.len());
            for (row, step) in found.iter().zip(steps) {
                for name in ["loss", "grad_norm", "learning_rate"] {
                    let found = row.values.get(name).unwrap_or_else(|| panic!("`{name}` is not logged"));
                    close(&format!("{case}, step {}, {name}", row.step), found, step[name].as_f64().unwrap());
                }
            }
            let dir = ModelDir::open(&run.model).unwrap();
            // Softmax cancels the bias of keys, so its gradient is rounding noise, which Adam turns into steps.
            let cancels = |name: &str| name.ends_with("key.bias") || name.ends_with("key_global.bias");
            let tensors = named_tensors(&run.loaded()).into_iter().filter(|tensor| !cancels(&tensor.name));
            for tensor in tensors {
                let name = Classifier::name_on_disk(&tensor.name, &dir).unwrap();
                let squares: f64 = tensor.values.iter().map(|&x| f64::from(x).powi(2)).sum();
                close(&format!("{case}, `{name}`"), squares, expected["squares"][&name].as_f64().unwrap());
            }
        }
    }
}

/// Pairs whose better answer contains "tea".
fn tea_is_better(count: usize) -> Vec<Value> {
    let more = ["is warm", "is cold", "is poured", "sings"];
    let row = |i: usize| {
        let (chosen, rejected) = (format!("tea {}", more[i % 4]), format!("water {}", more[(i / 4) % 4]));
        json!({ "prompt": "the cup is full of ", "chosen": chosen, "rejected": rejected })
    };
    (0..count).map(row).collect()
}

#[test]
fn an_encoder_learns_to_rank_and_leaves_what_its_users_need() {
    let data = rows(&tea_is_better(64));
    // The start model has three labels: its head is replaced by a head with one output.
    let run = train_by(&encoder("bert"), data.path(), "reward: {}", LEARNS).unwrap();
    let dir = ModelDir::open(&run.model).unwrap();
    assert!(dir.ranks() && dir.is_encoder() && !ModelDir::open(&encoder("bert")).unwrap().ranks());
    let evaluated = read_metrics(&run.path.join("metrics.jsonl")).unwrap();
    let last = evaluated.iter().rev().find_map(|row| row.values.get("eval_accuracy")).expect("an evaluation");
    assert_eq!(last, 1.0);
    assert!(run.path.join("evaluation/pairs.jsonl").is_file());
    // Mean and standard deviation of all scores of the training pairs, and the training length.
    let pairs = [
        "tea is warm",
        "tea is cold",
        "tea is poured",
        "tea sings",
        "water is warm",
        "water is cold",
        "water is poured",
        "water sings",
    ];
    let tokenizer = Tokenizer::from_dir(&run.model).unwrap();
    let texts: Vec<Vec<u32>> =
        pairs.iter().map(|text| tokenizer.encode(&format!("the cup is full of {text}"), true).unwrap()).collect();
    let model = run.loaded();
    let batch = model.batch(&texts.iter().map(|ids| Text::new(ids)).collect::<Vec<_>>());
    let scores: Vec<f32> = model.logits(&batch).into_data().try_to_vec().unwrap();
    let trained = dir.training_info();
    let (low, high) = scores.iter().fold((f32::MAX, f32::MIN), |(low, high), &score| (low.min(score), high.max(score)));
    let mean = trained.score_mean.expect("a mean");
    assert!(f64::from(low) < mean && mean < f64::from(high), "{scores:?} {trained:?}");
    assert!(trained.score_std.is_some_and(|std| std > 0.0 && std < f64::from(high - low)), "{trained:?}");
    assert_eq!(trained.max_length, Some(30));
    // A classifier of labels is not a reward model, and the error states this.
    let error = gradus::model::Ranker::load(&ModelDir::open(&encoder("bert")).unwrap(), &device()).unwrap_err();
    assert!(error.to_string().contains("this classifier has 3 labels"), "{error}");
}

/// Texts whose label depends on one word.
fn tea_or_water(count: usize, labels: [&str; 2]) -> Vec<Value> {
    let more = ["the cup is full", "warm and cold", "nobody sings", "she poured it slowly"];
    let row = |i: usize| {
        let word = ["tea", "water"][i % 2];
        json!({ "text": format!("{word} {}", more[(i / 2) % 4]), "label": labels[i % 2] })
    };
    (0..count).map(row).collect()
}

const LEARNS: &str = "  max_steps: 60\n  batch_size: 8\n  learning_rate: 5e-3\n  eval_steps: 20\n";

#[test]
fn a_fresh_head_learns_what_the_labels_are_and_says_so() {
    let data = rows(&tea_or_water(64, ["water-free", "wet"]));
    let run = train(&encoder("bert"), data.path(), "balanced: true", LEARNS).unwrap();
    let model = run.loaded();
    // The start model has none of these labels, so the head is new.
    assert_eq!(model.task().labels, ["water-free", "wet"]);
    assert_eq!((model.task().scope, model.task().reading), (Scope::Sequence, Reading::OneOf));
    let report = run.report();
    assert_eq!((&report["accuracy"], &report["f1"]), (&json!(1.0), &json!(1.0)), "{report}");
    let support: u64 = report["labels"].as_array().unwrap().iter().map(|of| of["support"].as_u64().unwrap()).sum();
    let counted: u64 = report["confusion"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| row.as_array().unwrap())
        .map(|n| n.as_u64().unwrap())
        .sum();
    assert!(support > 0 && support == counted, "{report}");
    let last = read_metrics(&run.path.join("metrics.jsonl")).unwrap();
    let evaluated = last.iter().rev().find(|row| row.values.get("eval_f1").is_some()).expect("an evaluation");
    for name in ["eval_loss", "eval_accuracy", "eval_f1/wet", "eval_precision/wet", "eval_recall/water-free"] {
        assert!(evaluated.values.get(name).is_some(), "`{name}` is not logged");
    }
    let tokenizer = Tokenizer::from_dir(&encoder("bert")).unwrap();
    let decided = |text: &str| {
        let ids = tokenizer.encode_joined(text, None, None).unwrap().ids;
        let logits = model.logits(&model.batch(&[Text::new(&ids)])).into_data().try_to_vec::<f32>().unwrap();
        model.task().labels[model.task().decide(&logits)[0]].clone()
    };
    let texts = ["tea warm and cold", "water the cup is full"];
    assert_eq!(texts.map(decided), ["water-free", "wet"]);
}

#[test]
fn any_label_and_numbers_are_learned() {
    let any: Vec<Value> = tea_or_water(48, ["", ""])
        .into_iter()
        .map(|row| {
            let holds = |word: &str| row["text"].as_str().unwrap().contains(word);
            let labels: Vec<&str> =
                [("tea", "tea"), ("cup", "cup")].iter().filter(|(w, _)| holds(w)).map(|(_, l)| *l).collect();
            json!({ "text": row["text"], "labels": labels })
        })
        .collect();
    let run = train(&encoder("bert-token"), rows(&any).path(), "task: multi_label", LEARNS).unwrap();
    assert_eq!(
        (run.loaded().task().reading, &run.loaded().task().labels[..]),
        (Reading::AnyOf, &["cup".to_owned(), "tea".into()][..])
    );
    let report = run.report();
    assert!(report["f1"].as_f64().unwrap() > 0.8 && report["confusion"].is_null(), "{report}");

    let numbers: Vec<Value> = tea_or_water(48, ["", ""])
        .into_iter()
        .map(|row| json!({ "text": row["text"], "label": if row["text"].as_str().unwrap().contains("tea") { 1.5 } else { -0.5 } }))
        .collect();
    let run = train(&encoder("bert-regression"), rows(&numbers).path(), "", &LEARNS.replace("5e-3", "1e-3")).unwrap();
    assert_eq!(run.loaded().task().reading, Reading::Values);
    let last = read_metrics(&run.path.join("metrics.jsonl")).unwrap();
    let evaluated =
        last.iter().rev().find_map(|row| row.values.get("eval_mean_absolute_error")).expect("an evaluation");
    // An untrained model has an error of 1.
    assert!(evaluated < 0.6, "{evaluated}");
}

#[track_caller]
fn assert_error(model: &str, lines: &[Value], method: &str, message: &str) {
    let data = rows(lines);
    let error = match train(&encoder(model), data.path(), method, "  max_steps: 1\n  eval_steps: -1\n") {
        Err(error) => format!("{error} {}", error.hint().unwrap_or_default()),
        Ok(_) => panic!("`{method}` is taken"),
    };
    assert!(error.contains(message), "{error}");
}

#[test]
fn rows_that_teach_nothing_are_told_with_their_line() {
    let good = || vec![json!({ "text": "tea", "label": "good" }), json!({ "text": "cup", "label": "bad" })];
    let with = |row: Value| [good(), vec![row]].concat();
    assert_error("bert", &with(json!({ "text": "tea" })), "", ":3: missing column `label` (found `text`)");
    assert_error("bert", &with(json!({ "text": "tea", "label": [1] })), "", ":3: `label`: [1] is not a label");
    assert_error("bert", &with(json!({ "text": "tea", "label": null })), "", ":3: `label`: null is not a label");
    let labels = "labels: [good, bad]";
    assert_error(
        "bert",
        &with(json!({ "text": "tea", "label": "fine" })),
        labels,
        ":3: the label `fine` is none of `good`, `bad`",
    );
    for label in ["good", "good,bad"] {
        let message = format!("names one label, `{label}`, but at least two are needed");
        assert_error("bert", &good(), &format!("labels: ['{label}']"), &message);
    }
    let alone = vec![json!({ "text": "tea", "label": "warm" }); 4];
    assert_error("bert", &alone, "", "the training rows have one label, but at least two are needed");
    let none = vec![json!({ "text": "tea", "labels": [] }); 4];
    assert_error("bert", &none, "task: multi_label", "the training rows have no labels, but at least two are needed");
    assert_error(
        "bert",
        &good(),
        "class_weights: [{ label: fine, weight: 2 }]",
        "names `fine`, but the labels are `bad`, `so-so`, `good`",
    );
    let tagged = |tags: Value| vec![json!({ "tokens": ["a", "cup"], "labels": tags })];
    assert_error("bert-token", &tagged(json!([0, 1, 2])), "", ":1: `labels` has 3 labels for 2 words or ids");
    assert_error("bert-token", &tagged(json!("O")), "", ":1: `labels`: expected a list of labels, found \"O\"");
    assert_error("bert-token", &[json!({ "text": "a cup", "labels": [0, 1] })], "", "labels of tokens need `tokens`");
    assert_error(
        "bert-regression",
        &with(json!({ "text": "tea", "label": "much" })),
        "",
        "`label`: expected a number, found \"good\"",
    );
    let two = json!({ "text": "tea", "label": [1.5, 1.0] });
    assert_error(
        "bert-regression",
        &[two],
        "",
        ":1: `label`: expected a number, found [1.5,1.0]: each number needs a name in `method.classify.labels`, 2 in all",
    );
    let one = json!({ "text": "tea", "label": 1.5 });
    let message =
        ":1: `label`: expected a list of 2 numbers, found 1.5: each of the 2 labels (`--labels`) needs a number";
    assert_error("bert-regression", &[one], "labels: [a, b]", message);
}

#[test]
fn what_is_no_encoder_cannot_learn_labels() {
    let data = rows(&tea_or_water(4, ["a", "b"]));
    let gpt2 = fixtures().join("trajectories/models/gpt2");
    let Err(error) = train(&gpt2, data.path(), "", "  max_steps: 1\n") else { panic!("a language model is taken") };
    assert!(error.to_string().contains("model type `gpt2` is not a supported encoder"), "{error}");
}
