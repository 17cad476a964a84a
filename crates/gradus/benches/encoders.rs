//! Time and memory of encoders by text length: windowed attention (Longformer) compared to full attention (RoBERTa), in
//! layers of the width of the base models.
//!
//! `cargo bench --workspace --bench encoders` measures scoring one text, and one training step (forward and backward).

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::hint::black_box;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;
use gradus::model::{Classifier, ModelDir, Text};
use gradus::rng::{Purpose, Seed};
use serde_json::{Value, json};

/// Numbers of tokens of a text.
const LENGTHS: [usize; 4] = [512, 1024, 2048, 4096];
/// Number of blocks, enough to make embeddings and head negligible.
const LAYERS: usize = 4;
/// Number of tokens that each token attends to, as in `longformer-base-4096`.
const WINDOW: usize = 512;
/// Number of runs. The fastest counts, because other work on the machine can only slow a run down.
const RUNS: usize = 3;

fn classifier(model_type: &str, class: &str, device: &Device) -> Classifier {
    let config = json!({
        "model_type": model_type, "architectures": [class], "vocab_size": 1000, "hidden_size": 768,
        "num_hidden_layers": LAYERS, "num_attention_heads": 12, "intermediate_size": 3072,
        "max_position_embeddings": 4098, "type_vocab_size": 1, "pad_token_id": 1, "attention_window": WINDOW
    });
    let Value::Object(config) = config else { unreachable!("an object") };
    let mut stream = Seed(1).stream(Purpose::Init, 0, 0);
    Classifier::random(&ModelDir::unsaved(config), &mut stream, device).expect("a configuration that is understood")
}

/// Returns the peak memory of `run` in MiB beyond the memory held before, if the system reports it.
fn peak(run: impl FnOnce()) -> Option<f64> {
    let field = |name: &str| {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    // 5 resets the high-water mark to the current value.
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    let before = field("VmRSS:")?;
    run();
    Some((field("VmHWM:")? - before) / 1024.0)
}

/// Returns the CPU time of this process so far in milliseconds, in steps of ten, if the system reports it. Other work
/// on the machine changes it little.
fn processor_ms() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name in brackets: user and system time are the 12th and 13th numbers, in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) * 10.0)
}

/// Cost of a run.
struct Cost {
    /// Milliseconds of the fastest run.
    ms: f64,
    /// CPU time of the run that used least.
    processor_ms: Option<f64>,
    /// Memory of the first run.
    mib: Option<f64>,
}

fn measure(mut run: impl FnMut()) -> Cost {
    let mut cost = Cost { mib: peak(&mut run), ms: f64::INFINITY, processor_ms: None };
    for _ in 0..RUNS {
        let (start, before) = (Instant::now(), processor_ms());
        run();
        cost.ms = cost.ms.min(start.elapsed().as_secs_f64() * 1e3);
        let used = before.zip(processor_ms()).map(|(before, after)| after - before);
        cost.processor_ms = used.map(|used| cost.processor_ms.map_or(used, |least| least.min(used)));
    }
    cost
}

fn main() {
    // Under `cargo test`, it only has to run.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let lengths = if is_bench { &LENGTHS[..] } else { &LENGTHS[..1] };
    println!("{LAYERS} layers of width 768; window {WINDOW}; time, time of processors, and MiB beyond the weights");
    println!("{:<28}{:>8}{:>12}{:>14}{:>10}{:>10}", "", "tokens", "ms", "CPU ms/1k", "MiB", "MiB/1k");
    for (name, model_type, class) in [
        ("window, whole text", "longformer", "LongformerForSequenceClassification"),
        ("window, every token", "longformer", "LongformerForTokenClassification"),
        ("everything, whole text", "roberta", "RobertaForSequenceClassification"),
    ] {
        let plain = classifier(model_type, class, &Device::flex());
        let trained = classifier(model_type, class, &Device::flex().autodiff()).train();
        for &n in lengths {
            let ids: Vec<u32> = (0..n as u32).map(|t| 5 + t * 7 % 990).collect();
            let scored = measure(|| {
                black_box(plain.logits(&plain.batch(&[Text::new(&ids)])).into_data());
            });
            let stepped = measure(|| {
                let loss = trained.logits(&trained.batch(&[Text::new(&ids)])).sum();
                black_box(loss.backward());
            });
            for (what, cost) in [("score", scored), ("train", stepped)] {
                let Cost { ms, processor_ms, mib } = cost;
                let told =
                    |found: Option<f64>, scale: f64| found.map_or("–".to_owned(), |x| format!("{:.0}", x / scale));
                let (label, thousands) = (format!("{what}: {name}"), n as f64 / 1e3);
                let (cpu, all, each) = (told(processor_ms, thousands), told(mib, 1.0), told(mib, thousands));
                println!("{label:<28}{n:>8}{ms:>12.1}{cpu:>14}{all:>10}{each:>10}");
            }
        }
    }
}
