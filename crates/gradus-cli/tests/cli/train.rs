//! Training commands: rejection before anything is loaded, and small runs from start to finish.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{CliTest, Run, fixture_model, signal, wait_until};

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
error: `method.grpo.loss_type` is the word `gpro`, but one of `grpo`, `dr_grpo`, `bnpo`, `dapo`, `cispo`, `sapo`, `luspo`, `vespo` is needed
  --> flag `--loss-type`
hint: did you mean `grpo`?
",
    );
}

#[test]
fn epochs_obey_the_limit_of_steps() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let sft =
        ["sft", "--model", &model, "--data", "texts.jsonl", "--batch-size", "1", "--output-dir", "run", "--quiet"];
    let message = "
error: `train.epochs` is 1e30, but must be at most 1000000000
  --> flag `--epochs`
";
    test.fails(&[&sft[..], &["--epochs", "1e30"]].concat(), 2, message);
    // Two rows make two steps per epoch.
    let run = test.run(&[&sft[..], &["--epochs", "6e8"]].concat());
    let message = "`train.epochs` is 600000000 and makes 1200000000 steps, but a run has at most 1000000000";
    assert!(run.code == 1 && run.stderr.contains(message), "{run:?}");
    assert!(run.stderr.contains("hint: set the number of steps with `--max-steps`"), "{run:?}");
    assert_eq!(test.run(&[&sft[..], &["--epochs", "6e8", "--max-steps", "1", "--overwrite"]].concat()).code, 0);
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
fn a_flag_that_cannot_be_read_hides_no_other_flag() {
    let grpo = ["grpo", "--model", "m", "--data", "d.jsonl"];
    let message = "\nerror: `--reward-command` has a quote that does not end\n  --> flag `--reward-command`\n";
    CliTest::new().fails(&[&grpo[..], &["--reward-command", "score.py 'open"]].concat(), 2, message);
    let run = CliTest::new().run(&[&grpo[..], &["--tools", "[{calculator: {}]"]].concat());
    assert!(run.code == 2 && run.stderr.starts_with("error: `--tools`: this is not YAML: "), "{run:?}");
    assert!(!run.stderr.contains("is missing") && !run.stderr.contains("needs a `reward`"), "{run:?}");
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
         hint: resume it with `--resume`, replace it with `--overwrite`, or choose another `--output-dir`\n"
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

/// Returns the logged steps of a run.
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
    let (sampled, searched) = (run("sampled", &[]), run("searched", &["--evaluation-beams-num-beams", "3"]));
    for (sampled, searched) in sampled.iter().zip(&searched) {
        for key in ["loss", "grad_norm", "reward"] {
            assert_eq!(sampled[key], searched[key], "{key}");
        }
    }
    // The evaluation after the last step equals a beam search by the saved model.
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
    // The trained models can be used.
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

/// Returns all files below a directory with their contents, ordered by name.
fn files(directory: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(directory).expect("below").display().to_string();
                found.push((name, std::fs::read(&path).expect("readable")));
            }
        }
    }
    found.sort();
    found
}

