//! `gradus quantize`, and use of its results in place of a model.

use serde_json::Value;

use crate::harness::{CliTest, fixture_model, signal, wait_until};

const PROMPTS: &str = "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"A\"}\n";
const PAIRS: &str = "{\"prompt\": \"The tea is\", \"chosen\": \" good and warm.\", \"rejected\": \" cold.\"}\n\
    {\"prompt\": \"A\", \"chosen\": \" cup of tea\", \"rejected\": \" the the the\"}\n";
const ROW: &str = "{\"prompt\": \"The tea is\", \"completion\": \" good and warm.\"}\n";

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Quantizes the fixture `model` into the directory named after the format and returns the report.
fn quantize(test: &CliTest, model: &str, format: &str, data: &str) -> Value {
    let model = fixture_model(model);
    let arguments = ["--json", "quantize", "--model", &model, "--format", format, "--output", format, "--data", data];
    json(&test.succeeds(&[&arguments[..], &["--max-new-tokens", "12"]].concat()))
}

#[test]
fn a_language_model_and_what_it_is_good_for_afterwards() {
    let test = CliTest::with("prompts.jsonl", PROMPTS);
    test.write("rows.jsonl", ROW);
    let score = |model: &str| -> Vec<f64> {
        let row = json(&test.succeeds(&["score", "--model", model, "--data", "rows.jsonl"]));
        row["logprobs"].as_array().expect("a list").iter().filter_map(Value::as_f64).collect()
    };
    let before = score(&fixture_model("gpt2"));
    for (format, tolerance) in [("int8", 0.05), ("nf4", 0.5)] {
        let report = quantize(&test, "gpt2", format, "prompts.jsonl");
        assert_eq!(json(&test.read(&format!("{format}/quantization.json"))), report);
        assert_eq!((&report["policy"]["completions"], report["format"].as_str()), (&Value::from(2), Some(format)));
        let error = report["policy"]["logprob_error"].as_f64().expect("a number");
        assert!(error > 0.0 && error < tolerance, "{format}: {error}");
        let [of, to] = [&report["before"], &report["after"]].map(|side| side["linear_bytes"].as_f64().expect("bytes"));
        assert!(to < 0.5 * of, "{to} of {of} bytes");
        let after = score(format);
        let moved = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(
            before.len() == after.len() && moved > 0.0 && moved < 3.0 * tolerance,
            "{format}: {before:?} {after:?}"
        );
        let arguments = ["generate", "--model", format, "--prompts", "prompts.jsonl", "--max-new-tokens", "3"];
        assert_eq!(test.succeeds(&arguments).lines().count(), 2);
    }
    let run = test.run(&["quantize", "--model", "nf4", "--format", "int8", "--output", "again"]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("its linear layers are in nf4 already"), "{}", run.stderr);
    let run = test.run(&["quantize", "--model", &fixture_model("gpt2"), "--format", "nf4", "--output", "nf4"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("output directory `nf4` exists and is not empty"), "{}", run.stderr);
}

/// Ctrl-C, and the signal with which schedulers end jobs.
#[cfg(unix)]
#[test]
fn an_interrupt_leaves_nothing_of_an_unfinished_model() {
    use std::process::Stdio;
    let prompts = "{\"prompt\": \"The tea is\"}\n".repeat(4000);
    let test = CliTest::with("prompts.jsonl", &prompts);
    let model = fixture_model("gpt2");
    let arguments = ["quantize", "--model", &model, "--format", "int8", "--output", "out", "--data", "prompts.jsonl"];
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(test.path()).expect("readable").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name != "prompts.jsonl").collect()
    };
    for name in ["-INT", "-TERM"] {
        let mut command = test.command(&[&arguments[..], &["--max-rows", "4000", "--max-new-tokens", "40"]].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        // The comparison with the original takes seconds, and the model has its name only afterwards.
        wait_until("the model is being written", || names().iter().any(|name| name.starts_with(".out.tmp-")));
        signal(name, &child.id().to_string());
        assert_eq!(child.wait().expect("it ends").code(), Some(130), "{name}");
        assert!(names().is_empty(), "{name}: {:?}", names());
    }
}

#[test]
fn adapters_train_on_a_quantized_model_and_nothing_else_does() {
    let test = CliTest::with("prompts.jsonl", PROMPTS);
    test.write("rows.jsonl", &ROW.repeat(4));
    quantize(&test, "gpt2", "nf4", "prompts.jsonl");
    let train = |more: &[&str]| {
        let arguments = ["sft", "--model", "nf4", "--data", "rows.jsonl", "--max-steps", "2", "--batch-size", "2"];
        test.run(&[&arguments[..], more].concat())
    };
    let run = train(&["--output-dir", "full"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(
        run.stderr.contains("its linear layers are quantized (nf4), and such weights take no gradient"),
        "{}",
        run.stderr
    );
    let run = train(&["--output-dir", "qlora", "--lora-rank", "4", "--learning-rate", "1e-3"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let score = |more: &[&str]| test.succeeds(&[&["score", "--data", "rows.jsonl", "--model"], more].concat());
    assert_ne!(score(&["nf4"]), score(&["nf4", "--adapter", "qlora/model"]));
    assert_eq!(score(&["qlora/model"]), score(&["nf4", "--adapter", "qlora/model"]));
    test.succeeds(&["merge", "--model", "nf4", "--adapter", "qlora/model", "--output", "merged"]);
    assert!(!test.read("merged/config.json").contains("quantization_config"));
}

#[test]
fn a_reward_model() {
    let test = CliTest::with("pairs.jsonl", PAIRS);
    test.write("rows.jsonl", ROW);
    let report = quantize(&test, "qwen3-reward", "int8", "pairs.jsonl");
    let found = &report["reward"];
    assert_eq!((found["pairs"].as_u64(), &report["policy"]), (Some(2), &Value::Null));
    assert!(found["correlation"].as_f64().is_some_and(|r| r > 0.99), "{found}");
    assert!(found["reward_error"].as_f64().is_some_and(|error| error > 0.0 && error < 0.1), "{found}");
    let row = json(&test.succeeds(&["score", "--reward-model", "int8", "--data", "rows.jsonl"]));
    assert!((row["reward"].as_f64().expect("a number") - 0.3626).abs() < 0.1, "{row}");
    let table = test.succeeds(&[
        "quantize",
        "--model",
        &fixture_model("qwen3-reward"),
        "--format",
        "nf4",
        "--output",
        "nf4",
        "--data",
        "pairs.jsonl",
    ]);
    assert!(table.contains("linear layers in memory") && table.contains("correlation of rewards"), "{table}");
    // One pair of two.
    assert!(table.contains("accuracy before") && table.contains(".00 %\n"), "{table}");
}
