//! Beam search and beam sampling, as in transformers 5.23.
//!
//! Each prompt has `num_beams` rows. After every id, the likeliest continuations of all rows together are kept.
//! Completions that end among them are stored with their score: the sum of what their ids add, divided by
//! `length ^ length_penalty`. The beams of a prompt share it in the cache. If one beam continues in two ways, only its
//! own ids are copied.
//!
//! At temperature 0 the likeliest continuations are taken (beam search). At any other temperature they are sampled
//! (beam sampling), after the temperature and truncation of each row. Processors that depend on previous ids work as in
//! sampling, but on log-probabilities and before the temperature.
//!
//! Diverse beam search ([Vijayakumar et al. 2016](https://arxiv.org/abs/1610.02424)) divides the beams of a prompt into
//! groups. Each group is a separate search. Within a step the groups are processed in order, and ids that earlier
//! groups chose become less likely in later ones. transformers had this up to version 4, and now has it as
//! `transformers-community/group-beam-search`. Groups end by the rules of its `BeamSearchScorer`, which differ slightly
//! from those of its current beam search.

use std::collections::VecDeque;

use gradus_kernels::CacheRow;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::distribution::Distribution;
use super::engine::check_prompt;
use super::next::{NewToken, Next};
use super::params::SamplingParams;
use super::processors::{self, History};
use super::row::{Completion, StopReason, StopRule};
use super::run::{Hooks, ROWS_AT_ONCE};
use super::truncate::truncate_keeping;
use crate::error::{Error, Result};
use crate::model::CausalLm;
use crate::rng::Stream;

/// Maximum number of prompts in one prefill pass.
const PREFILLED_TOGETHER: usize = 16;

/// Score that no beam can fall below, and offset of beams that have ended. The value is that of transformers, so that
/// sums with it round in the same way.
const WORST: f32 = -1e9;

/// Settings of a beam search. Names and meanings are those of transformers' `GenerationConfig`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamParams {
    /// Number of beams per prompt, at least 2.
    pub num_beams: usize,
    /// Exponent of the length by which a completion's log-probability is divided. Values above 0 prefer long
    /// completions, values below 0 short ones; at 0 only the sum counts.
    pub length_penalty: f32,
    /// Condition that ends the search of a prompt.
    pub early_stopping: EarlyStopping,
    /// Number of groups in a diverse beam search, a divisor of `num_beams`; 1 is plain beam search.
    pub num_beam_groups: usize,
    /// Penalty on a log-probability for every beam of an earlier group that chose the same id at the same position.
    pub diversity_penalty: f32,
}

/// Condition that ends the search of a prompt before all beams reach the maximum length. In each case, as many
/// completions have ended as there are beams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EarlyStopping {
    /// At once (`true`).
    #[serde(rename = "true")]
    FirstEnded,
    /// When the likeliest open beam would not rank among them if it ended now (`false`).
    #[serde(rename = "false")]
    Heuristic,
    /// When no open beam can rank among them any more (`never`).
    #[serde(rename = "never")]
    Never,
}

impl EarlyStopping {
    /// All conditions.
    pub const ALL: &[Self] = &[Self::Heuristic, Self::FirstEnded, Self::Never];

    /// Returns the name in transformers: `false`, `true` or `never`.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstEnded => "true",
            Self::Heuristic => "false",
            Self::Never => "never",
        }
    }
}

impl std::str::FromStr for EarlyStopping {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|when| when.name() == name);
        found.ok_or_else(|| format!("`{name}` is not known (false, true, never)"))
    }
}

/// A completion found by a search.
#[derive(Debug, Clone, PartialEq)]
pub struct BeamCompletion {
    /// The completion. Its `sampled_logprobs` are what each id added to the score, before the length penalty. Supports
    /// are not recorded.
    pub completion: Completion,
    /// Score that ranks it (transformers' `sequences_scores`).
    pub score: f32,
}

