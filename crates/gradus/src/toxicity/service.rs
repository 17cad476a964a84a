//! A service of the form of the Perspective API: a text a request, over HTTP.
//!
//! `POST URL?key=KEY` with `{"comment": {"text": …}, "languages": […], "requestedAttributes": {"TOXICITY": {}}, "doNotStore": true}`;
//! the answer is `attributeScores.TOXICITY.summaryScore.value`. Google's public service of this form ends with the year 2026.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

use super::{Answer, ScoringError, ServiceScorer, ToxicityScorer};
use crate::error::{Error, Result, excerpt};
use crate::process::Interrupt;

/// The most that is read of an answer.
const ANSWER_BYTES: u64 = 1 << 20;

/// The longest wait that a service may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// How often someone who waits looks whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(50);

/// What the service says of a text that it cannot judge, whoever asks and whenever.
const UNJUDGED: [&str; 3] = ["COMMENT_EMPTY", "COMMENT_TOO_LONG", "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE"];

/// Asks a service, as fast as it allows and no faster.
pub struct Service {
    config: ServiceScorer,
    key: Option<String>,
    agent: Agent,
    /// When the next request may go out.
    next: Mutex<Instant>,
    interrupt: Interrupt,
}

/// What came of one request.
enum Reply {
    Score(Option<f32>),
    /// It may work later, at the earliest after so long.
    Later(String, Option<Duration>),
    /// It will not.
    Never(ScoringError),
}

impl Service {
    /// The service that is configured so; no wait outlasts an `interrupt`.
    ///
    /// # Errors
    /// When the variable of the key is not set.
    pub fn new(config: &ServiceScorer, interrupt: &Interrupt) -> Result<Self> {
        let key = |variable: &String| {
            std::env::var(variable).ok().filter(|key| !key.trim().is_empty()).ok_or_else(|| {
                let message = format!("the environment variable `{variable}` holds no key for {}", config.url);
                Error::input(message).with_hint(format!(
                    "set `{variable}` to the service's key; leave `key_variable` out for a service without one"
                ))
            })
        };
        let key = config.key_variable.as_ref().map(key).transpose()?;
        let agent = Agent::config_builder()
            .timeout_global(Some(Duration::from_secs_f64(config.timeout_s)))
            .http_status_as_error(false)
            // A key goes nowhere but where it was meant to.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .build()
            .new_agent();
        let (config, next, interrupt) = (config.clone(), Mutex::new(Instant::now()), interrupt.clone());
        Ok(Self { config, key, agent, next, interrupt })
    }

