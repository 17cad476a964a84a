//! An environment that is a program, in any language, over lines of JSON.
//!
//! One process serves all episodes at once. gradus writes one object a line, with a number; the program prints one line for each,
//! with the same number, in any order. A crash costs the episodes that are on their way, and the program is started again for
//! those that follow.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::environment::{Begun, Environment, Episode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::process::{Answer, LINE_BYTES, Process, Requests};
use crate::tool::Tool;

/// The most messages of one answer.
const REPLIES: usize = 64;

/// The most numbers that an answer may log.
const METRICS: usize = 100;

/// How often the reader looks whether anybody still wants answers.
const GLANCE: Duration = Duration::from_millis(100);

/// A program, and how long its answers may take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramConfig {
    /// The program and its arguments: `[python3, environment.py]`.
    pub program: Vec<String>,
    /// The longest that one answer may take, in seconds. Default 60.
    #[serde(default = "minute")]
    pub timeout_s: f64,
}

fn minute() -> f64 {
    60.0
}

/// The program as an environment.
pub struct ProgramEnvironment {
    shared: Arc<Shared>,
    tools: Vec<Tool>,
    is_deterministic: bool,
}

struct Shared {
    config: ProgramConfig,
    /// The running program; none where it has ended.
    running: Mutex<Option<Life>>,
    number: AtomicU64,
}

/// One life of the program, and the thread that reads what it prints.
struct Life {
    running: Arc<Running>,
    reader: JoinHandle<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(Life { running, reader }) = locked(&self.running).take() {
            drop(running);
            // It ends the program and all that it started before it ends itself.
            let _ = reader.join();
        }
    }
}

/// A program that runs.
struct Running {
    requests: Requests,
    waiting: Mutex<Waiting>,
}

/// Who waits for which answer; and how the program ended.
#[derive(Default)]
struct Waiting {
    answers: HashMap<u64, Sender<Result<Map<String, Value>>>>,
    ended: Option<Error>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half-done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    fn start(config: &ProgramConfig) -> Result<Life> {
        let Some((program, arguments)) = config.program.split_first() else {
            return Err(Error::config("the environment names no program")
                .with_hint("write `command: { program: [python3, environment.py] }`"));
        };
        let process = Process::start(program, arguments).map_err(|source| {
            Error::config(format!("the environment `{program}` could not be started: {source}"))
                .with_hint("is it installed, and is the path relative to the working directory?")
        })?;
        let running = Arc::new(Self { requests: process.requests(), waiting: Mutex::default() });
        let (of, name) = (Arc::downgrade(&running), program.clone());
        let reader = std::thread::spawn(move || read(process, &of, &name));
        Ok(Life { running, reader })
    }

    /// Ends the program for all who wait.
    fn end(&self, error: &Error) {
        let mut waiting = locked(&self.waiting);
        waiting.ended.get_or_insert_with(|| error.clone());
        for (_, answer) in waiting.answers.drain() {
            // Whoever asked may have given up.
            let _ = answer.send(Err(error.clone()));
        }
    }
}

/// Hands the program's lines to those who wait for them, until the program ends or nobody wants it any more.
fn read(mut process: Process, running: &std::sync::Weak<Running>, name: &str) {
    loop {
        let line = process.next_line(Instant::now() + GLANCE, &|| running.strong_count() == 0);
        let Some(running) = running.upgrade() else { return };
        let wrong = |what: String| {
            Error::episode(format!("the environment `{name}` {what}")).with_hint(
                "it must print one line of JSON for each line that it reads, with the same `id`, and flush it",
            )
        };
        let error = match line {
            Answer::TimedOut => continue,
            Answer::Interrupted => return,
            Answer::Line(line) => match number_of(&line) {
                Ok((number, object)) => {
                    // An answer that came too late is nobody's.
                    let waiting = locked(&running.waiting).answers.remove(&number);
                    if let Some(answer) = waiting {
                        let _ = answer.send(Ok(object));
                    }
                    continue;
                }
                Err(why) => wrong(format!("printed a line that is no answer: {why} (`{}`)", excerpt(&line))),
            },
            Answer::TooLong => wrong(format!("printed a line of more than {LINE_BYTES} bytes")),
            Answer::Ended => {
                let tail = process.stderr_tail();
                let tail = if tail.is_empty() { tail } else { format!("; its last words:\n{tail}") };
                wrong(format!("ended ({}){tail}", process.status()))
            }
        };
        running.end(&error);
        process.kill();
        return;
    }
}

fn number_of(line: &str) -> std::result::Result<(u64, Map<String, Value>), String> {
    match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(object)) => match object.get("id").and_then(Value::as_u64) {
            Some(number) => Ok((number, object)),
            None => Err("it has no whole number `id`".to_owned()),
        },
        Ok(_) => Err("it is no object".to_owned()),
        Err(error) => Err(format!("it is no JSON: {error}")),
    }
}

