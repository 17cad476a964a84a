//! The sampling engine. It exists as long as its weights and serves any number of requests.
//!
//! Prompts are computed once and shared by their group. Finished rows leave at once, and waiting rows take their
//! places. A kept row can continue after further ids (a tool's reply, a person's turn) from its part of the cache.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::mask::LogitsMask;
use super::next::{Lines, NewToken, Next};
use super::params::SamplingParams;
use super::row::{Event, SampledRow, StopRule};
use crate::error::{Error, Result};
use crate::model::CausalLm;
use crate::rng::Stream;

/// Maximum number of prompt tokens in one pass, unless a single prompt is longer.
pub const PREFILL_TOKENS: usize = 4096;

/// A request for completions of one prompt.
#[derive(Debug, Clone)]
pub struct Request {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Sampling settings.
    pub params: Arc<SamplingParams>,
    /// Random streams, one per completion.
    pub streams: Vec<Stream>,
    /// Whether rows are kept after their completions end, for [`Engine::extend`]. Rows of one prompt share it. A single
    /// row shares only its first token, so that [`Engine::rewind`] can return to any later one.
    pub is_kept: bool,
}

/// Ids after a completion that has ended, and the settings of the next completion.
#[derive(Debug, Clone)]
pub struct Turn {
    /// Ids after the completion.
    pub ids: Vec<u32>,
    /// Sampling settings of the next completion.
    pub params: Arc<SamplingParams>,
    /// Random stream of the next completion.
    pub stream: Stream,
}

/// Rows in progress, waiting rows, and kept rows.
///
/// Rows are numbered from 0 in the order of submission. Each row draws from its own stream, and its logits do not
/// depend on the other rows. Therefore its completion does not depend on them either.
pub struct Engine<'a> {
    next: Next,
    mask: Option<&'a dyn LogitsMask>,
    /// A second model that computes every row for the mask.
    guide: Option<Next>,
    /// Waiting groups, in order. Only the first one can have a prompt that is already computed.
    waiting: VecDeque<Waiting>,
    live: Vec<SampledRow>,
    kept: Vec<SampledRow>,
    /// Free cache slots.
    free: Vec<usize>,
    /// Number of rows submitted so far.
    rows: usize,
    /// Prompts in the cache.
    cached_prompts: Vec<usize>,
    /// Logits after the last computed prompt, if rows of it still wait, with those of the guide.
    last_logits: Option<Logits>,
    prefilled: usize,
}

/// One line of logits per row: the model's, and the guide's if there is one.
#[derive(Debug, Clone)]
struct Logits {
    own: Lines,
    guide: Option<Lines>,
}

impl Logits {
    /// Returns the lines `indices`, in this order.
    fn select(&self, indices: &[usize]) -> Self {
        let select = |lines: &Lines| lines.select(indices);
        Self { own: select(&self.own), guide: self.guide.as_ref().map(select) }
    }

    /// Returns these lines followed by `others`.
    fn followed_by(self, others: Self) -> Self {
        let guide = self.guide.zip(others.guide).map(|(a, b)| a.followed_by(b));
        Self { own: self.own.followed_by(others.own), guide }
    }
}

/// Rows of one prompt that have no slot yet.
struct Waiting {
    prompt: Vec<u32>,
    params: Arc<SamplingParams>,
    rows: VecDeque<(usize, Stream)>,
    is_kept: bool,
    /// Number of prompt tokens that are computed once for all rows.
    shared: usize,
    /// Number of the prompt in the cache, once it is computed.
    computed: Option<usize>,
}

impl<'a> Engine<'a> {
    /// Creates an engine for `places` rows at the same time. Each has room for `capacity` tokens after its prompt, and
    /// more when needed. Weights are packed in the model's compute format, unless they are already frozen.
    pub fn new(model: &CausalLm, places: usize, capacity: usize) -> Self {
        Self {
            next: Next::new(model, places, capacity),
            mask: None,
            guide: None,
            waiting: VecDeque::new(),
            live: Vec::with_capacity(places),
            kept: Vec::new(),
            free: (0..places).rev().collect(),
            rows: 0,
            cached_prompts: Vec::new(),
            last_logits: None,
            prefilled: 0,
        }
    }

