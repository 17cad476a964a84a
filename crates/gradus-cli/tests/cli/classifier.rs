//! `gradus score --classifier`, and classifiers as rewards. Expected numbers from transformers on the same directories.

use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};

fn fixture(name: &str) -> String {
    let encoders = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/encoders");
    let path = std::fs::canonicalize(std::path::Path::new(encoders).join(name)).expect("a fixture of the repository");
    path.to_str().expect("the path is UTF-8").to_owned()
}

/// Returns the texts of a fixture with their logits.
fn texts(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(format!("{}/expected.json", fixture(name))).expect("a fixture");
    let expected: Value = serde_json::from_str(&text).expect("JSON");
    expected["texts"].as_array().expect("texts").clone()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

#[track_caller]
fn assert_close(found: &Value, expected: &Value) {
    let (found, expected) = (numbers(found), numbers(expected));
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(&expected) {
        assert!((f - e).abs() < 1e-4, "{found:?} instead of {expected:?}");
    }
}

#[test]
fn a_sequence_head_says_what_each_text_is() {
    let of = texts("bert");
    let rows = [
        json!({ "text": of[0]["text"] }),
        json!({ "prompt": "The kettle sings", "completion": " before the tea is poured." }),
    ];
    let test = CliTest::with("rows.jsonl", &format!("{}\n{}\n", rows[0], rows[1]));
    let found = lines(&test.succeeds(&["score", "--classifier", &fixture("bert"), "--data", "rows.jsonl"]));
    assert_eq!(found.len(), 2);
    for row in found {
        assert_close(&row["logits"], &of[0]["logits"]);
        let logits = numbers(&row["logits"]);
        let sum: f64 = logits.iter().map(|z| z.exp()).sum();
        let shares: Vec<f64> = logits.iter().map(|z| z.exp() / sum).collect();
        assert_close(&row["probabilities"], &json!(shares));
        let most = (0..3).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("three labels");
        assert_eq!(row["label"], ["bad", "so-so", "good"][most]);
        assert_eq!(row.as_object().expect("an object").len(), 3);
    }
}

#[test]
fn two_texts_and_ids_are_read() {
    let of = texts("bert");
    let row = json!({ "premise": of[1]["text"], "hypothesis": of[1]["pair"] });
    let test = CliTest::with("rows.jsonl", &format!("{row}\n"));
    let pattern = ["--text", "{premise}", "--pair", "{hypothesis}"];
    let score = |data: &str, more: &[&str]| {
        lines(&test.succeeds(&[&["score", "--classifier", &fixture("bert"), "--data", data], more].concat()))
    };
    assert_close(&score("rows.jsonl", &pattern)[0]["logits"], &of[1]["logits"]);
    let row = json!({ "input_ids": of[1]["ids"], "token_type_ids": of[1]["types"] });
    test.write("ids.jsonl", &format!("{row}\n"));
    assert_close(&score("ids.jsonl", &[])[0]["logits"], &of[1]["logits"]);
}

#[test]
fn a_token_head_says_what_each_token_is() {
    let of = texts("bert-token");
    let test = CliTest::with("rows.jsonl", &format!("{}\n", json!({ "text": of[0]["text"] })));
    let rows = lines(&test.succeeds(&["score", "--classifier", &fixture("bert-token"), "--data", "rows.jsonl"]));
    let tokens = of[0]["ids"].as_array().expect("ids").len();
    for key in ["logits", "label", "probabilities"] {
        assert_eq!(rows[0][key].as_array().expect("a list").len(), tokens, "{key}");
    }
    for (found, expected) in
        rows[0]["logits"].as_array().expect("a list").iter().zip(of[0]["logits"].as_array().expect("a list"))
    {
        assert_close(found, expected);
    }
}

#[test]
fn numbers_of_their_own_have_no_label() {
    let of = texts("bert-regression");
    let test = CliTest::with("rows.jsonl", &format!("{}\n", json!({ "text": of[0]["text"] })));
    let rows = lines(&test.succeeds(&["score", "--classifier", &fixture("bert-regression"), "--data", "rows.jsonl"]));
    assert_close(&rows[0]["logits"], &of[0]["logits"]);
    assert!(rows[0]["label"].is_null() && rows[0]["probabilities"].is_null());
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let long = "tea ".repeat(40);
    let rows = format!("{}\n{}\n", json!({ "text": "tea" }), json!({ "text": long }));
    let test = CliTest::with("rows.jsonl", &rows);
    let model = fixture("bert");
    let arguments = ["score", "--classifier", &model, "--data", "rows.jsonl"];
    let run = test.run(&arguments);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(
        run.stderr.starts_with(
            "error: rows.jsonl:2: the text has 42 tokens, but the model has 30 positions\nhint: `--truncate right`"
        ),
        "{}",
        run.stderr
    );
    assert_eq!(lines(&test.succeeds(&[&arguments[..], &["--truncate", "left"]].concat())).len(), 2);
    let run = test.run(&[&arguments[..], &["--text", "{body}"]].concat());
    assert!(run.stderr.starts_with("error: rows.jsonl:1: missing column `body` (found `text`)"), "{}", run.stderr);
    let run = test.run(&["score", "--classifier", &fixture_model("gpt2"), "--data", "rows.jsonl"]);
    assert!(run.stderr.contains("model type `gpt2` is not a supported encoder"), "{}", run.stderr);
    let run = test.run(&["score", "--model", &model, "--data", "rows.jsonl"]);
    assert!(run.stderr.contains("gradus score --classifier"), "{}", run.stderr);
}

#[test]
fn a_classifier_rewards_completions() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"A cup\"}\n");
    let config = format!(
        "model: {}\ndata: prompts.jsonl\nmethod: {{ grpo: {{ group_size: 2, max_new_tokens: 4 }} }}\n\
         reward: {{ mix: [\n  {{ weight: 1, reward: {{ classifier: {{ model: {bert}, label: good, truncate: right }} }} }},\n  \
         {{ weight: 0.5, reward: {{ classifier: {{ model: {bert}, label: 0, value: log_odds, text: '{{completion}}' }} }} }}] }}\n\
         train: {{ max_steps: 1, batch_size: 2, eval_steps: -1 }}\n",
        fixture_model("gpt2"),
        bert = fixture("bert"),
    );
    test.write("run.yml", &config);
    test.succeeds(&["train", "run.yml", "--output-dir", "run"]);
    let row: Value = serde_json::from_str(test.read("run/metrics.jsonl").lines().next().expect("a row")).expect("JSON");
    assert!(row["reward"].as_f64().expect("a reward").is_finite(), "{row}");
    let run = test.run(&["train", "run.yml", "--output-dir", "other", "--reward-classifier-label", "fine"]);
    assert_ne!(run.code, 0);
}

