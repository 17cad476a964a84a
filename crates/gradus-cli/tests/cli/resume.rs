//! Resuming a run: what it takes from its checkpoint, what it rejects, and which checkpoint it uses.

use gradus::run::checksums::{CHECKSUMS_FILE, Checksums};

use crate::harness::{CliTest, fixture_model};

const TEXTS: &str = "{\"text\": \"The tea is good.\"}\n{\"text\": \"The kettle is warm.\"}\n";

/// A run of four steps with checkpoints after two and four.
fn run() -> CliTest {
    let test = CliTest::with("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "run", "--max-steps", "4"];
    test.succeeds(&[&arguments[..], &["--save-steps", "2", "--batch-size", "1", "--quiet"]].concat());
    test
}

const RESUME: [&str; 4] = ["sft", "--output-dir", "run", "--resume"];

fn refused(test: &CliTest, more: &[&str]) -> (i32, String) {
    let run = test.run(&[&RESUME[..], more].concat());
    (run.code, run.stderr)
}

#[test]
fn what_is_given_again_lies_over_what_the_checkpoint_says() {
    let test = run();
    let config = test.read("run/config.yml");
    test.succeeds(&[&RESUME[..], &["--quiet"]].concat());
    assert_eq!(test.read("run/config.yml"), config, "nothing was given, nothing has changed");

    let run = test.run(&[&RESUME[..], &["--max-steps", "6", "--save-steps", "3"]].concat());
    let changed = "warning: `train.max_steps` was 4 and is 6 from this step on: the result differs from a run with \
                   either value from the start";
    assert!(run.code == 0 && run.stderr.contains(changed), "{}", run.stderr);
    let log = test.read("run/log.txt");
    assert!(log.contains(changed), "{log}");
    assert!(log.contains("`train.save_steps` was 2 and is 3 from this step on\n"), "{log}");
    assert!(test.read("run/config.yml").contains("  max_steps: 6 # set"));
    assert!(test.read("run/config.yml").contains("  batch_size: 1 # set"));
    assert!(test.read("run/checkpoints/step-000006/run_config.yml").contains("  save_steps: 3 # set"));
}

/// Returns a `config.yml` as versions before the block `quirks` wrote it.
fn before_quirks(text: &str) -> String {
    let mut is_within = false;
    let line = |line: &str| {
        is_within = line == "    quirks:" || (is_within && line.starts_with("      "));
        match is_within {
            true => line.strip_prefix("  ").filter(|line| *line != "  quirks:").map(|line| format!("{line}\n")),
            false => Some(format!("{line}\n")),
        }
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn a_run_of_an_earlier_version_resumes_and_then_has_the_new_keys() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"The kettle is\"}\n");
    let model = fixture_model("gpt2");
    let start =
        ["ppo", "--model", &model, "--data", "prompts.jsonl", "--output-dir", "run", "--reward-rule-regex", "e"];
    let sizes = ["--max-new-tokens", "2", "--batch-size", "2", "--max-steps", "2", "--save-steps", "1", "--quiet"];
    let quirks = ["--quirks-part-size", "1", "--whiten-rewards", "--quirks-whitening-rewards", "biased"];
    test.succeeds(&[&start[..], &sizes, &quirks].concat());
    let of_checkpoint = "run/checkpoints/step-000002/run_config.yml";
    let config = test.read("run/config.yml");
    for file in ["run/config.yml", of_checkpoint] {
        test.write(file, &before_quirks(&test.read(file)));
    }
    let checkpoint = test.path().join("run/checkpoints/step-000002");
    std::fs::remove_file(checkpoint.join(CHECKSUMS_FILE)).expect("it can be removed");
    Checksums::of(&checkpoint).and_then(|sums| sums.write(&checkpoint)).expect("checksums can be written");
    let old = test.read(of_checkpoint);
    assert!(old.contains("\n    part_size: 1 # set\n") && !old.contains("quirks:"), "{old}");

    let run = test.run(&["ppo", "--output-dir", "run", "--resume", "--max-steps", "3", "--quiet"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let warnings = run.stderr.lines().filter(|line| line.contains("place has changed")).count();
    assert_eq!(warnings, 1, "{}", run.stderr);
    assert!(run.stderr.contains(": `method.ppo.part_size` is now `method.ppo.quirks.part_size`"), "{}", run.stderr);
    assert!(!run.stderr.contains("sum_parts"), "only keys that were set: {}", run.stderr);
    assert_eq!(test.read("run/config.yml"), config.replace("  max_steps: 2 # set", "  max_steps: 3 # set"));
}

/// A fixed and an adaptive coefficient.
#[test]
fn a_changed_kl_coefficient_takes_effect() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"The kettle is\"}\n");
    let model = fixture_model("gpt2");
    for (directory, controller) in [("fixed", [].as_slice()), ("adaptive", &["--kl-target", "1", "--kl-rate", "0.1"])] {
        let start = ["ppo", "--model", &model, "--data", "prompts.jsonl", "--output-dir", directory, "--quiet"];
        let rest = ["--reward-rule-regex", "e", "--max-new-tokens", "2", "--batch-size", "2", "--max-steps", "2"];
        test.succeeds(&[&start[..], &rest, &["--kl-coefficient", "0.1"], controller].concat());
        let last = || {
            let text = test.read(&format!("{directory}/metrics.jsonl"));
            let row: serde_json::Value = serde_json::from_str(text.lines().last().expect("a row")).expect("JSON");
            row["kl_coef"].as_f64().expect("a number")
        };
        let resume = ["ppo", "--output-dir", directory, "--resume", "--quiet", "--max-steps"];
        test.succeeds(&[&resume[..], &["3"]].concat());
        assert_eq!(last() == 0.1, directory == "fixed", "{directory}: {}", last());
        test.succeeds(&[&resume[..], &["4", "--kl-coefficient", "0.3"]].concat());
        assert_eq!(last(), 0.3, "{directory}");
    }
}

#[test]
fn a_finished_run_goes_on_only_to_further_steps() {
    let test = run();
    let config = test.read("run/config.yml");
    let hint = "hint: pass `--max-steps N` with N above 4 to train further; other settings need a new run with another \
                `--output-dir`\n";
    // `max_steps` decides the length, so more epochs add no step.
    for more in [["--learning-rate", "1e-3"], ["--max-steps", "3"], ["--epochs", "9"]] {
        let (code, stderr) = refused(&test, &more);
        assert_eq!((code, stderr), (1, format!("error: `run` has finished all 4 steps\n{hint}")), "{more:?}");
        assert_eq!(test.read("run/config.yml"), config, "it names the settings that the steps had");
    }
    test.succeeds(&[&RESUME[..], &["--max-steps", "5", "--learning-rate", "1e-3", "--quiet"]].concat());
}

#[test]
fn a_run_is_not_resumed_to_fewer_steps_than_it_has_done() {
    let test = run();
    let config = test.read("run/config.yml");
    let state = test.read("run/state.json").replace("\"finished\"", "\"interrupted\"");
    test.write("run/state.json", &state);
    let error = |steps: usize, done: usize| {
        format!(
            "error: `train.max_steps` is {steps}, but the run resumes after step {done}\n  --> flag `--max-steps`\n\
             hint: pass `--max-steps N` with N above {done}, or leave it out\n"
        )
    };
    assert_eq!(refused(&test, &["--max-steps", "3"]), (2, error(3, 4)));
    // Equal is too few as well: nothing would be trained.
    assert_eq!(refused(&test, &["--resume-from", "2", "--max-steps", "2"]), (2, error(2, 2)));
    let from = "run/checkpoints/step-000002";
    let branch = test.run(&["sft", "--resume-from", from, "--output-dir", "other", "--max-steps", "1"]);
    assert_eq!((branch.code, branch.stderr), (2, error(1, 2)));
    assert_eq!(test.read("run/config.yml"), config);
    assert_eq!(test.read("run/state.json"), state);
    test.succeeds(&["sft", "--output-dir", "run", "--resume-from", "2", "--max-steps", "3", "--quiet"]);
    assert!(test.read("run/config.yml").contains("  max_steps: 3 # set"));
}

#[test]
fn a_run_that_stopped_early_goes_on_with_more_patience() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let start =
        ["sft", "--model", &model, "--data", "texts.jsonl", "--eval-data", "texts.jsonl", "--output-dir", "run"];
    let steps = ["--max-steps", "6", "--batch-size", "1", "--learning-rate", "1e-30", "--eval-steps", "1", "--quiet"];
    test.succeeds(&[&start[..], &steps, &["--early-stopping-patience", "2"]].concat());
    let config = test.read("run/config.yml");
    let error = "error: `run` stopped early at step 2 of 6\n\
                 hint: pass `--early-stopping-patience N` with N above 2, or 0 for no early stop, to train further; other \
                 settings need a new run with another `--output-dir`\n";
    for more in [["--max-steps", "9"], ["--learning-rate", "1e-3"], ["--early-stopping-patience", "1"]] {
        assert_eq!(refused(&test, &more), (1, error.to_owned()), "{more:?}");
        assert_eq!(test.read("run/config.yml"), config);
    }
    let last = || {
        let text = test.read("run/metrics.jsonl");
        let row: serde_json::Value = serde_json::from_str(text.lines().last().expect("a row")).expect("JSON");
        row["step"].clone()
    };
    test.succeeds(&[&RESUME[..], &["--early-stopping-patience", "4", "--quiet"]].concat());
    assert_eq!(last(), 4);
    test.succeeds(&[&RESUME[..], &["--early-stopping-patience", "0", "--quiet"]].concat());
    // All steps are done, and the patience is used up as well.
    let (code, stderr) = refused(&test, &["--early-stopping-patience", "3"]);
    let hint =
        "hint: pass `--max-steps N` with N above 6 and `--early-stopping-patience N` with N above 6, or 0 for no";
    assert!(
        code == 1 && stderr.starts_with("error: `run` has finished all 6 steps\n") && stderr.contains(hint),
        "{stderr}"
    );
}

