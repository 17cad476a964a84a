//! Training on fixed examples. Supervised fine-tuning, reward models and DPO differ only in their [`Objective`].

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::diagnosis;
use super::longest;
use super::recorder::{DataProgress, Recorder};
use super::steps::{self, TrainingStep};
use super::{EvalSplit, SaveFor};
use crate::batches::Order;
use crate::error::{Error, Result};
use crate::evaluation::name_is_taken;
use crate::learner::Learner;
use crate::learner::optimizer::Optimizer;
use crate::model::{DropoutStream, EmbeddingNoise};
use crate::objective::{LossContext, Objective, Readings, StepId, totals};
use crate::progress::Progress;
use crate::settings::{Settings, StepSettings};
use crate::stats::{Stats, StepReport};

/// Data and settings of the loop.
pub struct Offline<'a, O: Objective> {
    /// Objective of the method.
    pub objective: &'a O,
    /// Training examples.
    pub examples: &'a [O::Example],
    /// Held-out examples; empty turns evaluation off.
    pub held_out: &'a [O::Example],
    /// Test examples, evaluated before the first step and after the last one.
    pub test: &'a [O::Example],
    /// True if there is a test split. It may have prompts without examples, if test rows are published without their answers.
    pub has_test: bool,
    /// Order of the examples.
    pub order: Order,
    /// Settings of the run.
    pub settings: &'a Settings,
    /// Writes the model (without gradients) into a directory.
    pub save: Save<'a, O::Model>,
    /// Samples and scores completions of held-out prompts, if enabled.
    pub complete: Option<Complete<'a, O::Model>>,
    /// Called after each optimizer step, if something follows the model.
    pub after_step: Option<AfterStep<'a, O::Model>>,
}

/// Receives the model (without gradients) after so many steps.
pub type AfterStep<'a, M> = &'a dyn Fn(&M, usize);

/// Writes a model (without gradients) into a directory.
pub type Save<'a, M> = &'a dyn Fn(&M, &Path, SaveFor) -> Result<()>;

/// Completes the prompts of a split after so many steps and epochs, records the completions and measures them.
pub type Complete<'a, M> = &'a dyn Fn(&M, EvalSplit, (usize, usize), &dyn Progress) -> Result<Stats>;

/// Trains until the last step, an early stop, or an interruption (after a checkpoint).
///
/// # Errors
/// [`Error::Diverged`] with the path of the offending batch, [`Error::Interrupted`], or an error of writing.
pub fn train<O: Objective>(
    task: &Offline<'_, O>,
    learner: &mut Learner<O::Model>,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    steps::train(&mut OfflineTraining { task, learner }, recorder)
}

/// Training on fixed examples. Each step is one optimizer step over a batch.
struct OfflineTraining<'t, 'a, O: Objective> {
    task: &'t Offline<'a, O>,
    learner: &'t mut Learner<O::Model>,
}

impl<O: Objective> TrainingStep for OfflineTraining<'_, '_, O> {
    fn settings(&self) -> &Settings {
        self.task.settings
    }

    fn version(&self) -> u64 {
        self.learner.version()
    }

    fn data_progress(&self, done: usize) -> DataProgress {
        let order = &self.task.order;
        DataProgress { epoch: done as f64 / order.steps_per_epoch() as f64, examples: order.rows_seen(done) }
    }

    fn has(&self, split: EvalSplit) -> bool {
        match split {
            EvalSplit::HeldOut => !self.task.held_out.is_empty(),
            EvalSplit::Test => self.task.has_test,
        }
    }

    fn try_longest(&mut self, recorder: &mut Recorder<'_>) {
        let Offline { objective, examples, order, settings, .. } = self.task;
        longest::offline(*objective, examples, order.batch_size, settings, self.learner, recorder);
    }

    fn step(&mut self, step: usize, recorder: &mut Recorder<'_>) -> Result<StepReport> {
        let Offline { objective, examples, order, settings, .. } = self.task;
        let rows = order.batch(step);
        let batch: Vec<&O::Example> = rows.iter().map(|&row| &examples[row]).collect();
        let of_step = settings.of_step(step);
        let within = recorder.within(step + 1, settings.steps);
        let report = optimize(*objective, self.learner, &batch, of_step, &within);
        let report = report.map_err(|halt| {
            self.learner.discard();
            match halt {
                Halt::Interrupted => Error::Interrupted,
                Halt::Failed(error) => error,
                Halt::Diverged(what) => recorder.diverged(step + 1, what, describe(*objective, &rows, &batch)),
            }
        })?;
        if let Some(after_step) = self.task.after_step {
            after_step(&self.learner.frozen(), step + 1);
        }
        Ok(report)
    }

    fn evaluate(&mut self, split: EvalSplit, done: usize, progress: &dyn Progress) -> Result<Stats> {
        let Offline { objective, held_out, test, order, settings, complete, .. } = self.task;
        let examples: Vec<&O::Example> = match split {
            EvalSplit::Test => test.iter().collect(),
            EvalSplit::HeldOut => {
                settings.evaluated(done, held_out.len()).into_iter().map(|row| &held_out[row]).collect()
            }
        };
        let model = self.learner.frozen();
        let mut stats = match examples.is_empty() {
            true => Stats::default(),
            false => objective.evaluate(&model, &examples, settings.passes, progress)?,
        };
        if let Some(complete) = complete {
            let completed = complete(&model, split, (done, order.epoch(done)), progress)?;
            if let Some(name) = completed.shared_name(&stats) {
                return Err(name_is_taken(name));
            }
            stats.merge(&completed);
        }
        Ok(stats)
    }

