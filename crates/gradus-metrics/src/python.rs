//! Text forms of values as in Python: some tools use the text of a list as a text.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Number, Value};

/// Returns the `repr` of a value.
pub fn repr(value: &Value) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(value) => number(value),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", join(items.iter().map(repr).collect())),
        Value::Object(map) => {
            format!("{{{}}}", join(map.iter().map(|(k, v)| format!("{}: {}", quoted(k), repr(v))).collect()))
        }
    }
}

/// Quotes a text with single quotes, or with double quotes if that avoids escapes.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            '\\' => out += "\\\\",
            c if c == quote => out.extend(['\\', c]),
            c if !is_printable(c) => {
                out += &match c as u32 {
                    code @ ..=0xff => format!("\\x{code:02x}"),
                    code @ ..=0xffff => format!("\\u{code:04x}"),
                    code => format!("\\U{code:08x}"),
                }
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// `str.isprintable` of one character: false for control, format and private-use characters and for all separators except the space.
fn is_printable(c: char) -> bool {
    static OTHER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]$").expect("a class of characters"));
    if c.is_ascii() { !c.is_ascii_control() } else { !OTHER.is_match(c.encode_utf8(&mut [0; 4])) }
}

/// Formats a number as Python does: `7`, `1.0`, `1e-05`, `1e+16`.
pub fn number(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    let plain = format!("{float:?}");
    let Some((digits, exponent)) = plain.split_once('e') else {
        return plain;
    };
    let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |size| ('-', size));
    format!("{digits}e{sign}{size:0>2}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Expected values from Python 3.11: `repr(value)`.
    #[test]
    fn values_are_printed_as_python_prints_them() {
        for (value, expected) in [
            (json!(["a", "it's", "\"it's\""]), r#"['a', "it's", '"it\'s"']"#),
            (json!({"a": null, "b": [true, 1, 1.0, 1e-5, 1e16]}), "{'a': None, 'b': [True, 1, 1.0, 1e-05, 1e+16]}"),
            (json!("é\u{a0}\u{200b}\n\\\u{e000}\u{e0001}"), r"'é\xa0\u200b\n\\\ue000\U000e0001'"),
        ] {
            assert_eq!(repr(&value), expected);
        }
    }
}
