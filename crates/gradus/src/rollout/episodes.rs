//! Episodes: the policy and an environment take turns.
//!
//! A `Drawer` samples the turns of the policy, with the engine of this process or on a server. All rows are sampled
//! concurrently, as without an environment. A row that has ended its turn waits in the cache while the environment
//! answers on another thread; other rows continue. The answer's ids are appended and the row continues from its cache,
//! so nothing is computed twice. Results do not depend on how long answers take. Each turn has its own random stream. On the
//! CPU, a row's logits do not depend on the other rows. On other devices, the rows of each sampling step do not depend on
//! time: see `Schedule`.

use std::collections::{HashMap, VecDeque};
use std::iter::repeat_n;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gradus_environments as env;
use gradus_environments::Observation;
use rand::RngCore;

pub use super::dialogue::ReadCalls;
use super::dialogue::{Dialogue, SampledEpisode};
use super::{
    Episode, EpisodeEnd, EpisodeObject, Exchange, Prompt, Retokenized, Rollout, Rollouts, Sampler, StopAtStrings,
    StopReason, Turn,
};
use crate::error::{Diagnostic, Error, Result};
use crate::generate::{Completion, Engine, Event, ROWS_AT_ONCE, Request, SamplingParams, Turn as Extension};
use crate::model::{CausalLm, Support};
use crate::rng::Stream;
use crate::text::continuation;

/// How long the loop waits for an answer before it checks time limits and interruption.
const GLANCE: Duration = Duration::from_millis(50);

/// Index of the environment's random stream within a completion's stream. Turns count from 0.
const OF_ENVIRONMENT: u64 = u64::MAX;

/// Limits of an episode, in addition to the tokens of its completion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Maximum number of turns of the policy.
    pub turns: usize,
    /// Maximum time of one answer in seconds. If it is exceeded, the episode fails.
    pub answer_s: f64,
    /// Maximum time of all answers of an episode together in seconds, or `None` for no limit. If it is exceeded, the
    /// episode ends.
    pub episode_s: Option<f64>,
    /// Number of answers that the environment computes concurrently.
    pub at_once: usize,
    /// Number of sampling steps between a turn and its answer, on devices where a row's logits depend on the other rows.
    /// With 0, answers are read as they arrive, and results may depend on time.
    pub answer_after: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns: 16, answer_s: 120.0, episode_s: None, at_once: 32, answer_after: 16 }
    }
}

/// An environment, and the format in which the policy reads it.
pub struct Episodes {
    /// The environment that answers.
    pub environment: Arc<dyn env::Environment>,
    /// Text format of the turns.
    pub dialogue: Dialogue,
    /// Limits of an episode.
    pub limits: Limits,
}

/// Position of episodes in a run: `step 12`, or `evaluation at step 10`.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The episodes.
    pub episodes: &'a Episodes,
    /// Prefix of the episodes' names.
    pub when: &'a str,
    /// Rows of earlier prompts whose episodes have the same prefix. They keep names unique.
    pub earlier: &'a [usize],
}

/// Samples the turns of the policy.
pub(super) trait Drawer {
    /// Starts the completions of one prompt. Rows are numbered in the order of submission.
    ///
    /// # Errors
    /// If the prompt or a setting does not fit.
    fn submit(&mut self, request: Request) -> Result<()>;

    /// Continues a row whose turn has ended.
    ///
    /// # Errors
    /// If the ids do not fit.
    fn extend(&mut self, row: usize, extension: Extension) -> Result<()>;

    /// Drops a row.
    fn cancel(&mut self, row: usize);

    /// Whether a turn is being sampled.
    fn is_busy(&self) -> bool;

    /// Continues sampling and returns the turns that have ended.
    ///
    /// # Errors
    /// If turns can no longer be sampled.
    fn draw(&mut self) -> Result<Vec<(usize, Completion)>>;

    /// Whether the numbers of a row may depend on which other rows are sampled with it.
    fn mixes_rows(&self) -> bool {
        false
    }

