//! The engine: prompts are computed once and shared by their group; finished rows leave at once, waiting ones take
//! their places.

use std::ops::Range;

use burn::tensor::Tensor;
use gradus_kernels::CacheRow;
use rayon::prelude::*;

use super::sampler::{SamplingParams, choose_except};
use crate::error::{Error, Result};
use crate::model::{CausalLm, Context, KvCache, Packed};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// One sampled completion, as ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The ids, a sampled stop id included. Never empty.
    pub ids: Vec<u32>,
    /// Log-probability of each id under the distribution it was drawn from, in nats.
    pub sampled_logprobs: Vec<f32>,
    /// Log-probability of each id under the model at the sampling temperature, unwarped, in nats.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub stop: StopReason,
}

impl Completion {
    fn empty() -> Self {
        Self { ids: Vec::new(), sampled_logprobs: Vec::new(), logprobs: Vec::new(), stop: StopReason::Length }
    }
}

/// Rows sampled side by side at most: bounds the cache and the logits in memory.
const ROWS_AT_ONCE: usize = 256;
/// Prompt tokens computed in one pass at most, unless one prompt alone is longer.
const PREFILL_TOKENS: usize = 4096;

/// Samples `group` completions of each prompt; completion `p · group + g` belongs to prompt `p`.
///
/// Each completion draws from its own stream, `stream(completion)`, and a row's logits do not depend on its company, so
/// the result does not depend on which rows are sampled together. Weights are packed for the whole call, as the
/// model computes, unless they are already frozen.
///
/// # Errors
/// When a setting has no meaning, a prompt is empty, holds an id outside the vocabulary, or leaves no room for
/// `max_new_tokens` within the model's positions.
pub fn generate(
    model: &CausalLm,
    prompts: &[&[u32]],
    group: usize,
    params: &SamplingParams,
    stop: &mut dyn StopRule,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Vec<Completion>> {
    generate_at_once(ROWS_AT_ONCE, model, prompts, group, params, stop, stream)
}

/// [`generate`] with at most `slots` rows side by side.
fn generate_at_once(
    slots: usize,
    model: &CausalLm,
    prompts: &[&[u32]],
    group: usize,
    params: &SamplingParams,
    stop: &mut dyn StopRule,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Vec<Completion>> {
    check(model, prompts, params)?;
    let count = prompts.len() * group;
    if count == 0 {
        return Ok(Vec::new());
    }
    let model = model.clone().into_frozen(model.compute().into());
    let slots = slots.min(count);
    let mut engine = Engine {
        model: &model,
        params,
        prompts,
        group,
        cache: model.new_cache(slots, params.max_new_tokens),
        waiting: 0..count,
        live: Vec::with_capacity(slots),
        free: (0..slots).rev().collect(),
        computed: 0,
        kept: Vec::new(),
        completions: vec![None; count],
    };
    while engine.is_busy() {
        engine.admit(stop, stream);
        engine.decode(stop);
    }
    Ok(engine.completions.into_iter().map(|completion| completion.expect("every row ends")).collect())
}

fn check(model: &CausalLm, prompts: &[&[u32]], params: &SamplingParams) -> Result<()> {
    params.check()?;
    if params.max_new_tokens == 0 {
        return Err(Error::input("`max_new_tokens` is 0, but must be at least 1"));
    }
    let vocabulary = model.vocab_size();
    for (i, prompt) in prompts.iter().enumerate() {
        if prompt.is_empty() {
            return Err(Error::input(format!("prompt {} has no tokens", i + 1))
                .with_hint("a model without a beginning-of-sequence token needs at least one token to continue"));
        }
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(Error::input(format!(
                "prompt {} holds token id {id}, but the model's vocabulary has {vocabulary} ids",
                i + 1
            ))
            .with_hint("the tokenizer and the model do not belong together"));
        }
        if let Some(limit) = model.max_positions().filter(|&limit| prompt.len() + params.max_new_tokens > limit) {
            return Err(Error::input(format!(
                "prompt {} has {} tokens; with `max_new_tokens` {} it exceeds the model's {limit} positions",
                i + 1,
                prompt.len(),
                params.max_new_tokens
            ))
            .with_hint("shorten the prompts or lower `max_new_tokens`"));
        }
    }
    Ok(())
}

/// Rows being sampled, and those that wait for a place.
struct Engine<'a> {
    model: &'a CausalLm,
    params: &'a SamplingParams,
    prompts: &'a [&'a [u32]],
    group: usize,
    /// Prompts are numbered in it as in `prompts`: each is computed once, in order.
    cache: KvCache,
    waiting: Range<usize>,
    live: Vec<Row>,
    /// Places in the cache.
    free: Vec<usize>,
    /// Prompts computed so far.
    computed: usize,
    /// The logits after the last prompt computed, where rows of it still wait.
    kept: Vec<f32>,
    completions: Vec<Option<Completion>>,
}

