//! Requests to the server, repeated until it answers or a time limit is reached.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::forms::{AnswerProblem, CompletionRequest, ServerCompletion};
use super::http::{Delay, Failure, Http};
use super::score::{self, Passage, TokenScore};
use super::{Endpoint, POLL_INTERVAL, ServerKind};
use crate::error::{Error, Result};

/// Maximum size of an answer without completions, in bytes.
const ANSWER_BYTES: u64 = 8 << 20;

/// First and longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Shortest wait that is reported to the user afterwards.
const MIN_REPORTED_WAIT: Duration = Duration::from_secs(1);

/// Number of attempts to load weights while the server answers 500. It does so each time if it cannot read them.
const LOAD_ATTEMPTS: usize = 5;

/// Weights in the shared folder.
#[derive(Debug)]
pub(super) struct Weights {
    /// Name of the weights on the server.
    pub name: String,
    /// Number of steps after which the policy had these weights.
    pub step: usize,
    /// Local path.
    pub path: PathBuf,
    /// Path as the server sees it.
    pub there: PathBuf,
    /// Whether the weights are an adapter.
    pub is_adapter: bool,
}

/// Connection to a server, and its state.
pub(super) struct Client {
    http: Http,
    kind: ServerKind,
    connections: usize,
    max_wait: Duration,
    /// Name of the model on the server.
    model: OnceLock<String>,
    named: Option<String>,
    stopped: AtomicBool,
    done: AtomicUsize,
    /// Current trouble with the server.
    trouble: Mutex<Option<Trouble>>,
    notices: Mutex<Vec<String>>,
}

/// A time in which requests are repeated.
struct Trouble {
    since: Instant,
    /// Latest reason.
    delay: Delay,
    /// Whether the user knows.
    is_reported: bool,
}