    /// Returns how long the drawer has waited for a silent server, and the limit of that wait.
    fn waited(&self) -> Option<(Duration, Duration)> {
        None
    }

    /// Returns a message about that wait, once per wait.
    fn news(&self) -> Option<String> {
        None
    }
}

/// The engine of this process.
struct LocalDrawer<'e, 's> {
    engine: Engine<'e>,
    stop: StopAtStrings<'s>,
    mixes_rows: bool,
}

impl Drawer for LocalDrawer<'_, '_> {
    fn submit(&mut self, request: Request) -> Result<()> {
        self.engine.submit(request).map(drop)
    }

    fn extend(&mut self, row: usize, extension: Extension) -> Result<()> {
        self.engine.extend(row, extension)
    }

    fn cancel(&mut self, row: usize) {
        self.engine.cancel(row);
    }

    fn is_busy(&self) -> bool {
        self.engine.is_busy()
    }

    fn draw(&mut self) -> Result<Vec<(usize, Completion)>> {
        let ended = |event| match event {
            Event::Finished { row, completion } => Some((row, completion)),
            _ => None,
        };
        Ok(self.engine.step(&mut self.stop).into_iter().filter_map(ended).collect())
    }

    fn mixes_rows(&self) -> bool {
        self.mixes_rows
    }
}

/// Call of the environment for an episode, made by a thread.
enum EnvironmentCall {
    Begin(env::Start),
    Step(Box<dyn env::Episode>, env::Turn, env::SampledTurn),
    Finish(Box<dyn env::Episode>),
}

/// Result of a call. After a failure the episode is gone.
enum CallResult {
    Begun(env::NewEpisode),
    Stepped(Box<dyn env::Episode>, Observation),
    Finished(Option<f64>),
}

/// Report of a thread about a call.
enum CallReport {
    /// Time at which a thread began the call; the time limit counts from here.
    Begun(Instant),
    /// Result of the call, and its duration.
    Done(env::Result<CallResult>, Duration),
}

/// Threads that call the environment. They end with the sampling.
struct Workers {
    environment: Arc<dyn env::Environment>,
    calls: Sender<(usize, EnvironmentCall)>,
    queue: Arc<Mutex<Receiver<(usize, EnvironmentCall)>>>,
    send: Sender<(usize, CallReport)>,
    reports: Receiver<(usize, CallReport)>,
}

impl Workers {
    fn start(environment: &Arc<dyn env::Environment>, threads: usize) -> Self {
        let (calls, queue) = channel();
        let (send, reports) = channel();
        let workers =
            Self { environment: Arc::clone(environment), calls, queue: Arc::new(Mutex::new(queue)), send, reports };
        (0..threads.max(1)).for_each(|_| workers.add());
        workers
    }

    /// Adds a thread, also to replace one whose late answer is no longer awaited.
    fn add(&self) {
        let (queue, send, environment) = (Arc::clone(&self.queue), self.send.clone(), Arc::clone(&self.environment));
        std::thread::spawn(move || {
            loop {
                let call = queue.lock().expect("no holder panics").recv();
                let Ok((row, call)) = call else { return };
                let since = Instant::now();
                let report = |reports| send.send((row, reports)).is_ok();
                if !report(CallReport::Begun(since))
                    || !report(CallReport::Done(work(&*environment, call), since.elapsed()))
                {
                    return;
                }
            }
        });
    }
}

fn work(environment: &dyn env::Environment, call: EnvironmentCall) -> env::Result<CallResult> {
    match call {
        EnvironmentCall::Begin(start) => environment.begin(&start).map(CallResult::Begun),
        EnvironmentCall::Step(mut episode, turn, drawn) => {
            let observation = episode.step_sampled(&turn, &drawn)?;
            Ok(CallResult::Stepped(episode, observation))
        }
        EnvironmentCall::Finish(mut episode) => episode.finish().map(CallResult::Finished),
    }
}

