//! Values written as Python writes them: `json.dumps` and `repr`.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// `json.dumps` with its options.
pub(super) struct Json {
    pub indent: Option<usize>,
    /// Between items.
    pub item: String,
    /// Between a key and its value.
    pub key: String,
    pub sort_keys: bool,
    pub ascii: bool,
}

impl Json {
    pub fn dumps(&self, value: &Value) -> String {
        let mut out = String::new();
        self.write(value, 0, &mut out);
        out
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Array(items) => {
                self.list(depth, out, ('[', ']'), items, |item, out| self.write(item, depth + 1, out));
            }
            Value::Object(map) => {
                let mut entries: Vec<(&String, &Value)> = map.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|(name, _)| *name);
                }
                self.list(depth, out, ('{', '}'), &entries, |(name, value), out| {
                    self.string(name, out);
                    *out += &self.key;
                    self.write(value, depth + 1, out);
                });
            }
            Value::String(text) => self.string(text, out),
            Value::Number(number) => *out += &python_number(number),
            other => *out += &other.to_string(),
        }
    }

    fn list<T>(
        &self,
        depth: usize,
        out: &mut String,
        ends: (char, char),
        items: &[T],
        write: impl Fn(&T, &mut String),
    ) {
        out.push(ends.0);
        let line = |depth: usize| self.indent.map_or(String::new(), |n| format!("\n{}", " ".repeat(n * depth)));
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                *out += &self.item;
            }
            *out += &line(depth + 1);
            write(item, out);
        }
        if !items.is_empty() {
            *out += &line(depth);
        }
        out.push(ends.1);
    }

    fn string(&self, text: &str, out: &mut String) {
        let quoted = Value::from(text).to_string();
        if !self.ascii {
            *out += &quoted;
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                *out += &c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            }
        }
    }
}

/// `repr`, as Python prints a value within a list or by itself.
pub fn repr(value: &Value) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => python_number(number),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", join(items.iter().map(repr).collect())),
        Value::Object(map) => {
            format!("{{{}}}", join(map.iter().map(|(k, v)| format!("{}: {}", quoted(k), repr(v))).collect()))
        }
    }
}

/// In single quotes, unless only double quotes need no escaping.
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

/// `str.isprintable` of one character: no control, format or private character, and no blank but the plain one.
fn is_printable(c: char) -> bool {
    static OTHER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]$").expect("a class of characters"));
    if c.is_ascii() { !c.is_ascii_control() } else { !OTHER.is_match(c.encode_utf8(&mut [0; 4])) }
}

/// A number as Python prints it: `7`, `1.0`, `1e-05`, `1e+16`.
fn python_number(number: &serde_json::Number) -> String {
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
