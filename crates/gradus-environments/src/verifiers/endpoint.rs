//! The endpoint at which an environment server requests turns of the policy: `POST …/inference/v1/generate`, in vLLM's format.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

/// Maximum size in bytes of a request's head and of its body.
const HEAD_BYTES: u64 = 32 << 10;
const BODY_BYTES: u64 = 16 << 20;

/// Maximum number of connections: one for each episode that waits for a turn.
const CONNECTIONS: usize = 8192;

const IO_TIMEOUT: Duration = Duration::from_secs(30);

/// Ids that a server wants continued, and the channel for the continuation.
#[derive(Debug)]
pub struct TurnRequest {
    /// Ids of the prompt and of all turns so far.
    pub ids: Vec<u32>,
    /// Channel for the answer.
    pub answer: SyncSender<Value>,
}

/// Listens at `host` until a connection arrives for which `is_active` is false. `deliver` receives each request with the name of its
/// episode, and returns whether there is an episode of that name.
///
/// # Errors
/// Returns an error if the address cannot be bound.
pub fn listen(
    host: &str,
    deliver: impl Fn(&str, TurnRequest) -> bool + Clone + Send + 'static,
    is_active: impl Fn() -> bool + Send + 'static,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((host, 0))?;
    let (address, open) = (listener.local_addr()?, Arc::new(()));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if !is_active() {
                return;
            }
            // Connections above the limit are not answered.
            let open = Arc::clone(&open);
            if Arc::strong_count(&open) > CONNECTIONS {
                continue;
            }
            let deliver = deliver.clone();
            std::thread::spawn(move || {
                // Failed connections need no further handling.
                drop(serve(stream, &deliver));
                drop(open);
            });
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream, deliver: &dyn Fn(&str, TurnRequest) -> bool) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let (status, reply) = match request(&stream) {
        Ok((method, path, body)) => answer(&method, &path, &body, deliver),
        Err(message) => (400, json!({ "error": { "message": message } })),
    };
    let body = reply.to_string();
    let head = "Content-Type: application/json\r\nConnection: close";
    write!(stream, "HTTP/1.1 {status} Answer\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    stream.flush()
}

/// Reads method, path and body.
fn request(stream: &TcpStream) -> Result<(String, String, Vec<u8>), String> {
    let mut reader = BufReader::new(stream.take(HEAD_BYTES));
    let mut line = |what: &str| {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(_) if line.ends_with('\n') => Ok(line.trim_end().to_owned()),
            Ok(_) => Err(format!("the {what} is cut, or longer than {HEAD_BYTES} bytes")),
            Err(error) => Err(format!("the {what} cannot be read: {error}")),
        }
    };
    let first = line("request")?;
    let mut words = first.split(' ').map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err("the request has no path".into());
    };
    let mut length = 0;
    loop {
        let header = line("header")?;
        let Some((name, value)) = header.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<u64>().map_err(|_| format!("the length of the body is {value}"))?;
        }
    }
    if length > BODY_BYTES {
        return Err(format!("the body has {length} bytes, more than {BODY_BYTES}"));
    }
    // The part of the body that arrived with the head, and the rest.
    let begun = reader.buffer().to_vec();
    let mut body = begun;
    let mut rest = stream;
    let missing = length.saturating_sub(body.len() as u64);
    let read = std::io::Read::take(&mut rest, missing).read_to_end(&mut body);
    read.map_err(|error| format!("the body cannot be read: {error}"))?;
    body.truncate(length as usize);
    if body.len() as u64 == length { Ok((method, path, body)) } else { Err("the body is cut".into()) }
}

/// Fields of a request.
#[derive(Deserialize)]
struct RequestBody {
    token_ids: Vec<u32>,
    sampling_params: Option<Params>,
}

#[derive(Deserialize)]
struct Params {
    n: Option<u64>,
}

fn refused(status: u16, message: impl Into<String>) -> (u16, Value) {
    (status, json!({ "error": { "message": message.into() } }))
}

/// Answers a request for `/NAME/v1/models` or `/NAME/inference/v1/generate`.
fn answer(method: &str, path: &str, body: &[u8], deliver: &dyn Fn(&str, TurnRequest) -> bool) -> (u16, Value) {
    let path = path.split('?').next().unwrap_or(path).trim_start_matches('/');
    let (name, rest) = path.split_once('/').unwrap_or((path, ""));
    match (method, rest) {
        ("GET", "v1/models") => (200, json!({ "object": "list", "data": [{ "id": super::MODEL, "object": "model" }] })),
        ("POST", "inference/v1/generate") => {
            let RequestBody { token_ids: ids, sampling_params } = match serde_json::from_slice(body) {
                Ok(parsed) => parsed,
                Err(error) => return refused(400, format!("the body is not a request: {error}")),
            };
            if ids.is_empty() {
                return refused(400, "`token_ids` must be a list of ids");
            }
            if sampling_params.is_some_and(|params| params.n.is_some_and(|n| n != 1)) {
                return refused(400, "only one continuation is sampled at a time: `n` must be 1");
            }
            let (answer, given) = sync_channel(1);
            if !deliver(name, TurnRequest { ids, answer }) {
                return refused(404, "there is no such episode (any more)");
            }
            match given.recv() {
                Ok(reply) => (200, reply),
                Err(_) => refused(410, "the episode is over"),
            }
        }
        _ => refused(404, "this path does not exist"),
    }
}

/// Builds the answer to a request, in vLLM's format.
pub fn continuation(ids: &[u32], logprobs: &[f32], is_cut: bool) -> Value {
    let token = |(id, logprob): (&u32, &f32)| json!({ "token": format!("token_id:{id}"), "token_id": id, "logprob": logprob, "top_logprobs": [] });
    let content: Vec<Value> = ids.iter().zip(logprobs).map(token).collect();
    let reason = if is_cut { "length" } else { "stop" };
    let choice = json!({ "index": 0, "token_ids": ids, "finish_reason": reason, "logprobs": { "content": content } });
    json!({ "request_id": "gradus", "model": super::MODEL, "choices": [choice] })
}
