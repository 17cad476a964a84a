//! A run that is killed at any moment and resumed ends with the same bits as an uninterrupted one.
//!
//! The tests use the real binary, every trainer and a tiny model. A run is killed with SIGKILL (or interrupted, as by Ctrl-C) after a
//! random time, after a random step, or while it writes. It is then resumed, killed again, and so on until it finishes. Finally, every file
//! is compared with that of an uninterrupted run. `GRADUS_KILLS=100 cargo test --workspace --test kill` does it a hundred times.
//! `GRADUS_TEST_DEVICE=gpu` (any name that `--device` accepts) selects another device than the CPU.

#![cfg(unix)]
#![expect(clippy::print_stderr, reason = "the figures of a long measurement")]
#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

mod compare;
#[cfg(target_os = "linux")]
mod container;
mod full;
mod limits;
mod process;
mod ranks;
#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;

use compare::{differences, snapshot};
use process::{Killer, Lab, computes_in_bf16};

/// Number of killed and resumed runs per case, unless `GRADUS_KILLS` sets their total for all cases.
const ROUNDS: usize = 2;
/// Maximum number of kills per run.
const MOST_KILLS: usize = 4;

/// Common arguments of all cases. Logging is rarer than steps, so that some steps are not yet logged.
const COMMON: &[&str] = &[
    "--max-steps",
    "9",
    "--batch-size",
    "4",
    "--save-steps",
    "2",
    "--eval-steps",
    "3",
    "--logging-steps",
    "2",
    "--learning-rate",
    "1e-3",
    "--warmup-steps",
    "2",
    "--weight-decay",
    "0.1",
    "--max-length",
    "64",
];
const ONLINE: &[&str] = &["--reward-rule-length-target", "5", "--max-new-tokens", "6"];

const CASES: usize = 13;

fn check(name: &str, method: &str, model: &str, data: &str, more: &[&[&str]]) {
    let lab = Lab::new(method, model, data, &[&[COMMON][..], more].concat().concat());
    let whole = lab.directory("whole");
    let time = lab.run_whole(&whole);
    let expected = snapshot(&whole.join("run"));
    assert!(expected.contains_key("results.json") && expected.keys().any(|name| name.starts_with("model/")), "{name}");
    let rounds = std::env::var("GRADUS_KILLS").ok().and_then(|rounds| rounds.parse::<usize>().ok());
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.div_ceil(CASES));
    let mut killer = Killer::new(name, time);
    for round in 0..rounds {
        let directory = lab.directory(&format!("round-{round}"));
        let story = lab.run_killed(&directory, &mut killer, MOST_KILLS);
        let found = differences(&expected, &snapshot(&directory.join("run")));
        assert!(found.is_empty(), "{name}, round {round}, {story}:\n{}", found.join("\n"));
        std::fs::remove_dir_all(&directory).expect("it can be removed");
    }
    let Killer { kills, while_writing, interruptions, .. } = killer;
    assert!(kills + interruptions >= rounds, "{name}: only {kills} kills in {rounds} rounds");
    eprintln!(
        "{name}: {rounds} runs, {kills} kills ({while_writing} while writing), {interruptions} interruptions, identical"
    );
}

#[test]
fn sft() {
    check("sft", "sft", "gpt2", "texts.jsonl", &[]);
}

#[test]
fn sft_in_bf16() {
    if !computes_in_bf16("sft in bf16") {
        return;
    }
    check("sft in bf16", "sft", "qwen3", "texts.jsonl", &[&["--compute", "bf16"]]);
}

#[test]
fn sft_that_stops_early() {
    let early = ["--eval-steps", "1", "--early-stopping-patience", "2", "--learning-rate", "3", "--logging-steps", "5"];
    check("sft that stops early", "sft", "gpt2", "texts.jsonl", &[&early]);
}

#[test]
fn reward_model() {
    check("reward", "reward", "qwen3", "pairs.jsonl", &[]);
}

#[test]
fn dpo() {
    check("dpo", "dpo", "gpt2", "pairs.jsonl", &[]);
}

