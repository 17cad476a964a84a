//! Text in addresses.

/// Escapes `text` as a value in a query string.
pub fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_an_address_is_escaped() {
        assert_eq!(percent("runs/a b?x=1#&é"), "runs/a%20b%3Fx%3D1%23%26%C3%A9");
    }
}
