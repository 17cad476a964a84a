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

use std::ops::Range;
use std::path::Path;

use burn::module::Module;
use burn::tensor::Tensor;

use crate::batches::MicroBatch;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::generate::{Completion, NoStopRule, SamplingParams, generate};
use crate::host::{constant, read};
use crate::learner::Learner;
use crate::learner::optimizer::{AdamWConfig, MomentFormat, Optimizer, OptimizerConfig, RmsPropConfig};
use crate::loss::cispo::cispo_within;
use crate::loss::dro::dro;
use crate::loss::policy_gradient::policy_gradient;
use crate::loss::reduce::sum;
use crate::loss::surrogate::{Clip, clipped_surrogate, ratio};
use crate::model::adapter::{Adaptable, LoraConfig, PeftConfig, TaskType};
use crate::model::{AdapterDir, CausalLm, ModelDir, Precision, Rows, Sequence, Targets, WeightFormat, open_model};
use crate::optimizer_state::{self, Restored};
use crate::pretrained::{Pretrained, TextFiles, Trainable};
use crate::rng::{Purpose, Seed};
use crate::run::tensors::{read_state, write_state};
use crate::text::Tokenizer;

/// Settings of a [`Trainer`].
#[derive(Debug, Clone)]
pub struct TrainerOptions {
    /// A model directory, a run or a hub name.
    pub model: String,
    /// Adapter to train on frozen weights; `None` trains all weights, or the adapter of `model`.
    pub lora: Option<LoraConfig>,
    /// Format of the frozen weights under an adapter.
    pub weights: WeightFormat,
    /// Compute device.
    pub device: DeviceChoice,
    /// Precision of products.
    pub compute: Precision,
    /// Optimizer and its constants. Default AdamW with β 0.9 and 0.95, ε 1e-12 and no weight decay (Tinker).
    pub optimizer: OptimizerConfig,
    /// Size limits of a forward pass.
    pub passes: MicroBatch,
    /// Seed of a new adapter's weights.
    pub seed: Seed,
}

impl Default for TrainerOptions {
    /// Trains all weights in f32 on the CPU; the model is not set.
    fn default() -> Self {
        Self {
            model: String::new(),
            lora: None,
            weights: WeightFormat::F32,
            device: DeviceChoice::cpu(),
            compute: Precision::F32,
            optimizer: OptimizerConfig::AdamW(AdamWConfig {
                betas: [0.9, 0.95],
                epsilon: 1e-12,
                weight_decay: 0.0,
                moments: MomentFormat::F32,
            }),
            passes: MicroBatch::new(4096, None),
            seed: Seed(0),
        }
    }
}

/// One text to train on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Datum {
    /// Ids before the completion; at least one.
    pub prompt: Vec<u32>,
    /// Ids to train on.
    pub completion: Vec<u32>,
    /// One number per id of the completion: the weight of its log-probability in [`Loss::CrossEntropy`], its advantage
    /// in the other losses. An id with 0 carries no loss.
    pub weights: Vec<f32>,
    /// Log-probabilities of the completion under the policy that sampled it, in nats; not used by
    /// [`Loss::CrossEntropy`].
    pub old_logprobs: Vec<f32>,
}

/// A text with targets at each id: candidates for the next id. Unlike in a [`Datum`], targets need not be the actual
/// next ids, and each id may have several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Targeted {
    /// Ids that the model reads.
    pub ids: Vec<u32>,
    /// Targets of the first id, then those of the second, and so on; the same number for each id.
    pub targets: Vec<u32>,
    /// One number per target, as in a [`Datum`].
    pub weights: Vec<f32>,
    /// Log-probabilities of the targets under the policy that sampled them, in nats; not used by
    /// [`Loss::CrossEntropy`].
    pub old_logprobs: Vec<f32>,
}

