//! Training commands: what is refused before anything is loaded, and small runs from start to finish.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{CliTest, fixture_model};

const TEXTS: &str = "{\"text\": \"The tea is good.\"}\n{\"text\": \"The kettle is warm.\"}\n";
const PAIRS: &str = "{\"prompt\": \"The tea is\", \"chosen\": \" good.\", \"rejected\": \" bad.\"}\n\
                     {\"prompt\": \"The cup is\", \"chosen\": \" warm.\", \"rejected\": \" cold.\"}\n";
const PROMPTS: &str = "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"The cup is\"}\n";

#[test]
fn a_wrong_flag_reads_like_a_wrong_line() {
    CliTest::new().fails(
        &["ppo", "--model", "m", "--data", "d", "--reward-model", "rm", "--clip-range", "wide"],
        2,
        "
error: `method.ppo.clip_range` is the word `wide`, but a number is needed
  --> flag `--clip-range`
",
    );
    CliTest::new().fails(
        &["grpo", "--model", "m", "--data", "d", "--reward-model", "rm", "--loss-type", "gpro", "--no-shuffle"],
        2,
        "
error: `method.grpo.loss_type` is the word `gpro`, but one of `grpo`, `dr_grpo`, `bnpo`, `dapo` is needed
  --> flag `--loss-type`
hint: did you mean `grpo`?
",
    );
}

#[test]
fn what_is_missing_is_named_as_a_flag() {
    CliTest::new().fails(
        &["dpo"],
        2,
        "
error: `model` is missing
hint: pass `--model`

error: `data` is missing
hint: pass `--data`
",
    );
}

#[test]
fn a_file_for_another_method() {
    CliTest::with("dpo.yml", "model: m\ndata: d\nmethod: { dpo: {} }\n").fails(
        &["sft", "--config", "dpo.yml"],
        2,
        "
error: the file configures `dpo`, but the command is `gradus sft`
  --> dpo.yml:3:11
   |
 3 | method: { dpo: {} }
   |           ^^^
hint: run `gradus dpo` or `gradus train FILE`
",
    );
}

#[test]
fn problems_in_file_and_flags_are_shown_together() {
    CliTest::with("ppo.yml", "model: m\ndata: d\nmethod: { ppo: { kl: { target: 6 } } }\nreward: { model: rm }\n")
        .fails(
            &["train", "ppo.yml", "--batch-size", "0", "--learning-rate=-1"],
            2,
            "
error: `train.batch_size` is 0, but must be at least 1
  --> flag `--batch-size`

error: `train.learning_rate` is -1, but must be at least 0
  --> flag `--learning-rate`
",
        );
}

