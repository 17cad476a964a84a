//! Writes `config.yml`: the whole configuration, with a mark on the keys that the user set.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value as Json;

use super::RunConfig;
pub(super) use crate::run::WRITTEN_BY as HEADER;

/// End of a line whose key the user set.
pub(super) const MARK: &str = " # set";

/// Returns the configuration in YAML, every key with its value. Lines of keys in `set` end in `# set`.
pub(super) fn to_yaml(config: &RunConfig, set: &BTreeSet<String>) -> String {
    let value = serde_json::to_value(config).expect("a configuration is plain data");
    let version = env!("CARGO_PKG_VERSION");
    let mut text =
        format!("{HEADER}{version}. `#{}` marks settings that were set; the others are defaults.\n", &MARK[2..]);
    if let Json::Object(object) = &value {
        for (key, value) in object {
            entry(&mut text, key, value, key, 0, set);
        }
    }
    text
}

/// Returns a configuration in YAML without marks.
pub(super) fn plain(value: &Json) -> String {
    let mut text = String::new();
    if let Json::Object(object) = value {
        object.iter().for_each(|(key, value)| entry(&mut text, key, value, key, 0, &BTreeSet::new()));
    }
    text
}

fn entry(text: &mut String, key: &str, value: &Json, path: &str, depth: usize, set: &BTreeSet<String>) {
    let mark = if set.contains(path) { MARK } else { "" };
    let indent = "  ".repeat(depth);
    match value {
        Json::Object(object) if !object.is_empty() => {
            let _ = writeln!(text, "{indent}{key}:");
            for (inner, value) in object {
                entry(text, inner, value, &format!("{path}.{inner}"), depth + 1, set);
            }
        }
        value => {
            let _ = writeln!(text, "{indent}{key}: {}{mark}", flow(value));
        }
    }
}

/// Returns a value on one line.
fn flow(value: &Json) -> String {
    match value {
        Json::Null => "null".to_owned(),
        Json::Bool(value) => value.to_string(),
        Json::Number(number) => number.to_string(),
        Json::String(text) => scalar(text),
        Json::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Json::Object(object) if object.is_empty() => "{}".to_owned(),
        Json::Object(object) => {
            let entries: Vec<_> = object.iter().map(|(key, value)| format!("{key}: {}", flow(value))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}

/// Returns a text, in double quotes if it could be read as anything else.
fn scalar(text: &str) -> String {
    let letters = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '.'));
    let reserved = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    if letters && starts && !reserved.contains(&text.to_lowercase().as_str()) && text.parse::<f64>().is_err() {
        return text.to_owned();
    }
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' => quoted += "\\\"",
            '\\' => quoted += "\\\\",
            '\n' => quoted += "\\n",
            '\t' => quoted += "\\t",
            // YAML forbids or does not preserve line separators, byte order marks and similar characters.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
