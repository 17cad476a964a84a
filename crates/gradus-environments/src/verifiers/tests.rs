//! Fake environment servers, built from recorded messages of `verifiers`, including faulty ones.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

use super::*;

type RequestLog = Arc<Mutex<Vec<(String, Value)>>>;

/// Behavior of a fake server in a run.
type Play = dyn Fn(&FakeEpisode) + Send + Sync;

/// An episode at a fake server.
struct FakeEpisode {
    /// URL at which it requests turns.
    url: String,
    task: Value,
    name: Vec<u8>,
    writer: Arc<Mutex<TcpStream>>,
}

impl FakeEpisode {
    /// Requests a continuation of `ids`; returns status and answer.
    fn ask(&self, ids: &[u32]) -> (u16, Value) {
        let url = self.url.replace("/v1", "/inference/v1/generate");
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let body = json!({ "model": MODEL, "token_ids": ids, "sampling_params": { "logprobs": 1 } }).to_string();
        let mut response = agent.post(&url).content_type("application/json").send(body).expect("an answer");
        let text = response.body_mut().read_to_string().expect("a text");
        (response.status().as_u16(), serde_json::from_str(&text).expect("JSON"))
    }

    /// Returns the policy's ids after `ids`.
    fn turn(&self, ids: &[u32]) -> Vec<u32> {
        serde_json::from_value(self.ask(ids).1["choices"][0]["token_ids"].clone()).expect("ids")
    }

    fn send(&self, kind: &str, body: &Value) {
        let data = loose::write(body);
        let frames = [&self.name[..], kind.as_bytes(), &data];
        zmtp::send(&mut *self.writer.lock().expect("no panic"), &frames).expect("sent");
    }

    /// Ends the episode with these rewards.
    fn end(&self, rewards: &Value) {
        self.send("delta", &json!({ "trace": "t", "open": { "id": "t" }, "nodes": [{ "token_ids": [1] }] }));
        self.send("delta", &json!({ "trace": "t", "set": { "rewards": rewards, "metrics": { "turns": 2.0 }, "agent": { "trainable": true } } }));
        self.send(
            "reply",
            &json!({ "success": true, "error": null, "head": { "ok": true, "errors": [] },
            "traces": [{ "id": "t", "nodes": 1, "calls": 0 }] }),
        );
    }
}

/// Starts a server that runs `play`, over any number of connections.
fn server(play: impl Fn(&FakeEpisode) + Send + Sync + 'static) -> (String, RequestLog) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("tcp://{}", listener.local_addr().expect("an address"));
    let (requests, play): (RequestLog, Arc<Play>) = (RequestLog::default(), Arc::new(play));
    let log = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (log, play) = (Arc::clone(&log), Arc::clone(&play));
            std::thread::spawn(move || connection(stream.expect("a connection"), &log, &play));
        }
    });
    (address, requests)
}

fn connection(mut stream: TcpStream, log: &RequestLog, play: &Arc<Play>) {
    if zmtp::greet(&mut stream, "ROUTER").is_err() {
        return;
    }
    let writer = Arc::new(Mutex::new(stream.try_clone().expect("a stream")));
    let mut reader = BufReader::new(stream);
    while let Ok(frames) = zmtp::receive(&mut reader, &mut |_| Ok(())) {
        let [name, method, payload] = &frames[..] else { panic!("{frames:?}") };
        let method = String::from_utf8(method.clone()).expect("a method");
        let payload = loose::read(payload).expect("a message");
        log.lock().expect("no panic").push((method.clone(), payload.clone()));
        let episode = FakeEpisode {
            url: payload["client"]["base_url"].as_str().unwrap_or_default().to_owned(),
            task: payload["task_data"].clone(),
            name: name.clone(),
            writer: Arc::clone(&writer),
        };
        match method.as_str() {
            "health" => episode.send("reply", &json!({ "success": true, "error": null })),
            "run" => {
                let play = Arc::clone(play);
                std::thread::spawn(move || play(&episode));
            }
            _ => episode.send("reply", &json!({ "success": true, "cancelled": true })),
        }
    }
}

fn config(address: &str) -> VerifiersConfig {
    serde_json::from_value(
        json!({ "address": address, "tokenizer": "/models/base", "renderer": "qwen3", "timeout_s": 20.0 }),
    )
    .expect("keys")
}

fn start() -> Start {
    let row = json!({ "prompt": "Tea?", "answer": 7 }).as_object().cloned().expect("an object");
    Start { name: "a".into(), seed: 1, row }
}

fn drawn(ids: &[u32]) -> SampledTurn {
    SampledTurn { ids: ids.to_vec(), logprobs: vec![-0.5; ids.len()], is_cut: false }
}

