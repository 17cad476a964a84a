//! The computing thread. It owns models, adapters, optimizers and samplers, and alternates between them.
//!
//! A turn is one forward and backward pass, one optimizer step, or one token of every completion of a sampler. The session that has used
//! the least time is next, so no client waits for a whole request of another.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus::batches::MicroBatch;
use gradus::threads::among_threads;
use gradus::trainer::{Base, ForwardBackward, Loss, Targeted, Trainer, TrainerOptions};
use gradus::{Error, Result};
use prost::Message;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::bodies::{self, CreateBody, LoadBody, SaveBody, SaveForSamplerBody, StepBody};
use super::checkpoints::{self, CheckpointAddress, CheckpointMetadata, Use};
use super::data::{self, Cells};
use super::journal::StoredRequest;
use super::outcome::{Failure, RequestResult};
use super::proto::ForwardBackwardRequest;
use super::registry::{Kind, QueuedRequest, Samples, Turn};
use super::sampling::Sampling;
use super::shared::{Computer, Shared};

/// Interval at which the thread looks for idle sessions.
const LOOK: Duration = Duration::from_secs(1);

/// Interval at which the adapters of unused samplers are removed.
const SWEEP: Duration = Duration::from_secs(60);

/// Maximum number of base models in memory.
const BASES_MAX: usize = 2;

/// Maximum number of samplers in memory.
const SAMPLERS_MAX: usize = 4;

/// The state of a model is saved when repeating the work since the last saved state would take this many seconds, or this many times as
/// long as saving.
const REPEAT_SECONDS: f64 = 20.0;
const REPEAT_TIMES: f64 = 20.0;

/// A model in memory.
struct Live {
    trainer: Option<Trainer>,
    /// Number of the first request that failed since the last step and lost a gradient.
    broken: Option<u64>,
    /// Requests after the saved state that are repeated.
    repeated: VecDeque<StoredRequest>,
    passes: Option<Passes>,
    /// Computing time in seconds since the last saved state, and duration of saving it.
    unsaved: f64,
    saving: f64,
    /// Number of the last finished request.
    seq: u64,
    last_request: Instant,
}

/// A forward and backward pass in progress.
struct Passes {
    seq: u64,
    /// Texts, of which those with too many targets for a turn are split.
    rows: Vec<Targeted>,
    /// Number of `rows` that each text of the request became.
    parts: Vec<usize>,
    cells: Vec<Cells>,
    loss: Loss,
    is_forward: bool,
    is_repeated: bool,
    left: VecDeque<Range<usize>>,
    found: ForwardBackward,
}

/// Progress of a request.
enum Done {
    /// It finished immediately.
    With(RequestResult),
    /// It continues, one pass per turn.
    Goes(Box<Passes>),
}

/// State of the computing thread.
pub struct Worker {
    shared: Arc<Shared>,
    computer: Computer,
    bases: Vec<(String, Arc<Base>)>,
    models: HashMap<String, Live>,
    samplers: HashMap<String, (Instant, Sampling)>,
    looked: Instant,
    /// Time when the adapters of unused samplers were last removed.
    swept: Instant,
}

impl Worker {
    /// Computes until the server ends.
    pub fn run(shared: Arc<Shared>, computer: Computer) {
        let (bases, models, samplers) = (Vec::new(), HashMap::new(), HashMap::new());
        let (looked, swept) = (Instant::now(), Instant::now());
        let mut worker = Self { shared, computer, bases, models, samplers, looked, swept };
        loop {
            let turn = {
                let mut registry = worker.shared.registry();
                loop {
                    if worker.shared.has_ended() {
                        return;
                    }
                    let turn = registry.turn();
                    if turn.is_some() || worker.looked.elapsed() >= LOOK {
                        break turn;
                    }
                    registry = worker.shared.wait(registry, LOOK);
                }
            };
            if let Some(turn) = turn {
                let began = Instant::now();
                let did = catch_unwind(AssertUnwindSafe(|| among_threads(|| worker.take(&turn))));
                if did.is_err() {
                    worker.failed(&turn);
                }
                worker.shared.registry().used(&turn, began.elapsed().as_secs_f64());
                worker.shared.notify();
            }
            if worker.looked.elapsed() >= LOOK {
                worker.look();
            }
        }
    }