#[test]
fn output_directories_that_cannot_be_used() {
    let test = CliTest::with("rows.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let run =
        |directory: &str| test.run(&["sft", "--model", &model, "--data", "rows.jsonl", "--output-dir", directory]);
    test.write("full/notes.txt", "mine");
    assert_eq!(
        run("full").stderr,
        "error: output directory `full` exists and is not empty\n\
         hint: go on with `--resume`, replace it with `--overwrite`, or choose another `--output-dir`\n"
    );
    assert_eq!(
        run("rows.jsonl").stderr,
        "error: output directory `rows.jsonl` is a file\nhint: choose another `--output-dir`\n"
    );
    let unwritable = run("rows.jsonl/run");
    assert_eq!(unwritable.code, 1);
    assert!(
        unwritable.stderr.starts_with("error: output directory `rows.jsonl/run` cannot be written: Not a directory"),
        "{}",
        unwritable.stderr
    );
    assert_eq!(test.read("full/notes.txt"), "mine");
}

#[test]
fn data_that_is_empty() {
    let test = CliTest::with("empty.jsonl", "");
    let run = test.run(&["sft", "--model", &fixture_model("gpt2"), "--data", "empty.jsonl", "--quiet"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert_eq!(run.stderr, "error: empty.jsonl: no rows: the data set is empty\n");
}

/// The logged steps of a run.
fn steps(test: &CliTest, directory: &str) -> Vec<Value> {
    let text = test.read(&format!("{directory}/metrics.jsonl"));
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn evaluations_search_with_beams_and_leave_training_as_it_is() {
    let test = CliTest::with("prompts.jsonl", PROMPTS);
    let model = fixture_model("gpt2");
    let run = |directory: &str, more: &[&str]| {
        let arguments = ["grpo", "--model", &model, "--data", "prompts.jsonl", "--eval-data", "prompts.jsonl"];
        let reward =
            ["--reward-rule-regex", "e", "--max-new-tokens", "6", "--eval-steps", "1", "--kl-coefficient", "0"];
        let short =
            ["--max-steps", "2", "--batch-size", "2", "--group-size", "2", "--output-dir", directory, "--quiet"];
        test.succeeds(&[&arguments[..], &reward, &short, more].concat());
        steps(&test, directory)
    };
    let (sampled, searched) = (run("sampled", &[]), run("searched", &["--sampling-evaluation-beams-num-beams", "3"]));
    for (sampled, searched) in sampled.iter().zip(&searched) {
        for key in ["loss", "grad_norm", "reward"] {
            assert_eq!(sampled[key], searched[key], "{key}");
        }
    }
    // What the evaluation after the last step found is what a search by the model that it left finds.
    let prompts = ["generate", "--model", "searched/model", "--prompts", "prompts.jsonl", "--max-new-tokens", "6"];
    let found = test.succeeds(&[&prompts[..], &["--temperature", "0", "--num-beams", "3"]].concat());
    let completions = |text: &str, key: &str| -> BTreeSet<String> {
        let rows = text.lines().flat_map(|line| match serde_json::from_str(line).expect("JSON") {
            Value::Array(rows) => rows,
            row => vec![row],
        });
        rows.map(|row| row[key].as_str().expect("a completion").to_owned()).collect()
    };
    let evaluated = |name: &str| {
        let rollouts = ["--json", "runs", "--runs-dir", ".", "rollouts", name, "--eval", "--step", "2"];
        completions(&test.succeeds(&rollouts), "completion")
    };
    assert_eq!(evaluated("searched"), completions(&found, "completion"));
    assert_ne!(evaluated("sampled"), completions(&found, "completion"));
}

#[test]
fn every_method_trains_and_prints_its_directory() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    test.write("pairs.jsonl", PAIRS);
    test.write("prompts.jsonl", PROMPTS);
    let model = fixture_model("gpt2");
    let common = ["--max-steps", "2", "--batch-size", "2", "--no-shuffle", "--quiet"];
    let reward = ["--reward-rule-length-target", "3", "--max-new-tokens", "4"];
    for (method, data, more) in [
        ("sft", "texts.jsonl", &[][..]),
        ("reward", "pairs.jsonl", &[]),
        ("dpo", "pairs.jsonl", &["--loss-type", "ipo"]),
        ("ppo", "prompts.jsonl", &reward),
        ("grpo", "prompts.jsonl", &reward),
    ] {
        let directory = format!("run-{method}");
        let arguments = [&[method, "--model", &model, "--data", data, "--output-dir", &directory], &common[..], more];
        assert_eq!(test.succeeds(&arguments.concat()), format!("{directory}\n"), "{method}");
        let steps = steps(&test, &directory);
        assert_eq!(steps.iter().map(|row| row["step"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)], "{method}");
        for key in ["loss", "learning_rate", "grad_norm", "tokens_per_s"] {
            assert!(steps[0][key].is_number(), "{method} logs no `{key}`: {}", steps[0]);
        }
        assert!(test.read(&format!("{directory}/config.yml")).contains("  batch_size: 2 # set"), "{method}");
    }
    // What was trained can be used.
    let rows = test.succeeds(&["score", "--reward-model", "run-reward/model", "--data", "texts.jsonl"]);
    assert_eq!(rows.lines().count(), 2, "{rows}");
    let sample = ["generate", "--model", "run-ppo/model", "--prompts", "prompts.jsonl", "--max-new-tokens", "3"];
    assert_eq!(test.succeeds(&sample).lines().count(), 2);
}

#[test]
fn a_run_is_resumed_from_its_directory_alone() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "run", "--quiet"];
    test.succeeds(&[&arguments[..], &["--max-steps", "2", "--batch-size", "1"]].concat());
    test.succeeds(&["sft", "--output-dir", "run", "--resume", "--max-steps", "3", "--quiet"]);
    let steps = steps(&test, "run");
    assert_eq!(steps.last().expect("steps")["step"], 3);
    assert!(test.read("run/config.yml").contains("  batch_size: 1 # set"));
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_a_checkpoint_and_goes_on() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "run", "--max-steps", "100000"];
    let child = test.command(&arguments).stderr(std::process::Stdio::piped()).spawn().expect("the binary runs");
    let metrics = test.path().join("run/metrics.jsonl");
    let lines = || std::fs::read_to_string(&metrics).unwrap_or_default().lines().count();
    for _ in 0..600 {
        if lines() >= 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(lines() >= 2, "no step was logged in a minute");
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("`kill` runs").success());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.ends_with("interrupted; a checkpoint holds everything: go on with `--resume`\n"), "{stderr}");

    let done = lines();
    let more = (done + 2).to_string();
    test.succeeds(&["sft", "--output-dir", "run", "--resume", "--max-steps", &more, "--quiet"]);
    let numbers: Vec<_> = steps(&test, "run").iter().map(|row| row["step"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=done as u64 + 2).collect::<Vec<_>>());
}
