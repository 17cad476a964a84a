//! The interface between the offline loop and a method: from a batch of examples to a loss.

pub mod classify;
pub mod cpo;
pub mod distill;
pub mod dpo;
pub mod kto;
pub mod orpo;
mod plugged;
pub mod preference;
pub mod reward_model;
pub mod sft;
pub mod simpo;

pub use plugged::PluggedOffline;
pub use preference::{PairLoss, PairPass, PreferenceObjective};
pub(crate) use reward_model::CALIBRATION_BINS;
pub use reward_model::PairScore;

use burn::module::Module;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::batches::MicroBatch;
use crate::data::{Examples, Row, TokenizeOptions};
use crate::error::{Error, Result};
use crate::method::Method;
use crate::model::{CausalLm, DropoutStream, EmbeddingNoise, Reference, Rows, TrainingInfo};
use crate::pretrained::{LabelPlan, Pretrained, Trainable};
use crate::progress::Progress;
use crate::ranks::Ranks;
pub use crate::readings::Readings;
use crate::rng::Seed;
use crate::stats::Stats;

/// A method that trains on fixed examples, implemented by its configuration.
pub trait OfflineMethod: Method {
    /// A tokenized row. The objective trains on it, or on what it converts into.
    type Example: Into<TrainingExample<Self>>;
    /// The minimized objective.
    type Objective: Objective<Model: Trainable>;

    /// Derives a classifier's labels from the training rows. Called before any row becomes an example.
    ///
    /// # Errors
    /// If a row has no label or an unknown one.
    fn labels(&self, _train: &[Row], _from: &Pretrained) -> Result<Option<LabelPlan>> {
        Ok(None)
    }

    /// Tokenizes rows.
    ///
    /// # Errors
    /// If no row is left, or a row cannot be read.
    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<Self::Example>>;

    /// Returns the sequences of an example in the form that the model reads.
    fn rows(example: &Self::Example) -> Rows<'_>;

    /// Number of values that the reference computes per example, once, before the first step. Default: none.
    fn reference_width(&self) -> usize {
        0
    }

    /// Scores examples in one pass through `reference` and returns [`reference_width`](Self::reference_width) numbers
    /// per example, concatenated.
    fn score_with_reference(&self, _reference: &CausalLm, _examples: &[&Self::Example]) -> Vec<f32> {
        Vec::new()
    }

    /// Attaches the reference's numbers to an example; the slice is empty if there are none.
    fn with_reference(&self, example: Self::Example, _numbers: &[f32]) -> TrainingExample<Self> {
        example.into()
    }

    /// Builds the objective. `reference` is given if training still needs it; it may be `None` if its numbers were
    /// precomputed.
    fn objective(&self, reference: Option<Reference>) -> Self::Objective;

    /// Builds an objective that sends requests to a server, if the method uses one: connects to the server and compares
    /// tokenizers. Default: none.
    ///
    /// # Errors
    /// If the server does not answer in time or does not fit; [`Error::Interrupted`] if `progress` ends the wait.
    fn at_server(&self, _from: &Pretrained, _progress: &dyn Progress) -> Result<Option<Self::Objective>> {
        Ok(None)
    }
}

/// Example on which the objective of a method trains.
pub type TrainingExample<M> = <<M as OfflineMethod>::Objective as Objective>::Example;

/// Size of one optimizer step. Every denominator comes from here, so a step's gradient does not depend on how it is
/// split into forward passes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Totals {
    /// Examples: rows, or pairs.
    pub examples: usize,
    /// Tokens that carry loss.
    pub targets: usize,
    /// Total weight of the tokens.
    pub weight: f64,
}

/// Identity of a training step. Random draws use a stream derived from seed and step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepId {
    /// The seed of the run.
    pub seed: Seed,
    /// Number of optimizer steps before this one.
    pub step: u64,
    /// Ranks that share the work.
    pub ranks: Ranks,
}

/// What the loss of one forward pass needs from its step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossContext {
    /// The step's denominators.
    pub totals: Totals,
    /// Random stream of the dropout masks; without it nothing is dropped. Objectives that compare logprobs of one text
    /// under several models ignore it.
    pub dropout: Option<DropoutStream>,
    /// Noise on the policy's embeddings, from the first row of the pass on; without it there is none.
    pub noise: Option<EmbeddingNoise>,
}

/// Objective of a method trained on fixed examples: supervised fine-tuning, reward models, DPO.
pub trait Objective {
    /// The trained model.
    type Model: Module;
    /// The training example.
    type Example;

    /// Number of tokens in the forward passes over one example.
    fn tokens(&self, example: &Self::Example) -> usize;

    /// Number of tokens of one example that carry loss.
    fn targets(&self, example: &Self::Example) -> usize;

    /// Total weight of these tokens; 1 each unless a method weights them.
    fn weight(&self, example: &Self::Example) -> f64 {
        self.targets(example) as f64
    }

