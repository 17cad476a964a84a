//! Exact messages for errors in a configuration: excerpt, underline, hint.

use crate::harness::CliTest;

#[test]
fn a_fine_file() {
    let test = CliTest::with("run.yml", "model: gpt2\ndata: rows.jsonl\nmethod: { sft: {} }\n");
    let run = test.run(&["config", "check", "run.yml"]);
    assert_eq!(
        (run.code, run.stdout.as_str(), run.stderr.as_str()),
        (0, "", "run.yml: a `sft` run without problems\n")
    );
}

#[test]
fn json_has_one_line_per_file() {
    let test = CliTest::with("good.yml", "model: gpt2\ndata: rows.jsonl\nmethod: { sft: {} }\n");
    test.write("bad.yml", "model: gpt2\ndata: rows.jsonl\nmethod: { sft: { packin: true } }\n");
    let run = test.run(&["config", "check", "good.yml", "bad.yml", "missing.yml", "--json"]);
    assert!(run.code == 2 && run.stderr.contains("error: unknown key `packin` in `method.sft`"), "{}", run.stderr);
    let lines: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        lines,
        [
            serde_json::json!({ "file": "good.yml", "ok": true, "method": "sft", "problems": [] }),
            serde_json::json!({ "file": "bad.yml", "ok": false, "method": null, "problems": [{
                "message": "unknown key `packin` in `method.sft`",
                "hint": "did you mean `packing`?",
                "locations": [{ "file": "bad.yml", "line": 3, "column": 18 }],
            }] }),
            serde_json::json!({ "file": "missing.yml", "ok": false, "method": null, "problems": [{
                "message": "there is no configuration file `missing.yml`", "hint": null, "locations": [],
            }] }),
        ]
    );
}

#[test]
fn files_of_sweeps_and_comparisons_are_checked_as_their_commands_do() {
    let base = "model: gpt2\ndata: rows.jsonl\n";
    let test = CliTest::with("compare.yml", &format!("{base}methods: {{ sft: {{}}, dpo: {{}} }}\n"));
    let sweep = "sweep: { grid: { train.learning_rate: [1e-5, 1e-4] }, seeds: [1, 2] }\n";
    test.write("sweep.yml", &format!("{base}method: {{ sft: {{}} }}\n{sweep}"));
    let run = test.run(&["config", "check", "sweep.yml", "compare.yml", "--json"]);
    let fine = "sweep.yml: a sweep of 4 runs without problems\ncompare.yml: a comparison of 2 runs without problems\n";
    assert_eq!((run.code, run.stderr.as_str()), (0, fine));
    let lines: Vec<serde_json::Value> =
        run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        lines,
        [
            serde_json::json!({ "file": "sweep.yml", "ok": true, "method": "sft", "problems": [] }),
            serde_json::json!({ "file": "compare.yml", "ok": true, "method": null, "problems": [] }),
        ]
    );
    let resolved = test.succeeds(&["config", "check", "compare.yml", "--resolved"]);
    assert_eq!((resolved.matches("---\n").count(), resolved.matches("\nmethod:").count()), (1, 2), "{resolved}");
    let run = test.run(&["train", "sweep.yml"]);
    assert!(run.code == 2 && run.stderr.contains("hint: a file with `sweep` is for `gradus sweep FILE`"), "{run:?}");
    let run = test.run(&["train", "compare.yml"]);
    assert!(run.stderr.contains("hint: a file with `methods` is for `gradus compare FILE`"), "{run:?}");
    // A problem in keys of all runs is reported once.
    test.write("sweep.yml", &format!("{base}method: {{ dpo: {{ beta: -1 }} }}\n{sweep}"));
    let run = test.run(&["config", "check", "sweep.yml"]);
    assert!(run.code == 2 && run.stderr.matches("error: `method.dpo.beta` is -1").count() == 1, "{run:?}");
}

