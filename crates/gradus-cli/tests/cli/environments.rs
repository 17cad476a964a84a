//! Environments and tools: training over several turns, failures, and resuming.

use std::path::Path;

use crate::harness::{CliTest, fixture_model};

/// The qwen3 model of the trajectory fixtures, whose template marks turns.
fn model() -> String {
    fixture_model("qwen3")
}

const PROMPTS: usize = 8;

fn test() -> CliTest {
    let row = "{\"messages\": [{\"role\": \"user\", \"content\": \"Let us play. \"}], \"answer\": 7}\n";
    CliTest::with("games.jsonl", &row.repeat(PROMPTS))
}

/// Arguments of a small run of `method` with additional ones. An untrained model rarely ends a turn, so some letters are stop strings.
fn arguments<'a>(method: &'a str, model: &'a str, output: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let known = [
        method,
        "--model",
        model,
        "--data",
        "games.jsonl",
        "--output-dir",
        output,
        "--batch-size",
        "4",
        "--learning-rate",
        "1e-3",
        "--max-new-tokens",
        "90",
        "--stop",
        "e",
        "--stop",
        "a",
        "--eval-steps",
        "2",
        "--save-steps",
        "2",
        "--quiet",
    ];
    let groups: &[&str] = if ["grpo", "rloo"].contains(&method) { &["--group-size", "4"] } else { &[] };
    [&known, groups, more].concat()
}

const GUESS: &str = "{ guess: { low: 1, high: 9, guesses: 3 } }";

#[test]
fn every_online_method_plays() {
    let (test, model) = (test(), model());
    for method in ["grpo", "rloo", "ppo", "a2c", "nlpo", "trpo"] {
        test.succeeds(&arguments(method, &model, method, &["--environment", GUESS, "--max-steps", "2"]));
        let last = test.read(&format!("{method}/metrics.jsonl")).lines().last().expect("a step").to_owned();
        let last: serde_json::Value = serde_json::from_str(&last).expect("JSON");
        assert!(last["environment/turns"].as_f64().expect("logged") > 1.0, "{method}: {last}");
        assert_eq!(last["environment/failed"], 0.0, "{method}: {last}");
        assert!(last["eval_environment/turns"].is_number() && last["reward"].is_number(), "{method}: {last}");
    }
    let shown = test.succeeds(&["runs", "rollouts", "grpo", "--step", "2"]);
    for part in ["Let us play. Guess my number between 1 and 9.", "\npolicy", "\nenvironment\n", "episode ended: "] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let json = test.succeeds(&["runs", "rollouts", "grpo", "--step", "2", "--json"]);
    assert!(json.contains("\"opening\":") && json.contains("\"turns\":"), "{json}");
}

/// An environment whose replies differ on every call. Every second episode has one turn, the others two. With `crashes`, the program ends
/// at the second turn of an episode in the second step.
fn program(crashes: bool) -> String {
    format!(
        r#"
import json, os, sys
turns = {{}}
for line in sys.stdin:
    asked = json.loads(line)
    name = asked.get("episode")
    answer = {{"id": asked["id"]}}
    if asked["do"] == "reset":
        turns[name] = 0
    elif asked["do"] == "step":
        turns[name] += 1
        if {crashes} and name.startswith("step 2,") and turns[name] == 2:
            sys.exit("out of paper")
        done = turns[name] == 2 or int(name[-1]) % 2 == 0
        answer.update(replies=f"{{os.urandom(2).hex()}}?", reward=len(asked["turn"]["text"]) % 3, done=done)
    print(json.dumps(answer), flush=True)
"#,
        crashes = if crashes { "True" } else { "False" }
    )
}

fn has_python() -> bool {
    let is_there = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !is_there {
        crate::skip::skipped("python3", "environments that are programs of Python");
    }
    is_there
}

const PROGRAM: &str = "{ command: { program: [python3, environment.py] } }";