/// A rollout in progress.
#[derive(Default)]
struct EpisodeState {
    name: String,
    opening: Option<String>,
    /// The episode, unless a thread is working on it.
    session: Option<Box<dyn env::Episode>>,
    /// Its object, which outlives the session.
    object: EpisodeObject,
    /// The turn that awaits its answer, and the time at which a thread began to work on it.
    waiting: Option<(env::Turn, Option<Instant>)>,
    /// The answer to that turn and its duration, from its arrival until the episode takes it.
    arrived: Option<(env::Result<CallResult>, Duration)>,
    /// Total time of its answers.
    waited: Duration,
    ids: Vec<u32>,
    sampled_logprobs: Vec<f32>,
    logprobs: Vec<f32>,
    supports: Vec<Support>,
    turns: Vec<Turn>,
    stop: Option<StopReason>,
    end: Option<EpisodeEnd>,
    reward: Option<f64>,
    is_over: bool,
}

impl EpisodeState {
    fn fail(&mut self, error: &env::Error) {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        self.end = Some(EpisodeEnd::Failed(format!("{}: {error}{hint}", self.name)));
        (self.session, self.waiting, self.is_over) = (None, None, true);
    }

    /// Adds a finished turn of the policy.
    fn take(&mut self, completion: Completion) {
        self.turns.push(Turn::unanswered(completion.ids.len()));
        self.ids.extend(completion.ids);
        self.sampled_logprobs.extend(completion.sampled_logprobs);
        self.logprobs.extend(completion.logprobs);
        self.supports.extend(completion.supports);
        self.stop = Some(completion.stop);
    }

    /// Appends the ids of an answer, which the policy only reads.
    fn read(&mut self, ids: &[u32]) {
        self.turns.last_mut().expect("a turn was answered").answered = ids.len();
        self.sampled_logprobs.extend(repeat_n(0.0, ids.len()));
        self.logprobs.extend(repeat_n(0.0, ids.len()));
        if !self.supports.is_empty() {
            self.supports.extend(repeat_n(Support::All, ids.len()));
        }
        self.ids.extend_from_slice(ids);
    }
}