#[test]
fn what_must_stay_as_it_was_is_refused_and_nothing_is_touched() {
    let test = run();
    let config = test.read("run/config.yml");
    assert_eq!(
        refused(&test, &["--batch-size", "2", "--seed", "1"]),
        (
            2,
            "error: `train.batch_size` is 2, but the run was started with 1: it cannot continue with another value\n  \
             --> flag `--batch-size`\n\
             hint: leave it out to resume, or start a new run with another `--output-dir`\n\n\
             error: `train.seed` is 1, but the run was started with 42: it cannot continue with another value\n  \
             --> flag `--seed`\n\
             hint: leave it out to resume, or start a new run with another `--output-dir`\n"
                .to_owned()
        )
    );
    let (code, stderr) = {
        let run = test.run(&["dpo", "--output-dir", "run", "--resume"]);
        (run.code, run.stderr)
    };
    assert!(
        code == 2
            && stderr
                == "error: the run in `run` trains with `sft`, but the command is `gradus dpo`\n\
                    hint: resume it with `gradus sft --output-dir run --resume`\n",
        "{stderr}"
    );
    // The flag is named, not the file of the checkpoint, and a section that appears is one problem.
    let hint = "hint: leave it out to resume, or start a new run with another `--output-dir`\n";
    let never = "it cannot continue with another value\n";
    for (flag, value, expected) in [
        ("--data", "other.jsonl", "error: `data` is \"other.jsonl\", but the run was started with \"texts.jsonl\": "),
        ("--eval-data", "other.jsonl", "error: `eval_data` is \"other.jsonl\", but the run was started without it: "),
        ("--lora-rank", "4", "error: `lora` is {"),
        ("--eval-steps", "-1", "error: `train.eval_steps` is -1, but the run was started with 0: "),
    ] {
        let (code, stderr) = refused(&test, &[flag, value]);
        assert_eq!((code, stderr.matches("error: ").count()), (2, 1), "{stderr}");
        assert!(stderr.starts_with(expected), "{stderr}");
        assert!(stderr.ends_with(&format!("{never}  --> flag `{flag}`\n{hint}")), "{stderr}");
    }
    assert_eq!(test.read("run/config.yml"), config);

    test.write("texts.jsonl", &TEXTS.replace("tea", "cup"));
    let (code, stderr) = refused(&test, &["--max-steps", "6", "--quiet"]);
    assert_eq!(code, 1);
    assert!(
        stderr.ends_with(
            "error: the data has changed: the 2 training rows differ from those before the checkpoint\n\
             hint: restore the old data to continue exactly, or start a new run from the checkpoint with `--model`\n"
        ),
        "{stderr}"
    );
    test.write("texts.jsonl", TEXTS);
    test.succeeds(&[&RESUME[..], &["--max-steps", "6", "--quiet"]].concat());
}

