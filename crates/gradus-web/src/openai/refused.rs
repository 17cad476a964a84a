//! Error responses in OpenAI's form.

use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Message if a model's thread ends before its completions.
pub const BROKEN: &str = "the thread of the model has ended: the last output of the server shows the reason";

/// An error response in OpenAI's form.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    pub(super) status: StatusCode,
    pub(super) message: String,
    pub(super) param: Option<String>,
    pub(super) code: Option<&'static str>,
}

impl Refused {
    /// The request is invalid because of the field `param`.
    pub fn field(param: &str, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), param: Some(param.to_owned()), code: None }
    }

    /// A field has another type or value than `expected`.
    pub fn wrong(param: &str, value: &Value, expected: &str) -> Self {
        let message = format!("`{param}` is {}, but {expected} is needed", found(value));
        Self { code: Some("invalid_value"), ..Self::field(param, message) }
    }

    /// A field is missing. `expected` describes its value.
    pub fn missing(param: &str, expected: &str) -> Self {
        let message = format!("`{param}` is missing: {expected} is needed");
        Self { code: Some("missing_required_parameter"), ..Self::field(param, message) }
    }

    /// A field requests an unsupported feature.
    pub fn unsupported(param: &str) -> Self {
        let message = format!("`{param}` is not supported by this server: leave it out");
        Self { code: Some("unsupported_parameter"), ..Self::field(param, message) }
    }

    /// The request has no field of this name. `meant` is one that it has.
    pub fn unknown(param: &str, meant: Option<&str>) -> Self {
        let advice = meant.map_or("leave it out".to_owned(), |meant| format!("did you mean `{meant}`?"));
        let message = format!("`{param}` is not a field that this server knows: {advice}");
        Self { code: Some("unknown_parameter"), ..Self::field(param, message) }
    }

    /// The request is invalid.
    pub fn request(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), param: None, code: None }
    }

    /// The request is rejected for another reason.
    pub fn status(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// The server failed.
    pub fn broken() -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, message: BROKEN.into(), param: None, code: None }
    }
}

impl From<gradus::Error> for Refused {
    fn from(error: gradus::Error) -> Self {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        Self::request(format!("{error}{hint}"))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self { status, message, param, code } = self;
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let error = json!({ "error": { "message": message, "type": kind, "param": param, "code": code } });
        json_response(status, &error)
    }
}

/// Returns the response to a request that was not admitted, in OpenAI's form.
pub fn refusal(status: StatusCode, why: &str) -> Response {
    let code = (status == StatusCode::UNAUTHORIZED).then_some("invalid_api_key");
    Refused { status, message: why.to_owned(), param: None, code }.into_response()
}

/// Returns JSON with a status.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Rejects a request with a method that the path does not support.
pub async fn wrong_method(method: Method) -> Refused {
    let expected = match method {
        Method::GET | Method::HEAD => "POST",
        Method::POST => "GET",
        _ => "GET or POST",
    };
    Refused::status(StatusCode::METHOD_NOT_ALLOWED, format!("the method is {method}, but this path needs {expected}"))
}

/// Maximum length of a value in a message.
const SHOWN: usize = 60;

/// Formats a value for messages: its JSON, shortened if necessary.
pub(super) fn found(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