    fn watch(&self, done: usize, recorder: &mut Recorder<'_>) {
        let losses: Vec<f64> = recorder.logged("loss").collect();
        recorder.warn_of_divergence(diagnosis::of_losses(done, self.task.settings, &losses));
    }

    fn save(&self, directory: &Path) -> Result<()> {
        (self.task.save)(&self.learner.frozen(), directory, SaveFor::Use)
    }

    fn optimizers(&self) -> Vec<(&str, &Optimizer)> {
        vec![("", self.learner.optimizer())]
    }

    fn save_checkpoint(&self, directory: &Path) -> Result<()> {
        (self.task.save)(&self.learner.frozen(), directory, SaveFor::Resume)
    }
}

/// Reason for ending a step before its optimizer step.
#[derive(Debug)]
pub enum Halt {
    /// The progress requested an end.
    Interrupted,
    /// A loss or a gradient is not finite.
    Diverged(String),
    /// A server that the objective uses has failed.
    Failed(Error),
}

/// Reason for ending the passes of a lane, in the form that ranks exchange.
#[derive(Debug, Serialize, Deserialize)]
enum LaneHalt {
    Interrupted,
    Diverged(String),
}

impl From<String> for Halt {
    fn from(what: String) -> Self {
        Self::Diverged(what)
    }
}

impl From<LaneHalt> for Halt {
    fn from(halt: LaneHalt) -> Self {
        match halt {
            LaneHalt::Interrupted => Self::Interrupted,
            LaneHalt::Diverged(what) => Self::Diverged(what),
        }
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        match error {
            Error::Interrupted => Self::Interrupted,
            error => Self::Failed(error),
        }
    }
}

/// Takes one optimizer step over `batch`. Without dropout, the result does not depend on the split into passes, except for rounding.
/// `progress` receives the number of examples that are `accumulated`.
///
/// # Errors
/// A value that is not finite, an error of a server, or an end requested by `progress`. The weights are unchanged.
pub fn optimize<O: Objective>(
    objective: &O,
    learner: &mut Learner<O::Model>,
    batch: &[&O::Example],
    settings: StepSettings,
    progress: &dyn Progress,
) -> Result<StepReport, Halt> {
    let step = learner.optimizer().steps();
    let (mut stats, mut measured, mut loss) = (Stats::default(), Stats::default(), 0.0);
    let at = StepId { seed: settings.seed, step, ranks: settings.passes.ranks() };
    let regenerated = objective.regenerate(learner.module(), batch, at, &mut measured)?;
    let batch: Vec<&O::Example> = regenerated.as_ref().map_or_else(|| batch.to_vec(), |batch| batch.iter().collect());
    let totals = totals(objective, &batch);
    let with_context = objective.with_batch_context(learner.module(), &batch, settings.passes, progress)?;
    let batch: Vec<&O::Example> = with_context.as_ref().map_or(batch, |batch| batch.iter().collect());
    let lengths: Vec<usize> = batch.iter().map(|example| objective.tokens(example)).collect();
    let noise = settings.noise_alpha.map(|alpha| EmbeddingNoise::new(alpha, settings.seed, step));
    let (lanes, passes) = (settings.passes.lanes, settings.passes.in_lanes(&lengths));
    let of_lane = |lane: usize| -> Result<(f64, Stats), LaneHalt> {
        let (mut readings, mut shares) = (Readings::default(), Vec::new());
        let last = passes[lane].last().map(|(index, _)| *index);
        for (index, pass) in passes[lane].clone() {
            progress.advance("accumulated", pass.start, batch.len()).map_err(|_| LaneHalt::Interrupted)?;
            let masks = DropoutStream::new(settings.seed, step, index as u64);
            let noise = noise.map(|noise| noise.starting_at(pass.start));
            let context = LossContext { totals, dropout: Some(masks), noise };
            if last == Some(index) {
                learner.begin_last_pass(lane, lanes);
            }
            let Some(share) = objective.loss(learner.module(), &batch[pass], context, &mut readings) else { continue };
            learner.accumulate(&share);
            shares.push(share.inner());
        }
        learner.end_lane(lane);
        // The only wait for the device before the norm of the gradient.
        let (mut measured, mut loss) = (Stats::default(), 0.0);
        for share in readings.read(&shares, &mut measured) {
            let value = f64::from(share[0]);
            if !value.is_finite() {
                return Err(LaneHalt::Diverged(format!("the loss is {value}")));
            }
            loss += value;
        }
        Ok((loss, measured))
    };
    let own = lanes.run_own(of_lane);
    learner.reduce(lanes, own.is_ok());
    let of_lanes = lanes.share("losses", own).inspect_err(|_| learner.discard())?;
    for (part, of_lane) in of_lanes {
        loss += part;
        measured.merge(&of_lane);
    }
    let grad_norm = learner.step(settings.learning_rate, settings.max_grad_norm)?;
    stats.mean("loss", loss, 1.0);
    stats.last("grad_norm", grad_norm);
    stats.last("learning_rate", settings.learning_rate);
    stats.merge(&measured);
    Ok(StepReport { tokens: lengths.iter().sum(), kl: None, metrics: stats })
}

fn describe<O: Objective>(objective: &O, rows: &[usize], batch: &[&O::Example]) -> Value {
    let examples = rows.iter().zip(batch);
    examples.map(|(row, example)| json!({ "row": row + 1, "example": objective.describe(example) })).collect()
}

#[cfg(test)]
mod tests;
