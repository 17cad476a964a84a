//! Scores of given ids, from servers that also misbehave.

use super::*;

/// The log-probability of an id after another: the successor is the most probable.
fn logprob_after(before: u64, id: u64) -> f64 {
    -1.5 - ((id + 320 - before - 1) % 320) as f64 / 8.0
}

/// The most probable ids after another.
fn best(before: u64, k: u64) -> impl Iterator<Item = u64> {
    (1..=k).map(move |i| (before + i) % 320)
}

/// vLLM's answer to a request for scores; the ids of a text are its bytes.
fn scored(body: &Value) -> Value {
    let ids: Vec<u64> = match &body["prompt"] {
        Value::String(text) => text.bytes().map(u64::from).collect(),
        ids => serde_json::from_value(ids.clone()).expect("ids"),
    };
    let place = |i: usize| -> Option<Value> {
        let before = ids[i.checked_sub(1)?];
        let entry = |id: u64| json!({ "logprob": logprob_after(before, id), "rank": 1, "decoded_token": "x" });
        let named = best(before, body["prompt_logprobs"].as_u64()?).chain([ids[i]]);
        Some(named.map(|id| (id.to_string(), entry(id))).collect::<serde_json::Map<_, _>>().into())
    };
    let places: Vec<Option<Value>> = (0..ids.len()).map(place).collect();
    json!({ "choices": [{ "index": 0, "text": "", "prompt_token_ids": ids, "prompt_logprobs": places }] })
}

/// SGLang's answer to a request for scores.
fn scored_by_sglang(body: &Value) -> Value {
    let ids: Vec<u64> = match &body["text"] {
        Value::String(text) => text.bytes().map(u64::from).collect(),
        _ => serde_json::from_value(body["input_ids"].clone()).expect("ids"),
    };
    let (start, k) = (body["logprob_start_len"].as_u64().expect("a place") as usize, body["top_logprobs_num"].as_u64());
    let own = (start..ids.len()).map(|i| match i == start {
        true => json!([null, ids[i], null]),
        false => json!([logprob_after(ids[i - 1], ids[i]), ids[i], null]),
    });
    let top = |i: usize| -> Option<Vec<Value>> {
        (i > start).then(|| {
            best(ids[i - 1], k.unwrap_or(0)).map(|id| json!([logprob_after(ids[i - 1], id), id, null])).collect()
        })
    };
    let mut meta = json!({ "prompt_tokens": ids.len(), "input_token_logprobs": own.collect::<Vec<_>>() });
    if k.is_some_and(|k| k > 0) {
        meta["input_top_logprobs"] = (start..ids.len()).map(top).collect::<Vec<_>>().into();
    }
    json!({ "text": "", "output_ids": [], "meta_info": meta })
}

/// A scoring server that answers the `tried`th request with a `change` of the right answer.
fn scoring(change: impl Fn(usize, &mut Value) -> Option<Reply> + Send + Sync + 'static) -> Fake {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    Fake::new(move |path, body| {
        let mut right = match path {
            "/v1/completions" => scored(body),
            "/generate" => scored_by_sglang(body),
            "/v1/models" => return Reply::Json(200, json!({ "data": [{ "id": "teacher" }] })),
            _ => return Reply::Json(200, Value::Null),
        };
        let tried = tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        change(tried, &mut right).unwrap_or(Reply::Json(200, right))
    })
}

fn passages() -> Vec<Passage> {
    vec![
        Passage { ids: vec![10, 11, 13, 12], first: 2 },
        Passage { ids: vec![5, 6], first: 1 },
        // A prompt without a completion needs no request.
        Passage { ids: vec![9], first: 1 },
    ]
}

fn scores(endpoint: &Endpoint, k: usize) -> Result<Vec<Vec<TokenScore>>> {
    Scorer::connect(endpoint, k, &Unwatched)?.score(passages(), 320, &Unwatched)
}

#[test]
fn ids_are_scored_by_every_kind_of_server() {
    let token = |before: u64, id: u32, k: u64| TokenScore {
        id,
        logprob: Some(logprob_after(before, u64::from(id)) as f32),
        likeliest: best(before, k).map(|id| (id as u32, logprob_after(before, id) as f32)).collect(),
    };
    for kind in [ServerKind::Vllm, ServerKind::Gradus, ServerKind::Sglang] {
        for k in [0, 3] {
            let fake = scoring(|_, _| None);
            let found = scores(&fake.endpoint(kind), k as usize).expect("scores");
            let expected = vec![vec![token(11, 13, k), token(13, 12, k)], vec![token(5, 6, k)], vec![]];
            assert_eq!(found, expected, "{kind:?}");
            let bodies = [fake.bodies("/v1/completions"), fake.bodies("/generate")].concat();
            assert_eq!(bodies.len(), 2);
            let request =
                bodies.iter().find(|body| body["prompt"] == json!([5, 6]) || body["input_ids"] == json!([5, 6]));
            let request = request.expect("it was asked");
            match kind {
                ServerKind::Vllm => assert_eq!(
                    request,
                    &json!({ "model": "teacher", "prompt": [5, 6], "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": k,
                        "return_token_ids": true })
                ),
                ServerKind::Gradus => assert_eq!((&request["max_tokens"], &request["echo"]), (&json!(0), &json!(true))),
                ServerKind::Sglang => assert_eq!(
                    request,
                    &json!({ "input_ids": [5, 6], "sampling_params": { "max_new_tokens": 0, "temperature": 1.0 },
                        "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": k, "stream": false })
                ),
            }
        }
    }
}

