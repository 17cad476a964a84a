//! The messages for what is wrong in a configuration, to the letter: excerpt, underline, hint.

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

error: `train.batch_size` is the word `eight`, but a whole number of at least 0 is needed
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
error: `method` chooses `ppo` and `dpo` at once, but takes exactly one
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
error: `reward` is given, but `dpo` samples nothing to reward: it learns from its data alone
  --> run.json:2:2
   |
 2 |  \"reward\": {\"model\": \"rm\"}}
   |  ^^^^^^^^
hint: leave it out, or use `ppo`, `nlpo`, `a2c`, `trpo` or `grpo`
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
    let schema: serde_json::Value = serde_json::from_str(&test.succeeds(&["config", "schema"])).expect("it is JSON");
    assert_eq!(schema["title"], "RunConfig");
}
