//! Benchmark of this machine, and of how much of its speed training and sampling use.
//!
//! Only useful arithmetic counts, in floating-point operations (an addition or a multiplication each):
//!
//! - a training step: `6 · (P · N + V · D · M)`, with P the weights of the blocks that enter matrix products, N the
//!   tokens, V · D the LM head and M the predicted tokens. Each weight costs 2 operations per token forward and 4
//!   backward (one product for the gradient of the input, one for that of the weight). Attention's own products, norms,
//!   activations, the optimizer and recomputed logits are not counted. With an adapter, the weights have no gradient:
//!   `4 · (P · N + V · D · M)`. The products of the adapter are not counted.
//! - a sampled token: `2 · (P + V · D)`; a prompt token: `2 · P`.
//!
//! A sampling step reads every weight of the blocks and of the head once, independent of the batch. A batch of one is
//! therefore limited by memory: it takes at least `weight bytes / bandwidth`. Weights that fit into the processor's
//! caches can be faster.

mod preset;
mod work;

pub use preset::{PRESETS, preset};

use burn::module::Module;
use serde::Serialize;

use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::adapter::{Adaptable, LoraConfig, TaskType};
use crate::model::{self, CausalLm, ModelDir, ModelShape, Precision, WeightFormat};
use crate::rng::{Purpose, Seed};

/// The model to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// No model: only the machine.
    Machine,
    /// A model directory or a hub name.
    Model(String),
    /// A built-in configuration with random weights.
    Preset(String),
}

/// Settings of a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The model.
    pub subject: Subject,
    /// Rows per training step, one measurement for each. An empty list turns training off.
    pub batch_sizes: Vec<usize>,
    /// Tokens per row, one measurement for each.
    pub lengths: Vec<usize>,
    /// Maximum number of tokens in one forward and backward pass.
    pub micro_batch_tokens: usize,
    /// Adapter to train instead of all weights.
    pub lora: Option<LoraConfig>,
    /// Format of the weights below the adapter, if it differs from `compute`.
    pub frozen_weights: Option<WeightFormat>,
    /// Prompts sampled at the same time, one measurement for each. An empty list turns generation off.
    pub generate_batches: Vec<usize>,
    /// Tokens per prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled after each prompt.
    pub new_tokens: usize,
    /// Number of timed repetitions, after one untimed run. The result is their median.
    pub repetitions: usize,
    /// Number format of the operands of matrix products.
    pub compute: Precision,
    /// Format of the weights while sampling, if it differs from `compute`.
    pub weights: Option<WeightFormat>,
    /// Seed of weights, rows and samples.
    pub seed: Seed,
    /// Device for training and sampling.
    pub device: DeviceChoice,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            subject: Subject::Machine,
            batch_sizes: vec![8],
            lengths: vec![256],
            micro_batch_tokens: 4096,
            lora: None,
            frozen_weights: None,
            generate_batches: vec![1, 8, 64],
            prompt_tokens: 64,
            new_tokens: 64,
            repetitions: 3,
            compute: Precision::F32,
            weights: None,
            seed: Seed(42),
            device: DeviceChoice::cpu(),
        }
    }
}

/// Result of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: MachineReport,
    /// The model, if one was given.
    pub model: Option<ModelReport>,
    /// Measurements of training steps.
    pub training: Vec<Training>,
    /// Measurements of sampling.
    pub generation: Vec<Generation>,
}

/// Speed of the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineReport {
    /// Name of the processor, if the system reports it.
    pub cpu: Option<String>,
    /// Number of hardware threads.
    pub cores: usize,
    /// Number of threads used for computing.
    pub threads: usize,
    /// 10⁹ operations per second of a large f32 matrix product on all threads.
    pub matrix_gflops_f32: f64,
    /// The same with operands in bf16.
    pub matrix_gflops_bf16: f64,
    /// 10⁹ operations per second of the inner loop of f32 products, with all operands in the first-level cache: the
    /// processor's limit.
    pub arithmetic_gflops_f32: f64,
    /// The same with operands in bf16.
    pub arithmetic_gflops_bf16: f64,
    /// 10⁹ bytes per second that all threads together read from memory.
    pub read_gb_s: f64,
}

impl MachineReport {
    /// Returns the matrix peak of products in the format `compute`.
    pub fn matrix_gflops(&self, compute: Precision) -> f64 {
        match compute {
            Precision::F32 => self.matrix_gflops_f32,
            Precision::Bf16 => self.matrix_gflops_bf16,
        }
    }
}

