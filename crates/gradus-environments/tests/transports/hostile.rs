//! Changed answers. Each is parsed, or fails its episode with a message. Nothing panics, hangs, or uses unlimited memory.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gradus_environments::{
    Environment, Error, McpConfig, McpServer, NewEpisode, OpenEnv, OpenEnvConfig, ProgramConfig, ProgramEnvironment,
    SampledTurn, Start, ToolSource, Turn, Verifiers, VerifiersConfig,
};
use serde_json::{Map, json};

use crate::mutate::Dice;
use crate::{child, counting, verifiers as server, wire};

/// Changed answers per transport in an ordinary run.
const CASES: u64 = 200;

/// Number of cases that run concurrently.
const WORKERS: u64 = 8;

/// The product's own time limit of one answer, in seconds. A silent case takes this long.
const LIMIT: f64 = 0.5;

/// A worker without progress for this long hangs: a thousand times the limit.
const HANGS: Duration = Duration::from_secs(500);

/// Maximum number of bytes in use while the cases of a transport are played. A worker may hold a message, the unread ones and a copy, of
/// 64 MiB each.
const MOST_MEMORY: usize = WORKERS as usize * 3 * (64 << 20);

/// Maximum length of a message in bytes.
const MOST_WORDS: usize = 5000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

pub fn seed() -> u64 {
    number("GRADUS_FUZZ_SEED").unwrap_or(1)
}

/// Plays a case to its end.
type Player<'a> = Box<dyn FnMut(u64) -> Result<(), Error> + 'a>;

/// Plays all cases, several concurrently. Afterwards, unchanged answers must still be accepted.
fn play(name: &str, player: impl Fn() -> Player<'static> + Sync) {
    let (cases, started) = (number("GRADUS_FUZZ_CASES").unwrap_or(CASES), Instant::now());
    counting::begin();
    let (send, played) = channel();
    let (mut read, mut refused) = (0_u64, 0_u64);
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (send, player) = (send.clone(), &player);
            scope.spawn(move || {
                let mut play = player();
                for case in (worker..cases).step_by(WORKERS as usize) {
                    send.send((case, play(case))).expect("the test listens");
                }
            });
        }
        drop(send);
        loop {
            match played.recv_timeout(HANGS) {
                Ok((_, Ok(()))) => read += 1,
                Ok((case, Err(error))) => {
                    let message = error.to_string();
                    assert!(
                        !message.trim().is_empty() && message.len() < MOST_WORDS,
                        "{name}, case {case}: {} bytes",
                        message.len()
                    );
                    assert_ne!(error, Error::Interrupted, "{name}, case {case}");
                    refused += 1;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // A worker that hangs cannot be joined.
                    println!("{name}: a case hangs");
                    std::process::exit(101);
                }
            }
        }
    });
    println!("{name:12} {read:6} read, {refused:6} refused in {:.0?}", started.elapsed());
    assert_eq!(read + refused, cases, "{name}: every case has an end");
    assert!(read > cases / 20 && refused > cases / 20, "{name}: {read} read, {refused} refused");
    let peak = counting::peak();
    println!("{name:12} {} MiB at the peak", peak.div_ceil(1 << 20));
    assert!(peak < MOST_MEMORY, "{name}: {peak} bytes at the peak");
}

/// Checks that an unchanged answer is still accepted. It may take several tries, because the machine may be busy and the limit is short.
fn again<T>(mut play: impl FnMut() -> Result<T, Error>) -> T {
    let mut last = None;
    for _ in 0..50 {
        match play() {
            Ok(played) => return played,
            Err(error) => last = Some(error),
        }
    }
    panic!("what is not changed is not taken: {last:?}")
}

/// One case in six starts a new connection, with changed initial answers.
fn is_start(case: u64) -> bool {
    Dice::of(seed(), case).one_in(6)
}

/// Plays an episode: two turns and the end.
fn episode(environment: &dyn Environment, name: &str) -> Result<(), Error> {
    let row = Map::from_iter([("prompt".to_owned(), json!("p"))]);
    let NewEpisode { mut episode, .. } = environment.begin(&Start { name: name.to_owned(), seed: 1, row })?;
    for _ in 0..2 {
        let turn = Turn { text: "said".into(), content: "said".into(), ..Turn::default() };
        let observation = episode.step(&turn)?;
        assert!(observation.reward.is_none_or(f64::is_finite), "{observation:?}");
        assert!(observation.metrics.values().all(|value| value.is_finite()), "{observation:?}");
        if observation.is_done {
            break;
        }
    }
    let reward = episode.finish()?;
    assert!(reward.is_none_or(f64::is_finite), "{reward:?}");
    Ok(())
}

