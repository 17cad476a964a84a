//! What becomes of a request, and what a client is told of it.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Who can mend a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// Who asked.
    User,
    /// Who runs the server.
    Server,
}

impl Category {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Server => "server",
        }
    }
}

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What happened, and what to do.
    pub message: String,
    /// Who can mend it.
    pub category: Category,
}

impl Failure {
    /// Something that who asked can mend.
    pub fn user(message: impl Into<String>) -> Self {
        Self { message: message.into(), category: Category::User }
    }

    /// Something that who runs the server can mend.
    pub fn server(message: impl Into<String>) -> Self {
        Self { message: message.into(), category: Category::Server }
    }
}

impl From<gradus::Error> for Failure {
    fn from(error: gradus::Error) -> Self {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        let category = match error {
            // The disk is the server's.
            gradus::Error::Io { .. } => Category::Server,
            _ => Category::User,
        };
        Self { message: format!("{error}{hint}"), category }
    }
}

/// The answer to a request that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// JSON.
    Json(String),
    /// A protocol buffer.
    Proto(Vec<u8>),
    /// It failed.
    Failed(Failure),
}

impl Outcome {
    /// A JSON value.
    pub fn json(value: &Value) -> Self {
        Self::Json(value.to_string())
    }

    /// Bytes that [`read`](Self::read) reads.
    pub fn write(&self) -> Vec<u8> {
        let (kind, body): (u8, Vec<u8>) = match self {
            Self::Json(text) => (0, text.clone().into()),
            Self::Proto(bytes) => (1, bytes.clone()),
            Self::Failed(Failure { message, category: Category::User }) => (2, message.clone().into()),
            Self::Failed(Failure { message, category: Category::Server }) => (3, message.clone().into()),
        };
        [&[kind][..], &body].concat()
    }

    /// What [`write`](Self::write) wrote.
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

impl IntoResponse for &Outcome {
    fn into_response(self) -> Response {
        match self {
            Outcome::Json(text) => ([(header::CONTENT_TYPE, "application/json")], text.clone()).into_response(),
            Outcome::Proto(bytes) => {
                ([(header::CONTENT_TYPE, "application/x-protobuf")], bytes.clone()).into_response()
            }
            Outcome::Failed(Failure { message, category }) => {
                answer(StatusCode::OK, &json!({ "error": message, "category": category.name() }))
            }
        }
    }
}

/// JSON with its status.
pub fn answer(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// A request that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    status: StatusCode,
    failure: Failure,
}

impl Refused {
    /// With a status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        let failure = if status.is_server_error() { Failure::server(message) } else { Failure::user(message) };
        Self { status, failure }
    }

    /// The request makes no sense.
    pub fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// What it asks for is not there.
    pub fn missing(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// What it asks for is there no more.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, message)
    }

    /// There is too much to do: later there is room.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message)
    }
}

impl From<gradus::Error> for Refused {
    fn from(error: gradus::Error) -> Self {
        let Failure { message, category } = error.into();
        match category {
            Category::User => Self::request(message),
            // Clients ask again.
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
