//! Environments behind OpenEnv's WebSocket (<https://github.com/meta-pytorch/OpenEnv>, version 0.10), with one connection per episode.
//!
//! If a server has MCP tools, the policy sees them, and each call is a step. For other servers, the policy's text fills one field of the
//! action. If the action has several fields, the policy writes it as JSON.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::timeout;
use crate::tool::{Call, Tool};
use crate::toolbox::failure;

/// Maximum size of a server's message in bytes.
const MESSAGE_BYTES: usize = 1 << 20;

/// Field of the action for notes, which the policy never fills.
const METADATA: &str = "metadata";

/// A server, and the fields of its actions and observations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OpenEnvConfig {
    /// The address of the server: `http://HOST:PORT` or `https://HOST`.
    pub url: String,
    /// The action field for the policy's text. Default: the only field. If there are several, the policy writes the action as JSON. Servers
    /// with tools have no such field.
    #[serde(default)]
    pub action: Option<String>,
    /// The observation field that the policy reads. Default: the only text field, else the whole observation as JSON.
    #[serde(default)]
    pub observation: Option<String>,
    /// Declare that the same seed and actions always give the same answers. Default false: answers are recorded for a resumed run.
    #[serde(default)]
    pub deterministic: bool,
    /// The time limit of one answer, in seconds. Default 60.
    #[serde(default = "timeout::default_s")]
    pub timeout_s: f64,
}

/// An OpenEnv server as an environment.
pub struct OpenEnv {
    config: OpenEnvConfig,
    address: Address,
    tools: Vec<Tool>,
    action: Action,
}

/// Form of the server's actions.
#[derive(Debug, Clone, PartialEq)]
enum Action {
    /// Each tool call is an action.
    Calls,
    /// A single field of this type.
    Field(String, FieldType),
    /// The policy writes the action as JSON.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldType {
    Text,
    Integer,
    Number,
}

#[derive(Debug, Clone)]
struct Address {
    /// `HOST:PORT`, with the default port of the scheme if none is given.
    host: String,
    http: String,
    websocket: String,
}

impl Address {
    fn of(url: &str) -> Result<Self> {
        let url = url.trim_end_matches('/');
        let (is_secure, rest) = if let Some(rest) = url.strip_prefix("http://").or(url.strip_prefix("ws://")) {
            (false, rest)
        } else if let Some(rest) = url.strip_prefix("https://").or(url.strip_prefix("wss://")) {
            (true, rest)
        } else {
            return Err(Error::config(format!("the `url` of the environment is `{url}`"))
                .with_hint("it begins with `http://` or `https://`, such as http://localhost:8000"));
        };
        let authority = rest.split('/').next().unwrap_or(rest);
        let port = if is_secure { 443 } else { 80 };
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        let scheme = |plain: &str, secure: &str| if is_secure { secure.to_owned() } else { plain.to_owned() };
        Ok(Self {
            host,
            http: format!("{}://{rest}", scheme("http", "https")),
            websocket: format!("{}://{rest}/ws", scheme("ws", "wss")),
        })
    }
}

impl OpenEnv {
    /// Requests the server's tools or the form of its actions.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if the server cannot be reached, or a key does not fit it.
    pub fn connect(config: &OpenEnvConfig) -> Result<Self> {
        timeout::check(config.timeout_s)?;
        let address = Address::of(&config.url)?;
        let unusable = |error: Error| match error {
            Error::Episode { message, hint } => Error::Config { message, hint },
            other => other,
        };
        let mut connection = Connection::open(&address, config.timeout_s).map_err(unusable)?;
        let tools = connection.tools().map_err(unusable)?;
        connection.close();
        let action = match tools.is_empty() {
            false => Action::Calls,
            true => action_of(&schema(&address, config.timeout_s)?, config.action.as_deref())?,
        };
        Ok(Self { config: config.clone(), address, tools, action })
    }
}

/// Requests the JSON schema of the server's actions.
fn schema(address: &Address, timeout_s: f64) -> Result<Value> {
    let url = format!("{}/schema", address.http);
    let unreadable = |what: String| {
        Error::config(format!("{url} does not describe its actions: {what}"))
            .with_hint("is it a server of OpenEnv? Set the field of the action with `action`")
    };
    let agent =
        ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs_f64(timeout_s))).build().new_agent();
    let mut response = agent.get(&url).call().map_err(|error| unreadable(error.to_string()))?;
    let text = response.body_mut().with_config().limit(MESSAGE_BYTES as u64).read_to_string();
    let text = text.map_err(|error| unreadable(error.to_string()))?;
    let mut schema: Map<String, Value> = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    Ok(schema.remove("action").unwrap_or_default())
}

