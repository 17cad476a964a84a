//! Entry point of training: from a checked plan to a finished run directory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::cast;
use super::claim_observer::ClaimObserver;
use super::diagnosis;
use super::environment;
use super::examples::{self, OfflineData};
use super::fingerprint;
use super::forecast;
use super::held_out;
use super::log::LogObserver;
use super::models::Models;
use super::offline::{self, Offline};
use super::online::{self, ACTOR_PREFIX, Online};
use super::player::Player;
use super::plugin_observers::PluginObservers;
use super::prepare::{self, Start, fetch_models};
use super::recorder::Recorder;
use super::reference_logprobs::{self, ReferenceLogprobs};
use super::rollout_log::{self, RolloutLog};
use super::run_start::RunStart;
use super::warnings::{FAR_BELOW_ZERO, KL_BELOW};
use super::{EvalSplit, SaveFor};
use crate::algorithm::actor::Actor;
use crate::algorithm::{AlgorithmInputs, OnlineMethod};
use crate::batches::{MicroBatch, Order, Weighted};
use crate::card;
use crate::config::{Effect, Plan, Visitor};
use crate::error::{Error, Result};
use crate::evaluation::{Evaluated, Evaluation, Measuring};
use crate::files::atomic;
use crate::generate::SamplingParams;
use crate::learner::Learner;
use crate::machine::Machine;
use crate::memory::RowSize;
use crate::method::Cast;
use crate::metric_models::MetricModels;
use crate::model::{CausalLm, ModelShape, TrainingInfo};
use crate::objective::{Objective, OfflineMethod};
use crate::observer::{Event, Observer};
use crate::pretrained::Trainable;
use crate::progress::Progress;
use crate::ranks::{self, Lanes, Ranks};
use crate::rng::Purpose;
use crate::rollout::{LocalEngine, Policy, Prompt, Sampler};
use crate::run::metrics::{REMARKS, is_of_evaluation};
use crate::run::{Checkpoint, Claim, Existing, MetricsRow, Origin, RunDir, read_metrics};
use crate::run_report;
use crate::settings::Settings;
use crate::stats::Stats;

/// A finished run.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRun {
    /// The run directory.
    pub directory: PathBuf,
    /// The trained model, a Hugging Face directory.
    pub model: PathBuf,
    /// Content of `results.json`.
    pub results: Value,
}

/// Trains as `plan` specifies. Writes `config.yml`, `metrics.jsonl`, checkpoints, `best/`, `model/` and `results.json` into the run
/// directory.
///
/// # Errors
/// Any error in the input; [`Error::Diverged`]; [`Error::Interrupted`] if the observer requests a stop.
pub fn run(plan: &Plan, observer: &mut dyn Observer) -> Result<FinishedRun> {
    run_on(plan, Ranks::ALONE, observer)
}

/// [`run`] on several ranks, each of which calls this with the same plan. The first rank owns the run directory; the outcome of the others
/// is empty. All must have access to the same files: the model, the rows and, for a resumed run, its directory.
///
/// # Errors
/// As [`run`], on any rank; or if a rank cannot be reached.
pub fn run_on(plan: &Plan, ranks: Ranks, observer: &mut dyn Observer) -> Result<FinishedRun> {
    ranks::catching(|| {
        let lanes = lanes(plan, ranks)?;
        ranks.check_alike(&plan.to_yaml())?;
        run_in_lanes(plan, lanes, observer)
    })
}

/// Lanes that sum the gradients.
fn lanes(plan: &Plan, ranks: Ranks) -> Result<Lanes> {
    let count = plan.train().lanes.unwrap_or(1);
    if ranks.size() > count {
        let message = format!("{} ranks cannot share a run with `train.lanes: {count}`", ranks.size());
        let hint = "at most one rank per lane: start fewer ranks, or raise `--lanes`. Runs with other lanes differ in \
                    the rounding of sums";
        return Err(Error::input(message).with_hint(hint));
    }
    Ok(Lanes::new(count, ranks))
}

