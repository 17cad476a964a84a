//! Access control: host names of the server, tokens and cookies.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};

use crate::secret::{given, same};
use crate::store::sessions::Session;

/// Maximum size of a request in bytes.
pub const BODY_BYTES: usize = 16 << 20;

/// Rules for admitting requests.
#[derive(Debug, Clone)]
pub struct Guard {
    /// Names that `Host` may contain besides an address: `localhost`, and configured names.
    pub names: Vec<String>,
    /// Port of the server. `Host` may omit it if it is 80.
    pub port: u16,
    /// Whether only this machine can reach the server. `Host` must then be a local address or name.
    pub is_loopback: bool,
    /// Token that everyone needs if other machines can reach the server.
    pub token: Option<String>,
    /// Second valid token, for programs with more permissions.
    pub further: Option<String>,
}

impl Guard {
    /// Returns whether a request's `host` is this server.
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
            // Host names can be made to resolve to any address, but addresses cannot be faked.
            Some(address) => !self.is_loopback || address.is_loopback(),
            None => self.names.iter().any(|known| known.eq_ignore_ascii_case(name)),
        }
    }

    /// Returns the name of a cookie. It contains the port, because all ports of a machine share cookies.
    pub fn cookie(&self, what: &str) -> String {
        format!("gradus-{what}-{}", self.port)
    }

    /// Returns the cookie of a session.
    pub fn session_cookie(&self, session: &Session) -> HeaderValue {
        set_cookie(&self.cookie("session"), session.id())
    }

    /// Checks the token of a request: in the URL, in a cookie, or in a header of a program.
    pub fn knowledge(&self, headers: &HeaderMap, uri: &Uri) -> Knowledge {
        let Some(token) = &self.token else { return Knowledge::Right };
        let by_program = given(headers);
        // Tinker's clients require a key with this prefix.
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

/// Result of checking a request's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// The token is valid, or none is needed.
    Right,
    /// The token is wrong.
    Wrong,
    /// There is no token.
    None,
}

/// Returns the value of a cookie.
pub fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns the token in a URL.
fn in_address(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

/// Handles the URL printed at the start, and any other with its token: moves the token into a cookie and removes it from the URL.
pub fn enter(guard: &Guard, uri: &Uri) -> Option<Response> {
    let token = guard.token.as_ref()?;
    if !same(in_address(uri)?, token) {
        return None;
    }
    // Browsers read two slashes at the beginning as the name of another server.
    let path = uri.path().trim_start_matches(['/', '\\']);
    let rest = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.starts_with("token="));
    let rest = rest.collect::<Vec<_>>().join("&");
    let mark = if rest.is_empty() { "" } else { "?" };
    let mut response = Redirect::to(&format!("/{path}{mark}{rest}")).into_response();
    response.headers_mut().append(header::SET_COOKIE, set_cookie(&guard.cookie("token"), token));
    Some(response)
}

/// Builds a cookie that scripts cannot read and that other sites cannot send with requests that change something.
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
