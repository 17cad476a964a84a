//! An MCP server over streamable HTTP: each message is a POST, and its answer is JSON or a stream of events.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use ureq::http::{HeaderName, HeaderValue, Response as HttpResponse, StatusCode};
use ureq::{Agent, Body};

use super::McpConfig;
use super::message::{self, Response};
use crate::error::{Error, Result};
use crate::peer::{LineMeaning, excerpt};
use crate::process::LINE_BYTES;
use crate::restartable::Restartable;

/// Maximum size of one answer in bytes, including other messages in its stream.
const STREAM_BYTES: u64 = 16 << 20;

/// Maximum number of requests of the server that are answered within one answer's stream.
const REQUESTS: usize = 16;

/// Characters of a rejection that an error message quotes.
const QUOTED: usize = 240;

/// Time limit for ending a session.
const GOODBYE: Duration = Duration::from_secs(2);

const SESSION: &str = "mcp-session-id";

/// Statuses with which servers refuse a call. Other statuses concern the key, the session or the load of the server.
const REFUSALS: [StatusCode; 3] =
    [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY, StatusCode::INTERNAL_SERVER_ERROR];

/// Error codes of a server that does not have the session, if the status is 400: an invalid request, and the server's own codes.
const NO_SESSION: [RangeInclusive<i64>; 2] = [-32600..=-32600, -32099..=-32000];

/// Address of a server, and the session with it.
pub(super) struct Http {
    agent: Agent,
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    key: Option<String>,
    timeout: Duration,
    /// Open session; empty before the first request, and after the server has dropped the session.
    session: Restartable<Arc<Session>>,
    number: AtomicU64,
}

/// Result of the first exchange.
struct Session {
    /// Session id, or `None` for a server without sessions.
    id: Option<String>,
    version: String,
}

/// An answer with an unsuccessful status.
struct Refusal {
    status: StatusCode,
    /// The address that a redirection names.
    place: Option<String>,
    text: String,
}

impl Refusal {
    fn read(http: &Http, response: HttpResponse<Body>) -> Self {
        let status = response.status();
        let place = response.headers().get("location").and_then(|place| place.to_str().ok()).map(str::to_owned);
        Self { status, place, text: http.bounded(response.into_body()).unwrap_or_default() }
    }
}

/// Result of a POST.
enum Posted {
    Answer(Map<String, Value>),
    /// The server does not have the session.
    Forgotten(Error),
}