    /// Waits until `end`, or until the user interrupts.
    fn wait(&self, end: Instant) -> std::result::Result<(), ScoringError> {
        loop {
            if self.interrupt.is_raised() {
                return Err(ScoringError::interrupted());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Waits until a request may go out.
    fn wait_turn(&self) -> std::result::Result<(), ScoringError> {
        let apart = Duration::from_secs_f64(1.0 / self.config.requests_per_second);
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(Instant::now());
            *next = turn + apart;
            turn
        };
        self.wait(turn)
    }

    /// The score of a text, asked again where that may help.
    fn ask(&self, text: &str) -> Answer {
        let mut asked = 0;
        loop {
            self.wait_turn()?;
            match self.once(text) {
                Reply::Score(score) => return Ok(score),
                Reply::Never(error) => return Err(error),
                Reply::Later(message, _) if asked == self.config.retries => {
                    let message = format!("{}: {message}, {} times in a row", self.config.url, asked + 1);
                    return Err(ScoringError::new(message).with_hint(
                        "lower `requests_per_second`, or raise `retries`; with a `recorded` file before the service nothing is asked twice",
                    ));
                }
                Reply::Later(_, wait) => {
                    let wait = wait.unwrap_or(Duration::from_secs(1 << asked.min(8))).min(LONGEST_WAIT);
                    self.wait(Instant::now() + wait)?;
                    asked += 1;
                }
            }
        }
    }

    fn once(&self, text: &str) -> Reply {
        let attribute = &self.config.attribute;
        let body = json!({
            "comment": { "text": text },
            "languages": [self.config.language],
            "requestedAttributes": { attribute.as_str(): {} },
            "doNotStore": true,
        });
        let mut request = self.agent.post(&self.config.url).content_type("application/json");
        if let Some(key) = &self.key {
            request = request.query("key", key);
        }
        let mut response = match request.send(body.to_string()) {
            Ok(response) => response,
            Err(error) => return Reply::Later(self.without_key(&error.to_string()), None),
        };
        let status = response.status().as_u16();
        let seconds = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let said = match response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string() {
            Ok(said) => said,
            Err(error) => return Reply::Later(self.without_key(&error.to_string()), None),
        };
        let said: Value = serde_json::from_str(&said).unwrap_or(Value::String(said));
        match status {
            200..=299 => {
                let value = &said["attributeScores"][attribute]["summaryScore"]["value"];
                match value.as_f64().filter(|score| (0.0..=1.0).contains(score)) {
                    Some(score) => Reply::Score(Some(score as f32)),
                    None => self.never(&format!(
                        "it answered without a number from 0 to 1 in `attributeScores.{attribute}.summaryScore.value`: {}",
                        excerpt(&self.without_key(&said.to_string()), 200)
                    )),
                }
            }
            429 | 500..=599 => Reply::Later(format!("it answered {status}"), seconds.map(Duration::from_secs)),
            400 if kinds(&said).iter().any(|kind| UNJUDGED.contains(kind)) => Reply::Score(None),
            _ => {
                let reason = said["error"]["message"].as_str().map_or_else(|| said.to_string(), str::to_owned);
                self.never(&format!("it answered {status}: {}", excerpt(&self.without_key(&reason), 200)))
            }
        }
    }

    fn never(&self, message: &str) -> Reply {
        let message = format!("{}: {message}", self.config.url);
        let hint = match self.config.key_variable.as_ref() {
            Some(variable) => format!("is the key in `{variable}` right, and the `url`?"),
            None => "is the `url` right? A service that wants a key needs `key_variable`".into(),
        };
        Reply::Never(ScoringError::new(message).with_hint(hint))
    }

    /// A message that cannot give the key away, as it is or as an address has it.
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

/// The kinds of error that an answer names.
fn kinds(said: &Value) -> Vec<&str> {
    let details = said["error"]["details"].as_array().map_or(&[][..], Vec::as_slice);
    details.iter().filter_map(|detail| detail["errorType"].as_str()).collect()
}

impl ToxicityScorer for Service {
    fn name(&self) -> String {
        format!("{} of {} ({})", self.config.attribute, self.config.url, self.config.language)
    }

    /// Texts go out on several connections. After a text that could not be had in the end, no others are asked.
    fn score(&self, texts: &[&str]) -> Vec<Answer> {
        let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let answers: Vec<Mutex<Option<Answer>>> = texts.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while !has_failed.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(text) = texts.get(at) else { return };
                let answer = self.ask(text);
                has_failed.fetch_or(answer.is_err(), Ordering::Relaxed);
                *answers[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.config.connections.min(texts.len()) {
                scope.spawn(work);
            }
        });
        let not_asked = || match self.interrupt.is_raised() {
            true => Err(ScoringError::interrupted()),
            false => Err(ScoringError::new(format!("{}: not asked after another text failed", self.config.url))),
        };
        let answer = |answer: Mutex<Option<_>>| {
            answer.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or_else(not_asked)
        };
        answers.into_iter().map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;

    /// When each request came, and its first line and body.
    type Seen = Arc<Mutex<Vec<(Instant, String)>>>;

    /// A server on this machine that answers by a function of the request's line and its body, one connection a request.
    fn serve(answer: impl Fn(&str, &Value) -> (u16, &'static str, String) + Send + Sync + 'static) -> (String, Seen) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/v1alpha1/comments:analyze", listener.local_addr().expect("an address"));
        let (seen, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let log = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, log, answer) = (stream.expect("a connection"), Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
                    reader.read_line(&mut first).expect("a request");
                    while line != "\r\n" {
                        line.clear();
                        reader.read_line(&mut line).expect("a header");
                        if let Some((_, value)) = line.to_ascii_lowercase().split_once("content-length:") {
                            length = value.trim().parse().expect("a length");
                        }
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).expect("a body");
                    let body: Value = serde_json::from_slice(&body).expect("JSON");
                    log.lock().expect("no panic").push((Instant::now(), format!("{} {body}", first.trim_end())));
                    let (status, headers, said) = answer(&first, &body);
                    let head = format!("HTTP/1.1 {status} Said\r\nConnection: close\r\n{headers}");
                    write!(stream, "{head}Content-Length: {}\r\n\r\n{said}", said.len()).expect("answered");
                });
            }
        });
        (url, seen)
    }

    fn service(url: &str, more: &str) -> Service {
        let yaml = format!("url: '{url}'\nrequests_per_second: 200\n{more}");
        let config = serde_saphyr::from_str(&yaml).expect("a configuration");
        Service::new(&config, &Interrupt::default()).expect("a service")
    }

    fn score_of(body: &Value) -> String {
        let length = body["comment"]["text"].as_str().expect("a text").len() as f64;
        json!({"attributeScores": {"TOXICITY": {"summaryScore": {"value": length / 100.0, "type": "PROBABILITY"}}}})
            .to_string()
    }

    #[test]
    fn scores_come_in_the_order_of_the_texts() {
        let (url, seen) = serve(|_, body| (200, "", score_of(body)));
        // `PATH` is set wherever tests run, so it stands for a key.
        let service = service(&url, "key_variable: PATH");
        let texts: Vec<String> = (1..=20).map(|i| "é".repeat(i)).collect();
        let found = service.score(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        for (i, score) in found.iter().enumerate() {
            assert_eq!(*score, Ok(Some((2 * (i + 1)) as f32 / 100.0)), "{i}");
        }
        let requests = seen.lock().expect("no panic");
        assert_eq!(requests.len(), 20);
        assert!(requests[0].1.starts_with("POST /v1alpha1/comments:analyze?key="), "{}", requests[0].1);
        for part in ["\"requestedAttributes\":{\"TOXICITY\":{}}", "\"languages\":[\"en\"]", "\"doNotStore\":true"] {
            assert!(requests[0].1.contains(part), "{}", requests[0].1);
        }
        assert_eq!(service.name(), format!("TOXICITY of {url} (en)"));
    }

    #[test]
    fn requests_keep_apart() {
        let (url, seen) = serve(|_, body| (200, "", score_of(body)));
        let service = service(&url, "connections: 8").config;
        let service = ServiceScorer { requests_per_second: 20.0, ..service };
        let service = Service::new(&service, &Interrupt::default()).expect("a service");
        service.score(&["a"; 7]);
        let times: Vec<Instant> = seen.lock().expect("no panic").iter().map(|(at, _)| *at).collect();
        // Seven requests are six gaps of 50 ms; the server's threads may be late, never early.
        let took = times.iter().max().expect("requests").duration_since(*times.iter().min().expect("requests"));
        assert!(took >= Duration::from_millis(250), "{took:?}");
    }

    #[test]
    fn what_may_work_later_is_asked_again() {
        let tries = AtomicUsize::new(0);
        let (url, seen) = serve(move |_, body| match tries.fetch_add(1, Ordering::SeqCst) {
            0 => (429, "Retry-After: 0\r\n", "slow down".into()),
            1 => (503, "Retry-After: 0\r\n", String::new()),
            _ => (200, "", score_of(body)),
        });
        assert_eq!(service(&url, "retries: 2").score(&["abcd"]), [Ok(Some(0.04))]);
        assert_eq!(seen.lock().expect("no panic").len(), 3);

        let (url, seen) = serve(|_, _| (429, "Retry-After: 0\r\n", String::new()));
        let found = service(&url, "retries: 2\nconnections: 1").score(&["a", "b"]);
        let error = found[0].clone().expect_err("never");
        assert_eq!(error.message, format!("{url}: it answered 429, 3 times in a row"));
        assert!(found[1].clone().expect_err("not asked").message.ends_with("not asked after another text failed"));
        assert_eq!(seen.lock().expect("no panic").len(), 3, "the second text is spared");
    }

    #[test]
    fn nobody_waits_longer_than_the_user_wants() {
        // A service that is asked again after the given time would end this test a day later.
        let (url, seen) = serve(|_, _| (429, "Retry-After: 86400\r\n", String::new()));
        let interrupt = Interrupt::default();
        let service = Service::new(&service(&url, "connections: 2").config, &interrupt).expect("a service");
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                while seen.lock().expect("no panic").len() < 2 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                interrupt.raise();
            });
            service.score(&["a", "b", "c"])
        });
        assert_eq!(found, vec![Err(ScoringError::interrupted()); 3]);
        assert_eq!(seen.lock().expect("no panic").len(), 2);
    }

    #[test]
    fn a_text_that_it_cannot_judge_has_no_score_and_a_refusal_is_an_error() {
        let refused = |kind: &str, message: &str| {
            json!({"error": {"code": 400, "message": message, "details": [{"errorType": kind}]}}).to_string()
        };
        let (url, _) = serve(move |line, body| match body["comment"]["text"].as_str() {
            Some("こんにちは") => (400, "", refused("LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE", "ja")),
            Some("number") => (200, "", "{\"attributeScores\": {}}".into()),
            Some("moved") => (307, "Location: http://127.0.0.1:9/\r\n", String::new()),
            Some("page") => (404, "", format!("<p>There is no {}</p>", line.trim_end())),
            _ => (400, "", refused("API_KEY", &format!("API key not valid: {}", std::env::var("PATH").expect("set")))),
        });
        let service = service(&url, "key_variable: PATH");
        assert_eq!(service.score(&["こんにちは"]), [Ok(None)]);
        let told = |text: &str| service.score(&[text])[0].clone().expect_err("refused");
        let error = told("other");
        assert_eq!(error.message, format!("{url}: it answered 400: API key not valid: …"));
        assert!(error.hint.expect("a hint").contains("`PATH`"));
        assert!(told("number").message.contains("without a number from 0 to 1"));
        assert!(told("moved").message.contains("it answered 307"));
        // The address as the service saw it has the key, encoded.
        let page = told("page").message;
        assert!(page.contains("analyze?key=… HTTP/1.1</p>"), "{page}");
    }

    #[test]
    fn a_key_that_is_not_there_is_asked_for() {
        let yaml = "url: 'http://127.0.0.1:9'\nkey_variable: GRADUS_NO_SUCH_KEY";
        let config: ServiceScorer = serde_saphyr::from_str(yaml).expect("a configuration");
        let error = Service::new(&config, &Interrupt::default()).err().expect("refused");
        assert!(error.to_string().starts_with("the environment variable `GRADUS_NO_SUCH_KEY` holds no key"));
        // Nobody listens at port 9.
        let found = service("http://127.0.0.1:9", "retries: 0").score(&["a"]);
        assert!(found[0].clone().expect_err("nobody").message.ends_with("1 times in a row"), "{found:?}");
    }
}