pub fn program() {
    let start = |case: Option<u64>| {
        let seed = seed().to_string();
        let case = case.map(|case| case.to_string());
        let arguments: Vec<&str> = ["program", &seed].into_iter().chain(case.as_deref()).collect();
        ProgramEnvironment::start(&ProgramConfig { program: child(&arguments), timeout_s: LIMIT })
    };
    play("program", move || {
        let environment = again(|| start(None));
        Box::new(move |case| {
            if is_start(case) {
                return start(Some(case)).map(drop);
            }
            episode(&environment, &format!("case {case}"))
        })
    });
    let environment = again(|| start(None));
    again(|| episode(&environment, "unchanged"));
}

pub fn openenv() {
    let port = wire::openenv(seed());
    let connect = move |case: Option<u64>| {
        let url = match case {
            Some(case) => format!("http://127.0.0.1:{port}/start/{case}"),
            None => format!("http://127.0.0.1:{port}"),
        };
        let (action, observation) = (None, None);
        OpenEnv::connect(&OpenEnvConfig { url, action, observation, deterministic: true, timeout_s: LIMIT })
    };
    play("openenv", move || {
        let environment = again(|| connect(None));
        Box::new(move |case| {
            if is_start(case) {
                return connect(Some(case)).map(drop);
            }
            episode(&environment, &format!("case {case}"))
        })
    });
    let environment = again(|| connect(None));
    again(|| episode(&environment, "unchanged"));
}

/// Calls the tool once.
fn call(server: &McpServer, case: Option<u64>) -> Result<(), Error> {
    let arguments = case.into_iter().map(|case| ("case".to_owned(), json!(case))).collect();
    server.call("t", &arguments).map(drop)
}

pub fn mcp_lines() {
    let connect = |case: Option<u64>| {
        let seed = seed().to_string();
        let case = case.map(|case| case.to_string());
        let arguments: Vec<&str> = ["mcp", &seed].into_iter().chain(case.as_deref()).collect();
        McpServer::connect(&McpConfig { command: child(&arguments), timeout_s: LIMIT, ..McpConfig::default() })
    };
    play("mcp, lines", move || {
        let server = again(|| connect(None));
        Box::new(move |case| {
            if is_start(case) {
                return connect(Some(case)).map(drop);
            }
            call(&server, Some(case))
        })
    });
    let server = again(|| connect(None));
    again(|| call(&server, None));
}

pub fn mcp_http() {
    let port = wire::mcp(seed());
    let connect = move |case: Option<u64>| {
        let url = Some(format!("http://127.0.0.1:{port}/mcp"));
        let headers = case.into_iter().map(|case| ("x-case".to_owned(), case.to_string())).collect();
        McpServer::connect(&McpConfig { url, headers, timeout_s: LIMIT, ..McpConfig::default() })
    };
    play("mcp, HTTP", move || {
        let server = again(|| connect(None));
        Box::new(move |case| {
            if is_start(case) {
                return connect(Some(case)).map(drop);
            }
            call(&server, Some(case))
        })
    });
    let server = again(|| connect(None));
    again(|| call(&server, None));
}

/// Plays an episode whose turns the server requests.
fn drawn_episode(environment: &Verifiers, case: Option<u64>) -> Result<(), Error> {
    let row = Map::from_iter(case.map(|case| ("case".to_owned(), json!(case))));
    let NewEpisode { mut episode, .. } = environment.begin(&Start { name: "played".into(), seed: 1, row })?;
    for turn in 0..4 {
        assert!(episode.prompt_ids().is_some_and(|ids| !ids.is_empty()), "a turn is drawn behind a prompt");
        let drawn = SampledTurn { ids: vec![10 + turn, 20], logprobs: vec![-0.5, -0.25], is_cut: false };
        let observation = episode.step_sampled(&Turn::default(), &drawn)?;
        assert!(observation.reward.is_none_or(f64::is_finite), "{observation:?}");
        assert!(observation.metrics.values().all(|value| value.is_finite()), "{observation:?}");
        if observation.is_done {
            break;
        }
    }
    Ok(())
}

pub fn verifiers() {
    let port = server::serve(seed());
    let connect = move |case: Option<u64>| {
        let port = case.map_or(port, |case| server::serve_start(seed(), case));
        let keys = json!({ "address": format!("tcp://127.0.0.1:{port}"), "tokenizer": "t", "timeout_s": LIMIT });
        Verifiers::connect(&serde_json::from_value::<VerifiersConfig>(keys).expect("keys"))
    };
    play("verifiers", move || {
        let environment = again(|| connect(None));
        Box::new(move |case| {
            if is_start(case) {
                return connect(Some(case)).map(drop);
            }
            drawn_episode(&environment, Some(case))
        })
    });
    let environment = again(|| connect(None));
    again(|| drawn_episode(&environment, None));
}
