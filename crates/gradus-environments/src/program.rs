//! An environment that is a program in any language and exchanges lines of JSON.
//!
//! One process serves all episodes concurrently. gradus writes one object per line, with a number. The program prints one line for each,
//! with the same number, in any order. After a crash, the open episodes fail, and the program is started again for the next ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::peer::{Dialect, LineMeaning, Peer, Running, excerpt};
use crate::timeout;
use crate::tool::Tool;

/// Maximum number of messages in an answer.
const REPLIES: usize = 64;

/// Maximum number of metrics in an answer.
const METRICS: usize = 100;

/// Configuration of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramConfig {
    /// The program and its arguments: `[python3, environment.py]`.
    pub program: Vec<String>,
    /// The time limit of one answer, in seconds. Default 60.
    #[serde(default = "timeout::default_s")]
    pub timeout_s: f64,
}

/// A program as an environment.
pub struct ProgramEnvironment {
    peer: Arc<Peer>,
    tools: Vec<Tool>,
    is_deterministic: bool,
}

const DIALECT: Dialect = Dialect {
    noun: "the environment",
    hint: "it must print one line of JSON for each line that it reads, with the same `id`, and flush it",
    limit: "`environment.command.timeout_s`",
    read: |line| match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(object)) => match object.get("id").and_then(Value::as_u64) {
            Some(number) => LineMeaning::Answer(number, object),
            None => LineMeaning::Broken("it has no whole number `id`".to_owned()),
        },
        Ok(_) => LineMeaning::Broken("it is not an object".to_owned()),
        Err(error) => LineMeaning::Broken(format!("it is not JSON: {error}")),
    },
    cancel: None,
    // The process holds all episodes, so a slow one must not end the others.
    ends_when_silent: false,
};

/// Sends a request to the program and waits for its answer.
fn ask(peer: &Peer, running: &Running, question: Value) -> Result<Map<String, Value>> {
    let Value::Object(question) = question else { unreachable!("questions are objects") };
    peer.request(running, question).and_then(refusal)
}

/// Returns the answer, or the error that it reports.
fn refusal(answer: Map<String, Value>) -> Result<Map<String, Value>> {
    match answer.get("error") {
        None | Some(Value::Null) => Ok(answer),
        Some(Value::String(what)) => Err(Error::episode(format!("the environment reports: {what}"))),
        Some(other) => Err(Error::episode(format!("the environment reports: {other}"))),
    }
}

impl ProgramEnvironment {
    /// Starts the program and requests its tools.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if it cannot be started, or does not describe itself.
    pub fn start(config: &ProgramConfig) -> Result<Self> {
        timeout::check(config.timeout_s)?;
        if config.program.is_empty() {
            return Err(Error::config("the environment has no program")
                .with_hint("write `command: { program: [python3, environment.py] }`"));
        }
        let peer = Arc::new(Peer::new(&config.program, config.timeout_s, &DIALECT));
        let described = peer.running(|_| Ok(())).and_then(|running| ask(&peer, &running, json!({ "do": "describe" })));
        let mut described = described.map_err(|error| match error {
            Error::Episode { message, hint } => Error::Config { message, hint },
            other => other,
        })?;
        let tools = match described.remove("tools") {
            None | Some(Value::Null) => Vec::new(),
            Some(tools) => serde_json::from_value(tools).map_err(|error| {
                Error::config(format!("the environment's `tools` are not a list of tools: {error}"))
                    .with_hint("each has a `name`, a `description` and, as a JSON schema, `parameters`")
            })?,
        };
        let is_deterministic = described.get("deterministic").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self { peer, tools, is_deterministic })
    }
}

