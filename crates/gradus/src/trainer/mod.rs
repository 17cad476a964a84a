//! A policy in training, for programs with their own training loop.
//!
//! The primitives are those of Tinker's training clients. [`Trainer::forward_backward`] accumulates gradients,
//! [`Trainer::optim_step`] updates the weights, [`Trainer::logprobs`] and [`Trainer::sample`] query the current policy,
//! and [`Trainer::save`] writes it as a Hugging Face directory. Losses are **sums** over tokens, so a batch may be
//! split over any number of calls.
//!
//! ```no_run
//! use gradus::generate::SamplingParams;
//! use gradus::rng::Seed;
//! use gradus::trainer::{Datum, Loss, Trainer, TrainerOptions};
//!
//! # fn reward(ids: &[u32]) -> f32 { ids.len() as f32 }
//! # fn main() -> gradus::Result<()> {
//! let mut trainer = Trainer::open(&TrainerOptions { model: "Qwen/Qwen3-0.6B".into(), ..TrainerOptions::default() })?;
//! let prompt = trainer.tokenizer().encode("The kettle", false)?;
//! for step in 0..100 {
//!     // REINFORCE: a group of completions; the advantage of each is its reward minus the mean of the group.
//!     let params = SamplingParams { max_new_tokens: 32, ..SamplingParams::default() };
//!     let completions = trainer.sample(&[&prompt], 8, &params, Seed(step))?;
//!     let rewards: Vec<f32> = completions.iter().map(|completion| reward(&completion.ids)).collect();
//!     let mean = rewards.iter().sum::<f32>() / rewards.len() as f32;
//!     let data: Vec<Datum> = completions
//!         .iter()
//!         .zip(&rewards)
//!         .map(|(completion, reward)| Datum {
//!             prompt: prompt.clone(),
//!             weights: vec![(reward - mean) / 8.0; completion.ids.len()],
//!             old_logprobs: completion.logprobs.clone(),
//!             completion: completion.ids.clone(),
//!         })
//!         .collect();
//!     trainer.forward_backward(&data, Loss::ImportanceSampling)?;
//!     trainer.optim_step(1e-5, 1.0)?;
//! }
//! trainer.save("trained".as_ref())
//! # }
//! ```

mod base;
mod data;
mod loss;
mod options;
mod targeted;

use std::ops::Range;
use std::path::Path;

use crate::batches::MicroBatch;
use crate::error::{Error, Result};
use crate::files::output::OutputDir;
use crate::generate::{Completion, NoStopRule, SamplingParams, generate};
use crate::host::{constant, read};
use crate::learner::Learner;
use crate::learner::optimizer::{Optimizer, OptimizerConfig};
use crate::loss::reduce::sum;
use crate::model::adapter::{Adaptable, PeftConfig, TaskType};
use crate::model::{CausalLm, Rows, Sequence, open_model};
use crate::optimizer_state::{self, Restored};
use crate::pretrained::{Pretrained, TextFiles, Trainable};
use crate::rng::{Purpose, Seed};
use crate::run::tensors::{read_state, write_state};
use crate::text::Tokenizer;
pub use base::Base;
pub use data::{Datum, Targeted};
pub use loss::Loss;
pub use options::{StepParams, TrainerOptions};
use options::{at_least_zero, check_optimizer};
use targeted::{hidden_of, per_row, scatter, values_of};

/// Results of a forward and backward pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ForwardBackward {
    /// Loss, summed over tokens.
    pub loss: f64,
    /// Log-probabilities of each completion under the policy, in nats.
    pub logprobs: Vec<Vec<f32>>,
    /// Number of tokens that went through the model.
    pub tokens: usize,
}

/// Result of an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimStep {
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Version of the policy's weights after the step.
    pub version: u64,
}

/// Number of targets that count as one token of a pass. Each target needs one value on the CPU, but a hidden state and a
/// softmax on a GPU, so a pass needs a limit for targets, too.
const TARGETS_PER_TOKEN: usize = 64;

/// File next to an adapter that holds its optimizer's state.
const OPTIMIZER_FILE: &str = "optimizer.safetensors";

