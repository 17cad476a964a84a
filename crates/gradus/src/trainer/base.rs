//! A frozen model that several trainers share.

use std::path::Path;

use burn::module::Module;

use super::options::check_optimizer;
use super::{Trainer, TrainerOptions};
use crate::batches::MicroBatch;
use crate::error::{Error, Result};
use crate::learner::Learner;
use crate::learner::optimizer::{Optimizer, OptimizerConfig};
use crate::model::adapter::{Adaptable, LoraConfig, TaskType};
use crate::model::{AdapterDir, CausalLm, ModelDir, WeightFormat, open_model};
use crate::pretrained::{Pretrained, TextFiles, Trainable};
use crate::rng::{Purpose, Seed};

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
