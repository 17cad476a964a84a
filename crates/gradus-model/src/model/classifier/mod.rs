//! Classifiers: an encoder with a head that labels every text, or every token.
//!
//! On disk they are `…ForSequenceClassification` and `…ForTokenClassification` directories of `transformers`, label maps
//! included.

mod head;
mod task;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use gradus_kernels::{Precision, WeightFormat};

pub(super) use head::Head;
use head::Reads;
pub use task::{Reading, Scope, Task};

use super::adapter::{self, Adaptable, AdapterTensors, Attached, PeftConfig};
use super::build::{Builder, Fresh, Init, Source, normal};
use super::checkpoint::Checkpoint;
use super::directory::ModelDir;
use super::dropout::Dropping;
use super::encoder::{Encoder, Text, TextBatch};
use super::family::{EncoderFamily, is_of_another_head};
use super::layers::{Layers, select_rows};
use super::weights::open_weights;
use crate::error::{Error, Result};
use crate::rng::Stream;

/// An encoder with a head on it.
#[derive(Module, Debug)]
pub struct Classifier {
    /// All layers below the head.
    pub encoder: Encoder,
    head: Head,
    #[module(skip)]
    task: Arc<Task>,
    /// Configuration of the encoder's adapter.
    #[module(skip)]
    adapter: Attached,
    /// Names on disk of the head's parameters that were newly initialized because the files did not have them.
    #[module(skip)]
    drawn: Arc<Vec<String>>,
    #[module(skip)]
    family: EncoderFamily,
}

impl Classifier {
    /// Loads the classifier in `dir` onto `device`.
    ///
    /// # Errors
    /// When `dir` holds another kind of model, or weights are missing, misshapen, unexpected or damaged.
    pub fn load(dir: &ModelDir, device: &Device) -> Result<Self> {
        Self::read(dir, None, device)
    }