    /// Handles a turn that panicked: the request fails, and the model is restored from its last saved state.
    fn failed(&mut self, turn: &Turn) {
        let failure = || {
            RequestResult::Failed(Failure::server(
                "the server failed at this request: its last output shows the reason",
            ))
        };
        match turn {
            Turn::Model(id) | Turn::End(id) => {
                let repeated = self.models.get(id).and_then(|live| live.repeated.front()).is_some();
                self.models.remove(id);
                let mut registry = self.shared.registry();
                if let Some((_, seq, _)) = registry.next(id).filter(|_| !repeated || matches!(turn, Turn::Model(_))) {
                    registry.finish(id, seq, failure());
                }
                if matches!(turn, Turn::End(_)) {
                    registry.remove_model(id);
                }
            }
            Turn::Sampler(id) => {
                self.samplers.remove(id);
                let mut registry = self.shared.registry();
                for seq in registry.running(id) {
                    registry.answer_sample(id, seq, failure());
                }
            }
        }
    }

    /// Frees the resources of idle sessions.
    fn look(&mut self) {
        self.looked = Instant::now();
        let mut registry = self.shared.registry();
        for id in registry.tidy() {
            // The failures take effect only when the model is restored.
            self.models.remove(&id);
        }
        let asleep: Vec<String> =
            self.models.keys().filter(|id| !registry.is_awake(id) && !registry.has_work(id)).cloned().collect();
        self.samplers.retain(|id, (last_request, sampling)| {
            registry.has_sampler(id) && (sampling.is_busy() || last_request.elapsed() < self.computer.options.silent)
        });
        let used = registry.sampler_directories();
        drop(registry);
        asleep.iter().for_each(|id| self.put_away(id));
        if self.swept.elapsed() > SWEEP {
            self.swept = Instant::now();
            checkpoints::drop_samplers(&self.shared.folder, &used);
        }
        self.shared.notify();
    }

    /// Removes a model from memory. Its state is saved if possible.
    fn put_away(&mut self, id: &str) {
        let Some(mut live) = self.models.remove(id) else { return };
        if let Err(error) = among_threads(|| self.save_state(id, &mut live)) {
            // The journal contains everything needed to restore it.
            tracing::warn!("{error}");
        }
    }

    fn take(&mut self, turn: &Turn) {
        match turn {
            Turn::Model(id) => self.model(id),
            Turn::Sampler(id) => self.sampler(id),
            Turn::End(id) => self.end(id),
        }
    }

    /// Returns the base model `name`, loaded.
    fn base(&mut self, name: &str) -> Result<Arc<Base>> {
        if let Some(at) = self.bases.iter().position(|(known, _)| known == name) {
            let found = self.bases.remove(at);
            self.bases.push(found);
        } else {
            let found = self.computer.models.language(name)?;
            let options = TrainerOptions {
                model: found.path.to_string_lossy().into_owned(),
                weights: self.computer.computing.weights,
                device: self.computer.computing.device.clone(),
                passes: MicroBatch::new(self.computer.options.pass_tokens, None),
                ..TrainerOptions::default()
            };
            let base = Arc::new(Base::open(&options)?);
            if self.bases.len() >= BASES_MAX {
                // Adapters in memory keep their base.
                self.bases.remove(0);
            }
            self.bases.push((name.to_owned(), base));
        }
        Ok(Arc::clone(&self.bases.last().expect("it was just added").1))
    }