#[test]
fn a_resumed_run_reads_recorded_answers_again_to_the_same_bits() {
    if !has_python() {
        return;
    }
    let (test, model) = (test(), model());
    test.write("environment.py", &program(false));
    test.succeeds(&arguments("grpo", &model, "run", &["--environment", PROGRAM, "--max-steps", "4"]));
    let weights = |run: &str| std::fs::read(test.path().join(run).join("model/model.safetensors")).expect("weights");
    let whole = weights("run");
    let again = arguments("grpo", &model, "again", &["--environment", PROGRAM, "--max-steps", "4"]);
    test.succeeds(&again);
    assert_ne!(weights("again"), whole, "the answers differ from run to run");

    // Simulates a process that was killed after its last step was recorded and before its checkpoint was written.
    for lost in ["checkpoints/step-000004", "model", "results.json", "best"] {
        let path = test.path().join("run").join(lost);
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
    let before = test.succeeds(&["runs", "rollouts", "run", "--json"]);
    test.succeeds(&["grpo", "--output-dir", "run", "--resume", "--quiet"]);
    assert_eq!(weights("run"), whole, "the same answers give the same weights");
    assert_eq!(test.succeeds(&["runs", "rollouts", "run", "--json"]), before, "and no episode is lost or there twice");
}

#[test]
fn a_crash_costs_its_episodes_visibly_and_the_run_goes_on() {
    if !has_python() {
        return;
    }
    let (test, model) = (test(), model());
    test.write("environment.py", &program(true));
    let run = test.run(&arguments("grpo", &model, "run", &["--environment", PROGRAM, "--max-steps", "4"]));
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("an episode failed and is left out: step "), "{}", run.stderr);
    assert!(run.stderr.contains("out of paper"), "{}", run.stderr);
    let json = test.succeeds(&["runs", "rollouts", "run", "--json"]);
    let records: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let failed: Vec<_> = records.iter().filter(|record| record["episode"]["end"] == "failed").collect();
    assert!(!failed.is_empty() && failed.len() < records.len(), "{} of {}", failed.len(), records.len());
    assert!(failed.iter().all(|record| record["reward"].is_null()), "a failure is no reward");
}

#[test]
fn the_example_program_runs() {
    if !has_python() {
        return;
    }
    let (test, model) = (test(), model());
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/environments/capitals.py");
    let environment = format!("{{ command: {{ program: [python3, '{}'] }} }}", example.display());
    test.succeeds(&arguments("grpo", &model, "run", &["--environment", &environment, "--max-steps", "1"]));
    let shown = test.succeeds(&["runs", "rollouts", "run"]);
    assert!(shown.contains("What is the capital of") && shown.contains("Wrong. And of"), "{shown}");
}

