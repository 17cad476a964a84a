//! What a run is predicted to hold in the memory of a GPU against what CubeCL holds there.
#![cfg(any(feature = "wgpu", feature = "cuda"))]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gradus::config::{Plan, RunConfig};
use gradus::machine::Machine;
use gradus::model::{CausalLm, ModelDir, save_causal};
use gradus::rng::{Purpose, Seed};
use gradus::train::forecast;
use gradus::train::observer::Silent;

fn model(directory: &Path, family: &str) -> String {
    let source =
        ModelDir::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models").join(family))
            .expect("a fixture");
    let mut dir = source.clone();
    let sizes: &[(&str, u64)] = match family {
        "gpt2" => &[("n_embd", 384), ("n_layer", 8), ("n_head", 6), ("n_positions", 512), ("vocab_size", 8000)],
        _ => &[
            ("hidden_size", 384),
            ("num_hidden_layers", 8),
            ("num_attention_heads", 6),
            ("num_key_value_heads", 3),
            ("head_dim", 64),
            ("intermediate_size", 1024),
            ("max_position_embeddings", 512),
            ("vocab_size", 8000),
        ],
    };
    for (key, value) in sizes {
        dir.config.insert((*key).into(), (*value).into());
    }
    let model = CausalLm::random(&dir, &mut Seed(1).stream(Purpose::Init, 0, 0), &burn::tensor::Device::flex())
        .expect("a model");
    let path = directory.join(family);
    std::fs::create_dir_all(&path).expect("a directory");
    save_causal(&model, &dir, &path).expect("it is saved");
    path.display().to_string()
}

#[test]
fn explore() {
    let name = "gpu:software";
    let device = gradus::device::DeviceChoice::named(name).expect("here").device();
    for family in ["gpt2", "qwen3"] {
        for (method, train) in [
            ("sft: {}", ""),
            ("sft: {}", "  moments: int8\n"),
            ("sft: {}", "lora: {rank: 16}\n"),
            ("dpo: {}", ""),
            ("grpo: {max_new_tokens: 16, group_size: 4}", "reward: {rule: {regex: e}}\n"),
        ] {
            let directory = tempfile::tempdir().expect("a directory");
            let model = model(directory.path(), family);
            let row = |i: usize| {
                format!(
                    "{{\"prompt\": \"{}\", \"chosen\": \"{}\", \"rejected\": \"x {}\"}}\n",
                    "tea is ".repeat(5 + i % 7),
                    "good and warm ".repeat(6 + i % 5),
                    "bad and cold ".repeat(4 + i % 5)
                )
            };
            let rows = directory.path().join("rows.jsonl");
            std::fs::write(&rows, (0..32).map(row).collect::<String>()).expect("rows");
            let written = format!(
                "model: {model}\ndata: {}\noutput_dir: {}\nmethod: {{{method}}}\ntrain:\n  device: {name}\n  eval_steps: -1\n  max_steps: 2\n  batch_size: 8\n  micro_batch_tokens: 512\n{train}",
                rows.display(),
                directory.path().join("run").display()
            );
            let plan = Plan::check(&RunConfig::parse(&written).expect("reads"), &Machine::detect()).expect("holds");
            let forecast = forecast::workload(&plan, 1, &mut Silent).expect("a forecast").forecast();
            let before = gradus_kernels::device_memory(&device).expect("a gpu");
            let stop = Arc::new(AtomicBool::new(false));
            let most = Arc::new(AtomicU64::new(0));
            let watcher = {
                let (stop, most, device) = (stop.clone(), most.clone(), device.clone());
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        most.fetch_max(gradus_kernels::device_memory(&device).expect("a gpu")[0], Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                })
            };
            gradus::train::run(&plan, &mut Silent).expect("ends");
            stop.store(true, Ordering::Relaxed);
            watcher.join().expect("ends");
            let after = gradus_kernels::device_memory(&device).expect("a gpu");
            let mb = |b: u64| b / 100_000;
            eprintln!(
                "{family} {method} {train:?}: before {:?} most {} after {:?}",
                before.map(mb),
                mb(most.load(Ordering::Relaxed)),
                after.map(mb)
            );
            for phase in &forecast.phases {
                eprintln!(
                    "   {}: {:?} = {}",
                    phase.name,
                    phase.parts().map(|(n, b)| (n, mb(b))).collect::<Vec<_>>(),
                    mb(phase.total() - phase.program - phase.pages)
                );
            }
        }
    }
}
