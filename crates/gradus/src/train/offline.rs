//! The offline loop: supervised fine-tuning, reward models and DPO are this loop with another [`Objective`].

use std::path::Path;

use serde_json::{Value, json};

use super::diagnosis;
use super::longest;
use super::recorder::{Measured, Recorder, Seen, Verdict};
use super::rescue;
use super::{EvalSplit, SaveFor};
use crate::batches::Order;
use crate::error::{Error, Result};
use crate::host::read;
use crate::learner::Learner;
use crate::model::DropoutStream;
use crate::objective::{Moment, Objective, Pass, totals};
use crate::observer::Event;
use crate::progress::Progress;
use crate::run::Metrics;
use crate::settings::Settings;
use crate::stats::{NEW_TOKENS, Stats};

/// What the loop trains on, and how.
pub struct Offline<'a, O: Objective> {
    /// The method.
    pub objective: &'a O,
    /// Training examples.
    pub examples: &'a [O::Example],
    /// Held-out examples; empty turns evaluation off.
    pub held_out: &'a [O::Example],
    /// Test examples, measured before the first step and after the last.
    pub test: &'a [O::Example],
    /// Whether there is a test: there may be prompts without examples, where test rows are published without their answers.
    pub has_test: bool,
    /// Which examples a step takes.
    pub order: Order,
    /// Everything else.
    pub settings: &'a Settings,
    /// Writes the model (without gradient) into a directory.
    pub save: Save<'a, O::Model>,
    /// What completions of held-out prompts are worth after so many steps, where that is asked for.
    pub complete: Option<Complete<'a, O::Model>>,
}

/// Writes a model (without gradient) into a directory.
pub type Save<'a, M> = &'a dyn Fn(&M, &Path, SaveFor) -> Result<()>;

/// Completes the prompts of a split after so many steps and epochs, records the completions and measures them.
pub type Complete<'a, M> = &'a dyn Fn(&M, EvalSplit, (usize, usize), &dyn Progress) -> Result<Stats>;

/// Trains until the last step, an early stop, or an interruption (after a checkpoint).
///
/// # Errors
/// [`Error::Diverged`] with the path of the offending batch, [`Error::Interrupted`], or what writing fails with.
pub fn train<O: Objective>(
    task: &Offline<'_, O>,
    learner: &mut Learner<O::Model>,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    rescue::guard(
        learner,
        recorder,
        |learner, recorder| steps(task, learner, recorder),
        |learner, recorder| {
            let settled = recorder.is_settled(learner.version());
            if settled {
                save_checkpoint(task, learner, recorder, false)?;
            }
            Ok(settled)
        },
    )
}

fn steps<O: Objective>(
    task: &Offline<'_, O>,
    learner: &mut Learner<O::Model>,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    let settings = task.settings;
    recorder.settle(learner.version())?;
    recorder.tidy(settings)?;
    if recorder.state.evaluation_due {
        finish_step(task, learner, recorder)?;
    }
    if recorder.has_stopped(settings) {
        return Ok(());
    }
    if settings.try_longest && recorder.state.step < settings.steps {
        longest::offline(task.objective, task.examples, task.order.batch_size, settings.passes, learner, recorder);
    }
    if recorder.state.step == 0 {
        let mut before = Measured::default();
        if settings.eval_steps >= 0 && !task.held_out.is_empty() {
            before.held_out = Some(evaluate(task, EvalSplit::HeldOut, learner, 0, &recorder.within(0))?);
        }
        if task.has_test {
            before.test = Some(evaluate(task, EvalSplit::Test, learner, 0, &recorder.within(0))?);
        }
        recorder.baseline(&before, settings)?;
    }
    recorder.tell(&Event::Phase { name: "training", total: Some(settings.steps), done: recorder.state.step });
    for step in recorder.state.step..settings.steps {
        // 1. Choose the examples.
        recorder.begin();
        let rows = task.order.batch(step);
        let batch: Vec<&O::Example> = rows.iter().map(|&row| &task.examples[row]).collect();

        // 2. Forward and backward, pass by pass; 3. step.
        let learning_rate = settings.learning_rate * settings.multiplier(step);
        let stats = optimise(task.objective, learner, &batch, learning_rate, settings, &recorder.within(step + 1));
        let stats = stats.map_err(|halt| {
            learner.discard();
            match halt {
                Halt::Interrupted => Error::Interrupted,
                Halt::Diverged(what) => recorder.diverged(step + 1, what, describe(task.objective, &rows, &batch)),
            }
        })?;
        let done = step + 1;
        (recorder.state.step, recorder.state.epoch) = (done, task.order.epoch(done));
        recorder.gather(&stats);

        // 4. Evaluate, record, and keep what is needed to go on from here.
        if finish_step(task, learner, recorder)? == Verdict::Stop {
            break;
        }
    }
    Ok(())
}