/// The run directory of this rank, and the one that all ranks read.
struct RunDirs {
    /// For the first rank, the directory of the plan. The others write their few small files to a temporary directory.
    directory: RunDir,
    /// Directory with the earlier files of a resumed run.
    shared: RunDir,
    /// The temporary directory, which is removed on drop.
    _scratch: Option<TempDir>,
}

impl RunDirs {
    /// Creates the directory. The first rank claims its own before the others look at it.
    fn claim(plan: &Plan, ranks: Ranks) -> Result<(Self, Claim)> {
        let claimed = match ranks.is_first() {
            true => RunDir::claim(plan.output_dir(), plan.existing()).map(Some),
            false => Ok(None),
        };
        if let Some((directory, claim)) = ranks.agree("the run directory", claimed)? {
            return Ok((Self { shared: directory.clone(), directory, _scratch: None }, claim));
        }
        let scratch = tempfile::tempdir().map_err(|source| Error::io(std::env::temp_dir(), source))?;
        let (directory, claim) = RunDir::claim(scratch.path().join("run"), Existing::Refuse)?;
        Ok((Self { directory, shared: RunDir::at(plan.output_dir()), _scratch: Some(scratch) }, claim))
    }
}

fn run_in_lanes(plan: &Plan, lanes: Lanes, observer: &mut dyn Observer) -> Result<FinishedRun> {
    let other = match plan.origin() {
        Origin::Other(path) => Some(Checkpoint::open(path)?),
        Origin::Own(_) => None,
    };
    let ranks = lanes.ranks();
    // Checked first, so that a wrong column name leaves no run directory behind.
    ranks.agree("the columns of the rows", prepare::check_columns(plan))?;
    let (dirs, claim) = RunDirs::claim(plan, ranks)?;
    let RunDirs { directory, shared, .. } = &dirs;
    let checkpoint = match (&other, plan.origin()) {
        (Some(other), _) => Some(other.adopted_by(directory)?),
        (None, Origin::Own(step)) if plan.existing() == Existing::Resume => Checkpoint::of(shared, *step)?,
        _ => None,
    };
    ranks.barrier("the checkpoint");
    if plan.existing() == Existing::Resume && checkpoint.is_none() {
        directory.restart()?;
    }
    let claim = RefCell::new(claim);
    let observer = &mut ClaimObserver { claim: &claim, inner: observer };
    let outcome = run_in(plan, (directory, shared), lanes, checkpoint, &claim, observer);
    let mut claim = claim.into_inner();
    if matches!(outcome, Err(Error::Diverged { .. })) {
        // The error refers to a batch in this directory.
        claim.has_begun()?;
    }
    let ended = claim.end(outcome.as_ref().err());
    if let (Err(_), Err(second)) = (&outcome, &ended) {
        tracing::warn!("{second}");
    }
    let outcome = outcome?;
    ended.map(|()| outcome)
}

/// [`run`] in a claimed directory.
fn run_in(
    plan: &Plan,
    (directory, shared): (&RunDir, &RunDir),
    lanes: Lanes,
    checkpoint: Option<Checkpoint>,
    claim: &RefCell<Claim>,
    observer: &mut dyn Observer,
) -> Result<FinishedRun> {
    let run_start = RunStart::new(plan, directory, claim)?;
    let observer: &mut dyn Observer = &mut LogObserver::new(&run_start.log(), observer)?;
    let ranks = lanes.ranks();
    let observer: &mut dyn Observer = &mut PluginObservers::new(plan, directory.path(), &run_start, ranks, observer)?;
    tell_ranks(lanes, observer);
    if plan.existing() == Existing::Resume || checkpoint.is_some() {
        tell_resumption(plan, directory, checkpoint.as_ref(), observer);
    }
    observer.event(&Event::Phase { name: "loading", total: None, done: 0 });
    fetch_models(plan, observer)?;
    let mut start = Start::open(plan)?;
    start.expected_data = checkpoint.as_ref().and_then(|checkpoint| checkpoint.run_state.data.clone());
    let cast = cast::open(plan, &start)?;
    run_start.check_inputs(&start, &cast)?;
    let models = fingerprint::of_models(&cast, start.adapts(plan))?;
    if let Some(checkpoint) = &checkpoint {
        fingerprint::check_models(&checkpoint.run_state.models, &models)?;
    }
    let device = plan.device().device().autodiff();
    let (start, cast, run_start) = (&start, &cast, &run_start);
    let context = RunContext { plan, start, cast, models, directory, shared, lanes, checkpoint, device, run_start };
    plan.method().visit(Training { context, observer })
}

