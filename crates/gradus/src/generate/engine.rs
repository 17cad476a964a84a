//! The engine: prompts are computed once and shared by their group; finished rows leave at once.

use gradus_kernels::CacheRow;
use rayon::prelude::*;

use burn::module::Module;

use super::sampler::{Choice, SamplingParams, choose_except};
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

/// Rows sampled side by side at most: bounds the cache and the logits in memory.
const ROWS_AT_ONCE: usize = 256;
/// Prompt tokens computed in one pass at most.
const PREFILL_TOKENS: usize = 4096;

/// Samples `group` completions of each prompt; completion `p · group + g` belongs to prompt `p`.
///
/// Each completion draws from its own stream, `stream(completion)`, so the result does not depend on which rows are
/// sampled together.
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
    check(model, prompts, params)?;
    let model = model.valid();
    let mut completions = Vec::with_capacity(prompts.len() * group);
    if group == 0 {
        return Ok(completions);
    }
    let wave = (ROWS_AT_ONCE / group).max(1);
    for (i, prompts) in prompts.chunks(wave).enumerate() {
        let first = i * wave * group;
        let rows = prompts.len() * group;
        let mut wave = Wave {
            model: &model,
            params,
            cache: model.new_cache(rows, params.max_new_tokens),
            rows: (0..rows).map(|row| Row::new(row / group, stream(first + row))).collect(),
            first,
            prompts,
        };
        let logits = wave.prefill();
        let all: Vec<usize> = (0..rows).collect();
        wave.draw(&all, |row| &logits[row / group], stop);
        while let Some(live) = wave.live() {
            let logits = wave.decode(&live);
            let vocabulary = model.vocab_size();
            let row_logits = |row: usize| {
                let i = live.binary_search(&row).expect("a live row");
                &logits[i * vocabulary..(i + 1) * vocabulary]
            };
            wave.draw(&live, row_logits, stop);
        }
        completions.extend(wave.rows.into_iter().map(Row::finish));
    }
    Ok(completions)
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

/// The rows sampled side by side.
struct Wave<'a> {
    model: &'a CausalLm,
    params: &'a SamplingParams,
    prompts: &'a [&'a [u32]],
    cache: KvCache,
    rows: Vec<Row>,
    /// The number of the first row among all completions.
    first: usize,
}

struct Row {
    prompt: usize,
    stream: Stream,
    ids: Vec<u32>,
    sampled_logprobs: Vec<f32>,
    logprobs: Vec<f32>,
    stop: Option<StopReason>,
}

impl Row {
    fn new(prompt: usize, stream: Stream) -> Self {
        Self { prompt, stream, ids: Vec::new(), sampled_logprobs: Vec::new(), logprobs: Vec::new(), stop: None }
    }

    fn finish(self) -> Completion {
        Completion {
            ids: self.ids,
            sampled_logprobs: self.sampled_logprobs,
            logprobs: self.logprobs,
            stop: self.stop.expect("a finished row has a reason"),
        }
    }

    /// Draws the next id from `logits`.
    fn choose(&mut self, logits: &mut [f32], prompt: &[u32], params: &SamplingParams) -> Choice {
        let history: Vec<u32> = match params.repetition_penalty == 1.0 {
            true => Vec::new(),
            false => prompt.iter().chain(&self.ids).copied().collect(),
        };
        let excluded: &[u32] = if self.ids.len() < params.min_new_tokens { &params.stop_ids } else { &[] };
        choose_except(logits, &history, excluded, params, &mut self.stream)
    }
}

impl Wave<'_> {
    /// Computes every prompt once; returns the logits after each prompt's last token.
    fn prefill(&mut self) -> Vec<Vec<f32>> {
        let mut logits = Vec::with_capacity(self.prompts.len());
        let mut from = 0;
        while from < self.prompts.len() {
            let mut to = from + 1;
            let mut tokens = self.prompts[from].len();
            while to < self.prompts.len() && tokens + self.prompts[to].len() <= PREFILL_TOKENS {
                tokens += self.prompts[to].len();
                to += 1;
            }
            let packed = Packed::new(&self.prompts[from..to]);
            let mut context = Context::Prefill { packed: &packed, cache: &mut self.cache };
            let hidden_nd = self.model.trunk.forward(&mut context);
            let last_bd = crate::model::select_rows(hidden_nd, &packed.last_indices());
            let values = host(self.model.logits_of(last_bd));
            logits.extend(values.chunks_exact(self.model.vocab_size()).map(<[f32]>::to_vec));
            from = to;
        }
        logits
    }

    /// Logits after the last id of each row in `live`, one row after the other.
    fn decode(&mut self, live: &[usize]) -> Vec<f32> {
        let ids: Vec<u32> = live.iter().map(|&row| *self.rows[row].ids.last().expect("a drawn id")).collect();
        let rows: Vec<CacheRow> = live
            .iter()
            .map(|&row| CacheRow { prompt: self.rows[row].prompt, slot: row, length: self.rows[row].ids.len() - 1 })
            .collect();
        let position = |row: &CacheRow| (self.prompts[row.prompt].len() + row.length) as u32;
        let positions: Vec<u32> = rows.iter().map(position).collect();
        let mut context = Context::Decode { ids: &ids, positions: &positions, rows: &rows, cache: &mut self.cache };
        host(self.model.logits_of(self.model.trunk.forward(&mut context)))
    }

    /// Draws one id for each row in `live` (ascending) and ends the rows that stop.
    fn draw<'l>(&mut self, live: &[usize], logits: impl Fn(usize) -> &'l [f32] + Sync, stop: &mut dyn StopRule)
    where
        Self: 'l,
    {
        let (params, prompts) = (self.params, self.prompts);
        let is_live = |row: usize| live.binary_search(&row).is_ok();
        let choices: Vec<(usize, Choice)> = self
            .rows
            .par_iter_mut()
            .enumerate()
            .filter(|(row, _)| is_live(*row))
            .map(|(i, row)| {
                let mut logits = logits(i).to_vec();
                (i, row.choose(&mut logits, prompts[row.prompt], params))
            })
            .collect();
        for (i, choice) in choices {
            let row = &mut self.rows[i];
            row.ids.push(choice.id);
            row.sampled_logprobs.push(choice.sampled_logprob);
            row.logprobs.push(choice.logprob);
            row.stop = if params.stop_ids.contains(&choice.id) {
                Some(StopReason::StopId)
            } else if stop.stops(self.first + i, &row.ids) {
                Some(StopReason::StopString)
            } else if row.ids.len() == params.max_new_tokens {
                Some(StopReason::Length)
            } else {
                None
            };
        }
    }

    /// The rows still going, ascending; `None` when all have ended.
    fn live(&self) -> Option<Vec<usize>> {
        let live: Vec<usize> = (0..self.rows.len()).filter(|&row| self.rows[row].stop.is_none()).collect();
        (!live.is_empty()).then_some(live)
    }
}

fn host(tensor: burn::tensor::Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32 logits")
}