    /// Like [`load`](Self::load), for a model that is not trained: packs its encoder's linear layers in the format `weights`, one by one.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_packed(dir: &ModelDir, weights: WeightFormat, device: &Device) -> Result<Self> {
        Self::read(dir, Some(weights), device)
    }

    fn read(dir: &ModelDir, weights: Option<WeightFormat>, device: &Device) -> Result<Self> {
        let (family, task) = (dir.encoder_family()?, Task::of(dir)?);
        let mut checkpoint = open_weights(dir)?;
        let Some(found) = &dir.adapter else {
            let model = Self::build(&mut checkpoint, dir, task, weights, device)?;
            model.leave(&mut checkpoint);
            checkpoint.finish()?;
            return Ok(model);
        };
        let mut tensors = AdapterTensors::open(&found.path)?;
        if let Some(layer) = tensors.adapted_layer(|name| family.is_of_own_head(name)) {
            let message = format!(
                "the adapter changes `{layer}`, but the head is outside the encoder and cannot have a low-rank part"
            );
            return Err(Error::model(&found.path, message).with_hint(
                "merge the adapter with peft (`merge_and_unload`), or train it again without this layer (`exclude_modules`)",
            ));
        }
        let mut encoder = Self::below(&mut checkpoint, dir, weights, device)?;
        adapter::attach_saved(&mut encoder, None, family.base_prefix(), &found.config, &mut tensors)?;
        let head = Self::top(&mut tensors.over(&mut checkpoint), dir, &task, &encoder, device)?;
        let mut model = Self::of_parts(encoder, head, task, family);
        model.leave(&mut checkpoint);
        // The adapter may replace parts of the base's head, or bring a head with other layers.
        checkpoint.ignore_where(|name| family.is_of_own_head(name));
        checkpoint.finish()?;
        tensors.finish()?;
        model.adapter = Some(Arc::new(found.config.clone()));
        Ok(model)
    }

    /// Loads the encoder in `dir`, with any head, and gives it a new head for `task`, with zero biases and weights N(0, σ²) with the
    /// configuration's σ. Layers between states and labels from pre-training are kept.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn with_fresh_head(
        dir: &ModelDir,
        task: Task,
        weights: Option<WeightFormat>,
        stream: &mut Stream,
        device: &Device,
    ) -> Result<Self> {
        let family = dir.encoder_family()?;
        let mut own = stream.clone();
        let mut checkpoint = open_weights(dir)?;
        Head::forget(&mut checkpoint);
        let drawn = Rc::new(RefCell::new(Vec::new()));
        let found = Rc::clone(&drawn);
        let mut checkpoint = checkpoint.with_fresh(move |name, shape, init| {
            let size = shape.iter().product();
            family.is_of_own_head(name).then(|| {
                found.borrow_mut().push(name.to_owned());
                match init {
                    Init::Constant(value) => vec![value; size],
                    Init::Normal(deviation) => normal(&mut own, size, deviation),
                }
            })
        });
        let mut model = Self::build(&mut checkpoint, dir, task, weights, device)?;
        model.leave(&mut checkpoint);
        checkpoint.finish()?;
        model.drawn = Arc::new(drawn.take());
        Ok(model)
    }

    /// Creates a model with newly initialized weights from the configuration of `dir`.
    ///
    /// # Errors
    /// When the configuration is not supported.
    pub fn random(dir: &ModelDir, stream: &mut Stream, device: &Device) -> Result<Self> {
        Self::build(&mut Fresh(stream), dir, Task::of(dir)?, None, device)
    }

    fn build(
        source: &mut dyn Source,
        dir: &ModelDir,
        task: Task,
        weights: Option<WeightFormat>,
        device: &Device,
    ) -> Result<Self> {
        let encoder = Self::below(source, dir, weights, device)?;
        let head = Self::top(source, dir, &task, &encoder, device)?;
        Ok(Self::of_parts(encoder, head, task, dir.encoder_family()?))
    }

    fn below(
        source: &mut dyn Source,
        dir: &ModelDir,
        weights: Option<WeightFormat>,
        device: &Device,
    ) -> Result<Encoder> {
        Encoder::build(&mut Builder::new(source, device).packing(weights), dir)
    }

    /// Builds the head. Heads are small and stay in f32.
    fn top(source: &mut dyn Source, dir: &ModelDir, task: &Task, encoder: &Encoder, device: &Device) -> Result<Head> {
        let mut b = Builder::new(source, device);
        Head::build(&mut b, dir, task, encoder.dims().1, encoder.initializer_range())
    }

    fn of_parts(encoder: Encoder, head: Head, task: Task, family: EncoderFamily) -> Self {
        Self { encoder, head, task: Arc::new(task), adapter: None, drawn: Arc::default(), family }
    }

    /// Ignores the tensors of other heads in the files.
    fn leave(&self, checkpoint: &mut Checkpoint) {
        checkpoint.ignore_where(is_of_another_head);
    }

    /// Returns the scope, reading and labels.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Sets the precision of the operands of the encoder's products; the head stays in f32.
    #[must_use]
    pub fn with_compute(mut self, compute: Precision) -> Self {
        self.encoder.set_precision(compute);
        self
    }

    /// Removes gradients and packs the encoder in the format `weights`; see [`CausalLm::into_frozen`](super::CausalLm::into_frozen).
    #[must_use]
    pub fn into_frozen(self, weights: WeightFormat) -> Self {
        let mut frozen = self.valid();
        frozen.encoder.freeze_weights(weights);
        frozen
    }

    /// Sets whether the configured dropout applies in passes that have masks.
    pub fn set_dropout(&mut self, dropout: bool) {
        self.encoder.set_dropout(dropout);
    }

    /// Builds a batch from `texts`. It drops token types and global tokens if the encoder does not support them. In Longformer, the first
    /// token of each text is global if a sequence head reads it, unless the text lists its global tokens.
    ///
    /// # Panics
    /// When there is no text, or one cannot be read ([`Encoder::check`]).
    pub fn batch(&self, texts: &[Text<'_>]) -> TextBatch {
        let (has_types, has_global) = (self.encoder.reads_types(), self.encoder.has_global());
        let mut texts = texts.to_vec();
        for text in &mut texts {
            if !has_types {
                text.types = &[];
            }
            if !has_global {
                text.global = Some(&[]);
            }
        }
        TextBatch::new(&texts, self.task.scope == Scope::Sequence)
    }

    /// Computes one row of logits for every text, `[B, K]`, or with a token head for every token, `[N, K]`.
    pub fn logits(&self, texts: &TextBatch) -> Tensor<2> {
        let dropping = Dropping { stream: texts.dropout(), own: self.encoder.drops_out() };
        let read = match self.head.reads() {
            Reads::Tokens => self.encoder.forward(texts),
            Reads::First => self.encoder.first(texts),
            Reads::Mean => head::means(self.encoder.forward(texts), texts),
        };
        self.head.forward(read, dropping)
    }

    /// Computes the logits of these tokens of a token head, by their packed indices, `[M, K]`.
    ///
    /// # Panics
    /// When the head reads whole texts.
    pub fn token_logits(&self, texts: &TextBatch, indices: &[usize]) -> Tensor<2> {
        assert_eq!(self.task.scope, Scope::Token, "a sequence head does not classify tokens");
        select_rows(self.logits(texts), indices)
    }

    /// Returns the name on disk of a classifier's parameter, given its name in memory. The classifier is in `dir`.
    ///
    /// # Errors
    /// When the family is unknown.
    pub fn name_on_disk(name: &str, dir: &ModelDir) -> Result<String> {
        Ok(Self::on_disk(name, dir.encoder_family()?))
    }

    /// Returns the name on disk of a parameter, given its name in memory.
    pub(super) fn on_disk(name: &str, family: EncoderFamily) -> String {
        match (name.strip_prefix("encoder."), name.strip_prefix("head.")) {
            (Some(rest), _) => format!("{}{rest}", family.base_prefix()),
            (_, Some(rest)) => Head::on_disk(rest, family),
            _ => name.to_owned(),
        }
    }
}

