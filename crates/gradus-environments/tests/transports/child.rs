//! The programs that the tests communicate with.

use std::io::{BufRead, Write};

use gradus_environments::{EnvironmentConfig, NoPlugin};
use serde_json::{Value, json};

use crate::mutate::{Dice, changed};

/// Runs the child: `ROLE …`.
pub fn main(arguments: &[String]) {
    let number = |at: usize| arguments.get(at).and_then(|number| number.parse().ok());
    match arguments.first().map(String::as_str) {
        Some("program") => hostile(good_program, number(1).expect("a seed"), number(2)),
        Some("mcp") => hostile(good_mcp, number(1).expect("a seed"), number(2)),
        #[cfg(unix)]
        Some("counts") => crate::kills::child(&arguments[1..]),
        Some("serve") => {
            let config: EnvironmentConfig<NoPlugin> = serde_json::from_str(&arguments[1]).expect("a configuration");
            let environment = config.built().expect("an environment");
            gradus_environments::serve(&*environment, std::io::stdin().lock(), std::io::stdout()).expect("served");
        }
        other => panic!("there is no role {other:?}"),
    }
}

/// Correct answer to a request.
pub struct Good {
    pub answer: Value,
    /// Whether the request is one of the initial ones, which belong to no episode.
    pub is_first: bool,
    /// Index of this request among the `of` requests of its case. The answer to one of them is changed.
    at: usize,
    of: usize,
    /// Case that the request belongs to.
    case: Option<u64>,
}

impl Good {
    /// Returns the random generator for changing this answer, or `None` if it stays unchanged. `start` is the case whose initial answers
    /// are changed.
    pub fn dice(&self, seed: u64, start: Option<u64>) -> Option<Dice> {
        let case =
            if start.is_some() { start.filter(|_| self.is_first) } else { self.case.filter(|_| !self.is_first) }?;
        let mut dice = Dice::of(seed, case + (1 << 40));
        (dice.below(self.of) == self.at).then_some(dice)
    }
}

fn good_program(request: &Value) -> Option<Good> {
    let case = request["episode"].as_str().and_then(|name| name.rsplit(' ').next()?.parse().ok());
    let (mut answer, at) = match request["do"].as_str()? {
        "describe" => {
            let answer = json!({ "id": request["id"], "tools": [{ "name": "t" }], "deterministic": true });
            return Some(Good { answer, is_first: true, at: 0, of: 1, case });
        }
        "reset" => (json!({ "message": "Begin." }), 0),
        "step" => {
            let tool = json!({ "name": "t", "content": "done" });
            let metrics = json!({ "a": 1, "b": 0.5 });
            (json!({ "replies": ["Go on.", tool], "reward": 0.5, "done": false, "metrics": metrics }), 1)
        }
        _ => (json!({ "reward": 1.0 }), 2),
    };
    answer["id"] = request["id"].clone();
    Some(Good { answer, is_first: false, at, of: 3, case })
}

/// Correct answer of an MCP server; `None` for a notification.
pub fn good_mcp(request: &Value) -> Option<Good> {
    request.get("id")?;
    let (result, is_first, at, of) = match request["method"].as_str()? {
        "initialize" => {
            let server = json!({ "name": "server", "version": "1" });
            let result =
                json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} }, "serverInfo": server });
            (result, true, 0, 2)
        }
        "tools/list" => {
            let schema = json!({ "type": "object", "properties": { "case": { "type": "integer" } } });
            let tool = json!({ "name": "t", "description": "Does it.", "inputSchema": schema });
            (json!({ "tools": [tool] }), true, 1, 2)
        }
        _ => {
            let image = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
            let parts = json!([{ "type": "text", "text": "done" }, image]);
            (json!({ "content": parts, "structuredContent": { "a": 1 }, "isError": false }), false, 0, 1)
        }
    };
    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
    Some(Good { answer, is_first, at, of, case: request["params"]["arguments"]["case"].as_u64() })
}

/// Answers requests, with changes selected by their case.
fn hostile(good: fn(&Value) -> Option<Good>, seed: u64, start: Option<u64>) {
    let mut output = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let request: Value = serde_json::from_str(&line).expect("gradus writes JSON");
        let Some(good) = good(&request) else { continue };
        let sent = match good.dice(seed, start) {
            Some(mut dice) => attack(&mut dice, &good.answer, &mut output),
            None => output.write_all(format!("{}\n", good.answer).as_bytes()).and_then(|()| output.flush()),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn attack(dice: &mut Dice, answer: &Value, output: &mut impl Write) -> std::io::Result<()> {
    let line = |value: &Value| format!("{value}\n").into_bytes();
    let with_id = |id: Value| {
        let mut other = answer.clone();
        other["id"] = id;
        line(&other)
    };
    let id = answer["id"].as_u64().unwrap_or_default();
    let mut bytes = match dice.below(40) {
        // Wrong ids and duplicate answers.
        0 => with_id(json!(id + 1)),
        1 => with_id(json!(id.wrapping_sub(1))),
        2 => with_id(json!(id.to_string())),
        3 => with_id(json!(id as f64 + 0.5)),
        4 => with_id(Value::Null),
        5 => line(answer).repeat(3),
        6 => [with_id(json!(u64::MAX)), line(answer)].concat(),
        // Floods.
        7 => {
            [line(&json!({ "jsonrpc": "2.0", "method": "notifications/progress" })).repeat(5000), line(answer)].concat()
        }
        8 => line(&json!({ "jsonrpc": "2.0", "id": "a", "method": "ping" })).repeat(5000),
        9 => b"no message\n".repeat(20_000),
        10 => {
            let _ = std::io::stderr().write_all(&b"noise on the error channel\n".repeat(20_000));
            line(answer)
        }
        11 => [vec![b'x'; (1 << 20) + 10], b"\n".to_vec()].concat(),
        12 => [format!("{{\"id\": {id}, \"replies\": ").into_bytes(), b"[".repeat(100_000), b"\n".to_vec()].concat(),
        // Exits.
        13 => std::process::exit(3),
        14 => {
            let bytes = line(answer);
            output.write_all(&bytes[..dice.below(bytes.len())])?;
            output.flush()?;
            std::process::exit(0)
        }
        15 => std::process::abort(),
        // Silence.
        16 => Vec::new(),
        17 => {
            let bytes = line(answer);
            bytes[..dice.below(bytes.len())].to_vec()
        }
        18 => b"\xff\xfe\x00\n".to_vec(),
        _ => {
            let mut bytes = changed(dice, answer);
            bytes.push(b'\n');
            bytes
        }
    };
    if dice.one_in(50) {
        bytes = [b"\n\n".to_vec(), bytes].concat();
    }
    output.write_all(&bytes)?;
    output.flush()
}