/// A loss, summed over tokens. With `w` the weight of a token, `π` its probability and `ρ = π/π_old`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// `−Σ w·log π`: the weighted negative log-likelihood.
    CrossEntropy,
    /// `−Σ ρ·w`: the policy gradient, corrected for samples of another policy.
    ImportanceSampling,
    /// `−Σ min(ρ·w, clip(ρ, low, high)·w)`, [`clipped_surrogate`].
    Ppo {
        /// Lower bound of the ratio.
        low: f64,
        /// Upper bound of the ratio.
        high: f64,
    },
    /// `−Σ sg(clip(ρ, low, high))·w·log π`, [`cispo_within`]; `sg` carries no gradient.
    Cispo {
        /// Lower bound of the ratio; 0 for none.
        low: f64,
        /// Upper bound of the ratio.
        high: f64,
    },
    /// `−Σ (w·log π − β/2·log² ρ)`, [`dro`].
    Dro {
        /// Weight of the penalty.
        beta: f64,
    },
}

impl Loss {
    /// Default bounds of the ratio in [`Ppo`](Self::Ppo), those of the paper.
    pub const PPO_BOUNDS: [f64; 2] = [0.8, 1.2];

    /// Default bounds of the ratio in [`Cispo`](Self::Cispo), those of Tinker. The method GRPO has no default for its bound.
    pub const CISPO_BOUNDS: [f64; 2] = [0.0, 4.0];

    /// Default weight of the penalty in [`Dro`](Self::Dro), that of Tinker.
    pub const DRO_BETA: f64 = 0.05;

    /// Whether the loss needs log-probabilities of the policy that sampled.
    fn needs_old_logprobs(self) -> bool {
        self != Self::CrossEntropy
    }

    /// Whether a target with weight 0 has neither loss nor gradient.
    fn ignores_zero(self) -> bool {
        !matches!(self, Self::Dro { .. })
    }

    /// Computes one value per token. All tensors are `[M]`; only `logprobs_m` carries gradient.
    fn of_tokens(self, logprobs_m: Tensor<1>, old_m: Option<Tensor<1>>, weights_m: Tensor<1>) -> Tensor<1> {
        if let Self::Dro { beta } = self {
            return dro(logprobs_m, old_m.expect("it was checked"), weights_m, beta);
        }
        let log_ratios_m = |logprobs_m: Tensor<1>| logprobs_m - old_m.expect("it was checked");
        match self {
            Self::Dro { .. } => unreachable!("it was just handled"),
            Self::CrossEntropy => policy_gradient(logprobs_m, weights_m),
            Self::ImportanceSampling => -(ratio(log_ratios_m(logprobs_m)) * weights_m),
            Self::Ppo { low, high } => {
                let clip = Clip { low: 1.0 - low, high: high - 1.0, delta: None };
                clipped_surrogate(log_ratios_m(logprobs_m), weights_m, &clip)
            }
            Self::Cispo { low, high } => {
                cispo_within(logprobs_m.clone(), log_ratios_m(logprobs_m), weights_m, [low, high])
            }
        }
    }
}

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

/// Constants of one AdamW step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepParams {
    /// Learning rate η.
    pub learning_rate: f64,
    /// β1, β2, ε and weight decay.
    pub adamw: AdamWConfig,
    /// Norm to which the gradient is clipped; 0 disables clipping.
    pub max_grad_norm: f64,
}

/// A model with frozen weights that any number of adapters share. Each adapter has its own [`Trainer`].
#[derive(Debug)]
pub struct Base {
    model: CausalLm,
    /// The same model for sampling, with a packed head and without gradient recording.
    sampling: CausalLm,
    files: Pretrained,
    weights: WeightFormat,
    optimizer: OptimizerConfig,
    passes: MicroBatch,
}

impl Base {
    /// Loads the model of `options`, ignoring their adapter and seed.
    ///
    /// # Errors
    /// If it cannot be read, is an adapter itself, or has an encoder; also if a constant of the optimizer is out of range.
    pub fn open(options: &TrainerOptions) -> Result<Self> {
        check_optimizer(&options.optimizer)?;
        let files = Pretrained::of(open_model(&options.model)?, &TextFiles::default())?;
        if files.dir.adapter.is_some() {
            return Err(Error::input(format!("`{}` is an adapter, and no adapter can be added to it", options.model))
                .with_hint("pass its base model, and load the adapter onto it"));
        }
        let device = options.device.device().autodiff();
        let mut stream = options.seed.stream(Purpose::Init, 0, 0);
        let model = CausalLm::open(&files.dir, Some(options.weights), &mut stream, &device)?;
        if model.trunk.decoder_start().is_some() {
            return Err(Error::input(format!(
                "`{}` has an encoder, which cannot be trained on shifted texts",
                options.model
            ))
            .with_hint("use a decoder-only model"));
        }
        let model = model.computing(options.compute).no_grad();
        let sampling = model.clone().into_frozen(options.weights);
        let TrainerOptions { weights, optimizer, passes, .. } = options.clone();
        Ok(Self { model, sampling, files, weights, optimizer, passes })
    }