impl BeamParams {
    /// Rejects invalid groups, and groups of beams that are sampled at `temperature`.
    ///
    /// # Errors
    /// [`Error::Input`] with the value and its bounds.
    pub fn check_groups(&self, temperature: f32) -> Result<()> {
        let Self { num_beams, num_beam_groups: groups, diversity_penalty: penalty, .. } = *self;
        if groups == 0 || !num_beams.is_multiple_of(groups) {
            let message = format!("`num_beam_groups` is {groups}, but must divide `num_beams`, which is {num_beams}");
            return Err(Error::input(message).with_hint("every group has the same number of beams"));
        }
        if groups > 1 && !(penalty > 0.0 && penalty.is_finite()) {
            let message = format!("`diversity_penalty` is {penalty}, but must be above 0 where beams are in groups");
            return Err(Error::input(message).with_hint("without a penalty all groups find the same completions"));
        }
        if groups == 1 && penalty != 0.0 {
            let message = format!("`diversity_penalty` is {penalty}, but `num_beam_groups` is 1");
            return Err(Error::input(message)
                .with_hint("the penalty works between groups: set `num_beam_groups` to at least 2"));
        }
        if groups > 1 && temperature != 0.0 {
            let message = format!("`num_beam_groups` is {groups}, but the temperature is {temperature}");
            return Err(
                Error::input(message).with_hint("diverse beam search does not sample: set the temperature to 0")
            );
        }
        Ok(())
    }

    /// Returns the number of beams per group.
    fn of_group(&self) -> usize {
        self.num_beams / self.num_beam_groups
    }

    /// Returns the divisor of the sum.
    fn penalty(&self, length: usize) -> f32 {
        (length as f64).powf(f64::from(self.length_penalty)) as f32
    }

    /// Rejects invalid settings for a search at `temperature`, and more completions per prompt than there are beams.
    ///
    /// # Errors
    /// [`Error::Input`] with the value and its bounds.
    pub fn check(&self, returned: usize, temperature: f32) -> Result<()> {
        if self.num_beams < 2 {
            return Err(Error::input(format!("`num_beams` is {}, but beam search needs at least 2", self.num_beams))
                .with_hint("with one beam, use temperature 0 instead, which takes the most likely id each time"));
        }
        if !self.length_penalty.is_finite() {
            return Err(Error::input(format!("`length_penalty` is {}, but must be a number", self.length_penalty)));
        }
        self.check_groups(temperature)?;
        if !(1..=self.num_beams).contains(&returned) {
            let message = format!(
                "{returned} completions of each prompt are requested, but {} beams give 1 to {}",
                self.num_beams, self.num_beams
            );
            return Err(Error::input(message).with_hint("raise `num_beams`, or request fewer (`num_return_sequences`)"));
        }
        Ok(())
    }
}

/// Returns the best `returned` completions of each prompt, best first. Completion `p · returned + i` belongs to prompt
/// `p`. Beam sampling for prompt `p` draws from `stream(p)`.
///
/// The result of a prompt does not depend on the other prompts. `stop` is called for every continuation that might be
/// kept, with the number of the prompt.
///
/// # Errors
/// If a setting is invalid or a prompt cannot be continued, as in [`generate`](super::generate).
pub fn beam_search(
    model: &CausalLm,
    prompts: &[&[u32]],
    returned: usize,
    (params, beams): (&SamplingParams, &BeamParams),
    hooks: Hooks<'_>,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Vec<BeamCompletion>> {
    let places = ROWS_AT_ONCE.max(beams.num_beams);
    search_at_once(places, model, prompts, returned, (params, beams), hooks, stream)
}

