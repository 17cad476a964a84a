//! Tests the training API by request: who has access, which requests run only once, and which are refused and how.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use gradus::rng::{Purpose, Seed, Stream};
use gradus_web::TrainingOptions;
use prost::Message;
use serde_json::{Value, json};

use crate::client::{Answer, Server, folder};
use crate::proto;

/// Number of positions of the model `qwen3`.
const FULL: usize = 256;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A training server with tiny models, and one session.
struct Bench {
    server: Server,
    session: String,
}

impl Bench {
    fn over(folder: &Path) -> Self {
        Self::with(folder, TrainingOptions::default())
    }

    fn with(folder: &Path, options: TrainingOptions) -> Self {
        let server = Server::training(folder, HERE, options);
        let session = session(&server);
        Self { server, session }
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.server.post(&format!("/api/v1/{path}"), body)
    }

    /// Waits for the result of a request.
    fn wait(&self, request: &Value) -> Answer {
        let body = json!({ "request_id": request["request_id"], "allow_metadata_only": true });
        (0..100).map(|_| self.post("retrieve_future", &body)).find(|answer| answer.status != 408).expect("it is done")
    }

    fn make(&self, number: u64) -> String {
        let made = self.post("create_model", &self.of_model(number, json!({ "rank": 2, "seed": 1 })));
        assert_eq!(made.status, 200, "{}", made.body);
        let done = self.wait(&made.json());
        assert_eq!((done.status, &done.json()["type"]), (200, &json!("create_model")), "{}", done.body);
        made.json()["model_id"].as_str().expect("an id").to_owned()
    }

    fn of_model(&self, number: u64, lora: Value) -> Value {
        json!({ "session_id": self.session, "model_seq_id": number, "base_model": "qwen3", "lora_config": lora })
    }

    fn forward_backward(&self, request: &proto::ForwardBackwardRequest) -> Answer {
        let kind = [("Content-Type", "application/x-protobuf")];
        self.server.post_bytes("/api/v1/forward_backward", &kind, &request.encode_to_vec())
    }

    fn step(&self, model: &str, seq: u64) -> Answer {
        let body = json!({ "model_id": model, "seq_id": seq, "adam_params": { "learning_rate": 0.01 } });
        self.post("optim_step", &body)
    }
}

fn session(server: &Server) -> String {
    let made = server.post("/api/v1/create_session", &json!({ "tags": [], "user_metadata": {}, "sdk_version": "0" }));
    assert_eq!(made.status, 200, "{}", made.body);
    made.json()["session_id"].as_str().expect("an id").to_owned()
}

/// Returns a request to train on `ids`.
fn learn(model: &str, seq: u64, ids: &[i32]) -> proto::ForwardBackwardRequest {
    let n = ids.len() - 1;
    let tensor = |dense, dtype: proto::DType| {
        let encoding = Some(proto::Encoding::Dense(dense));
        proto::Tensor { encoding, dtype: dtype.into(), shape: vec![n as i64] }
    };
    let targets: Vec<i64> = ids[1..].iter().map(|&id| i64::from(id)).collect();
    let tokens = proto::bytes_of(&ids[..n], i32::to_le_bytes);
    let chunk = Some(proto::ChunkKind::EncodedText(proto::EncodedTextChunk { tokens }));
    let inputs = HashMap::from([
        ("target_tokens".to_owned(), tensor(proto::bytes_of(&targets, i64::to_le_bytes), proto::DType::Int64)),
        ("weights".to_owned(), tensor(proto::bytes_of(&vec![1.0; n], f32::to_le_bytes), proto::DType::Float32)),
    ]);
    let datum = proto::Datum { model_input: vec![proto::Chunk { chunk }], loss_fn_inputs: inputs };
    proto::ForwardBackwardRequest {
        model_id: model.to_owned(),
        seq_id: seq as i32,
        data: vec![datum],
        loss_fn: "cross_entropy".into(),
        ..Default::default()
    }
}

#[track_caller]
fn failed(answer: &Answer, category: &str, message: &str) {
    let value = answer.json();
    assert_eq!(value["category"], category, "{value}");
    assert!(value["error"].as_str().is_some_and(|error| error.contains(message)), "{value} does not say: {message}");
}

#[test]
fn without_the_flag_nothing_trains() {
    let folder = folder(&["qwen3"]);
    let server = Server::over(folder.path());
    for answer in [server.get("/api/v1/healthz"), server.post("/api/v1/create_session", &json!({}))] {
        assert_eq!(answer.status, 404);
        failed(&answer, "user", "--training-api");
    }
    assert!(!folder.path().join("tinker").exists());
}