/// Sizes of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelReport {
    /// Directory or preset.
    pub name: String,
    /// Number format of the operands of its products.
    #[serde(serialize_with = "model::word::serialize")]
    pub compute: Precision,
    /// Format of its weights while sampling.
    #[serde(serialize_with = "model::word::serialize")]
    pub weights: WeightFormat,
    /// Adapter that is trained instead of all weights.
    pub adapter: Option<AdapterReport>,
    /// Number of all weights.
    pub parameters: usize,
    /// Number of weights of the blocks that enter matrix products, P.
    pub trunk_matrices: usize,
    /// Number of weights of the LM head, V · D.
    pub head_matrix: usize,
}

/// A low-rank adapter in training.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdapterReport {
    /// Rank.
    pub rank: usize,
    /// Number of its weights.
    pub parameters: usize,
    /// Format of the weights below it.
    #[serde(serialize_with = "model::word::serialize")]
    pub frozen_weights: WeightFormat,
}

/// A training step: forward, backward and optimizer on packed rows, SFT's loss on every token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Training {
    /// Number of rows.
    pub batch_size: usize,
    /// Tokens per row.
    pub length: usize,
    /// Maximum number of tokens in one forward and backward pass.
    pub micro_batch_tokens: usize,
    /// Median duration of a step in seconds.
    pub step_s: f64,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// 10⁹ useful operations per second.
    pub gflops: f64,
    /// `gflops` as a fraction of the measured matrix peak.
    pub fraction_of_peak: f64,
}

/// Sampling of a batch, including prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generation {
    /// Prompts at the same time.
    pub batch_size: usize,
    /// Tokens per prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled after each prompt.
    pub new_tokens: usize,
    /// Median time from the prompts to the last token in seconds.
    pub seconds: f64,
    /// Sampled tokens per second, including the time for prompts.
    pub tokens_per_s: f64,
    /// Prompt tokens per second until the first sampled token.
    pub prompt_tokens_per_s: f64,
    /// Sampled tokens per second after the first one. `None` if these tokens take at most 5 % of the time: noise hides that.
    pub decode_tokens_per_s: Option<f64>,
    /// Useful operations per second, including prompts, as a fraction of the measured matrix peak.
    pub fraction_of_peak: f64,
    /// Rate of reading weights while decoding, as a fraction of the measured bandwidth. `None` as above.
    pub fraction_of_bandwidth: Option<f64>,
}

