//! Rollouts: sampled completions with everything that scoring and updating need.
//!
//! [`Rollouts`] is the struct that rewards, advantages and updates take; nothing after sampling goes back to text
//! or to the sampler.

use serde_json::{Map, Value};

/// A prompt ready for sampling: its text, its ids, and the row it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The row number in its data set, counted from 0; names the prompt in messages and in the rollout log.
    pub row: usize,
    /// The rendered prompt: plain text, or the chat template's output with the generation prompt.
    pub text: String,
    /// `text`, tokenised.
    pub ids: Vec<u32>,
    /// The conversation, when the row held messages.
    pub messages: Option<Vec<crate::data::Message>>,
    /// The row's other columns (answers, references, …), passed on to rewards.
    pub columns: Map<String, Value>,
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
