//! Adapters on the command line: training, use, continued training and merging.

use serde_json::Value;

use crate::harness::{CliTest, fixture_model};

const ROWS: &str = "{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n{\"prompt\": \"The cup is\", \"completion\": \" warm.\"}\n";
const PAIRS: &str = "{\"prompt\": \"The tea is\", \"chosen\": \" good.\", \"rejected\": \" bad.\"}\n\
                     {\"prompt\": \"The cup is\", \"chosen\": \" warm.\", \"rejected\": \" cold.\"}\n";
const SHORT: [&str; 7] = ["--max-steps", "2", "--batch-size", "2", "--no-shuffle", "--quiet", "--learning-rate=0.1"];

fn logprobs(lines: &str) -> Vec<f64> {
    let sum = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["sum"].as_f64().expect("a number");
    lines.lines().map(sum).collect()
}

#[test]
fn an_adapter_is_trained_used_and_merged() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let model = fixture_model("gpt2");
    let train = ["sft", "--model", &model, "--data", "rows.jsonl", "--output-dir", "run", "--lora-rank", "4"];
    test.succeeds(&[&train[..], &SHORT].concat());
    assert!(test.path().join("run/model/adapter_model.safetensors").is_file());
    assert!(!test.path().join("run/model/model.safetensors").exists());

    let score =
        |arguments: &[&str]| logprobs(&test.succeeds(&[&["score", "--data", "rows.jsonl"], arguments].concat()));
    let plain = score(&["--model", &model]);
    let named = score(&["--model", &model, "--adapter", "run/model"]);
    assert!(plain.iter().zip(&named).all(|(a, b)| (a - b).abs() > 1e-3), "{plain:?} {named:?}");
    assert_eq!(score(&["--model", "run/model"]), named, "an adapter's directory stands for its base with it");

    let merge = ["merge", "--model", &model, "--adapter", "run/model", "--output", "merged"];
    let stdout = test.succeeds(&merge);
    assert!(stdout.starts_with("merged\nlargest difference of a logit, merged against unmerged: "), "{stdout}");
    let merged = score(&["--model", "merged"]);
    assert!(merged.iter().zip(&named).all(|(a, b)| (a - b).abs() <= 1e-5), "{merged:?} {named:?}");
    let report: Value =
        serde_json::from_str(&test.succeeds(&["merge", "--model", "run/model", "--output", "again", "--json"]))
            .expect("JSON");
    assert!(report["largest_difference"].as_f64().expect("a number") <= 1e-4, "{report}");
    // Fewer bits round the weights more.
    let difference = |weights: &str| {
        let merge = ["merge", "--model", "run/model", "--output", weights, "--weights", weights, "--json"];
        let report: Value = serde_json::from_str(&test.succeeds(&merge)).expect("JSON");
        report["largest_difference"].as_f64().expect("a number")
    };
    let [whole, half, brain] = ["f32", "f16", "bf16"].map(difference);
    assert!(whole < half && half < brain, "{whole} {half} {brain}");

    // As GGUF, an adapter is exported with its base. The numbers, which come last in the file, are those of the merged model.
    let exported = |model: &str, output: &str| {
        let stdout = test.succeeds(&["export", "--model", model, "--weights", "f32", "--output", output]);
        assert!(stdout.starts_with(&format!("{output}: gpt2 in f32, ")), "{stdout}");
        std::fs::read(test.path().join(output)).expect("a file")
    };
    let (one, other) = (exported("run/model", "one.gguf"), exported("merged", "other.gguf"));
    let half = one.len() / 2;
    assert_eq!(one[one.len() - half..], other[other.len() - half..]);
    let run = test.run(&["export", "--model", "merged", "--output", "one.gguf"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("error: `one.gguf` exists; `--overwrite` replaces it"), "{}", run.stderr);
    test.succeeds(&["export", "--model", "merged", "--weights", "f32", "--output", "one.gguf", "--overwrite"]);
    test.succeeds(&["merge", "--model", "run/model", "--output", "merged", "--overwrite"]);
    let run = test.run(&["merge", "--model", "run/model", "--output", "run/model", "--overwrite"]);
    assert!(run.code == 2 && run.stderr.contains("`run/model` is an input and would be replaced"), "{run:?}");

    let sample =
        ["generate", "--model", &model, "--adapter", "run/model", "--prompts", "rows.jsonl", "--max-new-tokens", "3"];
    assert_eq!(test.succeeds(&sample).lines().count(), 2);
}