fn action_of(schema: &Value, requested: Option<&str>) -> Result<Action> {
    let empty = Map::new();
    let fields = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let names: Vec<&String> = fields.keys().filter(|name| *name != METADATA).collect();
    let typed = |name: &str| match fields.get(name).and_then(|field| field.get("type")).and_then(Value::as_str) {
        Some("integer") => Some(FieldType::Integer),
        Some("number") => Some(FieldType::Number),
        Some("string") => Some(FieldType::Text),
        _ => None,
    };
    match (requested, &names[..]) {
        (Some(name), _) if fields.is_empty() => Ok(Action::Field(name.to_owned(), FieldType::Text)),
        (Some(name), names) if !names.iter().any(|other| *other == name) => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            Err(Error::config(format!(
                "the environment's actions have no field `{name}`; they have {}",
                names.join(", ")
            )))
        }
        (Some(name), _) => Ok(Action::Field(name.to_owned(), typed(name).unwrap_or(FieldType::Text))),
        (None, [name]) => Ok(typed(name).map_or(Action::Json, |kind| Action::Field((*name).clone(), kind))),
        (None, _) => Ok(Action::Json),
    }
}

impl Environment for OpenEnv {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        let mut connection = Connection::open(&self.address, self.config.timeout_s)?;
        let mut data = start.row.clone();
        data.insert("seed".to_owned(), json!(start.seed));
        data.insert("episode_id".to_owned(), json!(start.name));
        let answer = connection.request(&json!({ "type": "reset", "data": data }), "observation")?;
        let (observation, field) = (answer.get("observation"), self.config.observation.as_deref());
        let opening = observation.map(|observation| shown(observation, field)).transpose()?;
        let (action, field) = (self.action.clone(), self.config.observation.clone());
        let episode = OpenEnvEpisode { connection, action, field };
        Ok(NewEpisode { episode: Box::new(episode), opening: opening.filter(|text| !text.is_empty()) })
    }

    fn is_deterministic(&self) -> bool {
        self.config.deterministic
    }
}

struct OpenEnvEpisode {
    connection: Connection,
    action: Action,
    field: Option<String>,
}

/// Result of a step on the server.
struct StepResult {
    observation: Value,
    reward: Option<f64>,
    is_done: bool,
}

impl OpenEnvEpisode {
    fn stepped(&mut self, action: &Value) -> Result<StepResult> {
        let mut answer = self.connection.request(&json!({ "type": "step", "data": action }), "observation")?;
        let reward = match answer.remove("reward") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(reward)) => Some(f64::from(reward)),
            Some(Value::Number(reward)) => reward.as_f64(),
            Some(other) => return Err(unexpected("reward", "a number or null", &other)),
        };
        let is_done = match answer.remove("done") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(is_done)) => is_done,
            Some(other) => return Err(unexpected("done", "true or false", &other)),
        };
        Ok(StepResult { observation: answer.remove("observation").unwrap_or(Value::Null), reward, is_done })
    }

    /// Runs each call as a step and adds up the rewards of the turn.
    fn call(&mut self, calls: &[Call]) -> Result<Observation> {
        let (mut replies, mut failures, mut reward, mut is_done) = (Vec::new(), 0.0, None, calls.is_empty());
        for call in calls {
            let content = match &call.arguments {
                Err(error) => {
                    failures += 1.0;
                    failure(error)
                }
                Ok(arguments) => {
                    let action = json!({ "type": "call_tool", "tool_name": call.name, "arguments": arguments });
                    let stepped = self.stepped(&action)?;
                    if let Some(found) = stepped.reward {
                        *reward.get_or_insert(0.0) += found;
                    }
                    is_done |= stepped.is_done;
                    match stepped.observation.get("error").filter(|error| !error.is_null()) {
                        Some(error) => {
                            failures += 1.0;
                            let what = error
                                .get("message")
                                .and_then(Value::as_str)
                                .map_or_else(|| error.to_string(), str::to_owned);
                            failure(&what)
                        }
                        None => result_of(&stepped.observation),
                    }
                }
            };
            replies.push(Reply::Tool { name: call.name.clone(), id: call.id.clone(), content });
            if is_done {
                break;
            }
        }
        let counts = [("tools/calls", calls.len() as f64), ("tools/failures", failures)];
        let metrics: BTreeMap<String, f64> = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        Ok(Observation { replies, reward, is_done, metrics })
    }
}