#[test]
fn a_server_plays_with_the_turns_of_the_policy() {
    let (address, requests) = server(|episode| {
        let first = episode.turn(&[1, 2, 3]);
        let (status, again) = episode.ask(&[1, 2, 3]);
        // A client that lost the answer requests it again.
        assert_eq!((status, &again["choices"][0]["token_ids"]), (200, &json!(first)));
        let ids = [&[1, 2, 3][..], &first, &[7, 8]].concat();
        let (_, second) = episode.ask(&ids);
        let choice = &second["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["logprobs"]["content"][0]["logprob"]),
            (&json!("length"), &json!(-0.25))
        );
        episode.end(&json!({ "right": { "score": 0.5, "weight": 2.0 }, "short": { "score": 1.0, "weight": -0.25 } }));
    });
    let environment = Verifiers::connect(&config(&address)).expect("it is there");
    assert!(environment.writes_prompts() && environment.tools().is_empty() && !environment.is_deterministic());
    let NewEpisode { mut episode, opening } = environment.begin(&start()).expect("begun");
    assert_eq!((episode.prompt_ids(), opening), (Some(&[1, 2, 3][..]), None));
    let observation = episode.step_sampled(&Turn::default(), &drawn(&[10, 11])).expect("answered");
    assert_eq!(observation.replies, [Reply::Tokens { ids: vec![7, 8], content: String::new() }]);
    let cut = SampledTurn { ids: vec![12], logprobs: vec![-0.25], is_cut: true };
    let observation = episode.step_sampled(&Turn::default(), &cut).expect("the end");
    assert_eq!((observation.is_done, observation.reward), (true, Some(0.75)));
    let metrics = [("right", 0.5), ("short", 1.0), ("turns", 2.0)].map(|(name, value)| (name.to_owned(), value));
    assert_eq!(observation.metrics, metrics.into());
    drop(episode);
    let requests = requests.lock().expect("no panic");
    let run = &requests.iter().find(|(method, _)| method == "run").expect("it was asked").1;
    assert_eq!(run["task_data"], json!({ "prompt": "Tea?", "answer": 7 }));
    assert_eq!(
        (&run["client"]["renderer_model_name"], &run["client"]["renderer"]["name"]),
        (&json!("/models/base"), &json!("qwen3"))
    );
    assert!(!requests.iter().any(|(method, _)| method == "cancel"), "{requests:?}");
}

#[test]
fn episodes_play_side_by_side_and_rows_may_hold_their_task_in_a_column() {
    let (address, _) = server(|episode| {
        let n = episode.task["n"].as_u64().expect("a number") as u32;
        let turn = episode.turn(&[n]);
        episode.end(&json!({ "same": { "score": f64::from(u8::from(turn == [n + 100])) } }));
    });
    let environment =
        Verifiers::connect(&VerifiersConfig { column: Some("task".into()), ..config(&address) }).expect("it is there");
    let row = |n: u32| json!({ "prompt": "x", "task": { "n": n } }).as_object().cloned().expect("an object");
    let begin = |n: u32| environment.begin(&Start { row: row(n), ..start() }).expect("begun").episode;
    let mut episodes: Vec<_> = (1..=20).map(begin).collect();
    for (n, episode) in (1..=20).rev().zip(episodes.iter_mut().rev()) {
        assert_eq!(episode.prompt_ids(), Some(&[n][..]));
        let observation = episode.step_sampled(&Turn::default(), &drawn(&[n + 100])).expect("the end");
        assert_eq!(observation.reward, Some(1.0));
    }
    let error = environment.begin(&start()).err().expect("there is no task").to_string();
    assert!(error.contains("its column `task` holds no object"), "{error}");
}

