//! A run that is killed at any moment and resumed ends with the same bits as one that never was.
//!
//! The real binary, every trainer, a tiny model: killed with SIGKILL (or interrupted, as by Ctrl-C) after a random time,
//! after a random step, or in the middle of writing, then resumed, killed again, and so on until it is done. Then every file is compared with that of an
//! uninterrupted run. `GRADUS_KILLS=100 cargo test --workspace --test kill` does it a hundred times.

#![cfg(unix)]
#![expect(clippy::print_stderr, reason = "the figures of a long measurement")]

mod compare;
mod full;
mod limits;
mod process;
#[path = "../../../gradus/tests/support/skip.rs"]
mod skip;

use compare::{differences, snapshot};
use process::{Killer, Lab};

/// Runs that are killed and resumed, for each case, unless `GRADUS_KILLS` gives their number for all cases together.
const ROUNDS: usize = 2;
/// The most kills of one run.
const MOST_KILLS: usize = 4;

/// What every case is given. Rows of the log are rarer than steps, so that there is always something not yet logged.
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

const CASES: usize = 12;

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

#[test]
fn grpo_in_bf16_with_coarser_weights_for_sampling() {
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
