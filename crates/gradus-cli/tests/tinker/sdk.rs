//! Tinker's own unmodified client: the package `tinker` of a Python interpreter that has it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::server::{Server, checkpoint, folder};
use crate::skip::skipped;

/// Python interpreter: `GRADUS_TINKER_PYTHON`, or the one in `PATH`.
fn python() -> String {
    std::env::var("GRADUS_TINKER_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Returns whether the interpreter has the packages. Otherwise reports that the test is skipped.
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

/// Creates the command that runs functions of `loops.py`.
fn script(tests: &[&str], server: &Server, folder: &Path) -> Command {
    let mut command = Command::new(python());
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tinker/loops.py"))
        .args(tests)
        .env("TINKER_BASE_URL", server.url())
        .env("TINKER_API_KEY", "tml-local")
        .env("TINKER_TEST_FOLDER", folder)
        .env("TINKER_TELEMETRY", "0")
        .env("HF_HUB_OFFLINE", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONWARNINGS", "ignore");
    command
}

/// Runs functions of `loops.py` against a new server. Returns the server's directory.
fn run(packages: &[&str], tests: &[&str]) -> Option<tempfile::TempDir> {
    if !has(packages, &tests.join(", ")) {
        return None;
    }
    let folder = folder(&["gpt2", "qwen3"]);
    let server = Server::start(folder.path(), 0);
    let output = script(tests, &server, folder.path()).output().expect("python");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tests:?}: {printed}");
    for test in tests {
        assert!(printed.contains(&format!("{test}: ok")), "{printed}");
    }
    Some(folder)
}

const SDK: &[&str] = &["tinker", "torch"];

#[test]
fn sessions_and_supervised_learning() {
    let Some(folder) = run(SDK, &["session", "supervised"]) else { return };
    // Checkpoints are also models for `gradus generate`.
    let runs = std::fs::read_dir(folder.path().join("tinker")).expect("a folder").flatten();
    let mut found = runs.map(|run| run.path().join("sampler_weights/sampler")).filter(|path| path.is_dir());
    let adapter = found.next().expect("it was saved");
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"prompt\": \"The tea is\"}\n").expect("written");
    let mut generate = Command::new(env!("CARGO_BIN_EXE_gradus"));
    generate.arg("generate").arg("--model").arg(&adapter).arg("--prompts").arg(&prompts);
    generate.args(["--max-new-tokens", "8", "--temperature", "0", "--quiet"]);
    let output = generate.output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("warm"), "{printed}");
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
fn the_client_survives_a_server_that_is_killed() {
    if !has(SDK, "survives") {
        return;
    }
    let folder = folder(&["qwen3"]);
    let mut server = Server::start(folder.path(), 0);
    let mut child = script(&["survives"], &server, folder.path()).stdout(Stdio::piped()).spawn().expect("python");
    let (mut kills, mut is_ok) = (0, false);
    for line in BufReader::new(child.stdout.take().expect("its output")).lines() {
        let line = line.expect("text");
        if line == "now" {
            let port = server.port;
            server.kill();
            server = Server::start(folder.path(), port);
            kills += 1;
        }
        is_ok |= line == "survives: ok";
    }
    let status = child.wait().expect("it ends");
    assert!(status.success() && is_ok && kills == 4, "{status}, ok: {is_ok}, {kills} kills");
}

#[test]
fn losses_and_gradients_are_those_of_torch() {
    run(&["tinker", "torch", "peft", "transformers"], &["parity"]);
}