/// A completion on its way.
struct Row {
    index: usize,
    prompt: usize,
    slot: usize,
    stream: Stream,
    completion: Completion,
    has_ended: bool,
}

impl Row {
    /// Draws the next id from `logits_v`, which are overwritten.
    fn choose(&mut self, logits_v: &mut [f32], prompt: &[u32], params: &SamplingParams) {
        let Completion { ids, sampled_logprobs, logprobs, .. } = &mut self.completion;
        let history: Vec<u32> = match params.repetition_penalty == 1.0 {
            true => Vec::new(),
            false => prompt.iter().chain(&*ids).copied().collect(),
        };
        let excluded: &[u32] = if ids.len() < params.min_new_tokens { &params.stop_ids } else { &[] };
        let choice = choose_except(logits_v, &history, excluded, params, &mut self.stream);
        ids.push(choice.id);
        sampled_logprobs.push(choice.sampled_logprob);
        logprobs.push(choice.logprob);
    }

    /// Sees whether the last id ends the completion, and why.
    fn check(&mut self, params: &SamplingParams, stop: &mut dyn StopRule) {
        let ids = &self.completion.ids;
        let reason = if ids.last().is_some_and(|id| params.stop_ids.contains(id)) {
            Some(StopReason::StopId)
        } else if stop.stops(self.index, ids) {
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
}

impl Engine<'_> {
    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.live.is_empty()
    }

    /// Gives free places to waiting rows: computes what is new among their prompts, and draws their first ids.
    fn admit(&mut self, stop: &mut dyn StopRule, stream: &dyn Fn(usize) -> Stream) {
        while !self.waiting.is_empty() && !self.free.is_empty() {
            let end = (self.waiting.start + self.free.len()).min(self.waiting.end);
            let known = self.computed;
            let (mut last, mut tokens) = (known, 0);
            while last * self.group < end {
                tokens += self.prompts[last].len();
                if tokens > PREFILL_TOKENS && last > known {
                    break;
                }
                last += 1;
            }
            let rows = self.waiting.start..end.min(last * self.group);
            let fresh = self.prefill(last);
            let vocabulary = self.model.vocab_size();
            let logits_of = |prompt: usize| match prompt.checked_sub(known) {
                Some(i) => &fresh[i * vocabulary..(i + 1) * vocabulary],
                None => &self.kept[..],
            };
            let mut logits: Vec<f32> = rows.clone().flat_map(|row| logits_of(row / self.group)).copied().collect();
            if last > known {
                self.kept = logits_of(last - 1).to_vec();
            }
            let mut entering: Vec<Row> = Vec::with_capacity(rows.len());
            for index in rows.clone() {
                entering.push(Row {
                    index,
                    prompt: index / self.group,
                    slot: self.free.pop().expect("no more rows than places"),
                    stream: stream(index),
                    completion: Completion::empty(),
                    has_ended: false,
                });
            }
            self.waiting.start = rows.end;
            self.draw(&mut entering, &mut logits, stop);
            self.live.append(&mut entering);
            self.retire();
        }
    }

