//! Access checks, before anything else handles a request.
//!
//! A page of another site must not make a browser act on this server. The `Host` must be ours, so that a name that was made to resolve to
//! this machine gains nothing. The `Origin` of requests from pages must be ours. Changes need a token that only our pages contain, except
//! below `/v1/` and `/api/v1/`, where programs send JSON. If other machines can reach the server, every request needs the token from the
//! start of the server. Repeated wrong tokens are delayed.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::connections::{ClientConnection, RequestGuard};
use crate::guard::{BODY_BYTES, Knowledge, cookie, enter};
use crate::secret::same;
use crate::store::sessions::Session;
use crate::{openai, page, serving, tinker};

/// Message about a request that is too large.
const TOO_LARGE: &str = "The request is larger than 16 MiB.";

/// Content security policy: pages load only from this server, and contain no inline scripts or styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Admits or rejects a request, and adds security headers to every response.
pub async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let refusal: Option<fn(StatusCode, &str) -> Response> = match request.uri().path() {
        path if serving::is_for_programs(path) => Some(openai::refused::refusal),
        path if path.starts_with(tinker::PREFIX) => Some(tinker::refusal),
        _ => None,
    };
    let mut response = match check(&app, request).await {
        Ok((request, fresh)) => {
            // The whole request has arrived. From now on, its connection is not closed to make room for others.
            let answering = request.extensions().get::<Arc<ClientConnection>>().map(RequestGuard::on);
            let mut response = next.run(request).await;
            if let Some(session) = fresh {
                response.headers_mut().append(header::SET_COOKIE, app.guard.session_cookie(&session));
            }
            match answering {
                Some(answering) => response.map(|body| answering.until_sent(body)),
                None => response,
            }
        }
        Err(Refusal::Known(response)) => *response,
        Err(Refusal::Because(status, why)) => match refusal {
            Some(refusal) => refusal(status, why),
            None => (status, page::bare(status, why)).into_response(),
        },
    };
    let headers = response.headers_mut();
    let mut set = |name, value| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    // With `no-referrer`, forms would send `Origin: null`.
    set(header::REFERRER_POLICY, "same-origin");
    set(header::X_FRAME_OPTIONS, "DENY");
    set(header::CACHE_CONTROL, "no-store");
    set(header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    set(header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    response
}

/// Reason for rejecting a request.
enum Refusal {
    Because(StatusCode, &'static str),
    Known(Box<Response>),
}

/// Checks a request. Returns it with its session as an extension, and the session if it is new.
async fn check(app: &Arc<App>, request: Request) -> Result<(Request, Option<Session>), Refusal> {
    let refuse = |why| Err(Refusal::Because(StatusCode::FORBIDDEN, why));
    let guard = &app.guard;
    let (mut parts, body) = request.into_parts();
    let text = |name| parts.headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(host) = text(header::HOST).filter(|host| guard.is_ours(host)).map(str::to_owned) else {
        return refuse("The host name of the request is not a name of this server.");
    };
    // Browsers send the origin of a page with every request other than simple reads.
    if text(header::ORIGIN)
        .is_some_and(|origin| origin != format!("http://{host}") && origin != format!("https://{host}"))
    {
        return refuse("The request comes from a page of another site.");
    }
    match guard.knowledge(&parts.headers, &parts.uri) {
        Knowledge::Right => {}
        knowledge => {
            if knowledge == Knowledge::Wrong {
                app.wrong_guess(parts.extensions.get::<Arc<ClientConnection>>()).await;
            }
            let why = match parts.uri.path() {
                path if path.starts_with(tinker::PREFIX) => {
                    "the key is missing or wrong: set `TINKER_API_KEY` to `tml-TOKEN`, with the token that was printed when \
                     the server started"
                }
                path if serving::is_for_programs(path) => {
                    "the token is missing or wrong: send the token that was printed when the server started as the API key"
                }
                _ => "The token is missing or wrong: open the address that was printed when the server started.",
            };
            return Err(Refusal::Because(StatusCode::UNAUTHORIZED, why));
        }
    }
    let path = parts.uri.path();
    let is_tinker = path.starts_with(tinker::PREFIX);
    let is_for_programs = serving::is_for_programs(path) || is_tinker;
    // Programs keep no cookies.
    if !is_for_programs && let Some(response) = enter(guard, &parts.uri) {
        return Err(Refusal::Known(Box::new(response)));
    }
    // A request that declares a body that is too large is rejected. Without a declared size, reading stops at the limit.
    let declared = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if declared.is_some_and(|declared| declared > BODY_BYTES as u64) {
        return Err(Refusal::Because(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE));
    }
    let changes = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let kind = text(header::CONTENT_TYPE).unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
    if is_for_programs {
        let bytes = whole(body).await?;
        // A form of another site cannot send this content type without permission. A request without body needs the token.
        let is_known = kind == "application/json" || is_tinker && kind == "application/x-protobuf";
        let says_nothing = bytes.is_empty() && kind.is_empty();
        if changes && !is_known && !says_nothing && parts.method != Method::DELETE {
            let why = "the body must be JSON, and `Content-Type` must be `application/json`";
            return Err(Refusal::Because(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
        }
        return Ok((Request::from_parts(parts, Body::from(bytes)), None));
    }
    if path.starts_with("/assets/") {
        return Ok((Request::from_parts(parts, body), None));
    }
    let known = cookie(&parts.headers, &guard.cookie("session")).and_then(|id| app.store.sessions().find(id));
    if !changes {
        let (session, fresh) = match known {
            Some(session) => (session, None),
            None => {
                let session = app.store.sessions().begin();
                (session.clone(), Some(session))
            }
        };
        parts.extensions.insert(session);
        return Ok((Request::from_parts(parts, body), fresh));
    }
    let Some(session) = known else {
        return refuse("The page is from another session: go back, reload it and try again.");
    };
    let bytes = whole(body).await?;
    let token = parts.headers.get("x-csrf-token").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let token =
        token.or_else(|| (kind == "application/x-www-form-urlencoded").then(|| field(&bytes, "csrf")).flatten());
    if !token.is_some_and(|token| same(&token, &session.csrf)) {
        return refuse("The page did not send its token: reload it and try again.");
    }
    parts.extensions.insert(session);
    Ok((Request::from_parts(parts, Body::from(bytes)), None))
}

/// Reads the whole body.
async fn whole(body: Body) -> Result<Bytes, Refusal> {
    to_bytes(body, BODY_BYTES).await.map_err(|_| Refusal::Because(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE))
}

/// Returns the value of a form field. Tokens contain no characters that forms escape.
fn field(form: &Bytes, name: &str) -> Option<String> {
    let text = std::str::from_utf8(form).ok()?;
    text.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        assert_eq!(field(&Bytes::from_static(b"xcsrf=1&csrf=2"), "csrf").as_deref(), Some("2"));
    }
}
