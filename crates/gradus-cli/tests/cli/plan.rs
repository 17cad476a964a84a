//! `gradus plan`: the table, and rejection of runs that do not fit.

use std::path::Path;
use std::process::Stdio;

use gradus::model::{CausalLm, ModelDir, save_causal};
use gradus::rng::{Purpose, Seed};

use crate::harness::{CliTest, fixture_model};

fn config(method: &str, more: &str) -> String {
    format!("model: {}\ndata: rows.jsonl\nmethod: {{ {method} }}\n{more}", fixture_model("gpt2"))
}

#[test]
fn a_plan_shows_every_phase_and_writes_nothing() {
    let test = CliTest::with("rows.jsonl", &"{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n".repeat(40));
    test.write("run.yml", &config("sft: {}", ""));
    let text = test.succeeds(&["plan", "run.yml", "--quiet"]);
    let mut lines = text.lines();
    let heading = "phase       weights  gradients  moments  activations  working  pages  program    total";
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines.next().map(words), Some(words(heading)), "{text}");
    let phases: Vec<&str> = lines.by_ref().take(5).map(|line| line.split(' ').next().unwrap_or("")).collect();
    assert_eq!(phases, ["load", "trial", "update", "optimizer", "checkpoint"], "{text}");
    assert!(text.contains("\npeak ") && text.contains("this machine has "), "{text}");
    assert!(!test.path().join("runs").exists(), "a plan leaves nothing behind");

    test.write("run.yml", &config("ppo: { max_new_tokens: 8 }", "reward: { rule: { regex: e } }\n"));
    let json: serde_json::Value =
        serde_json::from_str(&test.succeeds(&["plan", "run.yml", "--json", "--quiet"])).expect("it is JSON");
    let names: Vec<&str> = json["phases"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|phase| phase["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["load", "trial", "sampling", "scoring", "update", "optimizer", "checkpoint"]);
    assert_eq!(json["fits"], true);
    let total = |phase: &serde_json::Value| -> u64 {
        phase.as_object().expect("an object").values().filter_map(serde_json::Value::as_u64).sum()
    };
    let most = json["phases"].as_array().expect("a list").iter().map(total).max();
    assert_eq!(most, json["peak_bytes"].as_u64());
}

#[test]
fn a_first_id_is_forced_only_on_models_with_an_encoder() {
    let test = CliTest::with("rows.jsonl", &"{\"prompt\": \"The tea is\"}\n".repeat(40));
    let method = "grpo: { max_new_tokens: 8, sampling: { forced_bos_token_id: 5 } }";
    test.write("run.yml", &config(method, "reward: { rule: { regex: e } }\n"));
    let run = test.run(&["plan", "run.yml", "--quiet"]);
    assert_eq!(run.code, 1, "{run:?}");
    for expected in [
        "error: `method.grpo.sampling.forced_bos_token_id` is set, but `",
        "` has no encoder: ",
        "\nhint: leave it out, or append the token to the prompts\n",
    ] {
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}

#[test]
fn a_plan_does_not_walk_through_the_steps() {
    let test = CliTest::with("rows.jsonl", &"{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n".repeat(40));
    let peak = |method: &str, more: &str| {
        test.write("run.yml", &config(method, more));
        let json = test.succeeds(&["plan", "run.yml", "--json", "--quiet"]);
        serde_json::from_str::<serde_json::Value>(&json).expect("it is JSON")["peak_bytes"].as_u64().expect("a number")
    };
    let few = peak("sft: {}", "train: { max_steps: 500 }\n");
    assert_eq!(few, peak("sft: {}", "train: { max_steps: 1000000000 }\n"));
    assert_eq!(few, peak("sft: {}", "train: { epochs: 1e9 }\n"));
    peak("sft: {}", "train: { max_steps: 1000000000, batch_size: 1000000 }\n");
    let ppo = "ppo: { max_new_tokens: 8, update_epochs: 10000, mini_batches: 4 }";
    peak(ppo, "reward: { rule: { regex: e } }\ntrain: { max_steps: 1000000000 }\n");
    // A plan that simulated every step would not finish.
}

#[test]
fn a_run_that_cannot_fit_is_refused_before_anything_is_loaded() {
    let test = CliTest::with("rows.jsonl", &"{\"prompt\": \"The tea is\"}\n".repeat(40));
    // Completions of one hundred million tokens need terabytes.
    let written = format!(
        "model: {}\ndata: rows.jsonl\nmethod: {{ grpo: {{ max_new_tokens: 100000000 }} }}\n\
         reward: {{ rule: {{ regex: e }} }}\ntrain: {{ max_length: 200000000 }}\n",
        fixture_model("t5")
    );
    test.write("run.yml", &written);
    for command in ["plan", "train"] {
        let run = test.run(&[command, "run.yml", "--quiet"]);
        assert_eq!(run.code, 1, "{command}: {}", run.stderr);
        let error = run.stderr.lines().find(|line| line.starts_with("error: the run needs ")).expect("the refusal");
        assert!(error.contains(" GB at its peak (") && error.contains(", but this machine has "), "{error}");
        assert!(run.stderr.contains("hint: ") && run.stderr.contains("`--no-memory-check`"), "{}", run.stderr);
    }
    assert!(test.run(&["plan", "run.yml", "--quiet"]).stdout.starts_with("phase "), "the table comes first");
}

/// A random GPT-2 of 17 million parameters with the fixture's tokenizer.
fn middling_model(path: &Path) {
    let mut dir = ModelDir::open(Path::new(&fixture_model("gpt2"))).expect("a fixture");
    for (key, value) in [("n_embd", 384), ("n_layer", 8), ("n_head", 6), ("n_positions", 512), ("vocab_size", 8000)] {
        dir.config.insert(key.into(), value.into());
    }
    let mut stream = Seed(1).stream(Purpose::Init, 0, 0);
    let model = CausalLm::random(&dir, &mut stream, &burn::tensor::Device::flex()).expect("a model");
    std::fs::create_dir(path).expect("a directory can be made");
    save_causal(&model, &dir, path).expect("it is saved");
}

/// Runs `gradus ARGUMENTS` and returns its peak memory in bytes, as counted by the operating system.
///
/// The system keeps the peak over all children that a process has waited for. This program therefore starts itself again, and that process
/// has a single child.
#[cfg(target_os = "linux")]
fn resident_peak(test: &CliTest, arguments: &[&str]) -> u64 {
    let file = test.path().join("peak");
    let itself = std::env::current_exe().expect("the system knows this program");
    let status = std::process::Command::new(itself)
        .args(["--ignored", "--exact", "plan::one_child_and_its_peak"])
        .env(PEAK_OF, serde_json::to_string(arguments).expect("words are JSON"))
        // Freed memory returns to the system at once. Kept memory would depend on the order in which threads free it, which varies on a
        // busy machine.
        .env("MIMALLOC_PURGE_DELAY", "0")
        .current_dir(test.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("it starts").success(), "gradus {arguments:?} failed");
    std::fs::read_to_string(file).expect("it measures").parse().expect("a number")
}

/// Environment variable with the arguments of the measured child, as JSON.
#[cfg(target_os = "linux")]
const PEAK_OF: &str = "GRADUS_TEST_PEAK_OF";

#[cfg(target_os = "linux")]
#[test]
#[ignore = "a process of its own, which another test starts"]
fn one_child_and_its_peak() {
    use nix::sys::resource::{UsageWho, getrusage};

    let Ok(arguments) = std::env::var(PEAK_OF) else { return };
    let arguments: Vec<String> = serde_json::from_str(&arguments).expect("words");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Runs in the directory of the calling test.
    let place = std::env::current_dir().expect("a directory");
    let status = CliTest::new().command(&arguments).current_dir(&place).stdout(Stdio::null()).status();
    assert!(status.expect("the binary runs").success());
    let kibibytes = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the system counts").max_rss();
    std::fs::write(place.join("peak"), (kibibytes * 1024).to_string()).expect("written");
}

/// Half a gigabyte is large enough for 10 %. Pages that the allocator keeps do not count, because the measured run returns them. Methods that
/// sample are covered by the library's test, which counts bytes: the number of half-used pages differs by 5 % between runs.
#[cfg(target_os = "linux")]
#[test]
fn the_plan_is_within_a_tenth_of_what_a_run_takes() {
    let test = CliTest::new();
    middling_model(&test.path().join("model"));
    let sentence = |words: usize| "the tea is good and warm and green ".repeat(words.div_ceil(8));
    let row = |i: usize| {
        let (prompt, chosen, rejected) = (sentence(8 + i % 9), sentence(24 + i % 17), sentence(24 + i % 13));
        format!("{{\"prompt\": \"{prompt}\", \"chosen\": \"{chosen}\", \"rejected\": \"{rejected}\"}}\n")
    };
    test.write("rows.jsonl", &(0..64).map(row).collect::<String>());
    test.write(
        "run.yml",
        "model: model\ndata: rows.jsonl\noutput_dir: run\nmethod: { sft: {} }\n\
         train: { max_steps: 3, eval_steps: -1, batch_size: 8, micro_batch_tokens: 2048 }\n",
    );
    let plan: serde_json::Value =
        serde_json::from_str(&test.succeeds(&["plan", "run.yml", "--json", "--quiet"])).expect("it is JSON");
    let parts = ["weights", "gradients", "moments", "activations", "working", "program"];
    let in_use = |phase: &serde_json::Value| parts.iter().filter_map(|part| phase[part].as_f64()).sum::<f64>();
    let predicted = plan["phases"].as_array().expect("a list").iter().map(in_use).fold(0.0, f64::max);
    let measured = resident_peak(&test, &["train", "run.yml"]) as f64;
    assert!((predicted / measured - 1.0).abs() < 0.1, "{predicted} bytes predicted, {measured} measured");
}

/// Most of the memory of a tiny model is the program's own.
#[cfg(target_os = "linux")]
#[test]
fn the_plan_of_a_tiny_model_counts_the_program() {
    let test = CliTest::with("rows.jsonl", &"{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n".repeat(40));
    test.write("run.yml", &config("sft: {}", "output_dir: run\ntrain: { max_steps: 1, batch_size: 2, threads: 2 }\n"));
    let plan: serde_json::Value =
        serde_json::from_str(&test.succeeds(&["plan", "run.yml", "--json", "--quiet"])).expect("it is JSON");
    let predicted = plan["peak_bytes"].as_u64().expect("a number");
    let measured = resident_peak(&test, &["train", "run.yml"]);
    assert!(measured <= predicted, "{predicted} bytes predicted, {measured} measured");
}

/// A method with flags describes a run like a file does. A file accepts the flags of its method.
#[test]
fn a_plan_takes_a_method_and_flags() {
    let test = CliTest::with("rows.jsonl", &"{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n".repeat(40));
    test.write("run.yml", &config("ppo: { max_new_tokens: 8 }", "reward: { rule: { regex: e } }\n"));
    // Compares phases and sizes only, because the machine's free memory changes.
    let planned = |arguments: &[&str]| {
        let json = test.succeeds(&[&["plan"], arguments, &["--json", "--quiet"]].concat());
        serde_json::from_str::<serde_json::Value>(&json).expect("it is JSON")["phases"].clone()
    };
    let model = fixture_model("gpt2");
    let flags = ["ppo", "--model", &model, "--data", "rows.jsonl", "--reward-rule-regex", "e", "--max-new-tokens", "8"];
    assert_eq!(planned(&flags), planned(&["run.yml"]));
    assert_ne!(planned(&["run.yml", "--max-new-tokens", "40"]), planned(&["run.yml"]), "a key of the method");
    test.fails(
        &["plan", "run.yml", "--beta", "0.1"],
        2,
        "error: `--beta` is not a key of `ppo`\n  --> flag `--beta`\n",
    );
    test.fails(
        &["plan", "sft"],
        2,
        "error: `model` is missing\nhint: pass `--model`\n\nerror: `data` is missing\nhint: pass `--data`\n",
    );
}
