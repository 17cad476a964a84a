//! Tests the OpenAI protocol: complete and streamed responses, and rejected requests.

use std::path::Path;

use gradus::device::DeviceChoice;
use gradus::generate::SamplingParams;
use gradus::inference::{Prompts, SampleOptions, Sampled, sample};
use gradus::model::{Precision, WeightFormat};
use gradus::pretrained::TextFiles;
use gradus::rng::Seed;
use serde_json::{Value, json};

use crate::client::{Server, fixture, folder};

fn server(models: &[&str]) -> (tempfile::TempDir, Server) {
    let folder = folder(models);
    let server = Server::over(folder.path());
    (folder, server)
}

/// Returns the completions that `gradus generate` samples for a prompt.
pub fn generated(model: &str, prompt: &str, n: usize, params: SamplingParams, stop: &[&str]) -> Vec<Sampled> {
    sampled((&fixture(model), None), prompt, n, params, stop)
}

/// Like [`generated`], with an adapter on the model.
pub fn generated_with(model: &str, adapter: &Path, prompt: &str, n: usize, params: SamplingParams) -> Vec<Sampled> {
    sampled((&fixture(model), Some(adapter)), prompt, n, params, &[])
}

/// Like [`generated`], with the model at the path `model` and an optional adapter.
pub fn sampled(
    (model, adapter): (&str, Option<&Path>),
    prompt: &str,
    n: usize,
    params: SamplingParams,
    stop: &[&str],
) -> Vec<Sampled> {
    let folder = tempfile::tempdir().expect("a folder");
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(&prompts, format!("{}\n", json!({ "prompt": prompt }))).expect("written");
    let options = SampleOptions {
        model: model.to_owned(),
        adapter: adapter.map(|path| path.to_string_lossy().into_owned()),
        prompts: Prompts::Data(prompts.to_string_lossy().into_owned()),
        params,
        group_size: n,
        beams: None,
        stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
        seed: Seed(7),
        rename: Vec::new(),
        max_rows: None,
        bad_rows: gradus::data::BadRows::Fail,
        at_once: None,
        compute: Precision::F32,
        weights: WeightFormat::F32,
        text: TextFiles::default(),
        device: DeviceChoice::cpu(),
    };
    let mut found = Vec::new();
    sample::<gradus::Error>(&options, &mut |_, _| {}, &mut |sampled| {
        found.push(sampled);
        Ok(())
    })
    .expect("completions");
    found
}

pub fn params(max_new_tokens: usize) -> SamplingParams {
    SamplingParams { max_new_tokens, ..SamplingParams::default() }
}

/// Removes the fields of `value` that differ in each response.
fn timeless(mut value: Value) -> Value {
    for key in ["id", "created"] {
        value.as_object_mut().expect("an object").remove(key);
    }
    value
}

#[test]
fn a_completion_is_what_generate_samples_from_the_same_seed() {
    let (_folder, server) = server(&["gpt2"]);
    let expected = generated("gpt2", "The tea is", 3, params(12), &[]);
    let request = json!({
        "model": "gpt2", "prompt": "The tea is", "max_tokens": 12, "n": 3, "seed": 7, "logprobs": 2,
        "return_token_ids": true,
    });
    let answer = server.post("/v1/completions", &request);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("gpt2")));
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 3);
    let mut tokens = 0;
    for (i, (choice, expected)) in choices.iter().zip(&expected).enumerate() {
        assert_eq!(choice["index"], i);
        assert_eq!(choice["text"], expected.completion);
        assert_eq!(choice["token_ids"], json!(expected.completion_ids));
        let reason = if expected.stop == "length" { "length" } else { "stop" };
        assert_eq!(choice["finish_reason"], reason);
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().expect("logprobs");
        assert_eq!(logprobs.len(), expected.logprobs.len());
        for (found, expected) in logprobs.iter().zip(&expected.logprobs) {
            assert!((found.as_f64().expect("a number") - f64::from(*expected)).abs() < 1e-5);
        }
        let top = choice["logprobs"]["top_logprobs"].as_array().expect("the likeliest");
        // The likeliest tokens, and the sampled one if it is another.
        assert!(top.iter().all(|top| (1..=3).contains(&top.as_object().expect("by text").len())), "{top:?}");
        let names = choice["logprobs"]["tokens"].as_array().expect("tokens");
        assert!(names.iter().zip(top).all(|(name, top)| top.get(name.as_str().expect("a text")).is_some()), "{top:?}");
        tokens += logprobs.len();
    }
    assert_eq!(answer["usage"]["completion_tokens"], tokens);
    // A second request gives the same result, and so does a streamed one.
    assert_eq!(timeless(server.post("/v1/completions", &request).json()), timeless(answer.clone()));
    let mut streamed = request.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({ "include_usage": true });
    let (events, is_done) = server.post("/v1/completions", &streamed).events();
    assert!(is_done);
    let (mut texts, mut ids, mut prompts) = (vec![String::new(); 3], vec![Vec::new(); 3], vec![Vec::new(); 3]);
    for event in &events {
        for choice in event["choices"].as_array().expect("choices") {
            let i = choice["index"].as_u64().expect("an index") as usize;
            texts[i] += choice["text"].as_str().expect("a text");
            ids[i].extend(choice["token_ids"].as_array().expect("ids").clone());
            prompts[i].extend(choice.get("prompt_token_ids").cloned());
        }
    }
    assert!(choices.iter().zip(&prompts).all(|(choice, prompts)| *prompts == [choice["prompt_token_ids"].clone()]));
    for (i, expected) in expected.iter().enumerate() {
        assert_eq!(texts[i], expected.completion);
        assert_eq!(json!(ids[i]), json!(expected.completion_ids));
    }
    assert_eq!(events.last().expect("events")["usage"], answer["usage"]);
}

