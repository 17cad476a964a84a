//! Tests a server that samples for trainers: it takes ids and returns ids and log-probabilities, while adapters and weights change.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};

use gradus::device::DeviceChoice;
use gradus::generate::SamplingParams;
use gradus::inference::{MergeOptions, Sampled, merge};
use gradus::model::SavedWeights;
use gradus::rng::{Purpose, Seed, key_of};
use serde_json::{Value, json};

use crate::client::{Server, fixture, folder};
use crate::openai::{generated, generated_with, params, sampled};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Token that authorizes these servers' weight updates.
const TOKEN: &str = "the token for weights";

/// Writes an adapter of `model` to `to` in peft's format. Its values are derived from `seed`.
pub fn write_adapter(model: &str, to: &Path, seed: u32) {
    fs::create_dir_all(to).expect("a folder");
    // (name, inputs, outputs)
    let (layers, target, fan_in_fan_out): (Vec<(String, usize, usize)>, &str, bool) = match model {
        "gpt2" => ((0..2).map(|i| (format!("transformer.h.{i}.attn.c_attn"), 24, 72)).collect(), "c_attn", true),
        _ => ((0..2).map(|i| (format!("model.layers.{i}.self_attn.q_proj"), 32, 32)).collect(), "q_proj", false),
    };
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
        "target_modules": [target], "fan_in_fan_out": fan_in_fan_out, "base_model_name_or_path": null,
    });
    fs::write(to.join("adapter_config.json"), config.to_string()).expect("written");
    let (mut header, mut data, mut number) = (serde_json::Map::new(), Vec::new(), seed);
    let mut add = |name: String, shape: [usize; 2]| {
        let begin = data.len();
        for _ in 0..shape[0] * shape[1] {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            data.extend_from_slice(&(number as f32 / u32::MAX as f32 - 0.5).to_le_bytes());
        }
        let offsets = [begin, data.len()];
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }));
    };
    for (name, inputs, outputs) in &layers {
        add(format!("base_model.model.{name}.lora_A.weight"), [2, *inputs]);
        add(format!("base_model.model.{name}.lora_B.weight"), [*outputs, 2]);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(to.join("adapter_model.safetensors"), file).expect("written");
}

/// Starts a server whose weights may be replaced from the returned folder.
fn changing(models: &[&str]) -> (tempfile::TempDir, tempfile::TempDir, Server) {
    let (folder, weights) = (folder(models), tempfile::tempdir().expect("a folder"));
    let server = Server::of(folder.path(), HERE, |options| {
        options.weights = vec![weights.path().to_owned()];
        options.weights_token = Some(TOKEN.to_owned());
    });
    (folder, weights, server)
}

/// Sends a request that is authorized to change weights.
fn change(server: &Server, path: &str, body: &Value) -> crate::client::Answer {
    let token = format!("Bearer {TOKEN}");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut headers = vec![("Authorization", token.as_str())];
    if !body.is_empty() {
        headers.push(("Content-Type", "application/json"));
    }
    server.ask("POST", path, &headers, &body)
}

fn load(server: &Server, name: &str, path: &Path) -> crate::client::Answer {
    change(server, "/v1/load_lora_adapter", &json!({ "lora_name": name, "lora_path": path }))
}

/// Converts a JSON list to 32-bit floats.
fn floats(list: &Value) -> Vec<f32> {
    let one = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} is no number")) as f32;
    list.as_array().expect("a list").iter().map(one).collect()
}

/// Returns the log-probabilities of a choice of `/inference/v1/generate`, after checking that its tokens match its ids.
#[track_caller]
fn logprobs_of(choice: &Value) -> Vec<f32> {
    let content = choice["logprobs"]["content"].as_array().expect("log-probabilities");
    let ids = choice["token_ids"].as_array().expect("ids");
    assert_eq!(content.len(), ids.len());
    for (entry, id) in content.iter().zip(ids) {
        assert_eq!((&entry["token"], &entry["token_id"]), (&json!(format!("token_id:{id}")), id));
    }
    content.iter().map(|entry| entry["logprob"].as_f64().expect("a number") as f32).collect()
}

/// Tokenizes the prompt with the tokenizer of `server`.
fn ids_of(server: &Server, model: &str, prompt: &str) -> Vec<u32> {
    let request = json!({ "model": model, "prompt": prompt, "max_tokens": 0, "echo": true, "return_token_ids": true });
    let answer = server.post("/v1/completions", &request).json();
    serde_json::from_value(answer["choices"][0]["prompt_token_ids"].clone()).expect("ids")
}