/// [`beam_search`] with at most `places` rows at the same time.
fn search_at_once(
    places: usize,
    model: &CausalLm,
    prompts: &[&[u32]],
    returned: usize,
    (params, beams): (&SamplingParams, &BeamParams),
    Hooks { stop, progress }: Hooks<'_>,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Vec<BeamCompletion>> {
    params.check()?;
    beams.check(returned, params.temperature)?;
    for (i, prompt) in prompts.iter().enumerate() {
        check_prompt(&format!("prompt {}", i + 1), prompt, params, model)?;
    }
    let at_once = (places / beams.num_beams).max(1).min(prompts.len());
    let mut next = Next::new(model, at_once * beams.num_beams, params.max_new_tokens);
    let (vocabulary, settings) = (next.model().vocab_size(), Settings { params, beams });
    let mut free: Vec<usize> = (0..at_once * beams.num_beams).rev().collect();
    let (mut waiting, mut live): (VecDeque<usize>, Vec<Search>) = ((0..prompts.len()).collect(), Vec::new());
    let mut found = vec![Vec::new(); prompts.len()];
    while !(waiting.is_empty() && live.is_empty()) {
        progress.advance("sampled", prompts.len() - waiting.len() - live.len(), prompts.len())?;
        // 1. Waiting prompts enter when there are free places.
        let places = at_once - live.len();
        let entering: Vec<usize> = waiting.drain(..waiting.len().min(places)).collect();
        for numbers in entering.chunk_by(|_, &number| number % PREFILLED_TOGETHER != 0) {
            let together: Vec<&[u32]> = numbers.iter().map(|&number| prompts[number]).collect();
            let (computed, logits) = next.after_prompts(&together);
            let mut logits = logits.into_host();
            for ((&number, prompt), logits) in numbers.iter().zip(computed).zip(logits.chunks_mut(vocabulary)) {
                let slots = free.split_off(free.len() - beams.num_beams);
                let given = next.given(prompts[number], prompts[number].len());
                let encoded = next.has_encoder().then_some(prompts[number]);
                let mut search = Search::new(number, (prompt, given), encoded, (slots, beams), stream(number));
                search.step(logits, &settings, stop);
                live.push(search);
            }
        }
        // 2. Finished searches leave.
        for search in live.extract_if(.., |search| search.is_done()) {
            next.drop_prompt(search.prompt);
            free.extend(search.slots());
            found[search.number] = search.best(returned);
        }
        if live.is_empty() {
            continue;
        }
        // 3. Rows with several continuations are copied, and every row advances by one id.
        for search in &mut live {
            let copies = search.fork();
            next.copy_slots(&copies, search.added());
        }
        let tokens: Vec<NewToken> = live.iter().flat_map(Search::next).collect();
        let ends: Vec<usize> = (0..tokens.len()).collect();
        let mut logits = next.after(&tokens, &ends).into_host();
        let mut rest = &mut logits[..];
        for search in &mut live {
            let (own, others) = rest.split_at_mut(search.rows() * vocabulary);
            search.step(own, &settings, stop);
            rest = others;
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// Settings that all searches of a call share.
struct Settings<'a> {
    params: &'a SamplingParams,
    beams: &'a BeamParams,
}

/// An open row of a search.
#[derive(Debug, Clone)]
struct Beam {
    /// Given ids, then added ids.
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    /// What each id added to the score.
    addends: Vec<f32>,
    /// Sum of the addends. If the beam has ended, [`WORST`] is added.
    score: f32,
    /// Index of the beam in the previous step that it continues.
    parent: usize,
}

/// The search of one prompt.
struct Search<'a> {
    number: usize,
    /// Number of the prompt in the cache.
    prompt: usize,
    /// Ids that the encoder read, if there is one.
    encoded: Option<&'a [u32]>,
    /// Number of ids that rows start with, and how many of them the cache shares.
    given: usize,
    shared: usize,
    /// Number of ids added to each beam so far.
    new: usize,
    /// One group, unless the search is diverse.
    groups: Vec<Group>,
    stream: Stream,
}

/// Beams that compete with each other.
struct Group {
    /// Cache slot of each beam.
    slots: Vec<usize>,
    /// Open beams, as many as slots, likeliest first.
    running: Vec<Beam>,
    /// Ended beams, at most as many as slots, best first.
    ended: Vec<(Beam, StopReason)>,
    /// Whether open beams can still rank among the ended ones.
    can_improve: bool,
    is_done: bool,
}

/// A continuation of a beam by one id.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    beam: usize,
    id: usize,
    score: f32,
}

impl<'a> Search<'a> {
    fn new(
        number: usize,
        (prompt, (ids, shared)): (usize, (Vec<u32>, usize)),
        encoded: Option<&'a [u32]>,
        (slots, beams): (Vec<usize>, &BeamParams),
        stream: Stream,
    ) -> Self {
        let groups = slots.chunks(beams.of_group()).map(|slots| Group::new(&ids, slots)).collect();
        Self { number, prompt, encoded, given: ids.len(), shared, new: 0, groups, stream }
    }

    fn is_done(&self) -> bool {
        self.groups.iter().all(|group| group.is_done)
    }