#[cfg(unix)]
#[test]
fn a_run_that_is_to_be_replaced_is_there_until_the_new_one_has_begun() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    test.write("prompts.jsonl", PROMPTS);
    test.write("empty.jsonl", "");
    let model = fixture_model("gpt2");
    let short = ["--output-dir", "run", "--batch-size", "2", "--max-steps", "1", "--quiet"];
    let sft = |more: &[&str]| test.run(&[&["sft"], more, &short].concat());
    assert_eq!(sft(&["--model", &model, "--data", "texts.jsonl"]).code, 0);
    test.write("run/notes.txt", "mine");
    test.write("run/plots/corpus.jsonl", "{\"references\": [\"tea\"]}\n");
    let before = files(&test.path().join("run"));
    assert!(before.iter().any(|(name, _)| name == "model/model.safetensors"));

    let inside = "is in the run that `--overwrite` would replace, and the new run reads it\n";
    let grpo = ["grpo", "--model", &model, "--data", "prompts.jsonl", "--max-new-tokens", "4", "--group-size", "2"];
    for (arguments, expected) in [
        (&["sft", "--model", &model, "--data", "nowhere.jsonl"][..], "nowhere.jsonl"),
        (&["sft", "--model", &model, "--data", "empty.jsonl"], "no rows: the data set is empty"),
        (&["sft", "--model", "./nowhere", "--data", "texts.jsonl"], "no such model directory"),
        (&["sft", "--model", "run/model", "--data", "texts.jsonl"], &format!("`run/model` {inside}")),
        (&["sft", "--model", &model, "--data", "run/metrics.jsonl"], &format!("`run/metrics.jsonl` {inside}")),
        (&[&grpo[..], &["--reward-model", "run/model"]].concat(), &format!("`run/model` {inside}")),
        (
            &[
                &grpo[..],
                &[
                    "--reward-rule-substring",
                    "e",
                    "--evaluation-metrics",
                    "[{cider: {corpus: run/plots/corpus.jsonl}}]",
                ],
            ]
            .concat(),
            &format!("`run/plots/corpus.jsonl` {inside}"),
        ),
        (&[&grpo[..], &["--reward-model", &model]].concat(), "is not a reward model"),
        (&[&grpo[..], &["--reward-command", "./nowhere"]].concat(), "could not be started"),
        (&[&grpo[..], &["--reward-command", "sh -c 'exit 3'", "--eval-steps=-1"]].concat(), "ended before it answered"),
    ] {
        let run = test.run(&[arguments, &short, &["--overwrite"]].concat());
        assert_ne!(run.code, 0, "{arguments:?}");
        assert!(run.stderr.contains(expected), "{expected} in {}", run.stderr);
        let changed = files(&test.path().join("run"));
        let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&changed), names(&before), "{arguments:?}");
        assert!(changed == before, "{arguments:?} changed a file");
    }
    let run = test.run(&[&grpo[..], &["--reward-rule-substring", "e"], &short, &["--overwrite"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(test.read("run/config.yml").contains("grpo:") && test.read("run/notes.txt") == "mine");
    assert!(test.read("run/log.txt").contains("loading") && !test.path().join("run/.replaced").exists());
}

#[cfg(unix)]
#[test]
fn a_run_whose_directory_is_deleted_is_kept_beside_it() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    test.write("prompts.jsonl", PROMPTS);
    let model = fixture_model("gpt2");
    let grpo = ["--max-new-tokens", "3", "--group-size", "2", "--reward-rule-substring", "e", "--eval-steps", "2"];
    for (method, data, more) in [("sft", "texts.jsonl", &["--eval-steps", "1"][..]), ("grpo", "prompts.jsonl", &grpo)] {
        let directory = format!("{method}-run");
        let arguments =
            [method, "--model", &model, "--data", data, "--output-dir", &directory, "--max-steps", "100000"];
        let child = test.command(&[&arguments[..], more].concat()).stderr(std::process::Stdio::piped()).spawn();
        let child = child.expect("the binary runs");
        let metrics = test.path().join(&directory).join("metrics.jsonl");
        let lines = || std::fs::read_to_string(&metrics).unwrap_or_default().lines().count();
        wait_until(&format!("{method} has logged three rows"), || lines() >= 3);
        // For the run, the directory disappears in a single operation.
        std::fs::rename(test.path().join(&directory), test.path().join("gone")).expect("renamed");
        std::fs::remove_dir_all(test.path().join("gone")).expect("removed");
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let message = format!(
            "error: the run directory `{directory}` was deleted during the run; the recovered files are in \
             `{directory}-rescued` with a checkpoint of step "
        );
        assert!(stderr.contains(&message), "{stderr}");
        let hint = format!("hint: resume with `gradus {method} --output-dir {directory}-rescued --resume`\n");
        assert!(stderr.contains(&hint), "{stderr}");
        assert!(!test.path().join(&directory).exists(), "nothing is written where it was");
        let rescued = format!("{directory}-rescued");
        let done = steps(&test, &rescued).len();
        assert!(done >= 3, "all rows are there");
        test.succeeds(&[
            method,
            "--output-dir",
            &rescued,
            "--resume",
            "--max-steps",
            &(done + 2).to_string(),
            "--quiet",
        ]);
        let numbers: Vec<_> =
            steps(&test, &rescued).iter().map(|row| row["step"].as_u64().expect("a number")).collect();
        assert_eq!(numbers, (1..=done as u64 + 2).collect::<Vec<_>>());
    }
}

/// Interrupts `child` after its reward program received a request (and created the file `asked`). Returns stderr. The program sleeps for a
/// day, so a run that waits for it fails in [`wait_until`].
#[cfg(unix)]
fn interrupted_once_asked(test: &CliTest, mut child: std::process::Child) -> String {
    wait_until("the reward program was asked", || test.path().join("asked").exists());
    signal("-INT", &child.id().to_string());
    wait_until("the interrupted run ends", || child.try_wait().expect("a process can be asked").is_some());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    stderr
}

#[cfg(unix)]
#[test]
fn an_interrupted_evaluation_takes_its_reward_program_along() {
    let test = CliTest::with("prompts.jsonl", PROMPTS);
    let model = fixture_model("gpt2");
    let script = "echo $$ > group; touch asked; sleep 86400 & read -r line; sleep 86400";
    let program = format!("[sh, -c, '{script}']");
    let arguments = ["eval", "--model", &model, "--data", "prompts.jsonl", "--reward-command", &program];
    let mut command = test.command(&[&arguments[..], &["--max-new-tokens", "3"]].concat());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let stderr = interrupted_once_asked(&test, command.spawn().expect("it runs"));
    assert!(stderr.ends_with("interrupted\n"), "{stderr}");
    let group = format!("-{}", test.read("group").trim());
    let alive = || {
        std::process::Command::new("kill").args(["-0", "--", &group]).output().expect("`kill` runs").status.success()
    };
    wait_until(&format!("the program's group {group} has ended"), || !alive());
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_wait_for_a_reward_program_at_once() {
    let test = CliTest::with("prompts.jsonl", PROMPTS);
    let model = fixture_model("gpt2");
    // The program answers the evaluation and the first step, and then stops answering.
    let script =
        "i=0; while read -r line; do i=$((i+1)); if [ $i -gt 6 ]; then touch asked; sleep 86400; fi; echo 1; done";
    let command = format!("{{program: [sh, -c, '{script}'], timeout_s: 86400}}");
    test.write(
        "run.yml",
        &format!(
            "model: {model}\ndata: prompts.jsonl\nmethod: {{grpo: {{max_new_tokens: 3, group_size: 2}}}}\n\
             reward: {{command: {command}}}\noutput_dir: run\n\
             train: {{max_steps: 50, batch_size: 2, eval_steps: -1}}\n"
        ),
    );
    let child = test.command(&["train", "run.yml"]).stderr(std::process::Stdio::piped()).spawn().expect("it runs");
    let stderr = interrupted_once_asked(&test, child);
    assert!(
        stderr.ends_with("interrupted; a checkpoint was saved: resume with `gradus grpo --output-dir run --resume`\n"),
        "{stderr}"
    );
    assert!(test.path().join("run/checkpoints/step-000001").is_dir());
}

#[test]
fn two_runs_that_start_at_once_take_two_directories() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--max-steps", "1", "--quiet"];
    let start = || test.command(&arguments).stdout(std::process::Stdio::piped()).spawn().expect("the binary runs");
    let children: Vec<_> = (0..3).map(|_| start()).collect();
    let outputs = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("UTF-8")
    });
    let directories: BTreeSet<String> = outputs.collect();
    let expected = (1..=3).map(|n| format!("runs/sft-gpt2-{n}\n")).collect::<BTreeSet<_>>();
    assert_eq!(directories, expected);
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_a_checkpoint_and_goes_on() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "run", "--max-steps", "100000"];
    let metrics = test.path().join("run/metrics.jsonl");
    let lines = || std::fs::read_to_string(&metrics).unwrap_or_default().lines().count();
    // `runs resume` has no flag `--resume`, so its message must not name that alone.
    let resume = ["runs", "resume", "run", "--runs-dir", "."];
    for (arguments, directory) in [(&arguments[..], "run"), (&resume[..], "./run")] {
        let before = lines();
        let child = test.command(arguments).stderr(std::process::Stdio::piped()).spawn().expect("the binary runs");
        wait_until("two steps are logged", || lines() >= before + 2);
        signal("-INT", &child.id().to_string());
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        let saved = format!("a checkpoint was saved: resume with `gradus sft --output-dir {directory} --resume`\n");
        assert!(stderr.ends_with(&saved), "{stderr}");
    }

    let done = lines();
    let more = (done + 2).to_string();
    test.succeeds(&["sft", "--output-dir", "run", "--resume", "--max-steps", &more, "--quiet"]);
    let numbers: Vec<_> = steps(&test, "run").iter().map(|row| row["step"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=done as u64 + 2).collect::<Vec<_>>());
}