#[track_caller]
fn assert_is(choice: &Value, expected: &Sampled) {
    assert_eq!(choice["token_ids"], json!(expected.completion_ids));
    assert_eq!(logprobs_of(choice), expected.logprobs);
    assert_eq!(choice["finish_reason"], if expected.stop == "length" { "length" } else { "stop" });
}

#[test]
fn ids_come_back_as_the_library_samples_them() {
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    let ids = ids_of(&server, "gpt2", "The tea is");
    for (count, sampling) in [
        (params(12), json!({})),
        (
            SamplingParams { temperature: 0.7, top_k: Some(9), top_p: 0.8, min_p: 0.01, ..params(12) },
            json!({ "temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.01 }),
        ),
        (SamplingParams { stop_ids: (100..200).collect(), ..params(12) }, {
            json!({ "stop_token_ids": (100..200).collect::<Vec<u32>>() })
        }),
    ] {
        let expected = generated("gpt2", "The tea is", 3, count, &[]);
        let mut request = json!({
            "request_id": "mine", "token_ids": ids,
            "sampling_params": { "n": 3, "seed": 7, "max_tokens": 12, "logprobs": 1, "skip_special_tokens": false },
        });
        request["sampling_params"]
            .as_object_mut()
            .expect("an object")
            .extend(sampling.as_object().expect("it").clone());
        let answer = server.post("/inference/v1/generate", &request);
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = answer.json();
        assert_eq!((&answer["request_id"], &answer["model"]), (&json!("mine"), &json!("gpt2")));
        let choices = answer["choices"].as_array().expect("choices");
        assert_eq!(choices.len(), 3);
        for (i, (choice, expected)) in choices.iter().zip(&expected).enumerate() {
            assert_eq!(choice["index"], i);
            assert_is(choice, expected);
            let content = choice["logprobs"]["content"].as_array().expect("tokens");
            assert!(content.iter().all(|token| token["top_logprobs"].as_array().is_some_and(|top| top.len() == 1)));
            let last = choice["token_ids"].as_array().expect("ids").last().expect("one");
            let stops = request["sampling_params"]["stop_token_ids"].as_array().is_some_and(|ids| ids.contains(last));
            assert_eq!(choice["stop_reason"], if stops { last.clone() } else { Value::Null });
        }
        // The same as a stream: every chunk has tokens, and the last chunk of a choice has its finish reason.
        request["stream"] = json!(true);
        request["stream_options"] = json!({ "include_usage": true });
        let (events, is_done) = server.post("/inference/v1/generate", &request).events();
        assert!(is_done);
        let (usage, chunks) = events.split_last().expect("events");
        assert_eq!(usage["usage"], answer["usage"]);
        for (i, choice) in choices.iter().enumerate() {
            let own: Vec<&Value> =
                chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == i).collect();
            let ids: Vec<Value> =
                own.iter().flat_map(|chunk| chunk["token_ids"].as_array().expect("ids").clone()).collect();
            assert_eq!(json!(ids), choice["token_ids"]);
            let streamed: Vec<f32> = own.iter().flat_map(|chunk| logprobs_of(chunk)).collect();
            assert_eq!(streamed, logprobs_of(choice));
            assert!(own.iter().all(|chunk| !chunk["token_ids"].as_array().expect("ids").is_empty()));
            let ends: Vec<&Value> = own.iter().map(|chunk| &chunk["finish_reason"]).collect();
            let (last, before) = ends.split_last().expect("chunks");
            assert!(*last == &choice["finish_reason"] && before.iter().all(|end| end.is_null()), "{ends:?}");
        }
    }
    // A trainer assigns a random stream to each completion: here those of the seed, in another order.
    let expected = generated("gpt2", "The tea is", 3, params(12), &[]);
    let keys: Vec<String> = [2, 0, 1].map(|i| key_of(&Seed(7).stream(Purpose::Generate, 0, i))).to_vec();
    let request = json!({
        "token_ids": ids, "sampling_params": { "n": 3, "random_streams": keys, "max_tokens": 12, "logprobs": 0 },
    });
    let answer = server.post("/inference/v1/generate", &request).json();
    for (choice, i) in answer["choices"].as_array().expect("choices").iter().zip([2, 0, 1]) {
        assert_is(choice, &expected[i]);
    }
    // Without a limit, a completion continues until the positions of the model are used up.
    let request = json!({ "token_ids": ids, "sampling_params": { "min_tokens": 400, "seed": 1 } });
    let long = server.post("/inference/v1/generate", &request).json();
    assert_eq!(long["choices"][0]["finish_reason"], "length");
    assert!(long["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 150), "{}", long["usage"]);
    assert_eq!((&long["choices"][0]["logprobs"], &long["prompt_logprobs"]), (&Value::Null, &Value::Null));
}

#[test]
fn prompts_are_scored_with_the_rank_of_each_id() {
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    let texts = ["The tea is warm and the cup is full", "A kettle"];
    let prompts: Vec<Vec<u32>> = texts.iter().map(|text| ids_of(&server, "gpt2", text)).collect();
    let echo = json!({ "model": "gpt2", "prompt": prompts, "max_tokens": 0, "logprobs": 20, "echo": true });
    let echo = server.post("/v1/completions", &echo).json();
    // A request like TRL's for the log-probabilities of a teacher.
    let request =
        json!({ "model": "gpt2", "prompt": prompts, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 20 });
    let answer = server.post("/v1/completions", &request);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    for (i, ids) in prompts.iter().enumerate() {
        let scored = answer["choices"][i]["prompt_logprobs"].as_array().expect("scores");
        assert_eq!((scored.len(), &scored[0]), (ids.len(), &Value::Null));
        let expected = &echo["choices"][i]["logprobs"];
        for (t, (position, id)) in scored.iter().zip(ids).enumerate().skip(1) {
            let position = position.as_object().expect("ids");
            assert_eq!(position[&id.to_string()]["logprob"], expected["token_logprobs"][t]);
            assert!((20..=21).contains(&position.len()));
            let mut by_rank: Vec<(u64, f64)> = position
                .values()
                .map(|entry| (entry["rank"].as_u64().expect("a rank"), entry["logprob"].as_f64().expect("a number")))
                .collect();
            by_rank.sort_by_key(|(rank, _)| *rank);
            assert!(by_rank.is_sorted_by(|(_, a), (_, b)| a >= b), "{by_rank:?}");
            let ranks: Vec<u64> = by_rank.iter().map(|(rank, _)| *rank).take(20).collect();
            assert_eq!(ranks, (1..=20).collect::<Vec<u64>>());
        }
    }
    // Ids instead of texts, and the log-probability of the token itself only.
    let request = json!({
        "model": "gpt2", "prompt": prompts[0], "max_tokens": 5, "seed": 7, "logprobs": 0, "return_token_ids": true,
        "return_tokens_as_token_ids": true, "return_weight_versions": true,
    });
    let choice = server.post("/v1/completions", &request).json()["choices"][0].clone();
    let names = |ids: &Value| -> Vec<String> {
        ids.as_array().expect("ids").iter().map(|id| format!("token_id:{id}")).collect()
    };
    assert_eq!(choice["logprobs"]["tokens"], json!(names(&choice["token_ids"])));
    // Each position has its own token alone.
    let top = choice["logprobs"]["top_logprobs"].as_array().expect("the likeliest");
    for (i, (top, name)) in top.iter().zip(names(&choice["token_ids"])).enumerate() {
        assert_eq!(*top, json!({ name: choice["logprobs"]["token_logprobs"][i] }));
    }
    assert_eq!(choice["weight_versions"], json!([{ "version": "default", "start": 0, "end": 5 }]));
    let chat = json!({
        "model": "gpt2", "messages": [{ "role": "user", "content": "Tea" }], "max_tokens": 5, "seed": 7,
        "logprobs": true, "top_logprobs": 0, "return_token_ids": true, "return_tokens_as_token_ids": true,
        "prompt_logprobs": 1,
    });
    let chat = server.post("/v1/chat/completions", &chat).json();
    let content = chat["choices"][0]["logprobs"]["content"].as_array().expect("tokens");
    let tokens: Vec<&str> = content.iter().filter_map(|token| token["token"].as_str()).collect();
    assert_eq!(tokens, names(&chat["choices"][0]["token_ids"]));
    let prompt = chat["prompt_token_ids"].as_array().expect("ids").len();
    assert_eq!(chat["prompt_logprobs"].as_array().map(Vec::len), Some(prompt));
}

#[test]
fn the_list_of_models_says_how_long_prompts_may_be() {
    let folder = folder(&["gpt2", "qwen3"]);
    let server = Server::over(folder.path());
    let models = server.get("/v1/models").json();
    let of = |i: usize| (models["data"][i]["id"].clone(), models["data"][i]["max_model_len"].clone());
    assert_eq!([of(0), of(1)], [(json!("gpt2"), json!(192)), (json!("qwen3"), json!(256))]);
    assert_eq!(server.get("/v1/models/qwen3").json()["max_model_len"], 256);
    let health = server.get("/health");
    assert_eq!((health.status, health.cookie(), health.body.as_str()), (200, None, ""));
    assert_eq!(server.get("/is_paused").json(), json!({ "is_paused": false }));
    assert_eq!(server.get("/get_world_size").json(), json!({ "world_size": 1 }));
    // There are two models, and the request names neither.
    let refused = server.post("/inference/v1/generate", &json!({ "token_ids": [1], "sampling_params": {} }));
    assert!(refused.status == 400 && refused.body.contains("has no `model`"), "{refused:?}");
}

#[test]
fn what_would_change_the_samples_is_refused() {
    let folder = folder(&["gpt2"]);
    let server = Server::over(folder.path());
    let ask = |sampling: Value, more: Value| {
        let mut request = json!({ "model": "gpt2", "token_ids": [5, 6], "sampling_params": sampling });
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        server.post("/inference/v1/generate", &request)
    };
    let key = key_of(&Seed(7).stream(Purpose::Generate, 0, 0));
    for (sampling, more, param) in [
        (json!({}), json!({ "token_ids": [] }), json!("token_ids")),
        (json!({}), json!({ "token_ids": [-1] }), json!("token_ids")),
        (json!({}), json!({ "token_ids": "tea" }), json!("token_ids")),
        (json!({}), json!({ "token_ids": [100_000] }), json!("token_ids")),
        (json!({ "suppress_tokens": [100_000] }), json!({}), json!("sampling_params.suppress_tokens")),
        (json!({ "min_tokens": 9, "max_tokens": 3 }), json!({}), json!("sampling_params.min_tokens")),
        (json!({ "max_new_tokens": 3 }), json!({}), json!("sampling_params.max_new_tokens")),
        (json!({}), json!({ "prompt": "a" }), json!("prompt")),
        (json!({}), json!({ "features": { "mm_hashes": {} } }), json!("features")),
        (json!({}), json!({ "sampling_params": [] }), json!("sampling_params")),
        (json!({ "max_tokens": 0 }), json!({}), json!("sampling_params.max_tokens")),
        (json!({ "logprobs": -1 }), json!({}), json!("sampling_params.logprobs")),
        (json!({ "ignore_eos": true }), json!({}), json!("sampling_params.ignore_eos")),
        (json!({ "flat_logprobs": true }), json!({}), json!("sampling_params.flat_logprobs")),
        (json!({ "structured_outputs": { "regex": "a" } }), json!({}), json!("sampling_params.structured_outputs")),
        (json!({ "n": 2, "random_streams": [key] }), json!({}), json!("sampling_params.random_streams")),
        (json!({ "random_streams": ["7"] }), json!({}), json!("sampling_params.random_streams")),
        (json!({ "prompt_logprobs": 1_000_000 }), json!({}), json!("sampling_params.prompt_logprobs")),
        (json!({ "prompt_logprobs": 1 }), json!({ "stream": true }), json!("sampling_params.prompt_logprobs")),
    ] {
        let answer = ask(sampling.clone(), more.clone());
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &param), "{sampling} {more} {answer:?}");
    }
    let neutral = json!({
        "ignore_eos": false, "structured_outputs": null, "max_tokens": 1, "output_kind": 2, "detokenize": false,
        "flat_logprobs": false,
    });
    assert_eq!(ask(neutral, json!({ "cache_salt": "s", "priority": 1 })).status, 200);
    // The scores of many long prompts would exceed the limit of a response.
    let prompts: Vec<Vec<u32>> = vec![vec![5; 190]; 50];
    let many = json!({ "model": "gpt2", "prompt": prompts, "max_tokens": 1, "prompt_logprobs": 128 });
    assert_eq!(server.post("/v1/completions", &many).json()["error"]["param"], "prompt_logprobs");
}

#[test]
fn nobody_changes_a_server_without_the_flag_and_the_token() {
    let (_folder, weights, server) = changing(&["gpt2"]);
    let outside = tempfile::tempdir().expect("a folder");
    let inside = weights.path().join("one");
    write_adapter("gpt2", &inside, 1);
    write_adapter("gpt2", &outside.path().join("two"), 1);
    let body = json!({ "lora_name": "a", "lora_path": inside });
    let paths = [
        "/pause",
        "/resume",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ];
    let json = ("Content-Type", "application/json");
    let basic = |token: &str| {
        use base64::Engine as _;
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("trainer:{token}")))
    };
    let right = basic(TOKEN);
    for path in paths {
        assert_eq!(server.post(path, &body).status, 401, "{path}");
        let wrong = server.ask("POST", path, &[json, ("Authorization", "Bearer something else")], &body.to_string());
        assert_eq!(wrong.status, 401, "{path}");
        // A page of another site sends the password that the browser has stored, together with its origin.
        let headers = [json, ("Authorization", right.as_str()), ("Origin", "http://evil.example")];
        assert_eq!(server.ask("POST", path, &headers, &body.to_string()).status, 403, "{path}");
        let closed = Server::over(_folder.path());
        let refused = closed.ask("POST", path, &[json, ("Authorization", &right)], &body.to_string());
        assert!(refused.status == 403 && refused.body.contains("--allow-weights"), "{path}: {refused:?}");
    }
    assert_eq!(server.get("/is_paused").json()["is_paused"], false);
    // Only adapters in the folder are loaded, and errors reveal nothing about other paths.
    let refused = |path: &Path| {
        let answer = load(&server, "a", path);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("lora_path")), "{answer:?}");
        answer.json()["error"]["message"].as_str().expect("a message").replace(&path.display().to_string(), "")
    };
    let there = refused(&outside.path().join("two"));
    assert_eq!(there, refused(&outside.path().join("nothing")));
    assert_eq!(there, refused(&weights.path().join("../..")));
    assert_eq!(there, refused(&inside.join("adapter_config.json")));
    #[cfg(unix)]
    {
        let link = weights.path().join("link");
        std::os::unix::fs::symlink(outside.path().join("two"), &link).expect("a link");
        assert_eq!(there, refused(&link));
        let file = inside.join("adapter_model.safetensors");
        fs::remove_file(&file).expect("removed");
        std::os::unix::fs::symlink(outside.path().join("two/adapter_model.safetensors"), &file).expect("a link");
        assert!(refused(&inside).contains("leads out of the served folder"));
    }
    write_adapter("gpt2", &weights.path().join("three"), 1);
    let headers = [json, ("Authorization", right.as_str())];
    let body = json!({ "lora_name": "a", "lora_path": weights.path().join("three") }).to_string();
    assert_eq!(server.ask("POST", "/v1/load_lora_adapter", &headers, &body).status, 200, "the password is the token");
    // If others can reach the server, the token for weights also grants the rights of the server's own token, but not the reverse.
    let open = Server::of(_folder.path(), IpAddr::from([0, 0, 0, 0]), |options| {
        options.weights = vec![weights.path().to_owned()];
        options.weights_token = Some(TOKEN.to_owned());
    });
    let bearer = |token: &str| format!("Bearer {token}");
    let own = bearer(open.address.token.as_deref().expect("a token"));
    assert_eq!(open.ask("POST", "/resume", &[("Authorization", &own)], "").status, 401);
    assert_eq!(open.ask("GET", "/v1/models", &[("Authorization", &bearer(TOKEN))], "").status, 200);
    assert_eq!(open.ask("POST", "/resume", &[("Authorization", &bearer(TOKEN))], "").status, 200);
    assert_eq!(open.get("/health").status, 401);
}