#[test]
fn scores_that_cannot_be_are_refused() {
    type Change = fn(&mut Value) -> Option<Reply>;
    let vllm: &[(Change, &str)] = &[
        (|right| remove(&mut right["choices"][0]["prompt_logprobs"], 1), "`prompt_logprobs` has"),
        (|right| set(&mut right["choices"][0]["prompt_logprobs"], Value::Null), "no `prompt_logprobs`"),
        (|right| set(&mut right["choices"][0]["prompt_logprobs"][1], Value::Null), "has nothing for the id"),
        (|right| set(&mut right["choices"][0]["prompt_token_ids"][0], json!(7)), "differs from the one it was sent"),
        (|right| set(&mut right["choices"][0]["prompt_token_ids"], Value::Null), "no `prompt_token_ids`"),
        (|right| set(&mut right["choices"], json!([])), "the answer has 0 `choices`"),
        (|right| set(&mut right["choices"], json!(3)), "no `choices`"),
        (|right| set(&mut last(right)["6"]["logprob"], json!(0.5)), "0.5, above 0"),
        (|right| set(&mut last(right)["6"]["logprob"], json!("-1")), "not a number"),
        (|right| take(last(right), "6"), "no log-probability for the id 6"),
        (|right| rename(last(right), "7", "320"), "returned the id 320, but the student's vocabulary has 320"),
        (|right| rename(last(right), "7", "x"), "has the id `x`"),
        (|right| rename(last(right), "7", "-1"), "has the id `-1`"),
        (|right| take(last(right), "7"), "3 most likely ids were requested at the position of 6, but 2 were returned"),
        (|right| set(&mut last(right)["7"]["logprob"], json!(-0.01)), "sum to"),
        (|_| Some(Reply::Json(400, json!({ "error": { "message": "too many logprobs" } }))), "400: too many logprobs"),
        (|_| Some(Reply::Json(404, json!({ "message": "no such model" }))), "404: no such model"),
        (|right| set(&mut right["padding"], json!("x".repeat(2 << 20))), "the answer has more than"),
    ];
    let sglang: &[(Change, &str)] = &[
        (
            |right| remove(&mut right["meta_info"]["input_token_logprobs"], 0),
            "`input_token_logprobs` has 1 places, but 2",
        ),
        (|right| set(&mut right["meta_info"]["input_token_logprobs"][1][1], json!(7)), "is that of 7, but the id is 6"),
        (|right| set(&mut right["meta_info"], json!(1)), "no `input_token_logprobs`"),
        (|right| remove(&mut right["meta_info"]["input_top_logprobs"], 0), "`input_top_logprobs` has 1 places"),
        (|right| set(&mut right["meta_info"]["input_top_logprobs"], Value::Null), "but 0 were returned"),
        (|right| set(&mut right["meta_info"]["input_top_logprobs"][1][0][1], json!(-4)), "has the id -4"),
        (|right| set(&mut right["meta_info"]["input_top_logprobs"][1][0][1], json!(8)), "contain one twice"),
    ];
    for (kind, cases) in [(ServerKind::Vllm, vllm), (ServerKind::Sglang, sglang)] {
        for &(change, message) in cases {
            // Only the passage of two ids, so that there is one answer to change.
            let fake = scoring(move |_, right| change(right));
            let scorer = Scorer::connect(&fake.endpoint(kind), 3, &Unwatched).expect("it is there");
            let error = scorer.score(passages()[1..2].to_vec(), 320, &Unwatched).expect_err(message).to_string();
            assert!(error.contains(message) && error.contains("http://127.0.0.1"), "{message}: {error}");
        }
    }
}

fn set(place: &mut Value, value: Value) -> Option<Reply> {
    *place = value;
    None
}

fn remove(place: &mut Value, i: usize) -> Option<Reply> {
    place.as_array_mut().expect("a list").remove(i);
    None
}

/// The last position of the first choice.
fn last(right: &mut Value) -> &mut Value {
    &mut right["choices"][0]["prompt_logprobs"][1]
}

fn take(place: &mut Value, name: &str) -> Option<Reply> {
    place.as_object_mut().expect("an object").remove(name);
    None
}