    /// Returns the engine with `mask` applied to all sampling.
    pub fn with_mask(self, mask: &'a dyn LogitsMask) -> Self {
        Self { mask: Some(mask), ..self }
    }

    /// Returns the engine with `guide`, a model with the same vocabulary that also computes every row. The mask
    /// receives its logits. `places` and `capacity` are those of the engine.
    pub fn with_guide(self, guide: &CausalLm, places: usize, capacity: usize) -> Self {
        Self { guide: Some(Next::new(guide, places, capacity)), ..self }
    }

    /// Submits a request and returns the numbers of its rows.
    ///
    /// # Errors
    /// If a setting is invalid, or if the prompt is empty, contains an id outside the vocabulary, or leaves no room for
    /// `max_new_tokens`.
    pub fn submit(&mut self, request: Request) -> Result<Range<usize>> {
        let Request { prompt, params, streams, is_kept } = request;
        params.check()?;
        check_prompt("the prompt", &prompt, &params, self.next.model())?;
        let numbers = self.rows..self.rows + streams.len();
        self.rows = numbers.end;
        let rows: VecDeque<_> = numbers.clone().zip(streams).collect();
        // A single kept row shares as little as possible. An encoder always reads its whole input.
        let alone = is_kept && rows.len() == 1 && !self.next.has_encoder();
        let shared = if alone { 1 } else { prompt.len() };
        if !numbers.is_empty() {
            self.waiting.push_back(Waiting { prompt, params, rows, is_kept, shared, computed: None });
        }
        Ok(numbers)
    }

    /// Continues row `row`, which was kept and has ended. Only ids that are not in the cache are computed.
    ///
    /// # Errors
    /// If the row does not exist or has not ended, if a setting is invalid, if there is no id to continue from, if an
    /// id is outside the vocabulary, or if there are too few positions.
    pub fn extend(&mut self, row: usize, turn: Turn) -> Result<()> {
        let Turn { ids, params, stream } = turn;
        params.check()?;
        let Some(at) = self.kept.iter().position(|kept| kept.number == row) else {
            return Err(Error::input(format!(
                "row {row} cannot continue: it is not one of the finished rows that were kept"
            )));
        };
        let all = [self.kept[at].ids(), &ids].concat();
        if self.kept[at].uncached() + ids.len() == 0 {
            return Err(Error::input(format!("row {row} cannot continue: it has no new tokens")));
        }
        check_prompt("the conversation", &all, &params, self.next.model())?;
        let mut row = self.kept.swap_remove(at);
        row.continue_with(&ids, params, stream);
        self.prefilled += row.uncached();
        self.live.push(row);
        Ok(())
    }

    /// Returns the ids of a kept row that has ended, including the prompt.
    pub fn ids(&self, row: usize) -> Option<&[u32]> {
        self.kept.iter().find(|kept| kept.number == row).map(SampledRow::ids)
    }

    /// Drops all but the first `length` ids of a kept row that has ended. Returns whether it did: a row cannot become
    /// shorter than its shared prompt.
    pub fn rewind(&mut self, row: usize, length: usize) -> bool {
        let found = self.kept.iter_mut().find(|kept| kept.number == row && kept.prompt_len <= length);
        found.map(|kept| kept.rewind(length)).is_some()
    }

    /// Removes a row, whether it is waiting, in progress or kept, and frees its slot at once. Returns whether it existed.
    pub fn cancel(&mut self, row: usize) -> bool {
        let is_it = |found: &SampledRow| found.number == row;
        let mut gone: Vec<SampledRow> = self.live.extract_if(.., |found| is_it(found)).collect();
        gone.extend(self.kept.extract_if(.., |found| is_it(found)));
        self.free.extend(gone.iter().map(|row| row.slot));
        let mut was_waiting = false;
        for group in &mut self.waiting {
            let before = group.rows.len();
            group.rows.retain(|(number, _)| *number != row);
            was_waiting |= group.rows.len() < before;
        }
        self.waiting.retain(|group| !group.rows.is_empty());
        self.drop_prompts();
        was_waiting || !gone.is_empty()
    }

    /// Whether [`step`](Self::step) has work: a row is in progress, or a row waits and a slot is free.
    pub fn is_busy(&self) -> bool {
        !self.live.is_empty() || !(self.waiting.is_empty() || self.free.is_empty())
    }

