//! A client of the training API that sends given requests, once or several times, and may disconnect before the response.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use prost::Message;
use serde_json::{Value, json};

use crate::proto;

/// A response.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// Parses the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, String::from_utf8_lossy(&self.body)))
    }
}

/// Sends a request. `None` if the server is not there or disconnects.
pub fn send(port: u16, method: &str, path: &str, kind: &str, body: &[u8], hears: bool) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(300))).ok()?;
    let head = format!(
        "{method} /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    if !hears {
        // The request was sent, and its response is ignored.
        return None;
    }
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
    });
    let body = bytes[end + 4..].to_vec();
    // A truncated response does not count.
    (length == Some(body.len())).then_some(Answer { status, head, body })
}

/// A text that is trained on from its first id.
pub fn datum(ids: &[i32], weights: &[f32]) -> proto::Datum {
    let n = ids.len() - 1;
    let tensor = |dense: Vec<u8>, dtype: proto::DType| proto::Tensor {
        encoding: Some(proto::Encoding::Dense(dense)),
        dtype: dtype.into(),
        shape: vec![n as i64],
    };
    let targets: Vec<i64> = ids[1..].iter().map(|&id| i64::from(id)).collect();
    let tokens = proto::bytes_of(&ids[..n], i32::to_le_bytes);
    let chunk = proto::ChunkKind::EncodedText(proto::EncodedTextChunk { tokens });
    proto::Datum {
        model_input: vec![proto::Chunk { chunk: Some(chunk) }],
        loss_fn_inputs: HashMap::from([
            ("target_tokens".to_owned(), tensor(proto::bytes_of(&targets, i64::to_le_bytes), proto::DType::Int64)),
            ("weights".to_owned(), tensor(proto::bytes_of(weights, f32::to_le_bytes), proto::DType::Float32)),
        ]),
    }
}

/// A request as bytes: its path, content type and body.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub path: &'static str,
    pub kind: &'static str,
    pub body: Vec<u8>,
}

impl Request {
    /// Creates a request with a JSON body.
    pub fn json(path: &'static str, body: &Value) -> Self {
        Self { path, kind: "application/json", body: body.to_string().into() }
    }

    /// Creates a forward and backward pass.
    pub fn forward_backward(model: &str, seq: u64, data: Vec<proto::Datum>) -> Self {
        let request = proto::ForwardBackwardRequest {
            model_id: model.to_owned(),
            seq_id: seq as i32,
            data,
            loss_fn: "cross_entropy".into(),
            ..Default::default()
        };
        Self { path: "forward_backward", kind: "application/x-protobuf", body: request.encode_to_vec() }
    }

    /// Creates an optimizer step.
    pub fn step(model: &str, seq: u64) -> Self {
        let adam = json!({ "learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.01, "grad_clip_norm": 1.0 });
        Self::json(
            "optim_step",
            &json!({ "model_id": model, "seq_id": seq, "adam_params": adam, "type": "optim_step" }),
        )
    }

    /// Creates a request for a checkpoint.
    pub fn save(model: &str, seq: u64, name: &str) -> Self {
        Self::json("save_weights", &json!({ "model_id": model, "seq_id": seq, "path": name, "type": "save_weights" }))
    }

    /// Sends the request.
    pub fn send(&self, port: u16, hears: bool) -> Option<Answer> {
        send(port, "POST", self.path, self.kind, &self.body, hears)
    }
}

/// Retrieves the result of a request. `None` if the server cannot be reached.
pub fn retrieve(port: u16, request: &str) -> Option<Answer> {
    let answer = Request::json("retrieve_future", &json!({ "request_id": request })).send(port, true)?;
    (answer.status != 408).then_some(answer)
}
