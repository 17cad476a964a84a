//! Who is there, what was asked for, and what became of it. Nothing is computed here, so this can be locked for a moment at any time.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use gradus::Result;

use super::journal::{Journal, Line, ModelLine, SamplerLine};
use super::options::TrainingOptions;
use super::outcome::{Failure, Outcome, Refused};
use super::sampling::SampleRequest;
use crate::secret::secret;

/// Results of a model or a sampler that are kept: a request that is repeated is answered with them.
const RESULTS_KEPT: usize = 1024;

/// Requests of a model or a sampler that may wait.
const WAITING_MAX: usize = 4096;

/// Bytes of the requests of a model that may wait.
const WAITING_BYTES_MAX: usize = 512 << 20;

/// Unnamed samplers of a session that are kept; the oldest goes.
const SAMPLERS_KEPT: usize = 64;

/// Models of all sessions.
const MODELS_MAX: usize = 1024;

/// What a request to a model asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A fresh adapter.
    Create,
    /// An adapter from a checkpoint, as the first request or a later one.
    Load,
    /// A forward pass, and mostly a backward pass.
    ForwardBackward,
    /// A step of the optimizer.
    Step,
    /// A checkpoint to go on from.
    Save,
    /// A checkpoint to sample from.
    SaveForSampler,
    /// Something that is not supported; the body says what.
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

    /// The name in the journal.
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

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A request that waits.
#[derive(Debug, Clone)]
pub struct Queued {
    /// What it asks for.
    pub kind: Kind,
    /// Its body.
    pub body: Arc<[u8]>,
}

struct Session {
    seen: Instant,
    used: f64,
}

struct Model {
    session: String,
    base: String,
    /// The request that is done next.
    next: u64,
    queue: BTreeMap<u64, Queued>,
    bytes: usize,
    done: BTreeMap<u64, Arc<Outcome>>,
    used: f64,
    /// Since when requests wait for one that has not come.
    gap: Option<Instant>,
    ends: bool,
}

struct Sampler {
    line: SamplerLine,
    queue: VecDeque<(u64, Arc<SampleRequest>)>,
    /// Requests that are sampled.
    running: BTreeSet<u64>,
    canceled: Vec<u64>,
    done: BTreeMap<u64, Arc<Outcome>>,
    used: f64,
    asked: Instant,
    clones: u64,
}

/// Whose turn it is to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// A model's.
    Model(String),
    /// A sampler's.
    Sampler(String),
    /// A model's that ends.
    End(String),
}

/// What is known of a request.
#[derive(Debug, Clone)]
pub enum Found {
    /// What became of it.
    Done(Arc<Outcome>),
    /// It waits, or is computed.
    Waiting,
    /// It was never there, or is there no more.
    Gone,
}

/// Everybody.
pub struct Registry {
    /// What is written through to the disk.
    pub journal: Journal,
    options: TrainingOptions,
    sessions: HashMap<String, Session>,
    models: HashMap<String, Model>,
    samplers: HashMap<String, Sampler>,
}