#[test]
fn an_adapter_is_gone_on_with_and_a_reward_model_keeps_its_head() {
    let test = CliTest::with("rows.jsonl", ROWS);
    test.write("pairs.jsonl", PAIRS);
    let model = fixture_model("qwen3");
    let reward =
        ["reward", "--model", &model, "--data", "pairs.jsonl", "--output-dir", "rm", "--lora-targets", "all-linear"];
    test.succeeds(&[&reward[..], &SHORT].concat());
    let rows = test.succeeds(&["score", "--reward-model", "rm/model", "--data", "rows.jsonl"]);
    assert_eq!(rows.lines().count(), 2, "{rows}");

    let first = ["sft", "--model", &model, "--data", "rows.jsonl", "--output-dir", "first", "--lora-dora"];
    test.succeeds(&[&first[..], &SHORT].concat());
    let again = ["grpo", "--model", "first/model", "--data", "rows.jsonl", "--output-dir", "again"];
    let online = ["--reward-model", "rm/model", "--max-new-tokens", "4"];
    test.succeeds(&[&again[..], &online, &SHORT].concat());
    let config: Value = serde_json::from_str(&test.read("again/model/adapter_config.json")).expect("JSON");
    assert_eq!((&config["use_dora"], &config["r"]), (&true.into(), &16.into()));
}

#[test]
fn what_cannot_be_is_said() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let model = fixture_model("gpt2");
    let train = ["sft", "--model", &model, "--data", "rows.jsonl", "--output-dir", "run", "--lora-rank", "4"];
    test.succeeds(&[&train[..], &SHORT].concat());
    test.fails(
        &["sft", "--model", "run/model", "--data", "rows.jsonl", "--output-dir", "b", "--lora-rank", "4", "--quiet"],
        1,
        "
error: `run/model` is an adapter already, but `lora` requests a new one
hint: leave `lora` out to continue it, or merge it into its base first: `gradus merge --model run/model --output DIR`
",
    );
    test.fails(
        &["dpo", "--model", &model, "--data", "rows.jsonl", "--lora-dropout", "0.1", "--lora-rank", "0"],
        2,
        "
error: `lora.rank` is 0, but must be at least 1
  --> flag `--lora-rank`

error: `lora.dropout` is 0.1, but dpo compares logprobs of one text under several models: dropout would make them differ at random
  --> flag `--lora-dropout`
hint: leave it out; it is for `sft`, `reward`, `classify`, `orpo`, `cpo`, `simpo`, `ppo`, `nlpo`, `a2c`, `grpo` and `rloo`
",
    );
    test.fails(
        &["sft", "--model", &model, "--data", "rows.jsonl", "--output-dir", "c", "--lora-targets", "q_proj", "--quiet"],
        1,
        "
error: no linear layer of the model is called `q_proj`
hint: its linear layers end in c_attn, c_fc, c_proj; `all-linear` takes them all
",
    );
    let merge = test.run(&["merge", "--model", &model, "--output", "merged"]);
    assert!(merge.stderr.contains("this is a whole model: there is no adapter to merge"), "{}", merge.stderr);
    test.write("taken/notes.txt", "mine");
    test.fails(
        &["merge", "--model", "run/model", "--output", "taken", "--quiet"],
        2,
        "
error: output directory `taken` exists and is not empty
hint: choose another `--output`, or replace the model in it with `--overwrite`
",
    );
}