    /// Returns the files of the model.
    pub fn files(&self) -> &Pretrained {
        &self.files
    }

    /// Returns the size of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    /// Returns the maximum text length in tokens, if there is a limit.
    pub fn max_positions(&self) -> Option<usize> {
        self.model.max_positions()
    }

    /// Creates a new adapter, which does not change the model yet.
    ///
    /// # Errors
    /// If it does not fit the model.
    pub fn adapter(&self, lora: &LoraConfig, seed: Seed) -> Result<Trainer> {
        let dir = &self.files.dir;
        let config = lora.peft_config(dir, TaskType::CausalLm, dir.path.display().to_string())?;
        let mut stream = seed.stream(Purpose::Init, 0, 1);
        Ok(self.trainer(self.model.clone().with_fresh_adapter(dir, config, &mut stream)?))
    }

    /// Loads the adapter in `directory`, with a new optimizer.
    ///
    /// # Errors
    /// If it cannot be read or does not fit the model.
    pub fn saved_adapter(&self, directory: &Path) -> Result<Trainer> {
        Ok(self.trainer(self.model.clone().with_saved_adapter(&self.with(directory)?)?))
    }

    fn trainer(&self, model: CausalLm) -> Trainer {
        let learner = Learner::new(model.train_adapter(self.weights), Optimizer::new(self.optimizer));
        Trainer { learner, files: self.files.clone(), passes: self.passes }
    }

    fn with(&self, directory: &Path) -> Result<ModelDir> {
        Ok(ModelDir { adapter: Some(AdapterDir::open(directory)?), ..self.files.dir.clone() })
    }

    /// Returns the model for sampling, without an adapter.
    pub fn sampling(&self) -> &CausalLm {
        &self.sampling
    }

    /// Returns the model for sampling with the adapter in `directory`.
    ///
    /// # Errors
    /// If it cannot be read or does not fit the model.
    pub fn sampling_with(&self, directory: &Path) -> Result<CausalLm> {
        self.sampling.clone().with_saved_adapter(&self.with(directory)?)
    }

    /// Returns the model for sampling with the current adapter of `trainer`.
    pub fn sampling_as(&self, trainer: &Trainer) -> CausalLm {
        self.sampling.with_adapter_of(trainer.learner.module())
    }
}

/// Rejects a number that is negative, NaN, or infinite in the format of the weights.
fn at_least_zero(name: &str, value: f64) -> Result<()> {
    within(name, value, value >= 0.0, "a number of at least 0")
}

/// Rejects a number that does not fit, or is NaN or infinite in the format of the weights.
fn within(name: &str, value: f64, fits: bool, needed: &str) -> Result<()> {
    match fits && (value as f32).is_finite() {
        true => Ok(()),
        false => Err(Error::input(format!("`{name}` is {value:?}, but {needed} is needed"))),
    }
}

/// Rejects constants with which no step can be computed.
fn check_optimizer(config: &OptimizerConfig) -> Result<()> {
    let below_one = "a number from 0 to below 1";
    let (epsilon, weight_decay) = match config {
        OptimizerConfig::AdamW(AdamWConfig { betas, epsilon, weight_decay, .. }) => {
            for (i, beta) in betas.iter().enumerate() {
                within(&format!("betas[{i}]"), *beta, (0.0..1.0).contains(beta), below_one)?;
            }
            (*epsilon, *weight_decay)
        }
        OptimizerConfig::RmsProp(RmsPropConfig { alpha, epsilon, weight_decay }) => {
            within("alpha", *alpha, (0.0..1.0).contains(alpha), below_one)?;
            (*epsilon, *weight_decay)
        }
    };
    at_least_zero("epsilon", epsilon)?;
    at_least_zero("weight_decay", weight_decay)
}

