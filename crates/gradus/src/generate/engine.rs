//! The engine: it lives as long as its weights, and samples for whoever asks.
//!
//! Prompts are computed once and shared by their group; finished rows leave at once and waiting ones take their places.
//! A row that is kept goes on after other ids (a tool's answer, a person's turn) from what the cache holds of it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::mask::LogitsMask;
use super::next::{NewToken, Next};
use super::params::SamplingParams;
use super::row::{Event, Row, StopRule};
use crate::error::{Error, Result};
use crate::model::CausalLm;
use crate::rng::Stream;

/// Prompt tokens computed in one pass at most, unless one prompt alone is longer.
pub const PREFILL_TOKENS: usize = 4096;

/// What is asked for: completions of one prompt.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt's ids.
    pub prompt: Vec<u32>,
    /// How its completions are drawn.
    pub params: Arc<SamplingParams>,
    /// One stream per completion to draw from.
    pub streams: Vec<Stream>,
    /// Whether rows stay after their completions have ended, for [`Engine::extend`]. Rows of one prompt share it; a row
    /// that is alone shares nothing but its first token, so that [`Engine::rewind`] can take it back to any other.
    pub is_kept: bool,
}

/// What comes after a completion that has ended, and how the next one is drawn.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The ids after the completion.
    pub ids: Vec<u32>,
    /// How the next completion is drawn.
    pub params: Arc<SamplingParams>,
    /// The stream to draw from.
    pub stream: Stream,
}

/// Rows being sampled, those that wait for a place, and those that are kept.
///
/// Rows are numbered from 0 in the order they are submitted. Each draws from its own stream and its logits do not depend
/// on its company, so what a row becomes does not depend on which others there are.
pub struct Engine<'a> {
    next: Next,
    mask: Option<&'a dyn LogitsMask>,
    /// Reads every row beside the model, for the mask.
    guide: Option<Next>,
    /// In order; only the first can have a prompt that is computed already.
    waiting: VecDeque<Waiting>,
    live: Vec<Row>,
    kept: Vec<Row>,
    /// Places in the cache.
    free: Vec<usize>,
    /// Rows numbered so far.
    rows: usize,
    /// Prompts that are in the cache.
    held: Vec<usize>,
    /// The logits after the last prompt computed, where rows of it still wait; and what the guide says.
    last_logits: Logits,
    prefilled: usize,
}

/// One line of the vocabulary per row: of the model, and of its guide where there is one.
#[derive(Debug, Clone, Default)]
struct Logits {
    own: Vec<f32>,
    guide: Option<Vec<f32>>,
}

impl Logits {
    /// Line `i` of lines of `vocabulary`.
    fn line(&self, i: usize, vocabulary: usize) -> Self {
        let line = |all: &Vec<f32>| all[i * vocabulary..(i + 1) * vocabulary].to_vec();
        Self { own: line(&self.own), guide: self.guide.as_ref().map(line) }
    }

    fn append(&mut self, other: Self) {
        self.own.extend(other.own);
        match (&mut self.guide, other.guide) {
            (Some(guide), Some(other)) => guide.extend(other),
            (guide, other) => *guide = other,
        }
    }
}

/// Rows of one prompt that have no place yet.
struct Waiting {
    prompt: Vec<u32>,
    params: Arc<SamplingParams>,
    rows: VecDeque<(usize, Stream)>,
    is_kept: bool,
    /// How many tokens of the prompt are computed for all rows.
    shared: usize,
    /// The prompt's number in the cache, once it is computed.
    computed: Option<usize>,
}