/// Index of a question, and its result.
type IndexedResult<T> = (usize, Result<T, Failure>);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    pub fn new(options: &Endpoint) -> Result<Self> {
        Ok(Self {
            http: Http::new(options)?,
            kind: options.kind,
            connections: options.connections,
            max_wait: options.wait,
            model: OnceLock::new(),
            named: options.model.clone(),
            stopped: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            trouble: Mutex::default(),
            notices: Mutex::default(),
        })
    }

    /// Cancels all waits.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Returns the number of completions of the current task that have arrived.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// Returns how long requests have been repeated, if they are.
    pub fn waited(&self) -> Option<Duration> {
        lock(&self.trouble).as_ref().map(|trouble| trouble.since.elapsed())
    }

    /// Returns a message about the current wait for the server, once per wait. A short wait has none.
    pub fn news(&self) -> Option<String> {
        let mut trouble = lock(&self.trouble);
        let trouble = trouble.as_mut().filter(|trouble| !trouble.is_reported)?;
        let waited = trouble.since.elapsed();
        if waited < MIN_REPORTED_WAIT {
            return None;
        }
        trouble.is_reported = true;
        let (what, limit) = (trouble.delay.lasting(waited), self.max_wait.as_secs());
        Some(format!("the server {} {what}; requests are repeated for at most {limit} s", self.http.url()))
    }

    /// Returns the address.
    pub fn url(&self) -> &str {
        self.http.url()
    }

    /// Returns the maximum time in which requests are repeated.
    pub fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// Returns the messages since the last call.
    pub fn notices(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.notices))
    }

    fn note(&self, notice: String) {
        lock(&self.notices).push(notice);
    }

    /// Retries until the request succeeds, it fails permanently, or the wait was too long.
    fn with_retries<T>(&self, mut once: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
        let mut pause = PAUSES.0;
        loop {
            let delay = match once() {
                Err(Failure::Later(delay)) => delay,
                settled => {
                    self.end_trouble();
                    return settled;
                }
            };
            let since = self.note_trouble(&delay);
            if since.elapsed() >= self.max_wait {
                let what = format!("the server {}", self.http.url());
                let message = format!("it {}", delay.lasting(since.elapsed()));
                let remedy = match delay {
                    Delay::Silence(_) => "start it again",
                    Delay::Refusal { .. } => "its output may show more; correct it",
                };
                let keys = self.http.keys();
                let hint = format!("{remedy}, or wait longer: `{keys}.wait_s`");
                return Err(Failure::Never(Error::Network { what, message, hint: Some(hint) }));
            }
            self.rest(pause.min(self.max_wait.saturating_sub(since.elapsed())))?;
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    /// Records why a request is repeated. Returns since when requests are.
    fn note_trouble(&self, delay: &Delay) -> Instant {
        let mut trouble = lock(&self.trouble);
        let new = || Trouble { since: Instant::now(), delay: delay.clone(), is_reported: false };
        let trouble = trouble.get_or_insert_with(new);
        trouble.delay.clone_from(delay);
        trouble.since
    }

    fn end_trouble(&self) {
        let Some(Trouble { since, delay, .. }) = lock(&self.trouble).take() else { return };
        let waited = since.elapsed();
        if waited >= MIN_REPORTED_WAIT {
            self.note(format!("the server {} {}", self.http.url(), delay.over(waited)));
        }
    }

    /// Sleeps, unless the wait is canceled.
    fn rest(&self, pause: Duration) -> Result<(), Failure> {
        let end = Instant::now() + pause;
        loop {
            if self.stopped.load(Ordering::SeqCst) {
                return Err(Failure::Never(Error::Interrupted));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    fn get(&self, path: &str) -> Result<Value, Failure> {
        self.with_retries(|| self.http.get(path, ANSWER_BYTES))
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.with_retries(|| self.http.post(path, body, ANSWER_BYTES))
    }

    /// Converts a failure that cannot be repaired to an error.
    fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Never(error) => error,
            Failure::Later(delay) => self.http.wrong("", delay.message()),
            Failure::Lost(message) => self.http.wrong("", &message),
        }
    }

    /// Converts the second loss of the same weights to an error.
    fn lost_again(&self, weights: &Weights, message: &str) -> Error {
        let error = self.http.wrong("", message);
        if weights.is_adapter {
            return error;
        }
        error.with_hint(
            "does another run use this server? Without adapters, a server has the weights of one run: start one for each run",
        )
    }

    /// Waits for the server, and looks up the model's name there.
    pub fn find(&self) -> Result<()> {
        let error = |failure| self.error(failure);
        self.get("/health").map_err(error)?;
        if self.kind == ServerKind::Sglang {
            return Ok(());
        }
        let models = self.get("/v1/models").map_err(error)?;
        let names: Vec<&str> =
            models["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str()).collect();
        let found = match &self.named {
            Some(named) => names.iter().find(|name| *name == named).copied(),
            None => names.first().copied(),
        };
        let Some(found) = found else {
            let message = match &self.named {
                Some(named) => format!("it has no model `{named}`; it has {}", names.join(", ")),
                None => "it serves no model".to_owned(),
            };
            return Err(self.http.wrong("/v1/models", &message));
        };
        let _ = self.model.set(found.to_owned());
        Ok(())
    }

    fn model(&self) -> &str {
        self.model.get().map_or("", String::as_str)
    }

    /// Makes the server sample with `weights`.
    pub fn load(&self, weights: &Weights) -> Result<()> {
        let done = match (weights.is_adapter, self.kind) {
            (true, ServerKind::Sglang) => self.load_adapter("/load_lora_adapter", weights),
            (true, _) => self.load_adapter("/v1/load_lora_adapter", weights),
            (false, ServerKind::Sglang) => self.load_from_disk(weights),
            (false, _) => self.reload(weights),
        };
        done.map_err(|failure| match failure {
            Failure::Lost(message) => {
                let hint = match (self.kind, weights.is_adapter) {
                    (ServerKind::Gradus, _) => "start it with `gradus serve --allow-weights FOLDER`",
                    (ServerKind::Vllm, true) => "start it with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
                    (ServerKind::Vllm, false) => "start it with VLLM_SERVER_DEV_MODE=1",
                    (ServerKind::Sglang, _) => "start it with `--enable-lora`, or use a newer version",
                };
                self.http.wrong("", &message).with_hint(hint)
            }
            other => self.error(other),
        })
    }

    /// Posts `body`, which names weights in the shared folder, to `path` once. `errors` counts the answers with the status 500 so far.
    fn post_weights(&self, path: &str, body: &Value, errors: &mut usize) -> Result<Value, Failure> {
        match self.http.post(path, body, ANSWER_BYTES) {
            Err(Failure::Later(Delay::Refusal { status: 500, message })) => {
                *errors += 1;
                if *errors < LOAD_ATTEMPTS {
                    return Err(Failure::Later(Delay::Refusal { status: 500, message }));
                }
                let error = self.http.wrong("", &format!("it cannot load the weights: {message}"));
                let keys = self.http.keys();
                Err(Failure::Never(error.with_hint(format!(
                    "can it read the folder `{keys}.shared`? `{keys}.shared_at_server` is the path of the folder on the server"
                ))))
            }
            other => other,
        }
    }

    fn load_adapter(&self, path: &str, weights: &Weights) -> Result<(), Failure> {
        let mut body = json!({ "lora_name": weights.name, "lora_path": weights.there });
        match self.kind {
            ServerKind::Gradus => body["base_model_name"] = json!(self.model()),
            ServerKind::Vllm => body["load_inplace"] = json!(false),
            ServerKind::Sglang => {}
        }
        let (mut tries, mut errors) = (0, 0);
        let answer = self.with_retries(|| {
            tries += 1;
            self.post_weights(path, &body, &mut errors)
        });
        match answer {
            Ok(answer) if answer["success"] == json!(false) => {
                let reason = answer["error_message"].as_str().unwrap_or("it gives no reason");
                Err(Failure::Never(self.http.wrong(path, reason)))
            }
            // The first attempt arrived, but its answer was lost.
            Err(Failure::Never(error)) if tries > 1 && error.to_string().contains("already") => Ok(()),
            other => other.map(drop),
        }
    }

    /// Loads whole weights with vLLM's sequence of requests.
    fn reload(&self, weights: &Weights) -> Result<(), Failure> {
        self.post("/pause?mode=keep", &json!({}))?;
        let mut arguments = json!({ "weights_path": weights.there });
        if self.kind == ServerKind::Gradus {
            arguments["model"] = json!(self.model());
        }
        let (body, mut errors) = (json!({ "method": "reload_weights", "kwargs": arguments }), 0);
        let loaded = self.with_retries(|| self.post_weights("/collective_rpc", &body, &mut errors));
        let named = loaded.and_then(|_| {
            self.post("/reset_prefix_cache", &json!({}))?;
            let mut version = json!({ "new_version": weights.name });
            if self.kind == ServerKind::Gradus {
                version["model"] = json!(self.model());
            }
            match self.post("/update_weight_version", &version) {
                // Older versions do not name weights.
                Err(Failure::Lost(_)) => Ok(()),
                other => other.map(drop),
            }
        });
        // Required after a failure too: nothing else ends the pause.
        let resumed = self.post("/resume", &json!({}));
        named.and(resumed.map(drop))
    }

    fn load_from_disk(&self, weights: &Weights) -> Result<(), Failure> {
        const PATH: &str = "/update_weights_from_disk";
        let body = json!({
            "model_path": weights.there,
            "weight_version": weights.name,
            "abort_all_requests": false,
            "flush_cache": true,
        });
        let mut errors = 0;
        let answer = self.with_retries(|| self.post_weights(PATH, &body, &mut errors))?;
        match answer["success"] == json!(false) {
            true => {
                let reason = answer["message"].as_str().unwrap_or("it gives no reason");
                Err(Failure::Never(self.http.wrong(PATH, reason)))
            }
            false => Ok(()),
        }
    }

    /// Unloads an adapter from the server. The request is sent only once because nothing depends on it.
    pub fn forget(&self, weights: &Weights) {
        if !weights.is_adapter {
            return;
        }
        let path = if self.kind == ServerKind::Sglang { "/unload_lora_adapter" } else { "/v1/unload_lora_adapter" };
        match self.http.post(path, &json!({ "lora_name": weights.name }), ANSWER_BYTES) {
            Ok(_) | Err(Failure::Lost(_)) => {}
            Err(failure) => {
                let error = self.error(failure);
                self.note(format!("the adapter `{}` stays on the server: {error}", weights.name));
            }
        }
    }

    /// Samples the completions of `requests`, several at a time. If the server has lost the weights, they are loaded
    /// again, once.
    ///
    /// # Errors
    /// The first error that cannot be repaired.
    pub fn sample(&self, weights: &Weights, requests: &[CompletionRequest]) -> Result<Vec<Vec<ServerCompletion>>> {
        self.done.store(0, Ordering::SeqCst);
        let mut found: Vec<Option<Vec<ServerCompletion>>> = requests.iter().map(|_| None).collect();
        for is_last in [false, true] {
            let lost = self.sample_missing(weights, requests, &mut found)?;
            let Some(lost) = lost else { break };
            if is_last {
                return Err(self.lost_again(weights, &lost));
            }
            self.note(format!("the server {} lost the weights, which were loaded again: {lost}", self.http.url()));
            self.load(weights)?;
        }
        // Nothing is missing: each entry was found, or the function has returned an error.
        Ok(found.into_iter().flatten().collect())
    }

    /// Runs `once` with retries for each of `tasks`, several at a time, until all are done, one fails, or the wait is
    /// canceled.
    fn each<T: Send>(
        &self,
        tasks: &[usize],
        once: impl Fn(usize) -> Result<T, Failure> + Sync,
    ) -> Vec<IndexedResult<T>> {
        let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let answers: Mutex<Vec<IndexedResult<T>>> = Mutex::default();
        let work = || {
            while !is_over.load(Ordering::Relaxed) {
                let Some(&i) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                let answer = match self.stopped.load(Ordering::SeqCst) {
                    true => Err(Failure::Never(Error::Interrupted)),
                    false => self.with_retries(|| once(i)),
                };
                if answer.is_err() {
                    is_over.store(true, Ordering::Relaxed);
                }
                lock(&answers).push((i, answer));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.connections.min(tasks.len()) {
                scope.spawn(work);
            }
        });
        answers.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples one completion. If the server has lost the weights, they are loaded again, once for all concurrent
    /// requests; `loads` counts this.
    ///
    /// # Errors
    /// An error that cannot be repaired.
    pub fn draw(
        &self,
        weights: &Weights,
        request: &CompletionRequest,
        loads: &Mutex<usize>,
    ) -> Result<ServerCompletion> {
        let before = *lock(loads);
        let mut found = self.with_retries(|| self.complete(weights, request));
        if let Err(Failure::Lost(message)) = &found {
            let mut loads = lock(loads);
            if *loads == before {
                self.note(format!(
                    "the server {} lost the weights, which were loaded again: {message}",
                    self.http.url()
                ));
                self.load(weights)?;
                *loads += 1;
            }
            drop(loads);
            found = self.with_retries(|| self.complete(weights, request));
        }
        let missing = || self.http.wrong("", "a completion was requested, but the answer has none");
        let failed = |failure: Failure| match failure {
            Failure::Lost(message) => self.lost_again(weights, &message),
            other => self.error(other),
        };
        found.map_err(failed)?.pop().ok_or_else(missing)
    }

    /// Scores each passage, several at a time.
    ///
    /// # Errors
    /// The first failure.
    pub fn score(&self, passages: &[Passage], likeliest: usize, vocabulary: usize) -> Result<Vec<Vec<TokenScore>>> {
        self.all(passages.len(), |i| {
            let passage = &passages[i];
            if passage.first >= passage.ids.len() {
                return Ok(Vec::new());
            }
            let (path, read) = match self.kind {
                ServerKind::Sglang => {
                    const PATH: &str = "/generate";
                    let body = passage.sglang(likeliest);
                    (PATH, passage.read_sglang(&self.http.post(PATH, &body, passage.limit(likeliest))?))
                }
                kind => {
                    const PATH: &str = "/v1/completions";
                    let body = passage.openai(self.model(), likeliest, kind == ServerKind::Gradus);
                    (PATH, passage.read_openai(&self.http.post(PATH, &body, passage.limit(likeliest))?))
                }
            };
            let scores = read.and_then(|scores| passage.checked(scores, likeliest, vocabulary));
            scores.map_err(|message| Failure::Never(self.http.wrong(path, &message)))
        })
    }

    /// Returns the ids into which the server tokenizes each text.
    ///
    /// # Errors
    /// The first failure.
    pub fn ids_of(&self, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        self.all(texts.len(), |i| {
            let (path, body) = score::text_request(self.kind, self.model(), &texts[i]);
            let answer = self.http.post(path, &body, ANSWER_BYTES)?;
            let ids = score::ids_of_text(self.kind, &answer);
            ids.map_err(|message| Failure::Never(self.http.wrong(path, &message)))
        })
    }

    /// Runs `once` for each of `n` tasks and returns all results in order.
    fn all<T: Send>(&self, n: usize, once: impl Fn(usize) -> Result<T, Failure> + Sync) -> Result<Vec<T>> {
        self.done.store(0, Ordering::SeqCst);
        let tasks: Vec<usize> = (0..n).collect();
        let answers = self.each(&tasks, |i| {
            let one = once(i)?;
            self.done.fetch_add(1, Ordering::SeqCst);
            Ok(one)
        });
        let mut found: Vec<Option<T>> = (0..n).map(|_| None).collect();
        for (i, answer) in answers {
            found[i] = Some(answer.map_err(|failure| self.error(failure))?);
        }
        // Nothing is missing: each entry was found, or the function has returned an error.
        Ok(found.into_iter().flatten().collect())
    }

    /// Samples the missing completions. Returns the server's message if it does not have the weights.
    fn sample_missing(
        &self,
        weights: &Weights,
        requests: &[CompletionRequest],
        found: &mut [Option<Vec<ServerCompletion>>],
    ) -> Result<Option<String>> {
        let missing: Vec<usize> = (0..requests.len()).filter(|&i| found[i].is_none()).collect();
        let answers = self.each(&missing, |i| {
            let completed = self.complete(weights, &requests[i])?;
            self.done.fetch_add(completed.len(), Ordering::SeqCst);
            Ok(completed)
        });
        let mut lost = None;
        for (i, answer) in answers {
            match answer {
                Ok(completed) => found[i] = Some(completed),
                Err(Failure::Lost(message)) => lost = Some(message),
                Err(failure) => return Err(self.error(failure)),
            }
        }
        Ok(lost)
    }

    /// Requests the completions of one prompt.
    fn complete(&self, weights: &Weights, request: &CompletionRequest) -> Result<Vec<ServerCompletion>, Failure> {
        let limit = request.limit();
        let adapter = weights.is_adapter.then_some(weights.name.as_str());
        let (path, read) = match self.kind {
            ServerKind::Sglang => {
                const PATH: &str = "/generate";
                (PATH, request.read_sglang(&self.http.post(PATH, &request.sglang(adapter), limit)?))
            }
            kind => {
                const PATH: &str = "/v1/completions";
                let body = request.openai(adapter.unwrap_or(self.model()), kind == ServerKind::Gradus);
                (PATH, request.read_openai(&self.http.post(PATH, &body, limit)?))
            }
        };
        let completed = read.map_err(|wrong| match wrong {
            AnswerProblem::BrokenOff => {
                let message = format!("{path} answered with an aborted completion");
                Failure::Later(Delay::Refusal { status: 200, message })
            }
            AnswerProblem::Unusable(message) => Failure::Never(self.http.wrong(path, &message)),
        })?;
        // A request names its adapter, but not the whole weights. A restarted server would therefore sample with other
        // weights.
        let is_current = |version: &String| weights.is_adapter || *version == weights.name;
        match completed.iter().filter_map(|completed| completed.version.as_ref()).find(|version| !is_current(version)) {
            Some(version) => {
                Err(Failure::Lost(format!("it samples with the weights `{version}`, not with `{}`", weights.name)))
            }
            None => Ok(completed),
        }
    }
}
