//! What the offline loop needs to know of a method: from a batch of examples to a loss.

pub mod classify;
pub mod cpo;
pub mod distill;
pub mod dpo;
pub mod kto;
pub mod orpo;
pub mod reward_model;
pub mod sft;
pub mod simpo;

pub use reward_model::{CALIBRATION_BINS, PairScore};

use burn::module::Module;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::batches::MicroBatch;
use crate::data::{Examples, Row, TokenizeOptions};
use crate::error::{Error, Result};
use crate::host::read;
use crate::method::Method;
use crate::model::{CausalLm, DropoutStream, Rows, Trained};
use crate::pretrained::{LabelPlan, Pretrained, Trainable};
use crate::progress::Progress;
use crate::ranks::Ranks;
use crate::rng::Seed;
use crate::stats::Stats;

/// A method that learns from fixed examples, by its keys.
pub trait OfflineMethod: Method {
    /// What its rows become, which is what its objective learns from or becomes it.
    type Example: Into<TrainingExample<Self>>;
    /// What it minimizes.
    type Objective: Objective<Model: Trainable>;

    /// What the training rows say of a classifier's labels: asked before any rows become examples.
    ///
    /// # Errors
    /// When a row has no label, or one that is not known.
    fn labels(&self, _train: &[Row], _from: &Pretrained) -> Result<Option<LabelPlan>> {
        Ok(None)
    }

    /// Rows as ids.
    ///
    /// # Errors
    /// When no row is left, or one cannot be read.
    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<Self::Example>>;

    /// One example as it is handed over to the model.
    fn rows(example: &Self::Example) -> Rows<'_>;

    /// How many numbers the reference computes for every example, once and before the first step. Default: none.
    fn reference_width(&self) -> usize {
        0
    }

    /// Scores examples that pass through `reference` together: [`reference_width`](Self::reference_width) numbers of each, one
    /// example after the other.
    fn score_with_reference(&self, _reference: &CausalLm, _examples: &[&Self::Example]) -> Vec<f32> {
        Vec::new()
    }

    /// The example with the numbers of the reference, which are none where it computes none.
    fn with_reference(&self, example: Self::Example, _numbers: &[f32]) -> TrainingExample<Self> {
        example.into()
    }

    /// The objective, with the reference where it goes on asking it; there may be none where it was asked before.
    fn objective(&self, reference: Option<CausalLm>) -> Self::Objective;

    /// The objective that goes on asking a server, where it does: the server is found, and its tokenizer compared. Default: none.
    ///
    /// # Errors
    /// When the server does not answer in time or does not fit, and [`Error::Interrupted`] when `progress` ends the wait.
    fn at_server(&self, _from: &Pretrained, _progress: &dyn Progress) -> Result<Option<Self::Objective>> {
        Ok(None)
    }
}

/// What the objective of a method learns from.
pub type TrainingExample<M> = <<M as OfflineMethod>::Objective as Objective>::Example;

/// How much one optimizer step holds. Every denominator comes from here, so a step's gradient does not depend on how it
/// is split into forward passes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Totals {
    /// Examples: rows, or pairs.
    pub examples: usize,
    /// Tokens that carry loss.
    pub targets: usize,
    /// What they weigh together.
    pub weight: f64,
}

/// Which training step it is: what draws at random draws from a stream of the two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepId {
    /// The seed of the run.
    pub seed: Seed,
    /// Optimizer steps before this one.
    pub step: u64,
    /// The ranks that share the work.
    pub ranks: Ranks,
}

/// What one forward pass is part of.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pass {
    /// The step's denominators.
    pub totals: Totals,
    /// What dropout draws its masks from; nothing is dropped without it. Objectives that compare logprobs of one text
    /// under several models leave it alone.
    pub dropout: Option<DropoutStream>,
}

/// A method trained on fixed examples: supervised fine-tuning, reward models, DPO.
pub trait Objective {
    /// What is trained.
    type Model: Module;
    /// What it is trained on.
    type Example;

    /// Tokens of the forward passes over one example.
    fn tokens(&self, example: &Self::Example) -> usize;

    /// Tokens of one example that carry loss.
    fn targets(&self, example: &Self::Example) -> usize;

    /// What they weigh together; 1 each unless a method weighs them.
    fn weight(&self, example: &Self::Example) -> f64 {
        self.targets(example) as f64
    }