/// Runs the measurements in `options`. `progress` receives the name of each measurement.
///
/// # Errors
/// If the model cannot be read, or a length exceeds its positions.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let subject = open(options)?;
    progress("the matrix peak and the memory's bandwidth");
    let machine = Machine::detect();
    let machine = MachineReport {
        cpu: machine.processor,
        cores: machine.threads,
        threads: rayon::current_num_threads(),
        matrix_gflops_f32: gradus_kernels::measure::matrix_gflops(Precision::F32, options.repetitions.max(5)),
        matrix_gflops_bf16: gradus_kernels::measure::matrix_gflops(Precision::Bf16, options.repetitions.max(5)),
        arithmetic_gflops_f32: gradus_kernels::measure::arithmetic_gflops(Precision::F32, options.repetitions.max(5)),
        arithmetic_gflops_bf16: gradus_kernels::measure::arithmetic_gflops(Precision::Bf16, options.repetitions.max(5)),
        read_gb_s: gradus_kernels::measure::read_gb_s(options.repetitions.max(5)),
    };
    let mut report = Report { machine, model: None, training: Vec::new(), generation: Vec::new() };
    let Some((name, dir, shape)) = subject else { return Ok(report) };
    progress(&format!("loading {name}"));
    options.device.check_compute("`--compute`", options.compute)?;
    let device = options.device.device();
    let trains = !options.lengths.is_empty() && !options.batch_sizes.is_empty();
    let whole = || {
        let device = device.clone().autodiff();
        let model = match &options.subject {
            Subject::Preset(_) => CausalLm::random(&dir, &mut options.seed.stream(Purpose::Init, 0, 0), &device)?,
            _ => CausalLm::load(&dir, &device)?,
        };
        Ok::<_, Error>(model.with_compute(options.compute))
    };
    // Weights in the compute format are packed by each call, as in training. Other formats are packed once; if nothing
    // is trained, while they are read.
    let (model, coarse) = match (options.weights, &options.subject) {
        (Some(weights), Subject::Model(_)) if !trains => {
            let model = CausalLm::load_packed(&dir, weights, &device)?;
            (None, Some(model.with_compute(options.compute).into_frozen(weights)))
        }
        (weights, _) => {
            let model = whole()?;
            let coarse = weights.map(|weights| model.clone().into_frozen(weights));
            (Some(model), coarse)
        }
    };
    report.model = Some(ModelReport {
        name,
        compute: options.compute,
        weights: options.weights.unwrap_or(options.compute.into()),
        parameters: shape.parameters(),
        trunk_matrices: shape.trunk_matrices(),
        head_matrix: shape.head_matrix(),
        adapter: None,
    });
    for &batch_size in &options.generate_batches {
        progress(&format!("sampling, batch {batch_size}"));
        let sampled = coarse.as_ref().or(model.as_ref()).expect("one of them was made");
        report.generation.push(work::generation(sampled, &shape, batch_size, options, &report.machine)?);
    }
    drop(coarse);
    // Moments and gradients take memory from the start, so the training exists only if training is measured.
    let Some(mut model) = model.filter(|_| trains) else { return Ok(report) };
    if let Some(lora) = &options.lora {
        let frozen_weights = options.frozen_weights.unwrap_or(options.compute.into());
        let config = lora.peft_config(&dir, TaskType::CausalLm, dir.path.display().to_string())?;
        let mut stream = options.seed.stream(Purpose::Init, 0, 1);
        let plain = model.num_params();
        model = model.with_fresh_adapter(&dir, config, &mut stream)?;
        let parameters = model.num_params() - plain;
        model = model.train_adapter(frozen_weights);
        let adapter = AdapterReport { rank: lora.rank, parameters, frozen_weights };
        report.model.as_mut().expect("it was described").adapter = Some(adapter);
    }
    let mut training = work::TimedTraining::new(model, options);
    for &length in &options.lengths {
        for &batch_size in &options.batch_sizes {
            progress(&format!("training, {batch_size} rows of {length} tokens"));
            report.training.push(training.measure(&shape, (batch_size, length), &report.machine)?);
        }
    }
    Ok(report)
}

/// Returns the name, directory and sizes of the model after checks. No weights are loaded yet.
fn open(options: &Options) -> Result<Option<(String, ModelDir, ModelShape)>> {
    let (name, dir) = match &options.subject {
        Subject::Machine => return Ok(None),
        Subject::Preset(name) => (name, preset(name)?),
        Subject::Model(name) => (name, ModelDir::open(&model::resolve(name, &mut |_, _, _| {})?)?),
    };
    let shape = ModelShape::of(&dir)?;
    check(options, &shape)?;
    Ok(Some((name.clone(), dir, shape)))
}

/// Rejects sizes that cannot be computed before any computation.
fn check(options: &Options, shape: &ModelShape) -> Result<()> {
    let counts = [&options.batch_sizes, &options.lengths, &options.generate_batches];
    let single = [options.prompt_tokens, options.new_tokens, options.micro_batch_tokens];
    if counts.into_iter().flatten().chain(&single).any(|&count| count == 0) {
        return Err(Error::input("a batch size, length or number of tokens is 0, but must be at least 1"));
    }
    if options.lengths.contains(&1) {
        return Err(Error::input("a length is 1, but a row of one token predicts nothing: it must be at least 2"));
    }
    if shape.has_encoder() && !options.batch_sizes.is_empty() {
        return Err(Error::input("`gradus bench` trains models without an encoder only")
            .with_hint("`--no-training` measures only sampling"));
    }
    let Some(limit) = shape.max_positions else { return Ok(()) };
    let sampled = (!options.generate_batches.is_empty()).then_some(options.prompt_tokens + options.new_tokens);
    let trained = options.lengths.iter().copied().filter(|_| !options.batch_sizes.is_empty()).max();
    for (tokens, hint) in [(trained, "lower `--length`"), (sampled, "lower `--prompt-tokens` or `--new-tokens`")] {
        if let Some(tokens) = tokens.filter(|&tokens| tokens > limit) {
            let message = format!("sequences of {tokens} tokens exceed the model's {limit} positions");
            return Err(Error::input(message).with_hint(hint));
        }
    }
    Ok(())
}