/// Reports the number of ranks, and differences between their processors.
fn tell_ranks(lanes: Lanes, observer: &mut dyn Observer) {
    let ranks = lanes.ranks();
    if ranks.is_alone() {
        return;
    }
    let machine = Machine::detect();
    // Equal instruction sets give equal bits.
    let instructions = format!("{:?}", machine.processor_features);
    let own = (machine.processor.unwrap_or_default(), instructions, rayon::current_num_threads());
    let all = ranks.all("processors", &own);
    let (processor, _, threads) = &all[0];
    let count = ranks.size();
    let lanes = lanes.count();
    observer.event(&Event::Message(&format!("{count} ranks of {threads} threads share {lanes} lanes")));
    if let Some((rank, (other, ..))) =
        all.iter().enumerate().find(|(_, (_, instructions, _))| *instructions != all[0].1)
    {
        observer.event(&Event::Warning(&format!(
            "rank 0 computes on `{processor}` and rank {rank} on `{other}`, which have different instructions: the \
             weights are exactly reproducible only with the same mixture of processors"
        )));
    }
}

/// Reports the step that a run continues from, and changes of its configuration.
fn tell_resumption(plan: &Plan, directory: &RunDir, checkpoint: Option<&Checkpoint>, observer: &mut dyn Observer) {
    match checkpoint {
        Some(checkpoint) => {
            let of = match plan.origin() {
                Origin::Own(_) => String::new(),
                Origin::Other(path) => format!(" of `{}`", path.display()),
            };
            let step = checkpoint.run_state.step;
            observer.event(&Event::Message(&format!("resuming from step {step}{of}")));
            // A checkpoint of another run has no completions.
            let is_own = matches!(plan.origin(), Origin::Own(_));
            let rollouts = directory.rollouts();
            if is_own && step > 0 && plan.method().is_online() && !rollouts.exists() {
                let message = format!(
                    "`{}` is missing: the completions and warnings of the steps up to {step} are lost, and a new file \
                     was started",
                    rollouts.display()
                );
                observer.event(&Event::Warning(&message));
            }
        }
        None => observer.event(&Event::Warning("no checkpoint to resume from: starting from the beginning")),
    }
    for change in plan.changes() {
        match change.effect {
            Effect::None => observer.event(&Event::Message(&change.to_string())),
            _ => observer.event(&Event::Warning(&change.to_string())),
        }
    }
}

/// What the training of all methods needs from the run.
struct RunContext<'a> {
    plan: &'a Plan,
    start: &'a Start,
    cast: &'a Cast<Player>,
    /// Fingerprint of each model whose files a resumed run reads again.
    models: BTreeMap<String, String>,
    directory: &'a RunDir,
    /// Directory that all ranks of a resumed run read.
    shared: &'a RunDir,
    lanes: Lanes,
    checkpoint: Option<Checkpoint>,
    /// With autodiff.
    device: Device,
    run_start: &'a RunStart<'a>,
}

/// A run and its observer.
struct Training<'a> {
    context: RunContext<'a>,
    observer: &'a mut dyn Observer,
}