/// A policy in training: weights, gradients, optimizer and tokenizer. It may move to another thread. A program that shares
/// it among threads needs a lock.
#[derive(Debug)]
pub struct Trainer {
    learner: Learner<CausalLm>,
    files: Pretrained,
    passes: MicroBatch,
}

impl Trainer {
    /// Loads a model and prepares it for training.
    ///
    /// # Errors
    /// If the model cannot be read or trained, an adapter does not fit it, or a constant of the optimizer is out of range.
    pub fn open(options: &TrainerOptions) -> Result<Self> {
        check_optimizer(&options.optimizer)?;
        let files = Pretrained::of(open_model(&options.model)?, &TextFiles::default())?;
        let adapts = options.lora.is_some() || files.dir.adapter.is_some();
        let device = options.device.device().autodiff();
        let mut stream = options.seed.stream(Purpose::Init, 0, 0);
        let mut model = CausalLm::open(&files.dir, adapts.then_some(options.weights), &mut stream, &device)?;
        if let (Some(lora), None) = (&options.lora, model.adapter()) {
            let task = if model.trunk.decoder_start().is_some() { TaskType::Seq2SeqLm } else { TaskType::CausalLm };
            let config = lora.peft_config(&files.dir, task, files.dir.path.display().to_string())?;
            let mut stream = options.seed.stream(Purpose::Init, 0, 1);
            model = model.with_fresh_adapter(&files.dir, config, &mut stream)?;
        }
        model = model.computing(options.compute);
        let model = match adapts {
            true => model.train_adapter(options.weights),
            false => {
                model.adapted().0.check_trainable(&files.dir)?;
                model
            }
        };
        let learner = Learner::new(model, Optimizer::new(options.optimizer));
        Ok(Self { learner, files, passes: options.passes })
    }

