//! The two traits: an [`Environment`] begins episodes, an [`Episode`] answers the turns of the policy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::tool::{Call, Tool};

/// What answers a policy. One environment serves all episodes of a run, from several threads.
pub trait Environment: Send + Sync {
    /// The tools that every episode offers. The chat template shows them to the policy.
    fn tools(&self) -> &[Tool];

    /// Begins an episode.
    ///
    /// # Errors
    /// [`Error::Episode`](crate::Error::Episode) when it cannot begin, [`Error::Interrupted`](crate::Error::Interrupted).
    fn begin(&self, start: &Start) -> Result<Begun>;

    /// Whether the same start and the same turns always give the same answers. Where they do not, recorded answers are used
    /// when a run is resumed.
    fn is_deterministic(&self) -> bool;

    /// Whether its episodes write their prompts themselves ([`Episode::prompt_ids`]), in the place of the row's. Default: no.
    fn writes_prompts(&self) -> bool {
        false
    }
}

/// One episode. Dropping it frees what it holds.
pub trait Episode: Send {
    /// Answers a turn of the policy. The call may block; it ends within the environment's own time limit.
    ///
    /// # Errors
    /// [`Error::Episode`](crate::Error::Episode) when this episode cannot go on, [`Error::Interrupted`](crate::Error::Interrupted).
    /// A tool that fails is no error: what went wrong is its reply, which the policy reads.
    fn step(&mut self, turn: &Turn) -> Result<Observation>;

    /// [`step`](Self::step) for episodes that want to know what was drawn. Default: they do not.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn step_drawn(&mut self, turn: &Turn, _drawn: &Drawn) -> Result<Observation> {
        self.step(turn)
    }

    /// The ids that the policy reads first, where the episode writes them itself. They must be the same in all episodes with one seed
    /// and row. Default: those of the row's prompt.
    fn prompt_ids(&self) -> Option<&[u32]> {
        None
    }

    /// Whether a turn that the limit of tokens cut off is stepped, too. Default: no.
    fn takes_cut_turns(&self) -> bool {
        false
    }

    /// The reward of the whole episode beside the rewards of its turns, once it has ended; none where there is none.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn finish(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}

/// What an episode begins with.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Names the episode: `step 12, prompt 5, completion 3`. Unique within a run.
    pub name: String,
    /// The seed of the episode's randomness, the same in every repetition of the run.
    pub seed: u64,
    /// The row of the data: its columns, `prompt` among them.
    pub row: Map<String, Value>,
}

/// An episode that has begun.
pub struct Begun {
    /// The episode.
    pub episode: Box<dyn Episode>,
    /// A text that is added to the last message of the user (TRL's `reset`).
    pub opening: Option<String>,
}

/// A turn as it was drawn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drawn {
    /// Its ids, in the policy's vocabulary.
    pub ids: Vec<u32>,
    /// Their log-probabilities under what was drawn from.
    pub logprobs: Vec<f32>,
    /// Whether the limit of tokens cut it off.
    pub is_cut: bool,
}

/// What the policy wrote in one turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The text as it was sampled, calls included, special tokens left out.
    pub text: String,
    /// The text outside of the calls.
    pub content: String,
    /// The calls of tools in it, in order.
    pub calls: Vec<Call>,
}

impl Turn {
    /// The turn as programs read it: `{"text": …, "content": …, "calls": [{"id": …, "name": …, "arguments": {…}}]}`. A call that could not
    /// be read has `error` in the place of `arguments`.
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
    /// What the policy reads next. Empty where the episode is over, or where the turn needs no answer.
    pub replies: Vec<Reply>,
    /// The reward of the turn; none where the environment gives none.
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
    /// What a user says.
    User {
        /// The text.
        content: String,
    },
    /// What a tool answered.
    Tool {
        /// The name of the tool.
        name: String,
        /// The id of the call, where it had one.
        id: Option<String>,
        /// The result as text, or what went wrong.
        content: String,
    },
    /// Ids that are appended as they are, and the head of the next turn among them.
    Tokens {
        /// The ids.
        ids: Vec<u32>,
        /// Their text.
        content: String,
    },
}

impl Reply {
    /// The text.
    pub fn content(&self) -> &str {
        match self {
            Self::User { content } | Self::Tool { content, .. } | Self::Tokens { content, .. } => content,
        }
    }
}