impl Episode for OpenEnvEpisode {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        let text = turn.content.trim();
        let reply =
            |what: String| Ok(Observation { replies: vec![Reply::User { content: what }], ..Observation::default() });
        let action = match &self.action {
            Action::Calls => return self.call(&turn.calls),
            Action::Field(name, FieldType::Text) => json!({ name.as_str(): text }),
            Action::Field(name, kind) => match number_in(text, *kind) {
                Some(number) => json!({ name.as_str(): number }),
                None => return reply("Answer with a number.".to_owned()),
            },
            Action::Json => match object_in(text) {
                Some(object) => object,
                None => return reply("Answer with an action as a JSON object.".to_owned()),
            },
        };
        let stepped = self.stepped(&action)?;
        let content = shown(&stepped.observation, self.field.as_deref())?;
        let replies = if stepped.is_done || content.is_empty() { Vec::new() } else { vec![Reply::User { content }] };
        let is_done = stepped.is_done || replies.is_empty();
        Ok(Observation { replies, reward: stepped.reward, is_done, metrics: BTreeMap::new() })
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        self.connection.close();
        Ok(None)
    }
}

/// Returns the result of a tool as text.
fn result_of(observation: &Value) -> String {
    let result = observation.get("result").unwrap_or(&Value::Null);
    // FastMCP wraps results in `data`.
    let data = result.get("data").filter(|data| !data.is_null()).unwrap_or(result);
    match data {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the last number in a text.
fn number_in(text: &str, kind: FieldType) -> Option<Value> {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '.');
    let words = text.split(|c| !is_part(c)).map(|word| word.trim_end_matches(['.', '-']));
    let mut numbers = words.filter(|word| !word.is_empty());
    match kind {
        FieldType::Integer => numbers.rfind(|word| word.parse::<i64>().is_ok())?.parse::<i64>().ok().map(Value::from),
        _ => numbers.rfind(|word| word.parse::<f64>().is_ok())?.parse::<f64>().ok().map(Value::from),
    }
}

/// Returns the last JSON object in a text.
fn object_in(text: &str) -> Option<Value> {
    let end = text.rfind('}')? + 1;
    let starts = text[..end].match_indices('{').map(|(at, _)| at);
    // The outermost object that parses: the first start from which the rest is JSON.
    starts.take(64).find_map(|start| serde_json::from_str(&text[start..end]).ok())
}

/// Returns the part of an observation that the policy reads.
fn shown(observation: &Value, field: Option<&str>) -> Result<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let Value::Object(fields) = observation else { return Ok(text(observation)) };
    if let Some(name) = field {
        return match fields.get(name) {
            Some(value) => Ok(text(value)),
            None => {
                let names: Vec<String> = fields.keys().map(|name| format!("`{name}`")).collect();
                Err(Error::episode(format!("the observation has no field `{name}`; it has {}", names.join(", ")))
                    .with_hint("`observation` names the field that the policy reads"))
            }
        };
    }
    let mut fields = fields.clone();
    fields.retain(|name, value| ![METADATA, "done", "reward"].contains(&name.as_str()) && !value.is_null());
    let mut texts = fields.values().filter_map(Value::as_str);
    match (texts.next(), texts.next()) {
        (Some(only), None) => Ok(only.to_owned()),
        _ if fields.is_empty() => Ok(String::new()),
        _ => Ok(Value::Object(fields).to_string()),
    }
}

fn unexpected(key: &str, expected: &str, found: &Value) -> Error {
    let found = found.to_string();
    Error::episode(format!("the environment's `{key}` is `{}`, expected {expected}", excerpt(&found)))
}

