//! One row of the engine: a completion in progress, and its end.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use gradus_kernels::{CacheRow, Draw, Drawn};

use super::next::NewToken;
use super::params::SamplingParams;
use super::processors::History;
use super::sampler::{Choice, ProcessedLogits, draw_of};
use crate::model::Support;
use crate::rng::Stream;

/// Decides from ids alone whether a completion ends. Stop strings are implemented as such a rule with a tokenizer.
pub trait StopRule {
    /// Whether completion `row` ends with the last of `completion_ids`. Called once after every new id.
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool;
}

/// Rule that never stops: only the stop ids and the length end a completion.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStopRule;

impl StopRule for NoStopRule {
    fn stops(&mut self, _: usize, _: &[u32]) -> bool {
        false
    }
}

/// Reason for the end of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StopReason {
    /// A stop id was sampled. It is the last id of the completion.
    StopId,
    /// A stop string appeared.
    StopString,
    /// `max_new_tokens` was reached.
    Length,
}

impl StopReason {
    /// Returns the name used in logs: `stop_id`, `stop_string` or `length`.
    pub fn name(self) -> &'static str {
        match self {
            Self::StopId => "stop_id",
            Self::StopString => "stop_string",
            Self::Length => "length",
        }
    }
}

/// An event of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// An id was sampled.
    Token {
        /// Number of the row.
        row: usize,
        /// The sampled id.
        id: u32,
        /// Log-probability under the model at the sampling temperature (1 if greedy), before processors and truncation, in nats.
        logprob: f32,
        /// The likeliest ids at this position with their log-probabilities, likeliest first.
        /// [`SamplingParams::likeliest`] sets the number.
        likeliest: Vec<(u32, f32)>,
    },
    /// The completion has ended.
    Finished {
        /// Number of the row.
        row: usize,
        /// The completion since the prompt or the last turn.
        completion: Completion,
    },
}

/// One sampled completion, as ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The ids, including a sampled stop id. Never empty.
    pub ids: Vec<u32>,
    /// Log-probability of each id under the distribution it was sampled from, in nats. If supports of a mask are
    /// recorded, it is normalized over them.
    pub sampled_logprobs: Vec<f32>,
    /// Log-probability of each id under the model at the sampling temperature, before processors and truncation, in nats.
    pub logprobs: Vec<f32>,
    /// Ids that were possible at each position, as [`SamplingParams::record`] specifies; else empty.
    pub supports: Vec<Support>,
    /// Reason for its end.
    pub stop: StopReason,
}

impl Completion {
    fn empty() -> Self {
        let (sampled_logprobs, logprobs, supports) = (Vec::new(), Vec::new(), Vec::new());
        Self { ids: Vec::new(), sampled_logprobs, logprobs, supports, stop: StopReason::Length }
    }
}

/// A row of the cache, and the completion sampled into it.
pub(super) struct SampledRow {
    /// Owner of the row's request.
    pub owner: u64,
    pub number: usize,
    /// Number of the shared prompt in the cache, and how many of `ids` belong to it.
    pub prompt: usize,
    pub prompt_len: usize,
    pub slot: usize,
    /// All ids so far: the prompt (or the decoder's start id in an encoder–decoder), answers, and what was added to them.
    ids: Vec<u32>,
    /// Ids that the encoder read, if there is one.
    encoded: Option<Arc<[u32]>>,
    /// Number of `ids` in the cache.
    cached: usize,
    params: Arc<SamplingParams>,
    stream: Stream,
    /// Whether the row is kept after its completion ends.
    pub is_kept: bool,
    completion: Completion,
    /// Likeliest ids at the position of the last id, until they are reported.
    likeliest: Vec<(u32, f32)>,
    pub has_ended: bool,
}

