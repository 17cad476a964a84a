//! What the training of all methods needs from the run: its settings, its models, its recorder and its results.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::Device;
use serde_json::{Map, Value, json};

use super::diagnosis::{self, Facts};
use super::forecast;
use super::models::Models;
use super::player::Player;
use super::prepare::Start;
use super::recorder::Recorder;
use super::run_start::RunStart;
use super::warnings::{FAR_BELOW_ZERO, KL_BELOW};
use crate::batches::{MicroBatch, Order};
use crate::card;
use crate::config::Plan;
use crate::error::{Error, Result};
use crate::evaluation::Measuring;
use crate::machine::{Machine, gigabytes};
use crate::memory::RowSize;
use crate::method::Cast;
use crate::metric_models::MetricModels;
use crate::observer::{Event, Observer};
use crate::ranks::Lanes;
use crate::rng::Purpose;
use crate::rollout::Prompt;
use crate::run::metrics::{REMARKS, is_of_evaluation};
use crate::run::{Checkpoint, MetricsRow, RunDir, read_metrics};
use crate::run_report;
use crate::settings::{STEPS_MAX, Settings};

/// A finished run.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRun {
    /// The run directory.
    pub directory: PathBuf,
    /// The trained model, a Hugging Face directory.
    pub model: PathBuf,
    /// Content of `results.json`. `before` and `after` hold the numbers of the held-out rows by name, such as
    /// `results["after"]["eval_loss"]`.
    pub results: Value,
}

/// What the training of all methods needs from the run.
pub(super) struct RunContext<'a> {
    pub plan: &'a Plan,
    pub start: &'a Start,
    pub cast: &'a Cast<Player>,
    /// Fingerprint of each model whose files a resumed run reads again.
    pub models: BTreeMap<String, String>,
    pub directory: &'a RunDir,
    /// Directory that all ranks of a resumed run read.
    pub shared: &'a RunDir,
    pub lanes: Lanes,
    pub checkpoint: Option<Checkpoint>,
    /// With autodiff.
    pub device: Device,
    pub run_start: &'a RunStart<'a>,
}

