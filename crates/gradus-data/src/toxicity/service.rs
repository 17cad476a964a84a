//! A service with the protocol of the Perspective API: one text per HTTP request.
//!
//! `POST URL?key=KEY` with `{"comment": {"text": …}, "languages": […], "requestedAttributes": {"TOXICITY": {}}, "doNotStore":
//! true}`. The answer is `attributeScores.TOXICITY.summaryScore.value`. Google's public service with this protocol ends with the
//! year 2026.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ScoreResult, ToxicityScorer};
use crate::error::Result;
use crate::process::Interrupt;
use crate::service::{Client, Endpoint, KeyPlace, Reply, refusal};

/// Errors of the service for texts that it can never score.
const UNSCORABLE: [&str; 3] = ["COMMENT_EMPTY", "COMMENT_TOO_LONG", "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE"];

/// A service that scores one text per HTTP request, with the protocol of the Perspective API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceScorer {
    /// The address of the service. The public one, `https://commentanalyzer.googleapis.com/v1alpha1/comments:analyze`, ends with
    /// the year 2026 and accepts no new users.
    pub url: String,
    /// The environment variable with the API key, which is sent as `?key=…` and never stored. Default: no key.
    #[serde(default)]
    pub key_variable: Option<String>,
    /// The requested attribute. Default `TOXICITY`.
    #[serde(default = "toxicity")]
    pub attribute: String,
    /// The language of the texts. Default `en`.
    #[serde(default = "english")]
    pub language: String,
    /// Maximum number of requests per second, over all connections and ranks. Default 1, the quota of the public service.
    #[serde(default = "one")]
    pub requests_per_second: f64,
    /// Number of simultaneous requests. Default 4.
    #[serde(default = "four")]
    #[schemars(range(min = 1, max = 256))]
    pub connections: usize,
    /// Number of retries after a temporary refusal (429), a server error or a broken connection. The waits are 1, 2,
    /// 4, … seconds, or as long as the service requires. Default 5.
    #[serde(default = "five")]
    #[schemars(range(max = 20))]
    pub retries: usize,
    /// Maximum seconds for one request. Default 30.
    #[serde(default = "thirty")]
    pub timeout_s: f64,
}

fn toxicity() -> String {
    "TOXICITY".into()
}

fn english() -> String {
    "en".into()
}

fn one() -> f64 {
    1.0
}

fn four() -> usize {
    4
}

fn five() -> usize {
    5
}

fn thirty() -> f64 {
    30.0
}

/// Queries a service at the highest allowed rate.
pub struct Service {
    config: ServiceScorer,
    client: Client,
}

impl Service {
    /// Creates the service. An `interrupt` ends every wait.
    ///
    /// # Errors
    /// If the environment variable of the API key is not set.
    pub fn new(config: &ServiceScorer, interrupt: &Interrupt) -> Result<Self> {
        let endpoint = Endpoint {
            url: config.url.clone(),
            key_variable: config.key_variable.clone(),
            key_place: KeyPlace::Query,
            requests_per_second: config.requests_per_second,
            connections: config.connections,
            retries: config.retries,
            timeout_s: config.timeout_s,
        };
        Ok(Self { config: config.clone(), client: Client::new(endpoint, interrupt)? })
    }

    /// Requests the score of a text, with retries if they may help.
    fn request(&self, text: &str) -> ScoreResult {
        let attribute = &self.config.attribute;
        let body = json!({
            "comment": { "text": text },
            "languages": [self.config.language],
            "requestedAttributes": { attribute.as_str(): {} },
            "doNotStore": true,
        });
        self.client.request(&body, &|status, answer| match status {
            200..=299 => {
                let value = &answer["attributeScores"][attribute]["summaryScore"]["value"];
                match value.as_f64().filter(|score| (0.0..=1.0).contains(score)) {
                    Some(score) => Reply::Answer(Some(score as f32)),
                    None => Reply::Never(format!(
                        "it answered without a number from 0 to 1 in `attributeScores.{attribute}.summaryScore.value`: {answer}"
                    )),
                }
            }
            400 if kinds(answer).iter().any(|kind| UNSCORABLE.contains(kind)) => Reply::Answer(None),
            status => Reply::Never(refusal(status, answer)),
        })
    }
}

/// Returns the kinds of error in an answer.
fn kinds(answer: &Value) -> Vec<&str> {
    let details = answer["error"]["details"].as_array().map_or(&[][..], Vec::as_slice);
    details.iter().filter_map(|detail| detail["errorType"].as_str()).collect()
}

impl ToxicityScorer for Service {
    fn name(&self) -> String {
        format!("{} of {} ({})", self.config.attribute, self.config.url, self.config.language)
    }

    fn has_probabilities(&self) -> bool {
        true
    }

