//! `gradus bench`: capabilities of this machine, and how well training and sampling use them.

use std::fmt::Write as _;

use gradus::bench::{Generation, Options, Report, Subject, Training};
use gradus::device::DeviceChoice;
use gradus::model::adapter::LoraConfig;
use gradus::model::{Precision, WeightFormat};
use gradus::rng::Seed;

use super::device::DeviceArgs;
use crate::output::Output;
use crate::table::{aligned, count, percent, seconds};
use crate::watch::fetch;

/// Arguments of `gradus bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Measure this model: a Hugging Face directory or a hub name
    #[arg(long, value_name = "DIR", conflicts_with = "preset")]
    model: Option<String>,
    /// Measure a built-in model with random weights: gpt2, gpt2-tiny, gemma-3-270m, qwen2.5-0.5b or qwen3-0.6b
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Rows of a training step; several values are measured one after the other
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "8")]
    batch_size: Vec<usize>,
    /// Tokens of each row
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "256")]
    length: Vec<usize>,
    /// Maximum number of tokens in one forward and backward pass
    #[arg(long, value_name = "N", default_value_t = 4096)]
    micro_batch_tokens: usize,
    /// Train an adapter of this rank instead of all weights (LoRA)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    lora_rank: Option<u32>,
    /// Linear layers that get an adapter, by name suffix, or all-linear [default: those of attention]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "lora_rank")]
    lora_targets: Vec<String>,
    /// Number format of the weights below the adapter: f32, bf16, int8 or nf4 [default: as --compute]
    #[arg(long, value_name = "TYPE", requires = "lora_rank")]
    frozen_weights: Option<WeightFormat>,
    /// Leave training out
    #[arg(long, conflicts_with = "lora_rank")]
    no_training: bool,
    /// Number of prompts that are sampled together
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8,64")]
    generate_batch: Vec<usize>,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 64)]
    prompt_tokens: usize,
    /// Tokens sampled after each prompt
    #[arg(long, value_name = "N", default_value_t = 64)]
    new_tokens: usize,
    /// Leave sampling out
    #[arg(long)]
    no_generation: bool,
    /// Timed repetitions of each measurement; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    repetitions: usize,
    /// Number format of matrix products: f32 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    compute: Precision,
    /// Number format of weights while sampling: f32, bf16, int8 or nf4 [default: as --compute]
    #[arg(long, value_name = "TYPE")]
    weights: Option<WeightFormat>,
    /// Threads to compute with
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Seed of weights, rows and samples
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    #[command(flatten)]
    on: DeviceArgs,
}