#[test]
fn a_stop_string_ends_a_completion_and_is_no_part_of_it() {
    let (_folder, server) = server(&["gpt2"]);
    let plain = &generated("gpt2", "The tea is", 1, params(30), &[])[0].completion;
    // A string from the middle of the completion.
    let middle: String = plain.chars().skip(8).take(3).collect();
    let expected = generated("gpt2", "The tea is", 1, params(30), &[&middle]);
    let mut request = json!({ "model": "gpt2", "prompt": "The tea is", "max_tokens": 30, "seed": 7, "stop": middle });
    let answer = server.post("/v1/completions", &request).json();
    assert_eq!(answer["choices"][0]["text"], expected[0].completion);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(!answer["choices"][0]["text"].as_str().expect("a text").contains(&middle));
    request["stream"] = json!(true);
    let (events, _) = server.post("/v1/completions", &request).events();
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, expected[0].completion, "what may become a stop string is held back");
}

#[test]
fn echo_tells_what_the_model_thinks_of_a_prompt() {
    let (_folder, server) = server(&["gpt2"]);
    let text = "The tea is warm and the cup is full";
    // A request like lm-eval's: the prompt, one new token, and the most likely token at each position.
    let request = json!({
        "model": "gpt2", "prompt": text, "max_tokens": 1, "logprobs": 1, "echo": true, "temperature": 0, "seed": 1234,
        "return_token_ids": true,
    });
    let answer = server.post("/v1/completions", &request).json();
    let choice = &answer["choices"][0];
    let ids = choice["prompt_token_ids"].as_array().expect("ids").clone();
    let logprobs = &choice["logprobs"];
    let tokens: Vec<&str> = logprobs["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
    assert_eq!(tokens.len(), ids.len() + 1);
    assert_eq!(tokens[..ids.len()].concat(), text);
    assert!(choice["text"].as_str().expect("a text").starts_with(text));
    let values = logprobs["token_logprobs"].as_array().expect("numbers");
    assert!(values[0].is_null() && values[1..].iter().all(|value| value.as_f64().is_some_and(|value| value <= 0.0)));
    // A greedy token is the most likely one, to the bit. Evaluation harnesses rely on this.
    let top = logprobs["top_logprobs"].as_array().expect("the likeliest");
    let last = top[ids.len()].as_object().expect("by text").values().next().expect("one");
    assert_eq!(last, &values[ids.len()]);
    let offsets: Vec<u64> =
        logprobs["text_offset"].as_array().expect("offsets").iter().filter_map(Value::as_u64).collect();
    let second = text.find(tokens[1]).expect("the second token stands in the text");
    assert_eq!((offsets[0], offsets[1]), (0, second as u64));
    // Streamed, the ids of the prompt are apart from those of the completion.
    let mut streamed = request.clone();
    streamed["stream"] = json!(true);
    let (events, _) = server.post("/v1/completions", &streamed).events();
    let chunks: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
    assert_eq!((&chunks[0]["prompt_token_ids"], &chunks[0]["token_ids"]), (&json!(ids), &json!([])));
    assert!(chunks[1..].iter().all(|chunk| chunk.get("prompt_token_ids").is_none()));
    let own: Vec<&Value> = chunks.iter().flat_map(|chunk| chunk["token_ids"].as_array().expect("ids")).collect();
    assert_eq!(json!(own), choice["token_ids"]);
    // Without alternatives, each position has its own token.
    let alone = json!({ "model": "gpt2", "prompt": ids, "max_tokens": 0, "logprobs": 0, "echo": true });
    let top = server.post("/v1/completions", &alone).json()["choices"][0]["logprobs"]["top_logprobs"].clone();
    assert_eq!(top[1], json!({ tokens[1]: values[1] }));
    // A prompt given as ids yields the same numbers, without sampling anything.
    let by_ids = json!({ "model": "gpt2", "prompt": ids, "max_tokens": 0, "logprobs": 1, "echo": true });
    let answer = server.post("/v1/completions", &by_ids).json();
    assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"], json!(values[..ids.len()]));
    assert_eq!((&answer["choices"][0]["text"], &answer["usage"]["completion_tokens"]), (&json!(text), &json!(0)));
}

/// The tokenizer of a T5 ends a text with a token, and the model may not have the ids of all its words.
#[test]
fn echo_returns_the_prompt_as_it_was_given() {
    let (_folder, server) = server(&["t5", "gpt2"]);
    let text = "The tea  日本 {x}";
    let mut request = json!({ "model": "t5", "prompt": text, "max_tokens": 3, "seed": 7 });
    let own = server.post("/v1/completions", &request).json()["choices"][0]["text"].clone();
    request["echo"] = json!(true);
    let expected = format!("{text}{}", own.as_str().expect("a text"));
    assert_eq!(server.post("/v1/completions", &request).json()["choices"][0]["text"], expected);
    request["stream"] = json!(true);
    let (events, _) = server.post("/v1/completions", &request).events();
    let streamed: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, expected);
    // A special id of a prompt is no text. What was sampled begins after the text, wherever its token stands.
    let ids = json!({ "model": "gpt2", "prompt": "The tea<eos>", "max_tokens": 2, "min_tokens": 2, "echo": true, "logprobs": 0, "seed": 7,
        "return_token_ids": true });
    let of_text = server.post("/v1/completions", &ids).json()["choices"][0].clone();
    let mut ids = ids;
    ids["prompt"] = of_text["prompt_token_ids"].clone();
    let of_ids = server.post("/v1/completions", &ids).json()["choices"][0].clone();
    let begin =
        |choice: &Value| choice["logprobs"]["text_offset"].as_array().expect("offsets").iter().rev().nth(1).cloned();
    assert!(of_text["text"].as_str().is_some_and(|text| text.starts_with("The tea<eos>")), "{of_text}");
    assert!(
        of_ids["text"].as_str().is_some_and(|text| text.starts_with("The tea") && !text.contains("<eos>")),
        "{of_ids}"
    );
    assert_eq!((begin(&of_text), begin(&of_ids)), (Some(json!(12)), Some(json!(7))));
}

