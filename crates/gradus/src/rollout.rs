//! Rollouts: sampled completions with everything that scoring and updating need.
//!
//! [`Rollouts`] is the struct that rewards, advantages and updates take; nothing after sampling goes back to text
//! or to the sampler.

pub use crate::data::Prompt;
pub use crate::generate::StopReason;

use crate::Result;
use crate::generate::{SamplingParams, StopRule, generate};
use crate::model::CausalLm;
use crate::rng::Stream;
use crate::text::{StopStrings, Tokenizer, cut_at_stop};

/// One sampled completion.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// Index into [`Rollouts::prompts`].
    pub prompt: usize,
    /// The completion, decoded without special tokens, cut before a stop string.
    pub completion: String,
    /// The sampled ids, the stop id included. Never empty.
    pub completion_ids: Vec<u32>,
    /// Log-probability of each id under the distribution actually sampled from (after top-k, top-p, …), in nats.
    pub sampled_logprobs: Vec<f32>,
    /// Log-probability of each id under the policy at the training temperature, unwarped: what the trainer recomputes.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub stop: StopReason,
}

/// `P` prompts with `G` rollouts each, group after group: rollout `i` belongs to prompt `i / group_size`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollouts {
    /// The prompts, `P` of them.
    pub prompts: Vec<Prompt>,
    /// The rollouts, `P · G` of them, in the order of the prompts.
    pub rollouts: Vec<Rollout>,
    /// `G`, the rollouts of one prompt.
    pub group_size: usize,
}

impl Rollouts {
    /// The prompt of rollout `i`.
    pub fn prompt(&self, i: usize) -> &Prompt {
        &self.prompts[self.rollouts[i].prompt]
    }

    /// How many rollouts there are, `P · G`.
    pub fn len(&self) -> usize {
        self.rollouts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rollouts.is_empty()
    }
}

/// How completions are sampled: what the engine needs, and where text comes in.
pub struct Sampler<'a> {
    /// Turns ids into text and watches for stop strings.
    pub tokenizer: &'a Tokenizer,
    /// Completions of each prompt.
    pub group_size: usize,
    /// The distribution and the limits.
    pub params: SamplingParams,
    /// Strings that end a completion.
    pub stop: &'a [String],
}

/// Samples `group_size` completions of each prompt; completion `i` draws from `stream(i)`.
///
/// # Errors
/// When a setting has no meaning, a prompt does not fit, or a completion cannot be decoded.
pub fn sample(
    policy: &CausalLm,
    prompts: Vec<Prompt>,
    sampler: &Sampler<'_>,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Rollouts> {
    let ids: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.ids.as_slice()).collect();
    let mut stop = StopStrings::new(sampler.tokenizer, sampler.stop.iter().cloned());
    let completions = generate(policy, &ids, sampler.group_size, &sampler.params, &mut stop, stream)?;
    let mut rollouts = Vec::with_capacity(completions.len());
    for (i, completion) in completions.into_iter().enumerate() {
        let prompt = i / sampler.group_size;
        let text = continuation(sampler.tokenizer, &prompts[prompt].ids, &completion.ids)?;
        rollouts.push(Rollout {
            prompt,
            completion: cut_at_stop(&text, sampler.stop).to_owned(),
            completion_ids: completion.ids,
            sampled_logprobs: completion.sampled_logprobs,
            logprobs: completion.logprobs,
            stop: completion.stop,
        });
    }
    Ok(Rollouts { prompts, rollouts, group_size: sampler.group_size })
}

/// The text that `completion_ids` add to a prompt.
///
/// Decoded alone, a completion loses the space it begins with in tokenizers of Llama's kind (`there was` for ` there
/// was`), and prompt and completion joined would be another text than the one that was sampled.
pub(crate) fn continuation(tokenizer: &Tokenizer, prompt_ids: &[u32], completion_ids: &[u32]) -> Result<String> {
    let prompt = tokenizer.decode(prompt_ids, true)?;
    let whole = tokenizer.decode(&[prompt_ids, completion_ids].concat(), true)?;
    match whole.strip_prefix(&prompt) {
        Some(rest) => Ok(rest.to_owned()),
        None => tokenizer.decode(completion_ids, true),
    }
}

impl StopRule for StopStrings<'_> {
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool {
        StopStrings::stops(self, row, completion_ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_keeps_the_space_it_begins_with() {
        let Some(dir) = crate::test_support::material("weights/stories260K") else { return };
        let tokenizer = Tokenizer::from_dir(&dir).expect("a tokenizer");
        let ids = tokenizer.encode("Once upon a time there was", true).expect("encodable");
        let prompt = tokenizer.encode("Once upon a time", true).expect("encodable").len();
        assert_eq!(tokenizer.decode(&ids[prompt..], true).expect("decodable"), "there was");
        assert_eq!(continuation(&tokenizer, &ids[..prompt], &ids[prompt..]).expect("decodable"), " there was");
    }
}