    /// Returns the cache slots of all beams.
    fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.groups.iter().flat_map(|group| &group.slots).copied()
    }

    /// Returns the groups that are not done.
    fn live(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| !group.is_done)
    }

    /// Returns the number of open beams in these groups.
    fn rows(&self) -> usize {
        self.live().map(|group| group.running.len()).sum()
    }

    /// Advances by one id. `logits` has one line after each open beam, or in the first step a single line for all.
    fn step(&mut self, logits: &mut [f32], settings: &Settings<'_>, stop: &mut dyn StopRule) {
        let (rows, first) = (self.rows(), self.new == 0);
        let vocabulary = logits.len() / if first { 1 } else { rows };
        let shared = if first && self.groups.len() > 1 { logits.to_vec() } else { Vec::new() };
        let Self { number, given, encoded, groups, stream, .. } = self;
        let context = GroupContext { number: *number, given: *given, encoded: *encoded, settings };
        let (mut at, mut chosen) = (0, Vec::new());
        for group in groups.iter_mut().filter(|group| !group.is_done) {
            let lines = match first {
                true => {
                    if !chosen.is_empty() {
                        logits.copy_from_slice(&shared);
                    }
                    &mut *logits
                }
                false => {
                    let lines = &mut logits[at..at + group.running.len() * vocabulary];
                    at += lines.len();
                    lines
                }
            };
            group.step(lines, vocabulary, &chosen, &context, (stop, stream));
            chosen.extend(group.running.iter().map(Beam::last));
        }
        self.new += 1;
    }

    /// Returns how many ids of each beam are in its slot: all added ids but the last one.
    fn added(&self) -> usize {
        self.given + self.new - 1 - self.shared
    }

    /// Assigns each beam a slot with its added ids. Returns the copies that this needs, as pairs of source and target.
    fn fork(&mut self) -> Vec<(usize, usize)> {
        let mut copies = Vec::new();
        for group in self.groups.iter_mut().filter(|group| !group.is_done) {
            let parents: Vec<usize> = group.running.iter().map(|beam| beam.parent).collect();
            let (slots, of_group) = fork(&group.slots, &parents);
            group.slots = slots;
            copies.extend(of_group);
        }
        if self.added() == 0 { Vec::new() } else { copies }
    }

    /// Returns the newest id of each open beam.
    fn next(&self) -> impl Iterator<Item = NewToken> + '_ {
        let beams = self.live().flat_map(|group| group.running.iter().zip(&group.slots));
        beams.map(|(beam, &slot)| {
            let position = beam.ids.len() - 1;
            let row = CacheRow { prompt: self.prompt, slot, length: position - self.shared };
            NewToken { id: beam.ids[position], position: position as u32, row }
        })
    }

    /// Returns the best `returned` completions. If there are fewer, the best one is repeated.
    fn best(&self, returned: usize) -> Vec<BeamCompletion> {
        let found = |(beam, stop): &(Beam, StopReason)| BeamCompletion {
            completion: Completion {
                ids: beam.ids[self.given..].to_vec(),
                sampled_logprobs: beam.addends.clone(),
                logprobs: beam.logprobs.clone(),
                supports: Vec::new(),
                stop: *stop,
            },
            score: beam.score,
        };
        let mut ended: Vec<&(Beam, StopReason)> = self.groups.iter().flat_map(|group| &group.ended).collect();
        ended.sort_by(|(a, _), (b, _)| b.score.total_cmp(&a.score));
        let first = *ended.first().expect("something has ended");
        ended.into_iter().chain(std::iter::repeat(first)).take(returned).map(found).collect()
    }
}

/// Data of its search that a step of a group needs.
struct GroupContext<'a> {
    number: usize,
    given: usize,
    encoded: Option<&'a [u32]>,
    settings: &'a Settings<'a>,
}

impl Group {
    fn new(ids: &[u32], slots: &[usize]) -> Self {
        let beam = |parent: usize| Beam {
            ids: ids.to_vec(),
            logprobs: Vec::new(),
            addends: Vec::new(),
            // All beams are the same row at first. Only the first one is continued, or all would stay equal.
            score: if parent == 0 { 0.0 } else { WORST },
            parent,
        };
        let running = (0..slots.len()).map(beam).collect();
        Self { slots: slots.to_vec(), running, ended: Vec::new(), can_improve: true, is_done: false }
    }

