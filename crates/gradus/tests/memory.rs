//! Memory, counted by the allocator of this test program: predicted and actual memory of runs, and the memory of
//! recomputed blocks.
//!
//! The allocator counts bytes in use, not pages; the number of pages depends on the allocator, which the binary's own
//! test measures. The counters belong to the whole process, so one test does all measurements.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

#[path = "support/counting.rs"]
mod counting;

use std::path::Path;

use gradus::config::{Plan, RunConfig};
use gradus::machine::Machine;
use gradus::model::{CausalLm, Layers, ModelDir, Rows, save_causal};
use gradus::rng::{Purpose, Seed};
use gradus::train::forecast;
use gradus::train::observer::{Event, Observer, Silent};

/// Records the peak bytes in use in each phase that a run announces.
#[derive(Default)]
struct Peaks {
    phase: String,
    peaks: Vec<(String, usize)>,
}

impl Peaks {
    fn close(&mut self) {
        let peak = counting::begin();
        self.peaks.push((self.phase.clone(), peak));
    }
}

impl Observer for Peaks {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Phase { name, .. } = event {
            self.close();
            (*name).clone_into(&mut self.phase);
        }
    }
}

/// A random model of about three million parameters with the tokenizer of the fixtures.
fn model(directory: &Path, family: &str) -> String {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models");
    let fixture = fixture.join(if family == "gpt2" { "gpt2" } else { "qwen3" });
    let source = ModelDir::open(&fixture).expect("a fixture");
    let mut dir = source.clone();
    let sizes: &[(&str, u64)] = match family {
        "gpt2" => &[("n_embd", 128), ("n_layer", 4), ("n_head", 4), ("n_positions", 512), ("vocab_size", 1000)],
        _ => &[
            ("hidden_size", 128),
            ("num_hidden_layers", 4),
            ("num_attention_heads", 4),
            ("num_key_value_heads", 2),
            ("head_dim", 32),
            ("intermediate_size", 344),
            ("max_position_embeddings", 512),
            ("vocab_size", 1000),
        ],
    };
    for (key, value) in sizes {
        dir.config.insert((*key).into(), (*value).into());
    }
    if !["gpt2", "qwen3"].contains(&family) {
        dir.config.insert("model_type".into(), family.into());
        dir.config.remove("layer_types");
    }
    let device = burn::tensor::Device::flex();
    let model = CausalLm::random(&dir, &mut Seed(1).stream(Purpose::Init, 0, 0), &device).expect("a model");
    let path = directory.join(family);
    std::fs::create_dir_all(&path).expect("a directory");
    save_causal(&model, &dir, &path).expect("it is saved");
    path.display().to_string()
}

/// Rows of all kinds; the longest have about 160 tokens.
fn rows(directory: &Path) -> String {
    let sentence = |words: usize| "the tea is good and warm and green ".repeat(words.div_ceil(8));
    let row = |i: usize| {
        let (prompt, chosen, rejected) = (sentence(4 + i % 9), sentence(8 + i % 17), sentence(8 + i % 13));
        format!("{{\"prompt\": \"{prompt}\", \"chosen\": \"{chosen}\", \"rejected\": \"{rejected}\"}}\n")
    };
    let path = directory.join("rows.jsonl");
    std::fs::write(&path, (0..64).map(row).collect::<String>()).expect("rows");
    path.display().to_string()
}