#[test]
fn every_problem_at_once_where_it_stands() {
    let text = "\
model: gpt2
data: rows.jsonl
method:
  ppo:
    clip_ragne: 0.3
    discount: 1.5
reward: { model: rm }
train: { batch_size: eight }
";
    CliTest::with("run.yml", text).fails(
        &["config", "check", "run.yml"],
        2,
        "
error: unknown key `clip_ragne` in `method.ppo`
  --> run.yml:5:5
   |
 5 |     clip_ragne: 0.3
   |     ^^^^^^^^^^
hint: did you mean `clip_range`?

error: `train.batch_size` is the word `eight`, but a whole number of at least 1 is needed
  --> run.yml:8:22
   |
 8 | train: { batch_size: eight }
   |                      ^^^^^

error: `method.ppo.discount` is 1.5, but must be from 0 to 1
  --> run.yml:6:5
   |
 6 |     discount: 1.5
   |     ^^^^^^^^
",
    );
}

#[test]
fn a_method_that_is_a_word() {
    CliTest::with("run.yml", "model: gpt2\ndata: rows.jsonl\nmethod: ppo\n").fails(
        &["config", "check", "run.yml"],
        2,
        "
error: `method` is the word `ppo`, but a mapping is needed
  --> run.yml:3:9
   |
 3 | method: ppo
   |         ^^^
hint: write `method: { ppo: {} }` for its defaults
",
    );
}

#[test]
fn two_methods_at_once() {
    CliTest::with("run.yml", "model: gpt2\ndata: rows.jsonl\nmethod:\n  ppo: {}\n  dpo: {}\n").fails(
        &["config", "check", "run.yml"],
        2,
        "
error: `method` has `ppo` and `dpo`, but takes exactly one
  --> run.yml:4:3
   |
 4 |   ppo: {}
   |   ^^^
  --> run.yml:5:3
   |
 5 |   dpo: {}
   |   ^^^
",
    );
}

#[test]
fn an_impossible_combination_in_json() {
    let text = "{\"model\": \"m\", \"data\": \"d\", \"method\": {\"dpo\": {}},\n \"reward\": {\"model\": \"rm\"}}\n";
    CliTest::with("run.json", text).fails(
        &["config", "check", "run.json"],
        2,
        "
error: `reward` is given, but `dpo` samples no completions to reward: it trains only on its data
  --> run.json:2:2
   |
 2 |  \"reward\": {\"model\": \"rm\"}}
   |  ^^^^^^^^
hint: leave it out, or use `ppo`, `nlpo`, `a2c`, `trpo`, `grpo` or `rloo`
",
    );
}

#[test]
fn no_such_file_and_no_yaml() {
    let test = CliTest::with("bad.yml", "model: gpt2\n  data: x\n");
    test.fails(&["config", "check", "missing.yml"], 2, "error: there is no configuration file `missing.yml`\n");
    let run = test.run(&["config", "check", "bad.yml"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.starts_with("error: this is not YAML: "), "{}", run.stderr);
    assert!(run.stderr.contains("\n  --> bad.yml:2:"), "{}", run.stderr);
}

#[test]
fn the_resolved_file_marks_what_was_set_and_reads_back() {
    let test =
        CliTest::with("run.yml", "model: gpt2\ndata: d.jsonl\nmethod: { dpo: { beta: 0.2 } }\ntrain: { seed: 7 }\n");
    let text = test.succeeds(&["config", "check", "run.yml", "--resolved"]);
    for line in [
        "model: gpt2 # set",
        "    beta: 0.2 # set",
        "    loss_type: sigmoid",
        "  seed: 7 # set",
        "  learning_rate: 1e-6",
    ] {
        assert!(text.lines().any(|found| found == line), "`{line}` is not in\n{text}");
    }
    test.write("again.yml", &text);
    let unmarked = |text: &str| text.replace(" # set", "");
    assert_eq!(unmarked(&test.succeeds(&["config", "check", "again.yml", "--resolved"])), unmarked(&text));
}

#[test]
fn keys_of_earlier_versions_are_read_and_listed() {
    let text = "\
model: gpt2
data: rows.jsonl
method:
  ppo:
    part_size: 4
    whitening: { rewards: biased }
    whiten_rewards: true
reward: { model: rm }
";
    let test = CliTest::with("run.yml", text);
    let run = test.run(&["config", "check", "run.yml"]);
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (
            0,
            "warning: `run.yml` has keys whose place has changed. gradus still reads the old places.\n  \
             run.yml:5: `method.ppo.part_size` is now `method.ppo.quirks.part_size`\n  \
             run.yml:6: `method.ppo.whitening` is now `method.ppo.quirks.whitening`\n\
             run.yml: a `ppo` run without problems\n"
        )
    );
    let resolved = test.succeeds(&["config", "check", "run.yml", "--resolved"]);
    for line in ["    quirks:", "      part_size: 4 # set", "        rewards: biased # set"] {
        assert!(resolved.lines().any(|found| found == line), "`{line}` is not in\n{resolved}");
    }
    test.write("both.yml", &text.replace("    part_size: 4\n", "    part_size: 4\n    quirks: { part_size: 2 }\n"));
    let run = test.run(&["config", "check", "both.yml"]);
    let expected = "\
error: `method.ppo.part_size` is the old place of `method.ppo.quirks.part_size`, and the file has both
  --> both.yml:5:5
   |
 5 |     part_size: 4
   |     ^^^^^^^^^
  --> both.yml:6:15
   |
 6 |     quirks: { part_size: 2 }
   |               ^^^^^^^^^
hint: keep only `method.ppo.quirks.part_size`
";
    assert_eq!((run.code, run.stderr.as_str()), (2, expected));
}

