//! HTTP services that answer one JSON question per request. The client limits the rate, sends several requests at a time, retries if that
//! may help, and stops when the user interrupts.
//!
//! The callers define requests and read the answers: toxicity scorers (`toxicity`) and judges (`reward::JudgeReward`).

pub mod ledger;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::Agent;

use crate::error::{Error, Result, excerpt};
use crate::process::Interrupt;

/// Error of a question without an answer: the service failed, or no request was allowed.
pub use crate::error::Failure as ServiceError;

/// Maximum size of an answer, in bytes.
const ANSWER_BYTES: u64 = 1 << 20;

/// Maximum number of characters of a service's error that a message quotes.
const MAX_MESSAGE_CHARS: usize = 240;

/// Longest wait that a service may request.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// How often a waiting thread checks for the user's interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Position of the key in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPlace {
    /// `?key=KEY`.
    Query,
    /// `Authorization: Bearer KEY`.
    Bearer,
}

/// A service, and the limits on its use.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// URL for POST requests.
    pub url: String,
    /// Environment variable that holds the key; `None` for a service without a key.
    pub key_variable: Option<String>,
    /// Position of the key.
    pub key_place: KeyPlace,
    /// Maximum number of requests per second, over all connections.
    pub requests_per_second: f64,
    /// Maximum number of concurrent requests.
    pub connections: usize,
    /// Maximum number of retries of a question.
    pub retries: usize,
    /// Time limit of a request, in seconds.
    pub timeout_s: f64,
}

/// Result of one request.
pub enum Reply<T> {
    /// The answer.
    Answer(T),
    /// A temporary failure. The delay is the earliest time for a retry, if the service states one.
    Later(String, Option<Duration>),
    /// An answer that the caller cannot use. The question is sent again.
    Unusable {
        /// The problem.
        message: String,
        /// Advice for the case that all answers are unusable.
        hint: &'static str,
    },
    /// A permanent failure, with the message of the service. The caller shortens long messages.
    Never(String),
}

/// A request without an answer.
struct NoReply {
    message: String,
    hint: &'static str,
}

/// Client of a service that keeps to its rate limit.
pub struct Client {
    endpoint: Endpoint,
    key: Option<String>,
    agent: Agent,
    /// Earliest time of the next request.
    next: Mutex<Instant>,
    interrupt: Interrupt,
}

impl Client {
    /// Creates a client of `endpoint`. An `interrupt` ends every wait.
    ///
    /// # Errors
    /// [`Error::Input`] if the environment variable of the key is not set.
    #[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
    pub fn new(endpoint: Endpoint, interrupt: &Interrupt) -> Result<Self> {
        let key = |variable: &String| {
            std::env::var(variable).ok().filter(|key| !key.trim().is_empty()).ok_or_else(|| {
                let message = format!("the environment variable `{variable}` holds no key for {}", endpoint.url);
                Error::input(message).with_hint(format!(
                    "set `{variable}` to the service's key; leave `key_variable` out for a service without one"
                ))
            })
        };
        let key = endpoint.key_variable.as_ref().map(key).transpose()?;
        let agent = Agent::config_builder()
            .timeout_global(Some(Duration::from_secs_f64(endpoint.timeout_s)))
            .http_status_as_error(false)
            // No redirects: the key must go to the configured URL only.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .build()
            .new_agent();
        Ok(Self { endpoint, key, agent, next: Mutex::new(Instant::now()), interrupt: interrupt.clone() })
    }

    /// The service.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Posts `body`, with retries if they may help. `read` converts the status and the JSON of each answer.
    ///
    /// # Errors
    /// If the service refuses, fails more often than the number of retries, or the user interrupts.
    pub fn request<T>(&self, body: &Value, read: &dyn Fn(u16, &Value) -> Reply<T>) -> Result<T, ServiceError> {
        let mut retries = 0;
        loop {
            self.wait_turn()?;
            let (message, wait, hint) = match self.once(body, read) {
                Ok(Reply::Answer(answer)) => return Ok(answer),
                Ok(Reply::Never(message)) => {
                    // The key is removed first, because shortening could leave a part of it.
                    let reason = excerpt(&self.without_key(&message), MAX_MESSAGE_CHARS);
                    let message = format!("{}: {reason}", self.endpoint.url);
                    let hint = match self.endpoint.key_variable.as_ref() {
                        Some(variable) => format!("is the key in `{variable}` right, and the `url`?"),
                        None => "is the `url` right? A service with a key needs `key_variable`".into(),
                    };
                    return Err(ServiceError::new(message).with_hint(hint));
                }
                Ok(Reply::Later(message, wait)) => (message, wait, "lower `requests_per_second`, or raise `retries`"),
                Ok(Reply::Unusable { message, hint }) => (message, None, hint),
                Err(NoReply { message, hint }) => (message, None, hint),
            };
            if retries == self.endpoint.retries {
                let message = format!("{}: {message}, {} times in a row", self.endpoint.url, retries + 1);
                let hint = format!("{hint}; recorded answers are not requested again");
                return Err(ServiceError::new(message).with_hint(hint));
            }
            let wait = wait.unwrap_or(Duration::from_secs(1 << retries.min(8))).min(LONGEST_WAIT);
            self.wait(Instant::now() + wait)?;
            retries += 1;
        }
    }