/// File next to an adapter that holds its optimizer's state.
const OPTIMIZER_FILE: &str = "optimizer.safetensors";

/// A policy in training: weights, gradients, optimizer and tokenizer.
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
    /// different lengths; also if the loss is not finite.
    pub fn forward_backward(&mut self, data: &[Datum], loss: Loss) -> Result<ForwardBackward> {
        let found = self.accumulate(data, loss);
        if found.is_err() {
            self.learner.discard();
        }
        found
    }

    fn accumulate(&mut self, data: &[Datum], loss: Loss) -> Result<ForwardBackward> {
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
            let value = f64::from(read(&share)[0]);
            if !value.is_finite() {
                let message = format!("the loss of data {} to {} is {value}", pass.start + 1, pass.end);
                return Err(
                    Error::input(message).with_hint("lower the learning rate, or look at the weights of these data")
                );
            }
            found.loss += value;
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
        model.position_budget().check(&format!("datum {number}"), prompt.len(), completion.len())
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

    /// Returns the rows of each forward pass over texts of these lengths.
    pub fn passes(&self, lengths: &[usize]) -> Vec<Range<usize>> {
        self.passes.split(lengths)
    }

    /// Rejects a text that [`forward_backward_at`](Self::forward_backward_at) cannot process; `name` identifies it in
    /// messages.
    ///
    /// # Errors
    /// [`Error::Input`] if it is empty or too long, an id or a target is unknown, lists differ in length, or a number
    /// that `loss` uses is not finite.
    pub fn check_targeted(&self, name: &str, row: &Targeted, loss: Loss) -> Result<()> {
        let Targeted { ids, targets, weights, old_logprobs } = row;
        let refuse = |message: String| Err(Error::input(message));
        if ids.is_empty() {
            return refuse(format!("{name} has no ids"));
        }
        if targets.is_empty() || !targets.len().is_multiple_of(ids.len()) {
            return refuse(format!(
                "{name} has {} ids and {} targets: each id needs as many",
                ids.len(),
                targets.len()
            ));
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
        self.learner.module().position_budget().check(name, ids.len(), 0)
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
        let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        let mut found = ForwardBackward { tokens: lengths.iter().sum(), ..ForwardBackward::default() };
        for pass in self.passes.split(&lengths) {
            let rows = &rows[pass.clone()];
            let model = self.learner.module();
            let (hidden_nd, places) = hidden_of(model, rows);
            let all = |of: fn(&Targeted) -> &[f32]| rows.iter().flat_map(of).copied().collect::<Vec<f32>>();
            let (weights, old) = (all(|row| &row.weights), all(|row| &row.old_logprobs));
            // Targets without loss need no backward pass. One target always gets one, so that every parameter has a
            // gradient, even if it is 0.
            let carries = |at: &usize| !loss.ignores_zero() || weights[*at] != 0.0;
            let (mut learned, mut rest): (Vec<usize>, Vec<usize>) = (0..weights.len()).partition(carries);
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
            let value: f64 = read(&losses_m).into_iter().map(f64::from).sum();
            if !value.is_finite() {
                let message = format!("the loss of data {} to {} is {value}", pass.start + 1, pass.end);
                return Err(
                    Error::input(message).with_hint("lower the learning rate, or look at the weights of these data")
                );
            }
            found.loss += value;
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
        let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        let mut found = ForwardBackward { tokens: lengths.iter().sum(), ..ForwardBackward::default() };
        for pass in self.passes.split(&lengths) {
            let rows = &rows[pass];
            let (hidden_nd, places) = hidden_of(&model, rows);
            let all: Vec<usize> = (0..places.ids.len()).collect();
            let logprobs_m = model.token_logprobs(hidden_nd, &places.at(&all), 1.0).logprobs_m;
            let mut logprobs = vec![0.0; all.len()];
            scatter(&mut logprobs, &all, &logprobs_m);
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
    /// # Errors
    /// As [`generate`].
    pub fn sample(
        &self,
        prompts: &[&[u32]],
        group: usize,
        params: &SamplingParams,
        seed: Seed,
    ) -> Result<Vec<Completion>> {
        let mut params = params.clone();
        params.stop_ids.extend(self.files.stop_ids());
        let stream = |i: usize| seed.stream(Purpose::Generate, 0, i as u64);
        generate(&self.learner.frozen(), prompts, group, &params, &mut NoStopRule, &stream)
    }

    /// Writes the policy as a Hugging Face directory with its tokenizer; an adapter in peft's format.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, directory: &Path) -> Result<()> {
        crate::files::atomic::write_dir(directory, |path| self.learner.frozen().save(&self.files, path))
    }

    /// Writes the adapter and the optimizer's state to the directory `to`, for
    /// [`restore_optimizer`](Self::restore_optimizer). `write_optimizer` writes additional files there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save_with_optimizer(&self, to: &Path, write_optimizer: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        crate::files::atomic::write_dir(to, |path| {
            self.learner.frozen().save(&self.files, path)?;
            let optimizer = self.learner.optimizer();
            let optimizers = [("", optimizer)];
            let found = optimizer_state::moments_on_host(&optimizers);
            write_state(&path.join(OPTIMIZER_FILE), &optimizer_state::tensors(&optimizers, &found))?;
            write_optimizer(path)
        })
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

/// Copies the values of a tensor without gradient to the host.
fn values_of(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data_as::<f32>().try_into_vec().expect("the data was just converted to f32")
}

/// Positions and ids of the targets of a pass, in order.
struct Places {
    positions: Vec<usize>,
    ids: Vec<u32>,
}

impl Places {
    /// Selects some of the targets.
    fn at(&self, chosen: &[usize]) -> Targets {
        Targets {
            positions: chosen.iter().map(|&at| self.positions[at]).collect(),
            ids: chosen.iter().map(|&at| self.ids[at]).collect(),
            counts_b: vec![chosen.len()],
            supports_m: Vec::new(),
        }
    }
}

/// Minimum length of a common prefix that texts share, because splitting it off has a cost.
const SHARED_MIN: usize = 16;

/// Computes the final hidden states of `rows`, and the places of their targets.
fn hidden_of(model: &CausalLm, rows: &[Targeted]) -> (Tensor<2>, Places) {
    let common = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let mut groups: Vec<Vec<Sequence<'_>>> = Vec::new();
    let mut shared = 0;
    for row in rows {
        let begins = groups.last().map_or(0, |group| common(&group[0].target[..shared], &row.ids));
        match groups.last_mut() {
            Some(group) if begins >= SHARED_MIN && 2 * begins >= shared.min(row.ids.len()) => {
                group.push(Sequence::scored(&row.ids));
                shared = begins;
            }
            _ => {
                groups.push(vec![Sequence::scored(&row.ids)]);
                shared = row.ids.len();
            }
        }
    }
    let batch = model.batch(&Rows::Groups(groups));
    let packed = batch.packed();
    let (mut positions, mut ids) = (Vec::new(), Vec::new());
    for (i, row) in rows.iter().enumerate() {
        let each = row.targets.len() / row.ids.len();
        positions.extend((0..row.targets.len()).map(|at| packed.index(i, at / each)));
        ids.extend_from_slice(&row.targets);
    }
    (model.hidden(&batch), Places { positions, ids })
}

/// Writes the values of some places to their positions in `all`.
fn scatter(all: &mut [f32], places: &[usize], values_m: &Tensor<1>) {
    let values = if values_m.is_autodiff() { read(values_m) } else { values_of(values_m.clone()) };
    places.iter().zip(values).for_each(|(&at, value)| all[at] = value);
}

/// Splits the values of all targets by row.
fn per_row<'a>(rows: &'a [Targeted], mut values: &'a [f32]) -> impl Iterator<Item = Vec<f32>> + 'a {
    rows.iter().map(move |row| {
        let (own, rest) = values.split_at(row.targets.len());
        values = rest;
        own.to_vec()
    })
}