/// Texts of one kind, so that a few steps at a huge learning rate make everything worse.
fn many_texts() -> String {
    (0..24).map(|i| format!("{{\"text\": \"The tea number {i} is good.\"}}\n")).collect()
}

#[test]
fn a_run_that_got_worse_says_so_everywhere_and_leaves_no_best_model() {
    let test = CliTest::with("texts.jsonl", &many_texts());
    let model = fixture_model("gpt2");
    let arguments = [
        "sft",
        "--model",
        &model,
        "--data",
        "texts.jsonl",
        "--output-dir",
        "runs/worse",
        "--max-steps",
        "6",
        "--batch-size",
        "4",
        "--eval-steps",
        "2",
        "--eval-fraction",
        "0.2",
        "--learning-rate",
        "5",
    ];
    let run = test.run(&arguments);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("warning: no evaluation beat the start: `eval_loss` was "), "{}", run.stderr);
    assert!(run.stderr.contains("learning rate (5) is too large"), "{}", run.stderr);
    assert!(run.stderr.contains(": the run diverges: `eval_loss` is "), "it warns while it runs: {}", run.stderr);
    assert!(!run.stderr.contains("best so far"), "{}", run.stderr);
    assert!(!test.path().join("runs/worse/best").exists());
    let results: Value = serde_json::from_str(&test.read("runs/worse/results.json")).expect("JSON");
    let near = |a: &Value, b: &Value| (a.as_f64().expect("a number") - b.as_f64().expect("a number")).abs() < 1e-4;
    assert_eq!(results["best"]["step"], 0);
    assert!(near(&results["best"]["value"], &results["before"]["eval_loss"]), "{results}");
    let sentence = results["no_improvement"].as_str().expect("a sentence");
    assert!(test.read("runs/worse/report.html").contains("beat the start"));
    let card = test.read("runs/worse/model/README.md");
    assert!(card.contains(&format!("\n> **Warning:** {sentence}\n")), "{card}");
    let diverged = results["diverged"].as_str().expect("it diverged");
    assert!(card.contains(&format!("\n> **Warning:** {diverged}\n")), "{card}");

    let list: Value = serde_json::from_str(&test.succeeds(&["runs", "list", "--json"])).expect("JSON");
    assert_eq!(list[0]["figure"]["best_step"], 0);
    assert!(near(&list[0]["figure"]["best"], &results["best"]["value"]), "{list}");
    assert!(test.succeeds(&["runs", "list"]).contains(" (start)"));
    assert!(test.succeeds(&["runs", "show", "worse"]).contains("the start model: eval_loss was "));
    let run = test.run(&["runs", "export", "worse", "--best", "--output", "out"]);
    assert!(run.code == 1 && run.stderr.contains("has no `best/`: no evaluation beat the start ("), "{}", run.stderr);
    let run = test.run(&["generate", "--model", "runs/worse/best", "--prompt", "The tea"]);
    assert!(
        run.code == 1 && run.stderr.contains("the run has no `best/`: no evaluation beat its start"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_wrong_name_of_a_column_leaves_no_run_behind() {
    let rows = "{\"prompt\": \"The tea\", \"completion\": \" is good\"}\n".repeat(4);
    let test = CliTest::with("rows.jsonl", &rows);
    test.write("others.jsonl", "{\"foo\": 1}\n");
    let model = fixture_model("gpt2");
    let given = ["--model", &model, "--data", "rows.jsonl", "--output-dir", "runs/new", "--max-steps", "1", "-q"];
    let new = ["--max-new-tokens", "2"];
    for (method, more, expected) in [
        ("sft", &["--column", "prompt=question"][..], "rows.jsonl:1: `prompt=question`: there is no column `question`"),
        ("dpo", &[], "rows.jsonl:1: missing column `chosen` (found `prompt`, `completion`)"),
        ("sft", &["--eval-data", "others.jsonl"], "others.jsonl:1: missing column `text` (found `foo`)"),
        (
            "grpo",
            &[&new[..], &["--reward-rule-exact-match", "answer"]].concat(),
            "rows.jsonl:1: missing column `answer`, which the reward `exact_match` reads (found `completion`)",
        ),
    ] {
        let run = test.run(&[&[method][..], &given, more].concat());
        assert_eq!(run.code, 1, "{method}: {}", run.stderr);
        assert!(run.stderr.starts_with(&format!("error: {expected}")), "{method}: {}", run.stderr);
        assert!(!test.path().join("runs").exists(), "{method}");
    }
}

/// Checks the output of a run that got worse, for any method. `metric` selects the best model, and the start had its best value.
#[track_caller]
fn check_got_worse(test: &CliTest, run: &Run, metric: &str) {
    assert_eq!(run.code, 0, "{}", run.stderr);
    let warning = format!("warning: no evaluation beat the start: `{metric}` was ");
    assert!(run.stderr.contains(&warning), "{}", run.stderr);
    assert!(!run.stderr.contains("best so far"), "{}", run.stderr);
    assert!(!test.path().join("runs/worse/best").exists());
    let results: Value = serde_json::from_str(&test.read("runs/worse/results.json")).expect("JSON");
    assert_eq!(results["best"]["step"], 0, "{results}");
    assert!(results["no_improvement"].is_string(), "{results}");
    let list = test.succeeds(&["runs", "list"]);
    assert!(list.contains(" (start)"), "{list}");
    let shown = test.succeeds(&["runs", "show", "worse"]);
    assert!(shown.contains(&format!("the start model: {metric} was ")), "{shown}");
}

#[test]
fn a_preference_run_that_got_worse_says_so() {
    // In the held-out pairs, chosen and rejected are swapped.
    let row = |i: usize, [good, bad]: [&str; 2]| {
        format!("{{\"prompt\": \"The cup {i} is\", \"chosen\": \"{good}\", \"rejected\": \"{bad}\"}}\n")
    };
    let test = CliTest::with("pairs.jsonl", &(0..16).map(|i| row(i, [" warm.", " cold."])).collect::<String>());
    test.write("held-out.jsonl", &(0..4).map(|i| row(i, [" cold.", " warm."])).collect::<String>());
    let model = fixture_model("gpt2");
    let arguments =
        ["dpo", "--model", &model, "--data", "pairs.jsonl", "--output-dir", "runs/worse", "--max-steps", "4"];
    let more = ["--batch-size", "4", "--eval-steps", "2", "--eval-data", "held-out.jsonl", "--learning-rate", "5"];
    let run = test.run(&[&arguments[..], &more].concat());
    check_got_worse(&test, &run, "eval_rewards/accuracies");
    assert!(run.stderr.contains(": the run diverges: `eval_loss` is "), "{}", run.stderr);
}

#[cfg(unix)]
#[test]
fn an_online_run_that_got_worse_says_so() {
    let rows: String = (0..12).map(|i| format!("{{\"prompt\": \"The tea {i}\"}}\n")).collect();
    let test = CliTest::with("prompts.jsonl", &rows);
    let model = fixture_model("gpt2");
    let arguments =
        ["grpo", "--model", &model, "--data", "prompts.jsonl", "--output-dir", "runs/worse", "--max-steps", "2"];
    // Every completion has a lower reward than those before it, whatever the policy does.
    let reward = ["--reward-command", "sh -c 'n=0; while read -r line; do n=$((n+1)); echo -$n; done'"];
    let more = [
        "--group-size",
        "2",
        "--max-new-tokens",
        "2",
        "--batch-size",
        "4",
        "--eval-steps",
        "1",
        "--eval-fraction",
        "0.2",
    ];
    let run = test.run(&[&arguments[..], &reward, &more].concat());
    check_got_worse(&test, &run, "eval_reward");
}

/// The first step moves the policy far away, so that its completions lose the reward that those of the start had.
#[test]
fn an_online_run_that_diverges_warns_while_it_trains() {
    let rows: String = (0..24).map(|i| format!("{{\"prompt\": \"The tea {i}\"}}\n")).collect();
    let test = CliTest::with("prompts.jsonl", &rows);
    let model = fixture_model("gpt2");
    let arguments =
        ["ppo", "--model", &model, "--data", "prompts.jsonl", "--output-dir", "runs/far", "--max-steps", "7"];
    let reward = ["--reward-rule-regex", "[aeiou]", "--max-new-tokens", "64", "--batch-size", "4"];
    let run = test.run(&[&arguments[..], &reward, &["--learning-rate", "5", "--eval-steps=-1"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let warning = ": the run diverges: the policy is far from its start (KL ";
    assert_eq!(run.stderr.matches(warning).count(), 1, "{}", run.stderr);
    let results: Value = serde_json::from_str(&test.read("runs/far/results.json")).expect("JSON");
    assert!(results["diverged"].as_str().is_some_and(|text| text.contains("fell from 1.0000 to 0.0000")), "{results}");
}

/// A file determines the method, whose keys are also flags of `gradus train FILE`.
#[test]
fn a_file_takes_the_flags_of_its_method() {
    let test = CliTest::with("rows.jsonl", PROMPTS);
    let model = fixture_model("gpt2");
    let file = format!(
        "model: {model}\ndata: rows.jsonl\noutput_dir: run\nmethod: {{ ppo: {{ max_new_tokens: 4 }} }}\nreward: {{ rule: {{ regex: e }} }}\n\
         train: {{ max_steps: 1, batch_size: 2, eval_steps: -1 }}\n"
    );
    test.write("run.yml", &file);
    test.succeeds(&["train", "run.yml", "--mini-batches", "2", "-q"]);
    assert!(test.read("run/config.yml").contains("mini_batches: 2"));
    test.fails(
        &["train", "run.yml", "--packing"],
        2,
        "error: `--packing` is not a key of `ppo`\n  --> flag `--packing`\n",
    );
}

#[test]
fn a_run_that_got_better_has_its_best_model_and_no_warning() {
    let test = CliTest::with("texts.jsonl", &many_texts());
    let model = fixture_model("gpt2");
    let arguments = [
        "sft",
        "--model",
        &model,
        "--data",
        "texts.jsonl",
        "--output-dir",
        "runs/better",
        "--max-steps",
        "4",
        "--batch-size",
        "4",
        "--eval-steps",
        "2",
        "--eval-fraction",
        "0.2",
        "--learning-rate",
        "1e-3",
    ];
    let run = test.run(&arguments);
    assert!(run.code == 0 && !run.stderr.contains("warning") && run.stderr.contains("best so far"), "{}", run.stderr);
    assert!(test.path().join("runs/better/best/config.json").is_file());
    let results: Value = serde_json::from_str(&test.read("runs/better/results.json")).expect("JSON");
    assert!(results["no_improvement"].is_null() && results["best"]["step"].as_u64() > Some(0), "{results}");
}

#[test]
fn advice_about_rewards_belongs_to_dpo() {
    let test = CliTest::with("pairs.jsonl", PAIRS);
    let model = fixture_model("gpt2");
    for method in ["dpo", "orpo", "simpo", "cpo", "kto"] {
        let arguments = [
            method,
            "--model",
            &model,
            "--data",
            "pairs.jsonl",
            "--output-dir",
            method,
            "--max-steps",
            "8",
            "--learning-rate",
            "0.05",
            "--eval-fraction",
            "0",
        ];
        let run = test.run(&arguments);
        assert_eq!(run.code, 0, "{method}: {}", run.stderr);
        let last = steps(&test, method).pop().expect("rows");
        let is_due = last["rewards/chosen"].as_f64() <= Some(-0.1) && last["rewards/margins"].as_f64() > Some(0.0);
        let is_advised = run.stderr.contains("usual for DPO");
        assert_eq!(is_advised, method == "dpo" && is_due, "{method}: {last} {}", run.stderr);
    }
}

/// Ctrl-C is answered immediately and stops sampling in the middle of a step.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_long_step_between_its_rows() {
    let prompts: String = (0..64).map(|i| format!("{{\"prompt\": \"The tea {i}\"}}\n")).collect();
    let test = CliTest::with("prompts.jsonl", &prompts);
    let model = fixture_model("gpt2");
    // Minutes of sampling in one step.
    let arguments = [
        "grpo",
        "--model",
        &model,
        "--data",
        "prompts.jsonl",
        "--output-dir",
        "run",
        "--max-steps",
        "2",
        "--batch-size",
        "64",
        "--group-size",
        "5000",
        "--max-new-tokens",
        "40",
        "--eval-steps",
        "-1",
        "--reward-rule-substring",
        "e",
        "--no-memory-check",
        "--no-try-longest",
    ];
    let mut child = test.command(&arguments).stderr(std::process::Stdio::piped()).spawn().expect("the binary runs");
    wait_until("the step has begun", || {
        test.path().join("run/log.txt").is_file() && test.read("run/log.txt").contains("training")
    });
    signal("-INT", &child.id().to_string());
    wait_until("the run ends", || child.try_wait().expect("a process can be asked").is_some());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(
        stderr.contains(
            "stopping: training ends the current work and writes a checkpoint if a step is finished; press Ctrl-C again"
        ),
        "{stderr}"
    );
    assert!(
        stderr.ends_with(
            "interrupted before the first step was finished; nothing was saved: `gradus grpo --output-dir run --resume` \
             starts from the beginning\n"
        ),
        "{stderr}"
    );
}

#[test]
fn lists_of_names_take_commas_and_choices_their_names() {
    let test = CliTest::with(
        "rows.jsonl",
        "{\"prompt\": \"The tea is\", \"completion\": \" good.\", \"reference\": \" good.\"}\n".repeat(8).as_str(),
    );
    let model = fixture_model("qwen3");
    let run = [
        "--model",
        &model,
        "--data",
        "rows.jsonl",
        "--max-steps",
        "1",
        "--batch-size",
        "2",
        "--eval-steps",
        "-1",
        "-q",
    ];
    test.succeeds(
        &[&["sft", "--output-dir", "a", "--lora-rank", "2", "--lora-targets", "q_proj,v_proj"], &run[..]].concat(),
    );
    let adapter: Value = serde_json::from_str(&test.read("a/model/adapter_config.json")).expect("JSON");
    let mut targets: Vec<&str> =
        adapter["target_modules"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    targets.sort_unstable();
    assert_eq!(targets, ["q_proj", "v_proj"]);
    let online =
        ["grpo", "--output-dir", "b", "--reward-metric", "rouge", "--max-new-tokens", "4", "--group-size", "2"];
    test.succeeds(&[&online, &run[..]].concat());
    assert!(test.read("b/config.yml").contains("rouge"));
}

#[test]
fn a_run_stands_for_its_model() {
    let test = CliTest::with("pairs.jsonl", PAIRS);
    let model = fixture_model("qwen3");
    let few = ["--data", "pairs.jsonl", "--max-steps", "1", "--batch-size", "2", "--eval-steps", "-1", "-q"];
    test.succeeds(&[&["sft", "--model", &model, "--output-dir", "start"], &few[..]].concat());
    test.succeeds(&[&["reward", "--model", "start", "--output-dir", "judge"], &few[..]].concat());
    test.succeeds(
        &[&["dpo", "--model", "start", "--reference-model", "start", "--output-dir", "dpo"], &few[..]].concat(),
    );
    let online = [
        "grpo",
        "--model",
        "dpo",
        "--reward-model",
        "judge",
        "--output-dir",
        "grpo",
        "--max-new-tokens",
        "4",
        "--group-size",
        "2",
    ];
    test.succeeds(&[&online, &few[..]].concat());
    // With the path instead, the result has identical bits.
    test.succeeds(
        &[&["dpo", "--model", "start/model", "--reference-model", "start/model", "--output-dir", "again"], &few[..]]
            .concat(),
    );
    let weights = |run: &str| std::fs::read(test.path().join(run).join("model/model.safetensors")).expect("weights");
    assert!(weights("dpo") == weights("again"));
    test.write("empty/config.yml", "model: gpt2\n");
    let run = test.run(&[&["sft", "--model", "empty", "--output-dir", "none"], &few[..]].concat());
    assert!(run.code == 1 && run.stderr.contains("a run without a model"), "{}", run.stderr);
}

#[test]
fn a_new_model_can_be_trained() {
    let test = CliTest::with("pairs.jsonl", PAIRS);
    let tokenizer = fixture_model("gpt2");
    for (family, method) in [("t5", "sft"), ("gemma3_text", "dpo"), ("longformer", "reward")] {
        test.succeeds(&["new-model", "--family", family, "--tokenizer", &tokenizer, "--output", family, "-q"]);
        let run = [
            "--model",
            family,
            "--data",
            "pairs.jsonl",
            "--max-steps",
            "1",
            "--batch-size",
            "2",
            "--eval-steps",
            "-1",
            "-q",
        ];
        test.succeeds(&[&[method, "--output-dir", method], &run[..]].concat());
    }
    test.fails(
        &["new-model", "--family", "t6", "--tokenizer", &tokenizer, "--output", "other"],
        1,
        "error: there is no family `t6`\nhint: did you mean `t5`?\n",
    );
    // The error names the directory that the user gave.
    let wrong =
        ["new-model", "--family", "gpt2", "--tokenizer", &tokenizer, "--output", "deep/other", "--set", "n_head=3"];
    let run = test.run(&wrong);
    assert!(run.code == 1 && run.stderr.contains("deep/other/config.json: "), "{}", run.stderr);
    assert!(!run.stderr.contains("tmp") && !test.path().join("deep/other").exists(), "{}", run.stderr);
}
