//! Records a run while it trains: metrics, the best model, checkpoints, bad batches.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;
use serde_json::{Map, Value, json};

use super::{EvalSplit, diagnosis};
use crate::config::{Plan, resume_command};
use crate::error::{Error, Result};
use crate::files::atomic;
use crate::learner::optimizer::{Optimizer, OptimizerConfig};
use crate::observer::{Event, Observer};
use crate::optimizer_state;
use crate::progress::{Progress, RunSteps};
use crate::ranks::Ranks;
use crate::run::checkpoint::CheckpointParts;
use crate::run::{Checkpoint, Claim, DataFingerprint, Metrics, MetricsLog, MetricsRow, RunDir, RunState, TrainerState};
use crate::settings::Settings;
use crate::stats::{Stats, StepReport};
use crate::trackers::Trackers;

/// Decision on the training after an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Continue.
    Continue,
    /// The best metric has not improved for the configured number of evaluations.
    Stop,
}

/// Metrics of the evaluations of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvalMetrics {
    /// Metrics of the held-out rows, if they were evaluated.
    pub held_out: Option<Metrics>,
    /// Metrics of the test rows, if they were evaluated.
    pub test: Option<Metrics>,
    /// Metrics of the held-out rows that have no value this time, such as the reward if no completion has a score.
    pub undefined: Vec<String>,
}

impl EvalMetrics {
    /// Adds the measurements of a split, with its prefix.
    pub fn add(&mut self, split: EvalSplit, measured: &Stats) {
        let metrics = Some(measured.metrics(split.prefix()));
        match split {
            EvalSplit::HeldOut => (self.held_out, self.undefined) = (metrics, measured.undefined(split.prefix())),
            EvalSplit::Test => self.test = metrics,
        }
    }

    /// Returns true if there are no metrics.
    pub fn is_empty(&self) -> bool {
        self.held_out.is_none() && self.test.is_none()
    }

    /// All metrics.
    fn together(&self) -> Metrics {
        let mut all = Metrics::new();
        self.held_out.iter().chain(&self.test).for_each(|metrics| all.extend("", metrics));
        all
    }
}

/// Amount of data that training has used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataProgress {
    /// Passes over the data, as a fraction.
    pub epoch: f64,
    /// Rows, pairs or prompts; repeated ones count each time.
    pub examples: usize,
}

/// A thread that completes the checkpoint of `step`. Dropping this waits for it, so that nothing writes to a run directory that nobody owns.
struct WritingCheckpoint {
    step: usize,
    thread: Option<JoinHandle<Result<PathBuf>>>,
}

impl WritingCheckpoint {
    fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn join(&mut self) -> Result<PathBuf> {
        let thread = self.thread.take().expect("joined once");
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for WritingCheckpoint {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The run fails for another reason, which is the one to report.
            drop(thread.join());
        }
    }
}

/// Appends to the run directory and notifies the observer. A checkpoint restores its state.
pub struct Recorder<'a> {
    run: RunDir,
    log: MetricsLog,
    observer: &'a mut dyn Observer,
    /// Cursors and controllers; the loops read `step` and set their own fields.
    pub state: RunState,
    history: TrainerState,
    pending: Stats,
    /// Tokens that the model has processed since the last logged row.
    pending_tokens: u64,
    /// Timings are metrics only: no computation depends on them.
    since_begin: Instant,
    busy_s: f64,
    started: Instant,
    elapsed_before: f64,
    saved: Option<usize>,
    /// The checkpoint that another thread completes.
    writing: Option<WritingCheckpoint>,
    /// Version of the learners at the last complete step, when weights and files were consistent; `None` within a step.
    settled: Option<u64>,
    /// Opened with the first row of this process.
    trackers: Option<Trackers>,
    /// Metrics that were reported as not finite or without a value.
    reported: BTreeSet<String>,
    /// Text of `config.yml`.
    description: String,
    /// Name of the method.
    method: String,
    /// Claim of the new directory, if the run directory was deleted.
    rescue: Option<Claim>,
    ranks: Ranks,
    /// True if the observer was notified that another rank stops the run.
    has_reported_stop: bool,
}

