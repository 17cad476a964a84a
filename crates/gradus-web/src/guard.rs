//! Which requests are let in: how the server may be called, and the tokens and cookies that it knows.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};

use crate::secret::{given, same};
use crate::store::sessions::Session;

/// The most bytes of a request.
pub const BODY_BYTES: usize = 16 << 20;

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

impl Guard {
    /// Whether `host`, as a request names it, is this server.
    pub fn is_ours(&self, host: &str) -> bool {
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
    pub fn cookie(&self, what: &str) -> String {
        format!("gradus-{what}-{}", self.port)
    }

    /// Sets the cookie of a session.
    pub fn session_cookie(&self, session: &Session) -> HeaderValue {
        set_cookie(&self.cookie("session"), session.id())
    }

    /// Whether the request knows the token: by its address, by its cookie, or as programs say it.
    pub fn knowledge(&self, headers: &HeaderMap, uri: &Uri) -> Knowledge {
        let Some(token) = &self.token else { return Knowledge::Right };
        let by_program = given(headers);
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
pub enum Knowledge {
    /// It does, or needs none.
    Right,
    /// It gives another.
    Wrong,
    /// It gives none.
    None,
}

/// The value of a cookie.
pub fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// The token of an address.
fn in_address(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

/// The address that was printed at the start has the token: it becomes a cookie, and leaves the address.
pub fn enter(guard: &Guard, uri: &Uri) -> Option<Response> {
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
    fn cookies_are_found_by_their_whole_name() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; gradus-session-80=x; gradus-session-8080=y"));
        assert_eq!(cookie(&headers, "gradus-session-8080"), Some("y"));
        assert_eq!(cookie(&headers, "session-8080"), None);
    }
}
