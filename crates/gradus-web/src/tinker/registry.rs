//! Sessions, models, samplers, requests and results. Nothing is computed here, so the lock is always held only briefly.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus::Result;

use super::checkpoints::now;
use super::journal::{Journal, StoredModel, StoredRequest, StoredSampler, StoredSession};
use super::options::TrainingOptions;
use super::outcome::{Failure, Refused, RequestResult};
use super::sampling::SampleRequest;
use crate::secret::secret;

/// Number of stored results per model or sampler, which are the responses to repeated requests.
const RESULTS_KEPT: usize = 1024;

/// Maximum number of waiting requests per model or sampler.
const WAITING_MAX: usize = 4096;

/// Maximum size of a model's waiting requests in bytes.
const WAITING_BYTES_MAX: usize = 512 << 20;

/// Maximum number of unnamed samplers per session. The oldest one is removed.
const SAMPLERS_KEPT: usize = 64;

/// Minimum interval between two writes of the time of a session's last request.
const SEEN_STORED: Duration = Duration::from_secs(20);

/// Maximum number of models in all sessions.
const MODELS_MAX: usize = 1024;

/// Kind of a request to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Create a new adapter.
    Create,
    /// Load an adapter from a checkpoint, as the first request or a later one.
    Load,
    /// Forward pass, usually with a backward pass.
    ForwardBackward,
    /// Optimizer step.
    Step,
    /// Save a checkpoint for training.
    Save,
    /// Save a checkpoint for sampling.
    SaveForSampler,
    /// Unsupported request; the body describes it.
    Unsupported,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Create,
        Self::Load,
        Self::ForwardBackward,
        Self::Step,
        Self::Save,
        Self::SaveForSampler,
        Self::Unsupported,
    ];

    /// Returns the name in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Load => "load",
            Self::ForwardBackward => "forward_backward",
            Self::Step => "optim_step",
            Self::Save => "save",
            Self::SaveForSampler => "save_for_sampler",
            Self::Unsupported => "unsupported",
        }
    }

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A waiting request.
#[derive(Debug, Clone)]
pub struct QueuedRequest {
    /// Kind of the request.
    pub kind: Kind,
    /// Body of the request.
    pub body: Arc<[u8]>,
}

struct Session {
    /// Last request in this process, or the start of the process.
    seen: Instant,
    /// Idle time before `seen`: that of a stored session without a request in this process.
    idle_before: Duration,
    /// Time when the last request was stored.
    stored: Instant,
    used: f64,
}

impl Session {
    fn new(idle_before: Duration, used: f64) -> Self {
        let now = Instant::now();
        Self { seen: now, idle_before, stored: now, used }
    }

    /// Time since the last request. The time during which no server ran does not count.
    fn idle(&self) -> Duration {
        self.idle_before + self.seen.elapsed()
    }
}

struct Model {
    session: String,
    base: String,
    /// Number of the next request.
    next: u64,
    queue: BTreeMap<u64, QueuedRequest>,
    bytes: usize,
    done: BTreeMap<u64, Arc<RequestResult>>,
    used: f64,
    /// Time since which requests wait for a missing earlier one.
    gap: Option<Instant>,
    ends: bool,
}

struct Sampler {
    stored: StoredSampler,
    queue: VecDeque<(u64, Arc<SampleRequest>)>,
    /// Requests that are being sampled.
    running: BTreeSet<u64>,
    canceled: Vec<u64>,
    done: BTreeMap<u64, Arc<RequestResult>>,
    used: f64,
    last_request: Instant,
    clones: u64,
}

/// Owner of the next turn on the computing thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// A model.
    Model(String),
    /// A sampler.
    Sampler(String),
    /// A model that ends.
    End(String),
}

/// State of a request.
#[derive(Debug, Clone)]
pub enum RequestState {
    /// Its result.
    Done(Arc<RequestResult>),
    /// It waits, or is being computed.
    Waiting,
    /// It never existed, or no longer exists.
    Gone,
}

/// State of the training server.
pub struct Registry {
    /// Journal on disk.
    pub journal: Journal,
    options: TrainingOptions,
    sessions: HashMap<String, Session>,
    models: HashMap<String, Model>,
    samplers: HashMap<String, Sampler>,
}