#[test]
fn what_goes_wrong_names_itself() {
    type Case = (fn(&FakeEpisode), &'static str);
    let at_first: [Case; 5] = [
        (|episode| episode.send("reply", &json!({ "success": false, "error": "KeyError: tea" })), "KeyError: tea"),
        (|episode| episode.end(&json!({})), "ended the episode before the policy wrote anything (reward none)"),
        (
            |episode| {
                episode.send("reply", &json!({ "success": true, "head": { "ok": false, "errors": [{ "type": "TaskError", "message": "no cup" }] } }))
            },
            "TaskError: no cup",
        ),
        (
            |episode| {
                let mut writer = episode.writer.lock().expect("no panic");
                zmtp::send(&mut *writer, &[&episode.name, b"reply", &[0xc1]]).expect("sent");
            },
            "its answer cannot be read",
        ),
        (
            |episode| drop(episode.writer.lock().expect("no panic").shutdown(std::net::Shutdown::Both)),
            "the connection is broken",
        ),
    ];
    for (play, message) in at_first {
        let (address, _) = server(play);
        let environment = Verifiers::connect(&config(&address)).expect("it is there");
        for _ in 0..2 {
            // This also holds after the connection broke: the next episode opens a new one.
            let error = environment.begin(&start()).err().expect(message).to_string();
            assert!(error.contains(message), "{message}: {error}");
        }
    }
    let later: [Case; 4] = [
        (
            |episode| drop(episode.ask(&[1, 2, 9, 9])),
            "the server rewrote the conversation: of 4 ids that the policy wrote and read, 2 are unchanged",
        ),
        (|episode| drop(episode.ask(&[1, 2, 3, 10])), "rewrote the conversation"),
        (|episode| episode.end(&json!({ "r": { "score": "much" } })), "the reward `r` is \"much\", not a number"),
        (|_| {}, "no answer of the environment server within"),
    ];
    for (play, message) in later {
        let (address, requests) = server(move |episode| {
            episode.turn(&[1, 2, 3]);
            play(episode);
        });
        // The last one waits for an answer that never comes.
        let timeout_s = if message.contains("within") { 3.0 } else { 60.0 };
        let environment = Verifiers::connect(&VerifiersConfig { timeout_s, ..config(&address) }).expect("it is there");
        let mut episode = environment.begin(&start()).expect("begun").episode;
        let error = episode.step_sampled(&Turn::default(), &drawn(&[10])).expect_err(message).to_string();
        assert!(error.contains(message), "{message}: {error}");
        drop(episode);
        // A new request arrives after the earlier ones.
        environment.hub.send("x", "health", &json!({})).expect("sent");
        let is_over = message.contains("not a number");
        let canceled = || requests.lock().expect("no panic").iter().any(|(method, _)| method == "cancel");
        let channel = environment.hub.channel();
        environment.hub.send(&channel.name, "health", &json!({})).expect("sent");
        assert!(matches!(channel.next(Instant::now() + Duration::from_secs(60)), Ok(Event::Reply(_))));
        assert_eq!(canceled(), !is_over, "{message}");
    }
}

#[test]
fn only_episodes_that_play_get_turns() {
    let (address, _) = server(|episode| drop(episode.turn(&[1])));
    let environment = Verifiers::connect(&config(&address)).expect("it is there");
    let episode = environment.begin(&start()).expect("begun").episode;
    let here = environment.hub.url("x");
    let root = here.trim_end_matches("/x/v1");
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let post = |path: &str, body: &str| {
        let response = agent.post(format!("{root}{path}")).content_type("application/json").send(body);
        response.expect("an answer").status().as_u16()
    };
    for (path, body, status) in [
        ("/x/inference/v1/generate", "{\"token_ids\": [1]}", 404),
        ("/x/inference/v1/generate", "{\"token_ids\": []}", 400),
        ("/x/inference/v1/generate", "{\"token_ids\": [-1]}", 400),
        ("/x/inference/v1/generate", "{\"token_ids\": [1], \"sampling_params\": {\"n\": 2}}", 400),
        ("/x/inference/v1/generate", "[", 400),
        ("/x/v1/completions", "{}", 404),
        ("/", "", 404),
    ] {
        assert_eq!(post(path, body), status, "{path} {body}");
    }
    let models = agent.get(format!("{here}/models")).call().expect("an answer").body_mut().read_to_string();
    assert!(models.expect("a text").contains("\"policy\""));
    for raw in [
        "GET",
        "GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /x/v1 HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(root.trim_start_matches("http://")).expect("a connection");
        stream.write_all(raw.as_bytes()).expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("closed");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    // Dropping an episode notifies the server at once.
    drop(episode);
}

#[test]
fn a_server_that_is_not_there_is_told_before_the_run() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    for (config, message) in [
        (config("localhost:5000"), "the `address` of the environment is `localhost:5000`"),
        (config(&format!("tcp://{nobody}")), "cannot be reached"),
        (
            VerifiersConfig { tokenizer: " ".into(), ..config("tcp://127.0.0.1:1") },
            "`tokenizer` of the environment is empty",
        ),
        (VerifiersConfig { timeout_s: 0.0, ..config("tcp://127.0.0.1:1") }, "`timeout_s` is 0"),
        (VerifiersConfig { listen: "192.0.2.1".into(), ..config("tcp://127.0.0.1:1") }, "cannot listen at `192.0.2.1`"),
    ] {
        let error = Verifiers::connect(&config).err().expect(message);
        assert!(matches!(error, Error::Config { .. }) && error.to_string().contains(message), "{message}: {error}");
    }
}
