//! Messages of JSON-RPC 2.0, as MCP uses them.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::peer::{LineMeaning, excerpt};

/// Newest protocol version that this client supports, which it offers.
pub(super) const NEWEST: &str = "2025-11-25";

/// Versions that a server may choose.
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];

/// Error code for an unknown method.
const NO_METHOD: i64 = -32601;

/// Answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Response {
    /// A result.
    Result(Map<String, Value>),
    /// An error from the server.
    Refused {
        /// Error code.
        code: i64,
        /// Error message.
        message: String,
    },
}

/// Builds a request, without its number.
pub(super) fn request(method: &str, params: &Value) -> Map<String, Value> {
    let parts = [("jsonrpc", json!("2.0")), ("id", Value::Null), ("method", json!(method)), ("params", params.clone())];
    parts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Builds a message without an answer.
pub(super) fn notification(method: &str, params: Value) -> Value {
    match params {
        Value::Null => json!({ "jsonrpc": "2.0", "method": method }),
        params => json!({ "jsonrpc": "2.0", "method": method, "params": params }),
    }
}

/// Builds the notification that cancels a request.
pub(super) fn cancel(number: u64) -> Value {
    notification("notifications/cancelled", json!({ "requestId": number, "reason": "the time limit is over" }))
}

/// Parameters of the first request.
pub(super) fn introduction() -> Value {
    let client = json!({ "name": "gradus", "version": env!("CARGO_PKG_VERSION") });
    json!({ "protocolVersion": NEWEST, "capabilities": {}, "clientInfo": client })
}

/// Returns the version that the server chose in its answer to the first request.
///
/// # Errors
/// Returns [`Error::Episode`] if this client does not support it.
pub(super) fn version(response: Response) -> Result<String> {
    let hint = || format!("gradus supports the versions {}", VERSIONS.join(", "));
    match response {
        Response::Refused { code, message } => {
            Err(Error::episode(format!("the MCP server refused to start: {message} ({code})")).with_hint(hint()))
        }
        Response::Result(result) => match result.get("protocolVersion").and_then(Value::as_str) {
            Some(version) if VERSIONS.contains(&version) => Ok(version.to_owned()),
            Some(other) => {
                let message = format!("the MCP server uses the version `{}` of the protocol", excerpt(other));
                Err(Error::episode(message).with_hint(hint()))
            }
            None => Err(Error::episode("the MCP server's first answer has no `protocolVersion`")),
        },
    }
}

/// Parses one message of a server.
pub(super) fn read(line: &str) -> LineMeaning {
    match serde_json::from_str(line) {
        Ok(Value::Object(object)) => of_object(object),
        // Some servers print a greeting on their output. Other clients skip it, too.
        _ => LineMeaning::Stray,
    }
}

/// Classifies a message.
pub(super) fn of_object(object: Map<String, Value>) -> LineMeaning {
    let id = object.get("id").filter(|id| !id.is_null());
    let method = object.get("method").and_then(Value::as_str);
    match (id, method) {
        (None, Some(_)) => LineMeaning::Aside,
        (Some(id), Some(method)) if id.is_string() || id.is_number() => {
            LineMeaning::Request(answer_to(id, method).to_string())
        }
        (Some(id), None) => match id.as_u64() {
            Some(number) if object.contains_key("result") || object.contains_key("error") => {
                LineMeaning::Answer(number, object)
            }
            _ => LineMeaning::Stray,
        },
        _ => LineMeaning::Stray,
    }
}

/// Answers a request of the server. gradus supports only pings.
fn answer_to(id: &Value, method: &str) -> Value {
    match method {
        "ping" => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
        _ => {
            let error = json!({ "code": NO_METHOD, "message": format!("there is no method `{}`", excerpt(method)) });
            json!({ "jsonrpc": "2.0", "id": id, "error": error })
        }
    }
}

/// Returns the result or error of an answer.
///
/// # Errors
/// Returns [`Error::Episode`] if it has neither.
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