/// Files of a tokenizer.
const TEXT_FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// A stream whose response has started.
struct Begun(BufReader<TcpStream>);

impl Begun {
    fn new(server: &Server, body: &Value) -> Self {
        let mut stream = TcpStream::connect(server.address.socket).expect("the server listens");
        let (host, body) = (server.host(), body.to_string());
        let head = format!(
            "POST /inference/v1/generate HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("written");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(stream.read_line(&mut line).expect("the answer begins") > 0, "the server closed the connection");
        }
        Self(stream)
    }

    /// Reads the rest. Returns the index, finish reason and weight versions of each choice.
    fn ends(self) -> Vec<(u64, String, Value)> {
        let mut ends = Vec::new();
        for line in self.0.lines() {
            let line = line.expect("the stream goes on");
            let Some(value) = line.strip_prefix("data: ").and_then(|text| serde_json::from_str::<Value>(text).ok())
            else {
                continue;
            };
            let choice = &value["choices"][0];
            if let Some(reason) = choice["finish_reason"].as_str() {
                let index = choice["index"].as_u64().expect("an index");
                ends.push((index, reason.to_owned(), choice["weight_versions"].clone()));
            }
        }
        ends.sort_by_key(|(index, ..)| *index);
        ends
    }
}

#[test]
fn adapters_come_and_go_while_others_sample() {
    let (_folder, weights, server) = changing(&["gpt2", "qwen3"]);
    for model in ["gpt2", "qwen3"] {
        let path = weights.path().join(model);
        write_adapter(model, &path, 3);
        let name = format!("{model}-v1");
        let body = json!({ "lora_name": name, "lora_path": path, "base_model_name": model });
        // Meanwhile, a long stream of the base model is running.
        let ids = ids_of(&server, model, "The tea is");
        let long = json!({
            "model": model, "token_ids": ids, "stream": true,
            "sampling_params": { "n": 6, "seed": 3, "min_tokens": 100, "max_tokens": 100, "return_weight_versions": true },
        });
        let stream = Begun::new(&server, &long);
        let loaded = change(&server, "/v1/load_lora_adapter", &body);
        assert_eq!(loaded.status, 200, "{loaded:?}");
        let expected = generated_with(model, &path, "The tea is", 2, params(12));
        let plain = generated(model, "The tea is", 2, params(12), &[]);
        assert_ne!(expected[0].logprobs, plain[0].logprobs, "the adapter changes something");
        let ask = |name: &str| {
            let sampling =
                json!({ "n": 2, "seed": 7, "max_tokens": 12, "logprobs": 0, "return_weight_versions": true });
            let request = json!({ "model": name, "token_ids": ids, "sampling_params": sampling });
            server.post("/inference/v1/generate", &request)
        };
        for (name, version, expected) in [(&name, name.as_str(), &expected), (&model.to_owned(), "default", &plain)] {
            let answer = ask(name);
            assert_eq!(answer.status, 200, "{answer:?}");
            for (choice, expected) in answer.json()["choices"].as_array().expect("choices").iter().zip(expected) {
                assert_is(choice, expected);
                let spans = json!([{ "version": version, "start": 0, "end": expected.completion_ids.len() }]);
                assert_eq!(choice["weight_versions"], spans);
            }
        }
        let ends = stream.ends();
        assert!(ends.len() == 6 && ends.iter().all(|(_, reason, _)| reason == "length"), "{ends:?}");
        let models = server.get("/v1/models").json();
        let card =
            models["data"].as_array().expect("models").iter().find(|card| card["id"] == *name).expect("the adapter");
        let positions = if model == "gpt2" { 192 } else { 256 };
        assert_eq!((&card["parent"], &card["max_model_len"]), (&json!(model), &json!(positions)));
        // A name can be used once, unless the request replaces the adapter.
        let again = change(&server, "/v1/load_lora_adapter", &body);
        assert!(again.status == 400 && again.body.contains("load_inplace"), "{again:?}");
        write_adapter(model, &weights.path().join("other"), 4);
        let other = json!({
            "lora_name": name, "lora_path": weights.path().join("other"), "base_model_name": model, "load_inplace": true,
        });
        assert_eq!(change(&server, "/v1/load_lora_adapter", &other).status, 200);
        let expected = generated_with(model, &weights.path().join("other"), "The tea is", 2, params(12));
        assert_is(&ask(&name).json()["choices"][1], &expected[1]);
        // A completion that is being sampled with an adapter finishes even if the adapter is unloaded.
        let stream = Begun::new(
            &server,
            &json!({ "model": name, "token_ids": ids, "stream": true,
            "sampling_params": { "n": 6, "seed": 3, "min_tokens": 100, "max_tokens": 100, "return_weight_versions": true } }),
        );
        let unload = json!({ "lora_name": name });
        assert_eq!(change(&server, "/v1/unload_lora_adapter", &unload).status, 200);
        assert_eq!(change(&server, "/v1/unload_lora_adapter", &unload).status, 404);
        assert_eq!(ask(&name).status, 404);
        let span = json!([{ "version": name, "start": 0, "end": 100 }]);
        assert!(stream.ends().iter().all(|(_, reason, version)| reason == "length" && *version == span));
    }
    let refused = |body: Value, param: &str| {
        let answer = change(&server, "/v1/load_lora_adapter", &body);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{body}: {answer:?}");
    };
    let path = weights.path().join("gpt2");
    refused(json!({ "lora_name": "gpt2", "lora_path": path, "base_model_name": "gpt2" }), "lora_name");
    refused(json!({ "lora_name": "", "lora_path": path }), "lora_name");
    refused(json!({ "lora_path": path }), "lora_name");
    refused(json!({ "lora_name": "a" }), "lora_path");
    // An adapter of another model does not fit, and the server continues to work.
    let wrong = json!({ "lora_name": "a", "lora_path": path, "base_model_name": "qwen3" });
    assert_eq!(change(&server, "/v1/load_lora_adapter", &wrong).status, 400);
    let body = |i: usize| json!({ "lora_name": format!("a{i}"), "lora_path": path, "base_model_name": "gpt2" });
    let statuses: Vec<u16> = (0..17).map(|i| change(&server, "/v1/load_lora_adapter", &body(i)).status).collect();
    assert_eq!(statuses, [&[200; 16][..], &[400]].concat(), "there is a limit");
}