#[test]
fn a_classifier_is_trained_and_scores_afterwards() {
    let row = |i: usize| json!({ "text": (["tea warm", "water cold"][i % 2]), "label": (["hot", "wet"][i % 2]) });
    let rows: String = (0..40).map(|i| format!("{}\n", row(i))).collect();
    let test = CliTest::with("rows.jsonl", &rows);
    let arguments = ["classify", "--model", &fixture("bert"), "--data", "rows.jsonl", "--output-dir", "run"];
    test.succeeds(&[&arguments[..], &["--max-steps", "20", "--batch-size", "8", "--learning-rate", "2e-3"]].concat());
    let report: Value = serde_json::from_str(&test.read("run/evaluation/report.json")).expect("JSON");
    assert_eq!(report["accuracy"], 1.0, "{report}");
    let found =
        lines(&test.succeeds(&["score", "--classifier", "run/model", "--data", "rows.jsonl", "--max-rows", "2"]));
    assert_eq!((&found[0]["label"], &found[1]["label"]), (&json!("hot"), &json!("wet")));
    let measured = test.succeeds(&["eval", "--model", "run/model", "--data", "rows.jsonl", "--json"]);
    let measured: Value = serde_json::from_str(&measured).expect("JSON");
    assert_eq!((&measured["rows"], &measured["accuracy"], &measured["f1/wet"]), (&json!(40), &json!(1.0), &json!(1.0)));
    test.write("other.jsonl", "{\"text\": \"tea\", \"label\": \"cold\"}\n");
    let run = test.run(&["eval", "--model", "run/model", "--data", "other.jsonl"]);
    assert!(run.stderr.contains("error: other.jsonl:1: the label `cold` is none of `hot`, `wet`"), "{}", run.stderr);
}