/// The end of a step, once the weights are updated: evaluate, log, compare with the best, write a checkpoint.
///
/// An interruption within the evaluation leaves a checkpoint from which a resumed run begins with this evaluation.
fn finish_step<O: Objective>(
    task: &Offline<'_, O>,
    learner: &Learner<O::Model>,
    recorder: &mut Recorder<'_>,
) -> Result<Verdict> {
    let (settings, done) = (task.settings, recorder.state.step);
    let mut measured = Measured::default();
    if settings.evaluates_after(done) && !task.held_out.is_empty() {
        recorder.await_evaluation(learner.version());
        measured.held_out = Some(evaluate(task, EvalSplit::HeldOut, learner, done, &recorder.within(done))?);
    }
    if task.has_test && recorder.ends(done, settings, measured.held_out.as_ref())? {
        recorder.await_evaluation(learner.version());
        measured.test = Some(evaluate(task, EvalSplit::Test, learner, done, &recorder.within(done))?);
    }
    if !measured.is_empty() {
        recorder.evaluated();
    }
    if settings.logs_after(done) || !measured.is_empty() {
        let epoch = done as f64 / task.order.steps_per_epoch() as f64;
        let seen = Seen { epoch, examples: task.order.rows_seen(done) };
        recorder.log(done, settings, seen, &measured)?;
        diagnosis::watch_loss(recorder, done, settings);
    }
    let save = |path: &Path| (task.save)(&learner.frozen(), path, SaveFor::Use);
    let verdict = recorder.judge(done, settings, &measured, save)?;
    recorder.settle(learner.version())?;
    let planned = settings.saves_after(done) || verdict == Verdict::Stop;
    let interrupted = done < settings.steps && recorder.should_stop();
    if planned || interrupted {
        save_checkpoint(task, learner, recorder, planned)?;
    }
    if interrupted { Err(Error::Interrupted) } else { Ok(verdict) }
}

/// What ends a step before its optimizer step.
#[derive(Debug)]
pub enum Halt {
    /// The progress asked for an end.
    Interrupted,
    /// A loss or a gradient that is not finite.
    Diverged(String),
}

impl From<String> for Halt {
    fn from(what: String) -> Self {
        Self::Diverged(what)
    }
}

/// One optimizer step over `batch`. Its result does not depend on how the passes split it. `progress` receives how many
/// examples are `accumulated`.
///
/// # Errors
/// What was not finite, or that `progress` ended the step; the weights stay as they were.
pub fn optimise<O: Objective>(
    objective: &O,
    learner: &mut Learner<O::Model>,
    batch: &[&O::Example],
    learning_rate: f64,
    settings: &Settings,
    progress: &dyn Progress,
) -> Result<Stats, Halt> {
    let step = learner.optimizer().steps();
    let (mut stats, mut measured, mut loss) = (Stats::default(), Stats::default(), 0.0);
    let at = Moment { seed: settings.seed, step };
    let renewed = objective.renewed(learner.module(), batch, at, &mut measured)?;
    let batch: Vec<&O::Example> = renewed.as_ref().map_or_else(|| batch.to_vec(), |batch| batch.iter().collect());
    let totals = totals(objective, &batch);
    let acquainted = objective.acquainted(learner.module(), &batch, settings.passes);
    let batch: Vec<&O::Example> = acquainted.as_ref().map_or(batch, |batch| batch.iter().collect());
    let lengths: Vec<usize> = batch.iter().map(|example| objective.tokens(example)).collect();
    for (index, pass) in settings.passes.split(&lengths).into_iter().enumerate() {
        progress.advance("accumulated", pass.start, batch.len()).map_err(|_| Halt::Interrupted)?;
        let masks = DropoutStream::new(settings.seed, step, index as u64);
        let at = Pass { totals, dropout: Some(masks) };
        let Some(share) = objective.loss(learner.module(), &batch[pass], at, &mut measured) else { continue };
        let value = f64::from(read(&share)[0]);
        if !value.is_finite() {
            return Err(Halt::Diverged(format!("the loss is {value}")));
        }
        loss += value;
        learner.accumulate(&share);
    }
    let grad_norm = learner.step(learning_rate, settings.max_grad_norm)?;
    stats.mean("loss", loss, 1.0);
    stats.mean("grad_norm", grad_norm, 1.0);
    stats.last("learning_rate", learning_rate);
    stats.merge(&measured);
    Ok(stats)
}

/// Everything measured after `done` steps on the held-out examples (or on a sample of them), under `eval_…`, or on the test
/// examples, under `test_…`.
///
/// # Errors
/// What the objective fails with.
pub fn evaluate<O: Objective>(
    task: &Offline<'_, O>,
    split: EvalSplit,
    learner: &Learner<O::Model>,
    done: usize,
    progress: &dyn Progress,
) -> Result<Metrics> {
    let examples: Vec<&O::Example> = match split {
        EvalSplit::Test => task.test.iter().collect(),
        EvalSplit::HeldOut => {
            let chosen = task.settings.evaluated(done, task.held_out.len());
            chosen.into_iter().map(|row| &task.held_out[row]).collect()
        }
    };
    let model = learner.frozen();
    let mut stats = match examples.is_empty() {
        true => Stats::default(),
        false => task.objective.evaluate(&model, &examples, task.settings.passes, progress)?,
    };
    if let Some(complete) = task.complete {
        stats.merge(&complete(&model, split, (done, task.order.epoch(done)), progress)?);
    }
    Ok(stats.without(NEW_TOKENS).metrics(split.prefix()))
}

fn save_checkpoint<O: Objective>(
    task: &Offline<'_, O>,
    learner: &Learner<O::Model>,
    recorder: &mut Recorder<'_>,
    planned: bool,
) -> Result<()> {
    let model = learner.frozen();
    recorder.checkpoint(task.settings, planned, &[("", learner.optimizer())], |path| {
        (task.save)(&model, path, SaveFor::Resume)
    })
}

fn describe<O: Objective>(objective: &O, rows: &[usize], batch: &[&O::Example]) -> Value {
    let examples = rows.iter().zip(batch);
    examples.map(|(row, example)| json!({ "row": row + 1, "example": objective.describe(example) })).collect()
}

#[cfg(test)]
mod tests;