impl<'m> Visitor<'m> for Training<'_> {
    type Output = Result<FinishedRun>;

    fn offline<M: OfflineMethod>(self, method: &'m M) -> Result<FinishedRun> {
        self.context.offline(method, self.observer)
    }

    fn online<M: OnlineMethod>(self, method: &'m M) -> Result<FinishedRun> {
        self.context.online(method, self.observer)
    }
}

impl RunContext<'_> {
    /// Rejects a run that does not fit into memory, before any weights are loaded.
    fn check_memory(&self, rows: Vec<RowSize>, held_out: &[RowSize], observer: &mut dyn Observer) -> Result<()> {
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
            let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
            observer.event(&Event::Warning(&format!(
                "the run needs about {}, and {} of memory are free now: other programs may run out of memory",
                gigabytes(own),
                gigabytes(free)
            )));
        }
        Ok(())
    }

    /// Trains an offline method: loads examples and models, runs the loop and writes the results.
    fn offline<M: OfflineMethod>(self, method: &M, observer: &mut dyn Observer) -> Result<FinishedRun> {
        let OfflineData { splits, prompts, test_prompts } =
            examples::offline_data(method, self.plan, self.start, self.cast, observer)?;
        let examples::ExampleSplits { train, held_out, test, not_trained } = splits;
        let measuring = self.measuring(observer)?;
        let sizes = train.iter().map(|example| forecast::of_example(&M::rows(example)));
        self.check_memory(sizes.collect(), &[], observer)?;
        let model: <M::Objective as Objective>::Model = self.models().policy()?;
        let about = self.reference_question(method, [&train, &held_out, &test]);
        // A run that is to be replaced loses its stored numbers, so they are not read.
        let goes_on = self.checkpoint.is_some();
        let kept = about.as_ref().filter(|_| goes_on).and_then(|about| ReferenceLogprobs::read(self.shared, about));
        let reference = match (model.language(), &kept) {
            (Some(policy), None) => self.models().reference(policy)?,
            _ => None,
        };
        let is_new = kept.is_none();
        let logprobs = match (kept, &reference) {
            (Some(kept), _) => kept,
            (None, Some(reference)) => ReferenceLogprobs::compute(
                method,
                reference,
                [&train, &held_out, &test],
                self.settings(1).passes,
                observer,
            ),
            (None, None) => ReferenceLogprobs::default(),
        };
        let train = reference_logprobs::attach(method, train, &logprobs.train);
        let held_out = reference_logprobs::attach(method, held_out, &logprobs.held_out);
        let test = reference_logprobs::attach(method, test, &logprobs.test);
        let progress_observer: &mut dyn Observer = &mut *observer;
        let served = method.at_server(&self.start.model, &PhaseProgress(RefCell::new((progress_observer, ""))))?;
        let objective = served.unwrap_or_else(|| method.objective(reference));

        let order = self.order(Purpose::DataOrder, train.len());
        let settings = self.settings(order.total_steps(self.plan.train().epochs, self.plan.train().max_steps));
        let optimizer = self.models().optimizer("", settings.optimizer, &model)?;
        let mut learner = Learner::new(model, optimizer);
        let known = TrainingInfo {
            max_length: self.limit()?,
            sentences: self.start.model.labels.get().and_then(|labels| labels.sentences.clone()),
            ..TrainingInfo::default()
        };
        let trained = |model: &<M::Objective as Objective>::Model, examples: &[&_]| TrainingInfo {
            max_length: known.max_length,
            sentences: known.sentences.clone(),
            ..objective.training_info(model, examples, settings.passes.alone())
        };
        // Every saved model states how its outputs are read. Measured values are added only to the models that are kept.
        let for_use = self.start.model.saving(self.plan.train().saved_weights);
        let save = |model: &<M::Objective as Objective>::Model, path: &Path, purpose: SaveFor| {
            model.save(purpose.choose(&self.start.model, &for_use), path)?;
            trained(model, &[]).write(path)
        };
        let remarks = match prompts.is_empty() && test_prompts.is_empty() {
            true => Vec::new(),
            false => measuring.remarks().collect(),
        };
        let mut recorder = self.recorder(remarks, observer)?;
        not_trained.write(self.directory)?;
        about.filter(|_| is_new).map_or(Ok(()), |about| logprobs.write(self.directory, &about))?;
        // Evaluations that complete prompts store the completions, as in online methods.
        let log = match prompts.is_empty() && test_prompts.is_empty() {
            true => None,
            false => Some(RefCell::new(RolloutLog::open(recorder.run(), &recorder.state, false)?)),
        };
        type Model<M> = <<M as OfflineMethod>::Objective as Objective>::Model;
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

    /// Trains an online method: loads prompts, models and reward, runs the loop and writes the results.
    fn online<M: OnlineMethod>(self, method: &M, observer: &mut dyn Observer) -> Result<FinishedRun> {
        let new = method.iteration().rollouts.max_new_tokens;
        let recorded = rollout_log::recorded(self.shared, self.checkpoint.as_ref())?;
        let episodes = environment::open(self.plan, self.start, recorded)?;
        let tools = episodes.as_ref().map_or(&[][..], |episodes| &episodes.dialogue.tools);
        let splits = examples::prompts(self.plan, self.start, self.cast, (new, tools), observer)?;
        let examples::ExampleSplits { train, held_out, test, not_trained } = splits;
        let evaluated = [forecast::of_prompts(&held_out, new), forecast::of_prompts(&test, new)].concat();
        self.check_memory(forecast::of_prompts(&train, new), &evaluated, observer)?;
        let policy: CausalLm = self.models().policy()?;
        let reference = self.models().reference(&policy)?;
        let (critic, value_head) = self.models().critic(&policy, &self.settings(1))?;
        let kl_coefficient = self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.run_state.kl_coefficient);
        let lagged = self.models().lagged(&policy)?;
        let special_ids = self.start.model.tokenizer.special_ids();
        let mut algorithm = method.algorithm(AlgorithmInputs { critic, lagged, special_ids, kl_coefficient });
        let mut reward = self.models().reward(self.passes(), &observer.interrupt())?;
        let measuring = self.measuring(observer)?;
        let further = measuring.further_remarks(&*reward);
        further.iter().for_each(|remark| observer.event(&Event::Warning(remark)));

        let order = self.order(Purpose::PromptOrder, train.len());
        let per_epoch = train.len() as f64 / order.batch_size as f64;
        let by_epochs = (self.plan.train().epochs * per_epoch).ceil().max(1.0) as usize;
        let settings = self.settings(self.plan.train().max_steps.unwrap_or(by_epochs));
        let actor = Actor { policy, value_head };
        let optimizer = self.models().optimizer(ACTOR_PREFIX, settings.optimizer, &actor)?;
        let mut learner = match method.iteration().vectors {
            None => Learner::new(actor, optimizer),
            Some(_) => Learner::without_moments(actor, optimizer),
        };
        let for_use = self.start.model.saving(self.plan.train().saved_weights);
        let save = |policy: &CausalLm, path: &Path, purpose: SaveFor| {
            policy.save(purpose.choose(&self.start.model, &for_use), path)
        };
        let stop_ids = self.start.model.stop_ids();
        let mut recorder = self.recorder(measuring.remarks().chain(further).collect(), observer)?;
        not_trained.write(self.directory)?;
        let task = Online {
            prompts: &train,
            held_out: &held_out,
            test: &test,
            order,
            weighted: weighted(self.plan.train().priority_scale, order, &train)?,
            iteration: method.iteration(),
            tokenizer: &self.start.model.tokenizer,
            stop_ids: &stop_ids,
            episodes: episodes.as_ref(),
            rollouts: self.plan.config().rollouts.as_ref(),
            forced_ids: self.start.model.dir.forced_ids(),
            reference: reference.as_ref(),
            settings: &settings,
            measuring: &measuring,
            save: &save,
        };
        online::train(&task, &mut *algorithm, &mut *reward, &mut learner, &mut recorder)?;
        if !self.lanes.ranks().is_first() {
            return Ok(self.outcome(Value::Null));
        }
        recorder.emit(&Event::Phase { name: "saving", total: None, done: 0 });
        let frozen = learner.frozen();
        atomic::write_dir(&self.directory.model(), |path| save(&frozen.policy, path, SaveFor::Use))?;
        algorithm.save(&frozen, self.directory.path())?;
        self.finish(&mut recorder, &settings)
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

    /// Metrics of completions in evaluations.
    fn measuring(&self, observer: &mut dyn Observer) -> Result<Measuring> {
        let evaluation = &self.plan.train().evaluation;
        let models = MetricModels::new(self.device.clone().inner(), self.passes());
        let interrupt = observer.interrupt();
        let measuring = Measuring::new(&evaluation.metrics, evaluation.post_process.as_ref(), &models, &interrupt)?;
        measuring.remarks().for_each(|remark| observer.event(&Event::Warning(&remark)));
        Ok(measuring)
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

    fn models(&self) -> Models<'_> {
        Models {
            plan: self.plan,
            start: self.start,
            cast: self.cast,
            checkpoint: self.checkpoint.as_ref(),
            device: &self.device,
            ranks: self.lanes.ranks(),
        }
    }

    fn passes(&self) -> MicroBatch {
        self.plan.train().passes()
    }

    fn order(&self, purpose: Purpose, rows: usize) -> Order {
        let train = self.plan.train();
        Order { seed: self.plan.seed(), purpose, shuffle: train.shuffle, rows, batch_size: train.batch_size }
    }

    fn settings(&self, steps: usize) -> Settings {
        let settings = Settings::new(self.plan.train(), steps, self.plan.learning_rate(), self.plan.best_metric());
        Settings { passes: MicroBatch { lanes: self.lanes, ..settings.passes }, ..settings }
    }

    /// Begins the run, after everything is checked and loaded. `remarks` are those on its metrics.
    fn recorder<'o>(&self, remarks: Vec<String>, observer: &'o mut dyn Observer) -> Result<Recorder<'o>> {
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
        Ok(recorder.described_by(self.plan.to_yaml()))
    }

    /// Writes `results.json` (held-out metrics before and after, the last logged ones, the best, the effort), charts and report.
    fn finish(&self, recorder: &mut Recorder<'_>, settings: &Settings) -> Result<FinishedRun> {
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
        let samples = self.plan.method().is_online();
        let diverged = recorder.state.divergence.is_some();
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
            "no_improvement": diagnosis::no_improvement(recorder.state.best, &logged, settings, samples, diverged),
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

    fn outcome(&self, results: Value) -> FinishedRun {
        FinishedRun { directory: self.shared.path().to_owned(), model: self.shared.model(), results }
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
}

/// Prompts sampled in proportion to their column `weight` to the power of `scale`.
fn weighted(scale: Option<f64>, order: Order, prompts: &[Prompt]) -> Result<Option<Weighted>> {
    let Some(scale) = scale else { return Ok(None) };
    let weight = |prompt: &Prompt| match prompt.columns.get("weight") {
        None | Some(Value::Null) => Ok(1.0),
        Some(value) => value.as_f64().filter(|weight| *weight >= 0.0).ok_or_else(|| {
            let message = format!("row {}: `weight` is {value}, but must be a number from 0", prompt.row + 1);
            Error::input(message).with_hint("`train.priority_scale` samples prompts by it")
        }),
    };
    let weights = prompts.iter().map(weight).collect::<Result<Vec<f64>>>()?;
    let none = || Error::input("every prompt has the `weight` 0, so `train.priority_scale` would sample none");
    Weighted::new(order, &weights, scale).ok_or_else(none).map(Some)
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
