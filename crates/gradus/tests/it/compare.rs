//! A comparison end to end: several methods with the same start model, measured on the same prompts.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use std::fs;
use std::path::Path;

use gradus::compare::{ComparisonInput, run};
use gradus::comparison::{Comparison, Entry};
use gradus::config::{ComparisonDefinition, ComparisonRequest, Plan, Registry};
use gradus::machine::Machine;
use gradus::reward::{Reward, RewardError, Score};
use gradus::rollout::{Prompt, Rollouts};
use gradus::run::{Existing, RunDir};
use gradus::train::observer::{Event, Observer};
use serde_json::Value;

#[derive(Default)]
struct Messages(Vec<String>);

impl Observer for Messages {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Message(text) | Event::Warning(text) = event {
            self.0.push((*text).to_owned());
        }
    }
}

fn pairs(path: &Path) {
    let row = |i: usize| {
        let (name, end) = (["bear", "girl", "fox"][i % 3], ["!", "."][i % 2]);
        serde_json::json!({"prompt": format!("The {name} {i}"), "chosen": format!(" is happy{end}"), "rejected": " is sad."})
    };
    let text: String = (0..24).map(|i| row(i).to_string() + "\n").collect();
    fs::write(path, text).unwrap();
}

fn compare(file: &str, existing: Existing, observer: &mut Messages) -> gradus::Result<Value> {
    compare_written(&ComparisonDefinition::parse(file)?, existing, observer)
}

fn compare_written(
    written: &ComparisonDefinition,
    existing: Existing,
    observer: &mut Messages,
) -> gradus::Result<Value> {
    let machine = Machine::detect();
    let plan = |run| Plan::check(run, &machine).map(|plan| plan.on_existing(existing));
    let runs = written.runs.iter().map(plan).collect::<gradus::Result<Vec<_>>>()?;
    let judge = written.judge.as_ref().map(plan).transpose()?;
    let input = ComparisonInput { runs: &runs, judge: judge.as_ref(), directory: &written.output_dir };
    run(&input, observer).map(|comparison| comparison.to_json())
}

/// One file of pairs serves all methods: unpaired methods split the pairs, online methods sample from the prompts, and
/// distillation uses the chosen answers.
#[test]
fn pairs_compare_every_method_that_can_learn_from_them() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("pairs.jsonl");
    pairs(&data);
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models");
    let file = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nreward: {{ rule: {{ length: {{ target: 4 }} }} }}\n\
         methods:\n  simpo: {{}}\n  cpo: {{}}\n  kto: {{}}\n  distill: {{ teacher_model: {}, max_new_tokens: 6 }}\n  \
         rloo: {{ max_new_tokens: 6 }}\n\
         train: {{ max_steps: 2, batch_size: 4, eval_fraction: 0.25, learning_rate: 1e-3 }}\n",
        models.join("qwen3").display(),
        data.display(),
        directory.path().join("all").display(),
        models.join("gpt2").display()
    );
    let json = compare(&file, Existing::Refuse, &mut Messages::default()).unwrap();
    let entries = json["entries"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["start", "simpo", "cpo", "kto", "distill", "rloo"]);
    for entry in &entries[1..] {
        assert!(["reward", "wins", "kl", "length"].iter().all(|key| entry[key].is_number()), "{entry}");
        assert!(entry["kl"] != 0.0, "a trained policy differs from its start: {entry}");
    }
    assert_eq!(
        json["budget"],
        "simpo 2 steps of 4 pairs; cpo 2 steps of 4 pairs; kto 2 steps of 4 rows; distill 2 steps of 4 rows; \
         rloo 2 iterations of 4 prompts × 2 completions; seed 42"
    );
}

