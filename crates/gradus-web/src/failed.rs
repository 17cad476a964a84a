//! Why something was not done, as a page says it.

use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use crate::page::failed;

/// Why something was not done.
#[derive(Debug)]
pub struct Failed(StatusCode, String);

/// What a handler of a page gives.
pub type Done = Result<Response, Failed>;

impl Failed {
    /// The request makes no sense here.
    pub fn request(why: &str) -> Self {
        Self(StatusCode::BAD_REQUEST, why.to_owned())
    }

    /// What was asked for is not there.
    pub fn missing(why: &str) -> Self {
        Self(StatusCode::NOT_FOUND, why.to_owned())
    }

    /// Who asks may not.
    pub fn forbidden(why: &str) -> Self {
        Self(StatusCode::FORBIDDEN, why.to_owned())
    }
}

/// What is said to who is to ask again: after so many seconds.
const AGAIN: &str = "2";

impl From<gradus::Error> for Failed {
    fn from(error: gradus::Error) -> Self {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        // What passes is no fault of the request.
        let status = if error.passes() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::UNPROCESSABLE_ENTITY };
        Self(status, format!("{error}{hint}"))
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Self(status, why) = self;
        let page = failed(status, &why);
        match status {
            StatusCode::SERVICE_UNAVAILABLE => (status, [(header::RETRY_AFTER, AGAIN)], page).into_response(),
            _ => (status, page).into_response(),
        }
    }
}

/// What a script sends.
///
/// # Errors
/// When it is not what the page's script sends.
pub fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failed> {
    serde_json::from_slice(body).map_err(|error| Failed::request(&format!("The request cannot be read: {error}")))
}