    /// Runs one turn of a model.
    fn model(&mut self, id: &str) {
        if !self.models.contains_key(id) {
            self.make_room();
            match self.open(id) {
                Ok(live) => drop(self.models.insert(id.to_owned(), live)),
                Err(error) => return self.finish(id, None, RequestResult::Failed(error.into())),
            }
        }
        let mut live = self.models.remove(id).expect("it was just added");
        live.last_request = Instant::now();
        let began = Instant::now();
        self.advance(id, &mut live);
        live.unsaved += began.elapsed().as_secs_f64();
        self.models.insert(id.to_owned(), live);
    }

    /// Removes the least recently used models from memory if there are too many.
    fn make_room(&mut self) {
        while self.models.len() >= self.computer.options.models.max(1) {
            let registry = self.shared.registry();
            let idle = self.models.iter().filter(|(id, live)| live.passes.is_none() && !registry.has_work(id));
            let busy = self.models.iter().filter(|(_, live)| live.passes.is_none());
            let oldest = idle
                .min_by_key(|(_, live)| live.last_request)
                .or_else(|| busy.min_by_key(|(_, live)| live.last_request));
            let oldest = oldest.or_else(|| self.models.iter().next()).map(|(id, _)| id.clone());
            drop(registry);
            let Some(oldest) = oldest else { return };
            self.put_away(&oldest);
        }
    }

    /// Restores a model from its last saved state and the later requests.
    fn open(&mut self, id: &str) -> Result<Live> {
        let (base, requests) = {
            let registry = self.shared.registry();
            let base = registry.base(id).ok_or_else(|| Error::input(format!("there is no model `{id}`")))?;
            (base, registry.journal.requests(id)?)
        };
        let state = checkpoints::state(&self.shared.folder, id);
        let (mut trainer, mut seq) = (None, None);
        if state.is_dir() {
            let about = checkpoints::read_about(&state)?;
            let mut saved = self.base(&base)?.saved_adapter(&state)?;
            saved.restore_optimizer(&state)?;
            (trainer, seq) = (Some(saved), Some(about.seq));
        }
        let changes = |request: &StoredRequest| {
            let kind = Kind::named(&request.kind);
            !matches!(kind, None | Some(Kind::Save | Kind::SaveForSampler | Kind::Unsupported))
        };
        let is_new = |request: &StoredRequest| seq.is_none_or(|seq| request.seq > seq);
        let repeated = requests
            .into_iter()
            .filter(|request| request.outcome.is_some() && is_new(request) && changes(request))
            .collect();
        let (broken, passes, seq) = (None, None, seq.unwrap_or(0));
        Ok(Live { trainer, broken, repeated, passes, unsaved: 0.0, saving: 0.0, seq, last_request: Instant::now() })
    }

