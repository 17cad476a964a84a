//! The sampling engine. It exists as long as its weights and serves any number of requests.
//!
//! Prompts are computed once and shared by their group. Finished rows leave at once, and waiting rows take their
//! places. A kept row can continue after further ids (a tool's reply, a person's turn) from its part of the cache.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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

/// Share of the places that [`Engine::shared`] adds as a reserve: one for this many.
const PLACES_PER_RESERVE: usize = 4;

/// Rows in progress, waiting rows, and kept rows.
///
/// Rows are numbered from 0 in the order of submission. Each row draws from its own stream, and its logits do not
/// depend on the other rows. Therefore its completion does not depend on them either.
///
/// Rows of one owner receive slots in the order of submission. Owners take turns: a free slot goes to the owner with the
/// fewest rows in progress.
pub struct Engine<'a> {
    next: Next,
    mask: Option<&'a dyn LogitsMask>,
    /// A second model that computes every row for the mask.
    guide: Option<Next>,
    /// Waiting groups. Those of one owner are in order, and the owner whose last turn was longest ago comes first.
    waiting: VecDeque<Waiting>,
    live: Vec<SampledRow>,
    kept: Vec<SampledRow>,
    /// Free cache slots.
    free: Vec<usize>,
    /// Number of slots that only owners without a row in progress receive.
    reserve: usize,
    /// Number of rows submitted so far.
    rows: usize,
    /// Prompts in the cache.
    cached_prompts: Vec<usize>,
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
    owner: u64,
    prompt: Vec<u32>,
    params: Arc<SamplingParams>,
    rows: VecDeque<(usize, Stream)>,
    is_kept: bool,
    /// Number of prompt tokens that are computed once for all rows.
    shared: usize,
    /// The prompt in the cache, once it is computed.
    computed: Option<ComputedPrompt>,
}

/// A computed prompt whose rows have not all entered.
struct ComputedPrompt {
    /// Number of the prompt in the cache.
    number: usize,
    /// Logits after its last token.
    logits: Logits,
}

/// The rows that enter next.
struct Admission {
    /// Index of each group, and the number of its rows that enter. Groups with a computed prompt come first.
    entries: Vec<(usize, usize)>,
    /// Owners with waiting rows; the one whose last turn was longest ago comes first.
    turns: Vec<u64>,
}

/// An owner with waiting rows.
struct Owner {
    id: u64,
    /// Number of its rows in progress.
    rows: usize,
    /// Indices of its groups with rows that still wait.
    groups: VecDeque<usize>,
}

impl<'a> Engine<'a> {
    /// Creates an engine for `places` rows at the same time. Each has room for `capacity` tokens after its prompt, and
    /// more when needed. Weights are packed in the model's compute format, unless they are already frozen.
    pub fn new(model: &CausalLm, places: usize, capacity: usize) -> Self {
        Self::with_reserve(model, places, 0, capacity)
    }

    /// Creates an engine for several owners; see [`submit_for`](Self::submit_for). It has one more place for every four
    /// (at least one). Only an owner without a row in progress receives such a place, so that it does not have to wait
    /// until a long row of another owner ends.
    pub fn shared(model: &CausalLm, places: usize, capacity: usize) -> Self {
        Self::with_reserve(model, places, places.div_ceil(PLACES_PER_RESERVE), capacity)
    }