#[test]
fn what_a_client_asks_before_it_trains() {
    let folder = folder(&["qwen3", "qwen3-reward", "t5"]);
    let bench = Bench::over(folder.path());
    assert_eq!(bench.server.get("/api/v1/healthz").json(), json!({ "status": "ok" }));
    assert_eq!(bench.post("client/config", &json!({ "sdk_version": "0" })).json()["pjwt_auth_enabled"], false);
    assert_eq!(bench.post("telemetry", &json!({ "events": [] })).json()["status"], "accepted");
    let supported = bench.server.get("/api/v1/get_server_capabilities").json();
    let names: Vec<&str> = supported["supported_models"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|of| of["model_name"].as_str())
        .collect();
    assert!(names.contains(&"qwen3") && !names.contains(&"qwen3-reward"), "{names:?}");
    let model = bench.make(0);
    let info = bench.post("get_info", &json!({ "model_id": model })).json();
    assert_eq!((&info["lora_rank"], &info["model_data"]["arch"]), (&json!(2), &json!("qwen3")), "{info}");
    let tokenizer = info["model_data"]["tokenizer_id"].as_str().expect("a folder");
    assert!(Path::new(tokenizer).join("tokenizer.json").is_file(), "{tokenizer}");
    assert_eq!(bench.post("session_heartbeat", &json!({ "session_id": bench.session })).status, 200);
    assert_eq!(bench.post("session_heartbeat", &json!({ "session_id": "s0" })).status, 404);
    let finished =
        bench.post(&format!("sessions/{}/finish", bench.session), &json!({ "reason": { "type": "success" } }));
    assert_eq!(finished.status, 200);
    let late = bench.post("session_heartbeat", &json!({ "session_id": bench.session }));
    assert_eq!(late.status, 410, "clients stop to send heartbeats");
    assert_eq!(bench.post("create_model", &bench.of_model(1, json!({ "rank": 2 }))).status, 410);
    let encoder = bench.post("create_model", &json!({ "session_id": session(&bench.server), "model_seq_id": 0, "base_model": "t5", "lora_config": { "rank": 2 } }));
    failed(&bench.wait(&encoder.json()), "user", "has an encoder");
}

#[test]
fn requests_are_done_once_and_in_order() {
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    let model = bench.make(0);
    // The model is created once, whatever the second request contains.
    assert_eq!(bench.make(0), model);
    // The step arrives first and waits for the pass that precedes it.
    let step = bench.step(&model, 2).json();
    let pass = bench.forward_backward(&learn(&model, 1, &[5, 40, 9, 11])).json();
    let norm = bench.wait(&step).json()["metrics"]["grad_norm:mean"].as_f64().expect("a norm");
    assert!(norm > 0.0);
    let response = bench.wait(&pass).body;
    // Send both again: the responses are the first ones, and there is no second step.
    assert_eq!(bench.step(&model, 2).json(), step);
    assert_eq!(bench.forward_backward(&learn(&model, 1, &[7, 7, 7])).json(), pass);
    assert_eq!(bench.wait(&pass).body, response);
    let nothing = bench.step(&model, 3).json();
    failed(&bench.wait(&nothing), "user", "there is no gradient");
    // A sequence number identifies one request.
    bench.forward_backward(&learn(&model, 5, &[5, 40]));
    let other = bench.step(&model, 5);
    assert_eq!(other.status, 400);
    failed(&other, "user", "`seq_id` 5 belongs to another request");
    assert_eq!(bench.step(&model, 0).status, 400);
    let unknown = bench.step("s:train:0", 1);
    assert_eq!(unknown.status, 404);
    failed(&unknown, "user", "there is no model");
    for request in ["", "x", "s:train:0:1", &format!("{model}:77"), &format!("{model}:x")] {
        let gone = bench.post("retrieve_future", &json!({ "request_id": request }));
        assert_eq!(gone.status, 410, "{request}: {}", gone.body);
    }
}

#[test]
fn a_request_that_never_comes_holds_nobody_up_for_ever() {
    let folder = folder(&["qwen3"]);
    let options = TrainingOptions { gap: Duration::ZERO, ..TrainingOptions::default() };
    let bench = Bench::with(folder.path(), options);
    let model = bench.make(0);
    let pass = bench.forward_backward(&learn(&model, 2, &[5, 40, 9])).json();
    failed(&bench.wait(&pass), "user", "request 1 of the model was not received");
    let late = bench.forward_backward(&learn(&model, 1, &[5, 40, 9]));
    assert_eq!(late.status, 410, "{}", late.body);
    // The following numbers are processed.
    let pass = bench.forward_backward(&learn(&model, 3, &[5, 40, 9])).json();
    assert_eq!(bench.wait(&pass).status, 200);
}

