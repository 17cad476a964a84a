//! Fake servers with the formats of vLLM and SGLang, which also misbehave.

mod scores;
mod turns;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;

use burn::tensor::Device;
use serde_json::{Value, json};

use super::*;
use crate::model::adapter::{LoraConfig, TaskType};
use crate::model::{ModelDir, save_causal};
use crate::progress::Unwatched;
use crate::rng::{Purpose, Seed};
use crate::text::Tokenizer;

/// Reaction of a fake server to a request.
enum Reply {
    /// A JSON answer.
    Json(u16, Value),
    /// These bytes, after which the server closes the connection.
    Raw(String),
    /// No answer until the client gives up.
    Silence,
}

type RequestLog = Arc<Mutex<Vec<(String, Value)>>>;

/// A server whose answers are a function of the path and the body.
struct Fake {
    address: SocketAddr,
    /// Requests received so far.
    requests: RequestLog,
    /// Ends the server.
    end: Sender<()>,
}

impl Fake {
    fn new(answer: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (requests, answer) = (RequestLog::default(), Arc::new(answer));
        let (end, ended) = channel();
        let log = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Empty) {
                    return;
                }
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                let stream = stream.expect("a connection");
                std::thread::spawn(move || serve(stream, &log, &*answer));
            }
        });
        Self { address, requests, end }
    }

    fn options(&self, kind: ServerKind, shared: &Path) -> ServerOptions {
        ServerOptions { endpoint: self.endpoint(kind), shared: shared.to_owned(), shared_there: None, ahead: 0 }
    }

    fn endpoint(&self, kind: ServerKind) -> Endpoint {
        Endpoint {
            url: format!("http://{}", self.address),
            kind,
            model: None,
            key: Some("the-key".into()),
            connections: 3,
            timeout: Duration::from_secs(20),
            wait: Duration::from_secs(60),
            keys: "rollouts",
        }
    }

    /// Returns the requested paths, in order.
    fn paths(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").iter().map(|(path, _)| path.clone()).collect()
    }

    /// Returns the bodies sent to a path.
    fn bodies(&self, path: &str) -> Vec<Value> {
        let requests = self.requests.lock().expect("no panic");
        requests.iter().filter(|(requested, _)| requested == path).map(|(_, body)| body.clone()).collect()
    }

    /// Stops listening.
    fn end(&self) {
        self.end.send(()).expect("it listens");
        // One more connection wakes the server so that it can end.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, log: &RequestLog, answer: &(dyn Fn(&str, &Value) -> Reply + Sync)) {
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    let (mut first, mut length, mut has_key) = (String::new(), 0, false);
    if reader.read_line(&mut first).is_err() || first.is_empty() {
        return;
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        match line.trim().to_ascii_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().expect("a length"),
            Some(("authorization", value)) => has_key = value.trim() == "bearer the-key",
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = first.split(' ').nth(1).expect("a path").to_owned();
    let reply = match has_key {
        true => answer(&path, &body),
        false => Reply::Json(401, json!({ "error": "no key" })),
    };
    log.lock().expect("no panic").push((path, body));
    match reply {
        Reply::Json(status, content) => {
            let content = if content.is_null() { String::new() } else { content.to_string() };
            let head = format!("HTTP/1.1 {status} It\r\nContent-Type: application/json\r\nConnection: close\r\n");
            let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{content}", content.len());
        }
        Reply::Raw(text) => drop(stream.write_all(text.as_bytes())),
        // Reads until the client closes the connection.
        Reply::Silence => drop(reader.read_to_end(&mut Vec::new())),
    }
}

/// vLLM's answer at `/v1/completions`: completion `i` of prompt `p` counts up from `p[0] + i`.
fn completions(body: &Value, version: &str) -> Value {
    let prompt: Vec<u64> = serde_json::from_value(body["prompt"].clone()).expect("ids");
    let choice = |i: u64| {
        let ids: Vec<u64> = (0..body["max_tokens"].as_u64().expect("a limit")).map(|t| prompt[0] + i + t).collect();
        let names: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
        let logprobs: Vec<f64> = ids.iter().map(|id| -(*id as f64) / 64.0).collect();
        json!({
            "index": i, "text": "", "finish_reason": "length", "stop_reason": null, "prompt_token_ids": prompt,
            "token_ids": ids, "logprobs": { "tokens": names, "token_logprobs": logprobs, "top_logprobs": [] },
            "weight_versions": [{ "version": version, "start": 0, "end": ids.len() }],
        })
    };
    let choices: Vec<Value> = (0..body["n"].as_u64().expect("a number")).map(choice).collect();
    json!({ "id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": choices })
}

/// SGLang's answer at `/generate`.
fn generated(body: &Value, version: &str) -> Value {
    let prompts: Vec<Vec<u64>> = serde_json::from_value(body["input_ids"].clone()).expect("ids");
    let one = |(i, prompt): (usize, &Vec<u64>)| {
        let most = body["sampling_params"][i]["max_new_tokens"].as_u64().expect("a limit");
        let ids: Vec<u64> = (0..most).map(|t| prompt[0] + i as u64 + t).collect();
        let logprobs: Vec<Value> = ids.iter().map(|id| json!([-(*id as f64) / 64.0, id, null])).collect();
        json!({
            "text": "", "output_ids": ids,
            "meta_info": {
                "id": "1", "prompt_tokens": prompt.len(), "completion_tokens": ids.len(), "weight_version": version,
                "finish_reason": { "type": "length", "length": most }, "output_token_logprobs": logprobs,
            },
        })
    };
    prompts.iter().enumerate().map(one).collect()
}

/// A vLLM server that records the weights it was given.
fn vllm() -> Fake {
    let state = Mutex::new(("default".to_owned(), BTreeSet::new()));
    Fake::new(move |path, body| {
        let (version, adapters) = &mut *state.lock().expect("no panic");
        let name = |key: &str| body[key].as_str().expect("a name").to_owned();
        match path {
            "/v1/models" => return Reply::Json(200, json!({ "data": [{ "id": "base", "max_model_len": 192 }] })),
            "/update_weight_version" => *version = name("new_version"),
            "/collective_rpc" => {
                let path = body["kwargs"]["weights_path"].as_str().expect("a path");
                assert!(Path::new(path).join("model.safetensors").is_file(), "{path}");
            }
            "/v1/load_lora_adapter" => {
                let path = body["lora_path"].as_str().expect("a path");
                assert!(Path::new(path).join("adapter_model.safetensors").is_file(), "{path}");
                adapters.insert(name("lora_name"));
                return Reply::Raw("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\nSuccess:".into());
            }
            "/v1/unload_lora_adapter" => drop(adapters.remove(&name("lora_name"))),
            "/v1/completions" if body["model"] == "base" || adapters.contains(&name("model")) => {
                return Reply::Json(200, completions(body, version));
            }
            "/v1/completions" => return Reply::Json(404, json!({ "error": { "message": "no such model" } })),
            _ => {}
        }
        Reply::Json(200, Value::Null)
    })
}

fn request(n: u64) -> CompletionRequest {
    CompletionRequest {
        prompt: vec![10, 11],
        keys: (0..n).map(|i| key_of(&Seed(7).stream(Purpose::Rollout, 0, i))).collect(),
        params: Arc::new(SamplingParams { max_new_tokens: 3, stop_ids: vec![2], ..SamplingParams::default() }),
        stop: Arc::from([]),
        vocabulary: 320,
    }
}

fn whole_weights(name: &str) -> Weights {
    Weights { name: name.into(), step: 0, path: PathBuf::new(), there: "/there".into(), is_adapter: false }
}

/// A client of a server whose weights are always `v`, and which answers with a `change` of the right answer.
fn sampled(
    kind: ServerKind,
    change: impl Fn(usize, &mut Value) -> Option<Reply> + Send + Sync + 'static,
    set: impl Fn(&mut Endpoint),
) -> (Fake, Result<Vec<Vec<ServerCompletion>>>) {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let fake = Fake::new(move |path, body| {
        let mut right = match path {
            "/v1/completions" => completions(body, "v"),
            "/generate" => generated(body, "v"),
            "/v1/models" => return Reply::Json(200, json!({ "data": [{ "id": "base" }] })),
            _ => return Reply::Json(200, json!({ "success": true })),
        };
        let tried = tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        change(tried, &mut right).unwrap_or(Reply::Json(200, right))
    });
    let mut endpoint = fake.endpoint(kind);
    set(&mut endpoint);
    let client = Client::new(&endpoint).expect("an address");
    let found = client.find().and_then(|()| client.sample(&whole_weights("v"), &[request(2)]));
    (fake, found)
}

#[test]
fn answers_that_cannot_be_are_refused() {
    let first = |change: fn(&mut Value)| {
        move |_: usize, right: &mut Value| {
            change(&mut right["choices"][1]);
            None
        }
    };
    type Change = Box<dyn Fn(usize, &mut Value) -> Option<Reply> + Send + Sync>;
    let vllm: Vec<(Change, &str)> = vec![
        (Box::new(first(|choice| choice["index"] = json!(0))), "two completions have the index 0"),
        (Box::new(first(|choice| choice["index"] = json!(9))), "has the index 9"),
        (Box::new(first(|choice| choice["token_ids"][1] = json!(7))), "is that of \"token_id:12\", but the id is 7"),
        (Box::new(first(|choice| choice["token_ids"] = json!([1, 2, 3, 4]))), "4 ids, but 3 tokens"),
        (Box::new(first(|choice| choice["token_ids"] = Value::Null)), "no `token_ids`"),
        (Box::new(first(|choice| choice["token_ids"][1] = json!(-1))), "`token_ids[1]` of a completion is -1"),
        (Box::new(first(|choice| choice["prompt_token_ids"] = Value::Null)), "not support `return_token_ids`"),
        (Box::new(first(|choice| choice["logprobs"] = Value::Null)), "no log-probabilities"),
        (Box::new(first(|choice| choice["logprobs"]["token_logprobs"][0] = json!(0.5))), "0.5, above 0"),
        (Box::new(first(|choice| choice["logprobs"]["token_logprobs"][0] = json!("-1"))), "not a number"),
        (Box::new(first(|choice| choice["prompt_token_ids"] = json!([1, 10, 11]))), "differs from the one it was sent"),
        (Box::new(first(|choice| choice["finish_reason"] = json!("error"))), "the reason `error`"),
        (Box::new(first(|choice| choice["finish_reason"] = Value::Null)), "no `finish_reason`"),
        (
            Box::new(first(|choice| choice["weight_versions"] = json!([{ "version": "a" }, { "version": "b" }]))),
            "2 versions of the weights",
        ),
        (
            Box::new(first(|choice| {
                choice["token_ids"] = json!([319, 320]);
                choice["logprobs"] =
                    json!({ "tokens": ["token_id:319", "token_id:320"], "token_logprobs": [-1.0, -1.0] });
            })),
            "token id 320, but the model's vocabulary has 320 ids",
        ),
        (
            Box::new(first(|choice| {
                choice["token_ids"] = json!([]);
                choice["logprobs"] = json!({ "tokens": [], "token_logprobs": [] });
            })),
            "0 tokens, but must have 1 to 3",
        ),
        (
            Box::new(first(|choice| {
                choice["token_ids"] = json!([5, 5, 5, 5]);
                choice["logprobs"] = json!({ "tokens": vec!["token_id:5"; 4], "token_logprobs": vec![-1.0; 4] });
            })),
            "4 tokens, but must have 1 to 3",
        ),
        (
            Box::new(|_, right| {
                let more = right["choices"][0].clone();
                right["choices"].as_array_mut().expect("choices").push(more);
                None
            }),
            "2 completions were requested, but the answer has 3",
        ),
        (Box::new(|_, _| Some(Reply::Json(200, json!({ "choices": 3 })))), "no `choices`"),
        (Box::new(|_, _| Some(Reply::Json(400, json!({ "message": "too long" })))), "it answered 400: too long"),
        (Box::new(|_, _| Some(Reply::Json(302, json!({})))), "it answered 302"),
        (
            Box::new(|_, _| Some(Reply::Json(403, json!({ "error": { "message": "wrong: the-key" } })))),
            "it answered 403: wrong: …",
        ),
        (
            Box::new(|_, _| {
                let text = "{\"choices\": [NaN]}";
                let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", text.len());
                Some(Reply::Raw(format!("{head}{text}")))
            }),
            "the answer is not JSON",
        ),
        (
            Box::new(|_, right| {
                right["padding"] = json!("x".repeat(4 << 20));
                None
            }),
            "the answer has more than",
        ),
    ];
    for (change, message) in vllm {
        let (_fake, found) = sampled(ServerKind::Vllm, change, |_| {});
        let error = found.expect_err(message).to_string();
        assert!(error.contains(message) && error.contains("http://127.0.0.1"), "{message}: {error}");
        assert!(!error.contains("the-key"), "{error}");
    }
    let sglang: Vec<(Change, &str)> = vec![
        (Box::new(|_, right| Some(Reply::Json(200, right[0].clone()))), "not a list of completions"),
        (
            Box::new(|_, right| {
                right.as_array_mut().expect("a list").pop();
                None
            }),
            "2 completions were requested, but the answer has 1",
        ),
        (
            Box::new(|_, right| {
                right[0]["meta_info"]["output_token_logprobs"][1][1] = json!(7);
                None
            }),
            "is that of 7, but the id is 11",
        ),
        (
            Box::new(|_, right| {
                right[0]["meta_info"]["output_token_logprobs"] = Value::Null;
                None
            }),
            "no log-probabilities",
        ),
        (
            Box::new(|_, right| {
                right[1]["meta_info"]["prompt_tokens"] = json!(3);
                None
            }),
            "differs from the one it was sent",
        ),
        (
            Box::new(|_, right| {
                right[1]["output_ids"] = json!([-1]);
                None
            }),
            "`output_ids[0]` of a completion is -1, not a token id",
        ),
        (
            Box::new(|_, right| {
                right[1]["output_ids"] = Value::Null;
                None
            }),
            "no `output_ids`",
        ),
    ];
    for (change, message) in sglang {
        let (_fake, found) = sampled(ServerKind::Sglang, change, |_| {});
        let error = found.expect_err(message).to_string();
        assert!(error.contains(message), "{message}: {error}");
    }
}

#[test]
fn what_a_server_does_not_know_is_no_number() {
    let change = |_: usize, right: &mut Value| {
        right["choices"][0]["logprobs"]["token_logprobs"] = json!([null, -9999.0, -0.25]);
        None
    };
    let (_fake, found) = sampled(ServerKind::Vllm, change, |_| {});
    let found = found.expect("completions");
    let [unknown, sentinel, known] = found[0][0].logprobs[..] else { panic!("{found:?}") };
    assert!(unknown.is_nan() && sentinel.is_nan() && known == -0.25);
    assert_eq!(found[0][1].ids, [11, 12, 13]);
}

#[test]
fn a_server_that_is_busy_or_breaks_off_is_asked_again() {
    type Change = fn(usize, &mut Value) -> Option<Reply>;
    let changes: [(Change, usize); 5] = [
        (|tried, _| (tried < 2).then(|| Reply::Json(503, json!({ "error": "loading" }))), 3),
        (|tried, _| (tried < 1).then(|| Reply::Json(429, Value::Null)), 2),
        (|tried, _| (tried < 1).then(|| Reply::Json(408, Value::Null)), 2),
        (|tried, _| (tried < 1).then(|| Reply::Raw("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"cho".into())), 2),
        (
            |tried, right| {
                right["choices"][0]["finish_reason"] = json!(if tried < 1 { "abort" } else { "length" });
                None
            },
            2,
        ),
    ];
    for (change, tries) in changes {
        let (fake, found) = sampled(ServerKind::Vllm, change, |_| {});
        assert_eq!(found.expect("completions")[0].len(), 2);
        assert_eq!(fake.bodies("/v1/completions").len(), tries);
    }
    // An answer that never comes. On a busy machine, others may be late as well.
    let silent = |tried: usize, _: &mut Value| (tried < 1).then_some(Reply::Silence);
    let (fake, found) = sampled(ServerKind::Vllm, silent, |endpoint| endpoint.timeout = Duration::from_millis(300));
    assert_eq!(found.expect("completions")[0].len(), 2);
    assert!(fake.bodies("/v1/completions").len() >= 2);
}

#[test]
fn a_server_that_is_gone_is_waited_for_no_longer_than_asked() {
    let fake = vllm();
    let endpoint = Endpoint { wait: Duration::from_millis(250), ..fake.endpoint(ServerKind::Vllm) };
    let client = Client::new(&endpoint).expect("an address");
    client.find().expect("it is there");
    fake.end();
    let error = client.sample(&whole_weights("v"), &[request(1)]).expect_err("it is gone");
    assert!(error.to_string().contains("it has not answered for"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("start it again, or wait longer: `")), "{error}");
    // After a cancellation, the wait ends at once, however long it may be.
    let client = Client::new(&Endpoint { wait: Duration::from_secs(3600), ..endpoint }).expect("an address");
    client.stop();
    assert!(matches!(client.sample(&whole_weights("v"), &[request(1)]), Err(Error::Interrupted)));
}

#[test]
fn a_server_that_answers_with_errors_is_not_called_silent() {
    let refused = |_: usize, _: &mut Value| Some(Reply::Json(503, json!({ "error": "out of memory" })));
    let (_fake, found) = sampled(ServerKind::Vllm, refused, |endpoint| endpoint.wait = Duration::from_millis(50));
    let error = found.expect_err("it never works");
    assert!(error.to_string().contains("it has answered with an error for "), "{error}");
    assert!(error.to_string().ends_with(" s: /v1/completions answered 503: out of memory"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.starts_with("its output may show more")), "{error:?}");
    let aborted = |_: usize, right: &mut Value| {
        right["choices"][0]["finish_reason"] = json!("abort");
        None
    };
    let (_fake, found) = sampled(ServerKind::Vllm, aborted, |endpoint| endpoint.wait = Duration::from_millis(50));
    let error = found.expect_err("it never works").to_string();
    assert!(error.contains("/v1/completions answered with an aborted completion"), "{error}");
}

#[test]
fn a_server_that_cannot_read_the_weights_is_asked_a_few_times() {
    let fake = Fake::new(|path, _| match path {
        "/collective_rpc" => Reply::Json(500, json!({ "error": "no such folder" })),
        _ => Reply::Json(200, Value::Null),
    });
    let client = Client::new(&fake.endpoint(ServerKind::Vllm)).expect("an address");
    let error = client.load(&whole_weights("v")).expect_err("refused");
    let message = error.to_string();
    assert!(message.contains("it cannot load the weights: /collective_rpc answered 500: no such folder"), "{message}");
    assert!(error.hint().is_some_and(|hint| hint.contains("`rollouts.shared_at_server`")), "{error:?}");
    assert_eq!(fake.bodies("/collective_rpc").len(), 5);
    assert_eq!(fake.paths().last().map(String::as_str), Some("/resume"));
}

/// Records warnings, and ends the work after the first one.
#[derive(Default)]
struct Warned(std::cell::RefCell<Vec<String>>);

impl Progress for Warned {
    fn advance(&self, _: &'static str, _: usize, _: usize) -> Result<()> {
        if self.0.borrow().is_empty() { Ok(()) } else { Err(Error::Interrupted) }
    }

    fn warn(&self, message: &str) {
        self.0.borrow_mut().push(message.to_owned());
    }
}

#[test]
fn a_wait_shows_its_reason_while_it_lasts() {
    let (folder, setting) = (tempfile::tempdir().expect("a folder"), Setting::new(false));
    let fake = Fake::new(|path, _| match path {
        "/v1/models" => Reply::Json(200, json!({ "data": [{ "id": "base" }] })),
        "/v1/completions" => Reply::Json(503, json!({ "error": "out of memory" })),
        _ => Reply::Json(200, Value::Null),
    });
    let options = fake.options(ServerKind::Vllm, folder.path());
    let mut source = ServerSource::connect(options, &save, &Unwatched).expect("it is there");
    let progress = Warned::default();
    let sampler = Sampler { progress: &progress, ..setting.sampler() };
    let found = source.sample(setting.policy(0), vec![prompt(0)], &sampler, &stream);
    assert!(matches!(found, Err(Error::Interrupted)), "{found:?}");
    let warnings = progress.0.into_inner();
    assert!(warnings[0].contains(" has answered with an error for "), "{warnings:?}");
    let end = " s: /v1/completions answered 503: out of memory; requests are repeated for at most 60 s";
    assert!(warnings[0].ends_with(end), "{warnings:?}");
}

#[test]
fn weights_that_a_server_lost_are_loaded_again_once() {
    // The server was restarted and has its original weights.
    let other = |tried: usize, right: &mut Value| {
        if tried < 1 {
            right["choices"][0]["weight_versions"][0]["version"] = json!("default");
        }
        None
    };
    let (fake, found) = sampled(ServerKind::Vllm, other, |_| {});
    assert_eq!(found.expect("completions")[0].len(), 2);
    let rest = ["/pause?mode=keep", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"];
    let mut expected = vec!["/health", "/v1/models", "/v1/completions"];
    expected.extend(rest);
    expected.push("/v1/completions");
    assert_eq!(fake.paths(), expected);
    // Another run replaces the weights each time.
    let shared = |_: usize, right: &mut Value| {
        right["choices"][0]["weight_versions"][0]["version"] = json!("other");
        None
    };
    let (_fake, found) = sampled(ServerKind::Vllm, shared, |_| {});
    let error = found.expect_err("the weights are never its own");
    assert!(error.to_string().contains("it samples with the weights `other`, not with `v`"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.starts_with("does another run use this server?")), "{error:?}");
    let never = |_: usize, _: &mut Value| Some(Reply::Json(404, json!({ "detail": "no such model" })));
    let (fake, found) = sampled(ServerKind::Vllm, never, |_| {});
    assert!(found.expect_err("lost").to_string().contains("no such model"));
    assert_eq!(fake.bodies("/v1/completions").len(), 2);
}

#[test]
fn a_pause_ends_also_when_the_weights_cannot_be_loaded() {
    let fake = Fake::new(|path, _| match path {
        "/collective_rpc" => Reply::Json(400, json!({ "error": "no such file" })),
        "/v1/models" => Reply::Json(200, json!({ "data": [{ "id": "base" }] })),
        _ => Reply::Json(200, Value::Null),
    });
    let client = Client::new(&fake.endpoint(ServerKind::Vllm)).expect("an address");
    client.find().expect("it is there");
    let error = client.load(&whole_weights("v")).expect_err("refused").to_string();
    assert!(error.contains("no such file"), "{error}");
    assert_eq!(fake.paths().last().map(String::as_str), Some("/resume"));
    // Rejected adapters have their own message.
    let fake = Fake::new(|_, _| Reply::Json(200, json!({ "success": false, "error_message": "rank 64 is too large" })));
    let client = Client::new(&fake.endpoint(ServerKind::Sglang)).expect("an address");
    let adapter = Weights { is_adapter: true, ..whole_weights("v") };
    assert!(client.load(&adapter).expect_err("refused").to_string().contains("rank 64 is too large"));
    let unknown = Fake::new(|_, _| Reply::Json(404, Value::Null));
    let client = Client::new(&unknown.endpoint(ServerKind::Vllm)).expect("an address");
    let error = client.load(&adapter).expect_err("refused");
    assert!(error.hint().is_some_and(|hint| hint.contains("--enable-lora")), "{error}");
}

fn dir() -> ModelDir {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
    ModelDir::open(&path).expect("a fixture")
}

fn prompt(row: usize) -> Prompt {
    let ids = vec![10 * (row as u32 + 1), 11];
    Prompt {
        row,
        text: String::new(),
        ids,
        encoder_reads_prompt: false,
        messages: None,
        columns: serde_json::Map::new(),
    }
}

struct Setting {
    model: CausalLm,
    tokenizer: Tokenizer,
}

impl Setting {
    fn new(has_adapter: bool) -> Self {
        let mut model = CausalLm::load(&dir(), &Device::flex()).expect("a fixture");
        if has_adapter {
            let lora = LoraConfig { targets: vec!["c_attn".into()], ..LoraConfig::default() };
            let config = lora.peft_config(&dir(), TaskType::CausalLm, "base".into()).expect("it fits");
            let stream = &mut Seed(1).stream(Purpose::Init, 0, 0);
            model = model.with_fresh_adapter(&dir(), config, stream).expect("it fits");
        }
        Self { model, tokenizer: Tokenizer::from_dir(&dir().path).expect("a fixture") }
    }

    fn policy(&self, version: u64) -> Policy {
        Policy { model: self.model.clone(), version }
    }

    fn sampler(&self) -> Sampler<'_> {
        Sampler {
            tokenizer: &self.tokenizer,
            group_size: 2,
            params: SamplingParams { max_new_tokens: 3, stop_ids: vec![12], ..SamplingParams::default() },
            beams: None,
            stop: &[],
            masking: None,
            episodes: None,
            progress: &Unwatched,
        }
    }
}

fn stream(i: usize) -> Stream {
    Seed(7).stream(Purpose::Rollout, 0, i as u64)
}

fn save(policy: &CausalLm, path: &Path) -> Result<()> {
    save_causal(policy, &dir(), path)
}

#[test]
fn whole_weights_go_through_the_folder_and_completions_say_which_they_are_from() {
    let (folder, setting, fake) = (tempfile::tempdir().expect("a folder"), Setting::new(false), vllm());
    let options = fake.options(ServerKind::Vllm, folder.path());
    let mut source = ServerSource::connect(options, &save, &Unwatched).expect("it is there");
    assert!(!source.is_exact());
    let mut sample = |iteration: usize, version: u64| {
        source.at(iteration);
        let prompts = vec![prompt(0), prompt(1)];
        source.sample(setting.policy(version), prompts, &setting.sampler(), &stream).expect("completions")
    };
    let rollouts = sample(0, 0);
    assert_eq!((rollouts.len(), rollouts.group_size), (4, 2));
    let ids: Vec<&[u32]> = rollouts.rollouts.iter().map(|rollout| &rollout.completion_ids[..]).collect();
    assert_eq!(ids, [&[10, 11, 12][..], &[11, 12, 13], &[20, 21, 22], &[21, 22, 23]]);
    let last = &rollouts.rollouts[3];
    assert_eq!((last.prompt, &last.sampled_logprobs[..]), (1, &[-21.0 / 64.0, -22.0 / 64.0, -23.0 / 64.0][..]));
    let stops: Vec<StopReason> = rollouts.rollouts.iter().map(|rollout| rollout.stop).collect();
    assert_eq!(stops, [StopReason::StopId, StopReason::Length, StopReason::Length, StopReason::Length]);
    let text = continuation(&setting.tokenizer, &rollouts.prompts[1].ids, &last.completion_ids).expect("a text");
    assert_eq!(last.completion, text);
    let with = |rollouts: &Rollouts| rollouts.rollouts[0].sampled_with.clone().expect("a server sampled it");
    let first = with(&rollouts);
    assert!(first.version.starts_with("gradus-") && first.version.ends_with("-v0") && first.step == 0, "{first:?}");
    // The same weights are loaded once; new weights replace them.
    assert_eq!(with(&sample(1, 0)), first);
    let second = with(&sample(2, 5));
    assert!(second.version.ends_with("-v2") && second.step == 2, "{second:?}");
    assert_eq!(fake.bodies("/collective_rpc").len(), 2);
    let tag = first.version.trim_end_matches("-v0");
    let there = |name: &str| folder.path().join(tag).join(name).exists();
    assert_eq!((there("v0"), there("v2")), (false, true), "old weights are removed");
    let request = &fake.bodies("/v1/completions")[0];
    for (key, value) in [
        ("n", json!(2)),
        ("logprobs", json!(0)),
        ("temperature", json!(1.0)),
        ("top_k", json!(-1)),
        ("stop_token_ids", json!([12])),
        ("return_token_ids", json!(true)),
    ] {
        assert_eq!(request[key], value, "{key}");
    }
    assert!(
        request["seed"].as_u64().is_some_and(|seed| i64::try_from(seed).is_ok())
            && request.get("random_streams").is_none()
    );
    drop(source);
    assert!(!folder.path().join(tag).exists(), "nothing is left");
}

#[test]
fn each_version_of_an_adapter_has_a_name_of_its_own() {
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        let (folder, setting) = (tempfile::tempdir().expect("a folder"), Setting::new(true));
        let fake = match kind {
            ServerKind::Sglang => Fake::new(|path, body| match path {
                "/generate" => Reply::Json(200, generated(body, "default")),
                _ => Reply::Json(200, json!({ "success": true })),
            }),
            _ => vllm(),
        };
        let options = ServerOptions { shared_there: None, ..fake.options(kind, folder.path()) };
        let mut source = ServerSource::connect(options, &save, &Unwatched).expect("it is there");
        let mut names = Vec::new();
        for iteration in 0..2 {
            source.at(iteration);
            let policy = setting.policy(iteration as u64);
            let found = source.sample(policy, vec![prompt(0)], &setting.sampler(), &stream).expect("completions");
            names.push(found.rollouts[0].sampled_with.clone().expect("a server sampled it").version);
        }
        drop(source);
        let (load, unload, named) = match kind {
            ServerKind::Sglang => ("/load_lora_adapter", "/unload_lora_adapter", "/generate"),
            _ => ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"),
        };
        let of =
            |path: &str, key: &str| -> Vec<Value> { fake.bodies(path).iter().map(|body| body[key].clone()).collect() };
        assert_eq!(json!(of(load, "lora_name")), json!(names));
        assert_eq!(json!(of(unload, "lora_name")), json!(names), "the last goes at the end");
        let used = match kind {
            ServerKind::Sglang => of(named, "lora_path").into_iter().map(|paths| paths[1].clone()).collect(),
            _ => of(named, "model"),
        };
        assert_eq!(json!(used), json!(names));
        // The old adapter is unloaded after the new one is loaded.
        let paths = fake.paths();
        let at = |path: &str| paths.iter().position(|requested| requested == path);
        assert!(at(unload) > paths.iter().rposition(|requested| requested == load), "{paths:?}");
    }
}

#[test]
fn sglang_loads_weights_from_disk() {
    let (folder, setting) = (tempfile::tempdir().expect("a folder"), Setting::new(false));
    let version = Mutex::new("default".to_owned());
    let fake = Fake::new(move |path, body| {
        let version = &mut *version.lock().expect("no panic");
        match path {
            "/update_weights_from_disk" => {
                *version = body["weight_version"].as_str().expect("a name").to_owned();
                Reply::Json(200, json!({ "success": true, "message": "" }))
            }
            "/generate" => Reply::Json(200, generated(body, version)),
            _ => Reply::Json(200, Value::Null),
        }
    });
    let there = PathBuf::from("/mnt/weights");
    let options =
        ServerOptions { shared_there: Some(there.clone()), ..fake.options(ServerKind::Sglang, folder.path()) };
    let mut source = ServerSource::connect(options, &save, &Unwatched).expect("it is there");
    let found = source.sample(setting.policy(0), vec![prompt(0)], &setting.sampler(), &stream).expect("completions");
    assert_eq!(found.rollouts[1].completion_ids, [11, 12, 13]);
    let path = fake.bodies("/update_weights_from_disk")[0]["model_path"].as_str().expect("a path").to_owned();
    assert!(Path::new(&path).starts_with(&there) && path.ends_with("/v0"), "{path}");
    let request = &fake.bodies("/generate")[0];
    let seeds: BTreeSet<String> = (0..2).map(|i| request["sampling_params"][i]["sampling_seed"].to_string()).collect();
    assert_eq!((seeds.len(), request["input_ids"].clone()), (2, json!([[10, 11], [10, 11]])));
}

#[test]
fn a_server_that_is_ahead_samples_with_the_weights_of_then() {
    let (folder, setting, fake) = (tempfile::tempdir().expect("a folder"), Setting::new(false), vllm());
    let options = ServerOptions { ahead: 1, ..fake.options(ServerKind::Vllm, folder.path()) };
    let mut source = ServerSource::connect(options, &save, &Unwatched).expect("it is there");
    let sampler = setting.sampler();
    let mut steps = Vec::new();
    for iteration in 0..4 {
        source.at(iteration);
        // Each step changes the weights.
        let policy = || setting.policy(iteration as u64);
        let rollouts = source.sample(policy(), vec![prompt(iteration)], &sampler, &stream).expect("completions");
        assert_eq!(rollouts.rollouts[0].completion_ids[0], 10 * (iteration as u32 + 1));
        steps.push(rollouts.rollouts[0].sampled_with.as_ref().expect("a server sampled it").step);
        assert!(!source.has_begun(iteration + 1));
        for _ in 0..2 {
            source.begin(iteration + 1, policy(), vec![prompt(iteration + 1)], &sampler, &stream).expect("begun");
        }
        assert!(source.has_begun(iteration + 1));
    }
    assert_eq!(steps, [0, 0, 1, 2]);
    // A request started for other prompts is not used for these.
    source.at(4);
    let rollouts = source.sample(setting.policy(9), vec![prompt(0)], &sampler, &stream).expect("completions");
    let rollout = &rollouts.rollouts[0];
    assert_eq!((rollout.completion_ids[0], rollout.sampled_with.as_ref().expect("it").step), (10, 4));
}

/// Ends the work at the second progress report.
struct Ends(std::sync::atomic::AtomicUsize);

impl Progress for Ends {
    fn advance(&self, _: &'static str, _: usize, _: usize) -> Result<()> {
        match self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(Error::Interrupted),
        }
    }
}

#[test]
fn a_wait_can_be_interrupted() {
    let (folder, setting) = (tempfile::tempdir().expect("a folder"), Setting::new(false));
    let fake = Fake::new(|path, _| match path {
        "/v1/models" => Reply::Json(200, json!({ "data": [{ "id": "base" }] })),
        "/v1/completions" => Reply::Silence,
        _ => Reply::Json(200, Value::Null),
    });
    let endpoint = Endpoint { timeout: Duration::from_millis(400), ..fake.endpoint(ServerKind::Vllm) };
    let options = ServerOptions { endpoint, ..fake.options(ServerKind::Vllm, folder.path()) };
    let mut source = ServerSource::connect(options, &save, &Unwatched).expect("it is there");
    let progress = Ends(std::sync::atomic::AtomicUsize::new(0));
    let sampler = Sampler { progress: &progress, ..setting.sampler() };
    let found = source.sample(setting.policy(0), vec![prompt(0)], &sampler, &stream);
    assert!(matches!(found, Err(Error::Interrupted)), "{found:?}");
}

#[test]
fn what_no_server_does_is_refused_before_it_is_asked() {
    let (folder, setting, fake) = (tempfile::tempdir().expect("a folder"), Setting::new(false), vllm());
    let mut source =
        ServerSource::connect(fake.options(ServerKind::Vllm, folder.path()), &save, &Unwatched).expect("it");
    let params = SamplingParams { record: Record::Drawn, ..SamplingParams::default() };
    let sampler = Sampler { params, ..setting.sampler() };
    let error = source.sample(setting.policy(0), vec![prompt(0)], &sampler, &stream).expect_err("refused");
    assert!(error.to_string().contains("needs sampling in this process"), "{error}");
    let with = |endpoint: Endpoint| ServerOptions { endpoint, ..fake.options(ServerKind::Vllm, folder.path()) };
    let own = || fake.endpoint(ServerKind::Vllm);
    let named = with(Endpoint { model: Some("other".into()), ..own() });
    let error = ServerSource::connect(named, &save, &Unwatched).err().expect("refused").to_string();
    assert!(error.contains("no model `other`; it has base"), "{error}");
    let keyless = with(Endpoint { key: None, ..own() });
    let error = ServerSource::connect(keyless, &save, &Unwatched).err().expect("refused");
    assert!(error.to_string().contains("401") && error.hint().is_some(), "{error}");
    let error = ServerSource::connect(
        with(Endpoint { url: format!("http://x:secret-key@{}", fake.address), ..own() }),
        &save,
        &Unwatched,
    );
    let error = error.err().expect("refused");
    assert!(!format!("{error:?}").contains("secret-key"), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("`rollouts.key_variable`")), "{error:?}");
    let nowhere = with(Endpoint { url: "localhost:8000".into(), ..own() });
    assert!(
        ServerSource::connect(nowhere, &save, &Unwatched).err().expect("refused").to_string().contains("localhost")
    );
}
