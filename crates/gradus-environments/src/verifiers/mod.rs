//! Environment servers of `verifiers` (<https://github.com/PrimeIntellect-ai/verifiers>, version 0.4).
//!
//! Such a server plays a whole episode and requests the turns of the policy from an endpoint. This process is the endpoint: a request under
//! the name of an episode contains the next prompt of that episode. So turns are sampled in the usual way, and the server receives the
//! sampled ids. It writes all other ids itself.

mod endpoint;
mod hub;
mod loose;
#[cfg(test)]
mod tests;
mod zmtp;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, SampledTurn, Start, Turn};
use crate::error::{Error, Result};
use crate::timeout;
use crate::tool::Tool;
use endpoint::TurnRequest;
use hub::{EpisodeChannel, Event, Hub, ReceiveError};

/// Maximum number of traces per episode; each agent has one.
const TRACES_MAX: usize = 1024;

/// Name of the policy at the endpoint.
const MODEL: &str = "policy";

/// Variable for the endpoint's key. The endpoint needs none.
const NO_KEY: &str = "GRADUS_NO_KEY";

/// A server, and the way it writes conversations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VerifiersConfig {
    /// The address of the server: `tcp://HOST:PORT`.
    pub address: String,
    /// The tokenizer that the server writes conversations with: a model directory on the server, or a hub name. It must be the policy's
    /// tokenizer.
    pub tokenizer: String,
    /// The renderer that writes conversations, such as `qwen3`. Default: the renderer for the tokenizer's name, else the chat template.
    #[serde(default)]
    pub renderer: Option<String>,
    /// The data column with the task in the taskset's format. Default: the row itself is the task.
    #[serde(default)]
    pub column: Option<String>,
    /// The address at which this process listens. Default `127.0.0.1`.
    #[serde(default = "here")]
    pub listen: String,
    /// The name or address at which the server reaches this machine. Default: the value of `listen`.
    #[serde(default)]
    pub reached_at: Option<String>,
    /// Declare that the same turns always give the same answers. Default false.
    #[serde(default)]
    pub deterministic: bool,
    /// The time limit of one answer, in seconds. Default 60.
    #[serde(default = "timeout::default_s")]
    pub timeout_s: f64,
}

fn here() -> String {
    "127.0.0.1".into()
}

/// A `verifiers` server as an environment.
pub struct Verifiers {
    config: VerifiersConfig,
    hub: Arc<Hub>,
    timeout: Duration,
}

impl Verifiers {
    /// Connects to the server.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if a key is out of range, or the server does not answer.
    pub fn connect(config: &VerifiersConfig) -> Result<Self> {
        timeout::check(config.timeout_s)?;
        let timeout = Duration::from_secs_f64(config.timeout_s);
        if config.tokenizer.trim().is_empty() {
            return Err(Error::config("the `tokenizer` of the environment is empty")
                .with_hint("set it to the policy's model directory, or its name on the hub"));
        }
        let hub = Hub::new(&config.address, &config.listen, config.reached_at.as_deref(), timeout)?;
        let channel = hub.channel();
        let unreachable = |error: Error| {
            Error::config(error.to_string())
                .with_hint("start it: `python -m verifiers.v1.serve`, or `serve_env` in Python")
        };
        hub.send(&channel.name, "health", &json!({})).map_err(unreachable)?;
        match channel.next(Instant::now() + timeout) {
            Ok(Event::Reply(reply)) if reply["success"] == json!(true) => {}
            Ok(event) => {
                let message = format!("the environment server {} is not healthy: {event:?}", config.address);
                return Err(unreachable(Error::config(message)));
            }
            Err(ReceiveError::Late) => {
                let message = format!(
                    "the environment server {} did not answer within {} s (`environment.verifiers.timeout_s`)",
                    config.address, config.timeout_s
                );
                return Err(unreachable(Error::config(message)));
            }
            Err(silence @ ReceiveError::Flooded) => {
                let message = format!("the environment server {} cannot be used: {silence}", config.address);
                return Err(unreachable(Error::config(message)));
            }
        }
        drop(channel);
        Ok(Self { config: config.clone(), hub, timeout })
    }