#[test]
fn a_run_that_nobody_named_or_that_has_nothing_left() {
    let test = CliTest::new();
    test.fails(
        &["sft", "--resume"],
        2,
        "
error: the run to resume is not named
hint: pass `--output-dir DIR`, the run's directory
",
    );
    let test = run();
    std::fs::remove_dir_all(test.path().join("run/checkpoints")).expect("it can be removed");
    assert_eq!(
        refused(&test, &[]),
        (
            1,
            "error: the run in `run` has finished, and no checkpoint is left to resume from\n\
             hint: replace it with `--overwrite`, or choose another `--output-dir`\n"
                .to_owned()
        )
    );
    assert!(test.path().join("run/model/model.safetensors").is_file());
}

#[test]
fn a_corrupt_checkpoint_is_named_and_the_one_before_it_taken_when_asked_for() {
    let test = run();
    let metrics = test.read("run/metrics.jsonl");
    let file = test.path().join("run/checkpoints/step-000004/model.safetensors");
    let mut bytes = std::fs::read(&file).expect("a model");
    let whole = std::fs::read(test.path().join("run/model/model.safetensors")).expect("the final model");
    bytes[50_000] ^= 1;
    std::fs::write(&file, bytes).expect("it can be written");
    let (code, stderr) = refused(&test, &[]);
    assert_eq!(code, 1);
    let place = "run/checkpoints/step-000004";
    let hint = "hint: `gradus runs resume run --resume-from 2` removes it and resumes from the checkpoint before it\n";
    assert!(
        stderr.starts_with(&format!(
            "error: {place}: corrupt checkpoint: {place}/model.safetensors: its content has changed (CRC-32 "
        )) && stderr.ends_with(hint),
        "{stderr}"
    );
    // Other settings read the checkpoint earlier, and all damaged files are named.
    let moments = format!("{place}/optimizer.safetensors");
    let saved = std::fs::read(test.path().join(&moments)).expect("moments");
    test.write(&moments, "cut");
    std::fs::remove_file(&file).expect("it can be removed");
    let (code, stderr) = refused(&test, &["--max-steps", "6"]);
    let found = format!(
        "error: {place}: corrupt checkpoint: {place}/model.safetensors: missing; {moments}: 3 bytes, but {} were written\n{hint}",
        saved.len()
    );
    assert_eq!((code, stderr), (1, found));
    assert_eq!(
        refused(&test, &["--resume-from", "3"]),
        (1, "error: `run` has no checkpoint of step 3\nhint: the run has checkpoints of steps 2, 4\n".to_owned())
    );
    test.succeeds(&["sft", "--output-dir", "run", "--resume-from", "2", "--quiet"]);
    assert!(std::fs::read(test.path().join("run/model/model.safetensors")).expect("the final model") == whole);
    let losses = |text: &str| {
        text.lines().map(|line| line.split("\"epoch\"").next().unwrap_or("").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(losses(&test.read("run/metrics.jsonl")), losses(&metrics));
}

#[test]
fn a_new_run_begins_where_another_was() {
    let test = run();
    let model = |run: &str| std::fs::read(test.path().join(run).join("model/model.safetensors")).expect("a model");
    let before = test.read("run/metrics.jsonl");
    let from = "run/checkpoints/step-000002";
    let branched = test.run(&["sft", "--resume-from", from, "--output-dir", "other"]);
    assert!(
        branched.code == 0 && branched.stderr.contains(&format!("resuming from step 2 of `{from}`")),
        "{branched:?}"
    );
    assert!(model("other") == model("run"), "the same state, rows and seed: the same run");
    let losses =
        |text: &str| text.lines().map(|line| line.split("\"epoch\"").next().unwrap_or("").to_owned()).collect();
    let (mine, theirs): (Vec<_>, Vec<_>) = (losses(&test.read("other/metrics.jsonl")), losses(&before));
    assert_eq!(mine, theirs, "what was logged until then is in the new run too");
    assert!(test.read("other/config.yml").contains("output_dir: other"));
    // The other run keeps all its files. The new run writes elsewhere.
    assert_eq!(test.read("run/metrics.jsonl"), before);
    assert!(test.path().join("run/checkpoints/step-000004").is_dir());
    let (code, stderr) = refused(&test, &["--resume-from", from]);
    assert!(code == 1 && stderr.starts_with("error: output directory `run` exists and is not empty"), "{stderr}");

    // Without a name, the new run gets an unused one. Flags override the checkpoint's configuration.
    let run = test.run(&["sft", "--resume-from", from, "--learning-rate", "0.1", "--quiet"]);
    let directory = run.stdout.trim();
    assert!(run.code == 0 && directory.starts_with("runs/sft-gpt2-"), "{run:?}");
    assert!(
        run.stderr.starts_with("warning: `train.learning_rate` was 0.00002 and is 0.1 from this step on"),
        "{}",
        run.stderr
    );
    assert!(model(directory) != model("run"));
    // The new run can be resumed like any other.
    test.succeeds(&["sft", "--output-dir", directory, "--resume", "--max-steps", "5", "--quiet"]);
    test.fails(
        &["sft", "--resume-from", "run", "--output-dir", "third"],
        1,
        "
error: `run` is not a checkpoint directory, and is not a step either
hint: name a directory such as `runs/sft-1/checkpoints/step-000100`, or a step of this run
",
    );
    assert!(!test.path().join("third").exists());
}

#[test]
fn keys_of_the_method_are_flags_of_runs_resume() {
    let test = run();
    let resume = ["runs", "--runs-dir", ".", "resume", "run", "--max-steps", "6"];
    test.fails(
        &[&resume[..], &["--group-size", "4"]].concat(),
        2,
        "
error: `--group-size` is not a key of `sft`
  --> flag `--group-size`
",
    );
    let run = test.run(&[&resume[..], &["--loss-type", "dft"]].concat());
    let changed = "warning: `method.sft.loss_type` was \"nll\" and is \"dft\" from this step on";
    assert!(run.code == 0 && run.stderr.contains(changed), "{}", run.stderr);
}

/// Trains with a model in `model`, then resumes once with other weights there and once with the original ones.
fn changed_under_a_run(train: &[&str], texts: &str) {
    let test = CliTest::with("texts.jsonl", texts);
    std::fs::create_dir(test.path().join("model")).expect("a directory");
    for entry in std::fs::read_dir(fixture_model("gpt2")).expect("a model").flatten() {
        std::fs::copy(entry.path(), test.path().join("model").join(entry.file_name())).expect("copied");
    }
    let rest = ["--data", "texts.jsonl", "--output-dir", "run", "--max-steps", "2", "--batch-size", "1", "--quiet"];
    test.succeeds(&[train, &rest].concat());
    let weights = test.path().join("model/model.safetensors");
    let whole = std::fs::read(&weights).expect("weights");
    let mut other = whole.clone();
    *other.last_mut().expect("not empty") ^= 0x80;
    std::fs::write(&weights, other).expect("written");
    let longer = ["--max-steps", "3", "--quiet"];
    let (code, stderr) = refused(&test, &longer);
    assert!(
        code == 1
            && stderr.ends_with(
                "error: model: its files differ from those before the checkpoint\n\
                 hint: restore the old files to continue exactly, or start a new run with the model as it is now \
                 (`--output-dir`)\n"
            ),
        "{stderr}"
    );
    std::fs::write(&weights, whole).expect("written");
    test.succeeds(&[&RESUME[..], &longer].concat());
}

#[test]
fn a_base_that_changed_under_its_adapter_is_noticed() {
    changed_under_a_run(&["sft", "--model", "model", "--lora-rank", "2"], TEXTS);
}

#[test]
fn a_model_that_changed_under_the_metric_that_asks_it_is_noticed() {
    let policy = fixture_model("gpt2");
    let asks = ["--evaluation-metrics", "[{ perplexity: { model: model } }]", "--evaluation-max-new-tokens", "2"];
    let rows = "{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n".repeat(4);
    changed_under_a_run(&[&["sft", "--model", &policy][..], &asks].concat(), &rows);
}

/// A reward that fails on its fifth call stops a run between two steps.
#[cfg(unix)]
#[test]
fn a_run_that_fails_between_two_steps_leaves_a_checkpoint() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"The cup is\"}\n");
    test.write(
        "reward.sh",
        "while read -r line; do if [ -e broken ] && [ \"$(wc -l < run/metrics.jsonl)\" -ge 3 ]; then exit 3; fi; \
         echo 1.5; done\n",
    );
    let model = fixture_model("gpt2");
    let train = |directory: &str| {
        let arguments = ["grpo", "--model", &model, "--data", "prompts.jsonl", "--output-dir", directory];
        let more = ["--max-steps", "5", "--batch-size", "2", "--group-size", "2", "--max-new-tokens", "3"];
        let rest = ["--reward-command", "sh reward.sh", "--eval-steps=-1", "--learning-rate", "1e-3", "--quiet"];
        test.run(&[&arguments[..], &more, &rest].concat())
    };
    assert_eq!(train("whole").code, 0);
    test.write("broken", "");
    let failed = train("run");
    assert_eq!(failed.code, 1, "{}", failed.stderr);
    let kept = "warning: the state after step 3 was saved in a checkpoint: resume with `gradus grpo --output-dir run --resume`\n";
    assert!(failed.stderr.starts_with(kept), "{}", failed.stderr);
    std::fs::remove_file(test.path().join("broken")).expect("it can be removed");
    test.succeeds(&["grpo", "--output-dir", "run", "--resume", "--quiet"]);
    let model =
        |directory: &str| std::fs::read(test.path().join(directory).join("model/model.safetensors")).expect("a model");
    assert!(model("run") == model("whole"));
    let steps = |directory: &str| test.read(&format!("{directory}/metrics.jsonl")).lines().count();
    assert_eq!((steps("run"), steps("whole")), (5, 5));
    let checkpoints = std::fs::read_dir(test.path().join("run/checkpoints")).expect("checkpoints").count();
    assert_eq!(checkpoints, 1, "that of the failure went with the next");
}