impl Episodes {
    /// [`sample_with`](Self::sample_with) using the engine of this process.
    ///
    /// # Errors
    /// As [`sample_with`](Self::sample_with).
    pub(super) fn sample(
        &self,
        policy: &CausalLm,
        prompts: Vec<Prompt>,
        sampler: &Sampler<'_>,
        names: (&str, &[usize]),
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<Rollouts> {
        let (count, room) = (prompts.len() * sampler.group_size, sampler.params.max_new_tokens);
        let places = ROWS_AT_ONCE.min(count);
        let mut engine = Engine::new(policy, places, room);
        if let Some(masking) = sampler.masking {
            engine = engine.with_mask(masking.mask);
            if let Some(guide) = masking.guide {
                engine = engine.with_guide(guide, places, room);
            }
        }
        let (stop, mixes_rows) = (StopAtStrings::new(sampler), policy.trunk.mixes_rows());
        self.sample_with(policy, &mut LocalDrawer { engine, stop, mixes_rows }, prompts, sampler, names, stream)
    }

    /// Samples `group_size` episodes of each prompt: [`RolloutSource::sample`](super::RolloutSource::sample). `when` is
    /// the prefix of the episodes' names.
    ///
    /// # Errors
    /// As [`RolloutSource::sample`](super::RolloutSource::sample); [`Error::Config`] if the environment cannot be used
    /// at all.
    pub(super) fn sample_with(
        &self,
        policy: &CausalLm,
        drawer: &mut dyn Drawer,
        prompts: Vec<Prompt>,
        sampler: &Sampler<'_>,
        (when, earlier): (&str, &[usize]),
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<Rollouts> {
        if sampler.beams.is_some() {
            return Err(Error::input("beam search cannot be used with an environment")
                .with_hint("use sampling; temperature 0 takes the most likely token"));
        }
        if policy.trunk.decoder_start().is_some() {
            return Err(Error::input("a model with an encoder cannot take turns with an environment")
                .with_hint("use a decoder-only model"));
        }
        let count = prompts.len() * sampler.group_size;
        let workers = Workers::start(&self.environment, self.limits.at_once.min(count));
        let rows = (0..count).map(|_| EpisodeState::default()).collect();
        let mut batch = EpisodeBatch { episodes: self, sampler, stream, workers, rows, schedule: None };
        let prompts = batch.begin(prompts, (when, earlier))?;
        if drawer.mixes_rows() && self.limits.answer_after > 0 {
            batch.schedule = Some(Schedule { delay: self.limits.answer_after, ..Schedule::default() });
        }
        batch.play(drawer, &prompts)?;
        batch.rollouts(prompts)
    }
}

/// The sampling steps at which answers are taken, if a row's logits depend on the other rows.
///
/// Then results are reproducible only if the same rows are sampled in every step. So an answer is taken a fixed number
/// of steps after its turn, and the sampling waits for it if necessary. Answers are taken in the order of their turns.
#[derive(Debug, Default)]
struct Schedule {
    /// Number of steps between a turn and its answer.
    delay: usize,
    /// Number of steps so far.
    step: usize,
    /// Rows with an open call, in the order of the calls, and the step at which the answer is taken.
    open: VecDeque<(usize, usize)>,
}

impl Schedule {
    fn add(&mut self, row: usize) {
        self.open.push_back((row, self.step + self.delay));
    }

    /// Returns the row whose answer is to be taken before the next step.
    fn due(&self) -> Option<usize> {
        self.open.front().filter(|(_, step)| *step <= self.step).map(|(row, _)| *row)
    }

    /// Skips the steps in which no row would be sampled.
    fn skip(&mut self) {
        self.step = self.open.front().map_or(self.step, |(_, step)| self.step.max(*step));
    }
}

/// The episodes of one call.
struct EpisodeBatch<'g> {
    episodes: &'g Episodes,
    sampler: &'g Sampler<'g>,
    stream: &'g dyn Fn(usize) -> Stream,
    workers: Workers,
    rows: Vec<EpisodeState>,
    /// `None`: answers are taken as they arrive.
    schedule: Option<Schedule>,
}

impl EpisodeBatch<'_> {
    /// Queues a call for an episode; its answer will concern the turn `turn`.
    fn submit(&mut self, row: usize, turn: env::Turn, call: EnvironmentCall) {
        self.rows[row].waiting = Some((turn, None));
        self.workers.calls.send((row, call)).expect("the queue lives as long as the workers");
        if let Some(schedule) = &mut self.schedule {
            schedule.add(row);
        }
    }

    fn is_waiting(&self) -> bool {
        self.rows.iter().any(|state| state.waiting.is_some())
    }

    /// Whether the next sampling step must wait for an answer.
    fn is_answer_due(&self) -> bool {
        self.schedule.as_ref().is_some_and(|schedule| schedule.due().is_some())
    }

    /// Whether the answer exceeds its time limit.
    fn is_late(&self, state: &EpisodeState) -> bool {
        let limit = Duration::from_secs_f64(self.episodes.limits.answer_s);
        let is_open = |since: Instant| state.arrived.is_none() && since.elapsed() > limit;
        matches!(state.waiting, Some((_, Some(since))) if is_open(since))
    }