    /// Computes all prompts up to `last` that are not in the cache yet; returns the logits after each one's last token.
    fn prefill(&mut self, last: usize) -> Vec<f32> {
        let prompts = &self.prompts[self.computed..last];
        self.computed = last;
        if prompts.is_empty() {
            return Vec::new();
        }
        let packed = Packed::new(prompts);
        let mut context = Context::Prefill { packed: &packed, cache: &mut self.cache };
        let hidden_nd = self.model.trunk.forward(&mut context);
        host(self.model.logits_of(crate::model::select_rows(hidden_nd, &packed.last_indices())))
    }

    /// One more id for every live row.
    fn decode(&mut self, stop: &mut dyn StopRule) {
        if self.live.is_empty() {
            return;
        }
        let ids: Vec<u32> = self.live.iter().map(|row| *row.completion.ids.last().expect("a drawn id")).collect();
        let cached = |row: &Row| CacheRow { prompt: row.prompt, slot: row.slot, length: row.completion.ids.len() - 1 };
        let rows: Vec<CacheRow> = self.live.iter().map(cached).collect();
        let position = |row: &CacheRow| (self.prompts[row.prompt].len() + row.length) as u32;
        let positions: Vec<u32> = rows.iter().map(position).collect();
        let mut context = Context::Decode { ids: &ids, positions: &positions, rows: &rows, cache: &mut self.cache };
        let mut logits = host(self.model.logits_of(self.model.trunk.forward(&mut context)));
        let mut live = std::mem::take(&mut self.live);
        self.draw(&mut live, &mut logits, stop);
        self.live = live;
        self.retire();
    }

    /// Draws one id for each of `rows` from its line of `logits`.
    fn draw(&self, rows: &mut [Row], logits: &mut [f32], stop: &mut dyn StopRule) {
        let lines = logits.par_chunks_mut(self.model.vocab_size());
        rows.par_iter_mut().zip(lines).for_each(|(row, logits_v)| {
            row.choose(logits_v, self.prompts[row.prompt], self.params);
        });
        rows.iter_mut().for_each(|row| row.check(self.params, stop));
    }

    /// Takes out the rows that have ended; their places are free again.
    fn retire(&mut self) {
        for row in self.live.extract_if(.., |row| row.has_ended) {
            self.free.push(row.slot);
            self.completions[row.index] = Some(row.completion);
        }
        // Rows enter in order: prompts before the first live or waiting row's have none left.
        let first = self.live.iter().map(|row| row.prompt).min().unwrap_or(self.waiting.start / self.group);
        self.cache.drop_prompts_before(first.min(self.waiting.start / self.group));
    }
}

fn host(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("f32 logits")
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::ModelDir;
    use crate::rng::{Purpose, Seed};

    #[test]
    fn the_number_of_places_changes_nothing() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models");
        let dir = ModelDir::open(&root.join("gpt2")).expect("a fixture");
        let model = CausalLm::load(&dir, &Device::flex()).expect("a fixture");
        let prompts: Vec<Vec<u32>> = (1..6).map(|n| (0..n).map(|i| (i * 7 + n) % 30).collect()).collect();
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        // Ids that end some rows early, so that others take their places.
        let params = SamplingParams { max_new_tokens: 9, stop_ids: (0..8).collect(), ..SamplingParams::default() };
        let stream = |row: usize| Seed(3).stream(Purpose::Generate, 0, row as u64);
        let sample =
            |slots| generate_at_once(slots, &model, &prompts, 3, &params, &mut NoStopRule, &stream).expect("sampled");
        let all = sample(100);
        assert!(all.iter().any(|completion| completion.stop == StopReason::StopId), "some rows end early");
        assert!(all.iter().any(|completion| completion.stop == StopReason::Length), "some rows do not");
        for slots in [1, 2, 4, 7] {
            assert_eq!(sample(slots), all, "{slots} places");
        }
    }
}