/// An adapter on an encoder: trained, resumed to identical bits, trained further, merged, and used for scoring.
#[test]
fn a_classifier_is_trained_with_an_adapter() {
    let row = |i: usize| json!({ "text": (["tea warm", "water cold"][i % 2]), "label": (["hot", "wet"][i % 2]) });
    let rows: String = (0..40).map(|i| format!("{}\n", row(i))).collect();
    let test = CliTest::with("rows.jsonl", &rows);
    let (model, words) = (fixture("distilbert"), fixture("bert"));
    let train = |output: &str, steps: &str, more: &[&str]| {
        let arguments = ["classify", "--model", &model, "--tokenizer", &words, "--data", "rows.jsonl"];
        let short = [
            "--output-dir",
            output,
            "--max-steps",
            steps,
            "--batch-size",
            "8",
            "--learning-rate",
            "1e-2",
            "--lora-rank",
            "4",
        ];
        let schedule = ["--lr-schedule", "constant", "--lora-dropout", "0.1", "--save-steps", "10"];
        test.succeeds(&[&arguments[..], &short, &schedule, more].concat());
    };
    train("run", "30", &[]);
    let report: Value = serde_json::from_str(&test.read("run/evaluation/report.json")).expect("JSON");
    assert_eq!(report["accuracy"], 1.0, "{report}");
    let labels = |model: &str| {
        let arguments = ["score", "--classifier", model, "--data", "rows.jsonl", "--max-rows", "2"];
        let rows = lines(&test.succeeds(&arguments));
        rows.iter().map(|row| row["label"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(labels("run/model"), [json!("hot"), json!("wet")]);
    let weights = |run: &str| {
        let path = test.path().join(run).join("model/adapter_model.safetensors");
        std::fs::read(path).expect("the adapter")
    };
    train("again", "10", &[]);
    train("again", "30", &["--resume"]);
    assert_eq!(weights("again"), weights("run"), "resumed to the bit");
    // The adapter contains the randomly initialized head: `pre_classifier` is not part of DistilBERT itself.
    let config: Value = serde_json::from_str(&test.read("run/model/adapter_config.json")).expect("JSON");
    assert_eq!(config["modules_to_save"], json!(["classifier", "score", "pre_classifier"]));

    test.succeeds(&["merge", "--model", "run/model", "--output", "merged"]);
    assert_eq!(labels("merged"), [json!("hot"), json!("wet")]);
    let more = ["classify", "--model", "run/model", "--data", "rows.jsonl", "--output-dir", "more", "--max-steps", "2"];
    test.succeeds(&more);
    assert!(test.path().join("more/model/adapter_config.json").is_file());

    test.write("pairs.jsonl", &"{\"prompt\": \"a\", \"chosen\": \" tea\", \"rejected\": \" cup\"}\n".repeat(8));
    let reward = ["reward", "--model", &fixture("roberta"), "--data", "pairs.jsonl", "--output-dir", "ranker"];
    test.succeeds(&[&reward[..], &["--max-steps", "3", "--lora-rank", "2"]].concat());
    let scored = test.succeeds(&["score", "--reward-model", "ranker/model", "--data", "pairs.jsonl"]);
    assert_eq!(lines(&scored).len(), 8);
}

/// Copies a model's directory and sets every value of the tensors selected by `is_huge` to the largest finite number.
fn with_huge(test: &CliTest, from: &str, to: &str, is_huge: fn(&str) -> bool) {
    let to = test.path().join(to);
    std::fs::create_dir(&to).expect("made");
    for entry in std::fs::read_dir(from).expect("a model").flatten().filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
    let mut bytes = std::fs::read(to.join("model.safetensors")).expect("weights");
    let header = 8 + u64::from_le_bytes(*bytes.first_chunk().expect("a header")) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..header]).expect("JSON");
    let huge: Vec<_> = tensors.as_object().expect("tensors").iter().filter(|(name, _)| is_huge(name)).collect();
    assert!(!huge.is_empty(), "{tensors}");
    for (_, tensor) in huge {
        assert_eq!(tensor["dtype"], "F32");
        let [begin, end] = [0, 1].map(|i| header + tensor["data_offsets"][i].as_u64().expect("an offset") as usize);
        bytes[begin..end].chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&3e38f32.to_le_bytes()));
    }
    std::fs::write(to.join("model.safetensors"), bytes).expect("written");
}