    /// Calls `request` for each of `questions`, several at a time. After a failure no further questions are asked.
    ///
    /// The answers are in the order of the questions.
    pub fn each<Q: Sync, T: Send>(
        &self,
        questions: &[Q],
        request: impl Fn(&Q) -> Result<T, ServiceError> + Sync,
    ) -> Vec<Result<T, ServiceError>> {
        let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let answers: Vec<Mutex<Option<_>>> = questions.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while !has_failed.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(question) = questions.get(at) else { return };
                let answer = request(question);
                has_failed.fetch_or(answer.is_err(), Ordering::Relaxed);
                *answers[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.endpoint.connections.min(questions.len()) {
                scope.spawn(work);
            }
        });
        let not_requested = || match self.interrupt.is_raised() {
            true => Err(ServiceError::interrupted()),
            false => Err(ServiceError::new(format!("{}: not requested after another text failed", self.endpoint.url))),
        };
        let answer = |answer: Mutex<Option<_>>| {
            answer.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or_else(not_requested)
        };
        answers.into_iter().map(answer).collect()
    }

    /// Waits until `end`, or until the user interrupts.
    fn wait(&self, end: Instant) -> Result<(), ServiceError> {
        loop {
            if self.interrupt.is_raised() {
                return Err(ServiceError::interrupted());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Waits until the rate limit allows a request.
    fn wait_turn(&self) -> Result<(), ServiceError> {
        let interval = Duration::from_secs_f64(1.0 / self.endpoint.requests_per_second);
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(Instant::now());
            *next = turn + interval;
            turn
        };
        self.wait(turn)
    }

    /// Sends one request. A connection without an answer is an error.
    fn once<T>(&self, body: &Value, read: &dyn Fn(u16, &Value) -> Reply<T>) -> Result<Reply<T>, NoReply> {
        let mut request = self.agent.post(&self.endpoint.url).content_type("application/json");
        if let Some(key) = &self.key {
            request = match self.endpoint.key_place {
                KeyPlace::Query => request.query("key", key),
                KeyPlace::Bearer => request.header("Authorization", format!("Bearer {key}")),
            };
        }
        let mut response = request.send(body.to_string()).map_err(|error| self.no_reply(&error))?;
        let status = response.status().as_u16();
        let seconds = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let answer = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string();
        let answer = answer.map_err(|error| self.no_reply(&error))?;
        let answer: Value = serde_json::from_str(&answer).unwrap_or(Value::String(answer));
        Ok(match status {
            429 | 500..=599 => Reply::Later(format!("it answered {status}"), seconds.map(Duration::from_secs)),
            status => read(status, &answer),
        })
    }

    fn no_reply(&self, error: &ureq::Error) -> NoReply {
        match error {
            ureq::Error::Timeout(_) => NoReply {
                message: format!("it did not answer within {} s", self.endpoint.timeout_s),
                hint: "raise `timeout_s` if it needs more time, or lower `connections`",
            },
            error => {
                NoReply { message: self.without_key(&error.to_string()), hint: "does the service run at this `url`?" }
            }
        }
    }

    /// Removes the key from a message, in plain form and in URLs.
    fn without_key(&self, message: &str) -> String {
        const BEFORE: &str = "key=";
        let Some(key) = &self.key else { return message.to_owned() };
        let mut text = message.replace(key.as_str(), "…");
        let mut from = 0;
        while let Some(at) = text[from..].find(BEFORE) {
            let start = from + at + BEFORE.len();
            let ends = |c: char| c.is_whitespace() || "&\"'<>,;)\\".contains(c);
            let end = text[start..].find(ends).map_or(text.len(), |length| start + length);
            text.replace_range(start..end, "…");
            from = start + "…".len();
        }
        text
    }
}

/// Message for a request that a service has refused.
pub fn refusal(status: u16, answer: &Value) -> String {
    let reason = answer["error"]["message"].as_str().map_or_else(|| answer.to_string(), str::to_owned);
    format!("it answered {status}: {reason}")
}