    /// Runs one pass, or one request.
    fn advance(&mut self, id: &str, live: &mut Live) {
        if let Some(mut passes) = live.passes.take() {
            match one_pass(live, &mut passes) {
                Ok(true) => {
                    let Passes { seq, parts, cells, found, is_repeated, .. } = passes;
                    live.seq = seq;
                    if !is_repeated {
                        let mut of_parts = found.logprobs.into_iter();
                        let mut joined = |parts: usize| of_parts.by_ref().take(parts).collect::<Vec<_>>().concat();
                        let logprobs: Vec<Vec<f32>> = parts.into_iter().map(&mut joined).collect();
                        let output = data::output(&cells, found.loss, &logprobs);
                        self.finish(id, Some(seq), RequestResult::Proto(output.encode_to_vec()));
                    }
                }
                Ok(false) => live.passes = Some(passes),
                Err(error) => {
                    live.lost(Kind::ForwardBackward, passes.seq, passes.is_forward);
                    if !passes.is_repeated {
                        self.finish(id, Some(passes.seq), RequestResult::Failed(error.into()));
                    }
                }
            }
            return;
        }
        if let Some(StoredRequest { seq, kind, body, outcome }) = live.repeated.pop_front() {
            let Some(kind) = Kind::named(&kind) else { return };
            if matches!(outcome, Some(RequestResult::Failed(_))) {
                return live.lost(kind, seq, kind == Kind::ForwardBackward && is_forward(&body));
            }
            if kind == Kind::ForwardBackward && is_forward(&body) {
                return;
            }
            match self.request(id, live, seq, kind, &body, true) {
                Ok(Done::Goes(passes)) => live.passes = Some(*passes),
                Ok(Done::With(_)) => live.seq = seq,
                // The request succeeded the first time.
                Err(failure) => {
                    tracing::warn!("request {seq} of `{id}` cannot be repeated: {}", failure.message);
                    live.lost(kind, seq, false);
                }
            }
            return;
        }
        let Some((_, seq, QueuedRequest { kind, body })) = self.shared.registry().next(id) else { return };
        match self.request(id, live, seq, kind, &body, false) {
            Ok(Done::Goes(passes)) => live.passes = Some(*passes),
            Ok(Done::With(outcome)) => {
                live.seq = seq;
                self.finish(id, Some(seq), outcome);
                let is_late = live.unsaved > REPEAT_SECONDS.max(REPEAT_TIMES * live.saving);
                // The checkpoint may no longer exist when the server restarts.
                let is_due = kind == Kind::Load || kind == Kind::Step && is_late;
                if is_due && let Err(error) = self.save_state(id, live) {
                    tracing::warn!("{error}");
                }
            }
            Err(failure) => {
                live.lost(kind, seq, kind == Kind::ForwardBackward && is_forward(&body));
                self.finish(id, Some(seq), RequestResult::Failed(failure));
            }
        }
    }

    /// Stores the result of a request. Without a number, this is the next request.
    fn finish(&self, id: &str, seq: Option<u64>, outcome: RequestResult) {
        let mut registry = self.shared.registry();
        let seq = seq.or_else(|| registry.next(id).map(|(_, seq, _)| seq));
        if let Some(seq) = seq {
            registry.finish(id, seq, outcome);
        }
    }

