//! A `verifiers` server that requests two turns of the policy and scores them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::mutate::{Dice, change_bytes, changed, changed_value};
use crate::{wire, zmtp};

type Shared = Arc<Mutex<TcpStream>>;

/// Ids that the server writes itself: the prompt, and the ids after the first turn.
const PROMPT: [u32; 3] = [1, 2, 3];
const BETWEEN: [u32; 2] = [7, 8];

/// Messages of an episode, one of which is changed: two requests for a turn, an addition to a trace, and the end.
const MESSAGES: usize = 4;

/// Starts a server that changes its answers if the task of a run has a `case`.
pub fn serve(seed: u64) -> u16 {
    wire::listen(move |stream| connection(stream, seed, None))
}

/// Starts a server that changes the first bytes of its only connection.
pub fn serve_start(seed: u64, case: u64) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            let _ = connection(stream, seed, Some(case));
        }
    });
    port
}

fn dice(seed: u64, case: u64) -> Dice {
    Dice::of(seed, case + (1 << 40))
}

fn connection(mut stream: TcpStream, seed: u64, start: Option<u64>) -> std::io::Result<()> {
    let mut dice = start.map(|case| dice(seed, case));
    // Changes either the greeting or the answer to the first request.
    let at_greeting = dice.as_mut().is_some_and(|dice| dice.one_in(2));
    match dice.as_mut().filter(|_| at_greeting) {
        Some(dice) => attack_greeting(dice, &mut stream)?,
        None => stream.write_all(&zmtp::greeting())?,
    }
    zmtp::greeted(&mut stream)?;
    let writer: Shared = Arc::new(Mutex::new(stream.try_clone()?));
    loop {
        let frames = zmtp::receive(&mut stream)?;
        let [name, method, payload] = &frames[..] else { panic!("gradus sends three frames: {frames:?}") };
        let payload: Value = rmp_serde::from_slice(payload).expect("gradus writes MessagePack");
        match &method[..] {
            b"run" => {
                let episode = FakeEpisode { name: name.clone(), writer: Arc::clone(&writer) };
                // The episode ends when the client disconnects.
                std::thread::spawn(move || drop(play(&episode, &payload, seed)));
            }
            b"health" => {
                let episode = FakeEpisode { name: name.clone(), writer: Arc::clone(&writer) };
                episode.send("reply", &json!({ "success": true, "error": null }), dice.as_mut())?;
            }
            _ => {}
        }
    }
}

/// An episode at the server.
struct FakeEpisode {
    name: Vec<u8>,
    writer: Shared,
}

impl FakeEpisode {
    /// Sends a message, changed if `dice` is given.
    fn send(&self, kind: &str, body: &Value, dice: Option<&mut Dice>) -> std::io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let data = rmp_serde::to_vec_named(body).expect("it can be written");
        match dice {
            None => writer.write_all(&zmtp::message(&[&self.name, kind.as_bytes(), &data])),
            Some(dice) => attack(dice, &self.name, kind, body, &mut writer),
        }
    }
}

fn play(episode: &FakeEpisode, run: &Value, seed: u64) -> std::io::Result<()> {
    let mut dice = run["task_data"]["case"].as_u64().map(|case| dice(seed, case));
    let at = dice.as_mut().map(|dice| dice.below(MESSAGES));
    let url = run["client"]["base_url"].as_str().expect("an address");
    let played = (|| {
        let first = ask(url, &PROMPT, dice.as_mut().filter(|_| at == Some(0)))?;
        ask(url, &[&PROMPT[..], &first, &BETWEEN].concat(), dice.as_mut().filter(|_| at == Some(1)))
    })();
    if let Err(error) = played {
        let failed = json!({ "success": false, "error": format!("no turn came: {error}") });
        return episode.send("reply", &failed, None);
    }
    let trace = json!({ "rewards": { "right": { "score": 0.5, "weight": 2.0 } }, "metrics": { "turns": 2.0 },
        "agent": { "trainable": true } });
    episode.send("delta", &json!({ "trace": "t", "open": { "id": "t" }, "nodes": [{ "token_ids": [1] }] }), None)?;
    episode.send(
        "delta",
        &json!({ "trace": "t", "set": trace, "errors": [] }),
        dice.as_mut().filter(|_| at == Some(2)),
    )?;
    let reply = json!({ "success": true, "error": null, "head": { "ok": true, "errors": [] },
        "traces": [{ "id": "t", "nodes": 1, "calls": 0 }] });
    episode.send("reply", &reply, dice.as_mut().filter(|_| at == Some(3)))
}

