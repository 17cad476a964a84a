//! `gradus bench`: every figure is present and plausible. Its size depends on the machine.

use serde_json::Value;

use crate::harness::{CliTest, fixture_model};

fn report(arguments: &[&str]) -> Value {
    let text = CliTest::new().succeeds(&[&["bench", "--json", "--quiet", "--repetitions", "1"], arguments].concat());
    serde_json::from_str(&text).expect("it is JSON")
}

#[track_caller]
fn assert_positive(value: &Value, keys: &[&str]) {
    for key in keys {
        let number = value[key].as_f64().unwrap_or_else(|| panic!("`{key}` is no number in {value}"));
        assert!(number.is_finite() && number > 0.0, "`{key}` is {number}");
    }
}

#[test]
fn a_preset_is_measured_in_training_and_sampling() {
    let sizes = ["--batch-size", "2,1", "--length", "16", "--generate-batch", "1,3"];
    let found = report(&[&["--preset", "gpt2-tiny", "--prompt-tokens", "8", "--new-tokens", "4"], &sizes[..]].concat());
    assert_positive(&found["machine"], &["cores", "threads", "matrix_gflops_f32", "read_gb_s"]);
    assert!(found["machine"].as_object().expect("an object").contains_key("cpu"));
    assert_eq!((&found["model"]["name"], &found["model"]["parameters"]), (&"gpt2-tiny".into(), &3_945_984.into()));
    assert_positive(&found["model"], &["trunk_matrices", "head_matrix"]);
    let training = found["training"].as_array().expect("a list");
    assert_eq!(training.iter().map(|row| row["batch_size"].as_u64()).collect::<Vec<_>>(), [Some(2), Some(1)]);
    for row in training {
        assert_positive(row, &["length", "micro_batch_tokens", "step_s", "tokens_per_s", "gflops", "fraction_of_peak"]);
        let tokens = row["batch_size"].as_f64().expect("a number") * 16.0;
        let rate = row["tokens_per_s"].as_f64().expect("a number") * row["step_s"].as_f64().expect("a number");
        assert!((rate - tokens).abs() < 1e-6, "{row}");
    }
    let generation = found["generation"].as_array().expect("a list");
    assert_eq!(generation.iter().map(|row| row["batch_size"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)]);
    for row in generation {
        assert_positive(row, &["seconds", "tokens_per_s", "prompt_tokens_per_s"]);
        assert_positive(row, &["prompt_tokens", "new_tokens", "fraction_of_peak"]);
        // Noise may hide the time of three tokens.
        for key in ["decode_tokens_per_s", "fraction_of_bandwidth"] {
            let is_measured = row[key].as_f64().is_some_and(|number| number.is_finite() && number > 0.0);
            assert!(is_measured || row.get(key).is_some_and(Value::is_null), "`{key}`: {row}");
        }
    }
}

#[test]
fn a_model_directory_is_measured_and_parts_are_left_out() {
    let model = fixture_model("qwen3");
    let found = report(&["--model", &model, "--no-generation", "--length", "8"]);
    assert_eq!(found["training"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["generation"], Value::Array(Vec::new()));
    assert_eq!(found["model"]["name"], model.as_str());
}

#[test]
fn an_adapter_is_measured() {
    let sizes = ["--preset", "gpt2-tiny", "--no-generation", "--batch-size", "2", "--length", "16"];
    let found = report(&[&sizes[..], &["--lora-rank", "4", "--frozen-weights", "int8"]].concat());
    // In each of four layers, those of attention map 256 numbers to 768, and 256 to 256.
    let parameters = 4 * 4 * (256 + 768 + 256 + 256);
    let expected = serde_json::json!({ "rank": 4, "parameters": parameters, "frozen_weights": "int8" });
    assert_eq!(found["model"]["adapter"], expected);
    assert_positive(&found["training"][0], &["step_s", "tokens_per_s", "gflops", "fraction_of_peak"]);
    assert_eq!(report(&sizes)["model"]["adapter"], Value::Null);
}

#[test]
fn what_cannot_be_measured_is_refused_at_once() {
    let test = CliTest::new();
    test.fails(
        &["bench", "--preset", "gpt3"],
        1,
        "error: there is no preset `gpt3`\nhint: the presets are `gpt2`, `gpt2-tiny`, `gemma-3-270m`, `qwen2.5-0.5b`, `qwen3-0.6b`\n",
    );
    test.fails(
        &["bench", "--quiet", "--preset", "gpt2-tiny", "--length", "2000"],
        1,
        "error: sequences of 2000 tokens exceed the model's 1024 positions\n\
         hint: lower `--length`\n",
    );
    test.fails(
        &["bench", "--quiet", "--preset", "gpt2-tiny", "--prompt-tokens", "1000", "--new-tokens", "25"],
        1,
        "error: sequences of 1025 tokens exceed the model's 1024 positions\n\
         hint: lower `--prompt-tokens` or `--new-tokens`\n",
    );
    assert_eq!(test.run(&["bench", "--preset", "gpt2", "--model", "."]).code, 2);
}
