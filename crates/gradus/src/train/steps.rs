//! The training loop. Methods differ only in their [`TrainingStep`].

use std::path::Path;

use super::EvalSplit;
use super::recorder::{DataProgress, EvalMetrics, Recorder, Verdict};
use super::rescue;
use crate::error::{Error, Result};
use crate::learner::optimizer::Optimizer;
use crate::observer::Event;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::stats::{Stats, StepReport};

/// One kind of training: what a step does, and what is evaluated and saved. The loop decides when.
pub(super) trait TrainingStep {
    /// Constants of the run.
    fn settings(&self) -> &Settings;

    /// Number that grows with every change of a trained parameter: equal versions mean equal weights.
    fn version(&self) -> u64;

    /// Amount of data that the first `done` steps have used.
    fn data_progress(&self, done: usize) -> DataProgress;

    /// Returns true if there are rows of this split to evaluate.
    fn has(&self, split: EvalSplit) -> bool;

    /// Runs the longest pass that a step can need and discards its gradients.
    fn try_longest(&mut self, recorder: &mut Recorder<'_>);

    /// Runs the step with this number, counted from 0.
    ///
    /// # Errors
    /// [`Error::Diverged`] with the path of the offending batch, [`Error::Interrupted`], or an error of sampling, scoring or writing. The
    /// weights are then those of the last optimizer step.
    fn step(&mut self, step: usize, recorder: &mut Recorder<'_>) -> Result<StepReport>;

    /// Evaluates the rows of a split after `done` steps.
    ///
    /// # Errors
    /// An error of measuring, or [`Error::Interrupted`] from `progress`.
    fn evaluate(&mut self, split: EvalSplit, done: usize, progress: &dyn Progress) -> Result<Stats>;

    /// Checks the logged metrics after `done` steps.
    fn watch(&self, _done: usize, _recorder: &mut Recorder<'_>) {}

    /// Reason for ending the run before its last step, if the method requests that.
    fn end(&self, _recorder: &Recorder<'_>) -> Option<String> {
        None
    }

    /// Writes the model (without gradients) into a directory, for use.
    ///
    /// # Errors
    /// If it cannot be written.
    fn save(&self, directory: &Path) -> Result<()>;

    /// Completes the files and the recorder's state that a checkpoint refers to.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn prepare_checkpoint(&mut self, _recorder: &mut Recorder<'_>) -> Result<()> {
        Ok(())
    }

    /// Optimizers, each with the prefix of its parameters in a checkpoint.
    fn optimizers(&self) -> Vec<(&str, &Optimizer)>;

    /// Writes every model that a resumed run needs into a checkpoint's directory.
    ///
    /// # Errors
    /// If one cannot be written.
    fn save_checkpoint(&self, directory: &Path) -> Result<()>;
}

/// Trains until the last step, an early stop, or an interruption (after a checkpoint).
///
/// # Errors
/// Errors of [`TrainingStep`] or of writing. A run that fails between two steps leaves a checkpoint.
pub(super) fn train<T: TrainingStep>(training: &mut T, recorder: &mut Recorder<'_>) -> Result<()> {
    let steps = |training: &mut T, recorder: &mut Recorder<'_>| {
        let ended = steps(training, recorder);
        if matches!(ended, Ok(()) | Err(Error::Interrupted)) {
            // These rely on the last checkpoint.
            recorder.complete_checkpoint()?;
        }
        ended
    };
    rescue::checkpoint_on_failure(training, recorder, steps, |training, recorder| {
        let settled = recorder.is_settled(training.version());
        if settled {
            checkpoint(training, recorder, false)?;
            recorder.complete_checkpoint()?;
        }
        Ok(settled)
    })
}

fn steps(training: &mut dyn TrainingStep, recorder: &mut Recorder<'_>) -> Result<()> {
    let Settings { steps, eval_steps, try_longest, .. } = *training.settings();
    recorder.settle(training.version())?;
    recorder.tidy(training.settings())?;
    if recorder.state.evaluation_due {
        finish_step(training, recorder)?;
    }
    if recorder.has_stopped(training.settings()) || training.end(recorder).is_some() {
        return Ok(());
    }
    if try_longest && recorder.state.step < steps {
        training.try_longest(recorder);
    }
    if recorder.state.step == 0 {
        let mut before = EvalMetrics::default();
        if eval_steps >= 0 && training.has(EvalSplit::HeldOut) {
            before.add(EvalSplit::HeldOut, &training.evaluate(EvalSplit::HeldOut, 0, &recorder.within(0, steps))?);
        }
        if training.has(EvalSplit::Test) {
            before.add(EvalSplit::Test, &training.evaluate(EvalSplit::Test, 0, &recorder.within(0, steps))?);
        }
        recorder.baseline(&before, training.settings())?;
    }
    recorder.emit(&Event::Phase { name: "training", total: Some(steps), done: recorder.state.step });
    for step in recorder.state.step..steps {
        recorder.poll_checkpoint()?;
        recorder.begin();
        let report = training.step(step, recorder)?;
        let done = step + 1;
        (recorder.state.step, recorder.state.epoch) = (done, training.data_progress(done).epoch as usize);
        recorder.gather(&report);
        if finish_step(training, recorder)? == Verdict::Stop {
            break;
        }
    }
    Ok(())
}

/// Ends a step after the weights were updated: evaluates, logs, compares with the best and writes a checkpoint.
///
/// An interruption during the evaluation leaves a checkpoint; a resumed run then begins with this evaluation.
fn finish_step(training: &mut dyn TrainingStep, recorder: &mut Recorder<'_>) -> Result<Verdict> {
    let (done, version) = (recorder.state.step, training.version());
    let mut measured = EvalMetrics::default();
    if training.settings().evaluates_after(done) && training.has(EvalSplit::HeldOut) {
        measured.add(EvalSplit::HeldOut, &evaluate(training, EvalSplit::HeldOut, recorder)?);
    }
    let end = training.end(recorder);
    let is_last = end.is_some() || recorder.ends(done, training.settings(), &measured)?;
    if is_last && training.has(EvalSplit::Test) {
        measured.add(EvalSplit::Test, &evaluate(training, EvalSplit::Test, recorder)?);
    }
    if !measured.is_empty() {
        recorder.evaluated();
    }
    if training.settings().logs_after(done) || !measured.is_empty() {
        recorder.log(done, training.settings(), training.data_progress(done), &measured)?;
        training.watch(done, recorder);
    }
    let mut verdict = recorder.judge(done, training.settings(), &measured, |path| training.save(path))?;
    if let Some(message) = end {
        recorder.emit(&Event::Message(&message));
        verdict = Verdict::Stop;
    }
    recorder.settle(version)?;
    let planned = training.settings().saves_after(done) || verdict == Verdict::Stop;
    let interrupted = done < training.settings().steps && recorder.should_stop();
    if planned || interrupted {
        checkpoint(training, recorder, planned)?;
    }
    if interrupted { Err(Error::Interrupted) } else { Ok(verdict) }
}

/// Evaluates after the newest step. Until the result is recorded, checkpoints mark the evaluation as due.
fn evaluate(training: &mut dyn TrainingStep, split: EvalSplit, recorder: &mut Recorder<'_>) -> Result<Stats> {
    let (done, steps) = (recorder.state.step, training.settings().steps);
    recorder.await_evaluation(training.version());
    let found = training.evaluate(split, done, &recorder.within(done, steps));
    recorder.unless_deleted(found)
}

fn checkpoint(training: &mut dyn TrainingStep, recorder: &mut Recorder<'_>, planned: bool) -> Result<()> {
    training.prepare_checkpoint(recorder)?;
    let optimizers = training.optimizers();
    recorder.checkpoint(training.settings(), planned, &optimizers, |path| training.save_checkpoint(path))
}
