//! Who may ask, checked before anything else sees a request.
//!
//! A page of another site must not make a browser act here: the `Host` must be ours, so that a name that was made to point
//! here gets nothing; the `Origin` of whatever comes from a page must be ours; and what changes something needs a token that
//! only our pages know, except below `/v1/` and `/api/v1/`, where programs ask in JSON. Beyond this machine, everything needs the token that
//! was made at the start; who gives a wrong one several times waits.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use subtle::ConstantTimeEq;

use crate::app::App;
use crate::connections::{Answering, Place};
use crate::store::sessions::Session;
use crate::{openai, page, serving, tinker};

/// The most bytes of a request.
pub const BODY_BYTES: usize = 16 << 20;

/// What is said to who sends more.
const TOO_LARGE: &str = "The request is larger than 16 MiB.";

/// What pages may do: nothing but what comes from here, and no script or style within a page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Which requests are let in.
#[derive(Debug, Clone)]
pub struct Guard {
    /// What a `Host` may say besides an address: `localhost`, or names that were given.
    pub names: Vec<String>,
    /// The port, which a `Host` may leave out when it is 80.
    pub port: u16,
    /// Only those on this machine reach the server, so a `Host` is one of this machine.
    pub is_loopback: bool,
    /// What everyone must know, where others can reach the server.
    pub token: Option<String>,
    /// Another token that is as good: that of who may do more.
    pub further: Option<String>,
}

/// 32 random bytes in hexadecimal digits.
///
/// # Panics
/// When the system has no randomness.
pub fn secret() -> String {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a text has the form of a secret that was made here.
pub fn is_secret(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether two secrets are the same, in a time that does not say how much of them is.
pub fn same(one: &str, other: &str) -> bool {
    bool::from(one.as_bytes().ct_eq(other.as_bytes()))
}

impl Guard {
    /// Whether `host`, as a request names it, is this server.
    fn is_ours(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
            _ => (host, Some(80)),
        };
        if port != Some(self.port) {
            return false;
        }
        let address: Option<IpAddr> = name.trim_start_matches('[').trim_end_matches(']').parse().ok();
        match address {
            // Names can be made to point anywhere, addresses cannot.
            Some(address) => !self.is_loopback || address.is_loopback(),
            None => self.names.iter().any(|known| known.eq_ignore_ascii_case(name)),
        }
    }

    /// The name of the cookie; servers on other ports of this machine have their own.
    fn cookie(&self, what: &str) -> String {
        format!("gradus-{what}-{}", self.port)
    }

    /// Sets the cookie of a session.
    pub fn session_cookie(&self, session: &Session) -> HeaderValue {
        set_cookie(&self.cookie("session"), session.id())
    }

    /// Whether the request knows the token: by its address, by its cookie, or as programs say it.
    fn knowledge(&self, headers: &HeaderMap, uri: &Uri) -> Knowledge {
        let Some(token) = &self.token else { return Knowledge::Right };
        let by_program = serving::given(headers);
        // Tinker's clients demand a key that begins so.
        let key = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        let key = key.map(|key| key.strip_prefix("tml-").unwrap_or(key));
        let given: Vec<&str> = [by_program.as_deref(), key, cookie(headers, &self.cookie("token")), in_address(uri)]
            .into_iter()
            .flatten()
            .collect();
        let is_further = |given: &str| self.further.as_deref().is_some_and(|further| same(given, further));
        match given.iter().any(|given| same(given, token) || is_further(given)) {
            true => Knowledge::Right,
            false if given.is_empty() => Knowledge::None,
            false => Knowledge::Wrong,
        }
    }
}

/// What a request knows of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Knowledge {
    Right,
    Wrong,
    None,
}