#[test]
fn a_large_batch_holds_nobody_up() {
    let folder = folder(&["qwen3"]);
    let options = TrainingOptions { pass_tokens: 64, patience: Duration::ZERO, ..TrainingOptions::default() };
    let bench = Bench { server: Server::training(folder.path(), HERE, options), session: String::new() };
    let soon = |request: &Value| {
        let body = json!({ "request_id": request["request_id"] });
        (0..1_000_000)
            .map(|_| bench.post("retrieve_future", &body))
            .find(|answer| answer.status != 408)
            .expect("it is done")
    };
    let make = || {
        let lora = json!({ "rank": 2, "seed": 1 });
        let body = json!({ "session_id": session(&bench.server), "model_seq_id": 0, "base_model": "qwen3", "lora_config": lora });
        let made = bench.post("create_model", &body).json();
        soon(&made);
        made["model_id"].as_str().expect("an id").to_owned()
    };
    let (large, small) = (make(), make());
    let mut batch = learn(&large, 1, &[5; 60]);
    batch.data = vec![batch.data[0].clone(); 400];
    let batch = bench.forward_backward(&batch).json();
    // While 400 passes are computed, another client makes steps, and a third one samples.
    for seq in 1..4 {
        let pass = bench.forward_backward(&learn(&small, 2 * seq - 1, &[5, 40, 9])).json();
        let step = bench.step(&small, 2 * seq).json();
        assert!(soon(&pass).status == 200 && soon(&step).body.contains("grad_norm"));
    }
    let made = json!({ "session_id": session(&bench.server), "sampling_session_seq_id": 0, "base_model": "qwen3" });
    let sampler = bench.post("create_sampling_session", &made).json()["sampling_session_id"].clone();
    let sample = json!({ "sampling_session_id": sampler, "seq_id": 0, "num_samples": 1, "sampling_params": { "max_tokens": 4 },
        "prompt": { "chunks": [{ "type": "encoded_text", "tokens": [5, 40, 9] }] } });
    assert_eq!(soon(&bench.post("asample", &sample).json()).status, 200);
    let waits = bench.post("retrieve_future", &json!({ "request_id": batch["request_id"] }));
    assert_eq!(waits.status, 408, "the large batch is still computed");
    assert_eq!(soon(&batch).status, 200);
}

/// Gives a request a matrix of 40 targets per token, of which at most one differs from 0, dense or sparse.
fn of_matrix(request: &mut proto::ForwardBackwardRequest, is_sparse: bool) {
    let columns = 40;
    let held: [(usize, i64, f32); 2] = [(7, 40, 1.0), (columns + 3, 9, -0.5)];
    let matrix = |dense: Vec<u8>, values: Vec<u8>, dtype: proto::DType| {
        let encoding = match is_sparse {
            false => proto::Encoding::Dense(dense),
            true => {
                let [crow, col] = [vec![0i64, 1, 2, 2], vec![7, 3]].map(|of| proto::bytes_of(&of, i64::to_le_bytes));
                proto::Encoding::SparseCsr(proto::SparseCsr { values, crow_indices: crow, col_indices: col })
            }
        };
        proto::Tensor { encoding: Some(encoding), dtype: dtype.into(), shape: vec![3, columns as i64] }
    };
    let (mut targets, mut weights) = (vec![0i64; 3 * columns], vec![0f32; 3 * columns]);
    held.iter().for_each(|&(cell, target, weight)| (targets[cell], weights[cell]) = (target, weight));
    let [ids, of_ids] = [targets, held.map(|of| of.1).to_vec()].map(|of| proto::bytes_of(&of, i64::to_le_bytes));
    let [numbers, of_numbers] =
        [weights, held.map(|of| of.2).to_vec()].map(|of| proto::bytes_of(&of, f32::to_le_bytes));
    let inputs = &mut request.data[0].loss_fn_inputs;
    inputs.insert("target_tokens".into(), matrix(ids, of_ids, proto::DType::Int64));
    inputs.insert("weights".into(), matrix(numbers, of_numbers, proto::DType::Float32));
}

#[test]
fn sparse_targets_are_dense_ones() {
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    let learned = [false, true].map(|is_sparse| {
        let model = bench.make(u64::from(is_sparse));
        let mut responses = Vec::new();
        for (seq, is_forward) in [(1, true), (2, false)] {
            let mut request = learn(&model, seq, &[5, 40, 9, 11]);
            request.forward_only = is_forward;
            of_matrix(&mut request, is_sparse);
            let answer = bench.wait(&bench.forward_backward(&request).json());
            assert!(
                answer.header("content-type").is_some_and(|kind| kind == "application/x-protobuf"),
                "{}",
                answer.body
            );
            responses.push(answer.body);
        }
        bench.wait(&bench.step(&model, 3).json());
        bench.wait(&bench.post("save_weights", &json!({ "model_id": model, "seq_id": 4, "path": "last" })).json());
        let file = format!("tinker/{}/weights/last/optimizer.safetensors", model.replace(':', "-"));
        (responses, std::fs::read(folder.path().join(file)).expect("a file"))
    });
    assert!(learned[0] == learned[1], "the same log-probabilities, loss and moments");
}

#[test]
fn models_that_rest_on_the_disk_learn_as_if_they_were_in_memory() {
    let losses = |models: usize| {
        let folder = folder(&["qwen3"]);
        let bench = Bench::with(folder.path(), TrainingOptions { models, ..TrainingOptions::default() });
        let ids = [bench.make(0), bench.make(1)];
        let mut responses = Vec::new();
        for step in 0..4 {
            for (i, model) in ids.iter().enumerate() {
                let text = [5, 40, 9 + i as i32, 11];
                // One model is moved to disk between the pass and the step of the other, with a gradient that no step has used yet.
                let pass = bench.forward_backward(&learn(model, 2 * step + 1, &text)).json();
                responses.push(bench.wait(&pass).body);
            }
            for model in &ids {
                responses.push(bench.wait(&bench.step(model, 2 * step + 2).json()).body);
            }
        }
        for (i, model) in ids.iter().enumerate() {
            let save = json!({ "model_id": model, "seq_id": 9, "path": "last" });
            bench.wait(&bench.post("save_weights", &save).json());
            let file = format!("tinker/{}/weights/last/optimizer.safetensors", model.replace(':', "-"));
            responses.push(format!("{i}: {:?}", std::fs::read(folder.path().join(file)).expect("a file")));
        }
        responses
    };
    assert!(losses(1) == losses(16));
}