impl Environment for ProgramEnvironment {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        let running = self.peer.running(|_| Ok(())).map_err(|error| match error {
            // The program has been started before, so the configuration is not the cause.
            Error::Config { message, hint } => Error::Episode { message, hint },
            other => other,
        })?;
        let question = json!({ "do": "reset", "episode": start.name, "seed": start.seed, "row": start.row });
        let mut answer = ask(&self.peer, &running, question)?;
        let opening = match answer.remove("message") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(other) => return Err(unexpected("message", "a text or null", &other)),
        };
        let (peer, name) = (Arc::clone(&self.peer), start.name.clone());
        Ok(NewEpisode { episode: Box::new(ProgramEpisode { peer, running, name, is_open: true }), opening })
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }
}

struct ProgramEpisode {
    peer: Arc<Peer>,
    /// The run of the program that holds the episode.
    running: Arc<Running>,
    name: String,
    is_open: bool,
}

impl Episode for ProgramEpisode {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        let question = json!({ "do": "step", "episode": self.name, "turn": turn.to_json() });
        let answer = ask(&self.peer, &self.running, question)?;
        observation(answer)
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        self.is_open = false;
        let mut answer = ask(&self.peer, &self.running, json!({ "do": "close", "episode": self.name }))?;
        number(answer.remove("reward"), "reward")
    }
}

impl Drop for ProgramEpisode {
    fn drop(&mut self) {
        // An abandoned episode is closed too. The answer is ignored.
        if self.is_open {
            let close = [("do".to_owned(), json!("close")), ("episode".to_owned(), json!(self.name))];
            self.peer.notify(&self.running, Map::from_iter(close));
        }
    }
}

fn unexpected(key: &str, expected: &str, found: &Value) -> Error {
    let found = found.to_string();
    Error::episode(format!("the environment's `{key}` is `{}`, expected {expected}", excerpt(&found)))
}

fn number(value: Option<Value>, key: &str) -> Result<Option<f64>> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(unexpected(key, "a number or null", &value)),
        },
    }
}

/// Parses `{"replies": …, "reward": …, "done": …, "metrics": …}`, the answer of a program to a turn.
///
/// # Errors
/// Returns [`Error::Episode`] with the problem.
pub fn observation(mut answer: Map<String, Value>) -> Result<Observation> {
    let replies = match answer.remove("replies") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(content)) => vec![Reply::User { content }],
        Some(Value::Array(list)) if list.len() > REPLIES => {
            let message =
                format!("the environment answered with {} messages, but at most {REPLIES} are read", list.len());
            return Err(Error::episode(message));
        }
        Some(Value::Array(list)) => list.into_iter().map(reply).collect::<Result<_>>()?,
        Some(other) => return Err(unexpected("replies", "a text or a list of messages", &other)),
    };
    let is_done = match answer.remove("done") {
        None | Some(Value::Null) => replies.is_empty(),
        Some(Value::Bool(is_done)) => is_done,
        Some(other) => return Err(unexpected("done", "true or false", &other)),
    };
    let metrics = match answer.remove("metrics") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(Value::Object(map)) if map.len() <= METRICS => {
            let one = |(name, value): (String, Value)| match value.as_f64().or(value.as_bool().map(f64::from)) {
                Some(number) => Ok((name, number)),
                None => Err(unexpected("metrics", "numbers or truth values", &value)),
            };
            map.into_iter().map(one).collect::<Result<_>>()?
        }
        Some(other) => return Err(unexpected("metrics", "a mapping of at most 100 numbers", &other)),
    };
    Ok(Observation { replies, reward: number(answer.remove("reward"), "reward")?, is_done, metrics })
}

fn reply(value: Value) -> Result<Reply> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    match (&value, text("content")) {
        (Value::String(content), _) => Ok(Reply::User { content: content.clone() }),
        (_, Some(content)) => match text("name") {
            Some(name) => Ok(Reply::Tool { name, id: text("id"), content }),
            None => Ok(Reply::User { content }),
        },
        _ => Err(unexpected("replies", "texts, or objects with a `content` and, for tools, a `name`", &value)),
    }
}

#[cfg(all(test, unix))]
mod tests;