    /// Waits at most `patience` for the next answer, and returns its row. A late answer arrives as an error.
    fn receive(&mut self, patience: Duration) -> Option<usize> {
        loop {
            let (row, answer) = match self.workers.reports.recv_timeout(patience) {
                Ok((row, CallReport::Done(answer, took))) => (row, (answer, took)),
                Ok((row, CallReport::Begun(at))) => {
                    if let Some((_, since)) = &mut self.rows[row].waiting {
                        *since = Some(at);
                    }
                    continue;
                }
                Err(_) => {
                    let row = self.rows.iter().position(|state| self.is_late(state))?;
                    let message = format!("no answer within {} s", self.episodes.limits.answer_s);
                    let late = env::Error::episode(message).with_hint("`episode.timeout_s` sets the limit");
                    self.workers.add();
                    (row, (Err(late), Duration::ZERO))
                }
            };
            let state = &mut self.rows[row];
            // Otherwise the episode was given up, so its answer is too late.
            if state.waiting.is_some() && state.arrived.is_none() {
                state.arrived = Some(answer);
                return Some(row);
            }
        }
    }

    /// Returns the next answer, and the turn that it answers. Waits for it at most `patience`. An episode whose answer is
    /// an error fails.
    fn next_answer(&mut self, patience: Duration) -> Result<Option<(usize, env::Turn, CallResult)>> {
        let row = match self.schedule.as_ref().map(Schedule::due) {
            None => self.receive(patience),
            Some(due) => {
                while due.is_some_and(|row| self.rows[row].arrived.is_none()) {
                    if self.receive(patience).is_none() {
                        return Ok(None);
                    }
                }
                due
            }
        };
        let Some(row) = row else { return Ok(None) };
        if let Some(schedule) = &mut self.schedule {
            schedule.open.pop_front();
        }
        let state = &mut self.rows[row];
        let (turn, _) = state.waiting.take().expect("its answer has arrived");
        let (answer, took) = state.arrived.take().expect("it has arrived");
        state.waited += took;
        match answer {
            Ok(answer) => Ok(Some((row, turn, answer))),
            Err(env::Error::Interrupted) => Err(Error::Interrupted),
            Err(env::Error::Config { message, hint }) => {
                Err(Error::Config(vec![Diagnostic { message, locations: Vec::new(), hint }]))
            }
            Err(error) => {
                state.fail(&error);
                Ok(None)
            }
        }
    }

    /// Starts all episodes and returns the prompts with the episodes' additions.
    fn begin(&mut self, mut prompts: Vec<Prompt>, (when, earlier): (&str, &[usize])) -> Result<Vec<Prompt>> {
        let group = self.sampler.group_size;
        // A step that crosses an epoch may draw a prompt twice; the counter keeps names unique.
        let mut times: HashMap<usize, usize> = HashMap::new();
        earlier.iter().for_each(|row| *times.entry(*row).or_default() += 1);
        for (p, prompt) in prompts.iter().enumerate() {
            // Completions of a prompt are compared to each other, so their episodes start identically.
            let mut stream = (self.stream)(p * group);
            stream.set_stream(OF_ENVIRONMENT);
            let seed = stream.next_u64();
            let mut row = prompt.columns.clone();
            row.entry("prompt").or_insert_with(|| prompt.text.clone().into());
            let time = times.entry(prompt.row).or_default();
            let again = if *time == 0 { String::new() } else { format!(", time {}", *time + 1) };
            *time += 1;
            for g in 0..group {
                let name = format!("{when}, prompt {}, completion {}{again}", prompt.row + 1, g + 1);
                self.rows[p * group + g].name.clone_from(&name);
                let start = env::Start { name, seed, row: row.clone() };
                self.submit(p * group + g, env::Turn::default(), EnvironmentCall::Begin(start));
            }
        }
        let mut openings: Vec<Option<Option<String>>> = vec![None; self.rows.len()];
        while self.is_waiting() {
            let done = self.rows.iter().filter(|state| state.waiting.is_none()).count();
            self.sampler.progress.advance("begun", done, self.rows.len())?;
            if let Some((row, _, CallResult::Begun(begun))) = self.next_answer(GLANCE)? {
                self.rows[row].object = EpisodeObject(begun.episode.object());
                (self.rows[row].session, openings[row]) = (Some(begun.episode), Some(begun.opening));
            }
        }
        for (state, opening) in self.rows.iter_mut().zip(&openings) {
            state.opening = opening.clone().flatten();
        }
        for (p, prompt) in prompts.iter_mut().enumerate() {
            *prompt = self.own_prompt(p, prompt)?;
        }
        for (prompt, openings) in prompts.iter_mut().zip(openings.chunks(group)) {
            let mut begun = openings.iter().flatten();
            let Some(first) = begun.next() else { continue };
            if begun.any(|other| other != first) {
                let row = prompt.row + 1;
                let message = format!(
                    "the environment began the episodes of prompt {row} differently, so their rewards cannot be compared"
                );
                return Err(Error::input(message).with_hint("the start of an episode must depend only on its `seed`"));
            }
            if let Some(opening) = first.as_deref().filter(|opening| !opening.is_empty()) {
                *prompt = self.episodes.dialogue.opened(prompt, opening)?;
            }
        }
        Ok(prompts)
    }