/// Rows that the user holds out stay the same with and without evaluations.
#[test]
fn a_run_with_a_written_share_may_begin_to_evaluate() {
    let row = |i: usize| format!("{{\"text\": \"The tea {i} is good.\"}}\n");
    let test = CliTest::with("texts.jsonl", &(0..20).map(row).collect::<String>());
    let model = fixture_model("gpt2");
    let start = ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "run", "--batch-size", "2"];
    let more = ["--eval-fraction", "0.2", "--max-steps", "2", "--eval-steps", "-1"];
    let run = test.run(&[&start[..], &more].concat());
    assert!(run.code == 0 && run.stderr.contains("held out: 4 rows, which are not evaluated"), "{}", run.stderr);
    assert!(!test.read("run/metrics.jsonl").contains("eval_loss"));
    let held_out = test.read("run/held_out_rows.jsonl");
    assert_eq!(held_out.lines().count(), 4);
    test.succeeds(&[&RESUME[..], &["--max-steps", "4", "--eval-steps", "1", "--quiet"]].concat());
    assert!(test.read("run/metrics.jsonl").contains("eval_loss"));
    assert_eq!(test.read("run/held_out_rows.jsonl"), held_out);
}

/// Missing completions of a run are reported.
#[test]
fn a_run_whose_completions_are_gone_says_so() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    let model = fixture_model("qwen3");
    let run = |steps: &str, more: &[&str]| {
        let arguments =
            ["grpo", "--model", &model, "--data", "prompts.jsonl", "--output-dir", "run", "--max-steps", steps];
        let small =
            ["--batch-size", "2", "--group-size", "2", "--max-new-tokens", "2", "--reward-rule-length-target", "3"];
        let run = test.run(&[&arguments[..], &small, more].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run.stderr
    };
    run("1", &["--save-steps", "1"]);
    let gone = "warning: `run/rollouts.sqlite` is missing: the completions and warnings of the steps up to 1 are lost";
    assert!(!run("2", &["--resume", "--save-steps", "1"]).contains("rollouts.sqlite` is missing"));
    std::fs::remove_file(test.path().join("run/rollouts.sqlite")).expect("removed");
    let output = run("3", &["--resume", "--save-steps", "1"]);
    assert!(output.contains(&gone.replace("up to 1", "up to 2")), "{output}");
}