impl Registry {
    /// Restores the state from the journal.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn open(journal: Journal, options: TrainingOptions) -> Result<Self> {
        let stored = journal.sessions()?;
        // The last server ran at least until its last request. A time in the future comes from a wrong clock.
        let last = stored.iter().map(|of| of.seen).max().unwrap_or(0).min(now());
        let idle = |seen: u64| Duration::from_secs(last.saturating_sub(seen));
        let restored = |of: StoredSession| (of.id, Session::new(idle(of.seen), 0.0));
        let sessions = stored.into_iter().map(restored).collect();
        let mut models = HashMap::new();
        for StoredModel { id, session, base } in journal.models()? {
            let (mut queue, mut done, mut bytes) = (BTreeMap::new(), BTreeMap::new(), 0);
            for StoredRequest { seq, kind, body, outcome } in journal.requests(&id)? {
                match (outcome, Kind::named(&kind)) {
                    (Some(outcome), _) => drop(done.insert(seq, Arc::new(outcome))),
                    (None, Some(kind)) => {
                        bytes += body.len();
                        queue.insert(seq, QueuedRequest { kind, body: body.into() });
                    }
                    (None, None) => {}
                }
            }
            let next = done.last_key_value().map_or(0, |(seq, _)| seq + 1);
            let model = Model { session, base, next, queue, bytes, done, used: 0.0, gap: None, ends: false };
            models.insert(id, model);
        }
        let samplers =
            journal.samplers()?.into_iter().map(|stored| (stored.id.clone(), Sampler::new(stored))).collect();
        Ok(Self { journal, options, sessions, models, samplers })
    }

    /// Creates a session. `key` identifies repeated requests.
    ///
    /// # Errors
    /// There are too many sessions, or the disk is full.
    pub fn create_session(&mut self, key: Option<&str>) -> Result<String, Refused> {
        if let Some(known) = key.map(|key| self.journal.session_of(key)).transpose()?.flatten() {
            return Ok(known);
        }
        if self.sessions.len() >= self.options.sessions {
            self.make_room();
            let most = self.options.sessions;
            if self.sessions.len() >= most {
                let unheard = self.options.unheard.as_secs();
                return Err(Refused::busy(format!(
                    "all {most} sessions of this server are in use: try again later, or start the server with a larger \
                     `--training-sessions`. A session makes room if its client closes it, or sends nothing for {unheard} \
                     seconds"
                )));
            }
        }
        let id = format!("s{}", &secret()[..20]);
        self.journal.add_session(&id, key, now())?;
        self.sessions.insert(id.clone(), Session::new(Duration::ZERO, self.least_used()));
        Ok(id)
    }

    /// Ends the session with the longest idle time, if that exceeds the limit.
    fn make_room(&mut self) {
        let oldest = self.sessions.iter().max_by_key(|(_, of)| of.idle());
        if let Some(id) = oldest.filter(|(_, of)| of.idle() > self.options.unheard).map(|(id, _)| id.clone()) {
            self.end_session(&id);
        }
    }

    /// Returns the sessions that have not ended, the newest first.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn sessions(&self) -> Result<Vec<String>, Refused> {
        Ok(self.journal.sessions()?.into_iter().rev().map(|of| of.id).collect())
    }

    /// Ends a session. The last states of its models become checkpoints.
    pub fn end_session(&mut self, id: &str) {
        if self.sessions.remove(id).is_none() {
            return;
        }
        if let Err(error) = self.journal.end_session(id) {
            tracing::warn!("{error}");
        }
        let models = self.models.iter_mut().filter(|(_, model)| model.session == id);
        models.for_each(|(_, model)| model.ends = true);
        let samplers: Vec<String> =
            self.samplers.iter().filter(|(_, of)| of.stored.session == id).map(|(id, _)| id.clone()).collect();
        samplers.iter().for_each(|id| self.end_sampler(id));
    }

    fn end_sampler(&mut self, id: &str) {
        self.samplers.remove(id);
        if let Err(error) = self.journal.end_sampler(id) {
            tracing::warn!("{error}");
        }
    }

    /// Records activity of a session, also in the journal.
    ///
    /// # Errors
    /// The session does not exist or has ended.
    pub fn touch(&mut self, id: &str) -> Result<(), Refused> {
        if let Some(session) = self.sessions.get_mut(id) {
            (session.seen, session.idle_before) = (Instant::now(), Duration::ZERO);
            if session.stored.elapsed() > SEEN_STORED {
                session.stored = session.seen;
                // The request does not need the stored time, so it continues.
                if let Err(error) = self.journal.seen(id, now()) {
                    tracing::warn!("{error}");
                }
            }
            return Ok(());
        }
        Err(match self.journal.has_ended(id)? {
            Some(_) => {
                Refused::gone(format!("the session `{id}` has ended, but its checkpoints exist: start a new session"))
            }
            None => Refused::missing(format!("there is no session `{id}`")),
        })
    }

    /// Returns whether the session has been idle for longer than the limit.
    fn is_silent(&self, session: &str) -> bool {
        self.sessions.get(session).is_none_or(|session| session.idle() > self.options.silent)
    }

    /// Adds a model, which the request `kind` with `body` creates, and returns the id of that request. `base` is the name of the base
    /// model.
    ///
    /// # Errors
    /// The session does not exist, there are too many models, or the disk is full.
    pub fn create_model(
        &mut self,
        session: &str,
        number: u64,
        base: &str,
        kind: Kind,
        body: &[u8],
    ) -> Result<(String, String), Refused> {
        self.touch(session)?;
        let id = format!("{session}:train:{number}");
        let request = format!("{id}:0");
        if self.models.contains_key(&id) {
            return Ok((id, request));
        }
        if self.models.len() >= MODELS_MAX {
            return Err(Refused::busy(format!("there are {MODELS_MAX} models, which is the limit: end a session")));
        }
        let stored = StoredModel { id: id.clone(), session: session.to_owned(), base: base.to_owned() };
        self.journal.add_model(&stored, kind.name(), body)?;
        let queue = BTreeMap::from([(0, QueuedRequest { kind, body: body.into() })]);
        let (session, base, used) = (stored.session, stored.base, self.least_used());
        let (bytes, done) = (body.len(), BTreeMap::new());
        self.models
            .insert(id.clone(), Model { session, base, next: 0, queue, bytes, done, used, gap: None, ends: false });
        Ok((id, request))
    }

    fn model(&self, id: &str) -> Result<&Model, Refused> {
        let found = self.models.get(id).filter(|model| !model.ends);
        found.ok_or_else(|| {
            Refused::missing(format!("there is no model `{id}`: it was unloaded, or its session has ended"))
        })
    }

    /// Returns the name of a model's base, and the result of the request that created the model.
    ///
    /// # Errors
    /// The model does not exist, or is not created yet.
    pub fn info(&mut self, id: &str) -> Result<(String, Arc<RequestResult>), Refused> {
        let model = self.model(id)?;
        let made = model.done.get(&0).cloned();
        let (base, session) = (model.base.clone(), model.session.clone());
        self.touch(&session)?;
        made.map(|made| (base, made)).ok_or_else(|| Refused::request(format!("the model `{id}` is not created yet")))
    }

    /// Accepts request `seq` of a model and returns its id. Repeated requests are accepted only once.
    ///
    /// # Errors
    /// The model does not exist, its session has ended, too many requests wait, or the disk is full.
    pub fn submit(&mut self, id: &str, seq: u64, kind: Kind, body: &[u8]) -> Result<String, Refused> {
        let session = self.model(id)?.session.clone();
        self.touch(&session)?;
        let least = self.least_used();
        let model = self.models.get_mut(id).expect("it was just there");
        let request = format!("{id}:{seq}");
        if seq == 0 {
            return Err(Refused::request("`seq_id` is 0 or missing, but requests to a model are numbered from 1 on"));
        }
        if let Some(queued) = model.queue.get(&seq) {
            return match queued.kind == kind {
                true => Ok(request),
                false => {
                    Err(Refused::request(format!("`seq_id` {seq} belongs to another request: {}", queued.kind.name())))
                }
            };
        }
        if model.done.contains_key(&seq) {
            return Ok(request);
        }
        if seq < model.next {
            return Err(Refused::gone(format!(
                "request {seq} of `{id}` is too late: {} requests are done",
                model.next
            )));
        }
        if model.queue.len() >= WAITING_MAX || model.bytes + body.len() > WAITING_BYTES_MAX {
            return Err(Refused::busy(format!("{} requests of `{id}` wait already", model.queue.len())));
        }
        self.journal.add(id, seq, kind.name(), body)?;
        if model.queue.is_empty() {
            model.used = model.used.max(least);
        }
        model.bytes += body.len();
        model.queue.insert(seq, QueuedRequest { kind, body: body.into() });
        model.gap = (!model.queue.contains_key(&model.next)).then(|| model.gap.unwrap_or_else(Instant::now));
        Ok(request)
    }

    /// Unloads a model. Its last state becomes a checkpoint.
    ///
    /// # Errors
    /// The model does not exist.
    pub fn unload(&mut self, id: &str) -> Result<(), Refused> {
        self.model(id)?;
        self.models.get_mut(id).expect("it was just there").ends = true;
        Ok(())
    }

    /// Adds a sampler, unless it exists, and returns its id.
    ///
    /// # Errors
    /// The session does not exist, or the disk is full.
    pub fn create_sampler(
        &mut self,
        session: &str,
        number: u64,
        base: &str,
        (directory, path): (Option<String>, Option<String>),
    ) -> Result<String, Refused> {
        self.touch(session)?;
        let id = format!("{session}:sample:{number}");
        if !self.samplers.contains_key(&id) {
            let (session, base) = (session.to_owned(), base.to_owned());
            let stored = StoredSampler { id: id.clone(), session: session.clone(), base, directory, path };
            self.journal.add_sampler(&stored)?;
            self.samplers.insert(id.clone(), Sampler::new(stored));
            self.drop_old_samplers(&session);
        }
        Ok(id)
    }

    /// Removes the least recently used samplers of a session if there are too many.
    fn drop_old_samplers(&mut self, session: &str) {
        let mut own: Vec<(Instant, String)> = self
            .samplers
            .values()
            .filter(|of| of.stored.session == session && of.is_idle())
            .map(|of| (of.last_request, of.stored.id.clone()))
            .collect();
        own.sort();
        for (_, id) in own.iter().take(own.len().saturating_sub(SAMPLERS_KEPT)) {
            self.end_sampler(id);
        }
    }

    fn sampler(&self, id: &str) -> Result<&Sampler, Refused> {
        self.samplers.get(id).ok_or_else(|| {
            let why = format!("only the last {SAMPLERS_KEPT} of a session are kept, and none after it has ended");
            Refused::missing(format!("there is no sampler `{id}`: {why}"))
        })
    }

    /// Returns a sampler's entry in the journal.
    ///
    /// # Errors
    /// The sampler does not exist.
    pub fn stored_sampler(&self, id: &str) -> Result<&StoredSampler, Refused> {
        Ok(&self.sampler(id)?.stored)
    }

    /// Returns a number for an additional client of a sampler.
    ///
    /// # Errors
    /// The sampler does not exist.
    pub fn join_sampler(&mut self, id: &str) -> Result<u64, Refused> {
        self.sampler(id)?;
        let sampler = self.samplers.get_mut(id).expect("it was just there");
        sampler.clones += 1;
        Ok(sampler.clones)
    }

    /// Accepts request `seq` to a sampler and returns its id. Repeated requests are accepted only once.
    ///
    /// # Errors
    /// The sampler does not exist, or too many requests wait.
    pub fn submit_sample(&mut self, id: &str, seq: u64, request: SampleRequest) -> Result<String, Refused> {
        let session = self.sampler(id)?.stored.session.clone();
        self.touch(&session)?;
        let least = self.least_used();
        let sampler = self.samplers.get_mut(id).expect("it was just there");
        sampler.last_request = Instant::now();
        let name = format!("{id}:{seq}");
        let is_known = sampler.done.contains_key(&seq)
            || sampler.running.contains(&seq)
            || sampler.queue.iter().any(|(queued, _)| *queued == seq);
        if is_known {
            return Ok(name);
        }
        if sampler.queue.len() >= WAITING_MAX {
            return Err(Refused::busy(format!("{WAITING_MAX} requests of `{id}` wait already")));
        }
        if sampler.is_idle() {
            sampler.used = sampler.used.max(least);
        }
        sampler.queue.push_back((seq, Arc::new(request)));
        Ok(name)
    }

    /// Cancels a request to a sampler.
    pub fn cancel(&mut self, request: &str) {
        let Some((id, seq)) = split(request) else { return };
        let Some(sampler) = self.samplers.get_mut(id) else { return };
        if sampler.running.contains(&seq) {
            sampler.canceled.push(seq);
        }
        if let Some(at) = sampler.queue.iter().position(|(queued, _)| *queued == seq) {
            sampler.queue.remove(at);
            sampler.answer(seq, RequestResult::Failed(Failure::user("the request was canceled")));
        }
    }

    /// Returns the state of a request.
    pub fn find(&mut self, request: &str) -> RequestState {
        let Some((id, seq)) = split(request) else { return RequestState::Gone };
        if let Some(model) = self.models.get(id) {
            let session = model.session.clone();
            let found = match model.done.get(&seq) {
                Some(outcome) => RequestState::Done(Arc::clone(outcome)),
                None if model.queue.contains_key(&seq) => RequestState::Waiting,
                None => RequestState::Gone,
            };
            // A waiting client counts as activity.
            let _ = self.touch(&session);
            return found;
        }
        let Some(sampler) = self.samplers.get(id) else { return RequestState::Gone };
        let session = sampler.stored.session.clone();
        let found = match sampler.done.get(&seq) {
            Some(outcome) => RequestState::Done(Arc::clone(outcome)),
            None if sampler.running.contains(&seq) || sampler.queue.iter().any(|(of, _)| *of == seq) => {
                RequestState::Waiting
            }
            None => RequestState::Gone,
        };
        let _ = self.touch(&session);
        found
    }

    /// Returns the models and samplers of a session.
    ///
    /// # Errors
    /// The session does not exist.
    pub fn of_session(&self, id: &str) -> Result<(Vec<String>, Vec<String>), Refused> {
        if !self.sessions.contains_key(id) {
            return Err(Refused::missing(format!("there is no session `{id}`, or it has ended")));
        }
        let mut models: Vec<String> =
            self.models.iter().filter(|(_, of)| of.session == id).map(|(id, _)| id.clone()).collect();
        let mut samplers: Vec<String> =
            self.samplers.iter().filter(|(_, of)| of.stored.session == id).map(|(id, _)| id.clone()).collect();
        models.sort();
        samplers.sort();
        Ok((models, samplers))
    }

    /// Returns the lowest computing time used so far by any model or sampler with work.
    fn least_used(&self) -> f64 {
        let models = self.models.values().filter(|of| of.can_run()).map(|of| of.used);
        let samplers = self.samplers.values().filter(|of| !of.is_idle()).map(|of| of.used);
        let least = models.chain(samplers).fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 0.0 }
    }

    /// Returns the owner of the next turn. Among all models and samplers with work, the session with the least computing time comes first,
    /// and within the session the model or sampler with the least.
    pub fn turn(&self) -> Option<Turn> {
        let of_session = |id: &str| self.sessions.get(id).map_or(0.0, |session| session.used);
        let models = self.models.iter().filter(|(_, model)| model.can_run() || model.ends).map(|(id, model)| {
            // Models that end come first, because they free memory.
            match model.ends {
                true => (f64::NEG_INFINITY, 0.0, Turn::End(id.clone())),
                false => (of_session(&model.session), model.used, Turn::Model(id.clone())),
            }
        });
        let samplers = self
            .samplers
            .iter()
            .filter(|(_, sampler)| !sampler.is_idle())
            .map(|(id, sampler)| (of_session(&sampler.stored.session), sampler.used, Turn::Sampler(id.clone())));
        let least = models.chain(samplers).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        least.map(|(_, _, turn)| turn)
    }

    /// Records the computing time of a turn.
    pub fn used(&mut self, turn: &Turn, seconds: f64) {
        let session = match turn {
            Turn::Model(id) | Turn::End(id) => self.models.get_mut(id).map(|model| {
                model.used += seconds;
                model.session.clone()
            }),
            Turn::Sampler(id) => self.samplers.get_mut(id).map(|sampler| {
                sampler.used += seconds;
                sampler.stored.session.clone()
            }),
        };
        // An idle session does not accumulate credit.
        let others = self.sessions.iter().filter(|(id, _)| Some(*id) != session.as_ref() && self.is_at_work(id));
        let least = others.map(|(_, of)| of.used).fold(f64::INFINITY, f64::min);
        if let Some(session) = session.and_then(|id| self.sessions.get_mut(&id)) {
            session.used += seconds;
            if least.is_finite() {
                session.used = session.used.max(least - seconds);
            }
        }
    }

    fn is_at_work(&self, session: &str) -> bool {
        self.models.values().any(|of| of.session == session && of.can_run())
            || self.samplers.values().any(|of| of.stored.session == session && !of.is_idle())
    }

    /// Returns the name of a model's base, and the model's next request.
    pub fn next(&self, id: &str) -> Option<(String, u64, QueuedRequest)> {
        let model = self.models.get(id)?;
        Some((model.base.clone(), model.next, model.queue.get(&model.next)?.clone()))
    }

    /// Returns the name of a model's base.
    pub fn base(&self, id: &str) -> Option<String> {
        Some(self.models.get(id)?.base.clone())
    }

    /// Stores the result of a model's request.
    pub fn finish(&mut self, id: &str, seq: u64, outcome: RequestResult) {
        // If the result cannot be written, the stored request is repeated after a restart, with the same bits.
        if let Err(error) = self.journal.finish(id, seq, &outcome) {
            tracing::warn!("{error}");
        }
        let Some(model) = self.models.get_mut(id) else { return };
        if let Some(queued) = model.queue.remove(&seq) {
            model.bytes -= queued.body.len();
        }
        model.done.insert(seq, Arc::new(outcome));
        model.next = seq + 1;
        while model.done.len() > RESULTS_KEPT {
            // The result of the first request is kept, because it describes the model.
            let Some(oldest) = model.done.keys().copied().find(|seq| *seq > 0) else { break };
            model.done.remove(&oldest);
        }
        let waits = !model.queue.is_empty() && !model.queue.contains_key(&model.next);
        model.gap = waits.then(|| model.gap.unwrap_or_else(Instant::now));
    }

    /// Deletes requests up to `seq`, which a saved state of the model includes.
    pub fn saved(&mut self, id: &str, seq: u64) {
        let kept = self.models.get(id).and_then(|model| model.done.keys().copied().find(|seq| *seq > 0));
        if let Err(error) = self.journal.forget(id, seq, kept.unwrap_or(0)) {
            tracing::warn!("{error}");
        }
    }

    /// Removes a model that has ended.
    pub fn remove_model(&mut self, id: &str) {
        self.models.remove(id);
        if let Err(error) = self.journal.end_model(id) {
            tracing::warn!("{error}");
        }
    }

    /// Takes the work of a sampler: its journal entry, new requests, and canceled ones.
    pub fn take_samples(&mut self, id: &str) -> Option<Samples> {
        let sampler = self.samplers.get_mut(id)?;
        let fresh: Vec<(u64, Arc<SampleRequest>)> = sampler.queue.drain(..).collect();
        sampler.running.extend(fresh.iter().map(|(seq, _)| *seq));
        Some(Samples { stored: sampler.stored.clone(), fresh, canceled: std::mem::take(&mut sampler.canceled) })
    }

    /// Stores the result of a request to a sampler.
    pub fn answer_sample(&mut self, id: &str, seq: u64, outcome: RequestResult) {
        if let Some(sampler) = self.samplers.get_mut(id) {
            sampler.running.remove(&seq);
            sampler.answer(seq, outcome);
        }
    }

    /// Returns the requests in progress of a sampler whose turn failed.
    pub fn running(&self, id: &str) -> Vec<u64> {
        self.samplers.get(id).map(|sampler| sampler.running.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns whether a sampler exists.
    pub fn has_sampler(&self, id: &str) -> bool {
        self.samplers.contains_key(id)
    }

    /// Returns whether a model may stay in memory, because its session is active.
    pub fn is_awake(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(|model| !self.is_silent(&model.session))
    }

    /// Returns whether a model has something to compute.
    pub fn has_work(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(Model::can_run)
    }

    /// Returns the directories of existing unnamed samplers.
    pub fn sampler_directories(&self) -> BTreeSet<String> {
        self.samplers.values().filter_map(|sampler| sampler.stored.directory.clone()).collect()
    }

    /// Ends sessions that have been idle for too long, and requests that have waited too long for a missing one. Returns the models of the
    /// latter.
    pub fn tidy(&mut self) -> Vec<String> {
        let lost = self.options.lost;
        let silent: Vec<String> =
            self.sessions.iter().filter(|(_, of)| of.idle() > lost).map(|(id, _)| id.clone()).collect();
        silent.iter().for_each(|id| self.end_session(id));
        let gap = self.options.gap;
        let late = |model: &Model| model.gap.is_some_and(|since| since.elapsed() > gap);
        let stuck: Vec<String> = self.models.iter().filter(|(_, of)| late(of)).map(|(id, _)| id.clone()).collect();
        for id in &stuck {
            let model = &self.models[id];
            let (missing, waiting) = (model.next, model.queue.keys().copied().collect::<Vec<_>>());
            let passed = gap.as_secs();
            for seq in waiting {
                let message = format!(
                    "request {missing} of the model was not received within {passed} seconds, so this request cannot \
                     be processed"
                );
                self.finish(id, seq, RequestResult::Failed(Failure::user(message)));
            }
        }
        stuck
    }
}

/// Work of a sampler.
pub struct Samples {
    /// Journal entry of the sampler.
    pub stored: StoredSampler,
    /// New requests.
    pub fresh: Vec<(u64, Arc<SampleRequest>)>,
    /// Canceled requests.
    pub canceled: Vec<u64>,
}

impl Model {
    fn can_run(&self) -> bool {
        self.queue.contains_key(&self.next)
    }
}

impl Sampler {
    fn new(stored: StoredSampler) -> Self {
        let (queue, running, canceled, done) = (VecDeque::new(), BTreeSet::new(), Vec::new(), BTreeMap::new());
        Self { stored, queue, running, canceled, done, used: 0.0, last_request: Instant::now(), clones: 0 }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }

    fn answer(&mut self, seq: u64, outcome: RequestResult) {
        self.done.insert(seq, Arc::new(outcome));
        while self.done.len() > RESULTS_KEPT {
            self.done.pop_first();
        }
    }
}

/// Splits the id of a request into the id of its model or sampler and its number.
fn split(request: &str) -> Option<(&str, u64)> {
    let (id, seq) = request.rsplit_once(':')?;
    Some((id, seq.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_earlier_servers_make_room_by_their_age() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path()).expect("a journal");
        // The server ended long ago, but one client was there until then.
        for (id, seen) in [("old", 1_000), ("older", 900), ("recent", 2_000)] {
            journal.add_session(id, None, 800).expect("added");
            journal.seen(id, seen).expect("stored");
        }
        let options = TrainingOptions { sessions: 3, ..TrainingOptions::default() };
        let mut registry = Registry::open(journal, options).expect("a registry");
        for gone in ["older", "old"] {
            assert!(registry.sessions.contains_key(gone), "{gone}");
            registry.create_session(None).expect("a session");
            assert!(!registry.sessions.contains_key(gone), "{gone}");
        }
        assert_eq!(registry.sessions().expect("a list").last().map(String::as_str), Some("recent"));
        let refused = format!("{:?}", registry.create_session(None).expect_err("too many"));
        assert!(refused.contains("`--training-sessions`") && refused.contains("for 60 seconds"), "{refused}");
        // A session that returns is not idle.
        let mut registry = Registry::open(registry.journal, TrainingOptions::default()).expect("a registry");
        registry.touch("recent").expect("it exists");
        assert!(registry.sessions["recent"].idle() < Duration::from_secs(60));
    }

    #[test]
    fn sessions_of_a_journal_without_times_are_new() {
        let folder = tempfile::tempdir().expect("a folder");
        let old =
            "CREATE TABLE sessions (id TEXT PRIMARY KEY, key TEXT UNIQUE, ended INTEGER NOT NULL DEFAULT 0) STRICT;
            INSERT INTO sessions (id) VALUES ('s1');";
        let path = folder.path().join("journal.sqlite");
        rusqlite::Connection::open(path).expect("a file").execute_batch(old).expect("a table");
        let journal = Journal::open(folder.path()).expect("a journal");
        // Another session has a later request. It does not end the first one.
        journal.add_session("s2", None, now()).expect("added");
        let mut registry = Registry::open(journal, TrainingOptions::default()).expect("a registry");
        registry.tidy();
        assert_eq!(registry.sessions().expect("a list"), ["s2", "s1"]);
    }

    #[test]
    fn a_time_in_the_future_ends_no_other_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path()).expect("a journal");
        journal.add_session("now", None, now()).expect("added");
        journal.add_session("future", None, now() + 1_000_000).expect("added");
        let mut registry = Registry::open(journal, TrainingOptions::default()).expect("a registry");
        registry.tidy();
        assert_eq!(registry.sessions().expect("a list"), ["future", "now"]);
    }
}