    /// Returns the prompt that the episodes of prompt `p` write themselves, or else `prompt`.
    fn own_prompt(&self, p: usize, prompt: &Prompt) -> Result<Prompt> {
        let group = self.sampler.group_size;
        let sessions = self.rows[p * group..(p + 1) * group].iter().filter_map(|state| state.session.as_ref());
        let mut written = sessions.filter_map(|session| session.prompt_ids());
        let Some(first) = written.next() else { return Ok(prompt.clone()) };
        if written.any(|other| other != first) {
            let message = format!(
                "the environment wrote different prompts for the episodes of prompt {}, so their rewards cannot be compared",
                prompt.row + 1
            );
            return Err(Error::input(message).with_hint("the start of an episode must depend only on its row"));
        }
        let text = self.episodes.dialogue.tokenizer.decode(first, false)?;
        // The text is final and is not rendered again.
        Ok(Prompt { text, ids: first.to_vec(), messages: None, ..prompt.clone() })
    }

    /// Returns the sampling parameters of a turn of at most `room` ids.
    fn params(&self, room: usize) -> Arc<SamplingParams> {
        let record = self.sampler.masking.map_or(self.sampler.params.record, |masking| masking.record);
        Arc::new(SamplingParams { record, max_new_tokens: room, ..self.sampler.params.clone() })
    }

    /// Samples all turns of all episodes.
    fn play(&mut self, drawer: &mut dyn Drawer, prompts: &[Prompt]) -> Result<()> {
        let (sampler, group, count) = (self.sampler, self.sampler.group_size, self.rows.len());
        let params = self.params(sampler.params.max_new_tokens);
        for (p, prompt) in prompts.iter().enumerate() {
            let streams = (p * group..(p + 1) * group).map(self.stream).collect();
            // Rows are numbered in the order of submission, so row numbers equal rollout indices.
            drawer.submit(Request {
                prompt: prompt.ids.clone(),
                params: Arc::clone(&params),
                streams,
                is_kept: true,
            })?;
        }
        let mut left: Vec<usize> = (0..count).collect();
        while !left.is_empty() {
            if let Some(news) = drawer.news() {
                sampler.progress.warn(&news);
            }
            match drawer.waited() {
                Some((waited, limit)) => {
                    let [waited, limit] = [waited, limit].map(|time| time.as_secs() as usize);
                    sampler.progress.advance("seconds waited for the server", waited, limit)?;
                }
                None => sampler.progress.advance("sampled", count - left.len(), count)?,
            }
            if drawer.is_busy() && !self.is_answer_due() {
                let ended = drawer.draw()?;
                self.schedule.iter_mut().for_each(|schedule| schedule.step += 1);
                for (row, completion) in ended {
                    self.on_turn_end(row, completion, prompts)?;
                }
            }
            if !drawer.is_busy() {
                self.schedule.iter_mut().for_each(Schedule::skip);
            }
            // While rows can be sampled, only available answers are taken, without waiting.
            let waits = self.is_answer_due() || (!drawer.is_busy() && self.is_waiting());
            let mut patience = if waits { GLANCE } else { Duration::ZERO };
            while let Some((row, turn, answer)) = self.next_answer(patience)? {
                self.on_answer(row, turn, answer, prompts, drawer)?;
                patience = Duration::ZERO;
            }
            if self.is_answer_due() {
                // Rows end together, whenever their answers of this step arrive.
                continue;
            }
            left.retain(|&row| {
                let is_over = self.rows[row].is_over && !self.rows[row].turns.is_empty();
                if is_over {
                    drawer.cancel(row);
                }
                !is_over
            });
        }
        Ok(())
    }