#[test]
fn explain_and_schema() {
    let test = CliTest::new();
    assert_eq!(
        test.succeeds(&["config", "explain", "method.ppo.clip_range"]),
        "method.ppo.clip_range  (number, default 0.2)\n    \
         Clip range of the policy ratio. Default 0.2 (Schulman et al. 2017, section 6.1).\n"
    );
    test.fails(
        &["config", "explain", "clip_rnge"],
        1,
        "error: there is no key `clip_rnge`\nhint: did you mean `clip_range`?\n",
    );
    // The old path of a key that has moved.
    test.fails(
        &["config", "explain", "method.ppo.part_size"],
        1,
        "error: there is no key `method.ppo.part_size`\nhint: it is now `method.ppo.quirks.part_size`\n",
    );
    let named = test.succeeds(&["config", "explain", "part_size"]);
    assert!(named.starts_with("method.ppo.quirks.part_size  ("), "{named}");
    let schema: serde_json::Value = serde_json::from_str(&test.succeeds(&["config", "schema"])).expect("it is JSON");
    assert_eq!(schema["title"], "RunConfig");
}

#[test]
fn a_file_that_is_no_mapping_or_more_than_any_run_needs() {
    let check = |text: &str| {
        let run = CliTest::with("run.yml", text).run(&["config", "check", "run.yml"]);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
        assert!(run.stderr.len() < 60_000, "{} bytes of messages", run.stderr.len());
        run.stderr
    };
    let scalar = check("hello\n");
    assert!(scalar.starts_with("error: the configuration is the word `hello`, but a mapping is needed\n"), "{scalar}");

    // Nine levels of ten aliases each stand for a billion values.
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    let bomb = check(&bomb);
    assert!(bomb.contains("the configuration has more than 100000 values (including those of aliases)"), "{bomb}");
    let deep = check(&format!("a: {}1{}\n", "[".repeat(150), "]".repeat(150)));
    assert!(deep.contains("the configuration has more than 100 levels"), "{deep}");

    let keys: String = (0..40_000).map(|i| format!("k{i}: 1\n")).collect();
    let many = check(&keys);
    assert!(many.contains("unknown key `k49`") && !many.contains("unknown key `k50`"), "{many}");
    assert!(many.contains("error: 39950 more keys are unknown\n"), "{many}");
    let line: Vec<String> = (0..40_000).map(|i| format!("k{i}: 1")).collect();
    let line = check(&format!("{{{}}}\n", line.join(", ")));
    assert!(line.contains("unknown key `k49`"), "{line}");
}