    /// Advances by one id. `logits` has one line after each beam, or a single line for all. `chosen` are the ids that
    /// earlier groups chose.
    fn step(
        &mut self,
        logits: &mut [f32],
        vocabulary: usize,
        chosen: &[u32],
        context: &GroupContext<'_>,
        (stop, stream): (&mut dyn StopRule, &mut Stream),
    ) {
        let GroupContext { settings: Settings { params, beams }, given, .. } = *context;
        let lines = logits.len() / vocabulary;
        let histories: Vec<History<'_>> = self.running.iter().map(|beam| context.history(beam)).collect();
        let scored: Vec<Scored> = logits
            .par_chunks_mut(vocabulary)
            .zip(&histories)
            .map(|(line, history)| Scored::new(line, *history, params, (chosen, beams.diversity_penalty)))
            .collect();
        let scores = self.running.iter().map(|beam| beam.score).collect::<Vec<f32>>();
        let count = self.running.len() * (1 + stop_ids(params)).max(2);
        let candidates = match params.temperature == 0.0 {
            true => likeliest(logits, vocabulary, &scores, count),
            false => drawn(logits, vocabulary, &scores, count, stream),
        };
        let mut grown = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let (beam, line) = (&self.running[candidate.beam], if lines == 1 { 0 } else { candidate.beam });
            let addend = logits[line * vocabulary + candidate.id];
            let beam = beam.grown(candidate, scored[line].logprob(candidate.id, addend), addend);
            let ended = context.why_ended(&beam, stop);
            grown.push((beam, ended));
        }
        let new = self.running[0].ids.len() - given + 1;
        self.take(grown, new, context.settings);
    }

    /// Selects among the continuations, which have `new` ids, those that stay open and those ended ones that are kept.
    fn take(&mut self, grown: Vec<(Beam, Option<StopReason>)>, new: usize, settings: &Settings<'_>) {
        let Settings { params, beams } = settings;
        let full = self.running.len();
        let all_ended = grown.iter().all(|(_, ended)| ended.is_some());
        let best_length = match beams.early_stopping {
            EarlyStopping::Never if beams.length_penalty > 0.0 => params.max_new_tokens,
            _ => new,
        };
        let in_groups = beams.num_beam_groups > 1;
        match in_groups {
            true => self.keep_as_scorer(&grown, (new, best_length), beams),
            // The candidates after the first `full` only ensure that enough beams stay open when some of the first ones end.
            false if self.can_improve && !self.is_closed(beams) => {
                grown.iter().take(full).for_each(|(beam, ended)| self.keep(beam, *ended, beams.penalty(new)));
                self.truncate();
            }
            false => {}
        }
        // A completion cut at the maximum length has not ended by itself. Its ids count as chosen for later groups.
        let out = |(beam, ended): (Beam, Option<StopReason>)| match ended {
            None | Some(StopReason::Length) => (beam, ended),
            Some(reason) => (Beam { score: beam.score + WORST, ..beam }, Some(reason)),
        };
        let mut running: Vec<(Beam, Option<StopReason>)> = grown.into_iter().map(out).collect();
        running.sort_by(|(a, _), (b, _)| b.score.total_cmp(&a.score));
        let first_ended = running[0].1;
        self.running = running.into_iter().take(full).map(|(beam, _)| beam).collect();
        if !in_groups {
            self.can_improve &= self.running[0].score / beams.penalty(best_length) > self.worst();
        }
        self.is_done = all_ended || self.is_closed(beams) || !self.can_improve;
        if self.is_done && self.ended.is_empty() {
            // Scores that are NaN rank nothing. The completion then shows the NaN.
            self.ended.push((self.running[0].clone(), first_ended.unwrap_or(StopReason::Length)));
        }
    }

    /// Keeps ended beams in the order of `BeamSearchScorer`: first those that ended by themselves; then the group may
    /// be done; if it is not, those at the maximum length.
    fn keep_as_scorer(
        &mut self,
        grown: &[(Beam, Option<StopReason>)],
        (new, best_length): (usize, usize),
        beams: &BeamParams,
    ) {
        let full = self.running.len();
        let is_cut = |ended: &Option<StopReason>| *ended == Some(StopReason::Length);
        for (beam, ended) in grown.iter().take(full).filter(|(_, ended)| !is_cut(ended)) {
            self.keep(beam, *ended, beams.penalty(new));
        }
        self.truncate();
        self.can_improve = !self.is_closed(beams) && grown[0].0.score / beams.penalty(best_length) > self.worst();
        if self.can_improve {
            for (beam, ended) in grown.iter().filter(|(_, ended)| is_cut(ended)).take(full) {
                self.keep(beam, *ended, beams.penalty(new));
            }
            self.truncate();
        }
    }

    /// Keeps a beam that has ended, unless its score is NaN or −∞.
    fn keep(&mut self, beam: &Beam, ended: Option<StopReason>, penalty: f32) {
        if let Some(reason) = ended.filter(|_| beam.score > f32::NEG_INFINITY) {
            self.ended.push((Beam { score: beam.score / penalty, ..beam.clone() }, reason));
        }
    }

    /// Drops all ended beams but the best.
    fn truncate(&mut self) {
        self.ended.sort_by(|(a, _), (b, _)| b.score.total_cmp(&a.score));
        self.ended.truncate(self.running.len());
    }

    /// Whether the maximum number of beams has ended and the search stops at that.
    fn is_closed(&self, beams: &BeamParams) -> bool {
        self.ended.len() == self.running.len() && beams.early_stopping == EarlyStopping::FirstEnded
    }

    /// Returns the score that an open beam must exceed to rank among the ended ones.
    fn worst(&self) -> f32 {
        if self.ended.len() == self.running.len() { self.ended[self.running.len() - 1].0.score } else { WORST }
    }
}