    /// Returns how many given tokens were computed: prompts, and what [`extend`](Self::extend) had to compute before sampling.
    pub fn prefilled(&self) -> usize {
        self.prefilled
    }

    /// Assigns free slots to waiting rows and samples their first ids, then samples one more id for every row. Returns
    /// the events: for each row its ids in order, then its end.
    pub fn step(&mut self, stop: &mut dyn StopRule) -> Vec<Event> {
        let mut events = Vec::new();
        self.admit(stop, &mut events);
        self.decode(stop, &mut events);
        events
    }

    /// Assigns free slots to waiting rows, computes their new prompts, and samples their first ids.
    fn admit(&mut self, stop: &mut dyn StopRule, events: &mut Vec<Event>) {
        while !self.waiting.is_empty() && !self.free.is_empty() {
            let known = usize::from(self.waiting[0].computed.is_some());
            let groups = self.next_groups(known);
            let computed = self.prefill(known..groups);
            let before = self.last_logits.take().filter(|_| known > 0);
            // One line per group.
            let lines = match (before, computed) {
                (Some(before), Some(computed)) => before.followed_by(computed),
                (before, computed) => before.or(computed).expect("logits after the prompt of a group"),
            };
            let (mut entering, mut line_of) = (Vec::new(), Vec::new());
            for (i, group) in self.waiting.iter_mut().enumerate().take(groups) {
                let prompt = group.computed.expect("it was just computed");
                let (given, shared) = self.next.given(&group.prompt, group.shared);
                let encoded: Option<Arc<[u32]>> = self.next.has_encoder().then(|| group.prompt[..].into());
                let places = group.rows.len().min(self.free.len());
                for (row, slot) in group.rows.drain(..places).zip(self.free.drain(self.free.len() - places..).rev()) {
                    let prompt = (prompt, shared, &given[..]);
                    let row =
                        SampledRow::new(row, prompt, encoded.clone(), slot, Arc::clone(&group.params), group.is_kept);
                    if row.uncached() == 0 {
                        entering.push(row);
                        line_of.push(i);
                    } else {
                        self.prefilled += row.uncached();
                        self.live.push(row);
                    }
                }
            }
            self.waiting.retain(|group| !group.rows.is_empty());
            if self.waiting.front().is_some_and(|group| group.computed.is_some()) {
                self.last_logits = Some(lines.select(&[groups - 1]));
            }
            if !entering.is_empty() {
                self.draw(&mut entering, lines.select(&line_of), stop, events);
            }
            self.live.append(&mut entering);
            self.retire(events);
        }
    }

    /// Returns how many of the first groups enter next. The prompts of the first `known` are already computed.
    fn next_groups(&self, known: usize) -> usize {
        let (mut groups, mut places, mut tokens) = (0, self.free.len(), 0);
        for group in &self.waiting {
            if groups >= known {
                tokens += group.shared;
            }
            if places == 0 || (tokens > PREFILL_TOKENS && groups > known) {
                break;
            }
            places = places.saturating_sub(group.rows.len());
            groups += 1;
        }
        groups
    }

    /// Computes the prompts of waiting groups and returns the logits after the last token of each.
    fn prefill(&mut self, groups: Range<usize>) -> Option<Logits> {
        if groups.is_empty() {
            return None;
        }
        let waiting = self.waiting.range(groups.clone());
        let prompts: Vec<&[u32]> = waiting.map(|group| &group.prompt[..group.shared]).collect();
        let (numbers, own) = self.next.after_prompts(&prompts);
        // Both models have computed the same prompts, so they share the numbers.
        let guide = self.guide.as_mut().map(|guide| guide.after_prompts(&prompts).1);
        self.prefilled += prompts.iter().map(|prompt| prompt.len()).sum::<usize>();
        self.cached_prompts.extend(numbers.clone());
        self.waiting.range_mut(groups).zip(numbers).for_each(|(group, number)| group.computed = Some(number));
        Some(Logits { own, guide })
    }