fn rename(place: &mut Value, from: &str, to: &str) -> Option<Reply> {
    let place = place.as_object_mut().expect("an object");
    let entry = place.remove(from).expect("it is there");
    place.insert(to.into(), entry);
    None
}

#[test]
fn an_id_that_cannot_be_has_no_number() {
    let fake = scoring(|_, right| {
        set(&mut last(right)["6"]["logprob"], json!(-9999.0));
        set(&mut last(right)["8"]["logprob"], Value::Null)
    });
    let scorer = Scorer::connect(&fake.endpoint(ServerKind::Vllm), 3, &Unwatched).expect("it is there");
    let found = scorer.score(passages()[1..2].to_vec(), 320, &Unwatched).expect("scores");
    assert_eq!(found[0][0].logprob, None);
    let likeliest: Vec<(u32, f32)> = found[0][0].likeliest.clone();
    assert_eq!(likeliest, [(7, logprob_after(5, 7) as f32), (6, -9999.0), (8, -9999.0)]);
}

#[test]
fn a_scoring_server_that_is_busy_or_breaks_off_is_asked_again() {
    type Change = fn(usize, &mut Value) -> Option<Reply>;
    let changes: [Change; 4] = [
        |tried, _| (tried < 2).then(|| Reply::Json(503, json!({ "error": "loading" }))),
        |tried, _| (tried < 1).then(|| Reply::Json(429, Value::Null)),
        |tried, _| (tried < 1).then(|| Reply::Raw("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"cho".into())),
        |tried, _| (tried < 1).then_some(Reply::Silence),
    ];
    for change in changes {
        let fake = scoring(change);
        // One of them waits for an answer that never comes.
        let endpoint = Endpoint { timeout: Duration::from_millis(400), ..fake.endpoint(ServerKind::Vllm) };
        assert_eq!(scores(&endpoint, 2).expect("scores").len(), 3);
        assert!(fake.bodies("/v1/completions").len() > 2);
    }
}

#[test]
fn a_scoring_server_that_is_gone_is_waited_for_as_long_as_asked_and_no_longer_than_wanted() {
    let fake = scoring(|_, _| None);
    let endpoint = Endpoint {
        wait: Duration::from_millis(250),
        keys: "method.distill.teacher_server",
        ..fake.endpoint(ServerKind::Vllm)
    };
    let scorer = Scorer::connect(&endpoint, 2, &Unwatched).expect("it is there");
    let patient = Scorer::connect(&Endpoint { wait: Duration::from_secs(3600), ..endpoint }, 2, &Unwatched);
    fake.end();
    let error = scorer.score(passages(), 320, &Unwatched).expect_err("it is gone");
    assert!(error.to_string().contains("it has not answered for"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("method.distill.teacher_server.wait_s")), "{error:?}");
    let error =
        patient.expect("it is there").score(passages(), 320, &Ends(Default::default())).expect_err("nobody waits");
    assert!(matches!(error, Error::Interrupted), "{error}");
}

#[test]
fn a_server_with_another_tokenizer_is_refused() {
    let tokenizer = Tokenizer::from_dir(&dir().path).expect("a tokenizer");
    let answer = |kind: ServerKind, body: &Value, tokenizer: &Tokenizer, is_other: bool| {
        let text = body["prompt"].as_str().or(body["text"].as_str()).expect("a text");
        let mut ids = tokenizer.encode(text, false).expect("ids");
        if is_other && ids.len() > 3 {
            ids[3] += 1;
        }
        let bos = tokenizer.special_ids();
        let entries = |id: &u32| json!([null, id, null]);
        // A server may put a special id before each text.
        if let Some(bos) = bos.first() {
            ids.insert(0, *bos);
        }
        match kind {
            ServerKind::Sglang => {
                json!({ "meta_info": { "input_token_logprobs": ids.iter().map(entries).collect::<Vec<_>>() } })
            }
            _ => json!({ "choices": [{ "index": 0, "prompt_token_ids": ids }] }),
        }
    };
    for kind in [ServerKind::Vllm, ServerKind::Sglang] {
        for is_other in [false, true] {
            let known = tokenizer.clone();
            let fake = Fake::new(move |path, body| match path {
                "/v1/models" => Reply::Json(200, json!({ "data": [{ "id": "teacher" }] })),
                "/health" => Reply::Json(200, Value::Null),
                _ => Reply::Json(200, answer(kind, body, &known, is_other)),
            });
            let scorer = Scorer::connect(&fake.endpoint(kind), 3, &Unwatched).expect("it is there");
            let checked = scorer.check_tokenizer(&tokenizer, &Unwatched);
            match is_other {
                false => checked.expect("it is the same"),
                true => {
                    let error = checked.expect_err("another").to_string();
                    assert!(error.contains("after 3 equal ids of a text"), "{error}");
                }
            }
            assert!(!fake.paths().is_empty());
        }
    }
}
