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
    for unread in [&["--learning-rate", "3"][..], &["--resume"], &["--overwrite"], &["--no-shuffle"], &["--model", "m"]]
    {
        let run = CliTest::new().run(&[&["compare", "--runs", "nowhere"][..], unread].concat());
        assert!(run.code == 2 && run.stderr.contains("cannot be used with"), "{unread:?}: {run:?}");
    }
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

    // Finished runs are kept, with the settings that they have.
    let numbers = test.read("two/comparison/comparison.md");
    let resume = [&["compare", "--quiet", "--resume"][..], &shared, &own].concat();
    for (flag, value, key) in [
        ("--seed", "7", "train.seed"),
        ("--max-steps", "2", "train.max_steps"),
        ("--learning-rate", "1", "train.learning_rate"),
    ] {
        let mut changed = resume.clone();
        match changed.iter().position(|argument| *argument == flag) {
            Some(at) => changed[at + 1] = value,
            None => changed.extend([flag, value]),
        }
        let run = test.run(&changed);
        assert_eq!(run.code, 2, "{}", run.stderr);
        for method in ["dpo", "grpo"] {
            let found = format!("but the run in `two/{method}` was started with ");
            assert!(
                run.stderr.contains(&format!("error: `{key}` is ")) && run.stderr.contains(&found),
                "{}",
                run.stderr
            );
        }
        assert!(run.stderr.contains("start a new comparison with another `--output-dir`"), "{}", run.stderr);
    }
    // So are those of a run that has a checkpoint but did not finish.
    std::fs::remove_file(test.path().join("two/dpo/results.json")).expect("it can be removed");
    let run = test.run(&[&resume[..], &["--beta", "0.5"]].concat());
    let found = "error: `method.dpo.beta` is 0.5, but the run in `two/dpo` was started with 0.1: runs of one comparison \
                 share their settings\n";
    assert!(run.code == 2 && run.stderr.starts_with(found), "{}", run.stderr);
    assert_eq!(test.read("two/comparison/comparison.md"), numbers);
    test.succeeds(&[&resume[..], &["--save-steps", "7"]].concat());
}
