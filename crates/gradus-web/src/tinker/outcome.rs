//! Results of requests, and their form for clients.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Responsibility for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// The client can fix it.
    User,
    /// The operator of the server can fix it.
    Server,
}

impl Category {
    /// Returns the name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Server => "server",
        }
    }
}

/// Reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What happened, and what to do.
    pub message: String,
    /// Side that can fix it.
    pub category: Category,
}

impl Failure {
    /// Creates a failure that the client can fix.
    pub fn user(message: impl Into<String>) -> Self {
        Self { message: message.into(), category: Category::User }
    }

    /// Creates a failure that the operator of the server can fix.
    pub fn server(message: impl Into<String>) -> Self {
        Self { message: message.into(), category: Category::Server }
    }
}

impl From<gradus::Error> for Failure {
    fn from(error: gradus::Error) -> Self {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        let category = match error {
            // The disk belongs to the server.
            gradus::Error::Io { .. } => Category::Server,
            _ => Category::User,
        };
        Self { message: format!("{error}{hint}"), category }
    }
}

/// Result of an accepted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestResult {
    /// JSON.
    Json(String),
    /// A protocol buffer.
    Proto(Vec<u8>),
    /// It failed.
    Failed(Failure),
}

impl RequestResult {
    /// Creates a JSON result.
    pub fn json(value: &Value) -> Self {
        Self::Json(value.to_string())
    }

    /// Encodes the result as bytes for [`read`](Self::read).
    pub fn write(&self) -> Vec<u8> {
        let (kind, body): (u8, Vec<u8>) = match self {
            Self::Json(text) => (0, text.clone().into()),
            Self::Proto(bytes) => (1, bytes.clone()),
            Self::Failed(Failure { message, category: Category::User }) => (2, message.clone().into()),
            Self::Failed(Failure { message, category: Category::Server }) => (3, message.clone().into()),
        };
        [&[kind][..], &body].concat()
    }

    /// Decodes the bytes of [`write`](Self::write).
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, body) = bytes.split_first()?;
        let text = || String::from_utf8(body.to_vec()).ok();
        Some(match kind {
            0 => Self::Json(text()?),
            1 => Self::Proto(body.to_vec()),
            2 => Self::Failed(Failure::user(text()?)),
            3 => Self::Failed(Failure::server(text()?)),
            _ => return None,
        })
    }
}

impl IntoResponse for &RequestResult {
    fn into_response(self) -> Response {
        match self {
            RequestResult::Json(text) => ([(header::CONTENT_TYPE, "application/json")], text.clone()).into_response(),
            RequestResult::Proto(bytes) => {
                ([(header::CONTENT_TYPE, "application/x-protobuf")], bytes.clone()).into_response()
            }
            RequestResult::Failed(Failure { message, category }) => {
                answer(StatusCode::OK, &json!({ "error": message, "category": category.name() }))
            }
        }
    }
}

/// Returns JSON with a status.
pub fn answer(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// A request that was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    status: StatusCode,
    failure: Failure,
}

impl Refused {
    /// Creates a rejection with this status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        let failure = if status.is_server_error() { Failure::server(message) } else { Failure::user(message) };
        Self { status, failure }
    }

    /// The request is invalid.
    pub fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The requested object does not exist.
    pub fn missing(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// The requested object no longer exists.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, message)
    }

    /// The server is overloaded, but the client may retry later.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message)
    }
}

impl From<gradus::Error> for Refused {
    fn from(error: gradus::Error) -> Self {
        let Failure { message, category } = error.into();
        match category {
            Category::User => Self::request(message),
            // Clients retry.
            Category::Server => Self::new(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Failure { message, category } = &self.failure;
        answer(self.status, &json!({ "error": message, "category": category.name() }))
    }
}
