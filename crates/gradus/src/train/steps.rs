//! The loop of training. Every method is this loop with another [`TrainingStep`].

use std::path::Path;

use super::EvalSplit;
use super::recorder::{Measured, Recorder, Seen, Verdict};
use super::rescue;
use crate::error::{Error, Result};
use crate::learner::optimizer::Optimizer;
use crate::observer::Event;
use crate::progress::Progress;
use crate::run::Metrics;
use crate::settings::Settings;
use crate::stats::StepReport;

/// One way of training: what a step does, what is measured, and what is saved. The loop decides when.
pub(super) trait TrainingStep {
    /// What the run does not change.
    fn settings(&self) -> &Settings;

    /// Grows with every change of a trained parameter: equal versions mean equal weights.
    fn version(&self) -> u64;

    /// How much of the data the first `done` steps have used.
    fn seen(&self, done: usize) -> Seen;

    /// Whether there are rows of this split to evaluate.
    fn has(&self, split: EvalSplit) -> bool;

    /// Runs the longest pass that a step can need, and drops its gradients.
    fn try_longest(&mut self, recorder: &mut Recorder<'_>);

    /// The step with this number, counted from 0.
    ///
    /// # Errors
    /// [`Error::Diverged`] with the path of the offending batch, [`Error::Interrupted`], or what sampling, scoring or writing
    /// fails with. The weights are then those of the last optimizer step.
    fn step(&mut self, step: usize, recorder: &mut Recorder<'_>) -> Result<StepReport>;

    /// Everything measured on the rows of a split after `done` steps, under [`EvalSplit::prefix`].
    ///
    /// # Errors
    /// What measuring fails with, and [`Error::Interrupted`] when `progress` ends it.
    fn evaluate(&mut self, split: EvalSplit, done: usize, progress: &dyn Progress) -> Result<Metrics>;

    /// Looks at what was logged after `done` steps.
    fn watch(&self, _done: usize, _recorder: &mut Recorder<'_>) {}

    /// Why the run ends before its last step, where the method asks for that.
    fn end(&self, _recorder: &Recorder<'_>) -> Option<String> {
        None
    }

    /// Writes the model (without gradient) into a directory, for use.
    ///
    /// # Errors
    /// When it cannot be written.
    fn save(&self, directory: &Path) -> Result<()>;

    /// Completes the files and the recorder's state that a checkpoint refers to.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn prepare_checkpoint(&mut self, _recorder: &mut Recorder<'_>) -> Result<()> {
        Ok(())
    }

    /// The optimizers, each with the prefix of its parameters in a checkpoint.
    fn optimizers(&self) -> Vec<(&str, &Optimizer)>;

    /// Writes every model that a resumed run needs into a checkpoint's directory.
    ///
    /// # Errors
    /// When one cannot be written.
    fn save_checkpoint(&self, directory: &Path) -> Result<()>;
}

/// Trains until the last step, an early stop, or an interruption (after a checkpoint).
///
/// # Errors
/// Those of [`TrainingStep`], or what writing fails with. A run that fails between two steps leaves a checkpoint.
pub(super) fn train<T: TrainingStep>(training: &mut T, recorder: &mut Recorder<'_>) -> Result<()> {
    let steps = |training: &mut T, recorder: &mut Recorder<'_>| steps(training, recorder);
    rescue::checkpoint_on_failure(training, recorder, steps, |training, recorder| {
        let settled = recorder.is_settled(training.version());
        if settled {
            checkpoint(training, recorder, false)?;
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
        let mut before = Measured::default();
        if eval_steps >= 0 && training.has(EvalSplit::HeldOut) {
            before.held_out = Some(training.evaluate(EvalSplit::HeldOut, 0, &recorder.within(0))?);
        }
        if training.has(EvalSplit::Test) {
            before.test = Some(training.evaluate(EvalSplit::Test, 0, &recorder.within(0))?);
        }
        recorder.baseline(&before, training.settings())?;
    }
    recorder.tell(&Event::Phase { name: "training", total: Some(steps), done: recorder.state.step });
    for step in recorder.state.step..steps {
        recorder.begin();
        let report = training.step(step, recorder)?;
        let done = step + 1;
        (recorder.state.step, recorder.state.epoch) = (done, training.seen(done).epoch as usize);
        recorder.gather(&report);
        if finish_step(training, recorder)? == Verdict::Stop {
            break;
        }
    }
    Ok(())
}

/// The end of a step, once the weights are updated: evaluate, log, compare with the best, write a checkpoint.
///
/// An interruption within the evaluation leaves a checkpoint from which a resumed run begins with this evaluation.
fn finish_step(training: &mut dyn TrainingStep, recorder: &mut Recorder<'_>) -> Result<Verdict> {
    let (done, version) = (recorder.state.step, training.version());
    let mut measured = Measured::default();
    if training.settings().evaluates_after(done) && training.has(EvalSplit::HeldOut) {
        measured.held_out = Some(evaluate(training, EvalSplit::HeldOut, recorder)?);
    }
    let end = training.end(recorder);
    let is_last = end.is_some() || recorder.ends(done, training.settings(), measured.held_out.as_ref())?;
    if is_last && training.has(EvalSplit::Test) {
        measured.test = Some(evaluate(training, EvalSplit::Test, recorder)?);
    }
    if !measured.is_empty() {
        recorder.evaluated();
    }
    if training.settings().logs_after(done) || !measured.is_empty() {
        recorder.log(done, training.settings(), training.seen(done), &measured)?;
        training.watch(done, recorder);
    }
    let mut verdict = recorder.judge(done, training.settings(), &measured, |path| training.save(path))?;
    if let Some(message) = end {
        recorder.tell(&Event::Message(&message));
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

/// Evaluates after the newest step. Until that is recorded, a checkpoint says that it is due.
fn evaluate(training: &mut dyn TrainingStep, split: EvalSplit, recorder: &mut Recorder<'_>) -> Result<Metrics> {
    let done = recorder.state.step;
    recorder.await_evaluation(training.version());
    let found = training.evaluate(split, done, &recorder.within(done));
    recorder.unless_gone(found)
}

fn checkpoint(training: &mut dyn TrainingStep, recorder: &mut Recorder<'_>, planned: bool) -> Result<()> {
    training.prepare_checkpoint(recorder)?;
    let optimizers = training.optimizers();
    recorder.checkpoint(training.settings(), planned, &optimizers, |path| training.save_checkpoint(path))
}