    fn with_reserve(model: &CausalLm, places: usize, reserve: usize, capacity: usize) -> Self {
        let slots = places + reserve;
        Self {
            next: Next::new(model, slots, capacity),
            mask: None,
            guide: None,
            waiting: VecDeque::new(),
            live: Vec::with_capacity(slots),
            kept: Vec::new(),
            free: (0..slots).rev().collect(),
            reserve,
            rows: 0,
            cached_prompts: Vec::new(),
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

    /// Submits a request and returns the numbers of its rows. Requests that are submitted in this way have one owner.
    ///
    /// # Errors
    /// If a setting is invalid, or if the prompt is empty, contains an id outside the vocabulary, or leaves no room for
    /// `max_new_tokens`.
    pub fn submit(&mut self, request: Request) -> Result<Range<usize>> {
        self.submit_for(0, request)
    }

    /// Submits a request of `owner` and returns the numbers of its rows. Owners take turns, so a request with many rows
    /// does not delay those of other owners until all of its rows have ended.
    ///
    /// # Errors
    /// Same as [`submit`](Self::submit).
    pub fn submit_for(&mut self, owner: u64, request: Request) -> Result<Range<usize>> {
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
            self.waiting.push_back(Waiting { owner, prompt, params, rows, is_kept, shared, computed: None });
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
            let Admission { entries, turns } = self.next_entries();
            if entries.is_empty() {
                return;
            }
            let groups: Vec<usize> = entries.iter().map(|(group, _)| *group).collect();
            // One prompt and one line per group.
            let (prompts, lines) = self.prefill(&groups);
            let (mut entering, mut line_of) = (Vec::new(), Vec::new());
            for (i, &(group, places)) in entries.iter().enumerate() {
                let group = &mut self.waiting[group];
                let (given, shared) = self.next.given(&group.prompt, group.shared);
                let encoded: Option<Arc<[u32]>> = self.next.has_encoder().then(|| group.prompt[..].into());
                for (row, slot) in group.rows.drain(..places).zip(self.free.drain(self.free.len() - places..).rev()) {
                    let prompt = (prompts[i], shared, &given[..]);
                    let (params, is_kept) = (Arc::clone(&group.params), group.is_kept);
                    let row = SampledRow::new(group.owner, row, prompt, encoded.clone(), slot, params, is_kept);
                    if row.uncached() == 0 {
                        entering.push(row);
                        line_of.push(i);
                    } else {
                        self.prefilled += row.uncached();
                        self.live.push(row);
                    }
                }
                if !group.rows.is_empty() {
                    group.computed = Some(ComputedPrompt { number: prompts[i], logits: lines.select(&[i]) });
                }
            }
            self.waiting.retain(|group| !group.rows.is_empty());
            let turn: BTreeMap<u64, usize> = turns.into_iter().zip(0..).collect();
            self.waiting.make_contiguous().sort_by_key(|group| turn.get(&group.owner).copied());
            if !entering.is_empty() {
                self.draw(&mut entering, lines.select(&line_of), stop, events);
            }
            self.live.append(&mut entering);
            self.retire(events);
        }
    }

    /// Returns which waiting rows enter next. Each slot goes to the owner with the fewest rows in progress, and among
    /// equals to the one whose last turn was longest ago.
    fn next_entries(&self) -> Admission {
        let mut owners: BTreeMap<u64, Owner> = BTreeMap::new();
        for (i, group) in self.waiting.iter().enumerate() {
            let new = || Owner { id: group.owner, rows: 0, groups: VecDeque::new() };
            owners.entry(group.owner).or_insert_with(new).groups.push_back(i);
        }
        for row in &self.live {
            if let Some(owner) = owners.get_mut(&row.owner) {
                owner.rows += 1;
            }
        }
        let mut owners: Vec<Owner> = owners.into_values().collect();
        owners.sort_by_key(|owner| owner.groups[0]);
        let mut entering = vec![0; self.waiting.len()];
        let (mut new_prompts, mut tokens) = (0, 0);
        for free in (1..=self.free.len()).rev() {
            let with_rows = (0..owners.len()).filter(|&at| !owners[at].groups.is_empty());
            let Some(at) = with_rows.min_by_key(|&at| owners[at].rows) else { break };
            if free <= self.reserve && owners[at].rows > 0 {
                break;
            }
            let index = owners[at].groups[0];
            let group = &self.waiting[index];
            if entering[index] == 0 && group.computed.is_none() {
                tokens += group.shared;
                if tokens > PREFILL_TOKENS && new_prompts > 0 {
                    break;
                }
                new_prompts += 1;
            }
            entering[index] += 1;
            let mut owner = owners.remove(at);
            owner.rows += 1;
            if entering[index] == group.rows.len() {
                owner.groups.pop_front();
            }
            owners.push(owner);
        }
        let mut entries: Vec<(usize, usize)> = entering.into_iter().enumerate().filter(|(_, rows)| *rows > 0).collect();
        entries.sort_by_key(|(group, _)| self.waiting[*group].computed.is_none());
        Admission { entries, turns: owners.into_iter().map(|owner| owner.id).collect() }
    }

    /// Computes the prompts of waiting groups that are not computed yet; those that are come first in `groups`. Returns
    /// the number of each prompt in the cache, and the logits after its last token.
    fn prefill(&mut self, groups: &[usize]) -> (Vec<usize>, Logits) {
        let computed: Vec<ComputedPrompt> = groups.iter().map_while(|&i| self.waiting[i].computed.take()).collect();
        let new: Vec<&[u32]> = groups[computed.len()..]
            .iter()
            .map(|&i| {
                let group = &self.waiting[i];
                &group.prompt[..group.shared]
            })
            .collect();
        let mut prompts = Vec::with_capacity(groups.len());
        let mut lines: Option<Logits> = None;
        let join = |lines: Option<Logits>, logits: Logits| match lines {
            Some(lines) => lines.followed_by(logits),
            None => logits,
        };
        for ComputedPrompt { number, logits } in computed {
            prompts.push(number);
            lines = Some(join(lines, logits));
        }
        if !new.is_empty() {
            let (numbers, own) = self.next.after_prompts(&new);
            // Both models have computed the same prompts, so they share the numbers.
            let guide = self.guide.as_mut().map(|guide| guide.after_prompts(&new).1);
            self.prefilled += new.iter().map(|prompt| prompt.len()).sum::<usize>();
            self.cached_prompts.extend(numbers.clone());
            prompts.extend(numbers);
            lines = Some(join(lines, Logits { own, guide }));
        }
        (prompts, lines.expect("at least one group"))
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
        let waiting = self.waiting.iter().filter_map(|group| Some(group.computed.as_ref()?.number));
        let used: BTreeSet<usize> = rows.chain(waiting).collect();
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
    if params.forced_bos_token_id.is_some() && prompt.len() > 1 && model.trunk.decoder_start().is_none() {
        let message = format!(
            "{name} has {} tokens, but without an encoder, `forced_bos_token_id` needs prompts of one token: \
             transformers forces no id after longer ones",
            prompt.len()
        );
        return Err(Error::input(message).with_hint("append the id to the prompt instead"));
    }
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
        let message = format!("{name} holds token id {id}, but the model's vocabulary has {vocabulary} ids");
        return Err(Error::input(message).with_hint(format!(
            "ids go from 0 to {}; if a tokenizer made this id, it does not belong to the model",
            vocabulary - 1
        )));
    }
    model.position_budget().check(name, prompt.len(), new)
}

#[cfg(test)]
mod tests;