#[test]
fn tools_are_shown_and_called() {
    let test = test();
    // The tools are longer than the context of the other model.
    test.succeeds(&["new-model", "--family", "qwen3", "--tokenizer", &model(), "--output", "tiny"]);
    let model = "tiny".to_owned();
    let tools = ["--tools", "[{ calculator: {} }]", "--reward-rule-numeric-answer", "answer", "--max-steps", "1"];
    let arguments = arguments("grpo", &model, "run", &tools);
    let run = test.run(&arguments);
    let expected = "the chat template does not show how the model writes calls of tools";
    assert!(run.code == 1 && run.stderr.contains(expected), "{} {}", run.code, run.stderr);
    test.succeeds(&[&arguments[..], &["--episode-tool-calls", "hermes"]].concat());
    let shown = test.succeeds(&["runs", "rollouts", "run"]);
    assert!(shown.contains("<|turn|>tools") && shown.contains("Computes an arithmetic expression"), "{shown}");
    let metrics = test.read("run/metrics.jsonl");
    assert!(metrics.contains("\"tools/call_frequency\":"), "{metrics}");
    // Together with an environment.
    let both = [
        "--environment",
        GUESS,
        "--tools",
        "[{ calculator: {} }]",
        "--episode-tool-calls",
        "hermes",
        "--max-steps",
        "1",
    ];
    test.succeeds(&self::arguments("grpo", &model, "both", &both));
    let shown = test.succeeds(&["runs", "rollouts", "both"]);
    assert!(shown.contains("Guess my number") && shown.contains("Computes an arithmetic expression"), "{shown}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (test, model) = (test(), model());
    let refused = |more: &[&str], part: &str| {
        let run = test.run(&arguments("grpo", &model, "run", more));
        assert!(run.code != 0 && run.stderr.contains(part), "{part} in {}", run.stderr);
    };
    let twice = ["--environment", "{ arithmetic: {} }", "--tools", "[{ calculator: {} }]"];
    refused(&twice, "`tools`: the environment already has a tool `calculator`");
    let nowhere = ["--tools", "[{ mcp: {} }]", "--reward-rule-numeric-answer", "answer"];
    refused(&nowhere, "`tools`: the MCP server has neither `command` nor `url`");
    refused(
        &["--environment", "{ guess: { low: 5, high: 5 } }"],
        "`environment.guess.high` is 5, but `high` must be above `low`",
    );
    refused(&["--environment", "{ command: { program: [/nowhere/env] } }"], "could not be started");
    refused(&["--environment", "{ gues: {} }"], "guess");
    refused(&["--environment", GUESS, "--episode-max-turns", "0"], "`episode.max_turns` is 0, but must be at least 1");
    let file = format!("model: {model}\ndata: games.jsonl\nmethod: {{ sft: {{}} }}\nenvironment: {GUESS}\n");
    test.write("sft.yml", &file);
    let run = test.run(&["train", "sft.yml"]);
    let expected = "`environment` is given, but `sft` samples no completions for an environment to answer";
    assert!(run.code == 2 && run.stderr.contains(expected), "{}", run.stderr);
}

/// A child process that is killed when the value is dropped.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server samples nothing itself. The current policy does, also in evaluations.
#[test]
fn a_policy_learns_from_a_server_of_verifiers() {
    let python = std::env::var("GRADUS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let packages = "import verifiers.v1.serve.server, renderers, transformers";
    let has = std::process::Command::new(&python).args(["-c", packages]).stderr(std::process::Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        return crate::skip::skipped("servers", &format!("`{python}` has no package `verifiers`"));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus-environments/tests/verifiers.py");
    let child = std::process::Command::new(&python).arg(script).stdout(std::process::Stdio::piped()).spawn();
    let mut child = Child(child.expect("Python starts"));
    let mut port = String::new();
    let stdout = child.0.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut port).expect("a line");
    let rows: String = (0..PROMPTS).map(|i| format!("{{\"prompt\": \"Tea {i}?\", \"turns\": 1}}\n")).collect();
    let (test, model) = (CliTest::with("games.jsonl", &rows), model());
    let environment = format!(
        "{{ verifiers: {{ address: 'tcp://127.0.0.1:{}', tokenizer: '{model}', timeout_s: 120 }} }}",
        port.trim()
    );
    test.succeeds(&arguments("grpo", &model, "run", &["--environment", &environment, "--max-steps", "3"]));
    let steps: Vec<serde_json::Value> =
        test.read("run/metrics.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let last = steps.last().expect("a step");
    assert_eq!((&last["environment/failed"], &last["environment/turns"]), (&0.0.into(), &1.0.into()), "{last}");
    assert!(last["environment/length"].is_number() && last["reward"].is_number(), "{last}");
    assert!(steps.iter().any(|step| step["eval_environment/turns"].is_number()), "{steps:?}");
    let shown = test.succeeds(&["runs", "rollouts", "run", "--step", "1"]);
    assert!(shown.contains("Tea ") && shown.contains("\npolicy"), "{shown}");
}