#[test]
fn methods_are_trained_and_measured_alike() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("pairs.jsonl");
    pairs(&data);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/qwen3");
    let output = directory.path().join("three");
    let file = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nreward: {{ rule: {{ length: {{ target: 4 }} }} }}\n\
         methods:\n  dpo: {{ train: {{ learning_rate: 1e-3 }} }}\n  ppo: {{ max_new_tokens: 6, update_epochs: 1 }}\n  grpo: {{ group_size: 2, max_new_tokens: 6 }}\n\
         train: {{ max_steps: 2, batch_size: 4, eval_fraction: 0.25 }}\n",
        model.display(),
        data.display(),
        output.display()
    );
    let mut messages = Messages::default();
    let json = compare(&file, Existing::Refuse, &mut messages).unwrap();

    let entries = json["entries"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry["method"].as_str().unwrap()).collect();
    assert_eq!((names, &json["prompts"]), (vec!["start", "dpo", "ppo", "grpo"], &Value::from(6)));
    assert_eq!((&entries[0]["kl"], &entries[0]["wins"]), (&Value::from(0.0), &Value::Null));
    for entry in &entries[1..] {
        assert!(["reward", "wins", "kl", "length", "elapsed_s"].iter().all(|key| entry[key].is_number()), "{entry}");
        assert_eq!(entry["steps"], Value::from(2), "equal budgets");
    }
    assert!(entries[1]["kl"] != 0.0, "a trained policy differs from its start");
    assert_eq!(
        json["budget"],
        "dpo 2 steps of 4 pairs; ppo 2 iterations of 4 prompts × 1 completions; grpo 2 iterations of 4 prompts × 2 completions; seed 42"
    );

    let at = output.join("comparison");
    let lines: Vec<Value> = fs::read_to_string(at.join("samples.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6);
    assert!(lines.iter().all(|line| line["completions"].as_object().unwrap().len() == 4));
    for name in ["comparison.md", "samples.md", "report.html", "results.png", "plots/grad_norm.png"] {
        assert!(at.join(name).is_file(), "{name}");
    }
    assert!(fs::read_to_string(output.join("dpo/log.txt")).unwrap().contains("training: 2 to do"));

    // A second time: an existing run is rejected. When resumed, nothing is trained again and the numbers are the same.
    let refused = compare(&file, Existing::Refuse, &mut messages).unwrap_err();
    let expected = format!("output directory `{}` exists and is not empty", output.join("dpo").display());
    assert_eq!(refused.to_string(), expected);
    messages.0.clear();
    assert_eq!(compare(&file, Existing::Resume, &mut messages).unwrap(), json);
    assert_eq!(messages.0.iter().filter(|text| text.contains("already finished")).count(), 3);
}

/// Without a method that samples, completions have a default length, which leaves room for the prompts of a small model.
#[test]
fn methods_that_do_not_sample_are_measured_on_a_model_with_few_positions() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("pairs.jsonl");
    pairs(&data);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
    let file = |evaluation: &str| {
        format!(
            "model: {}\ndata: {}\noutput_dir: {}\nmethods: {{ sft: {{}} }}\n\
             train: {{ max_steps: 1, batch_size: 2, eval_fraction: 0.25, evaluation: {evaluation} }}\n",
            model.display(),
            data.display(),
            directory.path().join("out").display()
        )
    };
    let error = compare(&file("{ max_new_tokens: 192 }"), Existing::Refuse, &mut Messages::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`train.evaluation.max_new_tokens` (192) leaves no room for a prompt within 192 tokens"
    );
    assert_eq!(
        error.hint(),
        Some("prompt and completion share 192 tokens: pass `--evaluation-max-new-tokens 96` or less")
    );
    let json = compare(&file("{}"), Existing::Refuse, &mut Messages::default()).unwrap();
    assert!(json["evaluation"].as_str().unwrap().contains("of at most 96 tokens"), "{}", json["evaluation"]);
}

/// A reward whose metric lacks a resource.
struct Lacking;

impl Reward for Lacking {
    fn name(&self) -> String {
        "lacking".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Vec<Result<Score, RewardError>> {
        rollouts.rollouts.iter().map(|rollout| Ok(Score::sequence(1.0, rollout.completion_ids.len()))).collect()
    }

    fn remarks(&self, _prompts: &[&Prompt]) -> Vec<String> {
        vec!["`lacking` is computed without its dictionary".into()]
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoOptions {}

/// Methods that do not sample train without the reward, so only the comparison reports its remark.
#[test]
fn the_remark_on_the_reward_that_measures_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("pairs.jsonl"), directory.path().join("compare.yml"));
    pairs(&data);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
    let text = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nreward: {{ plugin: {{ lacking: {{}} }} }}\nmethods: {{ sft: {{}}, dpo: {{}} }}\n\
         train: {{ max_steps: 1, batch_size: 2, eval_fraction: 0.25, evaluation: {{ max_new_tokens: 4 }} }}\n",
        model.display(),
        data.display(),
        directory.path().join("out").display()
    );
    fs::write(&file, text).unwrap();
    let mut registry = Registry::default();
    registry.reward("lacking", |_: &NoOptions, _| Ok(Lacking)).unwrap();
    let request = ComparisonRequest { file: Some(&file), registry: Some(&registry), ..ComparisonRequest::default() };
    let mut messages = Messages::default();
    compare_written(&ComparisonDefinition::load(&request).unwrap(), Existing::Refuse, &mut messages).unwrap();
    let remarks = messages.0.iter().filter(|text| text.contains("without its dictionary"));
    assert_eq!(remarks.collect::<Vec<_>>(), ["`lacking` is computed without its dictionary"]);
}

/// A method with longer rows than the others must not fail after they have trained.
#[test]
fn the_rows_of_all_methods_are_checked_before_the_first_one_trains() {
    let directory = tempfile::tempdir().unwrap();
    let (data, out) = (directory.path().join("pairs.jsonl"), directory.path().join("out"));
    // SFT reads the short answers only.
    let row = |i: usize| {
        let long = "It is sad. ".repeat(100);
        serde_json::json!({"prompt": format!("The bear {i}"), "chosen": " is happy.", "rejected": long}).to_string()
            + "\n"
    };
    fs::write(&data, (0..16).map(row).collect::<String>()).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
    let file = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nmethods: {{ sft: {{}}, dpo: {{}} }}\n\
         train: {{ max_steps: 1, batch_size: 2, eval_fraction: 0.25, max_length: 1024, evaluation: {{ max_new_tokens: 4 }} }}\n",
        model.display(),
        data.display(),
        out.display()
    );
    let error = compare(&file, Existing::Refuse, &mut Messages::default()).unwrap_err();
    assert!(error.to_string().contains("has 192 positions, but the longest sequence of this run has "), "{error}");
    assert_eq!(error.hint(), Some("set `train.max_length` to 192"));
    assert!(!out.exists(), "nothing has trained");
}