impl<'a> Recorder<'a> {
    /// Starts the records of a new run.
    ///
    /// # Errors
    /// If `metrics.jsonl` cannot be written.
    pub fn start(run: RunDir, observer: &'a mut dyn Observer) -> Result<Self> {
        let log = MetricsLog::open(&run.metrics())?;
        Ok(Self::new(run, log, observer, RunState::default(), TrainerState::default()))
    }

    /// Continues from a checkpoint. Rows of later steps are removed from `metrics.jsonl`.
    ///
    /// # Errors
    /// If `metrics.jsonl` cannot be read or written.
    pub fn resume(run: RunDir, observer: &'a mut dyn Observer, checkpoint: &Checkpoint) -> Result<Self> {
        let log = checkpoint.resume_metrics(&run)?;
        checkpoint.rewind(&run)?;
        Self::at(run, log, observer, checkpoint)
    }

    /// Sets the fingerprints of rows and models, which a resumption compares.
    #[must_use]
    pub fn reading(mut self, data: Option<DataFingerprint>, models: BTreeMap<String, String>) -> Self {
        self.state.data = data;
        self.state.models = models;
        self
    }

    /// Sets the remarks on the metrics, for the first row of `metrics.jsonl` and for the results.
    #[must_use]
    pub fn with_remarks(mut self, remarks: Vec<String>) -> Self {
        self.log.set_remarks(remarks);
        self
    }

    /// Remarks on the metrics.
    pub fn remarks(&self) -> &[String] {
        self.log.remarks()
    }

    /// Sets the text of `config.yml` and the method.
    #[must_use]
    pub fn described_by(self, plan: &Plan) -> Self {
        Self { description: plan.to_yaml(), method: plan.method().name().to_owned(), ..self }
    }

    /// Returns the command that resumes the run, also after a rescue.
    pub fn resume_command(&self) -> String {
        resume_command(&self.method, self.run.path())
    }

    /// Continues from the first rank's checkpoint on another rank, whose records are never read.
    ///
    /// # Errors
    /// If `metrics.jsonl` cannot be written.
    pub fn on_other_rank(run: RunDir, observer: &'a mut dyn Observer, checkpoint: &Checkpoint) -> Result<Self> {
        let log = MetricsLog::open(&run.metrics())?;
        Self::at(run, log, observer, checkpoint)
    }

    /// Sets the ranks of the run: the first one records, and all stop together.
    #[must_use]
    pub fn on(self, ranks: Ranks) -> Self {
        Self { ranks, ..self }
    }

    fn new(
        run: RunDir,
        log: MetricsLog,
        observer: &'a mut dyn Observer,
        state: RunState,
        history: TrainerState,
    ) -> Self {
        let elapsed_before = state.elapsed_s;
        let (now, pending) = (Instant::now(), Stats::default());
        Self {
            run,
            log,
            observer,
            state,
            history,
            pending,
            pending_tokens: 0,
            since_begin: now,
            busy_s: 0.0,
            started: now,
            elapsed_before,
            saved: None,
            writing: None,
            settled: None,
            trackers: None,
            reported: BTreeSet::new(),
            description: String::new(),
            method: String::new(),
            rescue: None,
            ranks: Ranks::ALONE,
            has_reported_stop: false,
        }
    }

    /// Returns a recorder in the state of a checkpoint.
    fn at(run: RunDir, log: MetricsLog, observer: &'a mut dyn Observer, checkpoint: &Checkpoint) -> Result<Self> {
        let (state, history) = (checkpoint.run_state.clone(), checkpoint.trainer_state.clone());
        let saved = Some(state.step);
        let mut recorder = Self { saved, ..Self::new(run, log, observer, state, history) };
        recorder.restore_pending()?;
        Ok(recorder)
    }