/// The value of a cookie.
fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Lets a request in, or not; and says on everything that goes out what a browser may do with it.
pub async fn stand(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let refusal: Option<fn(StatusCode, &str) -> Response> = match request.uri().path() {
        path if serving::is_for_programs(path) => Some(openai::refusal),
        path if path.starts_with(tinker::PREFIX) => Some(tinker::refusal),
        _ => None,
    };
    let mut response = match check(&app, request).await {
        Ok((request, fresh)) => {
            // The whole request is here: from now on its connection does not make room for others.
            let answering = request.extensions().get::<Arc<Place>>().map(Answering::on);
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

/// Why a request is not let in.
enum Refusal {
    Because(StatusCode, &'static str),
    Known(Box<Response>),
}

/// The request with its session among the extensions, and the session where it is new.
async fn check(app: &Arc<App>, request: Request) -> Result<(Request, Option<Session>), Refusal> {
    let refuse = |why| Err(Refusal::Because(StatusCode::FORBIDDEN, why));
    let guard = &app.guard;
    let (mut parts, body) = request.into_parts();
    let text = |name| parts.headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(host) = text(header::HOST).filter(|host| guard.is_ours(host)).map(str::to_owned) else {
        return refuse("This server does not go by the name that it was asked under.");
    };
    // Browsers say where a page is from whenever it asks for more than a look.
    if text(header::ORIGIN)
        .is_some_and(|origin| origin != format!("http://{host}") && origin != format!("https://{host}"))
    {
        return refuse("The request comes from a page of another site.");
    }
    match guard.knowledge(&parts.headers, &parts.uri) {
        Knowledge::Right => {}
        knowledge => {
            if knowledge == Knowledge::Wrong {
                app.wrong_guess(parts.extensions.get::<Arc<Place>>()).await;
            }
            let why = "The token is missing or wrong: open the address that was printed when the server started.";
            return Err(Refusal::Because(StatusCode::UNAUTHORIZED, why));
        }
    }
    if let Some(response) = enter(guard, &parts.uri) {
        return Err(Refusal::Known(Box::new(response)));
    }
    // A request that declares too large a body is refused; one that does not declare it is cut off.
    let said = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if said.is_some_and(|said| said > BODY_BYTES as u64) {
        return Err(Refusal::Because(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE));
    }
    let changes = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let kind = text(header::CONTENT_TYPE).unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
    let path = parts.uri.path();
    let is_tinker = path.starts_with(tinker::PREFIX);
    if serving::is_for_programs(path) || is_tinker {
        let bytes = whole(body).await?;
        // A form of another site cannot say so without asking first. What has no body says nothing: it needs a token.
        let is_known = kind == "application/json" || is_tinker && kind == "application/x-protobuf";
        let says_nothing = bytes.is_empty() && kind.is_empty();
        if changes && !is_known && !says_nothing && parts.method != Method::DELETE {
            let why = "the body must be JSON, and `Content-Type` say `application/json`";
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
        return refuse("The page is from another session: go back, load it again, and do it again.");
    };
    let bytes = whole(body).await?;
    let said = parts.headers.get("x-csrf-token").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let said = said.or_else(|| (kind == "application/x-www-form-urlencoded").then(|| field(&bytes, "csrf")).flatten());
    if !said.is_some_and(|said| same(&said, &session.csrf)) {
        return refuse("The page did not send its token: load it again, and do it again.");
    }
    parts.extensions.insert(session);
    Ok((Request::from_parts(parts, Body::from(bytes)), None))
}

/// All of a body.
async fn whole(body: Body) -> Result<Bytes, Refusal> {
    to_bytes(body, BODY_BYTES).await.map_err(|_| Refusal::Because(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE))
}

/// The value of a field of a form; the token has no characters that a form escapes.
fn field(form: &Bytes, name: &str) -> Option<String> {
    let text = std::str::from_utf8(form).ok()?;
    text.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v.to_owned())
}

/// The token of an address.
fn in_address(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

/// The address that was printed at the start has the token: it becomes a cookie, and leaves the address.
fn enter(guard: &Guard, uri: &Uri) -> Option<Response> {
    let token = guard.token.as_ref()?;
    if !same(in_address(uri)?, token) {
        return None;
    }
    let mut response = Redirect::to("/").into_response();
    response.headers_mut().append(header::SET_COOKIE, set_cookie(&guard.cookie("token"), token));
    Some(response)
}

/// A cookie that no script reads and no other site sends along with what changes something.
fn set_cookie(name: &str, value: &str) -> HeaderValue {
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age=31536000");
    HeaderValue::from_str(&text).expect("names and secrets are ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(is_loopback: bool) -> Guard {
        Guard { names: vec!["localhost".into()], port: 8080, is_loopback, token: None, further: None }
    }

    #[test]
    fn a_name_that_points_here_is_not_ours() {
        for (host, here, anywhere) in [
            ("127.0.0.1:8080", true, true),
            ("localhost:8080", true, true),
            ("LOCALHOST:8080", true, true),
            ("[::1]:8080", true, true),
            ("192.168.0.7:8080", false, true),
            ("127.0.0.1", false, false),
            ("127.0.0.1:8081", false, false),
            ("evil.example:8080", false, false),
            ("localhost.evil.example:8080", false, false),
            ("localhost:8080.evil.example", false, false),
            ("", false, false),
            ("[::1]", false, false),
        ] {
            assert_eq!(guard(true).is_ours(host), here, "{host} on loopback");
            assert_eq!(guard(false).is_ours(host), anywhere, "{host} elsewhere");
        }
        let plain = Guard { port: 80, ..guard(true) };
        assert!(plain.is_ours("localhost") && plain.is_ours("[::1]") && !plain.is_ours("evil.example"));
    }

    #[test]
    fn secrets_are_long_and_never_the_same() {
        let (one, other) = (secret(), secret());
        assert_eq!(one.len(), 64);
        assert!(!same(&one, &other) && same(&one, &one.clone()) && !same(&one, &one[..63]));
    }

    #[test]
    fn cookies_and_fields_are_found_by_their_whole_name() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; gradus-session-80=x; gradus-session-8080=y"));
        assert_eq!(cookie(&headers, "gradus-session-8080"), Some("y"));
        assert_eq!(cookie(&headers, "session-8080"), None);
        assert_eq!(field(&Bytes::from_static(b"xcsrf=1&csrf=2"), "csrf").as_deref(), Some("2"));
    }
}
