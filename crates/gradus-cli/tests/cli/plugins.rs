//! Metrics and tasks as external programs: those printed in docs/plugins.md, and their failures.

use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Returns the programs in docs/plugins.md, with the file names from their first lines. Without Python, skips visibly and returns `None`.
fn programs() -> Option<Vec<(String, String)>> {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plugins.md")).expect("there");
    let programs: Vec<(String, String)> = docs
        .split("```python\n")
        .skip(1)
        .map(|rest| {
            let program = rest.split("```").next().expect("it ends");
            let name = program.strip_prefix("# ").and_then(|rest| rest.split(':').next()).expect("a name");
            (name.to_owned(), program.to_owned())
        })
        .collect();
    let names: Vec<&str> = programs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["metric.py", "rows.py"]);
    let has_python =
        std::process::Command::new("python3").arg("--version").output().is_ok_and(|it| it.status.success());
    if !has_python {
        crate::skip::skipped("python3", "the programs of docs/plugins.md are not run");
    }
    has_python.then_some(programs)
}

fn with_programs() -> Option<CliTest> {
    let programs = programs()?;
    let test = CliTest::new();
    programs.iter().for_each(|(name, text)| drop(test.write(name, text)));
    Some(test)
}

#[test]
fn the_metric_of_the_documents_measures_rows() {
    let Some(test) = with_programs() else { return };
    let rows = [
        json!({ "prediction": "the sun rises", "references": ["The sun sets"] }),
        json!({ "prediction": "warm", "references": [] }),
    ];
    test.write("rows.jsonl", &rows.map(|row| format!("{row}\n")).concat());
    let options = ["--metric-option", "program=python3 metric.py", "--metric-option", "name=mine", "--json"];
    let eval = ["eval", "--data", "rows.jsonl", "--metrics", "chrf,command"];
    let refused = test.run(&[&eval[..], &options].concat());
    assert!(refused.stderr.contains("no references"), "chrF needs some: {}", refused.stderr);
    let eval = ["eval", "--data", "rows.jsonl", "--metrics", "command"];
    let found = json(&test.succeeds(&[&eval[..], &options].concat()));
    // Two of the reference's three words occur in the prediction. One row has no reference.
    assert_eq!(found["metrics"], json!({ "mine/words": 2.0, "mine/recall": 2.0 / 3.0 }));
    assert_eq!(found["rows"][1], json!({ "mine/words": 1.0, "mine/recall": null }));
    assert!(found["intervals"]["mine/words"].is_array(), "{found}");
}

#[test]
fn the_task_of_the_documents_is_shown_and_trained_on_and_measured_by_its_metric() {
    let Some(test) = with_programs() else { return };
    let task = "{command: {program: [python3, rows.py], metrics: [exact_match]}}";
    let shown = json(&test.succeeds(&["data", "show", "--task", task, "--json"]));
    assert_eq!(shown["stats"]["rows"], 90);
    assert_eq!(shown["examples"][1]["prompt"], "0 + 1 =");
    let held_out = json(&test.succeeds(&["data", "show", "--task", task, "--split", "validation", "--json"]));
    assert_eq!((&held_out["stats"]["rows"], &held_out["examples"][0]["prompt"]), (&10.into(), &"0 + 9 =".into()));

    let model = fixture_model("gpt2");
    test.write(
        "run.yml",
        &format!(
            "model: {model}\ndata: {{ task: {task} }}\noutput_dir: run\n\
             method: {{ grpo: {{ group_size: 2, max_new_tokens: 4 }} }}\n\
             reward: {{ metric: {{ command: [python3, metric.py] }} }}\n\
             train:\n  max_steps: 1\n  batch_size: 2\n  eval_steps: 1\n  max_eval_rows: 4\n\
             \x20 evaluation: {{ metrics: [{{ command: {{ program: [python3, metric.py], name: mine }} }}] }}\n"
        ),
    );
    test.succeeds(&["train", "run.yml", "--quiet"]);
    let logged = test.read("run/metrics.jsonl").lines().map(json).collect::<Vec<_>>();
    let last = logged.last().expect("steps");
    assert!(last["rewards/command/mean"].is_number() && last["eval_mine/words"].is_number(), "{last}");
    assert!(last["eval_mine/recall"].is_number(), "{last}");
    // `eval --task` uses the task's own metrics.
    let eval = ["eval", "--model", &model, "--task", task, "--max-new-tokens", "3", "--json"];
    let found = json(&test.succeeds(&eval));
    assert!(found["exact_match"].is_number() && found["rows"] == 10, "{found}");
}

#[cfg(unix)]
#[test]
fn what_a_program_does_wrong_is_told_with_its_last_words() {
    let test = CliTest::with("rows.jsonl", "{\"prediction\": \"a\", \"references\": [\"a\"]}\n");
    let check = |arguments: &[&str], code: i32, parts: &[&str]| {
        let run = test.run(arguments);
        assert_eq!(run.code, code, "{run:?}");
        for part in parts {
            assert!(run.stderr.contains(part), "`{part}` is missing in: {}", run.stderr);
        }
    };
    let eval =
        |program: &'static str| ["eval", "--data", "rows.jsonl", "--metrics", "command", "--metric-option", program];
    check(
        &eval("program=sh -c 'echo no paper >&2; exit 3'"),
        1,
        &["rows.jsonl:1", "`command`: the metric command `sh` ended before it answered (exit status: 3)", "no paper"],
    );
    check(
        &eval("program=/nowhere/metric"),
        2,
        &["the metric command `/nowhere/metric` could not be started", "is it installed"],
    );
    check(&eval("program="), 2, &["the metric command has no program"]);
    check(&eval("program='open"), 1, &["the option `program` of `command`"]);
    let task = "{command: [sh, -c, 'echo oops']}";
    check(&["data", "show", "--task", task], 1, &["the task command `sh -c echo oops`:1", "found `oops`"]);
    check(&["config", "check", "bad.yml"], 2, &["bad.yml"]);
    test.write(
        "bad.yml",
        "model: m\ndata: { task: { command: [] } }\nmethod: { grpo: {} }\nreward: { metric: { command: { program: [a], timeout_s: 0 } } }\n",
    );
    check(
        &["config", "check", "bad.yml"],
        2,
        &["`data.task`: the task command has no program", "`reward.metric`: the metric command's `timeout_s` is 0"],
    );
}

#[test]
fn a_plug_in_that_the_binary_does_not_have_is_refused_with_a_way_out() {
    let test = CliTest::with(
        "run.yml",
        "model: m\ndata: d\nmethod: { grpo: {} }\nreward: { plugin: { brevity: { words: 3 } } }\nobservers: [{ events: {} }]\n",
    );
    let run = test.run(&["config", "check", "run.yml"]);
    assert_eq!(run.code, 2);
    for part in [
        "`reward.plugin` names `brevity`, but this program has no such plug-ins",
        "run.yml:4:21",
        "`observers[0]` names `events`",
        "docs/plugins.md",
    ] {
        assert!(run.stderr.contains(part), "`{part}` is missing in: {}", run.stderr);
    }
}
