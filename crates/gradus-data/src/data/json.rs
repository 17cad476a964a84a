//! Strict JSON parsing of rows. Duplicate keys and integers that do not fit are errors, so that no value changes unnoticed.
//! `serde_json` keeps the last of two keys, and rounds a large integer to the nearest `f64`.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

/// Why a text is not a valid row.
#[derive(Debug)]
pub(super) struct Fault {
    /// Description of the problem.
    pub message: String,
    /// Line within the text, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

/// Parses `bytes`.
///
/// # Errors
/// If they are not valid JSON, an object has a duplicate key, or an integer does not fit into 64 bits.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, Fault> {
    let large = Cell::new(false);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = Strict { large: &large }.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let value = parsed.map_err(|error| {
        let text = error.to_string();
        let what = text.rfind(" at line ").map_or(text.as_str(), |at| &text[..at]);
        let message = match (error.is_eof(), error.is_data()) {
            (true, _) => "not valid JSON: the row ends too early".to_owned(),
            (_, true) => what.to_owned(),
            _ => format!("not valid JSON: {what}"),
        };
        Fault { message, line: error.line(), column: error.column() }
    })?;
    // A large number may also be written as a float; only its text shows which it is.
    match large.get().then(|| large_integer(bytes)).flatten() {
        Some((line, column, text)) => {
            let message = format!("the integer {text} does not fit into 64 bits; write it as text");
            Err(Fault { message, line, column })
        }
        None => Ok(value),
    }
}

/// Returns the first integer outside of strings that does not fit into 64 bits, with its line and column.
fn large_integer(bytes: &[u8]) -> Option<(usize, usize, &str)> {
    let (mut at, mut line, mut line_begins) = (0, 1, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while bytes.get(at).is_some_and(|&byte| byte != b'"') {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let rest = &bytes[at..];
                let is_part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
                let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
                let text = std::str::from_utf8(&rest[..length]).unwrap_or_default();
                let is_integer = !text.contains(['.', 'e', 'E']);
                if is_integer && text.parse::<i64>().is_err() && text.parse::<u64>().is_err() {
                    return Some((line, at - line_begins + 1, text));
                }
                at += length;
            }
            _ => {
                if byte == b'\n' {
                    (line, line_begins) = (line + 1, at + 1);
                }
                at += 1;
            }
        }
    }
    None
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    /// Whether a number was so large that it may have been an integer.
    large: &'a Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        const LARGE: f64 = (1u64 << 63) as f64;
        self.large.set(self.large.get() || value.abs() >= LARGE);
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            match map.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(entries.next_value_seed(self)?);
                }
                Entry::Occupied(known) => {
                    let key = crate::error::excerpt(known.key(), 60);
                    return Err(A::Error::custom(format!("the key `{key}` is given twice in one object")));
                }
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(text: &str) -> String {
        let Fault { message, line, column } = parse(text.as_bytes()).expect_err("a fault");
        format!("{message} ({line}:{column})")
    }

    #[test]
    fn what_would_be_changed_is_refused() {
        assert_eq!(message("{\"a\": 1,\n \"a\": 2}"), "the key `a` is given twice in one object (2:4)");
        assert!(message(r#"{"a": [{"b": 1, "c": 2, "b": 1}]}"#).starts_with("the key `b` is given twice"));
        let large = "the integer 18446744073709551616 does not fit into 64 bits; write it as text";
        assert_eq!(message("{\"a\": \"1\\\"\",\n\"b\": 18446744073709551616}"), format!("{large} (2:6)"));
        assert!(message("[-9223372036854775809]").contains("the integer -9223372036854775809 does not fit"));
        for fine in
            ["18446744073709551615", "-9223372036854775808", "1.8446744073709552e19", "\"99999999999999999999\""]
        {
            parse(fine.as_bytes()).expect(fine);
        }
        let mixed = r#"{"text": "99999999999999999999", "large": 1e30}"#;
        parse(mixed.as_bytes()).expect("the large integer is text");
        assert_eq!(message("{\"a\": "), "not valid JSON: the row ends too early (1:6)");
    }

    proptest! {
        #[test]
        fn all_else_is_read_as_serde_json_does(text in "[\\[\\]{}\",:0-9.eE\\-ab\\\\ \n]{0,20}|\\{\"a\": \\[[0-9.eE,\\-]{0,12}\\], \"b\": (null|true|\"x\"|-0.0)\\}") {
            let theirs: Result<Value, _> = serde_json::from_str(&text);
            match (parse(text.as_bytes()), theirs) {
                (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
                (Err(fault), Ok(_)) => prop_assert!(fault.message.contains("twice") || fault.message.contains("64 bits"), "{:?}", fault),
                (Err(_), Err(_)) => {}
                (Ok(_), Err(error)) => prop_assert!(false, "{}", error),
            }
        }
    }
}