#[test]
fn several_prompts_are_answered_in_order_and_as_if_alone() {
    let (_folder, server) = server(&["qwen3"]);
    let prompts = ["The tea is", "The cup", "A", "The kettle is warm and"];
    let ask =
        |prompt: Value| json!({ "model": "qwen3", "prompt": prompt, "max_tokens": 9, "temperature": 0, "logprobs": 0 });
    let together = server.post("/v1/completions", &ask(json!(prompts))).json();
    for (i, prompt) in prompts.iter().enumerate() {
        let alone = server.post("/v1/completions", &ask(json!(prompt))).json();
        let (together, alone) = (&together["choices"][i], &alone["choices"][0]);
        assert_eq!(together["text"], alone["text"]);
        assert_eq!(together["logprobs"], alone["logprobs"]);
    }
    // Each completion has its own random stream: those of the second prompt use the third and the fourth.
    let sampled = json!({ "model": "qwen3", "prompt": prompts, "max_tokens": 9, "n": 2, "seed": 7 });
    let sampled = server.post("/v1/completions", &sampled).json();
    let expected = generated("qwen3", prompts[1], 4, params(9), &[]);
    for (i, expected) in expected.iter().enumerate().skip(2) {
        assert_eq!(sampled["choices"][i]["text"], expected.completion);
    }
}

