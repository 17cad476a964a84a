//! The two traits: an [`Environment`] begins episodes, and an [`Episode`] answers the turns of the policy.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::tool::{Call, Tool};

/// Source of episodes for a policy. One environment serves all episodes of a run, from several threads.
pub trait Environment: Send + Sync {
    /// Returns the tools that every episode offers. The chat template shows them to the policy.
    fn tools(&self) -> &[Tool];

    /// Begins an episode.
    ///
    /// # Errors
    /// Returns [`Error::Episode`](crate::Error::Episode) if the episode cannot begin, or [`Error::Interrupted`](crate::Error::Interrupted).
    fn begin(&self, start: &Start) -> Result<NewEpisode>;

    /// Whether the same start and the same turns always give the same answers. If not, recorded answers are used when a run is resumed.
    fn is_deterministic(&self) -> bool;

    /// Whether episodes supply their own prompts ([`Episode::prompt_ids`]), which replace the row's. Default: no.
    fn writes_prompts(&self) -> bool {
        false
    }
}

/// One episode. Dropping it releases its resources.
pub trait Episode: Send {
    /// Answers a turn of the policy. The call may block, but at most for the environment's own time limit.
    ///
    /// # Errors
    /// Returns [`Error::Episode`](crate::Error::Episode) if this episode cannot continue, or
    /// [`Error::Interrupted`](crate::Error::Interrupted). The failure of a tool is not an error: its reply describes the failure, and the
    /// policy reads it.
    fn step(&mut self, turn: &Turn) -> Result<Observation>;

    /// Like [`step`](Self::step), for episodes that use the sampled ids. Default: ignores them.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn step_sampled(&mut self, turn: &Turn, _drawn: &SampledTurn) -> Result<Observation> {
        self.step(turn)
    }

    /// Returns the ids that the policy reads first, if the episode supplies them. They must be equal in all episodes with the same seed and
    /// row. Default: `None`, which means the ids of the row's prompt.
    fn prompt_ids(&self) -> Option<&[u32]> {
        None
    }

    /// Whether a turn that was cut off by the token limit is also passed to [`step`](Self::step). Default: no.
    fn takes_cut_turns(&self) -> bool {
        false
    }

    /// Returns the object of the episode, which rewards of the same program may read after the end. Default: `None`.
    fn object(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Returns the reward of the whole episode, in addition to the rewards of its turns, after the end. `None` if there is none.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn finish(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}

/// Arguments for the beginning of an episode.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Name of the episode: `step 12, prompt 5, completion 3`. Unique within a run.
    pub name: String,
    /// Seed of the episode's randomness, the same in every repetition of the run.
    pub seed: u64,
    /// Row of the data: its columns, including `prompt`.
    pub row: Map<String, Value>,
}

/// An episode that has begun.
pub struct NewEpisode {
    /// The episode.
    pub episode: Box<dyn Episode>,
    /// Text that is appended to the last user message (TRL's `reset`).
    pub opening: Option<String>,
}

/// A turn as sampled tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledTurn {
    /// Token ids in the policy's vocabulary.
    pub ids: Vec<u32>,
    /// Log-probabilities of the ids under the distribution that they were sampled from.
    pub logprobs: Vec<f32>,
    /// Whether the token limit cut the turn off.
    pub is_cut: bool,
}

/// Text of the policy in one turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Sampled text including calls, without special tokens.
    pub text: String,
    /// Text outside of the calls, including thoughts and their marks.
    pub content: String,
    /// Thoughts without their marks, if the turn was parsed for calls. Programs do not get them separately.
    #[serde(default)]
    pub thought: String,
    /// Text outside of the calls and the thoughts. Programs do not get it separately.
    #[serde(default)]
    pub answer: String,
    /// Tool calls in the text, in order.
    pub calls: Vec<Call>,
}

impl Turn {
    /// Returns the turn as programs read it: `{"text": …, "content": …, "calls": [{"id": …, "name": …, "arguments": {…}}]}`. A call that
    /// could not be parsed has `error` instead of `arguments`.
    pub fn to_json(&self) -> Value {
        let call = |call: &Call| match &call.arguments {
            Ok(arguments) => json!({ "id": call.id, "name": call.name, "arguments": arguments }),
            Err(error) => json!({ "id": call.id, "name": call.name, "error": error }),
        };
        let calls: Vec<Value> = self.calls.iter().map(call).collect();
        json!({ "text": self.text, "content": self.content, "calls": calls })
    }
}

/// The answer to a turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Messages that the policy reads next. Empty if the episode is over, or if the turn needs no answer.
    pub replies: Vec<Reply>,
    /// Reward of the turn, or `None` if the environment gives none.
    pub reward: Option<f64>,
    /// Whether the episode is over.
    pub is_done: bool,
    /// Named numbers that are logged as means over episodes.
    pub metrics: BTreeMap<String, f64>,
}

/// A message to the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Reply {
    /// A user message.
    User {
        /// Text of the message.
        content: String,
    },
    /// A tool's answer.
    Tool {
        /// Name of the tool.
        name: String,
        /// Id of the call, if it had one.
        id: Option<String>,
        /// Result as text, or a description of the failure.
        content: String,
    },
    /// Ids that are appended unchanged, including the header of the next turn.
    Tokens {
        /// Token ids.
        ids: Vec<u32>,
        /// Text of the ids.
        content: String,
    },
}

impl Reply {
    /// Returns the text.
    pub fn content(&self) -> &str {
        match self {
            Self::User { content } | Self::Tool { content, .. } | Self::Tokens { content, .. } => content,
        }
    }
}