fn excerpt(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

/// A stream whose reads and writes stop at a deadline, however slowly bytes arrive.
struct DeadlineStream {
    stream: TcpStream,
    deadline: Deadline,
}

#[derive(Clone)]
struct Deadline(Arc<Mutex<Instant>>);

impl Deadline {
    fn set(&self, at: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Time left until the deadline.
    fn left(&self) -> std::io::Result<Duration> {
        let at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(self.deadline.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.left()?))?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// One connection to the server.
struct Connection {
    socket: WebSocket<MaybeTlsStream<DeadlineStream>>,
    deadline: Deadline,
    timeout: Duration,
    url: String,
}

impl Connection {
    fn open(address: &Address, timeout_s: f64) -> Result<Self> {
        let timeout = Duration::from_secs_f64(timeout_s);
        let url = address.websocket.clone();
        let failed = |what: String| {
            Error::episode(format!("the environment at {url} cannot be reached: {what}"))
                .with_hint("does the server run, and is `url` its address?")
        };
        let mut places = address.host.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let place = places.next().ok_or_else(|| failed("the host has no address".to_owned()))?;
        let stream = TcpStream::connect_timeout(&place, timeout).map_err(|error| failed(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
        let deadline = Deadline(Arc::new(Mutex::new(Instant::now() + timeout)));
        let stream = DeadlineStream { stream, deadline: deadline.clone() };
        let config =
            WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES)).max_frame_size(Some(MESSAGE_BYTES));
        let (socket, _) = tungstenite::client_tls_with_config(url.as_str(), stream, Some(config), None)
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { socket, deadline, timeout, url })
    }

    /// Sends a message and reads the data of the answer, which must have the `expected` type.
    fn request(&mut self, message: &Value, expected: &str) -> Result<Map<String, Value>> {
        self.deadline.set(Instant::now() + self.timeout);
        self.socket.send(Message::text(message.to_string())).map_err(|error| self.lost(&error))?;
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) => return read(&text, expected),
                Ok(Message::Close(frame)) => {
                    let why = frame.map_or_else(|| "it was closed".to_owned(), |frame| frame.to_string());
                    return Err(Error::episode(format!("the connection to {} was lost: {why}", self.url)));
                }
                Ok(_) => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
    }

    fn lost(&self, error: &tungstenite::Error) -> Error {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        match error {
            tungstenite::Error::Io(error) if matches!(error.kind(), WouldBlock | TimedOut) => {
                let message = format!("the environment did not answer within {} s", self.timeout.as_secs_f64());
                Error::episode(message).with_hint("if it needs more time, raise `environment.openenv.timeout_s`")
            }
            error => Error::episode(format!("the connection to {} was lost: {error}", self.url)),
        }
    }

    /// Returns the tools of a server. A server without support for tools has none.
    fn tools(&mut self) -> Result<Vec<Tool>> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
        let answer = match self.request(&json!({ "type": "mcp", "data": request }), "mcp") {
            Ok(answer) => answer,
            // This error does not mean that the message type is unknown.
            Err(error) if error.to_string().contains("(CAPACITY_REACHED)") => return Err(error),
            Err(Error::Episode { message, .. }) if message.starts_with("the environment reports") => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let listed = answer.get("result").and_then(|result| result.get("tools")).and_then(Value::as_array);
        let read = |tool: &Value| {
            let text = |key: &str| tool.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let parameters = tool.get("inputSchema").or(tool.get("input_schema")).cloned();
            let parameters = parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
            Tool { name: text("name"), description: text("description"), parameters, returns: None }
        };
        Ok(listed.map_or_else(Vec::new, |tools| tools.iter().map(read).collect()))
    }

    /// Sends a close message. Errors are ignored, because the server may have ended.
    fn close(&mut self) {
        self.deadline.set(Instant::now() + self.timeout);
        let _ = self.socket.send(Message::text(json!({ "type": "close" }).to_string()));
        let _ = self.socket.close(None);
    }
}

/// Reads the data of an answer of the `expected` type.
fn read(text: &str, expected: &str) -> Result<Map<String, Value>> {
    let no_answer =
        |why: String| Error::episode(format!("the environment sent an invalid answer: {why} (`{}`)", excerpt(text)));
    let mut answer = match serde_json::from_str(text) {
        Ok(Value::Object(answer)) => answer,
        Ok(_) => return Err(no_answer("it is not an object".to_owned())),
        Err(error) => return Err(no_answer(format!("it is not JSON: {error}"))),
    };
    let kind = answer.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let data = match answer.remove("data") {
        Some(Value::Object(data)) => data,
        _ => return Err(no_answer("it has no `data`".to_owned())),
    };
    if kind == "error" {
        let part = |key: &str| data.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
        let error = Error::episode(format!(
            "the environment reports: {} ({})",
            excerpt(&part("message")),
            excerpt(&part("code"))
        ));
        return Err(match part("code").as_str() {
            "CAPACITY_REACHED" => error.with_hint(
                "each episode needs its own session: raise the server's `max_concurrent_envs` to the episodes of a step",
            ),
            _ => error,
        });
    }
    if kind != expected {
        return Err(no_answer(format!("its type is `{}`, expected `{expected}`", excerpt(&kind))));
    }
    Ok(data)
}

#[cfg(test)]
mod tests;