/// Weights may be finite but too large to compute with. No non-finite number is printed.
#[test]
fn numbers_that_are_too_large_are_refused() {
    let test = CliTest::with("rows.jsonl", "{\"text\": \"The kettle sings\", \"label\": \"good\"}\n");
    test.write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \" b\", \"rejected\": \" c\"}\n");
    with_huge(&test, &fixture("bert"), "bert", |name| name.starts_with("classifier."));
    with_huge(&test, &fixture_model("gpt2"), "gpt2", |name| name.contains("ln_f"));
    with_huge(&test, &fixture_model("qwen3-reward"), "reward", |name| name.starts_with("score"));
    let cases: [(&[&str], &str); 4] = [
        (&["score", "--classifier", "bert", "--data", "rows.jsonl"], "a logit of row 1 is "),
        (&["eval", "--model", "bert", "--data", "rows.jsonl", "--json"], "the loss is NaN"),
        (&["eval", "--model", "gpt2", "--data", "rows.jsonl", "--json"], "of a token is "),
        (&["eval", "--model", "reward", "--data", "pairs.jsonl", "--json"], "a reward is "),
    ];
    for (arguments, what) in cases {
        let run = test.run(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{arguments:?}: {run:?}");
        assert!(run.stderr.contains(what), "{arguments:?}: {}", run.stderr);
        assert!(run.stderr.contains("are too large to compute with"), "{arguments:?}: {}", run.stderr);
    }
}

