//! One row of the engine: a completion on its way, and how it ends.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use gradus_kernels::CacheRow;

use super::next::NewToken;
use super::params::SamplingParams;
use super::processors::History;
use super::sampler::Line;
use crate::model::Support;
use crate::rng::Stream;

/// Decides on ids alone whether a completion ends; stop strings are such a rule over a tokenizer.
pub trait StopRule {
    /// Whether completion `row` ends with the last of `completion_ids`. Called once after every new id.
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool;
}

/// No rule but the stop ids and the length.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStopRule;

impl StopRule for NoStopRule {
    fn stops(&mut self, _: usize, _: &[u32]) -> bool {
        false
    }
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StopReason {
    /// A stop id was sampled; it is the last id of the completion.
    StopId,
    /// A stop string appeared.
    StopString,
    /// `max_new_tokens` was reached.
    Length,
}

impl StopReason {
    /// The name used in logs: `stop_id`, `stop_string` or `length`.
    pub fn name(self) -> &'static str {
        match self {
            Self::StopId => "stop_id",
            Self::StopString => "stop_string",
            Self::Length => "length",
        }
    }
}

/// What happened to a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// An id was drawn.
    Token {
        /// The row.
        row: usize,
        /// The id.
        id: u32,
        /// Its log-probability under the model at the sampling temperature (1 when greedy), unprocessed, in nats.
        logprob: f32,
        /// The likeliest ids there and their log-probabilities, the likeliest first, as many as
        /// [`SamplingParams::likeliest`] asks for.
        likeliest: Vec<(u32, f32)>,
    },
    /// The completion has ended.
    Finished {
        /// The row.
        row: usize,
        /// Its completion, since the prompt or the last turn.
        completion: Completion,
    },
}

/// One sampled completion, as ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The ids, a sampled stop id included. Never empty.
    pub ids: Vec<u32>,
    /// Log-probability of each id under the distribution it was drawn from, in nats; where the supports of a mask are
    /// recorded, among those.
    pub sampled_logprobs: Vec<f32>,
    /// Log-probability of each id under the model at the sampling temperature, unprocessed, in nats.
    pub logprobs: Vec<f32>,
    /// What each id could have been, as [`SamplingParams::record`] says; else empty.
    pub supports: Vec<Support>,
    /// Why it ended.
    pub stop: StopReason,
}

impl Completion {
    fn empty() -> Self {
        let (sampled_logprobs, logprobs, supports) = (Vec::new(), Vec::new(), Vec::new());
        Self { ids: Vec::new(), sampled_logprobs, logprobs, supports, stop: StopReason::Length }
    }
}

/// A row of the cache, and what is sampled into it.
pub(super) struct Row {
    pub number: usize,
    /// The number in the cache of the prompt that is shared, and how many of `ids` are its.
    pub prompt: usize,
    pub prompt_len: usize,
    pub slot: usize,
    /// Everything so far: prompt (of a model with an encoder: the id that its decoder begins with), answers, what was added
    /// to them.
    ids: Vec<u32>,
    /// What the encoder read, where there is one.
    encoded: Option<Arc<[u32]>>,
    /// How many of `ids` are in the cache.
    cached: usize,
    params: Arc<SamplingParams>,
    stream: Stream,
    /// Whether it stays after its completion has ended.
    pub is_kept: bool,
    completion: Completion,
    /// The likeliest ids where the last was drawn, until they are told.
    likeliest: Vec<(u32, f32)>,
    pub has_ended: bool,
}

impl Row {
    pub(super) fn new(
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
        let history = History::new(&self.ids, self.completion.ids.len());
        self.encoded.as_ref().map_or(history, |encoded| history.with_encoder(encoded))
    }

    /// The ids that are not in the cache yet, their positions, and where their keys and values go.
    pub(super) fn next(&self) -> impl Iterator<Item = NewToken> + '_ {
        let row = |at: usize| CacheRow { prompt: self.prompt, slot: self.slot, length: at - self.prompt_len };
        (self.cached..self.ids.len()).map(move |at| NewToken { id: self.ids[at], position: at as u32, row: row(at) })
    }

    /// How many ids are not in the cache yet.
    pub(super) fn behind(&self) -> usize {
        self.ids.len() - self.cached
    }

    /// Notes that all ids are in the cache.
    pub(super) fn catch_up(&mut self) {
        self.cached = self.ids.len();
    }

    /// Does to the logits after the last id what this row alone demands.
    pub(super) fn process(&self, logits_v: &mut [f32]) -> Line {
        Line::new(logits_v, self.history(), &self.params)
    }

    /// Draws the next id from what [`process`](Self::process) left, and `mask` where there is one.
    pub(super) fn draw(&mut self, line: Line, logits_v: &mut [f32], mask: Option<Support>) {
        let choice = line.choose(logits_v, mask, &self.params, &mut self.stream);
        self.ids.push(choice.id);
        self.completion.ids.push(choice.id);
        self.completion.sampled_logprobs.push(choice.sampled_logprob);
        self.completion.logprobs.push(choice.logprob);
        self.completion.supports.extend(choice.support);
        self.likeliest = choice.likeliest;
    }

    /// That the last id was drawn.
    pub(super) fn told(&mut self) -> Event {
        let said = "it was just drawn";
        Event::Token {
            row: self.number,
            id: *self.ids.last().expect(said),
            logprob: *self.completion.logprobs.last().expect(said),
            likeliest: std::mem::take(&mut self.likeliest),
        }
    }

    /// Sees whether the last id ends the completion, and why.
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

    /// The completion, which has ended.
    pub(super) fn finish(&mut self) -> Completion {
        std::mem::replace(&mut self.completion, Completion::empty())
    }

    /// Goes on after `ids`, with a completion that has not begun.
    pub(super) fn go_on(&mut self, ids: &[u32], params: Arc<SamplingParams>, stream: Stream) {
        self.ids.extend_from_slice(ids);
        (self.params, self.stream, self.has_ended) = (params, stream, false);
    }

    /// Forgets all ids but the first `length`, which are no fewer than those that are shared.
    pub(super) fn rewind(&mut self, length: usize) {
        self.ids.truncate(length);
        self.cached = self.cached.min(length);
    }
}
