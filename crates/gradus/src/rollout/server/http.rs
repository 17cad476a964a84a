//! HTTP requests to the server, and the failures of answers.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

use super::{Endpoint, has_user, key_hint};
use crate::error::{Error, Result, excerpt};

/// Maximum number of characters of a refusal that a message quotes.
const MAX_REASON_CHARS: usize = 400;

/// Reason why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server is unreachable or busy, or broke off: a later attempt may work.
    Later(Delay),
    /// The server does not have the weights (any more).
    Lost(String),
    /// The request will never work.
    Never(Error),
}

/// Why a request is repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Delay {
    /// No whole answer arrived, with the reason.
    Silence(String),
    /// The server answered that it cannot serve the request, or broke off its work.
    Refusal {
        /// Status of the answer.
        status: u16,
        /// Reason of the server.
        message: String,
    },
}

impl Delay {
    /// Returns the reason.
    pub fn message(&self) -> &str {
        match self {
            Self::Silence(message) | Self::Refusal { message, .. } => message,
        }
    }

    /// Describes the server after it has been in this state for the time `waited`: `has not answered for 3 s: REASON`.
    pub fn lasting(&self, waited: Duration) -> String {
        let what = match self {
            Self::Silence(_) => "has not answered",
            Self::Refusal { .. } => "has answered with an error",
        };
        format!("{what} for {} s: {}", waited.as_secs(), self.message())
    }

    /// The same about a time that is over.
    pub fn over(&self, waited: Duration) -> String {
        let what = match self {
            Self::Silence(_) => "did not answer",
            Self::Refusal { .. } => "answered with an error",
        };
        format!("{what} for {} s: {}", waited.as_secs(), self.message())
    }
}

/// HTTP connection to a server.
pub(super) struct Http {
    agent: Agent,
    url: String,
    key: Option<String>,
    /// Configuration keys of the server.
    keys: &'static str,
}

impl Http {
    pub fn new(options: &Endpoint) -> Result<Self> {
        let url = options.url.trim_end_matches('/').to_owned();
        if has_user(&url) {
            return Err(Error::input("the address of the server has a name or a key before an `@`")
                .with_hint(key_hint(options.keys)));
        }
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Error::input(format!("the address of the server is `{url}`"))
                .with_hint("it begins with `http://` or `https://`, such as http://localhost:8000"));
        }
        let agent = Agent::config_builder()
            .timeout_global(Some(options.timeout))
            .timeout_connect(Some(options.timeout.min(Duration::from_secs(10))))
            .http_status_as_error(false)
            // Redirects must not carry the API key elsewhere.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .build()
            .new_agent();
        Ok(Self { agent, url, key: options.key.clone(), keys: options.keys })
    }

    /// Returns the address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the configuration keys of the server.
    pub fn keys(&self) -> &'static str {
        self.keys
    }

    /// Sends a GET request to `path` and returns the answer, of at most `limit` bytes; null if it is empty.
    pub fn get(&self, path: &str, limit: u64) -> Result<Value, Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.read(path, request.call(), limit)
    }

    /// Posts `body` to `path` and returns the answer, of at most `limit` bytes; null if it is empty.
    pub fn post(&self, path: &str, body: &Value, limit: u64) -> Result<Value, Failure> {
        let mut request = self.agent.post(format!("{}{path}", self.url)).content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.read(path, request.send(body.to_string()), limit)
    }

    fn read(
        &self,
        path: &str,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
        limit: u64,
    ) -> Result<Value, Failure> {
        let failed = |error: &ureq::Error| Failure::Later(Delay::Silence(self.without_key(&error.to_string())));
        let mut response = response.map_err(|error| failed(&error))?;
        let status = response.status().as_u16();
        let text = match response.body_mut().with_config().limit(limit).read_to_string() {
            Ok(text) => text,
            Err(ureq::Error::BodyExceedsLimit(_)) => {
                let message = format!("the answer has more than {limit} bytes");
                return Err(Failure::Never(self.wrong(path, &message)));
            }
            Err(error) => return Err(failed(&error)),
        };
        let parsed = serde_json::from_str::<Value>(&text);
        match status {
            200..=299 if text.trim().is_empty() => Ok(Value::Null),
            200..=299 => match parsed {
                Ok(parsed) => Ok(parsed),
                // Some answers of vLLM are plain text.
                Err(_) if !text.trim_start().starts_with(['{', '[']) => Ok(Value::String(text)),
                Err(error) => {
                    let message = format!("the answer is not JSON: {error} (`{}`)", excerpt(&text, MAX_REASON_CHARS));
                    Err(Failure::Never(self.wrong(path, &message)))
                }
            },
            // 408: a proxy or the server waited too long.
            408 | 429 | 500..=599 => {
                let message = format!("{path} answered {status}: {}", self.reason(&text));
                Err(Failure::Later(Delay::Refusal { status, message }))
            }
            404 => Err(Failure::Lost(format!("{path} answered 404: {}", self.reason(&text)))),
            401 | 403 => {
                let message = format!("it answered {status}: {}", self.reason(&text));
                let hint = match self.key {
                    Some(_) => format!("is the key in `{}.key_variable` right?", self.keys),
                    None => key_hint(self.keys),
                };
                Err(Failure::Never(self.wrong(path, &message).with_hint(hint)))
            }
            status => {
                let message = format!("it answered {status}: {}", self.reason(&text));
                Err(Failure::Never(self.wrong(path, &message)))
            }
        }
    }

    /// Extracts the reason from a refusal.
    fn reason(&self, text: &str) -> String {
        let parsed = serde_json::from_str::<Value>(text).unwrap_or_default();
        let at = |pointer: &str| parsed.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let reason = ["/error/message", "/message", "/error_message", "/error", "/detail"].into_iter().find_map(at);
        excerpt(&self.without_key(reason.as_deref().unwrap_or(text).trim()), MAX_REASON_CHARS)
    }

    /// Converts a fault of the server to an error.
    pub fn wrong(&self, path: &str, message: &str) -> Error {
        let what = format!("the server {}{path}", self.url);
        Error::Network { what, message: message.to_owned(), hint: None }
    }

    fn without_key(&self, text: &str) -> String {
        match &self.key {
            Some(key) => text.replace(key.as_str(), "…"),
            None => text.to_owned(),
        }
    }
}