/// Writes different weights for `gpt2` to `to`.
fn write_weights(to: &Path, seed: u32) {
    let adapter = tempfile::tempdir().expect("a folder");
    write_adapter("gpt2", adapter.path(), seed);
    let options = MergeOptions {
        model: fixture("gpt2"),
        adapter: Some(adapter.path().to_string_lossy().into_owned()),
        output: to.to_owned(),
        overwrite: false,
        weights: SavedWeights::F32,
        device: DeviceChoice::cpu(),
    };
    merge(&options).expect("merged");
}

/// Replaces the weights with the same sequence of requests as vLLM's clients.
fn reload(server: &Server, path: &Path, version: &str, mode: &str) {
    assert_eq!(change(server, &format!("/pause?mode={mode}"), &Value::Null).json(), json!({ "status": "paused" }));
    assert_eq!(server.get("/is_paused").json()["is_paused"], true);
    let call = json!({ "method": "reload_weights", "kwargs": { "weights_path": path } });
    let answer = change(server, "/collective_rpc", &call);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(change(server, "/reset_prefix_cache", &Value::Null).json(), json!({ "success": true }));
    let version = json!({ "new_version": version });
    let answer = change(server, "/update_weight_version", &version);
    assert_eq!(answer.json(), json!({ "success": true, "new_version": version["new_version"] }));
    assert_eq!(change(server, "/resume", &Value::Null).json(), json!({ "status": "resumed" }));
    assert_eq!(server.get("/is_paused").json()["is_paused"], false);
}