impl RunContext<'_> {
    /// Rejects a run that does not fit into memory, before any weights are loaded.
    pub(super) fn check_memory(
        &self,
        rows: Vec<RowSize>,
        held_out: &[RowSize],
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if !self.plan.train().memory_check {
            return Ok(());
        }
        let machine = Machine::detect();
        let forecast = forecast::check(
            &forecast::with_rows(self.plan, self.start, self.cast, self.lanes.ranks().size(), rows, held_out)?,
            &machine,
        )?;
        if let Some(unknown) = forecast::unknown_memory(&forecast, &machine) {
            observer.event(&Event::Message(&unknown));
        }
        let own = forecast.host_bytes.unwrap_or(forecast.peak_bytes);
        if let Some(free) = machine.memory_free_bytes.filter(|&free| free < own) {
            observer.event(&Event::Warning(&format!(
                "the run needs about {}, and {} of memory are free now: other programs may run out of memory",
                gigabytes(own),
                gigabytes(free)
            )));
        }
        Ok(())
    }

    /// Metrics of completions of `prompts` in evaluations, and remarks on their values.
    pub(super) fn measuring(
        &self,
        prompts: &[&Prompt],
        observer: &mut dyn Observer,
    ) -> Result<(Measuring, Vec<String>)> {
        let evaluation = &self.plan.train().evaluation;
        let models = MetricModels::new(self.device.clone().inner(), self.passes());
        let interrupt = observer.interrupt();
        let measuring = Measuring::new(&evaluation.metrics, evaluation.post_process.as_ref(), &models, &interrupt)?;
        let remarks = measuring.remarks(prompts);
        remarks.iter().for_each(|remark| observer.event(&Event::Warning(remark)));
        Ok((measuring, remarks))
    }

    pub(super) fn models(&self) -> Models<'_> {
        Models {
            plan: self.plan,
            start: self.start,
            cast: self.cast,
            checkpoint: self.checkpoint.as_ref(),
            device: &self.device,
            ranks: self.lanes.ranks(),
        }
    }

    pub(super) fn passes(&self) -> MicroBatch {
        self.plan.train().passes()
    }

    pub(super) fn order(&self, purpose: Purpose, rows: usize) -> Order {
        let train = self.plan.train();
        Order { seed: self.plan.seed(), purpose, shuffle: train.shuffle, rows, batch_size: train.batch_size }
    }

    /// Returns the number of steps of the run: `train.max_steps`, or else `by_epochs`.
    ///
    /// # Errors
    /// If `train.epochs` makes more steps than a run may have, fewer than a resumed run has done, or fewer than `train.lr_schedule` needs.
    pub(super) fn steps(&self, by_epochs: usize) -> Result<usize> {
        let train = self.plan.train();
        let done = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.run_state.step);
        match train.max_steps {
            Some(steps) => Ok(steps),
            None if by_epochs < done => {
                let message = format!(
                    "`train.epochs` is {} and makes {by_epochs} steps, but the run resumes after step {done}",
                    train.epochs
                );
                Err(Error::input(message).with_hint("pass a larger `--epochs`, or leave it out"))
            }
            None if by_epochs <= STEPS_MAX => match train.lr_schedule.check_length(train.warmup_steps, by_epochs) {
                Ok(()) => Ok(by_epochs),
                Err(message) => {
                    let message = format!("`train.lr_schedule` is `{}`, but {message}", train.lr_schedule.name());
                    Err(Error::input(message)
                        .with_hint("below 1, `warmup_steps` and `decay_steps` are shares of all steps"))
                }
            },
            None => {
                let message = format!(
                    "`train.epochs` is {} and makes {by_epochs} steps, but a run has at most {STEPS_MAX}",
                    train.epochs
                );
                Err(Error::input(message).with_hint("set the number of steps with `--max-steps`"))
            }
        }
    }

    pub(super) fn settings(&self, steps: usize) -> Settings {
        let settings = Settings::new(self.plan.train(), steps, self.plan.learning_rate(), self.plan.best_metric());
        Settings { passes: MicroBatch { lanes: self.lanes, ..settings.passes }, ..settings }
    }

    /// Begins the run, after everything is checked and loaded. `remarks` are those on its metrics.
    pub(super) fn recorder<'o>(&self, remarks: Vec<String>, observer: &'o mut dyn Observer) -> Result<Recorder<'o>> {
        let ranks = self.lanes.ranks();
        // The first rank removes records after the checkpoint, so all others must have read it.
        ranks.barrier("the beginning");
        self.run_start.begin()?;
        let directory = self.directory.clone();
        let recorder = match &self.checkpoint {
            Some(checkpoint) if ranks.is_first() => Recorder::resume(directory, observer, checkpoint)?,
            Some(checkpoint) => Recorder::on_other_rank(directory, observer, checkpoint)?,
            None => Recorder::start(directory, observer)?,
        };
        let recorder = recorder.on(ranks).with_remarks(remarks);
        let recorder = recorder.reading(self.start.data.get().cloned(), self.models.clone());
        Ok(recorder.described_by(self.plan))
    }

    /// Writes `results.json` (held-out metrics before and after, the last logged ones, the best, the effort), charts and report.
    pub(super) fn finish(&self, recorder: &mut Recorder<'_>, settings: &Settings) -> Result<FinishedRun> {
        recorder.finish_tracking(settings)?;
        let logged = read_metrics(&self.directory.metrics())?;
        let (mut last, mut after) = (Map::new(), Map::new());
        for MetricsRow { step, values } in &logged {
            for (key, value) in values.to_json() {
                if is_of_evaluation(&key) {
                    after.insert(key, value)
                } else {
                    last.insert(key, value)
                };
            }
            last.insert("step".into(), json!(step));
        }
        let best = recorder
            .state
            .best
            .map(|(step, value)| json!({ "step": step, "metric": settings.best_metric, "value": value }));
        let facts = Facts {
            is_online: self.plan.method().is_online(),
            reference_follows: self.plan.train().reference_sync().is_some(),
            diverged: recorder.state.divergence.is_some(),
        };
        let results = json!({
            "method": self.plan.method().name(),
            "model": self.plan.config().model,
            "data": self.plan.config().data.to_string(),
            "seed": settings.seed.0,
            "steps": recorder.state.step,
            "tokens": recorder.state.tokens,
            "elapsed_s": recorder.elapsed_s(),
            "before": recorder.state.method.get("before"),
            "after": after,
            "last": last,
            "best": best,
            "diverged": recorder.state.divergence,
            "no_improvement": diagnosis::no_improvement(recorder.state.best, &logged, settings, facts),
        });
        let method = self.plan.method().method();
        for sentence in method.advice(&last).into_iter().chain(negative_kl(&last)) {
            recorder.emit(&Event::Message(&sentence));
        }
        let Value::Object(mut results) = results else { unreachable!("an object literal") };
        if !recorder.remarks().is_empty() {
            results.insert(REMARKS.into(), json!(recorder.remarks()));
        }
        let results = run_report::finish(self.directory, results)?;
        let license = card::License::of(&self.start.model.dir.path);
        let config = std::fs::read_to_string(self.directory.config()).unwrap_or_default();
        for directory in [self.directory.model(), self.directory.best()] {
            card::write(&directory, &results, &config, &license)?;
        }
        Ok(self.outcome(Value::Object(results)))
    }

    pub(super) fn outcome(&self, results: Value) -> FinishedRun {
        FinishedRun { directory: self.shared.path().to_owned(), model: self.shared.model(), results }
    }
}

/// Warning about a negative KL, for methods that sample and have a reference.
fn negative_kl(last: &Map<String, Value>) -> Option<String> {
    let kl = last.get("objective/kl").and_then(Value::as_f64).filter(|kl| *kl < -0.1)?;
    Some(match kl <= -KL_BELOW {
        true => format!("`objective/kl` is {kl:.3}, which is {FAR_BELOW_ZERO}"),
        false => format!(
            "`objective/kl` is {kl:.3}: a KL cannot be negative, but the estimate of one batch can be a little below 0 by \
             chance; look into it if it stays there"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kl_far_below_zero_is_no_chance() {
        let message = |kl: f64| negative_kl(&Map::from_iter([("objective/kl".to_owned(), json!(kl))]));
        assert_eq!((message(0.5), message(-0.1)), (None, None));
        let text = message(-0.5).expect("it is negative");
        assert!(text.starts_with("`objective/kl` is -0.500: ") && text.contains("by chance"), "{text}");
        let text = message(-643.0).expect("it is far below 0");
        assert!(text.contains("far below 0, which a KL cannot be") && !text.contains("chance"), "{text}");
    }
}