#[test]
fn ppo_with_a_critic_of_its_own_and_adaptive_kl() {
    let more = ["--kl-target", "0.01", "--kl-horizon", "20", "--mini-batches", "2", "--update-epochs", "2"];
    check("ppo", "ppo", "qwen3", "prompts.jsonl", &[ONLINE, &more]);
}

#[test]
fn ppo_with_a_shared_critic() {
    check("ppo with a shared critic", "ppo", "gpt2", "prompts.jsonl", &[ONLINE, &["--critic-trunk", "shared"]]);
}

#[test]
fn grpo() {
    let more = ["--group-size", "3", "--kl-coefficient", "0.05"];
    check("grpo", "grpo", "qwen3", "prompts.jsonl", &[ONLINE, &more]);
}

/// An environment program that answers every episode the same in every repetition, without declaring it. A resumed run reads the replies of
/// finished steps from its record; the others are requested again.
const ENVIRONMENT: &str = r#"
import hashlib, json, sys
turns = {}
for line in sys.stdin:
    asked = json.loads(line)
    name, answer = asked.get("episode"), {"id": asked["id"]}
    if asked["do"] == "reset":
        turns[name] = 0
        answer["message"] = " so"
    elif asked["do"] == "step":
        turns[name] += 1
        drawn = hashlib.sha256(f"{name} {turns[name]} {asked['turn']['text']}".encode()).digest()
        answer.update(replies=f" and {drawn.hex()[:3]}", reward=drawn[0] / 255, done=turns[name] == 3 or drawn[1] < 60)
    print(json.dumps(answer), flush=True)
"#;

#[test]
fn grpo_in_an_environment() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        skip::skipped("python3", "runs in an environment that is a program of Python");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let program = folder.path().join("environment.py");
    std::fs::write(&program, ENVIRONMENT).expect("it can be written");
    let environment = format!("{{ command: {{ program: [python3, {}] }} }}", program.display());
    let more = ["--group-size", "3", "--max-new-tokens", "40", "--stop", "e", "--stop", "a"];
    let given = ["--environment", environment.as_str()];
    check("grpo in an environment", "grpo", "qwen3", "prompts.jsonl", &[&more, &given]);
    // Programs of a killed run must have ended as well.
    let start = std::time::Instant::now();
    while let Some(orphan) = running(&program) {
        assert!(start.elapsed() < std::time::Duration::from_secs(120), "process {orphan} still runs {program:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Returns the id of a process whose command contains `program`. Also `None` if the system does not report commands.
fn running(program: &std::path::Path) -> Option<String> {
    let name = program.as_os_str().as_encoded_bytes();
    let names = |entry: &std::fs::DirEntry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        // Excludes the trainer, whose command contains the name as part of a longer word.
        command.split(|byte| *byte == 0).any(|word| word == name)
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter(names).map(|entry| entry.file_name().to_string_lossy().into_owned()).next()
}

#[test]
fn grpo_in_bf16_with_coarser_weights_for_sampling() {
    if !computes_in_bf16("grpo in bf16") {
        return;
    }
    let more = ["--group-size", "2", "--compute", "bf16", "--sampling-weights", "int8"];
    check("grpo in bf16", "grpo", "gpt2", "prompts.jsonl", &[ONLINE, &more]);
}

#[test]
fn sft_of_an_adapter() {
    let more = ["--lora-rank", "3", "--lora-dropout", "0.1", "--frozen-weights", "bf16"];
    check("sft of an adapter", "sft", "qwen3", "texts.jsonl", &[&more]);
}

#[test]
fn ppo_of_an_adapter() {
    check("ppo of an adapter", "ppo", "qwen3", "prompts.jsonl", &[ONLINE, &["--lora-rank", "2"]]);
}

#[test]
fn dpo_of_an_adapter() {
    check("dpo of an adapter", "dpo", "gpt2", "pairs.jsonl", &[&["--lora-rank", "2", "--lora-alpha", "4"]]);
}
