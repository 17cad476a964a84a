//! Secrets: creation, extraction from requests, comparison.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

/// Returns 32 random bytes in hexadecimal digits.
///
/// # Panics
/// If the operating system provides no randomness.
pub fn secret() -> String {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns whether a text has the form of a secret created here.
pub fn is_secret(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether two secrets are equal, in a time that does not depend on their content.
pub fn same(one: &str, other: &str) -> bool {
    bool::from(one.as_bytes().ct_eq(other.as_bytes()))
}

/// Returns the token of a request: after `Bearer`, or as the password of `Basic`, which clients create from `http://name:password@…`. The case of
/// these words does not matter (RFC 9110, 11.1).
pub fn given(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credentials) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("Bearer") {
        return Some(credentials.trim().to_owned());
    }
    let credentials = scheme.eq_ignore_ascii_case("Basic").then(|| credentials.trim())?;
    let pair = STANDARD.decode(credentials).ok()?;
    Some(String::from_utf8(pair).ok()?.split_once(':')?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn secrets_are_long_and_never_the_same() {
        let (one, other) = (secret(), secret());
        assert_eq!(one.len(), 64);
        assert!(!same(&one, &other) && same(&one, &one.clone()) && !same(&one, &one[..63]));
    }

    #[test]
    fn tokens_are_found_in_any_case_of_their_scheme() {
        for (value, expected) in [
            ("Bearer tea", Some("tea")),
            ("bearer  tea", Some("tea")),
            ("BASIC YWRhOnRlYQ==", Some("tea")),
            ("Digest tea", None),
            ("tea", None),
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
            assert_eq!(given(&headers).as_deref(), expected, "{value}");
        }
    }
}