impl GroupContext<'_> {
    fn history<'b>(&'b self, beam: &'b Beam) -> History<'b> {
        let history = History::new(&beam.ids, beam.ids.len() - self.given);
        self.encoded.map_or(history, |encoded| history.with_encoder(encoded))
    }

    fn why_ended(&self, beam: &Beam, stop: &mut dyn StopRule) -> Option<StopReason> {
        let (ids, params) = (&beam.ids[self.given..], self.settings.params);
        if params.stop_ids.contains(&ids[ids.len() - 1]) {
            Some(StopReason::StopId)
        } else if stop.stops(self.number, ids) {
            Some(StopReason::StopString)
        } else {
            (ids.len() >= params.max_new_tokens).then_some(StopReason::Length)
        }
    }
}

impl Beam {
    /// The newest id.
    fn last(&self) -> u32 {
        *self.ids.last().expect("an id was added")
    }

    fn grown(&self, candidate: Candidate, logprob: f32, addend: f32) -> Self {
        let mut beam = Self { score: candidate.score, parent: candidate.beam, ..self.clone() };
        beam.ids.push(candidate.id as u32);
        beam.logprobs.push(logprob);
        beam.addends.push(addend);
        beam
    }
}

fn stop_ids(params: &SamplingParams) -> usize {
    params.stop_ids.iter().enumerate().filter(|(i, id)| !params.stop_ids[..*i].contains(id)).count()
}

/// Assigns slots to beams that continue `parents`. The first continuation of a parent keeps its slot. Every other one
/// gets the slot of a beam without continuations, and a copy.
fn fork(slots: &[usize], parents: &[usize]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let mut spare = (0..slots.len()).filter(|beam| !parents.contains(beam)).map(|beam| slots[beam]);
    let mut copies = Vec::new();
    let slot_of = |(i, &parent): (usize, &usize)| match parents[..i].contains(&parent) {
        false => slots[parent],
        true => {
            let slot = spare.next().expect("as many beams as before");
            copies.push((slots[parent], slot));
            slot
        }
    };
    let slots = parents.iter().enumerate().map(slot_of).collect();
    (slots, copies)
}

/// State of a line of logits after its entries were replaced by addends of scores.
struct Scored {
    /// The model's own distribution at the temperature, and the original values of changed entries.
    raw: Distribution,
    replaced: Vec<(usize, f32)>,
}

