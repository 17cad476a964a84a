//! What the offline loop needs to know of a method: from a batch of examples to a loss.

pub mod dpo;
pub mod reward_model;
pub mod sft;

use burn::module::Module;
use burn::tensor::Tensor;
use serde_json::Value;

use crate::batches::MicroBatch;
use crate::error::Result;
use crate::host::read;
use crate::stats::Stats;

/// How much one optimiser step holds. Every denominator comes from here, so a step's gradient does not depend on how it
/// is split into forward passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Examples: rows, or pairs.
    pub examples: usize,
    /// Tokens that carry loss.
    pub targets: usize,
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

    /// The examples' share of the step's loss, `[1]`; the shares of a step's micro-batches sum to its loss.
    /// `None` when nothing in them carries loss.
    fn loss(
        &self,
        model: &Self::Model,
        examples: &[&Self::Example],
        totals: Totals,
        stats: &mut Stats,
    ) -> Option<Tensor<1>>;

    /// Everything measured on held-out examples, `loss` included, without prefix. `model` carries no gradient.
    ///
    /// # Errors
    /// What computing them may fail with.
    fn evaluate(&self, model: &Self::Model, examples: &[&Self::Example], passes: MicroBatch) -> Result<Stats> {
        Ok(evaluate_loss(self, model, examples, passes))
    }

    /// The example for a person to read: ids and masks, as they entered the loss.
    fn describe(&self, example: &Self::Example) -> Value;

    /// The held-out metric that decides which model is best, unless the configuration names another.
    fn best_metric(&self) -> &'static str;
}

/// Sums over examples what one step needs for its denominators.
pub fn totals<O: Objective + ?Sized>(objective: &O, examples: &[&O::Example]) -> Totals {
    Totals { examples: examples.len(), targets: examples.iter().map(|example| objective.targets(example)).sum() }
}

/// The loss and the statistics of `examples` taken as one step, without gradient.
pub fn evaluate_loss<O: Objective + ?Sized>(
    objective: &O,
    model: &O::Model,
    examples: &[&O::Example],
    passes: MicroBatch,
) -> Stats {
    let totals = totals(objective, examples);
    let lengths: Vec<usize> = examples.iter().map(|example| objective.tokens(example)).collect();
    let (mut stats, mut loss) = (Stats::default(), 0.0);
    let mut measured = Stats::default();
    for pass in passes.split(&lengths) {
        let share = objective.loss(model, &examples[pass], totals, &mut measured);
        loss += share.map_or(0.0, |share| f64::from(read(&share)[0]));
    }
    stats.last("loss", loss);
    stats.merge(&measured);
    stats
}
