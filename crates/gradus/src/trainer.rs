//! A policy in training, for programs with a loop of their own.
//!
//! The primitives are those of Tinker's training clients: [`Trainer::forward_backward`] adds gradients up,
//! [`Trainer::optim_step`] moves the weights, [`Trainer::logprobs`] and [`Trainer::sample`] ask the policy as it is now, and
//! [`Trainer::save`] writes it as a Hugging Face directory. Losses are **sums** over tokens, so a batch may be split over any number of
//! calls.
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
//!     // REINFORCE: a group of completions, each worth its reward less the mean of the group.
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

use std::path::Path;

use burn::tensor::Tensor;

use crate::batches::MicroBatch;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::generate::{Completion, NoStopRule, SamplingParams, generate};
use crate::host::{constant, read};
use crate::learner::Learner;
use crate::learner::optimizer::{AdamWConfig, Optimizer, OptimizerConfig};
use crate::loss::cispo::cispo;
use crate::loss::policy_gradient::policy_gradient;
use crate::loss::surrogate::{Clip, clipped_surrogate, ratio};
use crate::model::adapter::{Adaptable, LoraConfig, TaskType};
use crate::model::{CausalLm, Precision, Rows, Sequence, WeightFormat, open_model};
use crate::pretrained::{Pretrained, TextFiles, Trainable};
use crate::rng::{Purpose, Seed};
use crate::text::Tokenizer;

/// What a [`Trainer`] trains, and how.
#[derive(Debug, Clone)]
pub struct TrainerOptions {
    /// A model directory, a run or a hub name.
    pub model: String,
    /// The adapter to train on frozen weights; `None` trains all weights, or the adapter that `model` has.
    pub lora: Option<LoraConfig>,
    /// How frozen weights are held below an adapter.
    pub weights: WeightFormat,
    /// Where to compute.
    pub device: DeviceChoice,
    /// The precision of products.
    pub compute: Precision,
    /// The optimizer and its constants. Default AdamW with β 0.9 and 0.95, ε 1e-12 and no weight decay (Tinker).
    pub optimizer: OptimizerConfig,
    /// How large a forward pass may be.
    pub passes: MicroBatch,
    /// What a fresh adapter is drawn from.
    pub seed: Seed,
}

impl Default for TrainerOptions {
    /// No model, all weights, in f32 on the CPU.
    fn default() -> Self {
        Self {
            model: String::new(),
            lora: None,
            weights: WeightFormat::F32,
            device: DeviceChoice::cpu(),
            compute: Precision::F32,
            optimizer: OptimizerConfig::AdamW(AdamWConfig { betas: [0.9, 0.95], epsilon: 1e-12, weight_decay: 0.0 }),
            passes: MicroBatch::new(4096, None),
            seed: Seed(0),
        }
    }
}

/// One text to learn from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Datum {
    /// The ids before those that are learned; at least one.
    pub prompt: Vec<u32>,
    /// The ids that are learned.
    pub completion: Vec<u32>,
    /// One number for each id of the completion: the weight of its log-probability in [`Loss::CrossEntropy`], its advantage in the
    /// other losses. An id with 0 carries no loss.
    pub weights: Vec<f32>,
    /// Log-probabilities of the completion under the policy that sampled it, in nats; [`Loss::CrossEntropy`] reads none.
    pub old_logprobs: Vec<f32>,
}

/// A loss, summed over tokens. With `w` the weight of a token, `π` its probability and `ρ = π/π_old`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// `−Σ w·log π`.
    CrossEntropy,
    /// `−Σ ρ·w`: the policy gradient, corrected for samples of another policy.
    ImportanceSampling,
    /// `−Σ min(ρ·w, clip(ρ, low, high)·w)`, [`clipped_surrogate`].
    Ppo {
        /// The lower bound of the ratio, 0.8 in the paper.
        low: f64,
        /// The upper bound of the ratio, 1.2 in the paper.
        high: f64,
    },
    /// `−Σ sg(min(ρ, high))·w·log π`, [`cispo`]; `sg` carries no gradient.
    Cispo {
        /// The upper bound of the ratio.
        high: f64,
    },
}