/// A figure that needs a remark has it in every file that keeps the figure.
#[test]
fn the_remark_on_a_figure_is_kept_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("pairs.jsonl"), directory.path().join("compare.yml"));
    pairs(&data);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
    let out = directory.path().join("out");
    let text = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nreward: {{ plugin: {{ lacking: {{}} }} }}\n\
         methods: {{ sft: {{}}, grpo: {{ group_size: 2, max_new_tokens: 4 }} }}\n\
         train: {{ max_steps: 2, batch_size: 2, eval_fraction: 0.25, evaluation: {{ max_new_tokens: 4 }} }}\n",
        model.display(),
        data.display(),
        out.display()
    );
    fs::write(&file, text).unwrap();
    let mut registry = Registry::default();
    registry.reward("lacking", |_: &NoOptions, _| Ok(Lacking)).unwrap();
    let request = ComparisonRequest { file: Some(&file), registry: Some(&registry), ..ComparisonRequest::default() };
    let written = ComparisonDefinition::load(&request).unwrap();
    let json = compare_written(&written, Existing::Refuse, &mut Messages::default()).unwrap();
    let remark = "`lacking` is computed without its dictionary";
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();

    // The comparison measured all policies with the reward.
    for entry in json["entries"].as_array().unwrap() {
        assert_eq!(entry["remarks"], serde_json::json!([remark]), "{entry}");
    }
    assert!(read("comparison/comparison.md").contains(&format!("\n> Note: {remark}\n")));
    assert!(read("comparison/report.html").contains(remark));

    // GRPO trained with it.
    assert_eq!(parsed(&read("grpo/results.json"))["remarks"], serde_json::json!([remark]));
    let rows: Vec<Value> = read("grpo/metrics.jsonl").lines().map(parsed).collect();
    assert_eq!((&rows[0]["step"], &rows[0]["remarks"]), (&0.into(), &serde_json::json!([remark])));
    assert!(rows.len() > 1 && rows[1..].iter().all(|row| row.get("remarks").is_none()), "{rows:?}");
    assert!(read("grpo/model/README.md").contains(&format!("\nNote: {remark}.\n")));
    assert!(read("grpo/report.html").contains(remark));

    // SFT did not use it.
    assert!(parsed(&read("sft/results.json")).get("remarks").is_none());
    assert!(!read("sft/metrics.jsonl").contains("remarks"));
    let runs = [RunDir::open(out.join("sft")).unwrap(), RunDir::open(out.join("grpo")).unwrap()];
    assert_eq!(Comparison::of_runs(&runs).unwrap().remarks(), [format!("grpo: {remark}")]);
    // An unfinished run has no `results.json`.
    fs::remove_file(out.join("grpo/results.json")).unwrap();
    assert_eq!(Entry::from_run(runs[1].clone()).unwrap().remarks, [remark]);
}

/// Policies are measured in the environment in which some of them trained; methods that do not sample train without it.
#[test]
fn an_environment_answers_what_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("rows.jsonl");
    let row = |i: usize| {
        let messages = serde_json::json!([{ "role": "user", "content": format!("Guess {i}") }]);
        serde_json::json!({ "prompt": messages, "completion": [{ "role": "assistant", "content": "50" }] }).to_string()
            + "\n"
    };
    fs::write(&data, (0..16).map(row).collect::<String>()).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/qwen3");
    let file = |methods: &str, more: &str| {
        format!(
            "model: {}\ndata: {}\noutput_dir: {}\nmethods: {methods}\n{more}\
             environment: {{ guess: {{}} }}\nepisode: {{ max_turns: 3 }}\n\
             train: {{ max_steps: 1, batch_size: 2, eval_fraction: 0.25, evaluation: {{ max_new_tokens: 24 }} }}\n",
            model.display(),
            data.display(),
            directory.path().join(methods.split([':', ' ']).nth(1).unwrap_or("run")).display()
        )
    };
    let json = compare(
        &file("{ sft: {}, grpo: { group_size: 2, max_new_tokens: 24 } }", ""),
        Existing::Refuse,
        &mut Messages::default(),
    )
    .unwrap();
    assert!(json["evaluation"].as_str().unwrap().ends_with("answered by the environment"), "{}", json["evaluation"]);
    let entries = json["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 3);
    for entry in entries {
        assert!(entry["reward"].is_number(), "the environment gives a reward: {entry}");
        assert!(entry["measured"]["environment/turns"].is_number(), "{entry}");
    }
    // No method trains in the environment, but all are measured in it.
    let more = "reward: { rule: { length: { target: 4 } } }\n";
    let written = ComparisonDefinition::parse(&file("{ sft: {} }", more)).unwrap();
    let judge = written.judge.unwrap();
    assert!(written.runs[0].config.environment.is_none() && judge.config.environment.is_some());
}