impl Task {
    /// Reads the task of the classifier in `dir`.
    ///
    /// # Errors
    /// When it is not a classifier, its labels are not numbered from 0, or its `problem_type` is unknown.
    pub fn of(dir: &ModelDir) -> Result<Self> {
        let scope = dir.check_classifier()?;
        let refuse = |message| Error::model(dir.path.join("config.json"), message);
        let described = dir.adapter.as_ref().and_then(|adapter| adapter.head.as_ref());
        // peft's adapters do not name labels, and the base may have others.
        let unnamed = dir.adapter.as_ref().filter(|adapter| adapter.head.is_none());
        let outputs = match unnamed {
            Some(adapter) => AdapterTensors::open(&adapter.path)?.outputs(),
            None => None,
        };
        Self::read(described.unwrap_or(&dir.config), scope, outputs).map_err(refuse)
    }
}

impl Adaptable for Classifier {
    type Below = Encoder;

    fn adapted(&self) -> (&Encoder, &Attached) {
        (&self.encoder, &self.adapter)
    }

    fn adapted_mut(&mut self) -> (&mut Encoder, &mut Attached) {
        (&mut self.encoder, &mut self.adapter)
    }

    fn train_heads(&mut self) {
        let adapter = self.adapter.clone();
        self.head.train_parts(&|part| adapter.as_ref().is_none_or(|adapter| adapter.trains_head(part)));
    }

    /// Newly initialized parts of the head are in no file yet, so they are saved with the adapter.
    fn fitted(&self, config: PeftConfig) -> PeftConfig {
        let drawn: Vec<&str> = self.drawn.iter().filter_map(|name| Head::part(self.family, name)).collect();
        config.with_heads(self.task.scope.task_type(), &drawn)
    }
}
