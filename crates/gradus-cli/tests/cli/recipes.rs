//! Recipes at small sizes: each runs with models from `gradus new-model`, as the recipe documents.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::fine_grained::{PROMPTS, feedback};
use crate::harness::{CliTest, fixture_model};

fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes")
}

/// Creates `models/NAME` of `family`, with the tokenizer of a fixture.
fn new_model(test: &CliTest, family: &str, tokenizer: &str, more: &[&str]) {
    let output = format!("models/{family}-small");
    let new = ["new-model", "--family", family, "--size", "tiny", "--tokenizer", tokenizer, "--output", &output, "-q"];
    test.succeeds(&[&new[..], more].concat());
}

/// Runs the first steps of every task's small recipe on the tasks' fixture files.
#[test]
fn every_small_recipe_of_a_task_runs_with_a_new_model() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/tasks/tasks.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(fixture).expect("the fixture")).expect("JSON");
    let cases = fixture["cases"].as_array().expect("a list");
    let test = CliTest::new();
    new_model(&test, "gpt2", &fixture_model("gpt2"), &[]);
    new_model(&test, "t5", &fixture_model("t5"), &[]);
    let mut count = 0;
    for folder in std::fs::read_dir(recipes()).expect("the recipes") {
        let recipe = folder.expect("a folder").path().join("small.yml");
        let Ok(text) = std::fs::read_to_string(&recipe) else { continue };
        let family = if text.contains("model: t5-small") { "t5" } else { "gpt2" };
        assert!(text.contains(&format!("gradus new-model --family {family} ")), "{}", recipe.display());
        let name = recipe.parent().and_then(Path::file_name).expect("a folder").to_str().expect("UTF-8");
        let of_task =
            |case: &&Value| case["task"].as_object().is_some_and(|task| task.keys().all(|key| key.starts_with(name)));
        let mut train = vec!["train".to_owned(), recipe.display().to_string()];
        if let Some(case) = cases.iter().find(of_task) {
            for (file, content) in case["files"].as_object().expect("files") {
                test.write(&format!("data/{name}/{file}"), content.as_str().expect("text"));
            }
            train.extend(["--data".to_owned(), format!("data/{name}")]);
        }
        let rest = [
            "--model",
            &format!("models/{family}-small"),
            "--output-dir",
            &format!("runs/{name}"),
            "--max-steps",
            "1",
            "-q",
        ];
        train.extend(rest.map(str::to_owned));
        let train: Vec<&str> = train.iter().map(String::as_str).collect();
        test.succeeds(&train);
        count += 1;
    }
    assert_eq!(count, 9);
}

/// Runs the QA-Feedback recipes in the order of their README, one step each.
#[test]
fn the_small_recipes_of_qa_feedback_run_with_new_models() {
    let test = CliTest::with("data/feedback.json", &feedback());
    let question = |row: Value| json!([row]).to_string();
    let answered = json!({ "question": "is it", "passages": [], "answer": ["The tea is warm."] });
    for name in ["train.json", "dev.json"] {
        test.write(&format!("data/{name}"), PROMPTS);
    }
    test.write("data/train_1k.json", &question(answered));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/encoders/longformer");
    new_model(&test, "t5", &fixture_model("t5"), &[]);
    new_model(&test, "longformer", folder, &["--set", "max_position_embeddings=1026"]);
    for split in ["train", "dev"] {
        let conversions =
            [("r1", "relevance"), ("r2", "factuality"), ("preference", "completeness"), ("preference", "preference")];
        for (to, name) in conversions {
            let file = format!("data/{name}/{split}.jsonl");
            test.succeeds(&["data", "convert", "data/feedback.json", "--to", to, "-o", &file, "--min-span-words", "1"]);
        }
    }
    for name in ["sft", "relevance", "factuality", "completeness", "preference", "fine_grained", "holistic"] {
        let recipe = recipes().join(format!("qa_feedback/small/{name}.yml"));
        test.succeeds(&["train", &recipe.display().to_string(), "--max-steps", "1", "--warmup-steps", "0", "-q"]);
        // A single step need not beat the start. Then there is no best model.
        let run = test.path().join("runs/qa_feedback_small").join(name);
        if !run.join("best").exists() {
            std::fs::rename(run.join("model"), run.join("best")).expect("renamed");
        }
    }
}
