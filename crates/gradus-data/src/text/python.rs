//! Formats values like Python's `json.dumps` and `repr`.

use gradus_metrics::python::number;
pub(super) use gradus_metrics::python::repr;
use serde_json::Value;

/// Options of `json.dumps`.
pub(super) struct Json {
    pub indent: Option<usize>,
    /// Separator between items.
    pub item: String,
    /// Separator between a key and its value.
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
            Value::Number(value) => *out += &number(value),
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
