//! Servers within the test that write changed bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::child::good_mcp;
use crate::mutate::{Dice, change_bytes, changed};

/// Starts a server on a free port, which passes each connection to `serve`.
pub fn listen(serve: impl Fn(TcpStream) -> std::io::Result<()> + Send + Sync + Clone + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            // The connection ends when the client disconnects.
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
    port
}

/// Waits until the client gives up.
pub fn silence(stream: &mut impl Read) -> std::io::Result<()> {
    std::io::copy(stream, &mut std::io::sink()).map(drop)
}

/// Writes the same bytes until the client gives up.
fn flood(stream: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    let many = bytes.repeat(1 + (1 << 14) / bytes.len());
    loop {
        stream.write_all(&many)?;
    }
}

/// A request with its headers and body.
struct Request {
    headers: Vec<(String, String)>,
    body: String,
}

impl Request {
    fn read(stream: &mut impl BufRead) -> std::io::Result<Option<Self>> {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut headers = Vec::new();
        loop {
            let mut header = String::new();
            if stream.read_line(&mut header)? <= 2 {
                break;
            }
            let (name, value) = header.split_once(':').unwrap_or_default();
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let mut request = Self { headers, body: String::new() };
        let length: u64 = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        stream.take(length).read_to_string(&mut request.body)?;
        Ok(Some(request))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

fn reply(kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// An MCP server over HTTP. A header `x-case` changes its initial answers, an argument `case` changes the answer to the call.
pub fn mcp(seed: u64) -> u16 {
    listen(move |stream| {
        let (mut input, mut output) = (BufReader::new(stream.try_clone()?), stream);
        while let Some(request) = Request::read(&mut input)? {
            let start = request.header("x-case").and_then(|case| case.parse().ok());
            let message: Value = serde_json::from_str(&request.body).unwrap_or_default();
            let Some(good) = good_mcp(&message) else {
                output.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            };
            match good.dice(seed, start) {
                None => output.write_all(&reply(JSON, good.answer.to_string().as_bytes()))?,
                Some(mut dice) => attack(&mut dice, &good.answer, &mut input, &mut output)?,
            }
        }
        Ok(())
    })
}

fn attack(dice: &mut Dice, answer: &Value, input: &mut impl Read, output: &mut TcpStream) -> std::io::Result<()> {
    let event = |message: &Value| format!("event: message\ndata: {message}\n\n");
    let with_id = |id: Value| {
        let mut other = answer.clone();
        other["id"] = id;
        other
    };
    let id = answer["id"].as_u64().unwrap_or_default();
    let head = |kind: &str, more: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}\r\n");
    let ended = Err(std::io::ErrorKind::ConnectionAborted.into());
    match dice.below(40) {
        0 => output.write_all(&reply(JSON, with_id(json!(id + 1)).to_string().as_bytes())),
        1 => output.write_all(&reply(JSON, with_id(json!(id.to_string())).to_string().as_bytes())),
        2 => output.write_all(&reply(JSON, json!([with_id(json!(0)), answer, answer]).to_string().as_bytes())),
        3 => output.write_all(&reply(EVENTS, event(&with_id(json!(id + 1))).as_bytes())),
        4 => output.write_all(&reply(EVENTS, (event(&with_id(Value::Null)) + &event(answer).repeat(2)).as_bytes())),
        5 => {
            let noise = event(&json!({ "jsonrpc": "2.0", "method": "notifications/progress" })).repeat(5000);
            output.write_all(&reply(EVENTS, (noise + &event(answer)).as_bytes()))
        }
        6 => {
            let asks = event(&json!({ "jsonrpc": "2.0", "id": "a", "method": "ping" })).repeat(dice.below(40));
            output.write_all(&reply(EVENTS, (asks + &event(answer)).as_bytes()))
        }
        // Endless answers.
        7 => {
            output.write_all(head(EVENTS, "").as_bytes())?;
            flood(output, b"data: x\n\n")
        }
        8 => {
            output.write_all(head(EVENTS, "").as_bytes())?;
            flood(output, b"data: x\n")
        }
        9 => {
            output.write_all(head(JSON, "").as_bytes())?;
            flood(output, b"[")
        }
        10 => flood(output, b"HTTP/1.1 200 OK\r\nX-Header: x\r\n"),
        11 => flood(output, b"x"),
        12 => {
            output.write_all(head(JSON, "Transfer-Encoding: chunked\r\n").as_bytes())?;
            flood(output, b"1\r\nx\r\n")
        }
        // Truncated answers and closed connections.
        13 => {
            let bytes = reply(JSON, answer.to_string().as_bytes());
            output.write_all(&bytes[..dice.below(bytes.len())])?;
            ended
        }
        14 => {
            let bytes = reply(EVENTS, event(answer).as_bytes());
            output.write_all(&bytes[..dice.below(bytes.len())])?;
            ended
        }
        15 => ended,
        // Silence, before and within the answer.
        16 => silence(input),
        17 => {
            let bytes = reply(if dice.one_in(2) { JSON } else { EVENTS }, answer.to_string().as_bytes());
            output.write_all(&bytes[..dice.below(bytes.len())])?;
            silence(input)
        }
        18 => {
            let status = [100, 101, 204, 301, 307, 400, 401, 404, 405, 413, 429, 500, 503, 999][dice.below(14)];
            let head = format!("HTTP/1.1 {status} Status\r\nContent-Length: 4\r\nLocation: /x\r\n\r\nbody");
            output.write_all(head.as_bytes())?;
            ended
        }
        // Changed messages, and changed bytes of whole answers.
        19..=26 => output.write_all(&reply(JSON, &changed(dice, answer))),
        27..=33 => {
            let message = changed(dice, answer);
            output.write_all(&reply(EVENTS, &[b"data: ", &message[..], b"\n\n"].concat()))
        }
        _ => {
            let mut bytes = match dice.one_in(2) {
                true => reply(JSON, answer.to_string().as_bytes()),
                false => reply(EVENTS, event(answer).as_bytes()),
            };
            for _ in 0..=dice.below(4) {
                change_bytes(dice, &mut bytes);
            }
            output.write_all(&bytes)?;
            ended
        }
    }
}

/// Form of actions that the server reports.
const SCHEMA: &str = r#"{"action": {"properties": {"metadata": {"type": "object"}, "message": {"type": "string"}}}}"#;

/// An OpenEnv server. An address with `start/CASE` changes its initial answers; the case in an episode's name changes the later ones.
pub fn openenv(seed: u64) -> u16 {
    listen(move |mut stream| {
        let mut first = [0; 256];
        let count = stream.peek(&mut first)?;
        let line = String::from_utf8_lossy(&first[..count]).lines().next().unwrap_or_default().to_owned();
        let start = line.split_once("/start/").and_then(|(_, rest)| rest.split(['/', ' ']).next()?.parse::<u64>().ok());
        // Selects the request of an episode whose answer is changed: the tools or the schema; reset or step.
        let dice = |case: u64, at: usize| {
            let mut dice = Dice::of(seed, case + (1 << 40));
            (dice.below(2) == at).then_some(dice)
        };
        if line.contains("/schema") {
            let request = Request::read(&mut BufReader::new(stream.try_clone()?))?;
            drop(request);
            let mut bytes = reply(JSON, SCHEMA.as_bytes());
            if let Some(mut dice) = start.and_then(|case| dice(case, 1)) {
                let schema: Value = serde_json::from_str(SCHEMA).unwrap_or_default();
                bytes = if dice.one_in(2) { reply(JSON, &changed(&mut dice, &schema)) } else { bytes };
                change_bytes(&mut dice, &mut bytes);
            }
            return stream.write_all(&bytes);
        }
        let gone = || std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
        let mut socket = tungstenite::accept(stream).map_err(|_| gone())?;
        let mut case = None;
        while let Ok(Message::Text(text)) = socket.read() {
            let message: Value = serde_json::from_str(&text).unwrap_or_default();
            let observation = |text: &str| {
                let data = json!({ "observation": { "text": text, "n": 1 }, "reward": 0.5, "done": false });
                json!({ "type": "observation", "data": data })
            };
            let (answer, dice) = match message["type"].as_str() {
                Some("mcp") => {
                    let error = json!({ "message": "unknown", "code": "UNKNOWN_TYPE" });
                    (json!({ "type": "error", "data": error }), start.and_then(|case| dice(case, 0)))
                }
                Some("reset") => {
                    let name = message["data"]["episode_id"].as_str().unwrap_or_default();
                    case = name.rsplit(' ').next().and_then(|case| case.parse().ok());
                    (observation("Begin."), case.and_then(|case| dice(case, 0)))
                }
                Some("step") => (observation("Go on."), case.and_then(|case| dice(case, 1))),
                _ => return Ok(()),
            };
            match dice {
                None => socket.send(Message::text(answer.to_string())).map_err(|_| gone())?,
                Some(mut dice) => attack_socket(&mut dice, &answer, &mut socket)?,
            }
        }
        Ok(())
    })
}

/// Encodes a frame as a server does.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![opcode];
    match payload.len() {
        length @ 0..126 => bytes.push(length as u8),
        length @ 126..65536 => bytes.extend([&[126], &(length as u16).to_be_bytes()[..]].concat()),
        length => bytes.extend([&[127], &(length as u64).to_be_bytes()[..]].concat()),
    }
    bytes.extend_from_slice(payload);
    bytes
}

const TEXT: u8 = 0x81;

fn attack_socket(dice: &mut Dice, answer: &Value, socket: &mut WebSocket<TcpStream>) -> std::io::Result<()> {
    let text = answer.to_string();
    let stream = socket.get_mut();
    let ended = Err(std::io::ErrorKind::ConnectionAborted.into());
    match dice.below(30) {
        0 => silence(stream),
        1 => {
            let bytes = frame(TEXT, text.as_bytes());
            stream.write_all(&bytes[..dice.below(bytes.len())])?;
            silence(stream)
        }
        2 => {
            let bytes = frame(TEXT, text.as_bytes());
            stream.write_all(&bytes[..dice.below(bytes.len())])?;
            ended
        }
        3 => ended,
        // Endless answers: pings, pieces of one message, one message.
        4 => flood(stream, &frame(0x89, b"ping")),
        5 => flood(stream, &frame(0x8a, b"pong")),
        6 => {
            stream.write_all(&frame(0x01, b"{"))?;
            flood(stream, &frame(0x00, &[b'x'; 1000]))
        }
        7 => {
            stream.write_all(&[TEXT, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])?;
            flood(stream, b"x")
        }
        8 => stream.write_all(&frame(TEXT, &b"x".repeat(2 << 20))),
        9 => stream.write_all(&frame(0x82, text.as_bytes())),
        10 => stream.write_all(&frame(0x88, &[0x03, 0xe8, b'b', b'y', b'e'])),
        11 => stream.write_all(&frame(TEXT, text.as_bytes()).repeat(3)),
        12 => stream.write_all(&frame(TEXT, b"\xff\xfe")),
        13..=18 => {
            let mut bytes = frame(TEXT, text.as_bytes());
            for _ in 0..=dice.below(3) {
                change_bytes(dice, &mut bytes);
            }
            stream.write_all(&bytes)?;
            ended
        }
        _ => {
            let message = changed(dice, answer);
            stream.write_all(&frame(TEXT, &message))
        }
    }
}