    fn restore_pending(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.state.pending);
        let stats = pending.get("stats").and_then(Value::as_object);
        let broken = || Error::input("`pending` in the checkpoint's `run_state.json` was not written by this version");
        self.pending = stats.map_or(Some(Stats::default()), Stats::from_json).ok_or_else(broken)?;
        // Earlier versions counted the tokens among the measurements.
        let (counted, before) = (pending.get("tokens").and_then(Value::as_u64), self.pending.take("new_tokens"));
        self.pending_tokens = counted.unwrap_or(before.unwrap_or(0.0) as u64);
        self.busy_s = pending.get("busy_s").and_then(Value::as_f64).unwrap_or(0.0);
        Ok(())
    }

    /// The run directory.
    pub fn run(&self) -> &RunDir {
        &self.run
    }

    /// Seconds of training so far, including before resumptions.
    pub fn elapsed_s(&self) -> f64 {
        self.elapsed_before + self.started.elapsed().as_secs_f64()
    }

    /// Sends the observer the warning that the run diverges, once per run.
    pub(super) fn warn_of_divergence(&mut self, message: Option<String>) {
        let Some(message) = message.filter(|_| self.state.divergence.is_none()) else { return };
        self.emit(&Event::Warning(&message));
        self.state.divergence = Some(message);
    }

    /// Sends the observer an event.
    pub fn emit(&mut self, event: &Event<'_>) {
        self.observer.event(event);
    }

    /// Returns true if the observer of this or another rank requests a stop. All ranks get the same answer.
    pub fn should_stop(&mut self) -> bool {
        let is_asked = self.observer.should_stop();
        let stops = self.ranks.stops(is_asked);
        // The observer of this rank does not know why training stops.
        if stops && !is_asked && !std::mem::replace(&mut self.has_reported_stop, true) {
            self.emit(&Event::Message("stopping: another rank was asked to stop"));
        }
        stops
    }

    /// Returns a progress for step `step` (counted from 1) of `total`. It notifies the observer and ends the work when the observer requests
    /// a stop.
    pub fn within(&mut self, step: usize, total: usize) -> Within<'_, 'a> {
        let run_steps = RunSteps { done: self.state.step, total };
        Within { recorder: RefCell::new(self), step, run_steps }
    }

    /// Returns every logged value of `key` after step 0, including before resumptions.
    pub fn logged(&self, key: &str) -> impl Iterator<Item = f64> {
        let rows = self.history.log_history.iter();
        rows.filter(|row| row.get("step").and_then(Value::as_u64) > Some(0))
            .filter_map(move |row| row.get(key)?.as_f64())
    }

    /// Returns true if a step has measured `key`, including before resumptions.
    pub fn has_measured(&self, key: &str) -> bool {
        self.pending.value(key).is_some() || self.logged(key).next().is_some()
    }

    /// Records the evaluation before the first step: for `results.json`, as the row of step 0, and as the value that later evaluations must
    /// beat. Does nothing without metrics.
    ///
    /// # Errors
    /// If the run does not measure the best metric, or `metrics.jsonl` cannot be written.
    pub fn baseline(&mut self, measured: &EvalMetrics, settings: &Settings) -> Result<()> {
        if measured.is_empty() {
            return Ok(());
        }
        if let Some(held_out) = &measured.held_out {
            let value = self.deciding(&settings.best_metric, held_out, &measured.undefined)?;
            self.warn_of_no_value(0, &settings.best_metric, value);
            self.state.best = value.filter(|value| value.is_finite()).map(|value| (0, value));
        }
        let metrics = &measured.together();
        self.state.method.insert("before".into(), Value::Object(metrics.to_json()));
        self.observer.event(&Event::Evaluated { step: 0, metrics, best: false });
        self.append(0, settings, metrics)
    }

    /// Returns true if the run ends with this step, because it is the last one or the evaluation stops the run early.
    ///
    /// # Errors
    /// If the run does not measure the best metric.
    pub fn ends(&self, done: usize, settings: &Settings, measured: &EvalMetrics) -> Result<bool> {
        let patience = settings.early_stopping_patience;
        // With a deleted directory, the evaluation is not used: the step will end with an error.
        let Some(held_out) = measured.held_out.as_ref().filter(|_| patience > 0 && !self.is_deleted()) else {
            return Ok(done == settings.steps);
        };
        let (_, is_better) = self.improvement(settings, held_out, &measured.undefined)?;
        Ok(done == settings.steps || (!is_better && self.state.evaluations_since_best + 1 >= patience))
    }

    /// Value of the deciding metric in an evaluation, if it has one, and whether it is better than the best so far.
    fn improvement(
        &self,
        settings: &Settings,
        held_out: &Metrics,
        undefined: &[String],
    ) -> Result<(Option<f64>, bool)> {
        let name = &settings.best_metric;
        let value = self.deciding(name, held_out, undefined)?;
        let is_best = |value: f64| self.state.best.is_none_or(|(_, best)| settings.is_better(value, best));
        // JSON has no numbers that are not finite.
        Ok((value, value.filter(|value| value.is_finite()).is_some_and(is_best)))
    }

    /// Value of the metric `name`, which selects the best model, in an evaluation. `None` if the run measures it, but this evaluation has no
    /// value of it: it is one of the `undefined`, or an earlier evaluation had it.
    ///
    /// # Errors
    /// [`Error::Input`] if the run does not measure it.
    fn deciding(&self, name: &str, held_out: &Metrics, undefined: &[String]) -> Result<Option<f64>> {
        if let Some(value) = held_out.get(name) {
            return Ok(Some(value));
        }
        let was_measured = self.history.log_history.iter().any(|row| row.contains_key(name));
        if was_measured || undefined.iter().any(|known| known == name) {
            return Ok(None);
        }
        let known: Vec<String> = held_out.iter().map(|(key, _)| format!("`{key}`")).collect();
        Err(Error::input(format!("`train.best_metric` is `{name}`, which this run does not measure"))
            .with_hint(format!("it measures {}", known.join(", "))))
    }

    /// Warns once that an evaluation has no `value` of the deciding metric `name`.
    fn warn_of_no_value(&mut self, step: usize, name: &str, value: Option<f64>) {
        if value.is_none() && self.reported.insert(name.to_owned()) {
            let message = format!(
                "step {step}: `{name}` has no value in this evaluation. It selects the best model, so an evaluation without it is \
                 never the best"
            );
            self.observer.event(&Event::Warning(&message));
        }
    }

    /// Begins a step. Its time counts for the throughput; evaluations and checkpoints do not.
    pub fn begin(&mut self) {
        self.since_begin = Instant::now();
    }

    /// Completes the removal of old checkpoints, which a kill may have interrupted after the checkpoint of this resumption.
    ///
    /// # Errors
    /// If an old checkpoint cannot be removed.
    pub fn tidy(&self, settings: &Settings) -> Result<()> {
        self.saved
            .filter(|_| self.ranks.is_first())
            .map_or(Ok(()), |step| Checkpoint::tidy(&self.run, step, settings.keep_checkpoints))
    }

    /// Marks the weights, the state and all files as complete and consistent. `version` is that of all learners together.
    ///
    /// # Errors
    /// [`Error::Input`] if the run directory has been deleted.
    pub fn settle(&mut self, version: u64) -> Result<()> {
        self.settled = Some(version);
        if self.is_deleted() { Err(self.deleted()) } else { Ok(()) }
    }

    /// Marks the weights as those after `self.state.step` steps, with the evaluation of the held-out rows still due. Checkpoints written in
    /// this state record that.
    pub fn await_evaluation(&mut self, version: u64) {
        (self.settled, self.state.evaluation_due) = (Some(version), true);
    }

    /// Marks the evaluation as done. The records are inconsistent until the next [`settle`](Self::settle).
    pub fn evaluated(&mut self) {
        (self.settled, self.state.evaluation_due) = (None, false);
        // A run that was interrupted in this evaluation has a checkpoint of this step without its result. The planned one replaces it.
        self.saved = self.saved.filter(|&saved| saved != self.state.step);
    }

    /// Returns true if the run directory has been deleted or replaced.
    pub fn is_deleted(&self) -> bool {
        self.rescue.is_none() && !self.log.exists()
    }

    /// Returns true if the run is recorded next to a deleted directory.
    pub fn is_rescued(&self) -> bool {
        self.rescue.is_some()
    }

    /// Passes on the result of writing, but ignores errors if the run directory is gone: [`settle`](Self::settle) will report that.
    ///
    /// # Errors
    /// The error in `result`, if the directory still exists.
    pub fn unless_deleted<T: Default>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(_) if self.is_deleted() => Ok(T::default()),
            other => other,
        }
    }

    fn deleted(&self) -> Error {
        Error::input(format!("the run directory `{}` was deleted during the run", self.run.path().display()))
    }

    /// Continues next to a deleted directory. The configuration and all rows of `metrics.jsonl` are written there first.
    ///
    /// # Errors
    /// If nothing can be written there either.
    pub fn rescue(&mut self) -> Result<()> {
        let (run, mut claim) = self.run.rescued()?;
        claim.begin()?;
        atomic::write_bytes(&run.config(), self.description.as_bytes())?;
        self.log.move_to(&run.metrics())?;
        // Earlier checkpoints and the best model are lost.
        (self.saved, self.state.best, self.trackers) = (None, None, None);
        (self.run, self.rescue) = (run, Some(claim));
        Ok(())
    }

    /// Closes the rescued run and returns an error with its location. `checkpoint` is the step of the checkpoint that was saved there.
    pub fn rescued(&mut self, gone: &RunDir, checkpoint: Option<usize>) -> Error {
        let (gone, kept) = (gone.path().display(), self.run.path().display());
        let with = checkpoint.map_or(String::new(), |step| format!(" with a checkpoint of step {step}"));
        let error = Error::input(format!(
            "the run directory `{gone}` was deleted during the run; the recovered files are in `{kept}`{with}"
        ));
        let error = match checkpoint {
            Some(_) => error.with_hint(format!("resume with `{}`", self.resume_command())),
            None => error,
        };
        if let Some(claim) = self.rescue.take()
            && let Err(second) = claim.end(Some(&error))
        {
            tracing::warn!("{second}");
        }
        error
    }

    /// Returns true if weights of `version` are those of the last complete step, so that a checkpoint can be written.
    pub fn is_settled(&self, version: u64) -> bool {
        self.settled == Some(version)
    }

    /// Returns true if there is a checkpoint of the last complete step.
    pub fn is_saved(&self) -> bool {
        self.saved == Some(self.state.step)
    }

    /// Returns true if an evaluation before a resumption has already ended the run.
    pub fn has_stopped(&self, settings: &Settings) -> bool {
        settings.early_stopping_patience > 0 && self.state.evaluations_since_best >= settings.early_stopping_patience
    }

    /// Collects the metrics of a step at its end.
    pub fn gather(&mut self, report: &StepReport) {
        self.settled = None;
        self.busy_s += self.since_begin.elapsed().as_secs_f64();
        self.state.tokens += report.tokens as u64;
        self.pending_tokens += report.tokens as u64;
        self.pending.merge(&report.metrics);
    }

    /// Logs a row with the metrics collected since the last row, and those that evaluations `measured`.
    ///
    /// # Errors
    /// If `metrics.jsonl` cannot be written.
    pub fn log(
        &mut self,
        done: usize,
        settings: &Settings,
        data_progress: DataProgress,
        measured: &EvalMetrics,
    ) -> Result<()> {
        let DataProgress { epoch, examples } = data_progress;
        let mut metrics = Metrics::new();
        metrics.extend("", &self.pending.metrics(""));
        metrics.set("epoch", epoch);
        metrics.set("num_tokens", self.state.tokens as f64);
        metrics.set("num_examples", examples as f64);
        metrics.set("tokens_per_s", self.pending_tokens as f64 / self.busy_s.max(1e-9));
        metrics.extend("", &measured.together());
        self.append(done, settings, &metrics)?;
        if self.is_deleted() {
            return Ok(());
        }
        self.history.epoch = epoch;
        self.observer.event(&Event::Step { step: done, total: settings.steps, metrics: &metrics });
        self.pending = Stats::default();
        (self.pending_tokens, self.busy_s) = (0, 0.0);
        Ok(())
    }

    /// Appends a row to `metrics.jsonl`, to the experiment trackers and to the history of checkpoints.
    fn append(&mut self, step: usize, settings: &Settings, metrics: &Metrics) -> Result<()> {
        self.warn_of_missing_numbers(step, metrics);
        self.log.append(step, metrics)?;
        if !self.is_deleted() {
            self.track(step, settings, metrics)?;
            self.history.extend_history([&MetricsRow { step, values: metrics.clone() }]);
        }
        Ok(())
    }

    /// Warns about metrics that JSON cannot represent, once for each metric.
    fn warn_of_missing_numbers(&mut self, step: usize, metrics: &Metrics) {
        for (key, value) in metrics.iter().filter(|(_, value)| !value.is_finite()) {
            if self.reported.insert(key.to_owned()) {
                let message = format!(
                    "`{key}` is {value} at step {step}, which JSON cannot represent: `metrics.jsonl` contains `null`"
                );
                self.observer.event(&Event::Warning(&message));
            }
        }
    }

    /// Passes the last row to the experiment trackers.
    fn track(&mut self, step: usize, settings: &Settings, metrics: &Metrics) -> Result<()> {
        if let Some(trackers) = &mut self.trackers {
            return trackers.append(&MetricsRow { step, values: metrics.clone() });
        }
        self.trackers = Some(Trackers::open(&self.run, settings.trackers)?);
        Ok(())
    }

    /// Completes the tracker files of a finished run.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn finish_tracking(&mut self, settings: &Settings) -> Result<()> {
        let trackers = self.trackers.take().map_or_else(|| Trackers::open(&self.run, settings.trackers), Ok)?;
        trackers.finish()
    }

    /// Compares an evaluation with the best so far, including the start. If it is better, `save` writes the model to `best/`. Test rows do
    /// not count.
    ///
    /// # Errors
    /// If the run does not measure the best metric, or an error of `save`.
    pub fn judge(
        &mut self,
        done: usize,
        settings: &Settings,
        measured: &EvalMetrics,
        save: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Verdict> {
        if self.is_deleted() {
            // The deleted directory must not be written to; the step will end with an error.
            return Ok(Verdict::Continue);
        }
        let Some(held_out) = &measured.held_out else {
            if let Some(metrics) = &measured.test {
                self.observer.event(&Event::Evaluated { step: done, metrics, best: false });
            }
            return Ok(Verdict::Continue);
        };
        let name = &settings.best_metric;
        let (value, better) = self.improvement(settings, held_out, &measured.undefined)?;
        self.warn_of_no_value(done, name, value);
        self.observer.event(&Event::Evaluated { step: done, metrics: &measured.together(), best: better });
        let before = self.state.method.get("before");
        let start = |name: &str| before.and_then(|before| before.get(name)).and_then(Value::as_f64);
        // The loss can diverge while an accuracy still rises.
        let named = [(name.as_str(), value), ("eval_loss", held_out.get("eval_loss"))];
        let warning = named
            .into_iter()
            .find_map(|(name, now)| diagnosis::of_evaluation(done, settings, name, start(name)?, now?));
        self.warn_of_divergence(warning);
        if better {
            if self.ranks.is_first() {
                atomic::write_dir(&self.run.best(), save)?;
            }
            self.state.best = value.map(|value| (done, value));
            self.state.evaluations_since_best = 0;
        } else {
            self.state.evaluations_since_best += 1;
        }
        let patience = settings.early_stopping_patience;
        if patience > 0 && self.state.evaluations_since_best >= patience {
            let message = format!("stopped early: `{name}` has not improved for {patience} evaluations");
            self.observer.event(&Event::Message(&message));
            return Ok(Verdict::Stop);
        }
        Ok(Verdict::Continue)
    }

    /// Begins a checkpoint after `self.state.step` steps, unless it exists, after completing the previous one. All files are written here;
    /// another thread adds checksums, flushes them to disk and gives the checkpoint its name. `planned` is true if an undisturbed run writes
    /// it too.
    ///
    /// # Errors
    /// If it or the previous one cannot be written; earlier checkpoints stay.
    pub fn checkpoint(
        &mut self,
        settings: &Settings,
        planned: bool,
        optimizers: &[(&str, &Optimizer)],
        save: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        self.complete_checkpoint()?;
        let step = self.state.step;
        if self.saved == Some(step) {
            return Ok(());
        }
        self.state.elapsed_s = self.elapsed_s();
        self.state.optimizer_steps = optimizers.first().map_or(0, |(_, optimizer)| optimizer.steps() as usize);
        self.history.global_step = step;
        self.history.max_steps = settings.steps;
        self.history.logging_steps = settings.logging_steps;
        self.history.save_steps = settings.save_steps;
        self.history.eval_steps = settings.eval_steps.max(0) as usize;
        self.history.num_input_tokens_seen = self.state.tokens;
        self.history.best_global_step = self.state.best.map(|(step, _)| step);
        self.history.best_metric = self.state.best.map(|(_, value)| value);
        // Step 0 is the start, of which no copy exists.
        let written = self.state.best.filter(|(step, _)| *step > 0);
        self.history.best_model_checkpoint = written.map(|_| self.run.best().display().to_string());
        self.state.unplanned = !planned;
        self.state.pending = match self.pending.is_empty() {
            true => Map::new(),
            false => Map::from_iter([
                ("busy_s".to_owned(), json!(self.busy_s)),
                ("tokens".to_owned(), json!(self.pending_tokens)),
                ("stats".to_owned(), Value::Object(self.pending.to_json())),
            ]),
        };
        // If moments are sharded, all ranks contribute theirs.
        let moments = optimizer_state::moments_on_host(optimizers);
        if !self.ranks.is_first() {
            self.saved = Some(step);
            return Ok(());
        }
        let tensors = optimizer_state::tensors(optimizers, &moments);
        let parts = CheckpointParts {
            run_state: &self.state,
            trainer_state: &self.history,
            seed: settings.seed.0,
            optimizer: &tensors,
        };
        let filled = Checkpoint::fill(&self.run, &parts, settings.keep_checkpoints, save)?;
        self.saved = Some(step);
        let thread = std::thread::spawn(move || filled.finish());
        self.writing = Some(WritingCheckpoint { step, thread: Some(thread) });
        Ok(())
    }

    /// Completes the last checkpoint if its thread is done; does not wait.
    ///
    /// # Errors
    /// If it could not be written; earlier checkpoints stay.
    pub fn poll_checkpoint(&mut self) -> Result<()> {
        match &self.writing {
            Some(writing) if writing.is_done() => self.complete_checkpoint(),
            _ => Ok(()),
        }
    }

    /// Waits for the last checkpoint.
    ///
    /// # Errors
    /// If it could not be written; earlier checkpoints stay.
    pub fn complete_checkpoint(&mut self) -> Result<()> {
        let Some(mut writing) = self.writing.take() else { return Ok(()) };
        let step = writing.step;
        match writing.join() {
            Ok(path) => self.observer.event(&Event::Checkpoint { step, path: &path }),
            Err(error) => {
                self.saved = None;
                // A deleted directory ends the run with its own error.
                self.unless_deleted::<()>(Err(error))?;
            }
        }
        Ok(())
    }

    /// Writes the batch of a step that diverged and returns the error for it. `step` counts from 1.
    pub fn diverged(&self, step: usize, what: String, batch: Value) -> Error {
        let path = self.run.bad_batch(step);
        let content = json!({ "step": step, "what": what, "batch": batch });
        let written = write_json(&path, &content);
        Error::Diverged { step, what, batch: written.ok().map(|()| path) }
    }
}