#[test]
fn a_conversation_is_answered_through_the_template() {
    let (_folder, server) = server(&["qwen3"]);
    let messages = json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": "The tea" }]);
    let request = json!({
        "model": "qwen3", "messages": messages, "max_completion_tokens": 10, "seed": 7, "logprobs": true,
        "top_logprobs": 3, "return_token_ids": true,
    });
    let answer = server.post("/v1/chat/completions", &request).json();
    assert_eq!(answer["object"], "chat.completion", "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    let content = choice["logprobs"]["content"].as_array().expect("tokens");
    assert_eq!(content.len() as u64, answer["usage"]["completion_tokens"].as_u64().expect("a number"));
    assert!(content.iter().all(|token| token["top_logprobs"].as_array().is_some_and(|top| top.len() == 3)));
    // The bytes of the tokens join to the text, even if a token ends within a character. Special tokens are not in the text.
    let special = ["<pad>", "<bos>", "<eos>", "<|turn|>", "<|end|>"];
    let is_text = |token: &&Value| token["token"].as_str().is_some_and(|token| !special.contains(&token));
    let bytes = content.iter().filter(is_text).flat_map(|token| token["bytes"].as_array().expect("bytes"));
    let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().expect("a number") as u8).collect();
    assert_eq!(String::from_utf8_lossy(&bytes), choice["message"]["content"].as_str().expect("a text"));
    // The same prompt given as ids yields the same completion, so nothing else was put in front of it.
    let raw = json!({
        "model": "qwen3", "prompt": answer["prompt_token_ids"], "max_tokens": 10, "seed": 7, "return_token_ids": true,
    });
    let raw = server.post("/v1/completions", &raw).json();
    assert_eq!(raw["choices"][0]["token_ids"], choice["token_ids"]);
    assert_eq!(raw["choices"][0]["text"], choice["message"]["content"]);

    let mut streamed = request.clone();
    streamed["stream"] = json!(true);
    let (events, is_done) = server.post("/v1/chat/completions", &streamed).events();
    assert!(is_done && events[0]["choices"][0]["delta"]["role"] == "assistant");
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, choice["message"]["content"].as_str().expect("a text"));
    assert_eq!(events.last().expect("events")["choices"][0]["finish_reason"], choice["finish_reason"]);
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"]));
}

#[test]
fn calls_of_tools_need_a_template() {
    let folder = folder(&["gpt2"]);
    std::fs::remove_file(folder.path().join("gpt2/chat_template.jinja")).expect("removed");
    let server = Server::over(folder.path());
    let ask = |last: Value| {
        let messages = json!([{ "role": "user", "content": "2 + 2?" }, last]);
        server.post("/v1/chat/completions", &json!({ "model": "gpt2", "messages": messages, "max_tokens": 2 }))
    };
    assert_eq!(ask(json!({ "role": "user", "content": "Tea?" })).status, 200);
    let call = json!({ "id": "a", "type": "function", "function": { "name": "add", "arguments": "{}" } });
    for (last, what) in [
        (json!({ "role": "tool", "tool_call_id": "a", "content": "4" }), "the role `tool`"),
        (json!({ "role": "assistant", "content": null, "tool_calls": [call] }), "`tool_calls`"),
    ] {
        let refused = ask(last);
        assert!(refused.status == 400 && refused.body.contains(what), "{what}: {refused:?}");
        assert!(refused.body.contains("--chat-template"), "{refused:?}");
    }
}

#[test]
fn tools_reach_the_template() {
    let (_folder, server) = server(&["qwen3"]);
    let ask = |tools: Value, choice: Value| {
        json!({
            "model": "qwen3", "messages": [{ "role": "user", "content": "Which weather?" }], "max_tokens": 4,
            "tools": tools, "tool_choice": choice, "return_token_ids": true,
        })
    };
    let weather =
        json!([{ "type": "function", "function": { "name": "weather", "parameters": { "type": "object" } } }]);
    let length = |request: &Value| {
        let answer = server.post("/v1/chat/completions", request);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["prompt_token_ids"].as_array().expect("ids").len()
    };
    let (with, without) = (length(&ask(weather.clone(), json!("auto"))), length(&ask(weather.clone(), json!("none"))));
    assert_eq!(without, length(&ask(json!([]), Value::Null)));
    let template = std::fs::read_to_string(format!("{}/chat_template.jinja", fixture("qwen3"))).expect("a template");
    assert_eq!(with > without, template.contains("tools"), "{with} and {without} tokens");
    let refused = server.post("/v1/chat/completions", &ask(weather, json!("required")));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tool_choice")));
}

