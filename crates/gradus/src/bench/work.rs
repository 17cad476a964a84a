//! Timed work: whole training steps and whole sampling batches, with the code that every run uses.

use std::time::Instant;

use rand::Rng;

use super::{Generation, MachineReport, Options, Training};
use crate::batches::MicroBatch;
use crate::data::SftExample;
use crate::error::{Error, Result};
use crate::generate::{NoStopRule, SamplingParams, generate};
use crate::learner::Learner;
use crate::learner::optimizer::Optimizer;
use crate::model::{CausalLm, ModelShape, Precision};
use crate::objective::sft::{Sft, SftConfig};
use crate::progress::Unwatched;
use crate::rng::{Purpose, Seed};
use crate::settings::{StepSettings, TrainConfig};
use crate::train::offline::{Halt, optimize};

/// So small that hundreds of steps on random rows do not destroy the weights.
const LEARNING_RATE: f64 = 1e-6;

/// A model in training.
pub struct TimedTraining {
    learner: Learner<CausalLm>,
    settings: StepSettings,
    repetitions: usize,
    compute: Precision,
    /// Operations per token and weight: forward, and for the gradients of inputs and of weights.
    operations: f64,
}

impl TimedTraining {
    /// Prepares the training for `model`, which must be on a device with autodiff.
    pub fn new(model: CausalLm, options: &Options) -> Self {
        let defaults = TrainConfig::default();
        let settings = StepSettings {
            learning_rate: LEARNING_RATE,
            max_grad_norm: defaults.max_grad_norm,
            passes: MicroBatch { tokens: options.micro_batch_tokens, ..defaults.passes() },
            noise_alpha: None,
            seed: options.seed,
        };
        let learner = Learner::new(model, Optimizer::new(defaults.optimizer()));
        let operations = if options.lora.is_some() { 4.0 } else { 6.0 };
        Self { learner, settings, repetitions: options.repetitions, compute: options.compute, operations }
    }

    /// Times steps on `batch_size` rows of `length` random tokens.
    ///
    /// # Errors
    /// If the loss or a gradient is not finite: the weights are damaged.
    pub fn measure(
        &mut self,
        shape: &ModelShape,
        (batch_size, length): (usize, usize),
        machine: &MachineReport,
    ) -> Result<Training> {
        let rows: Vec<SftExample> = (0..batch_size)
            .map(|row| SftExample {
                source_len: 0,
                ids: random_ids(shape, length, self.settings.seed, row),
                loss_mask: vec![true; length],
                row,
            })
            .collect();
        let rows: Vec<&SftExample> = rows.iter().collect();
        let objective = Sft::new(&SftConfig::default());
        let (learner, settings) = (&mut self.learner, self.settings);
        let step_s = median(self.repetitions, &mut || {
            optimize(&objective, learner, &rows, settings, &Unwatched).map(drop).map_err(|halt| match halt {
                Halt::Diverged(what) => Error::input(format!("training on random rows failed: {what}")),
                Halt::Interrupted => Error::Interrupted,
                Halt::Failed(error) => error,
            })
        })?;
        let (tokens, targets) = (batch_size * length, batch_size * (length - 1));
        let work = shape.trunk_matrices() as f64 * tokens as f64 + shape.head_matrix() as f64 * targets as f64;
        let gflops = self.operations * work / step_s / 1e9;
        Ok(Training {
            batch_size,
            length,
            micro_batch_tokens: settings.passes.tokens,
            step_s,
            tokens_per_s: tokens as f64 / step_s,
            gflops,
            fraction_of_peak: gflops / machine.matrix_gflops(self.compute),
        })
    }
}

