//! Why something was not done, as a page says it.

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use crate::page::bare;

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

impl From<gradus::Error> for Failed {
    fn from(error: gradus::Error) -> Self {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        Self(StatusCode::UNPROCESSABLE_ENTITY, format!("{error}{hint}"))
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Self(status, why) = self;
        (status, bare(status, &why)).into_response()
    }
}

/// What a script sends.
///
/// # Errors
/// When it is not what the page's script sends.
pub fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failed> {
    serde_json::from_slice(body).map_err(|error| Failed::request(&format!("The request cannot be read: {error}")))
}