    /// Returns the tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.files.tokenizer
    }

    /// Returns the files of the model: configuration, tokenizer, chat template.
    pub fn files(&self) -> &Pretrained {
        &self.files
    }

    /// Returns the version of the policy's weights, which grows with each [`optim_step`](Self::optim_step).
    pub fn version(&self) -> u64 {
        self.learner.version()
    }

    /// Adds the gradient of the loss of `data` to those of earlier calls. After an error, the gradients of all calls
    /// are discarded.
    ///
    /// # Errors
    /// [`Error::Input`] with the number of a datum that is empty, too long, contains an unknown id, or has lists of
    /// different lengths; also if a constant of the loss has no meaning, or its value is not finite.
    pub fn forward_backward(&mut self, data: &[Datum], loss: Loss) -> Result<ForwardBackward> {
        let found = self.accumulate(data, loss);
        if found.is_err() {
            self.learner.discard();
        }
        found
    }

    fn accumulate(&mut self, data: &[Datum], loss: Loss) -> Result<ForwardBackward> {
        loss.check()?;
        for (i, datum) in data.iter().enumerate() {
            self.check(i, datum, loss)?;
        }
        let lengths: Vec<usize> = data.iter().map(|datum| datum.prompt.len() + datum.completion.len()).collect();
        let mut found = ForwardBackward { tokens: lengths.iter().sum(), ..ForwardBackward::default() };
        for pass in self.passes.split(&lengths) {
            let data = &data[pass.clone()];
            let model = self.learner.module();
            let rows: Vec<Sequence<'_>> =
                data.iter().map(|datum| Sequence::completion(&datum.prompt, &datum.completion)).collect();
            let logprobs_m = model.logprobs(&model.batch(&Rows::Alone(rows)), 1.0).logprobs_m;
            let device = logprobs_m.device();
            let mut values = read(&logprobs_m).into_iter();
            found.logprobs.extend(data.iter().map(|datum| values.by_ref().take(datum.completion.len()).collect()));
            let joined = |of: fn(&Datum) -> &[f32]| data.iter().flat_map(of).copied().collect::<Vec<f32>>();
            let old_m = loss.needs_old_logprobs().then(|| constant(joined(|datum| &datum.old_logprobs), &device));
            let weights_m = constant(joined(|datum| &datum.weights), &device);
            let share = sum(loss.of_tokens(logprobs_m, old_m, weights_m));
            found.loss += finite(f64::from(read(&share)[0]), &pass)?;
            self.learner.accumulate(&share);
        }
        Ok(found)
    }

    fn check(&self, i: usize, datum: &Datum, loss: Loss) -> Result<()> {
        let Datum { prompt, completion, weights, old_logprobs } = datum;
        let number = i + 1;
        let refuse = |message: String| Err(Error::input(message));
        if prompt.is_empty() || completion.is_empty() {
            return refuse(format!("datum {number} needs at least one id of a prompt and one of a completion"));
        }
        let lists = [("weights", Some(weights)), ("old_logprobs", loss.needs_old_logprobs().then_some(old_logprobs))];
        for (name, list) in lists.into_iter().filter_map(|(name, list)| Some((name, list?))) {
            if list.len() != completion.len() {
                let (found, expected) = (list.len(), completion.len());
                return refuse(format!("datum {number} has {found} `{name}`, but its completion has {expected} ids"));
            }
        }
        let model = self.learner.module();
        let vocabulary = model.vocab_size();
        if let Some(id) = prompt.iter().chain(completion).find(|id| **id as usize >= vocabulary) {
            return refuse(format!("datum {number} holds the id {id}, but the vocabulary has {vocabulary}"));
        }
        model.position_budget().check_text(&format!("datum {number}"), prompt.len(), completion.len())
    }

    /// Updates the weights with the accumulated gradients and clears these. Their norm is clipped to `max_grad_norm`; 0
    /// disables clipping.
    ///
    /// # Errors
    /// [`Error::Input`] if an argument is negative or not finite, or there is no gradient; both the weights and the
    /// gradients stay. [`Error::Diverged`] with the parameter's name if a gradient is not finite; the weights stay, and
    /// the gradients are discarded.
    pub fn optim_step(&mut self, learning_rate: f64, max_grad_norm: f64) -> Result<OptimStep> {
        at_least_zero("learning_rate", learning_rate)?;
        at_least_zero("max_grad_norm", max_grad_norm)?;
        if self.is_fresh() {
            return Err(Error::input("there is no gradient for this step")
                .with_hint("call `forward_backward` before each `optim_step`"));
        }
        let step = usize::try_from(self.steps()).unwrap_or(usize::MAX).saturating_add(1);
        let stopped = |what| Error::Diverged { step, what, batch: None };
        let grad_norm = self.learner.step(learning_rate, max_grad_norm).map_err(stopped)?;
        Ok(OptimStep { grad_norm, version: self.version() })
    }

    /// [`optim_step`](Self::optim_step) with the given constants.
    ///
    /// # Errors
    /// As [`optim_step`](Self::optim_step); also if the trainer's optimizer does not store AdamW moments in this
    /// format.
    pub fn optim_step_with(&mut self, params: &StepParams) -> Result<OptimStep> {
        let (expected, found) = (OptimizerConfig::AdamW(params.adamw), self.learner.optimizer().config());
        if !expected.remembers_as(&found) {
            let message = format!("this step needs {expected}, but the optimizer of this trainer is {found}");
            return Err(Error::input(message).with_hint("create the trainer with the optimizer of its steps"));
        }
        check_optimizer(&expected)?;
        self.learner.reconfigure(expected);
        self.optim_step(params.learning_rate, params.max_grad_norm)
    }

    /// Whether no gradient was added since the last step.
    pub fn is_fresh(&self) -> bool {
        self.learner.is_fresh()
    }

    /// Discards the accumulated gradients.
    pub fn discard(&mut self) {
        self.learner.discard();
    }

    /// Returns the number of optimizer steps, including those before it was restored.
    pub fn steps(&self) -> u64 {
        self.learner.optimizer().steps()
    }

    /// Returns the adapter's configuration, if the policy has one.
    pub fn adapter(&self) -> Option<&PeftConfig> {
        self.learner.module().adapter()
    }

    /// Returns the texts of each forward pass. Texts with more than 64 targets per id count as longer.
    pub fn passes(&self, rows: &[Targeted]) -> Vec<Range<usize>> {
        let length = |row: &Targeted| row.ids.len().max(row.targets.len().div_ceil(TARGETS_PER_TOKEN));
        self.passes.split(&rows.iter().map(length).collect::<Vec<usize>>())
    }

    /// Returns the maximum number of targets in a pass. A text can have more ([`Targeted::split`]).
    pub fn targets_per_pass(&self) -> usize {
        self.passes.tokens.saturating_mul(TARGETS_PER_TOKEN)
    }

    /// Rejects a text that [`forward_backward_at`](Self::forward_backward_at) cannot process; `name` identifies it in
    /// messages.
    ///
    /// # Errors
    /// [`Error::Input`] if it is empty or too long, an id or a target is unknown, lists differ in length, a number
    /// that `loss` uses is not finite, or a constant of `loss` has no meaning.
    pub fn check_targeted(&self, name: &str, row: &Targeted, loss: Loss) -> Result<()> {
        loss.check()?;
        let Targeted { ids, targets, counts, weights, old_logprobs } = row;
        let refuse = |message: String| Err(Error::input(message));
        if ids.is_empty() {
            return refuse(format!("{name} has no ids"));
        }
        let fits = match counts.is_empty() {
            true => targets.len().is_multiple_of(ids.len()),
            false => counts.len() == ids.len() && counts.iter().sum::<usize>() == targets.len(),
        };
        if targets.is_empty() || !fits {
            let (ids, targets) = (ids.len(), targets.len());
            return refuse(match counts.is_empty() {
                true => format!("{name} has {ids} ids and {targets} targets: each id needs as many"),
                false => format!(
                    "{name} has {ids} ids, {targets} targets and {} `counts`: each id needs one of `counts`, and their sum \
                     is the number of targets",
                    counts.len()
                ),
            });
        }
        let lists = [("weights", Some(weights)), ("old_logprobs", loss.needs_old_logprobs().then_some(old_logprobs))];
        for (list, values) in lists.into_iter().filter_map(|(list, values)| Some((list, values?))) {
            if values.len() != targets.len() {
                return refuse(format!("{name} has {} `{list}`, but {} targets", values.len(), targets.len()));
            }
            if let Some((at, value)) = values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
                return refuse(format!("{name}: number {} of `{list}` is {value}", at + 1));
            }
        }
        let vocabulary = self.learner.module().vocab_size();
        if let Some(id) = ids.iter().chain(targets).find(|id| **id as usize >= vocabulary) {
            return refuse(format!("{name} holds the id {id}, but the vocabulary has {vocabulary}"));
        }
        self.learner.module().position_budget().check_text(name, ids.len(), 0)
    }

    /// [`forward_backward`](Self::forward_backward) of texts with targets at each id. The returned log-probabilities
    /// are those of the targets, in their order.
    ///
    /// Adjacent texts with a common prefix share its computation.
    ///
    /// # Errors
    /// As [`check_targeted`](Self::check_targeted), with the number of the text; also if the loss is not finite. After
    /// an error, the gradients of all calls are discarded.
    pub fn forward_backward_at(&mut self, rows: &[Targeted], loss: Loss) -> Result<ForwardBackward> {
        let found = self.accumulate_at(rows, loss);
        if found.is_err() {
            self.learner.discard();
        }
        found
    }

    fn accumulate_at(&mut self, rows: &[Targeted], loss: Loss) -> Result<ForwardBackward> {
        for (i, row) in rows.iter().enumerate() {
            self.check_targeted(&format!("datum {}", i + 1), row, loss)?;
        }
        let tokens = rows.iter().map(|row| row.ids.len()).sum();
        let mut found = ForwardBackward { tokens, ..ForwardBackward::default() };
        for pass in self.passes(rows) {
            let rows = &rows[pass.clone()];
            let model = self.learner.module();
            let (hidden_nd, places) = hidden_of(model, rows);
            let all = |of: fn(&Targeted) -> &[f32]| rows.iter().flat_map(of).copied().collect::<Vec<f32>>();
            let (weights, old) = (all(|row| &row.weights), all(|row| &row.old_logprobs));
            // Positions without loss need no backward pass. One target always gets one, so that every parameter has a
            // gradient, even if it is 0.
            let (mut learned, mut rest) = places.divide(|at| !loss.ignores_zero() || weights[at] != 0.0);
            if learned.is_empty() {
                learned.extend(rest.pop());
            }
            let mut logprobs = vec![0.0; weights.len()];
            if !rest.is_empty() {
                let model = self.learner.frozen();
                let values = model.token_logprobs(hidden_nd.clone().inner(), &places.at(&rest), 1.0).logprobs_m;
                scatter(&mut logprobs, &rest, &values);
            }
            let logprobs_m = model.token_logprobs(hidden_nd, &places.at(&learned), 1.0).logprobs_m;
            scatter(&mut logprobs, &learned, &logprobs_m);
            let device = logprobs_m.device();
            let chosen = |values: &[f32]| constant(learned.iter().map(|&at| values[at]).collect(), &device);
            let old_m = loss.needs_old_logprobs().then(|| chosen(&old));
            let losses_m = loss.of_tokens(logprobs_m, old_m, chosen(&weights));
            found.loss += finite(read(&losses_m).into_iter().map(f64::from).sum(), &pass)?;
            self.learner.accumulate(&sum(losses_m));
            found.logprobs.extend(per_row(rows, &logprobs));
        }
        Ok(found)
    }

    /// Computes the log-probabilities of the targets of each text under the current policy, in nats, and their loss,
    /// without recording gradients.
    ///
    /// # Errors
    /// As [`forward_backward_at`](Self::forward_backward_at).
    pub fn forward_at(&self, rows: &[Targeted], loss: Loss) -> Result<ForwardBackward> {
        for (i, row) in rows.iter().enumerate() {
            self.check_targeted(&format!("datum {}", i + 1), row, loss)?;
        }
        let model = self.learner.frozen();
        let tokens = rows.iter().map(|row| row.ids.len()).sum();
        let mut found = ForwardBackward { tokens, ..ForwardBackward::default() };
        for pass in self.passes(rows) {
            let rows = &rows[pass];
            let (hidden_nd, places) = hidden_of(&model, rows);
            let logprobs_m = model.token_logprobs(hidden_nd, &places.all(), 1.0).logprobs_m;
            let logprobs = values_of(logprobs_m.clone());
            let device = logprobs_m.device();
            let joined = |of: fn(&Targeted) -> &[f32]| constant(rows.iter().flat_map(of).copied().collect(), &device);
            let old_m = loss.needs_old_logprobs().then(|| joined(|row| &row.old_logprobs));
            let losses_m = loss.of_tokens(logprobs_m, old_m, joined(|row| &row.weights));
            found.loss += values_of(losses_m).into_iter().map(f64::from).sum::<f64>();
            found.logprobs.extend(per_row(rows, &logprobs));
        }
        Ok(found)
    }

    /// Computes the log-probabilities of each completion after its prompt under the current policy, in nats.
    ///
    /// # Errors
    /// [`Error::Input`] as [`forward_backward`](Self::forward_backward).
    pub fn logprobs(&self, rows: &[(&[u32], &[u32])]) -> Result<Vec<Vec<f32>>> {
        for (i, (prompt, completion)) in rows.iter().enumerate() {
            let datum = Datum { prompt: prompt.to_vec(), completion: completion.to_vec(), ..Datum::default() };
            let weights = vec![0.0; completion.len()];
            self.check(i, &Datum { weights, ..datum }, Loss::CrossEntropy)?;
        }
        let model = self.learner.frozen();
        let lengths: Vec<usize> = rows.iter().map(|(prompt, completion)| prompt.len() + completion.len()).collect();
        let mut found = Vec::with_capacity(rows.len());
        for pass in self.passes.split(&lengths) {
            let rows = &rows[pass];
            let sequences = rows.iter().map(|(prompt, completion)| Sequence::completion(prompt, completion)).collect();
            let mut values = read(&model.logprobs(&model.batch(&Rows::Alone(sequences)), 1.0).logprobs_m).into_iter();
            found.extend(
                rows.iter().map(|(_, completion)| values.by_ref().take(completion.len()).collect::<Vec<f32>>()),
            );
        }
        Ok(found)
    }

    /// Samples `group` completions of each prompt from the current policy; completion `i` uses stream `i` of `seed`.
    /// The ids that end a text are added to `params.stop_ids`.
    ///
    /// The losses of this trainer compare with log-probabilities at temperature 1. At another temperature, set
    /// [`params.untempered`](SamplingParams::untempered), or take [`logprobs`](Self::logprobs) as `old_logprobs`.
    ///
    /// # Errors
    /// As [`generate`], and if sampling begins a decoder with another id than training.
    pub fn sample(
        &self,
        prompts: &[&[u32]],
        group: usize,
        params: &SamplingParams,
        seed: Seed,
    ) -> Result<Vec<Completion>> {
        self.files.dir.check_sampling_start()?;
        let mut params = params.clone();
        params.stop_ids.extend(self.files.stop_ids());
        let stream = |i: usize| seed.stream(Purpose::Generate, 0, i as u64);
        generate(&self.learner.frozen(), prompts, group, &params, &mut NoStopRule, &stream)
    }

    /// Writes the policy as a Hugging Face directory with its tokenizer; an adapter in peft's format.
    ///
    /// It replaces an earlier model in `directory` whose files all have successors of the same name. It removes no other
    /// file.
    ///
    /// # Errors
    /// [`Error::Input`] if `directory` is a file, or holds anything else than such a model. Otherwise if it cannot be
    /// written.
    pub fn save(&self, directory: &Path) -> Result<()> {
        OutputDir::of_saved_model(directory)?.write(|path| self.write_files(path))
    }

    /// [`save`](Self::save) with the optimizer's state, for [`restore_optimizer`](Self::restore_optimizer).
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_with_optimizer(&self, directory: &Path) -> Result<()> {
        OutputDir::of_saved_model(directory)?.write(|path| self.write_files_with_optimizer(path))
    }

    /// Writes the files of [`save`](Self::save) into the existing directory `to`. Not atomic.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_files(&self, to: &Path) -> Result<()> {
        self.learner.frozen().save(&self.files, to)
    }

    /// Writes the files of [`save_with_optimizer`](Self::save_with_optimizer) into the existing directory `to`. Not
    /// atomic.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_files_with_optimizer(&self, to: &Path) -> Result<()> {
        self.write_files(to)?;
        let optimizers = [("", self.learner.optimizer())];
        let found = optimizer_state::moments_on_host(&optimizers);
        write_state(&to.join(OPTIMIZER_FILE), &optimizer_state::tensors(&optimizers, &found))
    }

    /// Restores the optimizer that [`save_with_optimizer`](Self::save_with_optimizer) wrote to `directory`.
    ///
    /// # Errors
    /// If there is none, it is damaged, or it belongs to another adapter.
    pub fn restore_optimizer(&mut self, directory: &Path) -> Result<()> {
        let path = directory.join(OPTIMIZER_FILE);
        if !path.is_file() {
            return Err(Error::model(&path, "there is no optimizer state")
                .with_hint("load only the weights, or a checkpoint that was saved for training"));
        }
        let device = self.learner.module().trunk.device().inner();
        let config = self.learner.optimizer().config();
        let found = optimizer_state::read(read_state(&path)?, "", config, &device);
        let Restored { steps, moments } = found.map_err(|message| Error::model(&path, message))?;
        let steps = steps.ok_or_else(|| Error::model(&path, "it has no count of optimizer steps"))?;
        let optimizer = Optimizer::restore(config, steps, moments);
        if let Some(misfit) = optimizer.misfit(self.learner.module()) {
            return Err(Error::model(&path, misfit).with_hint("load the adapter of the same checkpoint first"));
        }
        self.learner.set_optimizer(optimizer);
        Ok(())
    }
}

/// Returns the loss of the data `of`, or rejects it if it is not finite.
fn finite(loss: f64, of: &Range<usize>) -> Result<f64> {
    if loss.is_finite() {
        return Ok(loss);
    }
    let message = format!("the loss of data {} to {} is {loss}", of.start + 1, of.end);
    Err(Error::input(message).with_hint("lower the learning rate, or look at the weights of these data"))
}