#[test]
fn weights_are_replaced_and_each_completion_says_which_sampled_it() {
    let (_folder, weights, server) = changing(&["gpt2"]);
    let ids = ids_of(&server, "gpt2", "The tea is");
    let ask = |n: usize| {
        let sampling = json!({ "n": n, "seed": 7, "max_tokens": 12, "logprobs": 0, "return_weight_versions": true });
        json!({ "model": "gpt2", "token_ids": ids, "sampling_params": sampling })
    };
    let folders: Vec<PathBuf> = (1..=3).map(|i| weights.path().join(format!("step-{i}"))).collect();
    for (i, (path, mode)) in folders.iter().zip(["keep", "wait", "abort"]).enumerate() {
        write_weights(path, i as u32);
        // Every second folder has no tokenizer: the current tokenizer is kept.
        if i % 2 == 1 {
            TEXT_FILES.iter().for_each(|file| fs::remove_file(path.join(file)).expect("it was there"));
        }
        let mut long = ask(2);
        long["stream"] = json!(true);
        long["sampling_params"]["max_tokens"] = json!(100);
        long["sampling_params"]["min_tokens"] = json!(100);
        let stream = Begun::new(&server, &long);
        let version = format!("{}", i + 1);
        let before = if i == 0 { "default".to_owned() } else { i.to_string() };
        // Requests in the meantime are answered with the old or the new weights, and state which.
        let answers: Vec<Value> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| server.post("/inference/v1/generate", &ask(1)).json())).collect();
            reload(&server, path, &version, mode);
            threads.into_iter().map(|thread| thread.join().expect("answered")).collect()
        });
        let of = |path: Option<&Path>| match path {
            // Weights saved without a tokenizer are sampled with the same ids.
            Some(path) => {
                for file in TEXT_FILES {
                    fs::copy(Path::new(&fixture("gpt2")).join(file), path.join(file)).expect("copied");
                }
                sampled((&path.to_string_lossy(), None), "The tea is", 2, params(12), &[])
            }
            None => generated("gpt2", "The tea is", 2, params(12), &[]),
        };
        let (old, new) = (of(i.checked_sub(1).map(|i| folders[i].as_path())), of(Some(path)));
        assert_ne!(old[0].logprobs, new[0].logprobs, "the weights differ");
        for answer in answers {
            let choice = &answer["choices"][0];
            let sampled_by = choice["weight_versions"][0]["version"].as_str().expect("a version");
            if choice["finish_reason"] == "abort" {
                continue;
            }
            // Between the reload and the update of the version, weights are named after their folder.
            let is_old = sampled_by == before;
            assert!(is_old || sampled_by == version || path.ends_with(sampled_by), "{sampled_by}");
            assert_is(choice, if is_old { &old[0] } else { &new[0] });
        }
        let ends = stream.ends();
        assert_eq!(ends.len(), 2);
        for (_, reason, spans) in ends {
            assert!(reason == "length" || (mode == "abort" && reason == "abort"), "{mode}: {reason}");
            assert_eq!(spans[0]["version"], before, "what had begun ended with the weights that it had begun with");
        }
        let answer = server.post("/inference/v1/generate", &ask(2)).json();
        for (choice, expected) in answer["choices"].as_array().expect("choices").iter().zip(&new) {
            assert_is(choice, expected);
            assert_eq!(choice["weight_versions"][0]["version"], version);
        }
        assert_eq!(server.get("/weight_info").json(), json!({ "weight_version": version }));
    }
    // Weights that do not fit, or that do not exist, change nothing.
    let call = |path: &Path| {
        change(&server, "/collective_rpc", &json!({ "method": "reload_weights", "kwargs": { "weights_path": path } }))
    };
    fs::create_dir(weights.path().join("empty")).expect("a folder");
    assert_eq!(call(&weights.path().join("empty")).status, 400);
    assert_eq!(change(&server, "/collective_rpc", &json!({ "method": "sleep" })).json()["error"]["param"], "method");
    let answer = server.post("/inference/v1/generate", &ask(1)).json();
    assert_eq!(answer["choices"][0]["weight_versions"][0]["version"], "3");
}