#[test]
fn a_pass_that_fails_leaves_no_half_of_a_gradient() {
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    let model = bench.make(0);
    type Spoil = Box<dyn Fn(&mut proto::ForwardBackwardRequest)>;
    let cases: Vec<(Spoil, &str)> = vec![
        (Box::new(|of| of.loss_fn = "gspo".into()), "`loss_fn` is `gspo`"),
        (Box::new(|of| of.loss_fn = "ppo".into()), "`logprobs` is missing"),
        (
            Box::new(|of| of.loss_fn_config = HashMap::from([("beta".into(), 1.0)])),
            "which `cross_entropy` does not read",
        ),
        (Box::new(|of| of.data.clear()), "there are no data"),
        (Box::new(|of| of.data[0].model_input.clear()), "has no tokens"),
        (
            Box::new(|of| {
                of.data[0].model_input = vec![proto::Chunk { chunk: Some(proto::ChunkKind::Image(proto::Opaque {})) }]
            }),
            "has an image",
        ),
        (Box::new(|of| drop(of.data[0].loss_fn_inputs.remove("target_tokens"))), "`target_tokens` is missing"),
        (Box::new(|of| tensor(of, "weights").dtype = proto::DType::Int64.into()), "`weights` has the type int64"),
        (Box::new(|of| tensor(of, "target_tokens").dtype = 99), "`target_tokens` has the type none"),
        (Box::new(|of| tensor(of, "weights").shape = vec![2]), "`weights` has the shape [2]"),
        (Box::new(|of| tensor(of, "weights").encoding = None), "`weights` has 0 numbers"),
        (
            Box::new(|of| {
                tensor(of, "weights").encoding =
                    Some(proto::Encoding::Dense(proto::bytes_of(&[1.0, f32::NAN, 1.0], f32::to_le_bytes)))
            }),
            "number 2 of `weights` is NaN",
        ),
        (
            Box::new(|of| {
                tensor(of, "target_tokens").encoding =
                    Some(proto::Encoding::Dense(proto::bytes_of(&[5i64, -1, 3], i64::to_le_bytes)))
            }),
            "-1 is not a token",
        ),
        (
            Box::new(|of| {
                tensor(of, "target_tokens").encoding =
                    Some(proto::Encoding::Dense(proto::bytes_of(&[5i64, 320, 3], i64::to_le_bytes)))
            }),
            "holds the id 320",
        ),
        (Box::new(|of| tensor(of, "target_tokens").shape = vec![3, 1 << 40]), "per token, but 1 to"),
        (
            Box::new(|of| tensor(of, "target_tokens").shape = vec![1, 3]),
            "has the shape [1, 3], but `model_input` has 3 tokens: [3], or [3, K]",
        ),
    ];
    let mut seq = 0;
    let mut next = || {
        seq += 1;
        seq
    };
    for (spoil, message) in &cases {
        let good = bench.forward_backward(&learn(&model, next(), &[5, 40, 9, 11])).json();
        let mut bad = learn(&model, next(), &[5, 40, 9, 11]);
        spoil(&mut bad);
        let bad = bench.forward_backward(&bad).json();
        let step = bench.step(&model, next()).json();
        assert_eq!(bench.wait(&good).status, 200);
        failed(&bench.wait(&bad), "user", message);
        failed(&bench.wait(&step), "user", "the gradient is incomplete");
    }
    let pass = bench.forward_backward(&learn(&model, next(), &[5, 40, 9, 11])).json();
    assert_eq!(bench.wait(&pass).status, 200);
    assert_eq!(bench.wait(&bench.step(&model, next()).json()).json()["error"], Value::Null, "the next batch is whole");
}

fn tensor<'r>(request: &'r mut proto::ForwardBackwardRequest, name: &str) -> &'r mut proto::Tensor {
    request.data[0].loss_fn_inputs.get_mut(name).expect("it is there")
}

#[test]
fn bodies_may_be_compressed_but_not_endless() {
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    let model = bench.make(0);
    let body = learn(&model, 1, &[5, 40, 9, 11]).encode_to_vec();
    let send = |encoding: &str, body: &[u8]| {
        let headers = [("Content-Type", "application/x-protobuf"), ("Content-Encoding", encoding)];
        bench.server.post_bytes("/api/v1/forward_backward", &headers, body)
    };
    let small = zstd::encode_all(&body[..], 0).expect("compressed");
    assert_eq!(send("gzip", &body).status, 415);
    assert_eq!(send("zstd", &body).status, 400);
    assert_eq!(send("zstd", &small[..small.len() / 2]).status, 400);
    let bomb = zstd::encode_all(std::io::repeat(0).take_bytes(64 << 20), 3).expect("compressed");
    assert!(bomb.len() < 1 << 20);
    assert_eq!(send("zstd", &bomb).status, 413);
    let pass = send("zstd", &small).json();
    assert_eq!(bench.wait(&pass).status, 200);
    let json = bench.post("forward_backward", &json!({ "model_id": model }));
    assert_eq!(json.status, 415);
}