impl<'a> Engine<'a> {
    /// An engine with `places` rows side by side, which have room for `capacity` tokens each beside their prompts and get
    /// more when they need it. Weights are packed as the model computes, unless they are already frozen.
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
            held: Vec::new(),
            last_logits: Logits::default(),
            prefilled: 0,
        }
    }

    /// The same engine, with `mask` over everything that is drawn.
    pub fn with_mask(self, mask: &'a dyn LogitsMask) -> Self {
        Self { mask: Some(mask), ..self }
    }

    /// The same engine, in which `guide`, a model of the same vocabulary, reads every row too: the mask is told what it says.
    /// It has `places` and `capacity` as the engine has.
    pub fn with_guide(self, guide: &CausalLm, places: usize, capacity: usize) -> Self {
        Self { guide: Some(Next::new(guide, places, capacity)), ..self }
    }

    /// Asks for completions; gives the numbers of their rows.
    ///
    /// # Errors
    /// When a setting has no meaning, or the prompt is empty, holds an id outside the vocabulary, or leaves no room for
    /// `max_new_tokens`.
    pub fn submit(&mut self, request: Request) -> Result<Range<usize>> {
        let Request { prompt, params, streams, is_kept } = request;
        params.check()?;
        check_prompt("the prompt", &prompt, &params, self.next.model())?;
        let numbers = self.rows..self.rows + streams.len();
        self.rows = numbers.end;
        let rows: VecDeque<_> = numbers.clone().zip(streams).collect();
        // A row alone that is kept shares as little as it can; what an encoder reads it reads whole.
        let alone = is_kept && rows.len() == 1 && !self.next.has_encoder();
        let shared = if alone { 1 } else { prompt.len() };
        if !numbers.is_empty() {
            self.waiting.push_back(Waiting { prompt, params, rows, is_kept, shared, computed: None });
        }
        Ok(numbers)
    }

    /// Goes on with row `row`, which was kept and has ended: only what the cache does not hold of it is computed.
    ///
    /// # Errors
    /// When the row is not there or has not ended, a setting has no meaning, there is nothing to go on from, an id is
    /// outside the vocabulary, or there are too few positions.
    pub fn extend(&mut self, row: usize, turn: Turn) -> Result<()> {
        let Turn { ids, params, stream } = turn;
        params.check()?;
        let Some(at) = self.kept.iter().position(|kept| kept.number == row) else {
            return Err(Error::input(format!(
                "row {row} cannot go on: it is not among those that were kept and ended"
            )));
        };
        let all = [self.kept[at].ids(), &ids].concat();
        if self.kept[at].behind() + ids.len() == 0 {
            return Err(Error::input(format!(
                "row {row} cannot go on: everything before is computed, and nothing is new"
            )));
        }
        check_prompt("the conversation", &all, &params, self.next.model())?;
        let mut row = self.kept.swap_remove(at);
        row.go_on(&ids, params, stream);
        self.prefilled += row.behind();
        self.live.push(row);
        Ok(())
    }

    /// The ids of a row that was kept and has ended, prompt included.
    pub fn ids(&self, row: usize) -> Option<&[u32]> {
        self.kept.iter().find(|kept| kept.number == row).map(Row::ids)
    }

    /// Forgets all but the first `length` ids of a row that was kept and has ended. Whether that was done: a row cannot
    /// become shorter than its prompt.
    pub fn rewind(&mut self, row: usize, length: usize) -> bool {
        let found = self.kept.iter_mut().find(|kept| kept.number == row && kept.prompt_len <= length);
        found.map(|kept| kept.rewind(length)).is_some()
    }

    /// Lets go of a row, whether it waits, is sampled or is kept: its place is free at once. Whether it was there.
    pub fn cancel(&mut self, row: usize) -> bool {
        let is_it = |found: &Row| found.number == row;
        let mut gone: Vec<Row> = self.live.extract_if(.., |found| is_it(found)).collect();
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

    /// Whether [`step`](Self::step) has something to do: a row is sampled, or one waits and there is a place.
    pub fn is_busy(&self) -> bool {
        !self.live.is_empty() || !(self.waiting.is_empty() || self.free.is_empty())
    }

    /// How many tokens were computed that were given and not drawn: prompts, and what [`extend`](Self::extend) had to
    /// compute before it could draw.
    pub fn prefilled(&self) -> usize {
        self.prefilled
    }

    /// Gives free places to waiting rows, whose first ids are drawn, then draws one more id for every row. Tells what
    /// happened: for each row its ids in order, then that it has ended.
    pub fn step(&mut self, stop: &mut dyn StopRule) -> Vec<Event> {
        let mut events = Vec::new();
        self.admit(stop, &mut events);
        self.decode(stop, &mut events);
        events
    }

    /// Gives free places to waiting rows: computes what is new among their prompts, and draws their first ids.
    fn admit(&mut self, stop: &mut dyn StopRule, events: &mut Vec<Event>) {
        while !self.waiting.is_empty() && !self.free.is_empty() {
            let known = usize::from(self.waiting[0].computed.is_some());
            let groups = self.next_groups(known);
            let fresh = self.prefill(known..groups);
            let vocabulary = self.next.model().vocab_size();
            let logits_of = |group: usize| match group.checked_sub(known) {
                Some(i) => fresh.line(i, vocabulary),
                None => self.last_logits.clone(),
            };
            let (mut entering, mut logits) = (Vec::new(), Logits::default());
            for (i, group) in self.waiting.iter_mut().enumerate().take(groups) {
                let prompt = group.computed.expect("it was just computed");
                let (given, shared) = self.next.given(&group.prompt, group.shared);
                let encoded: Option<Arc<[u32]>> = self.next.has_encoder().then(|| group.prompt[..].into());
                let places = group.rows.len().min(self.free.len());
                for (row, slot) in group.rows.drain(..places).zip(self.free.drain(self.free.len() - places..).rev()) {
                    let prompt = (prompt, shared, &given[..]);
                    let row = Row::new(row, prompt, encoded.clone(), slot, Arc::clone(&group.params), group.is_kept);
                    if row.behind() == 0 {
                        entering.push(row);
                        logits.append(logits_of(i));
                    } else {
                        self.prefilled += row.behind();
                        self.live.push(row);
                    }
                }
            }
            if groups > known {
                self.last_logits = logits_of(groups - 1);
            }
            self.waiting.retain(|group| !group.rows.is_empty());
            self.draw(&mut entering, &mut logits, stop, events);
            self.live.append(&mut entering);
            self.retire(events);
        }
    }

    /// How many groups from the first on enter next; the prompts of the first `known` are computed already.
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

    /// Computes the prompts of waiting groups; returns the logits after each one's last token.
    fn prefill(&mut self, groups: Range<usize>) -> Logits {
        if groups.is_empty() {
            return Logits::default();
        }
        let waiting = self.waiting.range(groups.clone());
        let prompts: Vec<&[u32]> = waiting.map(|group| &group.prompt[..group.shared]).collect();
        let (numbers, own) = self.next.after_prompts(&prompts);
        // Both have computed the same prompts, so a number means the same to both.
        let guide = self.guide.as_mut().map(|guide| guide.after_prompts(&prompts).1);
        self.prefilled += prompts.iter().map(|prompt| prompt.len()).sum::<usize>();
        self.held.extend(numbers.clone());
        self.waiting.range_mut(groups).zip(numbers).for_each(|(group, number)| group.computed = Some(number));
        Logits { own, guide }
    }

    /// What the cache does not hold of the live rows; then one more id is drawn for each.
    fn decode(&mut self, stop: &mut dyn StopRule, events: &mut Vec<Event>) {
        if self.live.is_empty() {
            return;
        }
        let tokens: Vec<NewToken> = self.live.iter().flat_map(Row::next).collect();
        let mut live = std::mem::take(&mut self.live);
        let ends = live.iter().scan(0, |end, row| {
            *end += row.behind();
            Some(*end - 1)
        });
        let ends: Vec<usize> = ends.collect();
        let own = self.next.after(&tokens, &ends);
        let mut logits = Logits { own, guide: self.guide.as_mut().map(|guide| guide.after(&tokens, &ends)) };
        live.iter_mut().for_each(Row::catch_up);
        self.draw(&mut live, &mut logits, stop, events);
        self.live = live;
        self.retire(events);
    }

    /// Draws one id for each of `rows` from its line of `logits`.
    fn draw(&self, rows: &mut [Row], logits: &mut Logits, stop: &mut dyn StopRule, events: &mut Vec<Event>) {
        // Rows that are alone and kept compute their prompts themselves: none of them enters with its first id.
        if rows.is_empty() {
            return;
        }
        let vocabulary = self.next.model().vocab_size();
        let Logits { own, guide } = logits;
        match self.mask {
            None => rows.par_iter_mut().zip(own.par_chunks_mut(vocabulary)).for_each(|(row, logits_v)| {
                let line = row.process(logits_v);
                row.draw(line, logits_v, None);
            }),
            Some(mask) => {
                let both = rows.par_iter().zip(own.par_chunks_mut(vocabulary));
                let lines: Vec<_> = both.map(|(row, logits_v)| row.process(logits_v)).collect();
                let histories: Vec<_> = rows.iter().map(|row| (row.number, row.history())).collect();
                let supports = mask.supports(&histories, own, guide.as_deref());
                let both = rows.par_iter_mut().zip(own.par_chunks_mut(vocabulary));
                let each = both.zip(lines.into_par_iter().zip(supports));
                each.for_each(|((row, logits_v), (line, support))| row.draw(line, logits_v, Some(support)));
            }
        }
        for row in rows {
            events.push(row.told());
            row.check(stop);
        }
    }

    /// Takes out the rows that have ended; places of those that are not kept are free again.
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

    /// Forgets the prompts that no row continues any more.
    fn drop_prompts(&mut self) {
        let rows = self.live.iter().chain(&self.kept).map(|row| row.prompt);
        let used: BTreeSet<usize> = rows.chain(self.waiting.iter().filter_map(|group| group.computed)).collect();
        for prompt in self.held.extract_if(.., |prompt| !used.contains(prompt)) {
            self.next.drop_prompt(prompt);
            if let Some(guide) = &mut self.guide {
                guide.drop_prompt(prompt);
            }
        }
    }
}

/// Refuses a prompt that cannot be continued; `name` is what messages call it.
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
