//! `gradus compare`: rejected arguments, and a comparison from start to finish.

use serde_json::Value;

use crate::harness::{CliTest, fixture_model};

#[test]
fn a_comparison_needs_methods_that_make_policies() {
    CliTest::new().fails(
        &["compare", "--model", "m", "--data", "d"],
        2,
        "
error: no methods to compare
hint: `--methods dpo,ppo,grpo`, or `methods:` in the file
",
    );
    CliTest::new().fails(
        &["compare", "--model", "m", "--data", "d", "--methods", "dpo,reward"],
        2,
        "
error: `reward` does not train a policy, and only policies can be compared
  --> flag `--methods`
hint: the methods are `sft`, `dpo`, `orpo`, `cpo`, `simpo`, `kto`, `distill`, `ppo`, `nlpo`, `a2c`, `trpo`, `grpo` and `rloo`
",
    );
    CliTest::new().fails(
        &["compare", "--model", "m", "--data", "d", "--methods", "dpo,sft", "--max-new-tokens", "8"],
        2,
        "
error: `--max-new-tokens` is not a key of `dpo`, `sft`
  --> flag `--max-new-tokens`
",
    );
    CliTest::with("three.yml", "model: m\ndata: d\nmethods:\n  dpo: { betta: 1 }\n").fails(
        &["compare", "three.yml"],
        2,
        "
error: unknown key `betta` in `method.dpo`
  --> three.yml:4:10
   |
 4 |   dpo: { betta: 1 }
   |          ^^^^^
hint: did you mean `beta`?
",
    );
    CliTest::new().fails(&["compare", "--runs", "nowhere"], 1, "error: run directory `nowhere` does not exist\n");
}

#[test]
fn methods_are_compared_and_finished_runs_too() {
    let row =
        |i: usize| format!("{{\"prompt\": \"The cup {i}\", \"chosen\": \" is warm.\", \"rejected\": \" is cold.\"}}\n");
    let test = CliTest::with("pairs.jsonl", &(0..16).map(row).collect::<String>());
    let model = fixture_model("qwen3");
    let shared = [
        "--model",
        &model,
        "--data",
        "pairs.jsonl",
        "--reward-rule-length-target",
        "4",
        "--max-steps",
        "1",
        "--batch-size",
        "2",
    ];
    let own = [
        "--methods",
        "dpo,grpo",
        "--max-new-tokens",
        "4",
        "--group-size",
        "2",
        "--eval-fraction",
        "0.25",
        "--output-dir",
        "two",
    ];
    let arguments = [&["compare", "--quiet"][..], &shared, &own].concat();
    let table = test.succeeds(&arguments);
    let first: Vec<&str> = table.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim).collect();
    assert_eq!(first, ["method", "------", "start", "dpo", "grpo"], "{table}");
    assert!(test.read("two/comparison/comparison.md").contains(table.trim()));
    assert!(test.read("two/grpo/config.yml").contains("max_new_tokens: 4"));

    let json = test.succeeds(&["compare", "--runs", "two/dpo,two/grpo", "--output-dir", "again", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["entries"].as_array().map(Vec::len), Some(3));
    assert!(test.path().join("again/comparison/report.html").is_file());
}