#[test]
fn whole_numbers_have_bounds_that_mean_something() {
    let test = CliTest::new();
    for (flags, expected) in [
        (
            &["--threads", "4000000000"][..],
            "`train.threads` is `4000000000`, but a whole number from 1 to 1024 is needed",
        ),
        (&["--batch-size", "1e12"], "`train.batch_size` is `1e12`, but a whole number from 1 to 1000000 is needed"),
        (&["--seed", "18446744073709551616"], "a whole number from 0 to 18446744073709551615 is needed"),
        (&["--lora-rank", "100000000"], "a whole number from 1 to 65536 is needed"),
        (&["--max-steps", "100000000000"], "a whole number from 1 to 1000000000 is needed"),
        (&["--output-dir", ""], "`output_dir` is empty"),
    ] {
        let run = test.run(&[&["sft", "--model", "m", "--data", "d"], flags].concat());
        assert_eq!(run.code, 2, "{}", run.stderr);
        assert!(run.stderr.contains(expected), "{expected} in {}", run.stderr);
    }
    let grpo = ["grpo", "--model", "m", "--data", "d", "--reward-rule-substring", "e", "--group-size", "5000000"];
    let run = test.run(&grpo);
    assert!(run.stderr.contains("a whole number from 2 to 65536 is needed"), "{}", run.stderr);
}

#[cfg(unix)]
#[test]
fn pipes_in_directories_of_data_and_runs_are_refused() {
    let test = CliTest::with("data/b.jsonl", "{\"text\": \"The tea is good.\"}\n");
    std::fs::create_dir_all(test.path().join("runs/one")).expect("a directory");
    test.write("runs/one/config.yml", "# Written by gradus 0.1.0\n");
    for pipe in ["data/a.jsonl", "runs/one/state.json"] {
        let pipe = test.path().join(pipe);
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().expect("mkfifo").success());
    }
    // Opening a pipe would wait for a writer.
    test.fails(&["data", "show", "data"], 1, "error: data/a.jsonl: it is a pipe, but a file is needed\n");
    let table = test.succeeds(&["runs", "list"]);
    assert!(table.contains("one cannot be read: runs/one/state.json: it is a pipe, but a file is needed"), "{table}");
}

#[cfg(unix)]
#[test]
fn a_configuration_comes_from_a_file_or_a_pipe_with_an_end() {
    use std::io::Write as _;
    let test = CliTest::new();
    let pipe = test.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    test.fails(
        &["config", "check", "pipe"],
        2,
        "error: configuration file `pipe` cannot be read: it is a pipe, but a file is needed\n",
    );
    test.fails(
        &["config", "check", "/dev/urandom"],
        2,
        "error: configuration file `/dev/urandom` cannot be read: it is a device, but a file is needed\n",
    );
    let mut command = test.command(&["config", "check", "/dev/stdin"]);
    let mut child =
        command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("runs");
    let text = "model: gpt2\ndata: rows.jsonl\nmethod: { sft: {} }\n";
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "/dev/stdin: a `sft` run without problems\n");
}

/// A file with one long line is not printed in full in messages about it.
#[test]
fn a_long_line_of_yaml_is_not_printed_whole() {
    let long = "x".repeat(200_000);
    let test = CliTest::new();
    let files = [
        format!("{{model: a, data: b, method: {{sft: {{}}}}, {long}: 1}}"),
        format!("{{model: a, data: b, method: {{sft: {{beta: {long}}}}}}}"),
        format!("{{model: a, data: b, train: {{batch_size: {long}}}, method: {{sft: {{}}}}}}"),
        format!("{{model: a, data: [{long}"),
        format!("{{model: a, method: {long}}}"),
    ];
    for file in files {
        test.write("run.yml", &file);
        for arguments in
            [&["config", "check", "run.yml"][..], &["annotate", "new", "p", "--data", "d", "--labels", "run.yml"]]
        {
            let run = test.run(arguments);
            assert!(run.code != 0 && run.stderr.len() < 10_000, "{arguments:?}: {} bytes", run.stderr.len());
        }
    }
}

#[test]
fn what_other_tools_call_a_key_is_explained() {
    let test = CliTest::new();
    test.fails(
        &["config", "explain", "lr"],
        1,
        "error: there is no key `lr`\nhint: it is `train.learning_rate` here\n",
    );
    assert!(test.succeeds(&["config", "explain", "learning_rate"]).contains("train.learning_rate"));
    let run = test.run(&["finetune"]);
    assert!(run.code == 2 && run.stderr.contains("it is `gradus train FILE`"), "{}", run.stderr);
}
