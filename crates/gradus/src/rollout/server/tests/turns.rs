//! Episodes whose turns a server samples.

use std::sync::atomic::{AtomicUsize, Ordering};

use gradus_environments::games::{Guess, GuessConfig};

use super::*;
use crate::rollout::episodes::{Episodes, Limits, Scene};
use crate::rollout::{Dialogue, EpisodeEnd};

/// The turn that the server samples after a prompt.
fn turn_after(prompt: &[u64]) -> [u64; 2] {
    [20 + prompt.len() as u64 % 30, 12]
}

/// A vLLM server that samples turns and answers the `tried`th request with a `change` of the right answer.
fn drawing(change: impl Fn(usize, &mut Value) -> Option<Reply> + Send + Sync + 'static) -> Fake {
    let (tries, version) = (AtomicUsize::new(0), Mutex::new(String::new()));
    Fake::new(move |path, body| {
        let mut version = version.lock().expect("no panic");
        match path {
            "/v1/models" => Reply::Json(200, json!({ "data": [{ "id": "base" }] })),
            "/update_weight_version" => {
                body["new_version"].as_str().expect("a name").clone_into(&mut version);
                Reply::Json(200, Value::Null)
            }
            "/v1/completions" => {
                let prompt: Vec<u64> = serde_json::from_value(body["prompt"].clone()).expect("ids");
                let ids = turn_after(&prompt);
                let names = ids.map(|id| format!("token_id:{id}"));
                let mut right = json!({ "choices": [{
                    "index": 0, "text": "", "finish_reason": "stop", "prompt_token_ids": prompt, "token_ids": ids,
                    "logprobs": { "tokens": names, "token_logprobs": [-0.5, -0.25] },
                    "weight_versions": [{ "version": *version, "start": 0, "end": 2 }],
                }] });
                change(tries.fetch_add(1, Ordering::SeqCst), &mut right).unwrap_or(Reply::Json(200, right))
            }
            _ => Reply::Json(200, Value::Null),
        }
    })
}

/// Plays a game of three guesses twice with each of two prompts.
fn played(fake: &Fake, progress: &dyn Progress) -> Result<(Rollouts, Vec<String>)> {
    played_within(Duration::from_secs(60), fake, progress)
}

/// The same, where an answer may take this long.
fn played_within(timeout: Duration, fake: &Fake, progress: &dyn Progress) -> Result<(Rollouts, Vec<String>)> {
    let (folder, setting) = (tempfile::tempdir().expect("a folder"), Setting::new(false));
    let endpoint = Endpoint { timeout, ..fake.endpoint(ServerKind::Vllm) };
    let options = ServerOptions { endpoint, ..fake.options(ServerKind::Vllm, folder.path()) };
    let mut source = ServerSource::connect(options, &save, &Unwatched)?;
    source.at(4);
    let game = GuessConfig { guesses: 3, explain: false, ..GuessConfig::default() };
    let episodes = Episodes {
        environment: Arc::new(Guess::new(game).expect("a game")),
        dialogue: Dialogue {
            tokenizer: setting.tokenizer.clone(),
            template: None,
            tools: Vec::new(),
            stop_ids: vec![12],
            read_calls: None,
        },
        limits: Limits::default(),
    };
    let params = SamplingParams { max_new_tokens: 150, stop_ids: vec![12], ..SamplingParams::default() };
    let scene = Scene { episodes: &episodes, when: "step 5", earlier: &[] };
    let sampler = Sampler { params, episodes: Some(scene), progress, ..setting.sampler() };
    let rollouts = source.sample(setting.policy(0), vec![prompt(0), prompt(1)], &sampler, &stream)?;
    Ok((rollouts, source.notices()))
}

#[test]
fn a_server_draws_turn_after_turn_with_all_ids_so_far() {
    let fake = drawing(|_, _| None);
    let (rollouts, notices) = played(&fake, &Unwatched).expect("episodes");
    assert_eq!((rollouts.len(), notices.len()), (4, 0));
    let mut requests: Vec<Vec<u64>> = Vec::new();
    for rollout in &rollouts.rollouts {
        assert_eq!(rollout.turns.len(), 3, "{rollout:?}");
        assert_eq!(rollout.episode.as_ref().expect("an episode").end, EpisodeEnd::Done);
        let with = rollout.sampled_with.as_ref().expect("a server sampled it");
        assert!(with.step == 4 && with.version.ends_with("-v4"), "{with:?}");
        assert_eq!(*rollout.counted_logprobs(), [-0.5, -0.25].repeat(3));
        assert_eq!(rollout.sampled_logprobs, rollout.logprobs);
        let mut ids: Vec<u64> = rollouts.prompts[rollout.prompt].ids.iter().map(|id| u64::from(*id)).collect();
        let mut rest = &rollout.completion_ids[..];
        for turn in &rollout.turns {
            let (drawn, others) = rest.split_at(turn.drawn);
            assert_eq!(drawn.iter().map(|id| u64::from(*id)).collect::<Vec<_>>(), turn_after(&ids));
            requests.push(ids.clone());
            let (answered, others) = others.split_at(turn.answered);
            ids.extend(drawn.iter().chain(answered).map(|id| u64::from(*id)));
            rest = others;
        }
    }
    // One request per turn, each with its own stream.
    let bodies = fake.bodies("/v1/completions");
    let mut found: Vec<Vec<u64>> =
        bodies.iter().map(|body| serde_json::from_value(body["prompt"].clone()).expect("ids")).collect();
    found.sort();
    requests.sort();
    assert_eq!(found, requests);
    let seeds: BTreeSet<String> = bodies.iter().map(|body| body["seed"].to_string()).collect();
    assert_eq!(seeds.len(), bodies.len());
}

#[test]
fn turns_of_a_server_that_fails_are_drawn_again() {
    type Change = fn(usize, &mut Value) -> Option<Reply>;
    let changes: [Change; 4] = [
        |tried, _| (tried % 3 == 1).then(|| Reply::Json(503, json!({ "error": "busy" }))),
        |tried, _| (tried == 5).then(|| Reply::Raw("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"cho".into())),
        |tried, _| (tried == 4).then_some(Reply::Silence),
        // The server was restarted and has other weights.
        |tried, right| {
            if tried == 6 {
                right["choices"][0]["weight_versions"][0]["version"] = json!("others");
            }
            None
        },
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let fake = drawing(change);
        // One of them waits for an answer that never comes.
        let timeout = Duration::from_millis(500);
        let (rollouts, notices) = played_within(timeout, &fake, &Unwatched).expect("episodes");
        assert!(rollouts.rollouts.iter().all(|rollout| rollout.turns.len() == 3), "{i}");
        let loads = fake.bodies("/collective_rpc").len();
        assert_eq!(
            (loads, notices.iter().any(|notice| notice.contains("lost the weights"))),
            (1 + i / 3, i == 3),
            "{i}"
        );
    }
}

#[test]
fn a_turn_that_cannot_be_ends_the_sampling_and_so_does_who_waits() {
    let fake = drawing(|tried, right| {
        if tried == 7 {
            right["choices"][0]["token_ids"] = json!([20]);
        }
        None
    });
    let error = played(&fake, &Unwatched).expect_err("one log-probability too many").to_string();
    assert!(error.contains("a completion has 1 ids, but 2 tokens"), "{error}");
    let silent = drawing(|_, _| Some(Reply::Silence));
    let timeout = Duration::from_millis(500);
    let error = played_within(timeout, &silent, &Ends(Default::default())).expect_err("nobody waits");
    assert!(matches!(error, Error::Interrupted), "{error}");
}