fn excerpt(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

impl Shared {
    /// The running program; it is started where it does not run.
    fn running(&self) -> Result<Arc<Running>> {
        let mut slot = locked(&self.running);
        if let Some(life) = slot.as_ref().filter(|life| locked(&life.running.waiting).ended.is_none()) {
            return Ok(Arc::clone(&life.running));
        }
        let life = Running::start(&self.config)?;
        Ok(Arc::clone(&slot.insert(life).running))
    }

    /// Asks the program and waits for its answer.
    fn ask(&self, running: &Running, question: Value) -> Result<Map<String, Value>> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let Value::Object(mut object) = question else { unreachable!("questions are objects") };
        object.insert("id".to_owned(), json!(number));
        let (send, answer) = channel();
        {
            let mut waiting = locked(&running.waiting);
            if let Some(ended) = &waiting.ended {
                return Err(ended.clone());
            }
            waiting.answers.insert(number, send);
        }
        running.requests.send(vec![format!("{}\n", Value::Object(object))]);
        match answer.recv_timeout(Duration::from_secs_f64(self.config.timeout_s)) {
            Ok(answer) => answer.and_then(refusal),
            Err(RecvTimeoutError::Timeout) => {
                locked(&running.waiting).answers.remove(&number);
                let message = format!("the environment did not answer within {} s", self.config.timeout_s);
                Err(Error::episode(message).with_hint("`timeout_s` sets the limit"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::episode("the environment ended")),
        }
    }
}

/// The answer, or the error that it tells of.
fn refusal(answer: Map<String, Value>) -> Result<Map<String, Value>> {
    match answer.get("error") {
        None | Some(Value::Null) => Ok(answer),
        Some(Value::String(what)) => Err(Error::episode(format!("the environment says: {what}"))),
        Some(other) => Err(Error::episode(format!("the environment says: {other}"))),
    }
}

impl ProgramEnvironment {
    /// Starts the program and asks it for its tools.
    ///
    /// # Errors
    /// [`Error::Config`] when it cannot be started, or does not describe itself.
    pub fn start(config: &ProgramConfig) -> Result<Self> {
        if !(config.timeout_s > 0.0 && config.timeout_s < 1e6) {
            let message = format!("`timeout_s` is {}, but seconds above 0 are needed", config.timeout_s);
            return Err(Error::config(message));
        }
        let shared = Arc::new(Shared { config: config.clone(), running: Mutex::new(None), number: AtomicU64::new(1) });
        let described = shared.running().and_then(|running| shared.ask(&running, json!({ "do": "describe" })));
        let mut described = described.map_err(|error| match error {
            Error::Episode { message, hint } => Error::Config { message, hint },
            other => other,
        })?;
        let tools = match described.remove("tools") {
            None | Some(Value::Null) => Vec::new(),
            Some(tools) => serde_json::from_value(tools).map_err(|error| {
                Error::config(format!("the environment's `tools` are no list of tools: {error}"))
                    .with_hint("each has a `name`, a `description` and, as a JSON schema, `parameters`")
            })?,
        };
        let is_deterministic = described.get("deterministic").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self { shared, tools, is_deterministic })
    }
}

impl Environment for ProgramEnvironment {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn begin(&self, start: &Start) -> Result<Begun> {
        let running = self.shared.running().map_err(|error| match error {
            // It was started before, so the configuration is not to blame.
            Error::Config { message, hint } => Error::Episode { message, hint },
            other => other,
        })?;
        let question = json!({ "do": "reset", "episode": start.name, "seed": start.seed, "row": start.row });
        let mut answer = self.shared.ask(&running, question)?;
        let opening = match answer.remove("message") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(other) => return Err(unexpected("message", "a text or null", &other)),
        };
        let (shared, name) = (Arc::clone(&self.shared), start.name.clone());
        Ok(Begun { episode: Box::new(ProgramEpisode { shared, running, name, is_open: true }), opening })
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }
}

struct ProgramEpisode {
    shared: Arc<Shared>,
    /// The life of the program that knows the episode.
    running: Arc<Running>,
    name: String,
    is_open: bool,
}

impl Episode for ProgramEpisode {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        let answer =
            self.shared.ask(&self.running, json!({ "do": "step", "episode": self.name, "turn": turn.to_json() }))?;
        observation(answer)
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        self.is_open = false;
        let mut answer = self.shared.ask(&self.running, json!({ "do": "close", "episode": self.name }))?;
        number(answer.remove("reward"), "reward")
    }
}

impl Drop for ProgramEpisode {
    fn drop(&mut self) {
        // An episode that was given up is closed too; its answer is nobody's.
        if self.is_open {
            let number = self.shared.number.fetch_add(1, Ordering::Relaxed);
            let line = format!("{}\n", json!({ "id": number, "do": "close", "episode": self.name }));
            self.running.requests.send(vec![line]);
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

/// Reads `{"replies": …, "reward": …, "done": …, "metrics": …}`, the answer of a program to a turn.
///
/// # Errors
/// [`Error::Episode`] with what is wrong with it.
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
        _ => Err(unexpected("replies", "texts, or objects with a `content` and, of tools, a `name`", &value)),
    }
}

#[cfg(all(test, unix))]
mod tests;