impl Registry {
    /// Goes on from the journal.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(journal: Journal, options: TrainingOptions) -> Result<Self> {
        let now = Instant::now();
        let sessions = journal.sessions()?.into_iter().map(|id| (id, Session { seen: now, used: 0.0 })).collect();
        let mut models = HashMap::new();
        for ModelLine { id, session, base } in journal.models()? {
            let (mut queue, mut done, mut bytes) = (BTreeMap::new(), BTreeMap::new(), 0);
            for Line { seq, kind, body, outcome } in journal.lines(&id)? {
                match (outcome, Kind::named(&kind)) {
                    (Some(outcome), _) => drop(done.insert(seq, Arc::new(outcome))),
                    (None, Some(kind)) => {
                        bytes += body.len();
                        queue.insert(seq, Queued { kind, body: body.into() });
                    }
                    (None, None) => {}
                }
            }
            let next = done.last_key_value().map_or(0, |(seq, _)| seq + 1);
            let model = Model { session, base, next, queue, bytes, done, used: 0.0, gap: None, ends: false };
            models.insert(id, model);
        }
        let samplers = journal.samplers()?.into_iter().map(|line| (line.id.clone(), Sampler::new(line))).collect();
        Ok(Self { journal, options, sessions, models, samplers })
    }

    /// A new session; `key` tells a repeated request from a new one.
    ///
    /// # Errors
    /// When there are too many, or the disk is full.
    pub fn create_session(&mut self, key: Option<&str>) -> Result<String, Refused> {
        if let Some(known) = key.map(|key| self.journal.session_of(key)).transpose()?.flatten() {
            return Ok(known);
        }
        if self.sessions.len() >= self.options.sessions {
            self.make_room();
            let most = self.options.sessions;
            if self.sessions.len() >= most {
                return Err(Refused::busy(format!(
                    "{most} sessions are at work, which is the most of this server: end one"
                )));
            }
        }
        let id = format!("s{}", &secret()[..20]);
        self.journal.add_session(&id, key)?;
        self.sessions.insert(id.clone(), Session { seen: Instant::now(), used: self.least_used() });
        Ok(id)
    }

    /// Ends the session that has been silent for the longest time, where that is longer than sessions may be.
    fn make_room(&mut self) {
        let silent = self.options.silent;
        let oldest = self.sessions.iter().filter(|(_, of)| of.seen.elapsed() > silent).min_by_key(|(_, of)| of.seen);
        if let Some(id) = oldest.map(|(id, _)| id.clone()) {
            self.end_session(&id);
        }
    }

    /// Ends a session. What its models have learned last becomes a checkpoint.
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
            self.samplers.iter().filter(|(_, of)| of.line.session == id).map(|(id, _)| id.clone()).collect();
        samplers.iter().for_each(|id| self.end_sampler(id));
    }

    fn end_sampler(&mut self, id: &str) {
        self.samplers.remove(id);
        if let Err(error) = self.journal.end_sampler(id) {
            tracing::warn!("{error}");
        }
    }

    /// Notes that a session is alive.
    ///
    /// # Errors
    /// When there is none, or it has ended.
    pub fn touch(&mut self, id: &str) -> Result<(), Refused> {
        if let Some(session) = self.sessions.get_mut(id) {
            session.seen = Instant::now();
            return Ok(());
        }
        Err(match self.journal.has_ended(id)? {
            Some(_) => {
                Refused::gone(format!("the session `{id}` has ended: its checkpoints are there, begin a new one"))
            }
            None => Refused::missing(format!("there is no session `{id}`")),
        })
    }

    /// Whether the session is silent for longer than sessions may be.
    fn is_silent(&self, session: &str) -> bool {
        self.sessions.get(session).is_none_or(|session| session.seen.elapsed() > self.options.silent)
    }

    /// Adds a model that `kind` makes of `body`; gives the id of its first request. `base` is the name of its base.
    ///
    /// # Errors
    /// When the session is not there, there are too many models, or the disk is full.
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
            return Err(Refused::busy(format!("there are {MODELS_MAX} models, which is the most: end a session")));
        }
        let line = ModelLine { id: id.clone(), session: session.to_owned(), base: base.to_owned() };
        self.journal.add_model(&line, kind.name(), body)?;
        let queue = BTreeMap::from([(0, Queued { kind, body: body.into() })]);
        let (session, base, used) = (line.session, line.base, self.least_used());
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

    /// The name of the base of a model, and what became of the request that made it.
    ///
    /// # Errors
    /// When there is no such model, or it is not made yet.
    pub fn info(&mut self, id: &str) -> Result<(String, Arc<Outcome>), Refused> {
        let model = self.model(id)?;
        let made = model.done.get(&0).cloned();
        let (base, session) = (model.base.clone(), model.session.clone());
        self.touch(&session)?;
        made.map(|made| (base, made)).ok_or_else(|| Refused::request(format!("the model `{id}` is not made yet")))
    }

    /// Takes request `seq` of a model; gives its id. One that was taken before is not taken again.
    ///
    /// # Errors
    /// When there is no such model, its session has ended, too much waits, or the disk is full.
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
                    Err(Refused::request(format!("`seq_id` {seq} is that of another request: {}", queued.kind.name())))
                }
            };
        }
        if model.done.contains_key(&seq) {
            return Ok(request);
        }
        if seq < model.next {
            return Err(Refused::gone(format!("request {seq} of `{id}` comes too late: {} are done", model.next)));
        }
        if model.queue.len() >= WAITING_MAX || model.bytes + body.len() > WAITING_BYTES_MAX {
            return Err(Refused::busy(format!("{} requests of `{id}` wait already", model.queue.len())));
        }
        self.journal.add(id, seq, kind.name(), body)?;
        if model.queue.is_empty() {
            model.used = model.used.max(least);
        }
        model.bytes += body.len();
        model.queue.insert(seq, Queued { kind, body: body.into() });
        model.gap = (!model.queue.contains_key(&model.next)).then(|| model.gap.unwrap_or_else(Instant::now));
        Ok(request)
    }

    /// Unloads a model: what it has learned last becomes a checkpoint.
    ///
    /// # Errors
    /// When there is no such model.
    pub fn unload(&mut self, id: &str) -> Result<(), Refused> {
        self.model(id)?;
        self.models.get_mut(id).expect("it was just there").ends = true;
        Ok(())
    }

    /// Adds a sampler, unless it is there; gives its id.
    ///
    /// # Errors
    /// When the session is not there, or the disk is full.
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
            let line = SamplerLine { id: id.clone(), session: session.clone(), base, directory, path };
            self.journal.add_sampler(&line)?;
            self.samplers.insert(id.clone(), Sampler::new(line));
            self.drop_old_samplers(&session);
        }
        Ok(id)
    }

    /// Lets go of the samplers of a session that nobody asked for longest, where there are too many.
    fn drop_old_samplers(&mut self, session: &str) {
        let mut own: Vec<(Instant, String)> = self
            .samplers
            .values()
            .filter(|of| of.line.session == session && of.is_idle())
            .map(|of| (of.asked, of.line.id.clone()))
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

    /// A sampler as it was written.
    ///
    /// # Errors
    /// When there is none.
    pub fn sampler_line(&self, id: &str) -> Result<&SamplerLine, Refused> {
        Ok(&self.sampler(id)?.line)
    }

    /// A number for one more client of a sampler.
    ///
    /// # Errors
    /// When there is no such sampler.
    pub fn join_sampler(&mut self, id: &str) -> Result<u64, Refused> {
        self.sampler(id)?;
        let sampler = self.samplers.get_mut(id).expect("it was just there");
        sampler.clones += 1;
        Ok(sampler.clones)
    }

    /// Takes request `seq` to a sampler; gives its id. One that was taken before is not taken again.
    ///
    /// # Errors
    /// When there is no such sampler, or too much waits.
    pub fn submit_sample(&mut self, id: &str, seq: u64, request: SampleRequest) -> Result<String, Refused> {
        let session = self.sampler(id)?.line.session.clone();
        self.touch(&session)?;
        let least = self.least_used();
        let sampler = self.samplers.get_mut(id).expect("it was just there");
        sampler.asked = Instant::now();
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

    /// Gives up a request to a sampler.
    pub fn cancel(&mut self, request: &str) {
        let Some((id, seq)) = split(request) else { return };
        let Some(sampler) = self.samplers.get_mut(id) else { return };
        if sampler.running.contains(&seq) {
            sampler.canceled.push(seq);
        }
        if let Some(at) = sampler.queue.iter().position(|(queued, _)| *queued == seq) {
            sampler.queue.remove(at);
            sampler.answer(seq, Outcome::Failed(Failure::user("the request was canceled")));
        }
    }

    /// What is known of a request.
    pub fn find(&mut self, request: &str) -> Found {
        let Some((id, seq)) = split(request) else { return Found::Gone };
        if let Some(model) = self.models.get(id) {
            let session = model.session.clone();
            let found = match model.done.get(&seq) {
                Some(outcome) => Found::Done(Arc::clone(outcome)),
                None if model.queue.contains_key(&seq) => Found::Waiting,
                None => Found::Gone,
            };
            // Who waits is alive.
            let _ = self.touch(&session);
            return found;
        }
        let Some(sampler) = self.samplers.get(id) else { return Found::Gone };
        let session = sampler.line.session.clone();
        let found = match sampler.done.get(&seq) {
            Some(outcome) => Found::Done(Arc::clone(outcome)),
            None if sampler.running.contains(&seq) || sampler.queue.iter().any(|(of, _)| *of == seq) => Found::Waiting,
            None => Found::Gone,
        };
        let _ = self.touch(&session);
        found
    }

    /// Models and samplers of a session.
    ///
    /// # Errors
    /// When there is no such session.
    pub fn of_session(&self, id: &str) -> Result<(Vec<String>, Vec<String>), Refused> {
        if !self.sessions.contains_key(id) {
            return Err(Refused::missing(format!("there is no session `{id}`, or it has ended")));
        }
        let mut models: Vec<String> =
            self.models.iter().filter(|(_, of)| of.session == id).map(|(id, _)| id.clone()).collect();
        let mut samplers: Vec<String> =
            self.samplers.iter().filter(|(_, of)| of.line.session == id).map(|(id, _)| id.clone()).collect();
        models.sort();
        samplers.sort();
        Ok((models, samplers))
    }

    /// The least that somebody who has something to compute has used so far.
    fn least_used(&self) -> f64 {
        let models = self.models.values().filter(|of| of.can_run()).map(|of| of.used);
        let samplers = self.samplers.values().filter(|of| !of.is_idle()).map(|of| of.used);
        let least = models.chain(samplers).fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 0.0 }
    }

    /// Whose turn it is: of those who have something to compute, the one of the session that has used the least time, and of its
    /// models and samplers the one that has used the least.
    pub fn turn(&self) -> Option<Turn> {
        let of_session = |id: &str| self.sessions.get(id).map_or(0.0, |session| session.used);
        let models = self.models.iter().filter(|(_, model)| model.can_run() || model.ends).map(|(id, model)| {
            // Who ends makes room.
            match model.ends {
                true => (f64::NEG_INFINITY, 0.0, Turn::End(id.clone())),
                false => (of_session(&model.session), model.used, Turn::Model(id.clone())),
            }
        });
        let samplers = self
            .samplers
            .iter()
            .filter(|(_, sampler)| !sampler.is_idle())
            .map(|(id, sampler)| (of_session(&sampler.line.session), sampler.used, Turn::Sampler(id.clone())));
        let least = models.chain(samplers).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        least.map(|(_, _, turn)| turn)
    }

    /// Notes what a turn took.
    pub fn used(&mut self, turn: &Turn, seconds: f64) {
        let session = match turn {
            Turn::Model(id) | Turn::End(id) => self.models.get_mut(id).map(|model| {
                model.used += seconds;
                model.session.clone()
            }),
            Turn::Sampler(id) => self.samplers.get_mut(id).map(|sampler| {
                sampler.used += seconds;
                sampler.line.session.clone()
            }),
        };
        // A session that was idle does not save up time.
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
            || self.samplers.values().any(|of| of.line.session == session && !of.is_idle())
    }

    /// The name of a model's base, and the request that is done next.
    pub fn next(&self, id: &str) -> Option<(String, u64, Queued)> {
        let model = self.models.get(id)?;
        Some((model.base.clone(), model.next, model.queue.get(&model.next)?.clone()))
    }

    /// The name of a model's base.
    pub fn base(&self, id: &str) -> Option<String> {
        Some(self.models.get(id)?.base.clone())
    }

    /// Tells what became of the request of a model that was done.
    pub fn finish(&mut self, id: &str, seq: u64, outcome: Outcome) {
        // The request itself is on the disk: where this cannot be written, it is done once more after a restart, with the same bits.
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
            // What the first request said stays: it describes the model.
            let Some(oldest) = model.done.keys().copied().find(|seq| *seq > 0) else { break };
            model.done.remove(&oldest);
        }
        let waits = !model.queue.is_empty() && !model.queue.contains_key(&model.next);
        model.gap = waits.then(|| model.gap.unwrap_or_else(Instant::now));
    }

    /// Forgets what a saved state of a model holds, up to request `seq`.
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

    /// Takes what a sampler has to do: how its model is read, what is new, and what was canceled.
    pub fn take_samples(&mut self, id: &str) -> Option<Samples> {
        let sampler = self.samplers.get_mut(id)?;
        let fresh: Vec<(u64, Arc<SampleRequest>)> = sampler.queue.drain(..).collect();
        sampler.running.extend(fresh.iter().map(|(seq, _)| *seq));
        Some(Samples { line: sampler.line.clone(), fresh, canceled: std::mem::take(&mut sampler.canceled) })
    }

    /// Tells what became of a request to a sampler.
    pub fn answer_sample(&mut self, id: &str, seq: u64, outcome: Outcome) {
        if let Some(sampler) = self.samplers.get_mut(id) {
            sampler.running.remove(&seq);
            sampler.answer(seq, outcome);
        }
    }

    /// Requests that were being sampled when their thread failed.
    pub fn running(&self, id: &str) -> Vec<u64> {
        self.samplers.get(id).map(|sampler| sampler.running.iter().copied().collect()).unwrap_or_default()
    }

    /// Whether a sampler is there.
    pub fn has_sampler(&self, id: &str) -> bool {
        self.samplers.contains_key(id)
    }

    /// Whether a model may stay in memory: somebody of its session is there.
    pub fn is_awake(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(|model| !self.is_silent(&model.session))
    }

    /// Whether a model has something to compute.
    pub fn has_work(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(Model::can_run)
    }

    /// Directories of unnamed samplers that are there.
    pub fn sampler_directories(&self) -> BTreeSet<String> {
        self.samplers.values().filter_map(|sampler| sampler.line.directory.clone()).collect()
    }

    /// Ends sessions that have been silent for very long, and requests that wait for one that does not come; gives the models of
    /// these.
    pub fn tidy(&mut self) -> Vec<String> {
        let lost = self.options.lost;
        let silent: Vec<String> =
            self.sessions.iter().filter(|(_, of)| of.seen.elapsed() > lost).map(|(id, _)| id.clone()).collect();
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
                    "request {missing} of the model has not come within {passed} seconds, so this one cannot be done"
                );
                self.finish(id, seq, Outcome::Failed(Failure::user(message)));
            }
        }
        stuck
    }
}

/// What a sampler has to do.
pub struct Samples {
    /// The sampler.
    pub line: SamplerLine,
    /// Requests that are new.
    pub fresh: Vec<(u64, Arc<SampleRequest>)>,
    /// Requests that were given up.
    pub canceled: Vec<u64>,
}

impl Model {
    fn can_run(&self) -> bool {
        self.queue.contains_key(&self.next)
    }
}

impl Sampler {
    fn new(line: SamplerLine) -> Self {
        let (queue, running, canceled, done) = (VecDeque::new(), BTreeSet::new(), Vec::new(), BTreeMap::new());
        Self { line, queue, running, canceled, done, used: 0.0, asked: Instant::now(), clones: 0 }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }

    fn answer(&mut self, seq: u64, outcome: Outcome) {
        self.done.insert(seq, Arc::new(outcome));
        while self.done.len() > RESULTS_KEPT {
            self.done.pop_first();
        }
    }
}

/// The model or sampler of a request, and its number.
fn split(request: &str) -> Option<(&str, u64)> {
    let (id, seq) = request.rsplit_once(':')?;
    Some((id, seq.parse().ok()?))
}