    /// Saves the state of a model, unless that would lose accumulated gradients, which are not part of the state.
    fn save_state(&mut self, id: &str, live: &mut Live) -> Result<()> {
        let Some(trainer) = live.trainer.as_ref().filter(|trainer| trainer.is_fresh()) else { return Ok(()) };
        if live.broken.is_some() || live.passes.is_some() || !live.repeated.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let Some(base) = self.shared.registry().base(id) else { return Ok(()) };
        let about = about(&base, trainer, None, live.seq);
        let state = checkpoints::state(&self.shared.folder, id);
        checkpoints::write(&state, &about, |path| trainer.write_files_with_optimizer(path))?;
        self.shared.registry().saved(id, live.seq);
        (live.unsaved, live.saving) = (0.0, began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Ends a model. Its last state becomes a checkpoint.
    fn end(&mut self, id: &str) {
        let end = |worker: &mut Self| -> Result<()> {
            let mut live = match worker.models.remove(id) {
                Some(live) => live,
                None => worker.open(id)?,
            };
            while live.passes.is_some() || !live.repeated.is_empty() {
                worker.advance(id, &mut live);
            }
            // A gradient without a step is not part of the model's last state.
            live.trainer.iter_mut().for_each(Trainer::discard);
            live.broken = None;
            if live.trainer.as_ref().is_some_and(|trainer| trainer.steps() > 0) {
                worker.save_state(id, &mut live)?;
                checkpoints::keep_state(&worker.shared.folder, id)?;
            }
            Ok(())
        };
        if let Err(error) = end(self) {
            tracing::warn!("the last state of `{id}` is not saved: {error}");
        }
        self.shared.registry().remove_model(id);
    }

    /// Executes a request.
    fn request(
        &mut self,
        id: &str,
        live: &mut Live,
        seq: u64,
        kind: Kind,
        body: &[u8],
        is_repeated: bool,
    ) -> Result<Done, Failure> {
        let folder = self.shared.folder.clone();
        let base_name = self.shared.registry().base(id).unwrap_or_default();
        match kind {
            Kind::Unsupported => {
                let what = String::from_utf8_lossy(body);
                Err(Failure::user(format!("`{what}` is not supported by this server")))
            }
            Kind::Create => {
                let body: CreateBody = read(body)?;
                let base = self.base(&base_name)?;
                let trainer = body.adapter(&base)?;
                let rank = trainer.adapter().map_or(0, |adapter| adapter.rank);
                live.trainer = Some(trainer);
                Ok(Done::With(RequestResult::json(
                    &json!({ "model_id": id, "type": "create_model", "lora_rank": rank }),
                )))
            }
            Kind::Load => {
                let body: LoadBody = read(body)?;
                body.check()?;
                let address = CheckpointAddress::parse(&body.path)?;
                let about = address.about(&folder)?;
                if about.base_model != base_name {
                    let message = format!(
                        "`{}` is an adapter of `{}`, but this model's base is `{base_name}`",
                        body.path, about.base_model
                    );
                    return Err(Failure::user(message));
                }
                let directory = address.directory(&folder);
                let mut trainer = self.base(&base_name)?.saved_adapter(&directory)?;
                if let Some(own) = &live.trainer {
                    refuse_other_adapter(&body.path, &trainer, own)?;
                }
                if body.optimizer {
                    trainer.restore_optimizer(&directory)?;
                }
                let rank = trainer.adapter().map_or(0, |adapter| adapter.rank);
                (live.trainer, live.broken) = (Some(trainer), None);
                let response = json!({ "path": body.path, "model_id": id, "type": "load_weights", "lora_rank": rank });
                Ok(Done::With(RequestResult::json(&response)))
            }
            Kind::ForwardBackward => {
                let request = ForwardBackwardRequest::decode(body)
                    .map_err(|error| Failure::user(format!("the body is not a `ForwardBackwardRequest`: {error}")))?;
                let last_request = data::read(&request).map_err(Failure::user)?;
                let trainer = live.trainer()?;
                for (i, row) in last_request.rows.iter().enumerate() {
                    trainer.check_targeted(&format!("datum {}", i + 1), row, last_request.loss)?;
                }
                let data::PassRequest { rows, cells, loss, is_forward } = last_request;
                let most = trainer.targets_per_pass();
                let split: Vec<Vec<Targeted>> = rows.into_iter().map(|row| row.split(most)).collect();
                let parts = split.iter().map(Vec::len).collect();
                let rows: Vec<Targeted> = split.into_iter().flatten().collect();
                let (left, found) = (trainer.passes(&rows).into(), ForwardBackward::default());
                let passes = Passes { seq, rows, parts, cells, loss, is_forward, is_repeated, left, found };
                Ok(Done::Goes(Box::new(passes)))
            }
            Kind::Step => {
                let body: StepBody = read(body)?;
                let params = body.params()?;
                if let Some(failed) = live.broken {
                    return Err(Failure::user(format!(
                        "forward_backward {failed} failed, so the gradient is incomplete: it was dropped, and the weights are as before"
                    )));
                }
                let trainer = live.trainer()?;
                if trainer.is_fresh() {
                    return Err(Failure::user("there is no gradient: call `forward_backward` before `optim_step`"));
                }
                let step = trainer.optim_step_with(&params)?;
                Ok(Done::With(RequestResult::json(&json!({ "metrics": { "grad_norm:mean": step.grad_norm } }))))
            }
            Kind::Save => {
                let body: SaveBody = read(body)?;
                let trainer = live.trainer()?;
                let name = body.path.clone().unwrap_or_else(|| format!("request-{seq}"));
                let address = CheckpointAddress::new(id, Use::Training, &name)?;
                let directory = address.directory(&folder);
                refuse_existing(&address, &directory, body.overwrite, seq)?;
                let about = about(&base_name, trainer, body.user_metadata, seq);
                checkpoints::write(&directory, &about, |path| trainer.write_files_with_optimizer(path))?;
                Ok(Done::With(RequestResult::json(&json!({ "path": address.path(), "type": "save_weights" }))))
            }
            Kind::SaveForSampler => {
                let body: SaveForSamplerBody = read(body)?;
                let trainer = live.trainer()?;
                let about = about(&base_name, trainer, body.user_metadata, seq);
                let write = |directory: &Path| checkpoints::write(directory, &about, |path| trainer.write_files(path));
                if let Some(name) = &body.path {
                    let address = CheckpointAddress::new(id, Use::Sampling, name)?;
                    let directory = address.directory(&folder);
                    refuse_existing(&address, &directory, false, seq)?;
                    write(&directory)?;
                    let response = json!({ "path": address.path(), "sampling_session_id": null, "type": "save_weights_for_sampler" });
                    return Ok(Done::With(RequestResult::json(&response)));
                }
                let directory = checkpoints::sampler(id, seq);
                write(&folder.join(&directory))?;
                let (session, _) = id.split_once(':').unwrap_or((id, ""));
                let number = body.sampling_session_seq_id.unwrap_or(u64::from(u32::MAX) + seq);
                let created =
                    self.shared.registry().create_sampler(session, number, &base_name, (Some(directory), None));
                let sampler = created.map_err(|_| Failure::user("the session has ended"))?;
                let response =
                    json!({ "path": null, "sampling_session_id": sampler, "type": "save_weights_for_sampler" });
                Ok(Done::With(RequestResult::json(&response)))
            }
        }
    }

    /// Runs one turn of a sampler.
    fn sampler(&mut self, id: &str) {
        let Some(Samples { stored, fresh, canceled }) = self.shared.registry().take_samples(id) else { return };
        if !self.samplers.contains_key(id) {
            let idle = self.samplers.iter().filter(|(_, (_, sampling))| !sampling.is_busy());
            let oldest = idle.min_by_key(|(_, (last_request, _))| *last_request).map(|(id, _)| id.clone());
            if let Some(oldest) = oldest.filter(|_| self.samplers.len() >= SAMPLERS_MAX) {
                self.samplers.remove(&oldest);
            }
            let open = |worker: &mut Self| -> Result<Sampling> {
                let base = worker.base(&stored.base)?;
                let directory: Option<PathBuf> = stored.directory.as_ref().map(|of| worker.shared.folder.join(of));
                if directory.as_ref().is_some_and(|directory| !directory.is_dir()) {
                    let of_path = |path| format!("the checkpoint `{path}` was deleted");
                    let why = stored.path.as_ref().map_or("its weights were deleted".into(), of_path);
                    return Err(Error::input(format!("the sampler `{}` cannot continue: {why}", stored.id))
                        .with_hint("create a sampler from another checkpoint"));
                }
                let model = match directory {
                    Some(directory) => base.sampling_with(&directory)?,
                    None => base.sampling().clone(),
                };
                let files = base.files();
                Ok(Sampling::new(model, files.tokenizer.clone(), files.stop_ids(), worker.computer.computing.places))
            };
            match open(self) {
                Ok(sampling) => drop(self.samplers.insert(id.to_owned(), (Instant::now(), sampling))),
                Err(error) => {
                    let failure: Failure = error.into();
                    let mut registry = self.shared.registry();
                    for seq in registry.running(id) {
                        registry.answer_sample(id, seq, RequestResult::Failed(failure.clone()));
                    }
                    return;
                }
            }
        }
        let (last_request, sampling) = self.samplers.get_mut(id).expect("it was just added");
        *last_request = Instant::now();
        let mut done = Vec::new();
        for (seq, request) in fresh {
            match sampling.begin(seq, &request) {
                Ok(None) => {}
                Ok(Some(outcome)) => done.push((seq, outcome)),
                Err(failure) => done.push((seq, RequestResult::Failed(failure))),
            }
        }
        for seq in canceled {
            sampling.cancel(seq);
            done.push((seq, RequestResult::Failed(Failure::user("the request was canceled"))));
        }
        if sampling.is_busy() {
            done.extend(sampling.step());
        }
        let mut registry = self.shared.registry();
        done.into_iter().for_each(|(seq, outcome)| registry.answer_sample(id, seq, outcome));
    }
}

impl Live {
    fn trainer(&mut self) -> Result<&mut Trainer, Failure> {
        self.trainer.as_mut().ok_or_else(|| Failure::user("the model was not created: its first request failed"))
    }

    /// Records what is lost with a failed request.
    fn lost(&mut self, kind: Kind, seq: u64, is_forward: bool) {
        self.seq = seq;
        match kind {
            Kind::ForwardBackward if !is_forward => {
                self.broken.get_or_insert(seq);
                self.trainer.iter_mut().for_each(Trainer::discard);
            }
            Kind::Step => {
                self.broken = None;
                self.trainer.iter_mut().for_each(Trainer::discard);
            }
            _ => {}
        }
    }
}

/// Computes the next pass. Returns whether it was the last one.
fn one_pass(live: &mut Live, passes: &mut Passes) -> Result<bool> {
    let Some(trainer) = &mut live.trainer else { return Err(Error::input("the model was not created")) };
    if let Some(pass) = passes.left.pop_front() {
        let rows = &passes.rows[pass];
        let found = match passes.is_forward {
            true => trainer.forward_at(rows, passes.loss)?,
            false => trainer.forward_backward_at(rows, passes.loss)?,
        };
        passes.found.loss += found.loss;
        passes.found.logprobs.extend(found.logprobs);
    }
    Ok(passes.left.is_empty())
}

/// Returns whether a body requests only a forward pass.
fn is_forward(body: &[u8]) -> bool {
    ForwardBackwardRequest::decode(body).is_ok_and(|request| request.forward_only)
}

/// Parses a JSON body.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    bodies::parse(body).map_err(Failure::user)
}

/// Returns the metadata of a checkpoint of `trainer`.
fn about(base: &str, trainer: &Trainer, user_metadata: Option<Value>, seq: u64) -> CheckpointMetadata {
    let rank = trainer.adapter().map_or(0, |adapter| adapter.rank);
    CheckpointMetadata { base_model: base.to_owned(), rank, time: checkpoints::now(), user_metadata, seq }
}

/// Rejects overwriting a checkpoint, unless this request wrote it, or began to, before the server ended.
fn refuse_existing(
    address: &CheckpointAddress,
    directory: &Path,
    may_overwrite: bool,
    seq: u64,
) -> Result<(), Failure> {
    let is_own = || checkpoints::read_about(directory).map_or(true, |about| about.seq == seq);
    if may_overwrite || !directory.exists() || is_own() {
        return Ok(());
    }
    Err(Failure::user(format!("`{}` exists already: use another name, or `overwrite=True`", address.path())))
}

/// Rejects the checkpoint at `path` if its adapter has another rank or other layers than the model's `own`. The client would go on with an
/// adapter that it did not create.
fn refuse_other_adapter(path: &str, saved: &Trainer, own: &Trainer) -> Result<(), Failure> {
    let (Some(saved), Some(own)) = (saved.adapter(), own.adapter()) else { return Ok(()) };
    let difference = if saved.rank != own.rank {
        format!("has the rank {}, but that of this model has {}", saved.rank, own.rank)
    } else if saved.target_modules != own.target_modules {
        format!("is for layers named {}, but that of this model for {}", saved.target_modules, own.target_modules)
    } else {
        return Ok(());
    };
    Err(Failure::user(format!(
        "the adapter of `{path}` {difference}: create a training client from the checkpoint, or one of the same form"
    )))
}