/// Progress within one step.
pub struct Within<'r, 'o> {
    recorder: RefCell<&'r mut Recorder<'o>>,
    step: usize,
    run_steps: RunSteps,
}

impl Progress for Within<'_, '_> {
    fn advance(&self, what: &'static str, done: usize, total: usize) -> Result<()> {
        let mut recorder = self.recorder.borrow_mut();
        recorder.emit(&Event::Within { step: self.step, what, done, total });
        if recorder.should_stop() { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn warn(&self, message: &str) {
        self.recorder.borrow_mut().emit(&Event::Warning(message));
    }

    fn run_steps(&self) -> Option<RunSteps> {
        Some(self.run_steps)
    }
}

/// Restores the optimizer with this prefix from `checkpoint`, for parameters on `device`.
///
/// # Errors
/// If the optimizer's file cannot be read, or belongs to another model than `module`.
pub fn restore_optimizer<M: Module>(
    checkpoint: &Checkpoint,
    prefix: &str,
    config: OptimizerConfig,
    module: &M,
    device: &Device,
) -> Result<Optimizer> {
    let refuse = |message: String| {
        Error::model(checkpoint.path.join("optimizer.safetensors"), message)
            .with_hint("resume from another checkpoint, or start a new run")
    };
    let found = optimizer_state::read(checkpoint.optimizer()?, prefix, config, device).map_err(refuse)?;
    let optimizer = Optimizer::restore(config, found.steps.unwrap_or(0), found.moments);
    optimizer.misfit(module).map_or(Ok(optimizer), |misfit| Err(refuse(misfit)))
}

/// Writes a JSON value atomically.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn write_json(path: &Path, value: &Value) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|source| Error::io(parent, source))?;
    }
    let text = serde_json::to_string_pretty(value).expect("plain data with string keys") + "\n";
    atomic::write_bytes(path, text.as_bytes())
}
