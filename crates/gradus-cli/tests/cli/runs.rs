//! `gradus runs`: listing, showing, comparing, changing and rejecting.

use std::process::Stdio;

use serde_json::Value;

use crate::harness::{CliTest, fixture_model, wait_until};

const TEXTS: &str = "{\"text\": \"The tea is good.\"}\n{\"text\": \"The kettle is warm.\"}\n";
const PROMPTS: &str = "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"The cup is\"}\n{\"prompt\": \"The pot is\"}\n";

/// Writes the files of a run: method, completed steps out of four, state.
fn write_run(test: &CliTest, name: &str, method: &str, steps: usize, state: &str) {
    let config = format!(
        "# Written by gradus 0.1.0. `# set` marks settings that were set; the others are defaults.\nmodel: m/sft/model # set\n\
         data: d.jsonl # set\noutput_dir: runs/{name}\nmethod:\n  {method}:\n    beta: 0.1\ntrain:\n  max_steps: 4\n  \
         seed: {steps} # set\n  best_metric: eval_loss\n"
    );
    test.write(&format!("runs/{name}/config.yml"), &config);
    let row = |step: usize| format!("{{\"step\":{step},\"loss\":{},\"eval_loss\":{}}}\n", 4 - step, 5 - step);
    test.write(&format!("runs/{name}/metrics.jsonl"), &(1..=steps).map(row).collect::<String>());
    test.write(
        &format!("runs/{name}/state.json"),
        &format!("{{\"state\":\"{state}\",\"started\":1000,\"error\":\"no room\"}}"),
    );
}

fn json(test: &CliTest, arguments: &[&str]) -> Value {
    serde_json::from_str(&test.succeeds(arguments)).expect("it is JSON")
}

