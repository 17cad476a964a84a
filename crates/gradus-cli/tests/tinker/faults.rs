//! Faults of the network, the client and the server: no accepted step is lost, and none is applied twice.
//!
//! A client trains while requests are repeated, responses are lost, chunks arrive in any order, and the server is killed and restarted. Its
//! losses and final weights have the same bits as those of an undisturbed client.

use std::path::Path;

use prost::Message;
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::json;

use crate::client::{Answer, Request, datum, retrieve, send};
use crate::proto::ForwardBackwardRequest;
use crate::server::{Server, checkpoint, folder};

/// Number of steps in a run.
const STEPS: u64 = 12;

/// Number of faults, unless `GRADUS_FAULTS` sets it.
const FAULTS: usize = 40;

/// Creates a model with a seed.
fn make(port: u16) -> String {
    let session = Request::json("create_session", &json!({ "tags": [], "sdk_version": "0" })).send(port, true);
    let session = session.expect("an answer").json()["session_id"].as_str().expect("an id").to_owned();
    let lora = json!({ "rank": 2, "seed": 3, "train_unembed": true, "train_mlp": true, "train_attn": true });
    let body = json!({ "session_id": session, "model_seq_id": 0, "base_model": "qwen3", "lora_config": lora });
    let answer = Request::json("create_model", &body).send(port, true).expect("an answer").json();
    answer["model_id"].as_str().expect("an id").to_owned()
}

/// Returns the requests of step `step`: two chunks of one batch, and the optimizer step.
fn requests(model: &str, step: u64) -> Vec<Request> {
    let ids = |at: i32| [5, 40, 9 + step as i32, 11 + at, 12, 13, 14 + at];
    let data = |from: i32| (from..from + 3).map(|at| datum(&ids(at), &[1.0, 0.0, 1.0, 0.5, 1.0, -0.25])).collect();
    let first = 3 * step + 1;
    vec![
        Request::forward_backward(model, first, data(0)),
        Request::forward_backward(model, first + 1, data(3)),
        Request::step(model, first + 2),
    ]
}

/// Returns the result of a request.
fn wait(port: u16, request: &str) -> Answer {
    // Each call waits for a while on the server.
    (0..100).find_map(|_| retrieve(port, request)).expect("the request is done")
}

/// Counts of the faults.
#[derive(Debug, Default)]
struct Story {
    kills: usize,
    repeated: usize,
    unheard: usize,
    shuffled: usize,
}

impl Story {
    fn faults(&self) -> usize {
        self.kills + self.repeated + self.unheard + self.shuffled
    }
}

/// Results of all requests, and the files of the last checkpoint.
#[derive(PartialEq)]
struct Trained {
    results: Vec<Vec<u8>>,
    files: Vec<(String, Vec<u8>)>,
}

/// A client with its server, and the faults.
struct Trial<'f> {
    folder: &'f Path,
    server: Server,
    random: ChaCha8Rng,
    /// Probability of a fault at each request.
    rate: f64,
    story: Story,
}

impl Trial<'_> {
    fn goes_wrong(&mut self) -> bool {
        self.random.random_bool(self.rate)
    }

    /// Kills the server and restarts it on the same port.
    fn kill(&mut self) {
        let port = self.server.port;
        self.server.kill();
        self.server = Server::start(self.folder, port);
        self.story.kills += 1;
    }

    /// Sends a request until it is accepted. Returns its id.
    fn submit(&mut self, request: &Request) -> String {
        if self.goes_wrong() {
            match self.random.random_range(0..3) {
                0 => {
                    // The client never receives the response.
                    request.send(self.server.port, false);
                    self.story.unheard += 1;
                }
                1 => {
                    request.send(self.server.port, true);
                    self.story.repeated += 1;
                }
                _ => {
                    request.send(self.server.port, false);
                    self.kill();
                }
            }
        }
        let answer = request.send(self.server.port, true).expect("the server is there");
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        answer.json()["request_id"].as_str().expect("an id").to_owned()
    }

    /// Returns the result of a request.
    fn result(&mut self, request: &str) -> Vec<u8> {
        if self.goes_wrong() {
            // Some time passes, so the request may or may not be computed.
            for _ in 0..self.random.random_range(0..20) {
                send(self.server.port, "GET", "healthz", "application/json", b"", true);
            }
            self.kill();
        }
        let answer = wait(self.server.port, request);
        assert_eq!(answer.status, 200, "{request}: {}", String::from_utf8_lossy(&answer.body));
        answer.body
    }

    /// Trains all steps.
    fn train(&mut self) -> Trained {
        let (model, mut results) = (make(self.server.port), Vec::new());
        for step in 0..STEPS {
            let requests = requests(&model, step);
            let mut order: Vec<usize> = (0..requests.len()).collect();
            if self.goes_wrong() {
                order.shuffle(&mut self.random);
                self.story.shuffled += 1;
            }
            let mut ids = vec![String::new(); requests.len()];
            for at in order {
                ids[at] = self.submit(&requests[at]);
            }
            results.extend(ids.iter().map(|id| self.result(id)));
        }
        let save = Request::save(&model, 3 * STEPS + 1, "last");
        let id = self.submit(&save);
        self.result(&id);
        let directory = checkpoint(self.folder, &format!("tinker://{model}/weights/last"));
        let files = ["adapter_model.safetensors", "optimizer.safetensors"];
        let files = files.map(|name| (name.to_owned(), std::fs::read(directory.join(name)).expect("a checkpoint")));
        // A repeated request gets the same result.
        let requests = requests(&model, STEPS - 1);
        let again = self.submit(&requests[0]);
        assert_eq!(self.result(&again), results[results.len() - 3]);
        Trained { results, files: files.into() }
    }
}