/// Runs the measurements and prints tables, or JSON with `--json`.
pub fn run(args: BenchArgs, out: &Output) -> anyhow::Result<()> {
    gradus::threads::use_threads(args.threads)?;
    let subject = match (args.model, args.preset) {
        (Some(model), _) => {
            fetch(&model, out)?;
            Subject::Model(model)
        }
        (None, Some(preset)) => Subject::Preset(preset),
        (None, None) => Subject::Machine,
    };
    let on_device = args.on.device != DeviceChoice::cpu();
    let is_machine = subject == Subject::Machine;
    let options = Options {
        subject,
        batch_sizes: if args.no_training { Vec::new() } else { args.batch_size },
        lengths: args.length,
        micro_batch_tokens: args.micro_batch_tokens,
        lora: args.lora_rank.map(|rank| LoraConfig {
            rank: rank as usize,
            targets: args.lora_targets,
            ..LoraConfig::default()
        }),
        frozen_weights: args.frozen_weights,
        generate_batches: if args.no_generation { Vec::new() } else { args.generate_batch },
        prompt_tokens: args.prompt_tokens,
        new_tokens: args.new_tokens,
        repetitions: args.repetitions,
        compute: args.compute,
        weights: args.weights,
        seed: Seed(args.seed),
        device: args.on.device,
    };
    let mut shown = None;
    let report = gradus::bench::run(&options, &mut |what| {
        // Remove the old line before the new one appears.
        shown.take();
        shown = Some(out.spinner(&format!("measuring {what}")));
    })?;
    drop(shown);
    out.result(&report, || text(&report))?;
    if on_device {
        out.note("the peaks were measured on the processor, not on the device");
    }
    if is_machine {
        out.note("`--preset gpt2` or `--model DIR` also measures training and sampling");
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    line("processor", machine.cpu.clone().unwrap_or_else(|| "unknown".into()));
    line("threads", format!("{} of {}", machine.threads, machine.cores));
    line("matrix peak", {
        let (single, half) = (machine.matrix_gflops_f32, machine.matrix_gflops_bf16);
        format!("{single:.0} GFLOP/s in f32, {half:.0} in bf16")
    });
    line("arithmetic", {
        let (single, half) = (machine.arithmetic_gflops_f32, machine.arithmetic_gflops_bf16);
        format!("{single:.0} and {half:.0}, with all operands in the cache")
    });
    line("memory", format!("{:.1} GB/s read", machine.read_gb_s));
    if let Some(model) = &report.model {
        let sizes = [model.parameters, model.trunk_matrices, model.head_matrix].map(|n| count(n as f64));
        let [all, blocks, head] = sizes;
        line("model", format!("{}, {all} parameters: {blocks} in matrices of blocks, {head} in the head", model.name));
        let sampled = match model.weights == model.compute.into() {
            true => String::new(),
            false => format!(", sampled from with weights in {}", model.weights.name()),
        };
        line("products", format!("in {}{sampled}", model.compute.name()));
        if let Some(adapter) = &model.adapter {
            let (parameters, frozen) = (count(adapter.parameters as f64), adapter.frozen_weights.name());
            line("adapter", format!("rank {}, {parameters} parameters, on weights in {frozen}", adapter.rank));
        }
    }
    if !report.training.is_empty() {
        let _ = write!(text, "\n{}", aligned(&training(&report.training)));
    }
    if !report.generation.is_empty() {
        let _ = write!(text, "\n{}", aligned(&generation(&report.generation)));
    }
    text
}

fn training(measured: &[Training]) -> Vec<Vec<String>> {
    let heading = ["training", "step", "tokens/s", "GFLOP/s", "of matrix peak"];
    let row = |found: &Training| {
        vec![
            format!("{} × {}", found.batch_size, found.length),
            seconds(found.step_s),
            format!("{:.0}", found.tokens_per_s),
            format!("{:.0}", found.gflops),
            percent(found.fraction_of_peak),
        ]
    };
    std::iter::once(heading.map(str::to_owned).to_vec()).chain(measured.iter().map(row)).collect()
}

fn generation(measured: &[Generation]) -> Vec<Vec<String>> {
    let heading = ["generation", "time", "tokens/s", "prompt/s", "decode/s", "of matrix peak", "of bandwidth"];
    let absent = || "–".to_owned();
    let row = |found: &Generation| {
        vec![
            format!("{} × ({} + {})", found.batch_size, found.prompt_tokens, found.new_tokens),
            seconds(found.seconds),
            format!("{:.0}", found.tokens_per_s),
            format!("{:.0}", found.prompt_tokens_per_s),
            found.decode_tokens_per_s.map_or_else(absent, |rate| format!("{rate:.0}")),
            percent(found.fraction_of_peak),
            found.fraction_of_bandwidth.map_or_else(absent, percent),
        ]
    };
    std::iter::once(heading.map(str::to_owned).to_vec()).chain(measured.iter().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use gradus::bench::{AdapterReport, MachineReport, ModelReport};

    use super::*;

    #[test]
    fn a_report_is_aligned_tables() {
        let report = Report {
            machine: MachineReport {
                cpu: Some("A Processor".into()),
                cores: 2,
                threads: 1,
                matrix_gflops_f32: 431.2,
                matrix_gflops_bf16: 812.0,
                arithmetic_gflops_f32: 519.6,
                arithmetic_gflops_bf16: 1030.2,
                read_gb_s: 38.25,
            },
            model: Some(ModelReport {
                name: "gpt2".into(),
                compute: Precision::F32,
                weights: WeightFormat::INT8,
                parameters: 124_439_808,
                trunk_matrices: 84_934_656,
                head_matrix: 38_597_376,
                adapter: Some(AdapterReport { rank: 16, parameters: 589_824, frozen_weights: WeightFormat::NF4 }),
            }),
            training: vec![Training {
                batch_size: 8,
                length: 256,
                micro_batch_tokens: 4096,
                step_s: 5.0,
                tokens_per_s: 409.6,
                gflops: 303.0,
                fraction_of_peak: 0.7027,
            }],
            generation: [1, 64]
                .map(|batch_size| Generation {
                    batch_size,
                    prompt_tokens: 64,
                    new_tokens: 64,
                    seconds: 1.239,
                    tokens_per_s: 51.6 * batch_size as f64,
                    prompt_tokens_per_s: 800.0,
                    decode_tokens_per_s: (batch_size == 1).then_some(60.0),
                    fraction_of_peak: 0.05,
                    fraction_of_bandwidth: (batch_size == 1).then_some(0.91),
                })
                .to_vec(),
        };
        let expected = "\
processor    A Processor
threads      1 of 2
matrix peak  431 GFLOP/s in f32, 812 in bf16
arithmetic   520 and 1030, with all operands in the cache
memory       38.2 GB/s read
model        gpt2, 124.4 M parameters: 84.9 M in matrices of blocks, 38.6 M in the head
products     in f32, sampled from with weights in int8
adapter      rank 16, 589.8 k parameters, on weights in nf4

training    step  tokens/s  GFLOP/s  of matrix peak
8 × 256   5.00 s       410      303            70 %

generation        time  tokens/s  prompt/s  decode/s  of matrix peak  of bandwidth
1 × (64 + 64)   1.24 s        52       800        60           5.0 %          91 %
64 × (64 + 64)  1.24 s      3302       800         –           5.0 %             –
";
        assert_eq!(text(&report), expected);
    }
}
