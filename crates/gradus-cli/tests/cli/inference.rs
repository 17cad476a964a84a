//! `gradus generate`, `gradus score` and `gradus eval`. Expected numbers: transformers 5.23.0 on the same directories.

use serde_json::Value;

use crate::harness::{CliTest, fixture_model};

/// Logprobs of " good and warm." after "The tea is" by the fixture `gpt2`.
const LOGPROBS: [f64; 9] = [
    -6.424187457071747,
    -7.464579408585634,
    -4.022359887462572,
    -6.720827748658926,
    -7.099895835701701,
    -5.743338014263185,
    -6.617431962331811,
    -6.494244090418328,
    -7.274071199020419,
];
/// Sampler, trainer and transformers agree within this in f32.
const TOLERANCE: f64 = 1e-4;

const ROW: &str = "{\"prompt\": \"The tea is\", \"completion\": \" good and warm.\"}\n";

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[track_caller]
fn assert_close(found: &Value, expected: f64) {
    let found = found.as_f64().expect("a number");
    assert!((found - expected).abs() < TOLERANCE, "{found} is not {expected}");
}

#[test]
fn score_prints_the_logprobs_of_each_completion() {
    let test = CliTest::with("rows.jsonl", &ROW.repeat(2));
    let rows = lines(&test.succeeds(&["score", "--model", &fixture_model("gpt2"), "--data", "rows.jsonl"]));
    assert_eq!(rows.len(), 2);
    for row in &rows {
        let logprobs = row["logprobs"].as_array().expect("a list");
        assert_eq!(logprobs.len(), LOGPROBS.len());
        for (found, expected) in logprobs.iter().zip(LOGPROBS) {
            assert_close(found, expected);
        }
        assert_close(&row["sum"], -57.86093560351433);
        assert_close(&row["mean"], -6.428992844834926);
        assert_eq!(row.as_object().expect("an object").len(), 3);
    }
}

#[test]
fn score_takes_tokens_with_a_mask() {
    let row = "{\"input_ids\": [282, 262, 73, 69, 275, 290, 83], \"completion_mask\": [0, 0, 0, 0, 0, 1, 1]}\n";
    let test = CliTest::with("rows.jsonl", row);
    let rows = lines(&test.succeeds(&["score", "--model", &fixture_model("gpt2"), "--data", "rows.jsonl"]));
    assert_close(&rows[0]["logprobs"][0], LOGPROBS[0]);
    assert_close(&rows[0]["logprobs"][1], LOGPROBS[1]);
}

#[test]
fn score_prints_rewards_and_adds_nothing_unless_told() {
    let test = CliTest::with("rows.jsonl", ROW);
    let model = fixture_model("qwen3-reward");
    let score = |more: &[&str]| {
        lines(&test.succeeds(&[&["score", "--reward-model", &model, "--data", "rows.jsonl"], more].concat()))
    };
    assert_close(&score(&[])[0]["reward"], 0.3626072406768799);
    assert_close(&score(&["--add-eos"])[0]["reward"], -1.2538586854934692);
}

#[test]
fn score_says_what_is_wrong() {
    let test = CliTest::with("rows.jsonl", "{\"prompt\": \"a\"}\n");
    let run = test.run(&["score", "--data", "rows.jsonl"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    let run = test.run(&["score", "--model", &fixture_model("gpt2"), "--data", "rows.jsonl"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(
        run.stderr.starts_with("error: rows.jsonl:1: missing column `completion` (found `prompt`)"),
        "{}",
        run.stderr
    );
    test.fails(
        &["score", "--model", "./nowhere", "--data", "rows.jsonl"],
        1,
        "error: ./nowhere: no such model directory\nhint: a model directory holds `config.json` and `model.safetensors`\n",
    );
}
