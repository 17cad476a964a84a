//! A run of an offline method: loads examples and models, runs the loop and writes the results.

use std::cell::RefCell;
use std::path::Path;

use serde_json::Value;

use super::examples::{self, OfflineData};
use super::fingerprint;
use super::forecast;
use super::held_out;
use super::offline::{self, Offline};
use super::reference_logprobs::{self, ReferenceLogprobs};
use super::rollout_log::RolloutLog;
use super::run_context::{FinishedRun, RunContext};
use super::{EvalSplit, SaveFor};
use crate::error::{Error, Result};
use crate::evaluation::{Evaluated, Evaluation, Measuring};
use crate::files::atomic;
use crate::generate::SamplingParams;
use crate::learner::Learner;
use crate::model::{CausalLm, ModelShape, Reference, TrainingInfo};
use crate::objective::{Objective, OfflineMethod};
use crate::observer::{Event, Observer};
use crate::pretrained::Trainable;
use crate::progress::Progress;
use crate::rng::Purpose;
use crate::rollout::{LocalEngine, Policy, Prompt, Sampler};
use crate::settings::Settings;
use crate::stats::Stats;

/// The model that a method trains.
type Model<M> = <<M as OfflineMethod>::Objective as Objective>::Model;

impl RunContext<'_> {
    /// Trains an offline method: loads examples and models, runs the loop and writes the results.
    pub(super) fn offline<M: OfflineMethod>(self, method: &M, observer: &mut dyn Observer) -> Result<FinishedRun> {
        let OfflineData { splits, prompts, test_prompts } =
            examples::offline_data(method, self.plan, self.start, self.cast, observer)?;
        let examples::ExampleSplits { train, held_out, test, not_trained } = splits;
        let completed: Vec<&Prompt> = prompts.iter().chain(&test_prompts).collect();
        let (measuring, mut remarks) = self.measuring(&completed, observer)?;
        if completed.is_empty() {
            remarks.clear();
        }
        let sizes = train.iter().map(|example| forecast::of_example(&M::rows(example)));
        self.check_memory(sizes.collect(), &[], observer)?;
        let model: Model<M> = self.models().policy()?;
        let (reference, logprobs, about) = self.with_reference(method, &model, [&train, &held_out, &test], observer)?;
        let train = reference_logprobs::attach(method, train, &logprobs.train);
        let held_out = reference_logprobs::attach(method, held_out, &logprobs.held_out);
        let test = reference_logprobs::attach(method, test, &logprobs.test);
        let progress_observer: &mut dyn Observer = &mut *observer;
        let served = method.at_server(&self.start.model, &PhaseProgress(RefCell::new((progress_observer, ""))))?;
        // Any other reference belongs to the objective, or is no longer needed.
        let following = reference.clone().filter(|_| self.plan.train().sync_ref_model);
        let objective = served.unwrap_or_else(|| method.objective(reference));

        let order = self.order(Purpose::DataOrder, train.len());
        let settings = self.settings(self.steps(order.total_steps(self.plan.train().epochs, None))?);
        let optimizer = self.models().optimizer("", settings.optimizer, &model)?;
        let mut learner = Learner::new(model, optimizer);
        let known = TrainingInfo {
            max_length: self.limit()?,
            sentences: self.start.model.labels.get().and_then(|labels| labels.sentences.clone()),
            ..TrainingInfo::default()
        };
        let trained = |model: &Model<M>, examples: &[&_]| TrainingInfo {
            max_length: known.max_length,
            sentences: known.sentences.clone(),
            ..objective.training_info(model, examples, settings.passes.alone())
        };
        // Every saved model states how its outputs are read. Measured values are added only to the models that are kept.
        let for_use = self.start.model.saving(self.plan.train().saved_weights);
        let save = |model: &Model<M>, path: &Path, purpose: SaveFor| {
            model.save(purpose.choose(&self.start.model, &for_use), path)?;
            if let (SaveFor::Resume, Some(reference)) = (purpose, &following) {
                reference.save_state(path, |reference, path| reference.save(&self.start.model, path))?;
            }
            trained(model, &[]).write(path)
        };
        let follow = |model: &Model<M>, done: usize| {
            if let (Some(reference), Some(policy)) = (&following, model.language()) {
                reference.end_step(done, || policy.clone());
            }
        };
        let mut recorder = self.recorder(remarks, observer)?;
        not_trained.write(self.directory)?;
        about.map_or(Ok(()), |about| logprobs.write(self.directory, &about))?;
        // Evaluations that complete prompts store the completions, as in online methods.
        let log = match prompts.is_empty() && test_prompts.is_empty() {
            true => None,
            false => Some(RefCell::new(RolloutLog::open(recorder.run(), &recorder.state, false)?)),
        };
        let complete = |model: &Model<M>, split: EvalSplit, done: (usize, usize), progress: &dyn Progress| {
            let (Some(policy), Some(log)) = (model.language(), &log) else { return Ok(Stats::default()) };
            let prompts = if split == EvalSplit::Test { &test_prompts } else { &prompts };
            if prompts.is_empty() {
                return Ok(Stats::default());
            }
            let found = self.completed(policy, prompts, &settings, &measuring, progress)?;
            let mut log = log.borrow_mut();
            log.evaluation(split, done, &found)?;
            Ok(found.stats)
        };
        let task = Offline {
            objective: &objective,
            examples: &train,
            held_out: &held_out,
            test: &test,
            has_test: !(test.is_empty() && test_prompts.is_empty()),
            order,
            settings: &settings,
            save: &save,
            complete: if log.is_some() { Some(&complete) } else { None },
            after_step: if following.is_some() { Some(&follow) } else { None },
        };
        offline::train(&task, &mut learner, &mut recorder)?;
        log.map_or(Ok(()), |log| log.into_inner().finish())?;
        if !self.lanes.ranks().is_first() {
            return Ok(self.outcome(Value::Null));
        }
        let passes = settings.passes.alone();
        recorder.emit(&Event::Phase { name: "saving", total: None, done: 0 });
        let model = learner.frozen();
        let all: Vec<_> = train.iter().collect();
        let measured = trained(&model, &all);
        atomic::write_dir(&self.directory.model(), |path| {
            save(&model, path, SaveFor::Use)?;
            measured.write(path)
        })?;
        // The scores of the best model differ from those of the last one.
        let written = recorder.state.best.filter(|(step, _)| *step > 0);
        if let Some((step, _)) = written.filter(|_| measured.score_mean.is_some()) {
            let best = self.directory.best();
            match step == recorder.state.step {
                true => measured.write(&best)?,
                false => trained(&self.models().saved(&best)?, &all).write(&best)?,
            }
        }
        let examples: Vec<_> = held_out.iter().collect();
        held_out::write(self.directory, &objective.scores(&model, &examples, passes))?;
        held_out::report(self.directory, objective.report(&model, &examples, passes))?;
        self.finish(&mut recorder, &settings)
    }

    /// Returns the reference, if training needs it, and its log-probabilities: those of the run that is resumed, or new
    /// ones with the key under which the run stores them.
    fn with_reference<M: OfflineMethod>(
        &self,
        method: &M,
        model: &Model<M>,
        splits: [&[M::Example]; 3],
        observer: &mut dyn Observer,
    ) -> Result<(Option<Reference>, ReferenceLogprobs, Option<String>)> {
        let about = self.reference_question(method, splits);
        // A run that is to be replaced loses its stored numbers, so they are not read.
        let goes_on = self.checkpoint.is_some();
        if let Some(about) = about.as_ref().filter(|_| goes_on)
            && let Some(stored) = ReferenceLogprobs::read(self.shared, about)
        {
            return Ok((None, stored, None));
        }
        let reference = match model.language() {
            Some(policy) => self.models().reference(policy)?,
            None => None,
        };
        let compute = |reference: &CausalLm, observer: &mut dyn Observer| {
            ReferenceLogprobs::compute(method, reference, splits, self.settings(1).passes, observer)
        };
        let logprobs =
            reference.as_ref().map_or_else(ReferenceLogprobs::default, |found| compute(&found.model(), observer));
        Ok((reference, logprobs, about))
    }

    /// Hash of all inputs of the reference's log-probabilities; `None` if they are not computed before training.
    fn reference_question<M: OfflineMethod>(&self, method: &M, splits: [&[M::Example]; 3]) -> Option<String> {
        if method.reference_width() == 0 {
            return None;
        }
        let keys = serde_json::to_string(self.plan.method()).expect("keys are JSON");
        let role = self.cast.reference.as_ref().map(|player| player.role.clone());
        let settings = format!("{keys} {role:?} {:?}", self.plan.train().compute);
        let rows = splits.into_iter().flatten().map(M::rows);
        Some(fingerprint::of_question(rows, &self.models, &settings))
    }

    /// Samples completions of held-out prompts with a policy that does not sample in training, always from the same streams.
    fn completed(
        &self,
        policy: &CausalLm,
        prompts: &[Prompt],
        settings: &Settings,
        measuring: &Measuring,
        progress: &dyn Progress,
    ) -> Result<Evaluated> {
        let params = SamplingParams {
            max_new_tokens: examples::max_new_tokens(self.plan),
            stop_ids: self.start.model.stop_ids(),
            ..SamplingParams::default()
        };
        let (params, beams) = settings.evaluation.to_evaluate(params.forcing(self.start.model.dir.forced_ids()));
        let tokenizer = &self.start.model.tokenizer;
        let group_size = settings.evaluation.samples();
        let sampler =
            Sampler { tokenizer, group_size, params, beams, stop: &[], masking: None, episodes: None, progress };
        let policy = policy.clone().into_frozen(self.plan.train().compute.into());
        let &Settings { seed, passes, .. } = settings;
        let evaluation = Evaluation { prompts, sampler: &sampler, reference: None, seed, passes, measuring };
        evaluation.run(&mut LocalEngine::default(), &Policy { model: policy, version: 0 }, None)
    }

    /// Longest input in tokens that an encoder is trained on; users of the model cut there too.
    fn limit(&self) -> Result<Option<usize>> {
        let dir = &self.start.model.dir;
        let positions = ModelShape::of(dir)?.max_positions.unwrap_or(usize::MAX);
        Ok(dir.is_encoder().then_some(positions.min(self.plan.train().max_length)))
    }
}

/// Progress before the run begins, with the phase that the observer was last sent.
struct PhaseProgress<'a>(RefCell<(&'a mut dyn Observer, &'static str)>);

impl Progress for PhaseProgress<'_> {
    fn advance(&self, what: &'static str, done: usize, total: usize) -> Result<()> {
        let mut state = self.0.borrow_mut();
        let (observer, phase) = &mut *state;
        match *phase == what {
            true => observer.event(&Event::Progress { done }),
            false => observer.event(&Event::Phase { name: what, total: Some(total), done }),
        }
        *phase = what;
        if observer.should_stop() { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn warn(&self, message: &str) {
        self.0.borrow_mut().0.event(&Event::Warning(message));
    }
}