impl Http {
    pub fn new(config: &McpConfig, url: &str) -> Result<Self> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Error::config(format!("the `url` of the MCP server is `{url}`"))
                .with_hint("it begins with `http://` or `https://`, such as http://localhost:8000/mcp"));
        }
        let header = |name: &str, value: &str| {
            let read = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value));
            match read {
                (Ok(name), Ok(value)) => Ok((name, value)),
                _ => Err(Error::config(format!("the header `{name}` of the MCP server cannot be sent"))
                    .with_hint("names are letters, digits and `-`; values have no line breaks")),
            }
        };
        let mut headers = Vec::new();
        for (name, value) in &config.headers {
            headers.push(header(name, value)?);
        }
        let mut key = None;
        if let Some(variable) = &config.key_variable {
            #[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
            let found = std::env::var(variable).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
            let Some(found) = found else {
                let message = format!("the environment variable `{variable}` holds no key for {url}");
                return Err(Error::config(message)
                    .with_hint(format!("set `{variable}`; leave `key_variable` out for a server without a key")));
            };
            headers.push(header("authorization", &format!("Bearer {found}"))?);
            key = Some(found);
        }
        let timeout = Duration::from_secs_f64(config.timeout_s);
        let agent = Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            // Redirects are not followed, so that the key reaches only the configured address.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .build()
            .new_agent();
        let (session, number) = (Restartable::new(), AtomicU64::new(1));
        Ok(Self { agent, url: url.to_owned(), headers, key, timeout, session, number })
    }

    /// Sends a request and reads its answer. If the server has dropped the session, for example after a restart, the session is opened
    /// again and the request is repeated. The server has not processed it.
    pub fn request(&self, method: &str, params: &Value) -> Result<Response> {
        let session = self.session()?;
        let request = message::request(method, params);
        let posted = self.send_request(request.clone(), &session);
        if let Ok(Posted::Forgotten(_)) = posted {
            // Another caller may have replaced it already.
            self.session.remove(|current| Arc::ptr_eq(current, &session));
        }
        self.release(session);
        let answer = match posted? {
            Posted::Answer(answer) => answer,
            Posted::Forgotten(_) => {
                let session = self.session()?;
                let posted = self.send_request(request, &session);
                self.release(session);
                match posted? {
                    Posted::Answer(answer) => answer,
                    Posted::Forgotten(error) => return Err(error),
                }
            }
        };
        message::response(answer)
    }

    /// Ends the use of a session. The last user of a replaced session closes it: the server may still have it, and other calls may still
    /// wait for their answers in it.
    fn release(&self, session: Arc<Session>) {
        if let Some(replaced) = Arc::into_inner(session) {
            self.close(&replaced);
        }
    }

    /// Returns the session, and opens it if necessary.
    fn session(&self) -> Result<Arc<Session>> {
        self.session.get(|_| true, |_| self.open().map(Arc::new), Arc::clone)
    }

    fn open(&self) -> Result<Session> {
        let first = Session { id: None, version: message::NEWEST.to_owned() };
        let (response, number) = self.post(message::request("initialize", &message::introduction()), &first)?;
        let id = response.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        let answer = match self.answer(response, number, &first)? {
            Posted::Answer(answer) => answer,
            Posted::Forgotten(error) => return Err(error),
        };
        let session = Session { id, version: message::version(message::response(answer)?)? };
        self.notify(&message::notification("notifications/initialized", Value::Null), &session)?;
        Ok(session)
    }

    fn send_request(&self, request: Map<String, Value>, session: &Session) -> Result<Posted> {
        let (response, number) = self.post(request, session)?;
        self.answer(response, number, session)
    }

    /// Posts a request with a new number.
    fn post(&self, mut request: Map<String, Value>, session: &Session) -> Result<(HttpResponse<Body>, u64)> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        request.insert("id".to_owned(), json!(number));
        Ok((self.send(&Value::Object(request), session)?, number))
    }

    fn send(&self, message: &Value, session: &Session) -> Result<HttpResponse<Body>> {
        let mut post = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", &session.version);
        if let Some(id) = &session.id {
            post = post.header(SESSION, id);
        }
        for (name, value) in &self.headers {
            post = post.header(name, value);
        }
        post.send(message.to_string()).map_err(|error| self.failed(error))
    }

    /// Sends a message without an answer.
    fn notify(&self, message: &Value, session: &Session) -> Result<()> {
        let response = self.send(message, session)?;
        if response.status().is_success() { Ok(()) } else { Err(self.refusal(Refusal::read(self, response))) }
    }

    /// Reads the answer to the request with this number.
    fn answer(&self, response: HttpResponse<Body>, number: u64, session: &Session) -> Result<Posted> {
        let status = response.status();
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        let (is_json, is_stream) = (kind.starts_with("application/json"), kind.starts_with("text/event-stream"));
        if !status.is_success() {
            let refusal = Refusal::read(self, response);
            let answer = self.answer_in(&refusal.text, number).ok().filter(|answer| answer.contains_key("error"));
            let code = answer.as_ref().and_then(|answer| answer["error"]["code"].as_i64());
            let is_lost = match status {
                StatusCode::NOT_FOUND => true,
                StatusCode::BAD_REQUEST => code.is_none_or(|code| NO_SESSION.iter().any(|codes| codes.contains(&code))),
                _ => false,
            };
            return match answer {
                _ if session.id.is_some() && is_lost => Ok(Posted::Forgotten(self.refusal(refusal))),
                Some(answer) if REFUSALS.contains(&status) => Ok(Posted::Answer(answer)),
                _ => Err(self.refusal(refusal)),
            };
        }
        let body = response.into_body();
        if is_stream {
            return self.events(BufReader::new(body.into_reader()), number, session).map(Posted::Answer);
        }
        if !is_json {
            let message = format!("the MCP server at {} answered with neither JSON nor events (`{kind}`)", self.url);
            return Err(Error::episode(message).with_hint("is `url` the address of an MCP server?"));
        }
        self.answer_in(&self.bounded(body)?, number).map(Posted::Answer)
    }

    /// Finds the answer to the request with this number in a JSON text.
    fn answer_in(&self, text: &str, number: u64) -> Result<Map<String, Value>> {
        let messages = match serde_json::from_str(text) {
            Ok(Value::Array(messages)) => messages,
            Ok(message) => vec![message],
            Err(error) => return Err(self.no_answer(&format!("it is not JSON: {error} (`{}`)", excerpt(text)))),
        };
        for message in messages {
            if let Value::Object(object) = message
                && let LineMeaning::Answer(of, answer) = message::of_object(object)
                && of == number
            {
                return Ok(answer);
            }
        }
        Err(self.no_answer(&format!("it does not answer the request {number} (`{}`)", excerpt(text))))
    }

    /// Reads a stream of events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>) up to the answer.
    fn events(&self, stream: impl BufRead, number: u64, session: &Session) -> Result<Map<String, Value>> {
        let mut stream = stream.take(STREAM_BYTES);
        let (mut line, mut data, mut is_message, mut requests, mut stray) = (Vec::new(), String::new(), true, 0, None);
        let mut follows_cr = false;
        let deadline = Instant::now() + self.timeout;
        loop {
            line.clear();
            let read = read_line(&mut stream, &mut line, &mut follows_cr);
            let count = read.map_err(|error| self.failed(ureq::Error::from(error)))?;
            if Instant::now() > deadline {
                return Err(self.late());
            }
            if line.len() > LINE_BYTES || data.len() > LINE_BYTES {
                return Err(self.no_answer(&format!("an event has more than {LINE_BYTES} bytes")));
            }
            if count == 0 {
                let what = match stream.limit() {
                    0 => format!("its stream has more than {STREAM_BYTES} bytes"),
                    _ => format!("its stream ended without the answer to the request {number}"),
                };
                let stray: Option<String> = stray;
                let seen = stray.map_or_else(String::new, |stray| format!(" (`{stray}`)"));
                return Err(self.no_answer(&(what + &seen)));
            }
            let text = String::from_utf8_lossy(&line);
            let text = &*text;
            if !text.is_empty() {
                let (field, value) = text.split_once(':').unwrap_or((text, ""));
                let value = value.strip_prefix(' ').unwrap_or(value);
                match field {
                    "data" => {
                        data.push_str(value);
                        data.push('\n');
                    }
                    "event" => is_message = value == "message",
                    _ => {}
                }
                continue;
            }
            // The end of an event.
            let (event, of_messages) = (std::mem::take(&mut data), std::mem::replace(&mut is_message, true));
            if event.trim().is_empty() || !of_messages {
                continue;
            }
            match message::read(&event) {
                LineMeaning::Answer(of, answer) if of == number => return Ok(answer),
                LineMeaning::Request(reply) if requests < REQUESTS => {
                    requests += 1;
                    let reply = serde_json::from_str(&reply).unwrap_or_default();
                    // If the server does not accept it, its next messages show that.
                    let _ = self.notify(&reply, session);
                }
                LineMeaning::Request(_) => {
                    return Err(self.no_answer(&format!("it sends more than {REQUESTS} requests")));
                }
                LineMeaning::Aside => {}
                LineMeaning::Answer(..) | LineMeaning::Stray | LineMeaning::Broken(_) => {
                    stray = Some(excerpt(event.trim()).to_owned())
                }
            }
        }
    }

    /// Reads a body of limited size.
    fn bounded(&self, body: Body) -> Result<String> {
        let mut bytes = Vec::new();
        let read = body.into_reader().take(LINE_BYTES as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.failed(ureq::Error::from(error)))?;
        if bytes.len() > LINE_BYTES {
            return Err(self.no_answer(&format!("it has more than {LINE_BYTES} bytes")));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn no_answer(&self, why: &str) -> Error {
        Error::episode(format!("the MCP server at {} sent an invalid answer: {}", self.url, self.without_key(why)))
    }

    fn late(&self) -> Error {
        let seconds = self.timeout.as_secs_f64();
        Error::episode(format!("the MCP server at {} did not answer within {seconds} s", self.url))
            .with_hint("if it needs more time, raise the `timeout_s` of its `mcp` in `tools`")
    }

    fn failed(&self, error: ureq::Error) -> Error {
        match error {
            ureq::Error::Timeout(_) => self.late(),
            error => Error::episode(format!(
                "the MCP server at {} cannot be reached: {}",
                self.url,
                self.without_key(&error.to_string())
            ))
            .with_hint("does the server run, and is `url` its address?"),
        }
    }

    /// Converts an unsuccessful status to an error.
    fn refusal(&self, Refusal { status, place, text }: Refusal) -> Error {
        let text = self.without_key(text.trim());
        let what = serde_json::from_str::<Value>(&text).ok();
        let what = what.as_ref().and_then(|body| body["error"]["message"].as_str()).unwrap_or(&text);
        let what: String = what.chars().take(QUOTED).collect();
        let what = if what.is_empty() { what } else { format!(": {what}") };
        let error = Error::episode(format!("the MCP server at {} refused with the status {status}{what}", self.url));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                error.with_hint("`key_variable` names the environment variable that holds its key")
            }
            _ if status.is_redirection() => match place {
                Some(place) => {
                    error.with_hint(format!("it points to {}; is that its `url`?", self.without_key(&place)))
                }
                None => error,
            },
            _ => error,
        }
    }

    /// Returns a text with the key masked.
    fn without_key(&self, text: &str) -> String {
        match &self.key {
            Some(key) => text.replace(key.as_str(), "…"),
            None => text.to_owned(),
        }
    }

    /// Ends a session, which the server may have dropped already. An unreachable server is ignored.
    fn close(&self, Session { id, version }: &Session) {
        let Some(id) = id else { return };
        let mut delete = self.agent.delete(&self.url).header(SESSION, id).header("mcp-protocol-version", version);
        for (name, value) in &self.headers {
            delete = delete.header(name, value);
        }
        let _ = delete.config().timeout_global(Some(self.timeout.min(GOODBYE))).build().call();
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        if let Some(session) = self.session.remove(|_| true) {
            self.close(&session);
        }
    }
}

/// Reads a line that ends with CR, LF or CRLF, without its end, or a part of more than `LINE_BYTES` bytes. Returns the number of bytes
/// read, 0 at the end of the stream. `follows_cr` is whether the previous line ended with CR, so that an LF belongs to it: a reader must not
/// wait for that LF.
fn read_line(stream: &mut impl BufRead, line: &mut Vec<u8>, follows_cr: &mut bool) -> std::io::Result<usize> {
    let mut count = 0;
    loop {
        let bytes = match stream.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if bytes.is_empty() {
            return Ok(count);
        }
        if std::mem::take(follows_cr) && bytes[0] == b'\n' {
            stream.consume(1);
            continue;
        }
        let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let is_cr = end.is_some_and(|end| bytes[end] == b'\r');
        let text = &bytes[..end.unwrap_or(bytes.len())];
        let used = text.len() + usize::from(end.is_some());
        line.extend_from_slice(text);
        stream.consume(used);
        count += used;
        if end.is_some() || line.len() > LINE_BYTES {
            *follows_cr = is_cr;
            return Ok(count);
        }
    }
}
