//! Help, versions, exit codes, closed pipes.

use std::io::Read;
use std::process::Stdio;

use crate::harness::CliTest;

#[test]
fn help_lists_the_commands_by_group() {
    let help = CliTest::new().succeeds(&["--help"]);
    let position = |text: &str| help.find(text).unwrap_or_else(|| panic!("`{text}` is not in the help:\n{help}"));
    assert!(position("Usage: gradus [OPTIONS] <COMMAND>") < position("\nSetup:\n  config "));
    assert!(position("\nSetup:\n") < position("\nOptions:\n"));
    assert!(!help.contains("\nCommands:"), "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
}

#[test]
fn every_command_has_help() {
    let test = CliTest::new();
    let help = test.succeeds(&["--help"]);
    let listed = help.split("\nOptions:").next().expect("a first part");
    for name in listed.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()) {
        let text = test.succeeds(&[name, "--help"]);
        assert!(text.contains(&format!("Usage: gradus {name}")), "{text}");
    }
}

#[test]
fn every_command_that_computes_takes_a_device() {
    let test = CliTest::new();
    let methods = ["sft", "reward", "dpo", "ppo", "grpo", "train", "plan"];
    for name in
        ["demo", "compare", "generate", "chat", "score", "eval", "merge", "quantize", "bench"].iter().chain(&methods)
    {
        assert!(test.succeeds(&[name, "--help"]).contains("--device <DEVICE>"), "gradus {name}");
    }
    let run = test.run(&["score", "--model", "m", "--data", "d", "--device", "gpu:99"]);
    assert_eq!(run.code, 2);
    let expected =
        "error: invalid value 'gpu:99' for '--device <DEVICE>': there is no `gpu:99`: this build finds `cpu`";
    assert!(run.stderr.starts_with(expected), "{}", run.stderr);
}

#[test]
fn a_misspelt_command_is_a_usage_error() {
    let run = CliTest::new().run(&["docter"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.starts_with("error: unrecognized subcommand 'docter'"), "{}", run.stderr);
    assert!(run.stderr.contains("similar subcommand") && run.stderr.contains("'doctor'"), "{}", run.stderr);
}

#[test]
fn no_command_is_a_usage_error_that_shows_the_help() {
    let run = CliTest::new().run(&[]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("Usage: gradus"), "{}", run.stderr);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child = CliTest::new()
        .command(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("stderr is piped").read_to_string(&mut stderr).expect("stderr is UTF-8");
    assert_eq!((child.wait().expect("it ends").code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn doctor_speaks_json() {
    let text = CliTest::new().succeeds(&["doctor", "--json"]);
    let machine: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(machine["devices"][0], "cpu");
    assert!(machine["threads"].as_u64().expect("a number") >= 1);
    // Every build reports the available parts of CUDA, and what to install if something is missing.
    let nvidia = &machine["nvidia"];
    let is_missing = |name: &str| nvidia[name].is_null() || nvidia[name].as_array().is_some_and(Vec::is_empty);
    let missing = nvidia["missing"].as_array().expect("a list");
    assert_eq!(missing.is_empty(), !["driver", "devices", "nvrtc", "headers"].into_iter().any(is_missing), "{nvidia}");
    let shown = CliTest::new().succeeds(&["doctor"]);
    let uses = "this build does not use NVIDIA GPUs: build with the cargo feature `cuda`";
    assert_eq!(shown.contains(uses), nvidia["in_this_build"] == false, "{shown}");
}

#[test]
fn completions_know_the_flags() {
    let script = CliTest::new().succeeds(&["completions", "bash"]);
    for word in ["--kl-coefficient", "--no-shuffle", "dr_grpo", "--reward-rule-lexicon"] {
        assert!(script.contains(word), "`{word}` is not in the script");
    }
}