fn trial(folder: &Path, seed: u64, rate: f64) -> Trial<'_> {
    let server = Server::start(folder, 0);
    Trial { folder, server, random: ChaCha8Rng::seed_from_u64(seed), rate, story: Story::default() }
}

#[test]
fn no_step_is_lost_and_none_is_taken_twice() {
    let target = std::env::var("GRADUS_FAULTS").ok().and_then(|faults| faults.parse().ok()).unwrap_or(FAULTS);
    let whole = folder(&["qwen3"]);
    let expected = trial(whole.path(), 0, 0.0).train();
    assert_eq!(expected.results.len() as u64, 3 * STEPS);
    let (mut faults, mut seed, mut kills) = (0, 1, 0);
    while faults < target {
        let folder = folder(&["qwen3"]);
        let mut trial = trial(folder.path(), seed, 0.25);
        let found = trial.train();
        let story = &trial.story;
        let other = found.results.iter().zip(&expected.results).position(|(a, b)| a != b);
        assert_eq!(other, None, "seed {seed}, {story:?}: another result");
        assert!(found == expected, "seed {seed}, {story:?}: other weights");
        faults += story.faults();
        kills += story.kills;
        seed += 1;
    }
    assert!(kills > 0, "the server was never killed");
    eprintln!("{} runs, {faults} faults, the server was killed {kills} times, identical", seed - 1);
}

/// A killed client can resume from its checkpoint, and the end of its session does not affect others.
#[test]
fn a_client_that_dies_goes_on_from_its_checkpoint() {
    let folder = folder(&["qwen3"]);
    let mut server = Server::start(folder.path(), 0);
    let ask = |request: &Request, port: u16| {
        let accepted = request.send(port, true).expect("an answer").json();
        wait(port, accepted["request_id"].as_str().expect("an id"))
    };
    let model = make(server.port);
    let mut expected = Vec::new();
    for step in 0..4 {
        if step == 2 {
            assert_eq!(ask(&Request::save(&model, 7, "half"), server.port).status, 200);
        }
        for (i, request) in requests(&model, step).iter().enumerate() {
            // After the checkpoint, sequence numbers are one higher.
            let request = numbered(request, &model, 3 * step + 1 + i as u64 + u64::from(step >= 2));
            expected.push(ask(&request, server.port).body);
        }
    }
    // The client has ended, and the server restarts.
    server.kill();
    let server = Server::start(folder.path(), 0);
    let session = Request::json("create_session", &json!({ "tags": [] })).send(server.port, true).expect("an answer");
    let session = session.json()["session_id"].as_str().expect("an id").to_owned();
    let path = format!("tinker://{model}/weights/half");
    let load = json!({ "session_id": session, "model_seq_id": 0, "path": path, "optimizer": true });
    let answer = Request::json("load_weights", &load).send(server.port, true).expect("an answer").json();
    let again = answer["model_id"].as_str().expect("an id").to_owned();
    assert_eq!(again, format!("{session}:train:0"));
    let mut found = Vec::new();
    for step in 2..4 {
        for (i, request) in requests(&again, step).iter().enumerate() {
            let request = numbered(request, &again, 3 * (step - 2) + 1 + i as u64);
            found.push(ask(&request, server.port).body);
        }
    }
    assert!(found == expected[6..], "the same steps from the checkpoint have the same results");
    // The files belong to the resumed model.
    let finished = send(server.port, "POST", &format!("sessions/{session}/finish"), "application/json", b"{}", true);
    assert_eq!(finished.expect("an answer").status, 200);
}

/// Returns the same request with another sequence number.
fn numbered(request: &Request, model: &str, number: u64) -> Request {
    if request.path == "optim_step" {
        return Request::step(model, number);
    }
    let mut of = ForwardBackwardRequest::decode(&request.body[..]).expect("it was just made");
    of.seq_id = number as i32;
    Request { body: of.encode_to_vec(), ..request.clone() }
}