/// A label that the task does not read, or that no row has, is a mistake.
#[test]
fn ignored_and_negative_labels_exist_and_are_read() {
    let row = json!({ "tokens": ["the", "tea", "is"], "labels": ["O", "Ignore", "ERR"] });
    let test = CliTest::with("words.jsonl", &format!("{row}\n").repeat(4));
    let texts = "{\"text\": \"tea\", \"label\": \"bad\"}\n{\"text\": \"cup\", \"label\": \"good\"}\n";
    test.write("texts.jsonl", &texts.repeat(4));
    let (words, bert) = (fixture("bert-token"), fixture("bert"));
    let train = |model: &str, data: &str, more: &[&str]| {
        let arguments = ["classify", "--model", model, "--data", data, "--eval-data", data, "--output-dir", "run"];
        test.run(&[&arguments[..], &["--overwrite", "--max-steps", "1"], more].concat())
    };
    for (run, expected) in [
        (
            train(&words, "words.jsonl", &["--negative-label", "zzz"]),
            "`negative_label`: no label `zzz`: the classifier has `ERR`, `Ignore`, `O`",
        ),
        (
            train(&words, "words.jsonl", &["--ignored-label", "typo"]),
            "`ignored_label` is `typo`, but no row has this label: the labels are `ERR`, `Ignore`, `O`",
        ),
        (
            train(&bert, "texts.jsonl", &["--ignored-label", "good"]),
            "`ignored_label` is given, but only `tokens` reads it, and the task is `single_label`",
        ),
    ] {
        assert!(run.code == 1 && run.stderr.contains(expected), "{run:?}");
    }
    let run = train(&words, "words.jsonl", &["--ignored-label", "Ignore", "--negative-label", "O"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let eval = |model: &str, data: &str, more: &[&str]| {
        test.run(&[&["eval", "--model", model, "--data", data, "--json"][..], more].concat())
    };
    let run = eval(&bert, "texts.jsonl", &["--ignored-label", "good"]);
    assert!(run.code == 1 && run.stderr.contains("only `tokens` reads it, and the task is `single_label`"), "{run:?}");
    // Rows without the ignored label can be measured. It may be a typo, so there is a remark.
    test.write("words.jsonl", &test.read("words.jsonl").replace("Ignore", "O"));
    let run = eval("run", "words.jsonl", &["--ignored-label", "Ignore"]);
    assert!(run.code == 0 && run.stderr.contains("no row has this label: the labels are `ERR`, `O`"), "{run:?}");
    let run = eval("run", "words.jsonl", &["--negative-label", "1"]);
    assert!(run.code == 0 && run.stdout.contains("detection/f1"), "the number of a label: {run:?}");
}

/// An evaluation refuses flags that its kind of model does not read, before it writes a file.
#[test]
fn eval_refuses_what_its_model_does_not_read() {
    let test = CliTest::with("rows.jsonl", "{\"text\": \"The kettle sings\", \"label\": \"good\"}\n");
    test.write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \" b\", \"rejected\": \" c\"}\n");
    let predictions = "{\"prompt\": \"a\", \"prediction\": \"b\", \"references\": [], \"metrics\": {}}\n";
    test.write("said.jsonl", predictions);
    let (bert, gpt2, reward) = (fixture("bert"), fixture_model("gpt2"), fixture_model("qwen3-reward"));
    let (classifier, language) = ("a classifier", "a language model");
    let cases: [(&str, &str, &[&str], &str, &str); 6] = [
        (&bert, "rows.jsonl", &["--metrics", "rouge", "--predictions", "said.jsonl"], language, classifier),
        (&bert, "rows.jsonl", &["--reward-rule-substring", "e", "--max-new-tokens", "3"], language, classifier),
        (&bert, "rows.jsonl", &["--reference-model", "none"], language, classifier),
        (&reward, "pairs.jsonl", &["--metrics", "rouge", "--predictions", "said.jsonl"], language, "a reward model"),
        (&reward, "pairs.jsonl", &["--label-column", "kind"], classifier, "a reward model"),
        (&gpt2, "rows.jsonl", &["--negative-label", "good"], classifier, language),
    ];
    for (model, rows, flags, reader, found) in cases {
        let run = test.run(&[&["eval", "--model", model, "--data", rows][..], flags].concat());
        let reads = format!("only the evaluation of {reader} reads it, and the model is {found}");
        assert!(run.code == 1 && run.stderr.contains(&reads), "{flags:?}: {run:?}");
    }
    let run = test.run(&["eval", "--model", &bert, "--data", "rows.jsonl", "--predictions", "said.jsonl"]);
    assert!(run.code == 1 && run.stderr.contains("`--predictions` is given, but the rows are measured"), "{run:?}");
    assert_eq!(test.read("said.jsonl"), predictions);
}

/// A classifier trained with column names is measured with the same names.
#[test]
fn a_classifier_is_measured_on_the_columns_that_it_was_trained_on() {
    let row = |i: usize| json!({ "body": (["tea warm", "water cold"][i % 2]), "kind": (["hot", "wet"][i % 2]) });
    let rows: String = (0..40).map(|i| format!("{}\n", row(i))).collect();
    let test = CliTest::with("rows.jsonl", &rows);
    let columns = ["--label-column", "kind", "--text", "{body}"];
    let train = ["classify", "--model", &fixture("bert"), "--data", "rows.jsonl", "--output-dir", "run"];
    let short = ["--max-steps", "20", "--batch-size", "8", "--learning-rate", "2e-3"];
    test.succeeds(&[&train[..], &short, &columns].concat());
    let eval = ["eval", "--model", "run/model", "--data", "rows.jsonl", "--json"];
    let measured: Value = serde_json::from_str(&test.succeeds(&[&eval[..], &columns].concat())).expect("JSON");
    assert_eq!((&measured["rows"], &measured["accuracy"]), (&json!(40), &json!(1.0)));
    // The model's directory records the columns, so nobody needs to repeat them.
    for model in ["run", "run/model"] {
        let eval = ["eval", "--model", model, "--data", "rows.jsonl", "--json"];
        let again: Value = serde_json::from_str(&test.succeeds(&eval)).expect("JSON");
        assert_eq!(again, measured, "{model}");
    }
    assert_eq!(lines(&test.succeeds(&["score", "--classifier", "run", "--data", "rows.jsonl"])).len(), 40);
    // Given columns replace them, and an error about a missing one names the flags.
    test.write("other.jsonl", "{\"sentence\": \"tea warm\", \"sort\": \"hot\"}\n");
    let other = ["eval", "--model", "run", "--data", "other.jsonl", "--text", "{sentence}", "--label-column", "sort"];
    test.succeeds(&other);
    let was = "(it was trained with `--text '{body}'`)";
    for (arguments, flags) in [
        (&other[..5], "`--text`, `--pair` and `--label-column`"),
        (&["score", "--classifier", "run", "--data", "other.jsonl"], "`--text` and `--pair`"),
    ] {
        let run = test.run(arguments);
        let hint = format!("hint: {flags} name the columns that the classifier reads {was}");
        assert!(run.code == 1 && run.stderr.contains("error: other.jsonl:1: missing column `body`"), "{run:?}");
        assert!(run.stderr.contains(&hint), "{run:?}");
    }
    // With a bad row, the error names the flag that skips it. With the flag, the skipped rows are reported.
    test.write("rows.jsonl", &(rows + "{\"body\": 3, \"kind\": \"hot\"}\nno JSON\n"));
    let run = test.run(&[&eval[..], &columns].concat());
    assert!(run.code == 1 && run.stderr.contains("`--skip-bad-rows` leaves bad rows out"), "{run:?}");
    let run = test.run(&[&eval[..], &columns, &["--skip-bad-rows"]].concat());
    assert!(run.code == 0 && run.stderr.contains("left out, the first rows.jsonl:4"), "{run:?}");
}
