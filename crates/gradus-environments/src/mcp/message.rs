//! Messages of JSON-RPC 2.0, as MCP uses them.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::peer::{Line, excerpt};

/// The newest version of the protocol that is spoken here, which the client offers.
pub(super) const NEWEST: &str = "2025-11-25";

/// All versions that a server may choose.
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];

/// The code of a method that the receiver does not have.
const NO_METHOD: i64 = -32601;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Response {
    /// The result.
    Result(Map<String, Value>),
    /// The error that the server answered with.
    Refused {
        /// Its code.
        code: i64,
        /// Its message.
        message: String,
    },
}

/// A request, without its number.
pub(super) fn request(method: &str, params: &Value) -> Map<String, Value> {
    let parts = [("jsonrpc", json!("2.0")), ("id", Value::Null), ("method", json!(method)), ("params", params.clone())];
    parts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A message that has no answer.
pub(super) fn notification(method: &str, params: Value) -> Value {
    match params {
        Value::Null => json!({ "jsonrpc": "2.0", "method": method }),
        params => json!({ "jsonrpc": "2.0", "method": method, "params": params }),
    }
}

/// The notification that cancels a request.
pub(super) fn cancel(number: u64) -> Value {
    notification("notifications/canceled", json!({ "requestId": number, "reason": "the time limit is over" }))
}

/// The parameters of the first request.
pub(super) fn introduction() -> Value {
    let client = json!({ "name": "gradus", "version": env!("CARGO_PKG_VERSION") });
    json!({ "protocolVersion": NEWEST, "capabilities": {}, "clientInfo": client })
}

/// The version that the server chose in its answer to the first request.
///
/// # Errors
/// [`Error::Episode`] where it is none of ours.
pub(super) fn version(response: Response) -> Result<String> {
    let hint = || format!("gradus speaks the versions {}", VERSIONS.join(", "));
    match response {
        Response::Refused { code, message } => {
            Err(Error::episode(format!("the MCP server refused to begin: {message} ({code})")).with_hint(hint()))
        }
        Response::Result(result) => match result.get("protocolVersion").and_then(Value::as_str) {
            Some(version) if VERSIONS.contains(&version) => Ok(version.to_owned()),
            Some(other) => {
                let message = format!("the MCP server speaks the version `{}` of the protocol", excerpt(other));
                Err(Error::episode(message).with_hint(hint()))
            }
            None => Err(Error::episode("the MCP server's first answer has no `protocolVersion`")),
        },
    }
}

/// Reads one message of a server.
pub(super) fn read(line: &str) -> Line {
    match serde_json::from_str(line) {
        Ok(Value::Object(object)) => of_object(object),
        // Some servers greet on their output. Others read over that, too.
        _ => Line::Stray,
    }
}

/// What a message is.
pub(super) fn of_object(object: Map<String, Value>) -> Line {
    let id = object.get("id").filter(|id| !id.is_null());
    let method = object.get("method").and_then(Value::as_str);
    match (id, method) {
        (None, Some(_)) => Line::Aside,
        (Some(id), Some(method)) if id.is_string() || id.is_number() => {
            Line::Request(answer_to(id, method).to_string())
        }
        (Some(id), None) => match id.as_u64() {
            Some(number) if object.contains_key("result") || object.contains_key("error") => {
                Line::Answer(number, object)
            }
            _ => Line::Stray,
        },
        _ => Line::Stray,
    }
}

/// The answer to a request of the server. gradus offers servers nothing but signs of life.
fn answer_to(id: &Value, method: &str) -> Value {
    match method {
        "ping" => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
        _ => {
            let error = json!({ "code": NO_METHOD, "message": format!("there is no method `{}`", excerpt(method)) });
            json!({ "jsonrpc": "2.0", "id": id, "error": error })
        }
    }
}

/// The result or error of an answer.
///
/// # Errors
/// [`Error::Episode`] when it has neither.
pub(super) fn response(mut answer: Map<String, Value>) -> Result<Response> {
    match (answer.remove("result"), answer.remove("error")) {
        (Some(Value::Object(result)), None | Some(Value::Null)) => Ok(Response::Result(result)),
        (None | Some(Value::Null), Some(Value::Object(error))) => {
            let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
            let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason is given").to_owned();
            Ok(Response::Refused { code, message })
        }
        (result, error) => {
            let found = json!({ "result": result, "error": error }).to_string();
            let message = format!("the MCP server's answer has no object `result` or `error`: `{}`", excerpt(&found));
            Err(Error::episode(message))
        }
    }
}