    /// Handles the end of a turn: passes it to the environment, or ends the episode.
    fn on_turn_end(&mut self, row: usize, completion: Completion, prompts: &[Prompt]) -> Result<()> {
        let before: &[u32] = match &self.rows[row].ids[..] {
            [] => &prompts[row / self.sampler.group_size].ids,
            ids => ids,
        };
        let turn = self.episodes.dialogue.turn(before, &completion.ids)?;
        let (state, stop) = (&mut self.rows[row], completion.stop);
        let drawn = env::SampledTurn {
            ids: completion.ids.clone(),
            logprobs: completion.sampled_logprobs.clone(),
            is_cut: stop == StopReason::Length,
        };
        state.take(completion);
        // An episode that failed to start still samples one turn, because a completion is never empty.
        let Some(session) = state.session.take() else { return Ok(()) };
        let call = match stop {
            StopReason::Length if !session.takes_cut_turns() => {
                state.end = Some(EpisodeEnd::Tokens);
                let last = state.turns.last_mut().expect("just taken in");
                last.exchange = Some(Exchange { turn: turn.clone(), observation: Observation::default() });
                EnvironmentCall::Finish(session)
            }
            StopReason::Length | StopReason::StopId | StopReason::StopString => {
                EnvironmentCall::Step(session, turn.clone(), drawn)
            }
        };
        self.submit(row, turn, call);
        Ok(())
    }

    /// Adds the text to replies that consist of ids.
    fn with_texts(&self, mut observation: Observation) -> Result<Observation> {
        for reply in &mut observation.replies {
            if let env::Reply::Tokens { ids, content } = reply {
                *content = self.episodes.dialogue.tokenizer.decode(ids, false)?;
            }
        }
        Ok(observation)
    }