/// Returns the bytes in use after the leftovers of an earlier run are freed: unused graphs are freed with the next
/// backward pass, and other threads may still be dropping values.
fn settled() -> usize {
    let ones = burn::tensor::Tensor::<1>::ones([1], &burn::tensor::Device::flex().autodiff()).require_grad();
    drop(ones.sum().backward());
    let (mut last, mut same) = (counting::in_use(), 0);
    while same < 20 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        let now = counting::in_use();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// Trains `method` for two steps and returns the ratio of the predicted to the measured peak, and both by phase in
/// megabytes.
fn ratio(family: &str, method: &str, train: &str) -> (f64, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let (model, rows) = (model(directory.path(), family), rows(directory.path()));
    let samples = ["ppo", "nlpo", "a2c", "trpo", "grpo", "rloo"].iter().any(|name| method.starts_with(name));
    let reward = if samples { "reward: {rule: {regex: e}}\n" } else { "" };
    let [method, train] = [method, train].map(|text| text.replace("MODEL", &model));
    let (method, train) = (&*method, &*train);
    let written = format!(
        "model: {model}\ndata: {rows}\noutput_dir: {}\nmethod: {{{method}}}\n{reward}train:\n  eval_steps: -1\n{train}",
        directory.path().join("run").display()
    );
    let written = RunConfig::parse(&written).expect("the configuration reads");
    let plan = Plan::check(&written, &Machine::detect()).expect("the configuration holds");
    let forecast = forecast::workload(&plan, 1, &mut Silent).expect("a forecast").forecast();
    // The program itself is already loaded, and pages are not counted.
    let peak = forecast.peak();
    let uncounted = peak.program + peak.pages;
    let before = settled();
    counting::begin();
    let mut peaks = Peaks::default();
    gradus::train::run(&plan, &mut peaks).expect("the run ends");
    peaks.close();
    let measured = peaks.peaks.iter().map(|(_, peak)| peak - before).max().unwrap_or(0);
    let megabytes = |bytes: f64| (bytes / 1e5).round() / 10.0;
    let found: Vec<_> =
        peaks.peaks.iter().map(|(phase, peak)| (phase, megabytes(peak.saturating_sub(before) as f64))).collect();
    let expected: Vec<_> = forecast
        .phases
        .iter()
        .map(|phase| (phase.name, megabytes((phase.total() - phase.program - phase.pages) as f64)))
        .collect();
    let ratio = (forecast.peak_bytes - uncounted) as f64 / measured as f64;
    (ratio, format!("{family} {method} {train:?}: {ratio:.3}\n  measured {found:?}\n  predicted {expected:?}"))
}

/// Tolerance of predictions. Most are within 2 %; they leave out temporary buffers and completions that end early.
const TOLERANCE: f64 = 0.05;

fn recomputed_blocks_keep_little_in_memory() {
    let device = burn::tensor::Device::flex().autodiff();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models");
    for (family, layers, width) in [("gpt2", "n_layer", "n_embd"), ("qwen3", "num_hidden_layers", "hidden_size")] {
        let mut dir = ModelDir::open(&fixtures.join(family)).expect("opens");
        (dir.config[layers], dir.config[width]) = (24.into(), 64.into());
        let mut model = CausalLm::random(&dir, &mut Seed(1).stream(Purpose::Init, 0, 0), &device).expect("builds");
        let sequences: Vec<Vec<u32>> = (0..128).map(|i| vec![i % 20; 32]).collect();
        let batch = model.batch(&Rows::texts(&sequences));
        let [kept, recomputed] = [false, true].map(|recompute| {
            model.trunk.set_recompute(recompute);
            let before = counting::in_use();
            let hidden_nd = model.hidden(&batch);
            let held = counting::in_use() - before;
            drop(hidden_nd);
            held
        });
        // 24 hidden states of 1 MiB each, compared to all activations between them.
        assert!(kept > 128 << 20, "{family}: {kept} bytes are held without recomputation");
        assert!(recomputed < kept / 4, "{family}: {recomputed} bytes are held with recomputation, {kept} without");
    }
}

fn the_predicted_peak_is_the_measured_one() {
    let mut wrong = Vec::new();
    let mut check = |family: &str, method: &str, train: &str| {
        let (ratio, text) = ratio(family, method, train);
        if !(1.0 - TOLERANCE..=1.0 + TOLERANCE).contains(&ratio) {
            wrong.push(text);
        }
    };
    // Masks of dropout are drawn again.
    check("gpt2", "sft: {}", "  max_steps: 2\n  batch_size: 16\n  dropout: true\n");
    // Norms around attention and feed-forward layers, and fused projections.
    for family in ["gemma3_text", "phi3"] {
        for (method, train) in [
            ("sft: {}", "  max_steps: 2\n  batch_size: 16\n"),
            ("sft: {}", "  max_steps: 2\n  batch_size: 16\n  recompute: true\n"),
            ("sft: {}", "  max_steps: 2\n  batch_size: 16\nlora: {rank: 4, targets: [all-linear]}\n"),
        ] {
            check(family, method, train);
        }
    }
    for family in ["gpt2", "qwen3"] {
        for (method, train) in [
            ("sft: {}", "  max_steps: 2\n  batch_size: 16\n"),
            ("sft: {}", "  max_steps: 2\n  batch_size: 16\n  micro_batch_tokens: 512\n"),
            ("sft: {}", "  max_steps: 2\n  batch_size: 16\n  recompute: true\n"),
            // Most of the memory is weights, gradients and moments.
            ("sft: {}", "  max_steps: 2\n  batch_size: 2\n  moments: int8\n"),
            ("reward: {}", "  max_steps: 2\n  batch_size: 8\n"),
            ("dpo: {}", "  max_steps: 2\n  batch_size: 8\n"),
            ("dpo: {reference: live}", "  max_steps: 2\n  batch_size: 8\n"),
            ("cpo: {}", "  max_steps: 2\n  batch_size: 8\n"),
            ("kto: {}", "  max_steps: 2\n  batch_size: 16\n"),
            ("kto: {loss_type: apo_zero_unpaired}", "  max_steps: 2\n  batch_size: 16\n"),
            ("distill: {teacher_model: MODEL, lmbda: 0}", "  max_steps: 2\n  batch_size: 16\n"),
            (
                "distill: {teacher_model: MODEL, lmbda: 1, max_new_tokens: 96}",
                "  max_steps: 2\n  batch_size: 16\n  micro_batch_tokens: 512\n",
            ),
            ("rloo: {max_new_tokens: 32, group_size: 4}", "  max_steps: 2\n  batch_size: 8\n"),
            ("ppo: {max_new_tokens: 32}", "  max_steps: 2\n  batch_size: 8\n"),
            ("ppo: {max_new_tokens: 32}", "  max_steps: 2\n  batch_size: 8\n  compute: bf16\n"),
            (
                "ppo: {max_new_tokens: 32, critic: {trunk: shared}}",
                "  max_steps: 2\n  batch_size: 8\n  try_longest: false\n",
            ),
            ("nlpo: {max_new_tokens: 32}", "  max_steps: 2\n  batch_size: 8\n"),
            ("nlpo: {max_new_tokens: 96, critic: {trunk: shared}, top_k: 750}", "  max_steps: 2\n  batch_size: 8\n"),
            ("a2c: {max_new_tokens: 32}", "  max_steps: 2\n  batch_size: 8\n  optimizer: rmsprop\n"),
            ("trpo: {max_new_tokens: 32, critic_updates: 2, cg_max_steps: 3}", "  max_steps: 2\n  batch_size: 8\n"),
            ("grpo: {max_new_tokens: 32, group_size: 8}", "  max_steps: 2\n  batch_size: 4\n"),
            // Whole rows of logits, with small and with large supports.
            (
                "grpo: {max_new_tokens: 48, group_size: 8, sampling: {top_k: 20, trained_logprobs: processed}}",
                "  max_steps: 2\n  batch_size: 4\n",
            ),
            (
                "ppo: {max_new_tokens: 96, critic: {trunk: shared}, sampling: {suppress_tokens: [7], trained_logprobs: processed}}",
                "  max_steps: 2\n  batch_size: 8\n",
            ),
            (
                // Most of the memory is the cache of 128 rows.
                "grpo: {max_new_tokens: 96, group_size: 16}",
                "  max_steps: 2\n  batch_size: 8\n  micro_batch_tokens: 256\n  sampling_weights: int8\n",
            ),
            // Models of metrics stay in memory for the whole run.
            (
                "grpo: {max_new_tokens: 32, group_size: 8}",
                "  max_steps: 2\n  batch_size: 4\n  evaluation: {metrics: [{perplexity: {model: MODEL}}]}\n",
            ),
            (
                "grpo: {max_new_tokens: 32, group_size: 8, kl_coefficient: 0.1, mini_batches: 2}",
                "  max_steps: 2\n  batch_size: 4\n  micro_batch_tokens: 512\n",
            ),
        ] {
            check(family, method, train);
        }
    }
    assert!(wrong.is_empty(), "predicted by measured, phases in MB:\n{}", wrong.join("\n"));
}

#[test]
fn memory_is_what_is_predicted_and_recomputation_saves_it() {
    the_predicted_peak_is_the_measured_one();
    recomputed_blocks_keep_little_in_memory();
}
