//! Errors of page handlers.

use axum::body::Bytes;
use axum::extract::{self, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use crate::page::failed;

/// Error of a page handler, with its status, its message, and what to do about it.
#[derive(Debug)]
pub struct PageError(StatusCode, String, Option<String>);

/// Result of a page handler.
pub type PageResult = Result<Response, PageError>;

impl PageError {
    /// The request is invalid.
    pub fn request(why: &str) -> Self {
        Self(StatusCode::BAD_REQUEST, why.to_owned(), None)
    }

    /// The requested object does not exist.
    pub fn missing(why: &str) -> Self {
        Self(StatusCode::NOT_FOUND, why.to_owned(), None)
    }

    /// The user lacks the permission.
    pub fn forbidden(why: &str) -> Self {
        Self(StatusCode::FORBIDDEN, why.to_owned(), None)
    }
}

/// Seconds after which a client should retry.
const AGAIN: &str = "2";

impl From<gradus::Error> for PageError {
    fn from(error: gradus::Error) -> Self {
        // A temporary condition is not the client's mistake.
        let status = if error.passes() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::UNPROCESSABLE_ENTITY };
        Self(status, error.to_string(), error.hint().map(str::to_owned))
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let Self(status, why, hint) = self;
        let page = failed(status, &why, hint.as_deref());
        match status {
            StatusCode::SERVICE_UNAVAILABLE => (status, [(header::RETRY_AFTER, AGAIN)], page).into_response(),
            _ => (status, page).into_response(),
        }
    }
}

/// Values in the path of a page. If they cannot be read, the page does not exist.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageError> {
        let found = extract::Path::<T>::from_request_parts(parts, state).await;
        found.map(|extract::Path(values)| Self(values)).map_err(|_| PageError::missing("There is no such page."))
    }
}

/// Parses the JSON that a script sends.
///
/// # Errors
/// It is malformed.
pub fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, PageError> {
    serde_json::from_slice(body).map_err(|error| PageError::request(&format!("The request cannot be read: {error}")))
}