#[test]
fn many_at_once_are_each_what_they_are_alone() {
    let (_folder, server) = server(&["gpt2"]);
    let ask = |i: usize| json!({ "model": "gpt2", "prompt": format!("The tea {i}"), "max_tokens": 15, "seed": i });
    let alone: Vec<Value> = (0..8).map(|i| server.post("/v1/completions", &ask(i)).json()).collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let server = &server;
        let threads: Vec<_> =
            (0..8).map(|i| scope.spawn(move || server.post("/v1/completions", &ask(i)).json())).collect();
        threads.into_iter().map(|thread| thread.join().expect("answered")).collect()
    });
    for (alone, together) in alone.into_iter().zip(together) {
        assert_eq!(timeless(alone), timeless(together));
    }
}

#[test]
fn what_is_wrong_is_said_in_openais_form() {
    let (_folder, server) = server(&["gpt2", "qwen3-reward"]);
    let completion = |more: Value| {
        let mut request = json!({ "model": "gpt2", "prompt": "a", "max_tokens": 1 });
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        request
    };
    for (more, param) in [
        (json!({ "temperature": -1 }), json!("temperature")),
        (json!({ "temperature": "hot" }), json!("temperature")),
        (json!({ "top_p": 2 }), json!("top_p")),
        (json!({ "n": 0 }), json!("n")),
        (json!({ "n": 1000 }), json!("n")),
        (json!({ "max_tokens": -3 }), json!("max_tokens")),
        (json!({ "logprobs": 100 }), json!("logprobs")),
        (json!({ "stop": [""] }), json!("stop")),
        (json!({ "stop": 3 }), json!("stop")),
        (json!({ "seed": 1.5 }), json!("seed")),
        (json!({ "prompt": {} }), json!("prompt")),
        (json!({ "prompt": [] }), json!("prompt")),
        (json!({ "prompt": [1, "a"] }), json!("prompt")),
        (json!({ "prompt": [[1], [-1]] }), json!("prompt")),
        (json!({ "prompt": [4294967295u32] }), json!("prompt")),
        (json!({ "prompt": "" }), json!("prompt")),
        (json!({ "bad_words_ids": [[]] }), json!("bad_words_ids")),
        (json!({ "bad_words_ids": [[99999]] }), json!("bad_words_ids")),
        (json!({ "suppress_tokens": [99999] }), json!("suppress_tokens")),
        (json!({ "suppress_tokens": (0..320).collect::<Vec<u32>>() }), json!("suppress_tokens")),
        (json!({ "min_tokens": 2 }), json!("min_tokens")),
        (json!({ "num_beams": 4 }), json!("num_beams")),
        (json!({ "logit_bias": { "1": 5 } }), json!("logit_bias")),
        (json!({ "presence_penalty": 1 }), json!("presence_penalty")),
        (json!({ "suffix": "x" }), json!("suffix")),
        (json!({ "stream": "yes" }), json!("stream")),
        (json!({ "model": 7 }), json!("model")),
    ] {
        let answer = server.post("/v1/completions", &completion(more.clone()));
        assert_eq!(answer.status, 400, "{more}: {answer:?}");
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "invalid_request_error", "{more}");
        assert_eq!(error["param"], param, "{more}: {error}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{more}");
    }
    for (more, param) in [
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0]"),
        (json!({ "messages": [{ "content": "a" }] }), "messages[0]"),
        (json!({ "messages": "hello" }), "messages"),
        (json!({ "top_logprobs": 3 }), "top_logprobs"),
        (json!({ "tools": "weather" }), "tools"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "function_call": { "name": "add" } }), "function_call"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "length_penalty": 2 }), "length_penalty"),
        (json!({ "reasoning_effort": "high" }), "reasoning_effort"),
        (json!({ "documents": [] }), "documents"),
        (json!({ "echo": true }), "echo"),
        (json!({ "skip_special_tokens": false }), "skip_special_tokens"),
        (json!({ "continue_final_message": true }), "continue_final_message"),
        (json!({ "add_generation_prompt": false }), "add_generation_prompt"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs.messages"),
        (
            json!({ "chat_template_kwargs": { "add_generation_prompt": false } }),
            "chat_template_kwargs.add_generation_prompt",
        ),
        (json!({ "chat_template_kwargs": { "tools": [] } }), "chat_template_kwargs.tools"),
        (json!({ "chat_template_kwargs": { "documents": [] } }), "chat_template_kwargs.documents"),
    ] {
        let mut request = json!({ "model": "gpt2", "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1 });
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let answer = server.post("/v1/chat/completions", &request);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{more}");
    }
    let vocabulary = 320;
    for more in [json!({}), json!({ "echo": true, "logprobs": 1 })] {
        let mut request = completion(json!({ "prompt": [5, 99999] }));
        request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let message = server.post("/v1/completions", &request).json()["error"]["message"].to_string();
        assert!(
            message.contains(&format!("token id 99999, but the model's vocabulary has {vocabulary} ids")),
            "{message}"
        );
        assert!(message.contains(&format!("ids go from 0 to {}", vocabulary - 1)), "{message}");
    }
    let json = [("Content-Type", "application/json")];
    let error = |path: &str, body: &str| {
        let answer = server.ask("POST", path, &json, body);
        assert_eq!(answer.status, 400, "{path} {body}: {answer:?}");
        let error = answer.json()["error"].clone();
        assert_eq!(error["type"], "invalid_request_error", "{path} {body}");
        (error["message"].as_str().unwrap_or_default().to_owned(), error["param"].clone(), error["code"].clone())
    };
    let (wrong, missing) = (json!("invalid_value"), json!("missing_required_parameter"));
    let completions = "a string, a list of strings, a list of token ids, or a list of such lists, is needed";
    for (path, body, message, param, code) in [
        ("/v1/completions", "[1, 2]", "the body is [1,2], but an object is needed".into(), Value::Null, Value::Null),
        ("/v1/completions", "", "the body is empty, but a JSON object is needed".into(), Value::Null, Value::Null),
        (
            "/v1/completions",
            r#"{"model": "gpt2"}"#,
            format!("`prompt` is missing: {completions}"),
            json!("prompt"),
            missing.clone(),
        ),
        (
            "/v1/completions",
            r#"{"model": "gpt2", "prompt": {"text": "a"}}"#,
            format!("`prompt` is {{\"text\":\"a\"}}, but {completions}"),
            json!("prompt"),
            wrong.clone(),
        ),
        (
            "/v1/completions",
            r#"{"model": "gpt2", "prompt": "a", "add_special_tokens": "no"}"#,
            "`add_special_tokens` is \"no\", but true or false is needed".into(),
            json!("add_special_tokens"),
            wrong.clone(),
        ),
        (
            "/v1/completions",
            r#"{"model": "gpt2", "prompt": "a", "stream_options": {"include_usage": 1}}"#,
            "`stream_options.include_usage` is 1, but true or false is needed".into(),
            json!("stream_options.include_usage"),
            wrong.clone(),
        ),
        (
            "/v1/completions",
            r#"{"model": "gpt2", "prompt": "a", "stream": true, "stream_options": {"continuous_usage_stats": true}}"#,
            "`stream_options.continuous_usage_stats` is not supported by this server: leave it out".into(),
            json!("stream_options.continuous_usage_stats"),
            json!("unsupported_parameter"),
        ),
        (
            "/inference/v1/generate",
            r#"{"model": "gpt2", "token_ids": [5], "stream_options": {"include_usage": true}}"#,
            "`stream_options.include_usage` needs `stream: true`".into(),
            json!("stream_options.include_usage"),
            Value::Null,
        ),
        (
            "/v1/completions",
            r#"{"model": "gpt2", "prompt": "a", "suffix": "b"}"#,
            "`suffix` is not supported by this server: leave it out".into(),
            json!("suffix"),
            json!("unsupported_parameter"),
        ),
        (
            "/v1/chat/completions",
            r#"{"model": "gpt2"}"#,
            "`messages` is missing: a list of at least one message is needed".into(),
            json!("messages"),
            missing.clone(),
        ),
        (
            "/v1/chat/completions",
            r#"{"model": "gpt2", "messages": "hello"}"#,
            "`messages` is \"hello\", but a list of at least one message is needed".into(),
            json!("messages"),
            wrong.clone(),
        ),
        (
            "/v1/chat/completions",
            r#"{"model": "gpt2", "messages": [{"role": "user", "content": 5}]}"#,
            "`messages[0]` has a number as `content`, expected a string".into(),
            json!("messages[0]"),
            Value::Null,
        ),
        (
            "/v1/chat/completions",
            r#"{"model": "gpt2", "messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}"#,
            "`tool_choice` is \"required\", but \"auto\" or \"none\" is needed".into(),
            json!("tool_choice"),
            wrong.clone(),
        ),
        (
            "/inference/v1/generate",
            r#"{"model": "gpt2", "sampling_params": {}}"#,
            "`token_ids` is missing: a list of at least one token id is needed".into(),
            json!("token_ids"),
            missing,
        ),
        (
            "/inference/v1/generate",
            r#"{"model": "gpt2", "token_ids": [1], "sampling_params": {"temperature": "hot"}}"#,
            "`sampling_params.temperature` is \"hot\", but a number from 0 to 100 is needed".into(),
            json!("sampling_params.temperature"),
            wrong.clone(),
        ),
    ] {
        assert_eq!(error(path, body), (message, param, code), "{path} {body}");
    }
    let long = format!("{{\"model\": \"gpt2\", \"prompt\": \"a\", \"temperature\": \"{}\"}}", "hot ".repeat(10_000));
    let (message, ..) = error("/v1/completions", &long);
    assert!(message.chars().count() < 200 && message.contains('…'), "{message}");
    let wrong_method = server.get("/v1/completions");
    assert_eq!(wrong_method.status, 405, "{wrong_method:?}");
    assert_eq!(wrong_method.json()["error"]["message"], "the method is GET, but this path needs POST");
    for body in ["", "{", "[]", "null", "\u{0}"] {
        assert_eq!(server.ask("POST", "/v1/completions", &json, body).status, 400, "{body:?}");
    }
    let reward = server.post("/v1/completions", &json!({ "model": "qwen3-reward", "prompt": "a" }));
    assert_eq!(reward.status, 404, "a reward model is no model that answers");
    assert_eq!(server.get("/v1/models/gpt2").json()["id"], "gpt2");
    assert_eq!(server.get("/v1/models/none").status, 404);
    assert_eq!(server.get("/v1/embeddings").status, 404);
}

#[test]
fn who_goes_frees_the_place() {
    use std::io::{Read, Write};
    let (_folder, server) = server(&["gpt2"]);
    let body =
        json!({ "model": "gpt2", "prompt": "The tea is", "max_tokens": 100, "n": 4, "stream": true }).to_string();
    for _ in 0..4 {
        let mut stream = std::net::TcpStream::connect(server.address.socket).expect("the server listens");
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            server.host(),
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("written");
        let mut first = [0; 64];
        stream.read_exact(&mut first).expect("the answer begins");
    }
    let answer = server.post("/v1/completions", &json!({ "model": "gpt2", "prompt": "The cup", "max_tokens": 5 }));
    assert_eq!(answer.status, 200);
}

#[test]
fn an_answer_ends_where_the_positions_of_the_model_end() {
    // `max_position_embeddings` of qwen3 and `n_positions` of gpt2, from their `config.json`.
    for (model, positions) in [("qwen3", 256), ("gpt2", 192)] {
        let (_folder, server) = server(&[model]);
        let ask = |prompt: Vec<u32>| {
            let body = json!({ "model": model, "prompt": prompt, "max_tokens": 4000, "min_tokens": 300, "seed": 1 });
            server.post("/v1/completions", &body)
        };
        let answer = ask(vec![5; 10]);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer = answer.json();
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        let total = answer["usage"]["total_tokens"].as_u64().expect("a number");
        // The last token is sampled but never read, so it needs no position of its own.
        assert!([positions, positions + 1].contains(&total), "{model}: {total} tokens");
        let refused = ask(vec![5; positions as usize + 2]);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body.contains(&format!("{positions} positions")), "{}", refused.body);
        let error = &refused.json()["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("prompt")), "{error}");
        // A much longer text is refused before it is a list of ids.
        let text = "a ".repeat(100_000);
        let messages = json!([{ "role": "user", "content": text }]);
        for (path, param, value) in
            [("/v1/completions", "prompt", json!(text)), ("/v1/chat/completions", "messages", messages)]
        {
            let refused = server.post(path, &json!({ "model": model, param: value }));
            let error = refused.json()["error"].clone();
            assert_eq!((refused.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
            assert_eq!(error["param"], param, "{error}");
            assert!(error["message"].as_str().is_some_and(|message| message.contains("far more tokens")), "{error}");
        }
    }
}

#[test]
fn parts_of_a_character_have_their_own_bytes() {
    let (_folder, server) = server(&["gpt2"]);
    // The prompt is scored, so all tokens are known. The tokenizer of the fixture has no merges for these characters.
    let text = "a 水é";
    let request = json!({ "model": "gpt2", "prompt": text, "max_tokens": 0, "echo": true, "logprobs": 20,
        "add_special_tokens": false });
    let answer = server.post("/v1/completions", &request).json();
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().expect("tokens").iter().map(|token| token.as_str().expect("a text")).collect();
    let mut bytes = Vec::new();
    for token in &tokens {
        match token.strip_prefix("bytes:") {
            Some(digits) => bytes.extend(
                digits.split("\\x").skip(1).map(|digits| u8::from_str_radix(digits, 16).expect("hexadecimal digits")),
            ),
            None => bytes.extend(token.as_bytes()),
        }
    }
    assert_eq!(String::from_utf8(bytes).expect("UTF-8").trim_start(), text, "{tokens:?}");
    assert!(tokens.iter().any(|token| token.starts_with("bytes:\\x")), "{tokens:?}");
    // The names differ, so no alternative is lost. A token that is not among them is there, too.
    let top = logprobs["top_logprobs"].as_array().expect("the likeliest");
    assert!(top.iter().skip(1).all(|top| (20..=21).contains(&top.as_object().expect("by text").len())), "{top:?}");
}

#[test]
fn unknown_fields_are_refused_and_fields_that_change_no_sample_are_not() {
    let (_folder, server) = server(&["gpt2"]);
    let messages = json!([{ "role": "user", "content": "a" }]);
    let bodies = [
        ("/v1/completions", json!({ "prompt": "a", "max_tokens": 2, "seed": 1 })),
        ("/v1/chat/completions", json!({ "messages": messages, "max_completion_tokens": 2, "seed": 1 })),
    ];
    let with = |body: &Value, name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        body
    };
    for (path, body) in &bodies {
        for (name, meant) in [
            ("max_new_tokens", "did you mean `max_tokens`?"),
            ("min_new_tokens", "did you mean `min_tokens`?"),
            ("num_return_sequences", "did you mean `n`?"),
            ("stop_sequences", "did you mean `stop`?"),
            ("temprature", "did you mean `temperature`?"),
            ("epsilon_cutoff", "leave it out"),
        ] {
            let answer = server.post(path, &with(body, name, json!(0)));
            assert_eq!(answer.status, 400, "{path} {name}: {}", answer.body);
            let error = &answer.json()["error"];
            assert_eq!((&error["param"], &error["code"]), (&json!(name), &json!("unknown_parameter")), "{error}");
            let expected = format!("`{name}` is not a field that this server knows: {meant}");
            assert_eq!(error["message"], expected, "{path}");
        }
        for (name, value) in [("detokenize", false), ("include_reasoning", false), ("flat_logprobs", true)] {
            let error = server.post(path, &with(body, name, json!(value))).json()["error"].clone();
            assert_eq!((&error["param"], &error["code"]), (&json!(name), &json!("unsupported_parameter")), "{error}");
        }
        let answer = server.post(path, &with(body, "num_beams", Value::Null));
        assert_eq!(answer.status, 200, "`null` counts as missing: {}", answer.body);
        let more = json!({
            "user": "u", "metadata": { "a": "b" }, "store": false, "service_tier": "auto", "safety_identifier": "s",
            "prompt_cache_key": "k", "parallel_tool_calls": true, "stream_options": { "include_obfuscation": false },
            "detokenize": true, "include_reasoning": true, "flat_logprobs": false, "output_kind": 2,
            "spaces_between_special_tokens": false,
        });
        let mut all = body.clone();
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (plain, given) = (server.post(path, body).json(), server.post(path, &all).json());
        assert_eq!(given["choices"], plain["choices"], "{path}");
        assert!(given["choices"].is_array(), "{given}");
    }
    let (path, body) = &bodies[0];
    let error = server.post(path, &with(body, "max_completion_tokens", json!(2))).json()["error"].clone();
    assert!(error["message"].as_str().is_some_and(|message| message.contains("`max_tokens`")), "{error}");
}

#[test]
fn a_request_without_a_model_uses_the_only_one() {
    let requests = [
        ("/v1/completions", json!({ "prompt": "The tea", "max_tokens": 2 })),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 2,
            "continue_final_message": false, "add_generation_prompt": true, "function_call": "none", "modalities": ["text"],
            "length_penalty": 1, "echo": false, "skip_special_tokens": true }),
        ),
        ("/inference/v1/generate", json!({ "token_ids": [5, 6], "sampling_params": { "max_tokens": 2 } })),
    ];
    let (_folder, one) = server(&["qwen3", "qwen3-reward"]);
    let (_other, two) = server(&["gpt2", "qwen3"]);
    for (path, request) in &requests {
        let answer = one.post(path, request);
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("qwen3")), "{path}: {}", answer.body);
        let refused = two.post(path, request);
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        assert!(refused.body.contains("the request has no `model`, and the server has several"), "{}", refused.body);
    }
    assert_eq!(two.post(requests[0].0, &requests[0].1).json()["error"]["param"], "model");
}