    /// Computes the ids of live rows that are not in the cache, then samples one more id for each row.
    fn decode(&mut self, stop: &mut dyn StopRule, events: &mut Vec<Event>) {
        if self.live.is_empty() {
            return;
        }
        let tokens: Vec<NewToken> = self.live.iter().flat_map(SampledRow::next).collect();
        let mut live = std::mem::take(&mut self.live);
        let ends = live.iter().scan(0, |end, row| {
            *end += row.uncached();
            Some(*end - 1)
        });
        let ends: Vec<usize> = ends.collect();
        let own = self.next.after(&tokens, &ends);
        let logits = Logits { own, guide: self.guide.as_mut().map(|guide| guide.after(&tokens, &ends)) };
        live.iter_mut().for_each(SampledRow::catch_up);
        self.draw(&mut live, logits, stop, events);
        self.live = live;
        self.retire(events);
    }

    /// Samples one id for each of `rows` from its line of `logits`.
    fn draw(&self, rows: &mut [SampledRow], logits: Logits, stop: &mut dyn StopRule, events: &mut Vec<Event>) {
        let vocabulary = self.next.model().vocab_size();
        let Logits { own, guide } = logits;
        match (own, self.mask) {
            (Lines::Device(logits_bv), None) if rows.iter().all(SampledRow::draws_on_device) => {
                let draws: Vec<_> = rows.par_iter_mut().map(|row| row.device_draw(vocabulary)).collect();
                let drawn = gradus_kernels::draw(logits_bv, &draws);
                rows.iter_mut().zip(drawn).for_each(|(row, drawn)| row.push_drawn(drawn));
            }
            (own, None) => {
                let mut own = own.into_host();
                rows.par_iter_mut().zip(own.par_chunks_mut(vocabulary)).for_each(|(row, logits_v)| {
                    let processed = row.process(logits_v);
                    row.draw(processed, logits_v, None);
                });
            }
            (own, Some(mask)) => {
                let (mut own, guide) = (own.into_host(), guide.map(Lines::into_host));
                let both = rows.par_iter().zip(own.par_chunks_mut(vocabulary));
                let lines: Vec<_> = both.map(|(row, logits_v)| row.process(logits_v)).collect();
                let histories: Vec<_> = rows.iter().map(|row| (row.number, row.history())).collect();
                let supports = mask.supports(&histories, &own, guide.as_deref());
                let both = rows.par_iter_mut().zip(own.par_chunks_mut(vocabulary));
                let each = both.zip(lines.into_par_iter().zip(supports));
                each.for_each(|((row, logits_v), (processed, support))| row.draw(processed, logits_v, Some(support)));
            }
        }
        for row in rows {
            events.push(row.token_event());
            row.check(stop);
        }
    }

    /// Removes rows that have ended, and frees the slots of those that are not kept.
    fn retire(&mut self, events: &mut Vec<Event>) {
        let live = self.live.len();
        for mut row in self.live.extract_if(.., |row| row.has_ended) {
            events.push(Event::Finished { row: row.number, completion: row.finish() });
            match row.is_kept {
                true => self.kept.push(row),
                false => self.free.push(row.slot),
            }
        }
        if self.live.len() < live {
            self.drop_prompts();
        }
    }

    /// Drops prompts that no row uses any more.
    fn drop_prompts(&mut self) {
        let rows = self.live.iter().chain(&self.kept).map(|row| row.prompt);
        let used: BTreeSet<usize> = rows.chain(self.waiting.iter().filter_map(|group| group.computed)).collect();
        for prompt in self.cached_prompts.extract_if(.., |prompt| !used.contains(prompt)) {
            self.next.drop_prompt(prompt);
            if let Some(guide) = &mut self.guide {
                guide.drop_prompt(prompt);
            }
        }
    }
}

/// Rejects a prompt that cannot be continued; `name` is its name in messages.
pub(super) fn check_prompt(name: &str, prompt: &[u32], params: &SamplingParams, model: &CausalLm) -> Result<()> {
    let (vocabulary, new) = (model.vocab_size(), params.max_new_tokens);
    params.check_ids(vocabulary)?;
    if new == 0 {
        return Err(Error::input("`max_new_tokens` is 0, but must be at least 1"));
    }
    if prompt.is_empty() {
        return Err(Error::input(format!("{name} has no tokens"))
            .with_hint("a model without a beginning-of-sequence token needs at least one token to continue"));
    }
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
        let message = format!("{name} holds token id {id}, but the model's vocabulary has {vocabulary} ids");
        return Err(Error::input(message).with_hint("the tokenizer and the model do not belong together"));
    }
    model.position_budget().check(name, prompt.len(), new)
}

#[cfg(test)]
mod tests;