trait TakeBytes: std::io::Read + Sized {
    fn take_bytes(self, n: u64) -> std::io::Take<Self> {
        self.take(n)
    }
}
impl TakeBytes for std::io::Repeat {}

#[test]
fn where_others_reach_the_server_the_key_is_the_token() {
    let folder = folder(&["qwen3"]);
    let server = Server::training(folder.path(), IpAddr::from([0, 0, 0, 0]), TrainingOptions::default());
    let token = server.address.token.clone().expect("a token");
    let ask = |key: &str| {
        let headers = [("Content-Type", "application/json"), ("x-api-key", key)];
        server.ask("POST", "/api/v1/create_session", &headers, r#"{"tags": []}"#)
    };
    let none = server.post("/api/v1/create_session", &json!({ "tags": [] }));
    assert_eq!(none.status, 401);
    failed(&none, "user", "token");
    failed(&ask("tml-wrong"), "user", "printed when the server started");
    assert_eq!(ask(&format!("tml-{token}")).status, 200);
    assert_eq!(ask(&token).status, 200);
    // A form of another site cannot set the content type to JSON.
    let plain = server.ask(
        "POST",
        "/api/v1/create_session",
        &[("x-api-key", token.as_str()), ("Content-Type", "text/plain")],
        "{}",
    );
    assert_eq!(plain.status, 415);
    let foreign =
        [("x-api-key", token.as_str()), ("Content-Type", "application/json"), ("Origin", "http://evil.example")];
    assert_eq!(server.ask("POST", "/api/v1/create_session", &foreign, "{}").status, 403);
}

#[test]
fn there_are_so_many_sessions_and_the_silent_make_room() {
    let one = folder(&["qwen3"]);
    let options = TrainingOptions { sessions: 2, ..TrainingOptions::default() };
    let bench = Bench::with(one.path(), options.clone());
    session(&bench.server);
    let third = bench.post("create_session", &json!({}));
    assert_eq!(third.status, 429);
    failed(&third, "user", "all 2 sessions of this server are in use");
    failed(&third, "user", "`--training-sessions`");
    drop(bench);

    // When a silent session is closed, its weights are saved as a checkpoint.
    let two = folder(&["qwen3"]);
    let bench = Bench::with(two.path(), TrainingOptions { sessions: 1, unheard: Duration::ZERO, ..options });
    let model = bench.make(0);
    bench.forward_backward(&learn(&model, 1, &[5, 40, 9, 11]));
    assert_eq!(bench.wait(&bench.step(&model, 2).json()).status, 200);
    let next = session(&bench.server);
    let place = two.path().join("tinker").join(model.replace(':', "-")).join("weights/final");
    // The compute thread ends the old model before it creates the next.
    let created = bench.post("create_model", &json!({ "session_id": next, "model_seq_id": 0, "base_model": "qwen3", "lora_config": { "rank": 1, "seed": 1 } }));
    bench.wait(&created.json());
    assert!(place.join("adapter_model.safetensors").is_file(), "{place:?}");
    let load = json!({ "session_id": next, "model_seq_id": 1, "path": format!("tinker://{model}/weights/final"), "optimizer": true });
    let loaded = bench.wait(&bench.post("load_weights", &load).json());
    assert_eq!(loaded.json()["type"], "load_weights", "{}", loaded.body);
}

#[test]
fn a_model_loads_only_checkpoints_of_its_own_form() {
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    let model = bench.make(0);
    let save = json!({ "model_id": model, "seq_id": 1, "path": "saved" });
    let saved = bench.wait(&bench.post("save_weights", &save).json());
    assert_eq!(saved.json()["type"], "save_weights", "{}", saved.body);
    let path = format!("tinker://{model}/weights/saved");
    let load = |model: &str, seq: u64| {
        let body = json!({ "model_id": model, "seq_id": seq, "path": path, "optimizer": true });
        bench.wait(&bench.post("load_weights", &body).json())
    };
    let forms = [
        (json!({ "rank": 4, "seed": 1 }), "has the rank 2, but that of this model has 4"),
        (json!({ "rank": 2, "seed": 1, "train_mlp": false }), "is for layers named"),
    ];
    for (number, (form, message)) in (1..).zip(forms) {
        let rank = form["rank"].clone();
        let made = bench.post("create_model", &bench.of_model(number, form)).json();
        let created = bench.wait(&made);
        assert_eq!(created.json()["type"], "create_model", "{}", created.body);
        let other = made["model_id"].as_str().expect("an id").to_owned();
        failed(&load(&other, 1), "user", message);
        let info = bench.post("get_info", &json!({ "model_id": other })).json();
        assert_eq!(info["lora_rank"], rank, "{info}");
    }
    assert_eq!(load(&model, 2).json()["type"], "load_weights");
}

#[test]
fn a_server_that_starts_again_goes_on() {
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    let model = bench.make(0);
    let pass = bench.forward_backward(&learn(&model, 1, &[5, 40, 9, 11])).json();
    let response = bench.wait(&pass).body;
    let step = bench.step(&model, 2).json();
    let norm = bench.wait(&step).body;
    let save = |seq: u64, name: &str| json!({ "model_id": model, "seq_id": seq, "path": name });
    bench.wait(&bench.post("save_weights", &save(3, "a")).json());
    // A second server on the same folder is refused.
    let options = gradus_web::Options {
        folder: folder.path().to_owned(),
        host: HERE,
        port: 0,
        names: Vec::new(),
        models: Vec::new(),
        text: gradus::pretrained::TextFiles::default(),
        computing: gradus_web::ComputeOptions {
            device: gradus::device::DeviceChoice::cpu(),
            weights: gradus::model::WeightFormat::F32,
            places: 1,
        },
        training_api: Some(TrainingOptions::default()),
        starter: None,
        weights: Vec::new(),
        weights_token: None,
    };
    let error = gradus_web::serve(options, &mut |_| (), &|| true).expect_err("refused");
    assert!(error.to_string().contains("another server trains"), "{error}");
    let session = bench.session.clone();
    drop(bench);

    let server = Server::training(folder.path(), HERE, TrainingOptions::default());
    let bench = Bench { server, session };
    assert_eq!(bench.wait(&pass).body, response, "what was told is told again");
    assert_eq!(bench.wait(&step).body, norm);
    bench.wait(&bench.post("save_weights", &save(4, "b")).json());
    let files = |name: &str| {
        let run = folder.path().join("tinker").join(model.replace(':', "-")).join("weights").join(name);
        ["adapter_model.safetensors", "optimizer.safetensors"]
            .map(|file| std::fs::read(run.join(file)).expect("a file"))
    };
    assert!(files("a") == files("b"), "the same weights and moments");
    let over = bench.wait(&bench.post("save_weights", &save(5, "a")).json());
    failed(&over, "user", "exists already");
    for name in ["../x", "", ".state", "a/b", "a\\b"] {
        static SEQ: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(6);
        let seq = SEQ.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        failed(
            &bench.wait(&bench.post("save_weights", &save(seq, name)).json()),
            "user",
            "cannot be the name of a checkpoint",
        );
    }
    let path = format!("tinker://{model}/weights/a");
    let info = bench.post("weights_info", &json!({ "tinker_path": path })).json();
    assert_eq!((&info["base_model"], &info["lora_rank"]), (&json!("qwen3"), &json!(2)), "{info}");
    let listed = bench.server.get(&format!("/api/v1/training_runs/{model}/checkpoints")).json();
    assert_eq!(listed["checkpoints"].as_array().map(Vec::len), Some(2), "{listed}");
    let run = bench.server.get(&format!("/api/v1/training_runs/{model}")).json();
    assert_eq!(run["last_checkpoint"]["tinker_path"], format!("tinker://{model}/weights/b"), "{run}");
    let list = |path: &str| bench.server.get(&format!("/api/v1/{path}")).json();
    let runs = list("training_runs?limit=5");
    assert_eq!(runs["training_runs"], json!([run]), "{runs}");
    assert_eq!(runs["cursor"], json!({ "offset": 0, "limit": 5, "total_count": 1 }));
    let all = list("checkpoints");
    assert_eq!(
        (all["checkpoints"].as_array().map(Vec::len), &all["cursor"]["total_count"]),
        (Some(2), &json!(2)),
        "{all}"
    );
    assert_eq!(list("checkpoints?offset=1")["checkpoints"].as_array().map(Vec::len), Some(1));
    assert_eq!(list("sessions")["sessions"], json!([bench.session]));
    for (query, expected) in [
        ("limit=-1", "`limit` is `-1`, but a whole number of at least 0 is expected"),
        ("limit=2&offset=1.5", "`offset` is `1.5`, but a whole number of at least 0 is expected"),
    ] {
        let wrong = bench.server.get(&format!("/api/v1/training_runs?{query}"));
        assert_eq!(wrong.status, 400);
        failed(&wrong, "user", expected);
    }
    failed(&bench.server.get("/api/v1/audit"), "user", "does not support `GET /api/v1/audit`: `gradus docs tinker`");
    failed(&bench.server.get("/api/v1/training_runs?project_id=x"), "user", "`project_id` is not supported");
    let gone = bench.server.ask("DELETE", &format!("/api/v1/training_runs/{model}/checkpoints/weights/b"), &[], "");
    assert_eq!(gone.status, 200, "{}", gone.body);
    assert_eq!(bench.server.get("/api/v1/training_runs/..%2F..%2Fetc/checkpoints").status, 400);
}

#[test]
fn completions_and_what_is_wrong_with_a_request_for_them() {
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    let made = bench.post(
        "create_sampling_session",
        &json!({ "session_id": bench.session, "sampling_session_seq_id": 0, "base_model": "qwen3" }),
    );
    let sampler = made.json()["sampling_session_id"].as_str().expect("an id").to_owned();
    assert_eq!(bench.server.get(&format!("/api/v1/samplers/{sampler}")).json()["base_model"], "qwen3");
    let ask = |seq: u64, more: Value| {
        let mut body = json!({
            "sampling_session_id": sampler, "seq_id": seq, "num_samples": 2,
            "prompt": { "chunks": [{ "type": "encoded_text", "tokens": [5, 40, 9] }] },
            "sampling_params": { "max_tokens": 4, "seed": 1, "temperature": 1.0, "top_k": -1, "top_p": 1.0 },
        });
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        bench.post("asample", &body)
    };
    let accepted = ask(0, json!({}));
    assert_eq!(accepted.json()["sample_sequence_ids"].as_array().map(Vec::len), Some(2));
    let response = bench.wait(&accepted.json());
    assert!(response.header("content-type").is_some_and(|kind| kind == "application/x-protobuf"), "{}", response.head);
    assert_eq!(ask(0, json!({})).json(), accepted.json());
    let tokens = |ids: Value| json!({ "prompt": { "chunks": [{ "type": "encoded_text", "tokens": ids }] } });
    let params = |key: &str, value: Value| {
        let mut params = json!({ "max_tokens": 4 });
        params[key] = value;
        json!({ "sampling_params": params })
    };
    for (more, message) in [
        (json!({ "num_samples": 0 }), "`num_samples` is 0"),
        (json!({ "num_samples": 100_000 }), "`num_samples` is 100000"),
        (tokens(json!([-1])), "`prompt` has -1"),
        (tokens(json!([5, 1.5])), "`prompt` has 1.5"),
        (json!({ "prompt": { "chunks": [{ "type": "image", "data": "" }] } }), "only text is supported"),
        (params("temperature", json!(-1.0)), "`temperature` is -1"),
        (params("top_p", json!(0.0)), "`top_p` is 0"),
        (params("top_k", json!(-7)), "`top_k` is -7"),
        (params("max_tokens", json!(0)), "`max_tokens` is 0"),
        (params("stop", json!([""])), "`stop` is not a string"),
        (json!({ "prompt_alt_tokens_k": 2 }), "`prompt_alt_tokens_k` is not supported"),
        (json!({ "topk_sample_logprobs": 1000 }), "`topk_sample_logprobs` is 1000"),
        (json!({ "prompt_logprobs_last_n": 1 }), "needs `prompt_logprobs`"),
        (json!({ "prompt_logprobs": true, "prompt_logprobs_last_n": 3 }), "1 to 2 are possible"),
        (json!({ "target_prompt_logprobs": { "data": [1], "dtype": "int64", "shape": [1, 1] } }), "[2, K] is needed"),
        (json!({ "seq_id": null }), "`sampling_session_id` and `seq_id` are needed"),
    ] {
        let answer = ask(50, more);
        assert_eq!(answer.status, 400, "{}", answer.body);
        failed(&answer, "user", message);
    }
    // A text that fills the model has log-probabilities, and no room for a completion.
    let full = json!({ "prompt": tokens(json!(vec![5; FULL]))["prompt"], "prompt_logprobs": true, "num_samples": 2 });
    let answer = bench.wait(&ask(20, full).json());
    assert!(answer.header("content-type").is_some_and(|kind| kind == "application/x-protobuf"), "{}", answer.body);
    let mut unknown = vec![5; FULL];
    unknown[FULL - 1] = 320;
    failed(&bench.wait(&ask(21, tokens(json!(unknown))).json()), "user", "token id 320");
    let text = vec![5; FULL + 1];
    failed(&bench.wait(&ask(22, tokens(json!(text))).json()), "user", "shorten the text");
    for (seq, more, message) in [
        (1, tokens(json!([])), "has no tokens"),
        (2, tokens(json!([5, 320])), "token id 320"),
        (3, tokens(json!(vec![5; 300])), "300"),
        (
            4,
            json!({ "target_prompt_logprobs": { "data": [-1, -1], "dtype": "int64", "shape": [2, 1] } }),
            "has no token",
        ),
    ] {
        failed(&bench.wait(&ask(seq, more).json()), "user", message);
    }
    let missing = bench.post(
        "create_sampling_session",
        &json!({ "session_id": bench.session, "sampling_session_seq_id": 1, "base_model": "none" }),
    );
    assert_eq!(missing.status, 404);
    let unknown = ask(9, json!({ "sampling_session_id": "x" }));
    assert_eq!(unknown.status, 404);
}

#[test]
fn fields_and_deleted_checkpoints_are_named() {
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    for (lora, message) in [
        (json!({ "rank": -1 }), "`lora_config.rank` is -1, but must be at least 1"),
        (json!({ "rank": "a" }), "`lora_config.rank` cannot be read"),
        (json!({ "rank": 2, "seed": 0.5 }), "`lora_config.seed` cannot be read: 0.5 is not a whole number"),
    ] {
        let answer = bench.post("create_model", &bench.of_model(7, lora));
        assert_eq!(answer.status, 400, "{}", answer.body);
        failed(&answer, "user", message);
    }
    for (number, seed) in [(8, json!(1u64 << 63)), (9, json!(-1)), (10, Value::Null)] {
        let made = bench.post("create_model", &bench.of_model(number, json!({ "rank": 2, "seed": seed })));
        assert_eq!(bench.wait(&made.json()).json()["type"], "create_model");
    }
    let model = bench.make(0);
    let save = json!({ "model_id": model, "seq_id": 1, "path": "del" });
    let saved = bench.wait(&bench.post("save_weights_for_sampler", &save).json()).json();
    let create = json!({ "session_id": bench.session, "sampling_session_seq_id": 0, "model_path": saved["path"] });
    let sampler = bench.post("create_sampling_session", &create).json()["sampling_session_id"].clone();
    let run = format!("/api/v1/training_runs/{model}/checkpoints/sampler_weights/del");
    assert_eq!(bench.server.ask("DELETE", &run, &[], "").status, 200);
    let sample = json!({ "sampling_session_id": sampler, "seq_id": 0, "num_samples": 1, "sampling_params": { "max_tokens": 4 },
        "prompt": { "chunks": [{ "type": "encoded_text", "tokens": [5, 40, 9] }] } });
    let answer = bench.wait(&bench.post("asample", &sample).json());
    failed(&answer, "user", &format!("the checkpoint `tinker://{model}/sampler_weights/del` was deleted"));
}

/// Mutates bytes: truncates them, repeats a part, or changes some of them.
fn mutated(bytes: &[u8], stream: &mut Stream) -> Vec<u8> {
    use rand::Rng;
    let mut bytes = bytes.to_vec();
    let at = stream.random_range(0..bytes.len().max(1));
    match stream.random_range(0..4) {
        0 => bytes.truncate(at),
        1 => bytes.extend_from_within(at..),
        2 => bytes.splice(at..at, (0..8).map(|i| (i * 37) as u8)).for_each(drop),
        _ => {
            for _ in 0..=stream.random_range(0..4) {
                let at = stream.random_range(0..bytes.len().max(1));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = stream.random();
                }
            }
        }
    }
    bytes
}