impl Loss {
    /// Whether the loss compares with the policy that sampled.
    fn needs_old_logprobs(self) -> bool {
        self != Self::CrossEntropy
    }

    /// One value a token; all are `[M]`, `logprobs_m` alone carries gradient.
    fn of_tokens(self, logprobs_m: Tensor<1>, old_m: Option<Tensor<1>>, weights_m: Tensor<1>) -> Tensor<1> {
        let log_ratios_m = |logprobs_m: Tensor<1>| logprobs_m - old_m.expect("it was checked");
        match self {
            Self::CrossEntropy => policy_gradient(logprobs_m, weights_m),
            Self::ImportanceSampling => -(ratio(log_ratios_m(logprobs_m)) * weights_m),
            Self::Ppo { low, high } => {
                let clip = Clip { low: 1.0 - low, high: high - 1.0, delta: None };
                clipped_surrogate(log_ratios_m(logprobs_m), weights_m, &clip)
            }
            Self::Cispo { high } => cispo(logprobs_m.clone(), log_ratios_m(logprobs_m), weights_m, high),
        }
    }
}

/// What a forward and backward pass found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ForwardBackward {
    /// The loss, a sum over tokens.
    pub loss: f64,
    /// Log-probabilities of each completion under the policy, in nats.
    pub logprobs: Vec<Vec<f32>>,
    /// Tokens that went through the model.
    pub tokens: usize,
}

/// What an optimizer step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimStep {
    /// The norm of the gradient before it was clipped.
    pub grad_norm: f64,
    /// Which weights the policy has now.
    pub version: u64,
}

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
    /// When the model cannot be read or trained, or an adapter does not fit it.
    pub fn open(options: &TrainerOptions) -> Result<Self> {
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

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.files.tokenizer
    }

    /// The files of the model: configuration, tokenizer, chat template.
    pub fn files(&self) -> &Pretrained {
        &self.files
    }

    /// Which weights the policy has: it grows with every [`optim_step`](Self::optim_step).
    pub fn version(&self) -> u64 {
        self.learner.version()
    }

    /// Adds the gradient of the loss of `data` to those of earlier calls. On an error no gradient of any call is left.
    ///
    /// # Errors
    /// [`Error::Input`] with the number of the datum that is empty, too long, holds an unknown id, or whose lists differ in length;
    /// and when the loss is not finite.
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
            let share = loss.of_tokens(logprobs_m, old_m, weights_m).sum();
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
                let (found, wanted) = (list.len(), completion.len());
                return refuse(format!("datum {number} has {found} `{name}`, but its completion has {wanted} ids"));
            }
        }
        let model = self.learner.module();
        let vocabulary = model.vocab_size();
        if let Some(id) = prompt.iter().chain(completion).find(|id| **id as usize >= vocabulary) {
            return refuse(format!("datum {number} holds the id {id}, but the vocabulary has {vocabulary}"));
        }
        model.room().check(&format!("datum {number}"), prompt.len(), completion.len())
    }

    /// Moves the weights by the gradients that have been added up, and forgets those. Their norm is clipped to `max_grad_norm`; 0 does
    /// not clip.
    ///
    /// # Errors
    /// [`Error::Input`] when a gradient is not finite, with the parameter's name; the weights stay as they were.
    pub fn optim_step(&mut self, learning_rate: f64, max_grad_norm: f64) -> Result<OptimStep> {
        let grad_norm = self.learner.step(learning_rate, max_grad_norm).map_err(Error::input)?;
        Ok(OptimStep { grad_norm, version: self.version() })
    }

    /// Log-probabilities of each completion after its prompt under the policy as it is now, in nats.
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

    /// `group` completions of each prompt by the policy as it is now; completion `i` draws from stream `i` of `seed`. The ids that end
    /// a text are added to `params.stop_ids`.
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

    /// Writes the policy as a Hugging Face directory, with its tokenizer; an adapter as peft writes it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, directory: &Path) -> Result<()> {
        crate::files::atomic::write_dir(directory, |path| self.learner.frozen().save(&self.files, path))
    }
}