/// Times sampling for `batch_size` different prompts, in full and up to the first token.
///
/// # Errors
/// If sampling fails.
pub fn generation(
    model: &CausalLm,
    shape: &ModelShape,
    batch_size: usize,
    options: &Options,
    machine: &MachineReport,
) -> Result<Generation> {
    let ids: Vec<Vec<u32>> =
        (0..batch_size).map(|row| random_ids(shape, options.prompt_tokens, options.seed, row)).collect();
    let prompts: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
    let stream = |row: usize| options.seed.stream(Purpose::Generate, 0, row as u64);
    let time = |new_tokens: usize| {
        let params = SamplingParams { max_new_tokens: new_tokens, ..SamplingParams::default() };
        median(options.repetitions, &mut || generate(model, &prompts, 1, &params, &mut NoStopRule, &stream).map(drop))
    };
    let first_s = time(1)?;
    let seconds = if options.new_tokens > 1 { time(options.new_tokens)? } else { first_s };
    let decode_s = decode_seconds(first_s, seconds);
    let (new, decoded) = (batch_size * options.new_tokens, batch_size * (options.new_tokens - 1));
    let (trunk, head) = (shape.trunk_matrices() as f64, shape.head_matrix() as f64);
    let passed = batch_size * options.prompt_tokens + decoded;
    let gflops = 2.0 * (trunk * passed as f64 + head * new as f64) / seconds / 1e9;
    let weights = options.weights.unwrap_or(options.compute.into());
    let read_gb = weights.bytes((trunk + head) as u64) as f64 * (options.new_tokens - 1) as f64 / 1e9;
    Ok(Generation {
        batch_size,
        prompt_tokens: options.prompt_tokens,
        new_tokens: options.new_tokens,
        seconds,
        tokens_per_s: new as f64 / seconds,
        prompt_tokens_per_s: (batch_size * options.prompt_tokens) as f64 / first_s,
        decode_tokens_per_s: decode_s.map(|decode_s| decoded as f64 / decode_s),
        fraction_of_peak: gflops / machine.matrix_gflops(options.compute),
        fraction_of_bandwidth: decode_s.map(|decode_s| read_gb / decode_s / machine.read_gb_s),
    })
}

/// Share by which medians of equal work differ.
const NOISE: f64 = 0.05;

/// Returns the time after the first token, as the difference of two medians. `None` if noise hides it, or if there is only one token.
fn decode_seconds(first_s: f64, seconds: f64) -> Option<f64> {
    Some(seconds - first_s).filter(|decode_s| *decode_s > NOISE * seconds)
}

fn random_ids(shape: &ModelShape, length: usize, seed: Seed, row: usize) -> Vec<u32> {
    let mut stream = seed.stream(Purpose::Bench, 0, row as u64);
    (0..length).map(|_| stream.random_range(0..shape.vocabulary as u32)).collect()
}

/// Returns the median seconds of `repetitions` runs (at least one), after one untimed run.
fn median(repetitions: usize, run: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    median_by(repetitions, || {
        let start = Instant::now();
        run().map(|()| start.elapsed().as_secs_f64())
    })
}

/// [`median`], but `timed` runs once and returns its own duration.
fn median_by(repetitions: usize, mut timed: impl FnMut() -> Result<f64>) -> Result<f64> {
    timed()?;
    let mut seconds = (0..repetitions.max(1)).map(|_| timed()).collect::<Result<Vec<f64>>>()?;
    seconds.sort_by(f64::total_cmp);
    let middle = seconds.len() / 2;
    Ok(if seconds.len() % 2 == 1 { seconds[middle] } else { (seconds[middle - 1] + seconds[middle]) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_without_a_measurable_time_has_no_rate() {
        assert_eq!(decode_seconds(0.25, 1.0), Some(0.75));
        assert_eq!([decode_seconds(0.25, 0.25), decode_seconds(0.25, 0.125)], [None, None]);
        // So small a difference is noise, whatever its sign.
        assert_eq!(decode_seconds(0.25, 0.250_013), None);
    }

    #[test]
    fn the_median_leaves_out_the_first_run_and_the_extremes() {
        let mut seconds = [0.4, 0.001, 0.4, 0.1].into_iter();
        let median = median_by(3, || Ok(seconds.next().expect("four runs")));
        assert_eq!(median.expect("no run fails"), 0.1);
    }
}