impl SampledRow {
    pub(super) fn new(
        owner: u64,
        (number, stream): (usize, Stream),
        (prompt, prompt_len, ids): (usize, usize, &[u32]),
        encoded: Option<Arc<[u32]>>,
        slot: usize,
        params: Arc<SamplingParams>,
        is_kept: bool,
    ) -> Self {
        let (ids, cached) = (ids.to_vec(), prompt_len);
        let (completion, likeliest, has_ended) = (Completion::empty(), Vec::new(), false);
        Self {
            owner,
            number,
            prompt,
            prompt_len,
            slot,
            ids,
            encoded,
            cached,
            params,
            stream,
            is_kept,
            completion,
            likeliest,
            has_ended,
        }
    }

    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub(super) fn history(&self) -> History<'_> {
        history(&self.ids, &self.completion, self.encoded.as_deref())
    }

    /// Returns the ids that are not in the cache yet, with their positions and the places of their keys and values.
    pub(super) fn next(&self) -> impl Iterator<Item = NewToken> + '_ {
        let row = |at: usize| CacheRow { prompt: self.prompt, slot: self.slot, length: at - self.prompt_len };
        (self.cached..self.ids.len()).map(move |at| NewToken { id: self.ids[at], position: at as u32, row: row(at) })
    }

    /// Returns the number of ids that are not in the cache yet.
    pub(super) fn uncached(&self) -> usize {
        self.ids.len() - self.cached
    }

    /// Records that all ids are in the cache.
    pub(super) fn catch_up(&mut self) {
        self.cached = self.ids.len();
    }

    /// Applies this row's processors to the logits after the last id.
    pub(super) fn process(&self, logits_v: &mut [f32]) -> ProcessedLogits {
        ProcessedLogits::new(logits_v, self.history(), &self.params)
    }

    /// Samples the next id from the logits that [`process`](Self::process) left, under `mask` if there is one.
    pub(super) fn draw(&mut self, processed: ProcessedLogits, logits_v: &mut [f32], mask: Option<Support>) {
        let choice = processed.choose(logits_v, mask, &self.params, &mut self.stream);
        self.push(choice);
    }

    /// Whether a device that draws can apply this row's settings.
    pub(super) fn draws_on_device(&self) -> bool {
        self.params.draws_on_device()
    }

    /// Returns the settings with which a device draws the next id.
    pub(super) fn device_draw(&mut self, vocabulary: usize) -> Draw {
        // Only some fields are borrowed, because the stream changes.
        let history = history(&self.ids, &self.completion, self.encoded.as_deref());
        draw_of(history, &self.params, vocabulary, &mut self.stream)
    }

    /// Adds an id that a device has drawn.
    pub(super) fn push_drawn(&mut self, Drawn { id, logprob, sampled_logprob }: Drawn) {
        self.push(Choice { id, sampled_logprob, logprob, support: None, likeliest: Vec::new() });
    }

    fn push(&mut self, choice: Choice) {
        self.ids.push(choice.id);
        self.completion.ids.push(choice.id);
        self.completion.sampled_logprobs.push(choice.sampled_logprob);
        self.completion.logprobs.push(choice.logprob);
        self.completion.supports.extend(choice.support);
        self.likeliest = choice.likeliest;
    }

    /// Returns the event that the last id was sampled.
    pub(super) fn token_event(&mut self) -> Event {
        let message = "it was just drawn";
        Event::Token {
            row: self.number,
            id: *self.ids.last().expect(message),
            logprob: *self.completion.logprobs.last().expect(message),
            likeliest: std::mem::take(&mut self.likeliest),
        }
    }

    /// Checks whether and why the last id ends the completion.
    pub(super) fn check(&mut self, stop: &mut dyn StopRule) {
        let (ids, params) = (&self.completion.ids, &self.params);
        let reason = if ids.last().is_some_and(|id| params.stop_ids.contains(id)) {
            Some(StopReason::StopId)
        } else if stop.stops(self.number, ids) {
            Some(StopReason::StopString)
        } else if ids.len() == params.max_new_tokens {
            Some(StopReason::Length)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.completion.stop = reason;
            self.has_ended = true;
        }
    }

    /// Returns the completion, which has ended.
    pub(super) fn finish(&mut self) -> Completion {
        std::mem::replace(&mut self.completion, Completion::empty())
    }

    /// Continues after `ids` with a new completion.
    pub(super) fn continue_with(&mut self, ids: &[u32], params: Arc<SamplingParams>, stream: Stream) {
        self.ids.extend_from_slice(ids);
        (self.params, self.stream, self.has_ended) = (params, stream, false);
    }

    /// Drops all ids but the first `length`, which must include the shared ones.
    pub(super) fn rewind(&mut self, length: usize) {
        self.ids.truncate(length);
        self.cached = self.cached.min(length);
    }
}

/// The history of a row with these ids, which end with those of `completion`, and this encoder input, if there is one.
fn history<'a>(ids: &'a [u32], completion: &Completion, encoded: Option<&'a [u32]>) -> History<'a> {
    let history = History::new(ids, completion.ids.len());
    encoded.map_or(history, |encoded| history.with_encoder(encoded))
}