/// `GRADUS_FUZZ=20000` sends that many requests.
#[test]
fn whatever_comes_is_answered() {
    use rand::Rng;
    let folder = folder(&["qwen3"]);
    let bench = Bench::over(folder.path());
    let model = bench.make(0);
    let made = bench.post(
        "create_sampling_session",
        &json!({ "session_id": bench.session, "sampling_session_seq_id": 0, "base_model": "qwen3" }),
    );
    let sampler = made.json()["sampling_session_id"].clone();
    let mut stream = Seed(7).stream(Purpose::Bench, 0, 0);
    let rounds = std::env::var("GRADUS_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let mut seq = 0;
    for _ in 0..rounds {
        seq += 1;
        let texts = [
            (
                "create_model",
                json!({ "session_id": bench.session, "model_seq_id": 0, "base_model": "qwen3", "lora_config": { "rank": 2 } }),
            ),
            (
                "optim_step",
                json!({ "model_id": model, "seq_id": seq, "adam_params": { "learning_rate": 0.001, "beta1": 0.9 } }),
            ),
            ("save_weights", json!({ "model_id": model, "seq_id": seq, "path": "fuzz", "overwrite": true })),
            (
                "load_weights",
                json!({ "model_id": model, "seq_id": seq, "path": format!("tinker://{model}/weights/fuzz"), "optimizer": true }),
            ),
            ("retrieve_future", json!({ "request_id": format!("{model}:1") })),
            ("get_info", json!({ "model_id": model })),
            ("weights_info", json!({ "tinker_path": format!("tinker://{model}/weights/fuzz") })),
            (
                "asample",
                json!({ "sampling_session_id": sampler, "seq_id": seq, "num_samples": 1, "prompt": { "chunks": [{ "type": "encoded_text", "tokens": [5, 6] }] },
                "sampling_params": { "max_tokens": 2, "stop": ["a"] }, "topk_prompt_logprobs": 1, "target_prompt_logprobs": { "data": [3], "dtype": "int64", "shape": [1, 1] } }),
            ),
            ("session_heartbeat", json!({ "session_id": bench.session })),
        ];
        let answer = match stream.random_range(0..2 * texts.len()) {
            i if i < texts.len() => {
                let (path, body) = &texts[i];
                let kind = [("Content-Type", "application/json")];
                let body = mutated(body.to_string().as_bytes(), &mut stream);
                bench.server.post_bytes(&format!("/api/v1/{path}"), &kind, &body)
            }
            _ => {
                // Most requests have a valid model and number, so that the server processes them.
                let body = learn(&model, seq, &[5, 40, 9, 11]).encode_to_vec();
                let head = model.len() + 8;
                let body = [&body[..head], &mutated(&body[head..], &mut stream)].concat();
                let kind = [("Content-Type", "application/x-protobuf")];
                bench.server.post_bytes("/api/v1/forward_backward", &kind, &body)
            }
        };
        assert!(answer.status != 0 && answer.status < 500, "{} {}", answer.head, answer.body);
        if answer.status != 200 {
            failed(&answer, "user", "");
        }
    }
    // Fill in the sequence numbers that were lost, so that everything that was accepted is processed.
    let fill: Vec<Value> =
        (1..=seq + 1).map(|seq| bench.step(&model, seq)).filter(|of| of.status == 200).map(|of| of.json()).collect();
    // A long run keeps only the latest results.
    for request in fill.iter().rev().take(1000) {
        let answer = bench.wait(request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        if answer.body.contains("\"category\"") {
            failed(&answer, "user", "");
        }
    }
    // The server still works for others.
    let other = bench.make(1);
    let pass = bench.forward_backward(&learn(&other, 1, &[5, 40, 9, 11])).json();
    assert_eq!(bench.wait(&pass).status, 200);
}