    /// Returns the task of a row.
    fn task<'r>(&self, row: &'r Map<String, Value>) -> Result<&'r Map<String, Value>> {
        let Some(column) = &self.config.column else { return Ok(row) };
        row.get(column).and_then(Value::as_object).ok_or_else(|| {
            Error::episode(format!("the row has no task: its column `{column}` holds no object"))
                .with_hint("write `task.data.model_dump(mode=\"json\")` of each task into it")
        })
    }
}

impl Environment for Verifiers {
    fn tools(&self) -> &[Tool] {
        // The server shows its tools itself.
        &[]
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        let channel = self.hub.channel();
        let mut client = json!({
            "type": "train",
            "base_url": self.hub.url(&channel.name),
            "api_key_var": NO_KEY,
            "renderer_model_name": self.config.tokenizer,
        });
        if let Some(renderer) = &self.config.renderer {
            client["renderer"] = json!({ "name": renderer });
        }
        let task = self.task(&start.row)?;
        let run = json!({ "task_data": task, "client": client, "model": MODEL, "sampling": {} });
        self.hub.send(&channel.name, "run", &run)?;
        let mut episode = Served {
            hub: Arc::clone(&self.hub),
            channel,
            timeout: self.timeout,
            ids: Vec::new(),
            request: None,
            answered: None,
            traces: HashMap::new(),
            is_over: false,
        };
        match episode.wait()? {
            Next::TurnRequest(request) => {
                episode.ids.clone_from(&request.ids);
                episode.request = Some(request);
            }
            Next::Over(observation) => {
                let reward = observation.reward.map_or("none".into(), |reward| reward.to_string());
                let message =
                    format!("the server ended the episode before the policy wrote anything (reward {reward})");
                return Err(Error::episode(message));
            }
        }
        Ok(NewEpisode { episode: Box::new(episode), opening: None })
    }

    fn is_deterministic(&self) -> bool {
        self.config.deterministic
    }

    fn writes_prompts(&self) -> bool {
        true
    }
}

/// An episode that a server plays.
struct Served {
    hub: Arc<Hub>,
    channel: EpisodeChannel,
    timeout: Duration,
    /// All ids so far.
    ids: Vec<u32>,
    /// The pending request for a turn.
    request: Option<TurnRequest>,
    /// Last request and its answer. A client that lost the answer requests it again.
    answered: Option<(Vec<u32>, Value)>,
    /// Traces received so far.
    traces: HashMap<String, Map<String, Value>>,
    is_over: bool,
}

/// Result of a wait.
enum Next {
    TurnRequest(TurnRequest),
    Over(Observation),
}

impl Served {
    /// Waits until the server requests a turn, or the episode is over.
    fn wait(&mut self) -> Result<Next> {
        let end = Instant::now() + self.timeout;
        loop {
            match self.channel.next(end) {
                Ok(Event::TurnRequest(request)) => match &self.answered {
                    Some((ids, answer)) if *ids == request.ids => drop(request.answer.send(answer.clone())),
                    _ => return Ok(Next::TurnRequest(request)),
                },
                Ok(Event::Delta(delta)) => self.on_delta(&delta)?,
                Ok(Event::Reply(reply)) => {
                    self.is_over = true;
                    return self.outcome(&reply).map(Next::Over);
                }
                Ok(Event::Gone(message)) => {
                    self.is_over = true;
                    return Err(Error::episode(format!("the environment server was lost: {message}")));
                }
                Err(ReceiveError::Late) => {
                    let message =
                        format!("no answer of the environment server within {} s", self.timeout.as_secs_f64());
                    return Err(Error::episode(message).with_hint("`environment.verifiers.timeout_s` sets the limit"));
                }
                Err(flooded) => return Err(Error::episode(format!("the environment server failed: {flooded}"))),
            }
        }
    }

    /// Applies an addition to a trace.
    fn on_delta(&mut self, delta: &Value) -> Result<()> {
        let Some(id) = delta["trace"].as_str() else { return Ok(()) };
        if delta["discard"] == json!(true) {
            self.traces.remove(id);
            return Ok(());
        }
        if self.traces.len() == TRACES_MAX && !self.traces.contains_key(id) {
            return Err(Error::episode(format!(
                "the environment server has more than {TRACES_MAX} traces of an episode"
            )));
        }
        let trace = self.traces.entry(id.to_owned()).or_default();
        for name in ["rewards", "metrics", "agent"] {
            if let Some(value) = delta["set"].get(name) {
                trace.insert(name.into(), value.clone());
            }
        }
        if let Some(error) = delta["errors"].as_array().and_then(|errors| errors.last()) {
            trace.insert("error".into(), error.clone());
        }
        Ok(())
    }