impl Scored {
    /// Converts `line` to log-probabilities, subtracts the penalty for ids that earlier groups chose, and applies the
    /// processors. If ids are sampled, it also divides by the temperature and truncates.
    fn new(line: &mut [f32], history: History<'_>, params: &SamplingParams, (chosen, penalty): (&[u32], f32)) -> Self {
        let model = Distribution::new(line);
        line.iter_mut().for_each(|logit| *logit = model.logprob(*logit));
        let scale = |logprob: f32| if params.temperature == 0.0 { logprob } else { logprob / params.temperature };
        let raw = match params.temperature == 0.0 || params.temperature == 1.0 {
            true => Distribution::new(line),
            false => Distribution::new(&line.iter().map(|&logprob| scale(logprob)).collect::<Vec<_>>()),
        };
        if let Some(id) = processors::forced(history, params) {
            let replaced = vec![(id as usize, scale(line[id as usize]))];
            line.fill(f32::NEG_INFINITY);
            line[id as usize] = 0.0;
            return Self { raw, replaced };
        }
        let mut replaced: Vec<(usize, f32)> = chosen.iter().map(|&id| (id as usize, line[id as usize])).collect();
        for (i, &id) in chosen.iter().enumerate().filter(|(i, id)| !chosen[..*i].contains(id)) {
            let times = chosen[i..].iter().filter(|other| **other == id).count();
            line[id as usize] -= penalty * times as f32;
        }
        replaced.extend(processors::apply(line, history, params));
        replaced.iter_mut().for_each(|(_, logprob)| *logprob = scale(*logprob));
        if params.temperature != 0.0 {
            line.iter_mut().for_each(|logprob| *logprob = scale(*logprob));
            truncate_keeping(line, params, 1 + stop_ids(params).max(1));
        }
        Self { raw, replaced }
    }

    /// Returns the model's log-probability of an id at the temperature; `addend` is its current entry.
    fn logprob(&self, id: usize, addend: f32) -> f32 {
        let before = self.replaced.iter().find(|(replaced, _)| *replaced == id).map_or(addend, |(_, before)| *before);
        self.raw.logprob(before)
    }
}

/// Returns the `count` continuations with the largest sums of score and addend, largest first.
fn likeliest(lines: &[f32], vocabulary: usize, scores: &[f32], count: usize) -> Vec<Candidate> {
    // No single line can contribute more than all lines together.
    let best_of = |(beam, &score): (usize, &f32)| {
        let line = line_of(lines, vocabulary, beam);
        let candidate = |(id, &addend): (usize, &f32)| Candidate { beam, id, score: score + addend };
        let mut all: Vec<Candidate> = line.iter().enumerate().map(candidate).collect();
        if count < all.len() {
            all.select_nth_unstable_by(count - 1, by_rank);
            all.truncate(count);
        }
        all
    };
    let mut best: Vec<Candidate> = scores.par_iter().enumerate().flat_map_iter(best_of).collect();
    best.sort_unstable_by(by_rank);
    best.truncate(count);
    best
}

/// Orders by score, largest first. Ties go to the earlier beam, then to the lower id. NaN comes last.
fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    let key = |score: f32| if score.is_nan() { f32::NEG_INFINITY } else { score };
    key(b.score).total_cmp(&key(a.score)).then((a.beam, a.id).cmp(&(b.beam, b.id)))
}

/// Samples `count` continuations without replacement from the softmax of score and addend, in the order of the draws.
fn drawn(lines: &[f32], vocabulary: usize, scores: &[f32], count: usize, stream: &mut Stream) -> Vec<Candidate> {
    let sums = scores.iter().enumerate();
    let mut left: Vec<f32> = sums
        .flat_map(|(beam, score)| line_of(lines, vocabulary, beam).iter().map(move |addend| score + addend))
        .collect();
    let mut candidates = Vec::with_capacity(count);
    while candidates.len() < count {
        let at = Distribution::new(&left).draw(&left, stream);
        let score = left[at];
        if candidates.len() >= scores.len() && (score.is_nan() || score == f32::NEG_INFINITY) {
            break;
        }
        candidates.push(Candidate { beam: at / vocabulary, id: at % vocabulary, score });
        left[at] = f32::NEG_INFINITY;
    }
    candidates
}

/// Returns the line of a beam. If there is a single line, all beams share it.
fn line_of(lines: &[f32], vocabulary: usize, beam: usize) -> &[f32] {
    let beam = if lines.len() == vocabulary { 0 } else { beam };
    &lines[beam * vocabulary..][..vocabulary]
}

#[cfg(test)]
mod tests;