    /// Handles an answer of the environment: continues the row, or ends the episode.
    fn on_answer(
        &mut self,
        row: usize,
        turn: env::Turn,
        answer: CallResult,
        prompts: &[Prompt],
        drawer: &mut dyn Drawer,
    ) -> Result<()> {
        let (session, observation) = match answer {
            CallResult::Begun(_) => unreachable!("all episodes have begun"),
            CallResult::Finished(reward) => {
                let state = &mut self.rows[row];
                match reward {
                    Some(reward) if !(reward as f32).is_finite() => state.fail(&not_finite(reward)),
                    _ => (state.reward, state.is_over) = (reward, true),
                }
                return Ok(());
            }
            CallResult::Stepped(session, observation) => (session, observation),
        };
        let observation = self.with_texts(observation)?;
        let numbers = observation.reward.iter().chain(observation.metrics.values());
        if let Some(&number) = numbers.clone().find(|number| !(**number as f32).is_finite()) {
            self.rows[row].fail(&not_finite(number));
            return Ok(());
        }
        let is_done = observation.is_done || observation.replies.is_empty();
        let (turns, most) = (self.rows[row].turns.len(), self.sampler.params.max_new_tokens);
        let is_late = |limit: f64| self.rows[row].waited > Duration::from_secs_f64(limit);
        let end = match is_done {
            true => EpisodeEnd::Done,
            false if self.rows[row].stop == Some(StopReason::Length) => EpisodeEnd::Tokens,
            false if turns >= self.episodes.limits.turns => EpisodeEnd::Turns,
            false if self.episodes.limits.episode_s.is_some_and(is_late) => EpisodeEnd::Time,
            false => {
                let (prompt, stop) = (&prompts[row / self.sampler.group_size], self.rows[row].stop);
                let stop = stop.expect("a turn was answered");
                let answer = match &observation.replies[..] {
                    [env::Reply::Tokens { ids, .. }] => Ok(ids.clone()),
                    replies => self.episodes.dialogue.answer(prompt, &turn, stop, replies),
                };
                let ids = match answer {
                    Ok(ids) => ids,
                    Err(Error::Interrupted) => return Err(Error::Interrupted),
                    Err(error) => {
                        // If an answer cannot be shown to the policy, the environment has failed.
                        let hint = error.hint().map(str::to_owned);
                        let refused = env::Error::Episode { message: error.to_string(), hint };
                        self.rows[row].fail(&refused);
                        return Ok(());
                    }
                };
                let used = self.rows[row].ids.len() + ids.len();
                if used < most {
                    let mut stream = (self.stream)(row);
                    stream.set_stream(turns as u64);
                    let params = self.params(most - used);
                    let state = &mut self.rows[row];
                    state.read(&ids);
                    state.session = Some(session);
                    state.turns.last_mut().expect("it was answered").exchange = Some(Exchange { turn, observation });
                    return drawer.extend(row, Extension { ids, params, stream });
                }
                EpisodeEnd::Tokens
            }
        };
        let state = &mut self.rows[row];
        state.end = Some(end);
        state.turns.last_mut().expect("it was answered").exchange = Some(Exchange { turn: turn.clone(), observation });
        self.submit(row, turn, EnvironmentCall::Finish(session));
        Ok(())
    }

    /// Returns the rollouts after all episodes are over.
    fn rollouts(self, prompts: Vec<Prompt>) -> Result<Rollouts> {
        let Sampler { tokenizer, group_size, masking, .. } = *self.sampler;
        let all_drawn = |supports: &[Support]| supports.iter().all(|support| *support == Support::All);
        let group = |i: usize| &prompts[i / group_size];
        let held = self.rows.iter().enumerate();
        let held = held.map(|(i, row)| SampledEpisode { prompt: group(i), ids: &row.ids, turns: &row.turns });
        let held: Vec<SampledEpisode<'_>> = held.collect();
        let retokenized = self.episodes.dialogue.retokenized(&held)?;
        let of_row = |((i, state), retokenized): ((usize, EpisodeState), Retokenized)| {
            let prompt = i / group_size;
            let supports = match masking {
                Some(_) if all_drawn(&state.supports) => Vec::new(),
                _ => state.supports,
            };
            Ok(Rollout {
                prompt,
                completion: continuation(tokenizer, prompts[prompt].continued(), &state.ids)?,
                completion_ids: state.ids,
                sampled_logprobs: state.sampled_logprobs,
                logprobs: state.logprobs,
                supports,
                turns: state.turns,
                episode: Some(Episode {
                    name: state.name,
                    opening: state.opening,
                    end: state.end.expect("the episode is over"),
                    reward: state.reward,
                    retokenized,
                    object: state.object,
                }),
                sampled_with: None,
                beam_score: None,
                stop: state.stop.expect("a turn was drawn"),
            })
        };
        let rollouts = self.rows.into_iter().enumerate().zip(retokenized).map(of_row).collect::<Result<_>>()?;
        Ok(Rollouts { prompts, rollouts, group_size, tokenizer: Some(tokenizer.clone()) })
    }
}

/// Error for a number from the environment that no trainer can use: one that is not finite, or not finite in f32.
fn not_finite(number: f64) -> env::Error {
    let expected = match number.is_finite() {
        true => format!("no number may be larger than the largest one of f32, {:.1e}", f32::MAX),
        false => "a finite one is needed".to_owned(),
    };
    env::Error::episode(format!("the environment answered with the number {number:e}, but {expected}"))
}

#[cfg(test)]
mod tests;
