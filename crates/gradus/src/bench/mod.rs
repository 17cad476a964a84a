//! What this machine can do, and how much of it training and sampling use.
//!
//! Arithmetic is counted as useful work only, in floating-point operations (an addition or a multiplication each):
//!
//! - a step of training: `6 · (P · N + V · D · M)`, with P the weights of the blocks that enter matrix products, N the
//!   tokens, V · D the LM head and M the predicted tokens. Each weight costs 2 a token forward and 4 backward (one
//!   product for the gradient of the input, one for that of the weight). Attention's own products, norms, activations
//!   and the optimizer are not counted, nor are logits that are computed a second time.
//! - a sampled token: `2 · (P + V · D)`; a prompt's token: `2 · P`.
//!
//! A sampling step reads every weight of the blocks and of the head once, whatever the batch, so a batch of one is
//! bound by memory: `weight bytes / bandwidth` is the least time it can take. Weights that fit into the processor's
//! caches can be faster than that.

mod preset;
mod work;

pub use preset::{PRESETS, preset};

use serde::Serialize;

use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::{self, CausalLm, ModelDir, ModelShape, Precision, WeightFormat};
use crate::rng::{Purpose, Seed};

/// Which model is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// None: the machine alone.
    Machine,
    /// A model directory or a hub name.
    Model(String),
    /// A built-in configuration with random weights.
    Preset(String),
}

/// What is measured, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The model.
    pub subject: Subject,
    /// Rows of a training step; one measurement for each, none turns training off.
    pub batch_sizes: Vec<usize>,
    /// Tokens of each row; one measurement for each.
    pub lengths: Vec<usize>,
    /// Tokens of one forward and backward pass at most.
    pub micro_batch_tokens: usize,
    /// Prompts sampled side by side; one measurement for each, none turns generation off.
    pub generate_batches: Vec<usize>,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled after each prompt.
    pub new_tokens: usize,
    /// Timed repetitions, of which the median counts; one more comes before them.
    pub repetitions: usize,
    /// How products are computed.
    pub compute: Precision,
    /// How the weights are held while sampling, where not as they are computed with.
    pub weights: Option<WeightFormat>,
    /// The seed of weights, rows and draws.
    pub seed: Seed,
    /// Where training and sampling are measured.
    pub device: DeviceChoice,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            subject: Subject::Machine,
            batch_sizes: vec![8],
            lengths: vec![256],
            micro_batch_tokens: 4096,
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

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: MachineReport,
    /// The model, where one was named.
    pub model: Option<ModelReport>,
    /// Training steps.
    pub training: Vec<Training>,
    /// Sampling.
    pub generation: Vec<Generation>,
}

/// What the machine can do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineReport {
    /// The processor, where the system names it.
    pub cpu: Option<String>,
    /// Threads that the machine runs at once.
    pub cores: usize,
    /// Threads that compute.
    pub threads: usize,
    /// 10⁹ operations a second of a large f32 matrix product on all threads.
    pub matrix_gflops_f32: f64,
    /// The same with operands in bf16.
    pub matrix_gflops_bf16: f64,
    /// 10⁹ operations a second of the inner loop of f32 products alone, with all operands at hand: the processor's limit.
    pub arithmetic_gflops_f32: f64,
    /// The same with operands in bf16.
    pub arithmetic_gflops_bf16: f64,
    /// 10⁹ bytes a second that all threads together read from memory.
    pub read_gb_s: f64,
}

impl MachineReport {
    /// The matrix peak of products computed as `compute` says.
    pub fn matrix_gflops(&self, compute: Precision) -> f64 {
        match compute {
            Precision::F32 => self.matrix_gflops_f32,
            Precision::Bf16 => self.matrix_gflops_bf16,
        }
    }
}

/// The model's sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelReport {
    /// The directory or preset.
    pub name: String,
    /// How its products are computed.
    #[serde(serialize_with = "model::word::serialize")]
    pub compute: Precision,
    /// How its weights are held while sampling.
    #[serde(serialize_with = "model::word::serialize")]
    pub weights: WeightFormat,
    /// All weights.
    pub parameters: usize,
    /// Weights of the blocks that enter matrix products, P.
    pub trunk_matrices: usize,
    /// Weights of the LM head, V · D.
    pub head_matrix: usize,
}

/// A training step: forward, backward and optimizer on packed rows, SFT's loss on every token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Training {
    /// Rows.
    pub batch_size: usize,
    /// Tokens of each row.
    pub length: usize,
    /// Tokens of one forward and backward pass at most.
    pub micro_batch_tokens: usize,
    /// Median seconds of a step.
    pub step_s: f64,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// 10⁹ useful operations a second.
    pub gflops: f64,
    /// Those as a fraction of the measured matrix peak.
    pub fraction_of_peak: f64,
}

/// Sampling a batch, prompts included.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generation {
    /// Prompts side by side.
    pub batch_size: usize,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled after each.
    pub new_tokens: usize,
    /// Median seconds from the prompts to the last token.
    pub seconds: f64,
    /// Sampled tokens a second, the prompts' time included.
    pub tokens_per_s: f64,
    /// Prompt tokens a second until the first sampled token.
    pub prompt_tokens_per_s: f64,
    /// Sampled tokens a second after the first.
    pub decode_tokens_per_s: f64,
    /// Useful operations a second, prompts included, as a fraction of the measured matrix peak.
    pub fraction_of_peak: f64,
    /// The weights read while decoding, as a fraction of the measured bandwidth.
    pub fraction_of_bandwidth: f64,
}

/// Measures what `options` say; `progress` is told what is being measured.
///
/// # Errors
/// When the model cannot be read, or a length does not fit its positions.
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
    // Weights as they are computed with are packed by each call, as in training; others are packed once, as they are read
    // where nobody trains.
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
    });
    for &batch_size in &options.generate_batches {
        progress(&format!("sampling, batch {batch_size}"));
        let sampled = coarse.as_ref().or(model.as_ref()).expect("one of them was made");
        report.generation.push(work::generation(sampled, &shape, batch_size, options, &report.machine)?);
    }
    drop(coarse);
    // Moments and gradients have their place from the start: nobody pays for them who does not train.
    let Some(model) = model.filter(|_| trains) else { return Ok(report) };
    let mut trainer = work::Trainer::new(model, options);
    for &length in &options.lengths {
        for &batch_size in &options.batch_sizes {
            progress(&format!("training, {batch_size} rows of {length} tokens"));
            report.training.push(trainer.measure(&shape, (batch_size, length), &report.machine)?);
        }
    }
    Ok(report)
}

/// The name, directory and sizes of the model, checked; nothing is loaded yet.
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

/// Sizes that cannot be computed are refused before anything is.
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
            .with_hint("`--no-training` measures sampling alone"));
    }
    let Some(limit) = shape.max_positions else { return Ok(()) };
    let sampled = (!options.generate_batches.is_empty()).then_some(options.prompt_tokens + options.new_tokens);
    let trained = options.lengths.iter().copied().filter(|_| !options.batch_sizes.is_empty());
    match trained.chain(sampled).max().filter(|&longest| longest > limit) {
        Some(longest) => {
            Err(Error::input(format!("sequences of {longest} tokens exceed the model's {limit} positions"))
                .with_hint("lower the length, or the prompt's and the new tokens"))
        }
        None => Ok(()),
    }
}
