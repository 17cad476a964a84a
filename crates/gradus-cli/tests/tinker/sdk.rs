//! Tinker's own client, unmodified: the package `tinker` of an interpreter that has it.

use std::path::Path;
use std::process::Command;

use crate::server::{Server, checkpoint, folder};
use crate::skip::skipped;

/// The interpreter: `GRADUS_TINKER_PYTHON`, or the one in `PATH`.
fn python() -> String {
    std::env::var("GRADUS_TINKER_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Whether the interpreter has a package; says that a test is left out where it has not.
fn has(packages: &[&str], test: &str) -> bool {
    for package in packages {
        let found = Command::new(python()).args(["-c", &format!("import {package}")]).output();
        if !found.is_ok_and(|found| found.status.success()) {
            skipped("tinker", &format!("{test}: {} has no {package}", python()));
            return false;
        }
    }
    true
}

/// Runs functions of `loops.py` against a server of their own; gives the folder.
fn run(packages: &[&str], tests: &[&str]) -> Option<tempfile::TempDir> {
    if !has(packages, &tests.join(", ")) {
        return None;
    }
    let folder = folder(&["gpt2", "qwen3"]);
    let server = Server::start(folder.path(), 0);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tinker/loops.py");
    let output = Command::new(python())
        .arg(script)
        .args(tests)
        .env("TINKER_BASE_URL", server.url())
        .env("TINKER_API_KEY", "tml-local")
        .env("TINKER_TEST_FOLDER", folder.path())
        .env("TINKER_TELEMETRY", "0")
        .env("HF_HUB_OFFLINE", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONWARNINGS", "ignore")
        .output()
        .expect("python");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tests:?}: {said}");
    for test in tests {
        assert!(said.contains(&format!("{test}: ok")), "{said}");
    }
    Some(folder)
}

const SDK: &[&str] = &["tinker", "torch"];

#[test]
fn sessions_and_supervised_learning() {
    let Some(folder) = run(SDK, &["session", "supervised"]) else { return };
    // Checkpoints are models of `gradus generate` too.
    let runs = std::fs::read_dir(folder.path().join("tinker")).expect("a folder").flatten();
    let mut found = runs.map(|run| run.path().join("sampler_weights/sampler")).filter(|path| path.is_dir());
    let adapter = found.next().expect("it was saved");
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"prompt\": \"The tea is\"}\n").expect("written");
    let mut generate = Command::new(env!("CARGO_BIN_EXE_gradus"));
    generate.arg("generate").arg("--model").arg(&adapter).arg("--prompts").arg(&prompts);
    generate.args(["--max-new-tokens", "8", "--temperature", "0", "--quiet"]);
    let output = generate.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("warm"), "{said}");
    assert!(checkpoint(folder.path(), "tinker://none:train:0/weights/x").parent().is_some_and(|of| !of.exists()));
}

#[test]
fn reinforcement_learning() {
    run(SDK, &["reinforcement"]);
}

#[test]
fn distillation_and_losses_of_the_client() {
    run(SDK, &["distillation", "custom"]);
}

#[test]
fn what_samplers_tell_and_what_is_refused() {
    run(SDK, &["sampling", "refused"]);
}

#[test]
fn eight_clients_at_once() {
    run(SDK, &["many"]);
}

#[test]
fn losses_and_gradients_are_those_of_torch() {
    run(&["tinker", "torch", "peft", "transformers"], &["parity"]);
}