fn connect(url: &str) -> std::io::Result<(TcpStream, String)> {
    let rest = url.strip_prefix("http://").expect("an address");
    let (host, path) = rest.split_once('/').expect("a path");
    Ok((TcpStream::connect(host)?, format!("/{}/inference/v1/generate", path.trim_end_matches("/v1"))))
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Requests the policy's continuation of these ids.
fn ask(url: &str, ids: &[u32], dice: Option<&mut Dice>) -> std::io::Result<Vec<u32>> {
    let (mut stream, path) = connect(url)?;
    let body = json!({ "model": "policy", "token_ids": ids, "sampling_params": { "logprobs": 1 } });
    match dice {
        None => stream.write_all(&post(&path, body.to_string().as_bytes()))?,
        Some(dice) => attack_ask(dice, url, &path, &body, &mut stream)?,
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let wrong = |_| std::io::Error::other(answer.lines().next().unwrap_or("nothing").to_owned());
    serde_json::from_value(parsed["choices"][0]["token_ids"].clone()).map_err(wrong)
}

fn attack_ask(dice: &mut Dice, url: &str, path: &str, body: &Value, stream: &mut TcpStream) -> std::io::Result<()> {
    let good = post(path, body.to_string().as_bytes());
    match dice.below(24) {
        // Silence, before and within the request; a closed connection.
        0 => wire::silence(stream),
        1 => {
            stream.write_all(&good[..dice.below(good.len())])?;
            wire::silence(stream)
        }
        2 => {
            stream.write_all(&good[..dice.below(good.len())])?;
            stream.shutdown(std::net::Shutdown::Both)
        }
        // Floods: headers, a line, a body, requests, connections.
        3 => zmtp::flood(stream, b"X-Header: x\r\n", 1 << 20),
        4 => zmtp::flood(stream, b"x", 1 << 24),
        5 => {
            let head = format!("POST {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n[", u64::MAX >> dice.below(64));
            stream.write_all(head.as_bytes())?;
            zmtp::flood(stream, b"1,", 1 << 23)
        }
        6 => zmtp::flood(stream, &good, 200),
        7 => {
            let more: Vec<_> = (0..30).filter_map(|_| connect(url).ok()).collect();
            for (mut other, path) in more {
                other.write_all(&post(&path, body.to_string().as_bytes()))?;
            }
            stream.write_all(&good)
        }
        // Other paths, other ids, ids that differ from the sampled ones.
        8 => stream.write_all(&post("/nobody/inference/v1/generate", body.to_string().as_bytes())),
        9 => stream.write_all(&post(path, json!({ "token_ids": [9, 9] }).to_string().as_bytes())),
        10 => {
            let many = json!({ "token_ids": vec![5; 1 << dice.below(20)] });
            stream.write_all(&post(path, many.to_string().as_bytes()))
        }
        11 => stream.write_all(&post(path, "[".repeat(100_000).as_bytes())),
        12..=17 => stream.write_all(&post(path, &changed(dice, body))),
        _ => {
            let mut bytes = good;
            for _ in 0..=dice.below(4) {
                change_bytes(dice, &mut bytes);
            }
            stream.write_all(&bytes)?;
            stream.shutdown(std::net::Shutdown::Write)
        }
    }
}

fn attack_greeting(dice: &mut Dice, stream: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = zmtp::greeting();
    match dice.below(12) {
        0 => return wire::silence(stream),
        1 => return zmtp::flood(stream, b"x", 1 << 24),
        2 => bytes.truncate(dice.below(bytes.len())),
        // A frame with the largest possible length.
        3 => bytes.splice(64.., [zmtp::COMMAND | zmtp::LONG].into_iter().chain([0xff; 8])).for_each(drop),
        _ => {
            for _ in 0..=dice.below(3) {
                change_bytes(dice, &mut bytes);
            }
        }
    }
    stream.write_all(&bytes)
}

fn attack(dice: &mut Dice, name: &[u8], kind: &str, body: &Value, stream: &mut TcpStream) -> std::io::Result<()> {
    let packed = |body: &Value| rmp_serde::to_vec_named(body).expect("it can be written");
    let (kind, data) = (kind.as_bytes(), packed(body));
    let good = zmtp::message(&[name, kind, &data]);
    let bytes = match dice.below(40) {
        0 => Vec::new(),
        1 => good[..dice.below(good.len())].to_vec(),
        2 => {
            stream.write_all(&good[..dice.below(good.len())])?;
            return stream.shutdown(std::net::Shutdown::Both);
        }
        3 => return stream.shutdown(std::net::Shutdown::Both),
        // Other frames.
        4 => zmtp::message(&[b"nobody", kind, &data]),
        5 => zmtp::message(&[name, kind]),
        6 => zmtp::message(&[name, kind, &data, &data]),
        7 => zmtp::message(&[name, b"", &data]),
        8 => zmtp::message(&[name, b"delta", &data]),
        9 => zmtp::message(&[name, b"reply", &data]),
        10 => zmtp::message(&vec![&b"x"[..]; 1 << dice.below(10)]),
        11 => good.repeat(3),
        12 => zmtp::frame(zmtp::COMMAND, b"\x05ERRORgone"),
        13 => zmtp::frame(zmtp::COMMAND, &[]),
        // Floods: pings, frames, one frame, additions to one trace and to many, for this episode and for unknown names.
        14 => return zmtp::flood(stream, &zmtp::frame(zmtp::COMMAND, b"\x04PING\0\x10context"), 1 << 18),
        15 => return zmtp::flood(stream, &zmtp::frame(zmtp::MORE, b"x"), 1 << 20),
        16 => {
            stream.write_all(&[&[zmtp::LONG][..], &[0x7f], &[0xff; 7]].concat())?;
            return zmtp::flood(stream, b"x", 1 << 24);
        }
        17 => {
            stream.write_all(&[&[zmtp::LONG][..], &(1_u64 << 24).to_be_bytes()].concat())?;
            return zmtp::flood(stream, b"x", 1 << 23);
        }
        18 => return zmtp::flood(stream, &zmtp::message(&[name, b"delta", &data]), 1 << 18),
        19 => {
            let news = |trace: usize| {
                let errors = json!([{ "type": "x".repeat(1000), "message": "" }]);
                zmtp::message(&[name, b"delta", &packed(&json!({ "trace": format!("{trace}"), "errors": errors }))])
            };
            return (0..100_000).try_for_each(|trace| stream.write_all(&news(trace)));
        }
        20 => return zmtp::flood(stream, &zmtp::message(&[b"nobody", b"delta", &data]), 1 << 18),
        // Lists with many items, of null, and of lists; a length without the announced data.
        21 => {
            let count = 1_u32 << (10 + dice.below(15));
            let many = [&[0xdd][..], &count.to_be_bytes(), &vec![0xc0; count as usize]].concat();
            zmtp::message(&[name, kind, &many])
        }
        22 => {
            let many =
                [&b"\x82\xa5trace\xa1t\xa3set\x81\xa7rewards\xdd\x00\x40\x00\x00"[..], &vec![0xc0; 1 << 22]].concat();
            zmtp::message(&[name, b"delta", &many])
        }
        23 => zmtp::message(&[name, kind, &vec![0x91; 1 << dice.below(20)]]),
        24 => zmtp::message(&[name, kind, &[0xdf, 0xff, 0xff, 0xff, 0xff]]),
        25 => zmtp::message(&[name, kind, &[0xc1]]),
        26..=33 => zmtp::message(&[name, kind, &packed(&changed_value(dice, body))]),
        34..=36 => {
            let mut data = data;
            for _ in 0..=dice.below(4) {
                change_bytes(dice, &mut data);
            }
            zmtp::message(&[name, kind, &data])
        }
        _ => {
            let mut bytes = good;
            for _ in 0..=dice.below(4) {
                change_bytes(dice, &mut bytes);
            }
            bytes
        }
    };
    stream.write_all(&bytes)
}