    /// Regenerates the examples of a training step, for methods that sample completions. `None`, the usual case, keeps
    /// them unchanged.
    ///
    /// # Errors
    /// Why the examples could not be generated.
    fn regenerate(
        &self,
        _model: &Self::Model,
        _examples: &[&Self::Example],
        _at: StepId,
        _stats: &mut Stats,
    ) -> Result<Option<Vec<Self::Example>>, String> {
        Ok(None)
    }

    /// Adds to each example of a step the values that its loss needs from the other examples or from a server. This
    /// needs all examples before the first pass. `None`, the usual case: a pass needs only the totals.
    ///
    /// # Errors
    /// The error of a server, and [`Error::Interrupted`] if `progress` ends the wait for it.
    fn with_batch_context(
        &self,
        _model: &Self::Model,
        _examples: &[&Self::Example],
        _passes: MicroBatch,
        _progress: &dyn Progress,
    ) -> Result<Option<Vec<Self::Example>>> {
        Ok(None)
    }

    /// Computes the examples' share of the step's loss, `[1]`; the shares of a step's micro-batches sum to its loss.
    /// `None` if nothing in them carries loss. `measured` receives the statistics. Their tensors are read after the
    /// backward pass, so that a device need not wait for the host.
    fn loss(
        &self,
        model: &Self::Model,
        examples: &[&Self::Example],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>>;

    /// Computes all held-out statistics, `loss` included, without prefix. `model` carries no gradient; `progress`
    /// receives the number of `evaluated` examples.
    ///
    /// # Errors
    /// Errors of the computation, and [`Error::Interrupted`] if `progress` ends it.
    fn evaluate(
        &self,
        model: &Self::Model,
        examples: &[&Self::Example],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Stats> {
        evaluate_loss(self, model, examples, passes, progress)
    }

    /// Scores each pair, for methods that score pairs. `model` carries no gradient.
    fn scores(&self, _model: &Self::Model, _examples: &[&Self::Example], _passes: MicroBatch) -> Vec<PairScore> {
        Vec::new()
    }

    /// Returns a report on held-out examples for people and programs, if the method has one. `model` carries no
    /// gradient.
    fn report(&self, _model: &Self::Model, _examples: &[&Self::Example], _passes: MicroBatch) -> Option<Value> {
        None
    }

    /// Returns the facts about the training that are stored with the trained `model`. `model` carries no gradient.
    fn training_info(&self, _model: &Self::Model, _examples: &[&Self::Example], _passes: MicroBatch) -> TrainingInfo {
        TrainingInfo::default()
    }

    /// Shows the example to a person: ids and masks, as they entered the loss.
    fn describe(&self, example: &Self::Example) -> Value;
}

/// Sums the denominators of one step over its examples.
pub fn totals<O: Objective + ?Sized>(objective: &O, examples: &[&O::Example]) -> Totals {
    Totals {
        examples: examples.len(),
        targets: examples.iter().map(|example| objective.targets(example)).sum(),
        weight: examples.iter().map(|example| objective.weight(example)).sum(),
    }
}

/// Computes the loss and the statistics of `examples` as one step, without gradient.
///
/// # Errors
/// [`Error::Interrupted`] if `progress` ends it, and errors of a queried server.
pub fn evaluate_loss<O: Objective + ?Sized>(
    objective: &O,
    model: &O::Model,
    examples: &[&O::Example],
    passes: MicroBatch,
    progress: &dyn Progress,
) -> Result<Stats> {
    let context = LossContext { totals: totals(objective, examples), dropout: None, noise: None };
    let with_context = objective.with_batch_context(model, examples, passes, progress)?;
    let examples = with_context.as_ref().map_or_else(|| examples.to_vec(), |examples| examples.iter().collect());
    let lengths: Vec<usize> = examples.iter().map(|example| objective.tokens(example)).collect();
    let (mut stats, mut measured, mut loss) = (Stats::default(), Stats::default(), 0.0);
    let in_lanes = passes.in_lanes(&lengths);
    let of_lane = |lane: usize| {
        let (mut measured, mut loss) = (Stats::default(), 0.0);
        for (_, pass) in in_lanes[lane].clone() {
            progress.advance("evaluated", pass.start, examples.len()).map_err(|_| IsInterrupted)?;
            let mut readings = Readings::default();
            let share = objective.loss(model, &examples[pass], context, &mut readings);
            let read = readings.read(share.as_slice(), &mut measured);
            loss += read.first().map_or(0.0, |share| f64::from(share[0]));
        }
        Ok((loss, measured))
    };
    let found = passes.lanes.run("evaluated losses", of_lane).map_err(|IsInterrupted| Error::Interrupted)?;
    for (part, of_lane) in found {
        loss += part;
        measured.merge(&of_lane);
    }
    stats.last("loss", loss);
    stats.merge(&measured);
    Ok(stats)
}

/// A stop request, as ranks pass it to each other.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct IsInterrupted;