#[test]
fn a_pause_lets_nothing_through_and_aborts_what_it_is_told_to() {
    let (_folder, _weights, server) = changing(&["gpt2"]);
    let long = json!({
        "model": "gpt2", "token_ids": [5, 6, 7], "stream": true,
        "sampling_params": { "n": 128, "seed": 3, "min_tokens": 180, "max_tokens": 180 },
    });
    let stream = Begun::new(&server, &long);
    assert_eq!(change(&server, "/pause?mode=keep", &Value::Null).status, 200);
    let wrong = change(&server, "/pause?mode=none", &Value::Null);
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("mode")), "{}", wrong.body);
    assert_eq!(change(&server, "/pause", &Value::Null).status, 200, "without a word, vLLM aborts");
    let ends = stream.ends();
    assert_eq!(ends.len(), 128);
    assert!(ends.iter().any(|(_, reason, _)| reason == "abort"), "{ends:?}");
    std::thread::scope(|scope| {
        let ask = json!({ "model": "gpt2", "token_ids": [5], "sampling_params": { "max_tokens": 2, "seed": 1 } });
        let server = &server;
        let waiting = scope.spawn(move || server.post("/inference/v1/generate", &ask).status);
        assert_eq!(change(server, "/resume", &Value::Null).status, 200);
        assert_eq!(waiting.join().expect("answered"), 200);
    });
}

#[test]
fn completions_and_ids_say_the_same() {
    let folder = folder(&["qwen3"]);
    let server = Server::over(folder.path());
    let ids = ids_of(&server, "qwen3", "The tea is");
    let text = json!({
        "model": "qwen3", "prompt": ids, "max_tokens": 12, "seed": 7, "logprobs": 0, "return_token_ids": true, "n": 2,
    });
    let text = server.post("/v1/completions", &text).json();
    let request =
        json!({ "token_ids": ids, "sampling_params": { "max_tokens": 12, "seed": 7, "logprobs": 0, "n": 2 } });
    let answer = server.post("/inference/v1/generate", &request).json();
    for (text, choice) in
        text["choices"].as_array().expect("choices").iter().zip(answer["choices"].as_array().expect("it"))
    {
        assert_eq!(text["token_ids"], choice["token_ids"]);
        assert_eq!(floats(&text["logprobs"]["token_logprobs"]), logprobs_of(choice));
    }
}