#[test]
fn runs_are_listed_filtered_and_sorted() {
    let test = CliTest::new();
    assert_eq!(test.succeeds(&["runs", "--json"]), "[]\n");
    write_run(&test, "first", "dpo", 4, "finished");
    write_run(&test, "group/second", "sft", 2, "running");
    write_run(&test, "third", "dpo", 1, "failed");
    test.write("runs/third-copy/metrics.jsonl", "nonsense\n");
    test.succeeds(&["runs", "tag", "first", "good", "report"]);
    let table = test.succeeds(&["runs", "--color", "never", "list", "--sort", "name"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0].join(" "), "name method model state step key figure last best size changed tags");
    assert_eq!(lines[1][..9].join(" "), "first dpo sft finished 4/4 eval_loss 1.000 1.000 0.0");
    assert_eq!(lines[1][lines[1].len() - 2..], ["good", "report"]);
    // No process holds the lock, so the run was killed.
    assert_eq!(lines[2][..5].join(" "), "group/second sft sft interrupted 2/4");
    assert_eq!(lines[3][..5].join(" "), "third dpo sft failed 1/4");
    assert_eq!(lines[4][..5].join(" "), "third-copy – – broken 0");
    assert_eq!(lines[5].join(" "), "third failed: no room");
    assert!(lines[6].join(" ").starts_with("third-copy cannot be read: runs/third-copy/config.yml: "), "{table}");

    let names = |arguments: &[&str]| {
        let listed = json(&test, &[&["runs", "list", "--json"], arguments].concat());
        let entries = listed.as_array().expect("an array").clone();
        entries.iter().map(|entry| entry["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&["--method", "dpo", "--sort", "step"]), "first third");
    assert_eq!(names(&["--state", "failed,interrupted", "--sort", "name"]), "group/second third");
    assert_eq!(names(&["--tag", "good,report"]), "first");
    assert_eq!(names(&["--sort", "figure", "--method", "dpo,sft"]), "first group/second third");
    assert_eq!(names(&["--sort", "figure", "--reverse", "--method", "dpo"]), "third first");
    let entry = &json(&test, &["runs", "list", "--json", "--tag", "good"])[0];
    assert_eq!(
        (&entry["state"], &entry["figure"]["best"], &entry["steps"]),
        (&"finished".into(), &1.0.into(), &4.into())
    );

    // The directory may be an argument, as in `ls`.
    assert_eq!(names(&["runs", "--sort", "name"]), names(&["--sort", "name"]));
    assert_eq!(names(&["runs/group"]), "second");
    assert_eq!(names(&["runs/first"]), "runs/first");
    // A folder that is too deep is named.
    write_run(&test, "a/b/c/d/e/f/g/h/i", "dpo", 4, "finished");
    let listed = test.run(&["runs", "list"]);
    let note = "folders as deep as `runs/a/b/c/d/e/f/g/h/i` were not searched; `gradus runs list DIR` searches below a \
                folder\n";
    assert_eq!((listed.code, listed.stderr.as_str()), (0, note));
    assert_eq!(names(&["runs/a/b"]), "c/d/e/f/g/h/i");
    std::fs::remove_dir_all(test.path().join("runs/a")).expect("removed");
    test.fails(
        &["runs", "list", "frist"],
        1,
        "error: the directory `frist` does not exist\nhint: `gradus runs show NAME` shows a run\n",
    );
    // A folder of runs in place of a run.
    let hint = "hint: it is a folder of runs; name one of them: `runs/first`, `runs/third`, `runs/third-copy`\n";
    let what = "error: `runs` is not a run directory: it has neither `config.yml` nor `metrics.jsonl`";
    test.fails(&["runs", "show", "runs"], 1, &format!("{what}\n{hint}"));
    test.fails(&["compare", "--runs", "runs,runs/first"], 1, &format!("{what} nor `results.json`\n{hint}"));

    let none = test.run(&["runs", "list", "--tag", "absent"]);
    assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", "none of the 4 runs in `runs` matches\n"));
}

/// States after a kill during `--overwrite`: the new run has begun, has written nothing, or its predecessor is half moved.
#[test]
fn a_run_that_was_to_be_replaced_is_listed_after_a_kill() {
    let test = CliTest::new();
    for name in ["begun", "begun/.replaced", "empty/.replaced", "moving"] {
        write_run(&test, name, "dpo", 2, "running");
    }
    write_run(&test, "plain", "dpo", 2, "running");
    test.write("runs/moving/.replacing/log.txt", "");
    // A folder of this name that belongs to no run.
    test.write("runs/other/.replaced/notes.txt", "");
    let table = test.succeeds(&["runs", "list", "--sort", "name"]);
    for (name, expected) in [
        ("begun", "the run that it was to replace is in `runs/begun/.replaced`; rename this folder to bring it back"),
        ("empty", "the run that it was to replace is in `runs/empty/.replaced`; rename this folder to bring it back"),
        ("moving", "it is partly in `runs/moving/.replacing`, because its replacement was killed; `--resume`"),
    ] {
        assert!(table.contains(&format!("{name}: {expected}")), "`{name}: {expected}` is not in\n{table}");
    }
    assert!(!table.contains("plain:") && !table.contains("\nother"), "{table}");
    assert!(test.succeeds(&["runs", "show", "begun"]).contains("  replaced run  the run that it was to replace is in"));
    // The folder is a complete run.
    std::fs::rename(test.path().join("runs/empty/.replaced"), test.path().join("runs/back")).expect("renamed");
    let entry = &json(&test, &["runs", "list", "--json", "runs/back"])[0];
    assert_eq!((&entry["state"], &entry["replaced_run"]), (&"interrupted".into(), &Value::Null));
}

/// A pager may obey escape sequences, and a line end would begin a false row.
#[cfg(unix)]
#[test]
fn control_characters_in_names_are_escaped() {
    let test = CliTest::new();
    let name = "a\u{1b}]0;owned\u{7}\nb\tc";
    let shown = "a\\u{1b}]0;owned\\u{7}\\u{a}b\\u{9}c";
    write_run(&test, "plain", "dpo", 1, "failed");
    std::fs::rename(test.path().join("runs/plain"), test.path().join("runs").join(name)).expect("renamed");
    let table = test.succeeds(&["runs", "list"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[1].starts_with(&format!("{shown}  dpo")), "{table}");
    assert_eq!(lines[2], format!("{shown} failed: no room"));
    assert_eq!(json(&test, &["runs", "list", "--json"])[0]["name"], name, "programs get the name itself");
    let page = test.succeeds(&["runs", "show", name]);
    assert!(page.starts_with(&format!("{shown}  failed")) && !page.contains('\u{1b}'), "{page}");
    assert!(page.contains(&format!("  path     runs/{shown}\n")), "{page}");
    let removed = test.run(&["runs", "rm", name, "--yes"]);
    assert_eq!((removed.code, removed.stderr), (0, format!("removed runs/{shown}\n")));
}

#[test]
fn a_run_is_shown_on_a_page() {
    let test = CliTest::new();
    write_run(&test, "first", "dpo", 4, "finished");
    test.write("runs/first/log.txt", "      0.1s  loading\n      0.2s  warning: two rows were too long\n");
    let page = test.succeeds(&["runs", "show", "first"]);
    for expected in [
        "first  finished\n",
        "  step     4/4\n",
        "  model       m/sft/model\n",
        "  train.seed  4\n",
        "  eval_loss  4.000  1.000  1.000  4.000  █▆▃▁\n",
        "Warnings\n  two rows were too long\n",
    ] {
        assert!(page.contains(expected), "`{expected}` is not in\n{page}");
    }
    assert!(!page.contains("best_metric"), "a default:\n{page}");
    assert!(test.succeeds(&["runs", "show", "first", "--all-keys"]).contains("  train.best_metric"));
    let page = json(&test, &["runs", "show", "first", "--json"]);
    assert_eq!((&page["name"], &page["last_rows"][3]["loss"]), (&"first".into(), &0.0.into()));
    test.fails(
        &["runs", "show", "frist"],
        1,
        "error: there is no run `frist` in `runs`\nhint: did you mean `first`?\n",
    );
}

#[test]
fn labels_names_and_removal() {
    let test = CliTest::new();
    for name in ["first", "second"] {
        write_run(&test, name, "dpo", 4, "finished");
    }
    assert_eq!(test.succeeds(&["runs", "tag", "first", "good", "--note", "of May"]), "good\nof May\n");
    assert_eq!(test.succeeds(&["runs", "tag", "first", "--remove", "good", "odd"]), "odd\nof May\n");
    assert_eq!(test.read("runs/first/tags.json"), "{\n  \"tags\": [\n    \"odd\"\n  ],\n  \"note\": \"of May\"\n}\n");
    test.fails(
        &["runs", "tag", "first", "two words"],
        1,
        "error: `two words` is not a tag: a tag is one word without blanks and commas\n",
    );

    // The second run starts from the first run's model.
    let config = test.read("runs/second/config.yml").replace("m/sft/model", "runs/first/model");
    test.write("runs/second/config.yml", &config);
    let renamed = test.run(&["runs", "rename", "first", "kept/best"]);
    assert_eq!((renamed.code, renamed.stdout.as_str()), (0, "runs/kept/best\n"));
    assert_eq!(renamed.stderr, "warning: the configuration of `second` refers to runs/first\n");
    assert_eq!(test.succeeds(&["runs", "tag", "best"]), "odd\nof May\n");
    test.fails(&["runs", "rename", "best", "second"], 1, "error: there is already a `second` in `runs`\n");

    let refusal = "error: `second` was not removed: there is no terminal to confirm it\nhint: add `--yes`\n";
    test.fails(&["runs", "rm", "second"], 1, refusal);
    let slip = "error: there is no run `secnd` in `runs`\nhint: did you mean `second`?\n";
    test.fails(&["runs", "rm", "kept/best", "secnd", "--yes"], 1, slip);
    assert!(test.path().join("runs/kept/best").exists(), "nothing is removed when one name is wrong");
    // A web site may have a `config.yml` too.
    test.write("runs/site/config.yml", "title: mine\n");
    let foreign = "
error: `runs/site` is not removed: nothing in it shows that gradus wrote it
hint: a run has a `config.yml` that begins with `# Written by gradus`, or a `state.json` with its state
";
    test.fails(&["runs", "rm", "second", "site", "--yes"], 1, foreign);
    assert!(test.path().join("runs/second").exists() && test.path().join("runs/site/config.yml").exists());
    assert_eq!(test.run(&["runs", "rm", "second", "kept/best", "--yes"]).code, 0);
    assert!(!test.path().join("runs/second").exists() && !test.path().join("runs/kept/best").exists());
}

#[test]
fn runs_are_compared() {
    let test = CliTest::new();
    write_run(&test, "first", "dpo", 4, "finished");
    write_run(&test, "second", "ppo", 2, "running");
    let text = test.succeeds(&["runs", "compare", "first", "second"]);
    for expected in [
        "| second ",
        "  eval_loss  first   █▆▃▁   4.000  1.000  1.000  4.000\n",
        "             second  █▁     4.000  3.000  3.000  4.000\n",
        "  key         first  second\n  method      dpo    ppo\n  train.seed  4      2\n",
    ] {
        assert!(text.contains(expected), "`{expected}` is not in\n{text}");
    }
    for file in ["plots/loss.png", "report.html", "comparison.md"] {
        assert!(test.path().join("runs/comparison").join(file).is_file(), "{file}");
    }
    let value = json(&test, &["runs", "compare", "first", "second", "--output-dir", "elsewhere", "--json"]);
    assert_eq!(value["differences"][0]["values"], serde_json::json!(["dpo", "ppo"]));
    assert_eq!(value["entries"][2]["steps"], 2);
    assert!(test.path().join("elsewhere/plots/loss.png").is_file());
    // A comparison replaces only another comparison, never a user's file or a directory of runs.
    let again = ["runs", "compare", "first", "second", "--output-dir"];
    test.succeeds(&[&again[..], &["elsewhere"]].concat());
    for (directory, file) in [("elsewhere", "notes.txt"), ("elsewhere", "plots/notes.txt"), ("runs", "comparison")] {
        if directory == "elsewhere" {
            test.write(&format!("{directory}/{file}"), "mine");
        }
        let refusal = format!(
            "
error: `{directory}` is not replaced by a comparison: it holds `{file}`, which comparisons do not write
hint: choose another `--output-dir`
"
        );
        test.fails(&[&again[..], &[directory]].concat(), 1, &refusal);
        if directory == "elsewhere" {
            std::fs::remove_file(test.path().join(directory).join(file)).expect("it was written, and is still there");
        }
    }
    // A run that failed before its first step has a configuration to compare.
    write_run(&test, "third", "dpo", 0, "failed");
    std::fs::remove_file(test.path().join("runs/third/metrics.jsonl")).expect("it was written");
    assert!(test.succeeds(&["runs", "compare", "first", "third"]).contains("| third "));
    let run = test.run(&["runs", "compare", "first", "third", "--metric", "los"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
    assert!(
        run.stderr.starts_with("error: no run has the metric `los`\nhint: did you mean `loss`? The runs have `"),
        "{run:?}"
    );
    test.fails(&["runs", "compare", "first", "first"], 1, "error: `first` is named twice\n");

    write_run(&test, "fourth", "dpo", 4, "finished");
    test.write("runs/fourth/config.yml", &(test.read("runs/fourth/config.yml") + "  epochs: 1\n"));
    let text = test.succeeds(&["runs", "compare", "first", "fourth"]);
    assert!(text.ends_with("  and 1 default that only one method has: `--all-keys`\n"), "{text}");
}

#[test]
fn completions_are_found_and_two_steps_compared() {
    let test = CliTest::with("prompts.jsonl", PROMPTS);
    test.write("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let grpo = ["grpo", "--model", &model, "--data", "prompts.jsonl", "--eval-data", "prompts.jsonl"];
    let more = ["--output-dir", "runs/g", "--max-steps", "2", "--batch-size", "3", "--group-size", "2", "--quiet"];
    let reward = ["--reward-rule-length-target", "3", "--max-new-tokens", "4", "--no-shuffle"];
    test.succeeds(&[&grpo[..], &more, &reward].concat());
    let lines = |arguments: &[&str]| -> Vec<Value> {
        let text = test.succeeds(&[&["runs", "rollouts", "g", "--json"], arguments].concat());
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    };
    let numbers =
        |rows: &[Value], key: &str| rows.iter().map(|row| row[key].as_f64().expect("a number")).collect::<Vec<_>>();
    assert_eq!(lines(&[]).len(), 12);
    assert_eq!(numbers(&lines(&["--step", "2"]), "step"), [2.0; 6]);
    assert_eq!(lines(&["--steps", "..1", "--limit", "4"]).len(), 4);
    assert!(lines(&["--contains", "the CUP"]).iter().all(|row| row["prompt"] == "The cup is"));
    assert_eq!(lines(&["--prompt", "2"]).len(), 4);
    let rewards = numbers(&lines(&["--sort", "reward", "--desc"]), "reward");
    assert!(rewards.windows(2).all(|pair| pair[0] >= pair[1]) && rewards.len() == 12, "{rewards:?}");
    let best = rewards[0].to_string();
    assert!(numbers(&lines(&["--min-reward", &best]), "reward").iter().all(|reward| *reward == rewards[0]));
    assert_eq!(lines(&["--eval", "--step", "0"]).len(), 3);
    let pairs = lines(&["--eval", "--diff", "0,2"]);
    assert_eq!(pairs.len(), 3);
    assert!(pairs.iter().all(|pair| pair["before"]["prompt"] == pair["after"]["prompt"] && pair["after"]["step"] == 2));

    let shown = test.run(&["runs", "rollouts", "g", "--limit", "1"]);
    assert!(shown.stdout.starts_with("step 1 · prompt 1 · completion 1  reward "), "{}", shown.stdout);
    assert_eq!(shown.stderr, "1 of 12 completions from training; `--limit` shows more\n");
    let shown = test.succeeds(&["runs", "rollouts", "g", "--limit", "1", "--parts"]);
    assert!(shown.contains("\n    length "), "{shown}");
    let absent = test.run(&["runs", "rollouts", "g", "--diff", "1,9"]);
    assert!(
        absent.stderr.contains("`rollouts` has no completions of step 9\nhint: steps with completions: 1, 2"),
        "{}",
        absent.stderr
    );

    // The steps share prompts, so the reason is the search.
    let nothing = test.run(&["runs", "rollouts", "g", "--diff", "1,2", "--contains", "no such text"]);
    assert_eq!((nothing.code, nothing.stderr.as_str()), (0, "no pair matches; available steps: 1 to 2\n"));

    // A snapshot is a model like any other.
    assert_eq!(test.succeeds(&["runs", "export", "g", "--step", "2", "--output", "model", "--quiet"]), "model\n");
    let mut names: Vec<_> =
        std::fs::read_dir(test.path().join("model")).expect("a directory").flatten().map(|e| e.file_name()).collect();
    names.sort();
    assert!(names.contains(&"config.json".into()) && !names.contains(&"run_state.json".into()), "{names:?}");
    assert!(!names.contains(&"optimizer.safetensors".into()), "{names:?}");
    assert_eq!(test.succeeds(&["score", "--model", "model", "--data", "texts.jsonl"]).lines().count(), 2);
    let absent = test.run(&["runs", "export", "g", "--step", "7", "--output", "other"]);
    let expected = "error: the run `g` has no checkpoint of step 7\nhint: the run has `step 2`, `model`\n";
    assert_eq!((absent.code, absent.stderr.as_str()), (1, expected));

    // A checkpoint can be removed alone. If the run could no longer be resumed, there is a warning.
    let no = "error: the run `g` has no checkpoint of step 7\nhint: the run has `step 2`\n";
    test.fails(&["runs", "rm", "g", "--step", "7", "--yes"], 1, no);
    let cost = "warning: step 2 of `g`: it is the only one: the run could not be resumed\n";
    let refused =
        format!("{cost}error: step 2 of `g` was not removed: there is no terminal to confirm it\nhint: add `--yes`\n");
    test.fails(&["runs", "rm", "g", "--step", "2"], 1, &refused);
    let removed = test.run(&["runs", "rm", "g", "--step", "2", "--yes"]);
    assert_eq!((removed.code, removed.stderr), (0, format!("{cost}removed step 2 of runs/g\n")));
    let left = |path: &str| test.path().join("runs/g").join(path).exists();
    assert!(!left("checkpoints/step-000002") && left("model/config.json") && left("metrics.jsonl"));
}

#[cfg(unix)]
#[test]
fn a_killed_run_is_told_from_a_running_one_and_goes_on() {
    let test = CliTest::with("texts.jsonl", TEXTS);
    let model = fixture_model("gpt2");
    let arguments =
        ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "runs/a", "--max-steps", "100000"];
    let saving = ["--save-steps", "1", "--batch-size", "1"];
    let mut child =
        test.command(&[&arguments[..], &saving].concat()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let entry = || json(&test, &["runs", "list", "--json"])[0].clone();
    let has_checkpoints =
        || std::fs::read_dir(test.path().join("runs/a/checkpoints")).is_ok_and(|entries| entries.flatten().count() > 1);
    wait_until("the run has checkpoints", has_checkpoints);
    let running = entry();
    assert_eq!((&running["state"], &running["steps"]), (&"running".into(), &100_000.into()), "{running}");
    let second = test.run(&[&arguments[..], &["--resume"]].concat());
    let refusal = format!("error: run directory `runs/a` is in use by another gradus (process {}", child.id());
    assert!(second.code == 1 && second.stderr.starts_with(&refusal), "{}", second.stderr);
    for verb in [&["rm", "a", "--yes"][..], &["rename", "a", "b"]] {
        let refused = test.run(&[&["runs"], verb].concat());
        assert!(refused.stderr.starts_with("error: `a` is running and cannot be "), "{}", refused.stderr);
    }
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    let killed = entry();
    assert_eq!((&killed["state"], &killed["reason"]), (&"interrupted".into(), &"the process was killed".into()));

    let more = (killed["step"].as_u64().expect("a number") + 2).to_string();
    assert_eq!(test.succeeds(&["runs", "resume", "a", "--max-steps", &more, "--quiet"]), "runs/a\n");
    assert_eq!((&entry()["state"], entry()["step"].to_string()), (&"finished".into(), more.clone()));
    let done = test.run(&["runs", "resume", "a"]);
    let expected = format!(
        "error: `a` has finished all {more} steps\nhint: set a larger number with `--max-steps` to train further\n"
    );
    assert_eq!((done.code, done.stderr), (1, expected));
}