    /// The examples of a training step as they are learned from, where a method makes some of them anew (completions that it
    /// samples). `None`, which is usual: as they are.
    ///
    /// # Errors
    /// What keeps them from being made.
    fn regenerate(
        &self,
        _model: &Self::Model,
        _examples: &[&Self::Example],
        _at: StepId,
        _stats: &mut Stats,
    ) -> Result<Option<Vec<Self::Example>>, String> {
        Ok(None)
    }

    /// The examples of a step, each with what its loss must know of the others or of a server, where that takes a look at all of them
    /// before the first pass. `None`, which is usual: a pass needs nothing but the totals.
    ///
    /// # Errors
    /// That of a server, and [`Error::Interrupted`] when `progress` ends the wait for it.
    fn with_batch_context(
        &self,
        _model: &Self::Model,
        _examples: &[&Self::Example],
        _passes: MicroBatch,
        _progress: &dyn Progress,
    ) -> Result<Option<Vec<Self::Example>>> {
        Ok(None)
    }

    /// The examples' share of the step's loss, `[1]`; the shares of a step's micro-batches sum to its loss.
    /// `None` when nothing in them carries loss.
    fn loss(
        &self,
        model: &Self::Model,
        examples: &[&Self::Example],
        pass: Pass,
        stats: &mut Stats,
    ) -> Option<Tensor<1>>;

    /// Everything measured on held-out examples, `loss` included, without prefix. `model` carries no gradient; `progress`
    /// receives how many examples are `evaluated`.
    ///
    /// # Errors
    /// What computing them may fail with, and [`Error::Interrupted`](crate::Error::Interrupted) when `progress` ends it.
    fn evaluate(
        &self,
        model: &Self::Model,
        examples: &[&Self::Example],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Stats> {
        evaluate_loss(self, model, examples, passes, progress)
    }

    /// What the model makes of every pair, for methods that score pairs. `model` carries no gradient.
    fn scores(&self, _model: &Self::Model, _examples: &[&Self::Example], _passes: MicroBatch) -> Vec<PairScore> {
        Vec::new()
    }

    /// A report of held-out examples for people and programs, where the method has one. `model` carries no gradient.
    fn report(&self, _model: &Self::Model, _examples: &[&Self::Example], _passes: MicroBatch) -> Option<Value> {
        None
    }

    /// What `model`, trained on `examples`, leaves for those who use it. `model` carries no gradient.
    fn trained(&self, _model: &Self::Model, _examples: &[&Self::Example], _passes: MicroBatch) -> Trained {
        Trained::default()
    }

    /// The example for a person to read: ids and masks, as they entered the loss.
    fn describe(&self, example: &Self::Example) -> Value;
}

/// Sums over examples what one step needs for its denominators.
pub fn totals<O: Objective + ?Sized>(objective: &O, examples: &[&O::Example]) -> Totals {
    Totals {
        examples: examples.len(),
        targets: examples.iter().map(|example| objective.targets(example)).sum(),
        weight: examples.iter().map(|example| objective.weight(example)).sum(),
    }
}

/// The loss and the statistics of `examples` taken as one step, without gradient.
///
/// # Errors
/// [`Error::Interrupted`](crate::Error::Interrupted) when `progress` ends it, and that of a server that is asked.
pub fn evaluate_loss<O: Objective + ?Sized>(
    objective: &O,
    model: &O::Model,
    examples: &[&O::Example],
    passes: MicroBatch,
    progress: &dyn Progress,
) -> Result<Stats> {
    let step = Pass { totals: totals(objective, examples), dropout: None };
    let with_context = objective.with_batch_context(model, examples, passes, progress)?;
    let examples = with_context.as_ref().map_or_else(|| examples.to_vec(), |examples| examples.iter().collect());
    let lengths: Vec<usize> = examples.iter().map(|example| objective.tokens(example)).collect();
    let (mut stats, mut measured, mut loss) = (Stats::default(), Stats::default(), 0.0);
    let in_lanes = passes.in_lanes(&lengths);
    let of_lane = |lane: usize| {
        let (mut measured, mut loss) = (Stats::default(), 0.0);
        for (_, pass) in in_lanes[lane].clone() {
            progress.advance("evaluated", pass.start, examples.len()).map_err(|_| IsInterrupted)?;
            let share = objective.loss(model, &examples[pass], step, &mut measured);
            loss += share.map_or(0.0, |share| f64::from(read(&share)[0]));
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

/// The wish to stop, as ranks tell it each other.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct IsInterrupted;
