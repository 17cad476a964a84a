//! Faults of the network, the client and the server: no step that was accepted is lost, and none is taken twice.
//!
//! A client trains while requests come twice, answers get lost, chunks come in any order, and the server is killed and started again.
//! Its losses and its last weights are, to the bit, those of a client that nothing happened to.

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

/// Steps of a run.
const STEPS: u64 = 12;

/// Faults that are made, unless `GRADUS_FAULTS` gives their number.
const FAULTS: usize = 40;

/// A model, made with a seed.
fn make(port: u16) -> String {
    let session = Request::json("create_session", &json!({ "tags": [], "sdk_version": "0" })).send(port, true);
    let session = session.expect("an answer").json()["session_id"].as_str().expect("an id").to_owned();
    let lora = json!({ "rank": 2, "seed": 3, "train_unembed": true, "train_mlp": true, "train_attn": true });
    let body = json!({ "session_id": session, "model_seq_id": 0, "base_model": "qwen3", "lora_config": lora });
    let answer = Request::json("create_model", &body).send(port, true).expect("an answer").json();
    answer["model_id"].as_str().expect("an id").to_owned()
}

/// The requests of step `step`: two chunks of one batch, and the step.
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

/// What became of a request.
fn wait(port: u16, request: &str) -> Answer {
    // Each time the server waits for it a while.
    (0..100).find_map(|_| retrieve(port, request)).expect("the request is done")
}

/// What happened.
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

/// What every request came to, and the files of the last checkpoint.
#[derive(PartialEq)]
struct Trained {
    results: Vec<Vec<u8>>,
    files: Vec<(String, Vec<u8>)>,
}

/// A client with its server, and what goes wrong.
struct Trial<'f> {
    folder: &'f Path,
    server: Server,
    random: ChaCha8Rng,
    /// With which probability something goes wrong at each request.
    rate: f64,
    story: Story,
}

impl Trial<'_> {
    fn goes_wrong(&mut self) -> bool {
        self.random.random_bool(self.rate)
    }

    /// Kills the server and starts it again at the same port.
    fn kill(&mut self) {
        let port = self.server.port;
        self.server.kill();
        self.server = Server::start(self.folder, port);
        self.story.kills += 1;
    }

    /// Sends a request until it is accepted; its id.
    fn submit(&mut self, request: &Request) -> String {
        if self.goes_wrong() {
            match self.random.random_range(0..3) {
                0 => {
                    // The client never hears of it.
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

    /// What became of a request.
    fn result(&mut self, request: &str) -> Vec<u8> {
        if self.goes_wrong() {
            // Some time passes: the request is computed, or not yet.
            for _ in 0..self.random.random_range(0..20) {
                send(self.server.port, "GET", "healthz", "application/json", b"", true);
            }
            self.kill();
        }
        let answer = wait(self.server.port, request);
        assert_eq!(answer.status, 200, "{request}: {}", String::from_utf8_lossy(&answer.body));
        answer.body
    }

    /// Trains.
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
        // Who asks again is told the same.
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
    let wanted = std::env::var("GRADUS_FAULTS").ok().and_then(|faults| faults.parse().ok()).unwrap_or(FAULTS);
    let whole = folder(&["qwen3"]);
    let expected = trial(whole.path(), 0, 0.0).train();
    assert_eq!(expected.results.len() as u64, 3 * STEPS);
    let (mut faults, mut seed, mut kills) = (0, 1, 0);
    while faults < wanted {
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

/// A client that is killed leaves a checkpoint to go on from, and its session ends without harm to others.
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
            // After the checkpoint, numbers are one higher.
            let request = numbered(request, &model, 3 * step + 1 + i as u64 + u64::from(step >= 2));
            expected.push(ask(&request, server.port).body);
        }
    }
    // The client is gone; so is the server for a moment.
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
    // The files are those of the model that goes on.
    let finished = send(server.port, "POST", &format!("sessions/{session}/finish"), "application/json", b"{}", true);
    assert_eq!(finished.expect("an answer").status, 200);
}

/// The same request under another number.
fn numbered(request: &Request, model: &str, number: u64) -> Request {
    if request.path == "optim_step" {
        return Request::step(model, number);
    }
    let mut of = ForwardBackwardRequest::decode(&request.body[..]).expect("it was just made");
    of.seq_id = number as i32;
    Request { body: of.encode_to_vec(), ..request.clone() }
}