    /// Computes the reward and the metrics of the episode.
    fn outcome(&self, reply: &Value) -> Result<Observation> {
        let described = |error: &Value| {
            let [kind, message] = ["type", "message"].map(|key| error[key].as_str().unwrap_or("unknown"));
            format!("{kind}: {message}")
        };
        if reply["success"] != json!(true) {
            let message = reply["error"].as_str().unwrap_or("it gives no reason");
            return Err(Error::episode(format!("the environment server failed: {message}")));
        }
        let traces: Vec<&Map<String, Value>> = reply["traces"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|trace| self.traces.get(trace["id"].as_str()?))
            .collect();
        if reply["head"]["ok"] == json!(false) {
            let of_head = reply["head"]["errors"].as_array().and_then(|errors| errors.last());
            let error = of_head.or_else(|| traces.iter().find_map(|trace| trace.get("error")));
            let message = error.map_or("it gives no reason".into(), described);
            return Err(Error::episode(format!("the environment server failed: {message}")));
        }
        let is_trained =
            |trace: &&&Map<String, Value>| trace.get("agent").is_none_or(|agent| agent["trainable"] != json!(false));
        let (mut reward, mut metrics) = (None, BTreeMap::new());
        for trace in traces.iter().filter(is_trained) {
            for (name, given) in trace.get("rewards").and_then(Value::as_object).into_iter().flatten() {
                let Some(score) = given["score"].as_f64() else {
                    return Err(Error::episode(format!("the reward `{name}` is {}, not a number", given["score"])));
                };
                *reward.get_or_insert(0.0) += score * given["weight"].as_f64().unwrap_or(1.0);
                metrics.insert(name.clone(), score);
            }
            let named = trace.get("metrics").and_then(Value::as_object).into_iter().flatten();
            metrics.extend(named.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))));
        }
        if let Some(reward) = reward.filter(|reward| !reward.is_finite()) {
            return Err(Error::episode(format!("the sum of the rewards is {reward}, not a finite number")));
        }
        Ok(Observation { replies: Vec::new(), reward, is_done: true, metrics })
    }
}

impl Episode for Served {
    fn step(&mut self, _turn: &Turn) -> Result<Observation> {
        Err(Error::episode("an environment server needs the ids of a turn, not only its text"))
    }

    fn step_sampled(&mut self, _turn: &Turn, drawn: &SampledTurn) -> Result<Observation> {
        let Some(request) = self.request.take() else { return Err(Error::episode("the server expects no turn")) };
        let answer = endpoint::continuation(&drawn.ids, &drawn.logprobs, drawn.is_cut);
        self.ids.extend(&drawn.ids);
        // The client may have disconnected. Then it requests the answer again.
        let _ = request.answer.send(answer.clone());
        self.answered = Some((request.ids, answer));
        match self.wait()? {
            Next::Over(observation) => Ok(observation),
            Next::TurnRequest(request) => {
                let Some(ids) =
                    request.ids.strip_prefix(&self.ids[..]).filter(|ids| !ids.is_empty()).map(<[u32]>::to_vec)
                else {
                    let same = request.ids.iter().zip(&self.ids).take_while(|(one, other)| one == other).count();
                    let message = format!(
                        "the server rewrote the conversation: of {} ids that the policy wrote and read, {same} are unchanged",
                        self.ids.len()
                    );
                    return Err(Error::episode(message).with_hint(
                        "set the `renderer` of the model's family, which only appends; gradus cannot train on episodes with missing text",
                    ));
                };
                self.ids.clone_from(&request.ids);
                self.request = Some(request);
                let replies = vec![Reply::Tokens { ids, content: String::new() }];
                Ok(Observation { replies, ..Observation::default() })
            }
        }
    }

    fn prompt_ids(&self) -> Option<&[u32]> {
        Some(&self.ids)
    }

    fn takes_cut_turns(&self) -> bool {
        true
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !self.is_over {
            self.hub.cancel(&self.channel.name);
        }
    }
}
