//! The program as users start it: its plug-ins appear in the run directory, and mistakes are reported like those of
//! gradus.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]
#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::path::Path;
use std::process::{Command, Output};

use gradus::run::database::{Query, RolloutTable};
use gradus::run::{RolloutDb, RunDir};
use serde_json::Value;

fn program(words: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plugins")).args(words).output().unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn everything_that_it_adds_is_in_the_run_directory() {
    let directory = tempfile::tempdir().unwrap();
    let output = program(&[directory.path()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = directory.path().join("run");

    let logged = lines(&run.join("metrics.jsonl"));
    let last = logged.last().unwrap();
    for key in ["rewards/brevity/mean", "rewards/repetition/mean", "eval_repetition", "eval_rouge/rouge1"] {
        assert!(last[key].is_number(), "{key}: {last}");
    }
    // The task's rows: six pairs, two of which are held out.
    let db = RolloutDb::open(&RunDir::open(&run).unwrap()).unwrap();
    let trained = db.query(&Query::default()).unwrap();
    assert_eq!(trained.len(), 2 * 2 * 2);
    assert!(trained.iter().all(|of| of.prompt.starts_with("write a review of the ")), "{:?}", trained[0].prompt);
    let evaluated = db.query(&Query { table: RolloutTable::Eval, ..Query::default() }).unwrap();
    let mut prompts: Vec<&str> = evaluated.iter().map(|of| of.prompt.as_str()).collect();
    prompts.sort_unstable();
    prompts.dedup();
    assert_eq!(prompts, ["write a review of the blue chair :", "write a review of the red lamp :"]);

    // Only the better of two completions is trained on.
    for pair in trained.chunks(2) {
        let (best, other) =
            if pair[0].advantage > pair[1].advantage { (&pair[0], &pair[1]) } else { (&pair[1], &pair[0]) };
        assert_eq!((best.advantage, other.advantage), (Some(1.0), Some(0.0)));
        assert!(best.reward >= other.reward, "{pair:?}");
    }

    let events = lines(&run.join("events.jsonl"));
    let steps: Vec<u64> = events.iter().filter_map(|event| event["step"].as_u64()).collect();
    assert_eq!(steps, [1, 2]);
    let results: Value = serde_json::from_slice(&std::fs::read(run.join("results.json")).unwrap()).unwrap();
    assert_eq!(results["method"], "best_of");
    assert!(events.iter().any(|event| event["evaluated"] == 1) && events.iter().any(|event| event["checkpoint"] == 2));
    // The resolved configuration names all plug-ins and can be run again.
    let resolved = run.join("config.yml");
    let text = std::fs::read_to_string(&resolved).unwrap();
    for name in ["brevity", "repetition", "reviews", "first_sentence", "events", "best_of"] {
        assert!(text.contains(name), "{name} is missing in:\n{text}");
    }
    let again = directory.path().join("again.yml");
    std::fs::write(&again, text.replace("/run", "/again")).unwrap();
    let output = program(&[directory.path(), &again]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(lines(&directory.path().join("again/metrics.jsonl")).last().unwrap()["reward"], last["reward"]);
}

#[test]
fn mistakes_are_told_with_what_may_have_been_meant() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.yml");
    let check = |reward: &str, expected: &[&str]| {
        std::fs::write(&file, format!("model: m\ndata: d\nmethod: {{grpo: {{}}}}\nreward: {{plugin: {reward}}}\n"))
            .unwrap();
        let output = program(&[directory.path(), &file]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        for part in expected {
            assert!(text.contains(part), "`{part}` is missing in: {text}");
        }
    };
    check("{brevty: {}}", &["unknown key `brevty` in `reward.plugin`"]);
    check("{brevity: {wrds: 3}}", &["unknown key `wrds` in `reward.plugin.brevity`"]);
    check("{brevity: {words: many}}", &["`reward.plugin.brevity.words` is the word `many`, but a whole number"]);
}

#[test]
fn an_offline_method_learns_its_margin() {
    let directory = tempfile::tempdir().unwrap();
    assert!(program(&[directory.path()]).status.success());
    let (rows, file) = (directory.path().join("pairs.jsonl"), directory.path().join("slic.yml"));
    let pair = |things: &str| {
        serde_json::json!({
            "prompt": format!("write a review of the {things} :"), "chosen": " the kettle is good .", "rejected": " the lamp is bad .",
        })
    };
    std::fs::write(&rows, ["red lamp", "blue chair"].map(|things| pair(things).to_string() + "\n").concat().repeat(8))
        .unwrap();
    let run = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nmethod: {{ plugin: {{ slic: {{ margin: 2.0 }} }} }}\n\
         train: {{ max_steps: 12, batch_size: 4, learning_rate: 5e-3 }}\n",
        directory.path().join("model").display(),
        rows.display(),
        directory.path().join("slic").display()
    );
    std::fs::write(&file, &run).unwrap();
    let output = program(&[directory.path(), &file]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let logged = lines(&directory.path().join("slic/metrics.jsonl"));
    let margins: Vec<f64> = logged.iter().filter_map(|row| row["margin"].as_f64()).collect();
    assert!(margins[0] < 1.0 && *margins.last().unwrap() > 2.0, "{margins:?}");

    std::fs::write(&file, run.replace("margin: 2.0", "margn: 2.0")).unwrap();
    let output = program(&[directory.path(), &file]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("unknown key `margn` in `method.plugin.slic`"), "{text}");
}

#[test]
fn models_of_its_family_are_planned_adapted_saved_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let output = program(&[directory.path()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let saved: Value =
        serde_json::from_slice(&std::fs::read(directory.path().join("run/model/config.json")).unwrap()).unwrap();
    assert_eq!((&saved["model_type"], &saved["residual_factor"]), (&"sandwich".into(), &0.7.into()));
    assert_eq!(saved["architectures"][0], "SandwichForCausalLM");

    // An adapter on the trained model.
    let (model, rows, file) =
        (directory.path().join("run/model"), directory.path().join("texts.jsonl"), directory.path().join("sft.yml"));
    std::fs::write(&rows, "{\"text\": \"the kettle is good .\"}\n".repeat(8)).unwrap();
    let text = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nmethod: {{ sft: {{}} }}\nlora: {{ rank: 2 }}\n\
         train: {{ max_steps: 8, batch_size: 4, learning_rate: 1e-2 }}\n",
        model.display(),
        rows.display(),
        directory.path().join("sft").display()
    );
    std::fs::write(&file, text).unwrap();
    let output = program(&[directory.path(), &file]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let losses: Vec<f64> =
        lines(&directory.path().join("sft/metrics.jsonl")).iter().filter_map(|row| row["loss"].as_f64()).collect();
    assert!(losses.last().unwrap() < &losses[0], "{losses:?}");

    let config = model.join("config.json");
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap().replace("/sft", "/refused")).unwrap();
    std::fs::write(&config, std::fs::read_to_string(&config).unwrap().replace("0.7", "-1")).unwrap();
    let output = program(&[directory.path(), &file]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("`residual_factor` is not a number above 0"), "{text}");
}