    /// Sends texts over several connections. After a final failure, no more texts are sent.
    fn score(&self, texts: &[&str]) -> Vec<ScoreResult> {
        self.client.each(texts, |text| self.request(text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::super::ScoringError;
    use super::*;
    use crate::test_support::serve;

    const PATH: &str = "/v1alpha1/comments:analyze";

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
        let (url, seen) = serve(PATH, |_, body| (200, "", score_of(body)));
        // `PATH` is set wherever tests run, so it serves as the API key.
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
        let (url, _) = serve(PATH, |_, body| (200, "", score_of(body)));
        let service = service(&url, "connections: 8").config;
        let service = ServiceScorer { requests_per_second: 20.0, ..service };
        let service = Service::new(&service, &Interrupt::default()).expect("a service");
        let begun = Instant::now();
        service.score(&["a"; 7]);
        // Seven requests have six gaps of 50 ms. They may be longer, never shorter.
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(300), "{took:?}");
    }

    #[test]
    fn what_may_work_later_is_asked_again() {
        let tries = AtomicUsize::new(0);
        let (url, seen) = serve(PATH, move |_, body| match tries.fetch_add(1, Ordering::SeqCst) {
            0 => (429, "Retry-After: 0\r\n", "slow down".into()),
            1 => (503, "Retry-After: 0\r\n", String::new()),
            _ => (200, "", score_of(body)),
        });
        assert_eq!(service(&url, "retries: 2").score(&["abcd"]), [Ok(Some(0.04))]);
        assert_eq!(seen.lock().expect("no panic").len(), 3);

        let (url, seen) = serve(PATH, |_, _| (429, "Retry-After: 0\r\n", String::new()));
        let found = service(&url, "retries: 2\nconnections: 1").score(&["a", "b"]);
        let error = found[0].clone().expect_err("never");
        assert_eq!(error.message, format!("{url}: it answered 429, 3 times in a row"));
        assert!(found[1].clone().expect_err("not asked").message.ends_with("not requested after another text failed"));
        assert_eq!(seen.lock().expect("no panic").len(), 3, "the second text is spared");
    }

    #[test]
    fn nobody_waits_longer_than_the_user_wants() {
        // If the service were queried again after the requested time, this test would end a day later.
        let (url, seen) = serve(PATH, |_, _| (429, "Retry-After: 86400\r\n", String::new()));
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
        let (url, _) = serve(PATH, move |line, body| match body["comment"]["text"].as_str() {
            Some("こんにちは") => (400, "", refused("LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE", "ja")),
            Some("number") => (200, "", "{\"attributeScores\": {}}".into()),
            Some("moved") => (307, "Location: http://127.0.0.1:9/\r\n", String::new()),
            Some("page") => (404, "", format!("<p>There is no {}</p>", line.trim_end())),
            _ => (400, "", refused("API_KEY", &format!("API key not valid: {}", std::env::var("PATH").expect("set")))),
        });
        let service = service(&url, "key_variable: PATH");
        assert_eq!(service.score(&["こんにちは"]), [Ok(None)]);
        let error_of = |text: &str| service.score(&[text])[0].clone().expect_err("refused");
        let error = error_of("other");
        assert_eq!(error.message, format!("{url}: it answered 400: API key not valid: …"));
        assert!(error.hint.expect("a hint").contains("`PATH`"));
        assert!(error_of("number").message.contains("without a number from 0 to 1"));
        assert!(error_of("moved").message.contains("it answered 307"));
        // The address that the service received contains the key, encoded.
        let page = error_of("page").message;
        assert!(page.contains("analyze?key=… HTTP/1.1</p>"), "{page}");
    }

    #[test]
    fn a_key_that_is_not_there_is_asked_for() {
        let yaml = "url: 'http://127.0.0.1:9'\nkey_variable: GRADUS_NO_SUCH_KEY";
        let config: ServiceScorer = serde_saphyr::from_str(yaml).expect("a configuration");
        let error = Service::new(&config, &Interrupt::default()).err().expect("refused");
        assert!(error.to_string().starts_with("the environment variable `GRADUS_NO_SUCH_KEY` holds no key"));
        // Nothing listens at port 9.
        let found = service("http://127.0.0.1:9", "retries: 0").score(&["a"]);
        let error = found[0].clone().expect_err("nobody");
        assert!(error.message.ends_with("1 times in a row"), "{found:?}");
        assert!(error.hint.expect("a hint").starts_with("does the service run at this `url`?"));
    }

    #[test]
    fn a_service_that_is_too_slow_is_not_called_too_often() {
        let (url, _) = serve(PATH, |_, body| {
            std::thread::sleep(Duration::from_millis(1500));
            (200, "", score_of(body))
        });
        let found = service(&url, "retries: 0\ntimeout_s: 0.5").score(&["a"]);
        let error = found[0].clone().expect_err("late");
        assert_eq!(error.message, format!("{url}: it did not answer within 0.5 s, 1 times in a row"));
        assert!(error.hint.expect("a hint").starts_with("raise `timeout_s`"));
    }
}
