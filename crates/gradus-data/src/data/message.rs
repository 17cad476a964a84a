//! One message of a conversation.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::error::excerpt;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// Content as text.
    pub content: String,
    /// Everything else that a chat template may read (`tool_calls`, `name`, `reasoning_content`). It also holds the original
    /// `content` if that was not a string (a list of parts, or null next to tool calls).
    pub extra: Map<String, Value>,
}

impl Message {
    /// Creates a message with only a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }

    /// Reads `{"role", "content"}` or ShareGPT's `{"from", "value"}`, whose role names are translated.
    ///
    /// # Errors
    /// A description of what the value is instead.
    pub fn read(value: &Value) -> Result<Self, String> {
        let Value::Object(map) = value else {
            return Err(format!("is {}, expected an object with `role` and `content`", kind_name(value)));
        };
        let (role_key, content_key) = if map.contains_key("from") { ("from", "value") } else { ("role", "content") };
        let role = match map.get(role_key) {
            Some(Value::String(role)) => role.as_str(),
            Some(other) => return Err(format!("has {} as `{role_key}`, expected a string", kind_name(other))),
            None => return Err(format!("has no `{role_key}` (found {})", names(map))),
        };
        let is_call = role_key == "from" && role == "function_call";
        let role = if role_key == "from" { translate(role) } else { role }.to_owned();
        let mut extra: Map<String, Value> = map
            .iter()
            .filter(|(k, _)| *k != role_key && *k != content_key)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        // Arrow fills in null for keys that only other messages have.
        extra.retain(|_, value| !value.is_null());
        let content = match map.get(content_key) {
            Some(Value::String(text)) => text.clone(),
            Some(parts @ Value::Array(list)) => {
                let text = list.iter().map(part_text).collect::<Result<String, String>>()?;
                extra.insert("content".into(), parts.clone());
                text
            }
            None | Some(Value::Null) if extra.contains_key("tool_calls") => {
                extra.insert("content".into(), Value::Null);
                String::new()
            }
            Some(other) => return Err(format!("has {} as `{content_key}`, expected a string", kind_name(other))),
            None => return Err(format!("has no `{content_key}` (found {})", names(map))),
        };
        if is_call && !extra.contains_key("tool_calls") {
            let (content, calls) = share_gpt_calls(&content)?;
            extra.insert("tool_calls".into(), calls.into());
            return Ok(Self { role, content: content.to_owned(), extra });
        }
        Ok(Self { role, content, extra })
    }
}

/// Splits a message of ShareGPT's role `function_call` into its text, which may be a thought, and its calls in the form of chat templates.
/// As in LLaMA-Factory, the message is one call or a list of them.
fn share_gpt_calls(text: &str) -> Result<(&str, Vec<Value>), String> {
    let (thought, calls) = text.split_at(text.rfind("</think>").map_or(0, |at| at + "</think>".len()));
    let calls = match serde_json::from_str(calls) {
        Ok(Value::Array(calls)) => calls,
        Ok(call) => vec![call],
        Err(error) => return Err(format!("is a `function_call`, but its text is not JSON: {error}")),
    };
    let function = |call: Value| match (call.get("name"), call.get("arguments")) {
        (Some(Value::String(_)), Some(_)) => Ok(json!({ "type": "function", "function": call })),
        _ => Err("is a `function_call`, but a call in it has no `name` or no `arguments`".to_owned()),
    };
    Ok((thought, calls.into_iter().map(function).collect::<Result<_, _>>()?))
}

/// Translates the role names of ShareGPT files to those of chat templates.
fn translate(role: &str) -> &str {
    match role {
        "human" => "user",
        "gpt" | "bot" | "chatgpt" | "function_call" => "assistant",
        "observation" => "tool",
        other => other,
    }
}

fn part_text(part: &Value) -> Result<String, String> {
    match (part, part.get("text")) {
        (Value::String(text), _) | (_, Some(Value::String(text))) => Ok(text.clone()),
        _ => Err("has a content part without text; gradus reads text only".to_owned()),
    }
}

/// Returns the type of a JSON value in words, for messages.
pub(super) fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Formats the names of columns or keys in backticks, shortened for messages: the first twenty, and 60 characters of each.
pub(super) fn names(map: &Map<String, Value>) -> String {
    const SHOWN: usize = 20;
    if map.is_empty() {
        return "nothing".into();
    }
    let shown = map.keys().take(SHOWN).map(|name| format!("`{}`", excerpt(name, 60))).collect::<Vec<_>>().join(", ");
    if map.len() > SHOWN { format!("{shown} and {} more", map.len() - SHOWN) } else { shown }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", &self.role)?;
        match self.extra.get("content") {
            Some(original) => map.serialize_entry("content", original)?,
            None => map.serialize_entry("content", &self.content)?,
        }
        for (key, value) in self.extra.iter().filter(|(k, _)| *k != "content") {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::read(&value).map_err(|e| D::Error::custom(format!("the message {e}")))
    }
}

pub(super) fn missing(name: &str, columns: &Map<String, Value>) -> String {
    let names: Vec<String> = columns.keys().map(|name| format!("`{name}`")).collect();
    format!("missing column `{name}` (found {})", if names.is_empty() { "none".into() } else { names.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_read_and_print_alike() {
        let share_gpt = Message::read(&json!({"from": "human", "value": "hi"})).unwrap();
        assert_eq!(share_gpt, Message::new("user", "hi"));
        assert_eq!(serde_json::to_value(&share_gpt).unwrap(), json!({"role": "user", "content": "hi"}));
    }

    #[test]
    fn calls_of_share_gpt_are_those_of_chat_templates() {
        let call = |name: &str| json!({"name": name, "arguments": {"city": "Rome"}});
        let expected = |name: &str| json!({"type": "function", "function": call(name)});
        let read = |text: String| Message::read(&json!({"from": "function_call", "value": text}));
        let message =
            |content: &str, calls: Value| json!({"role": "assistant", "content": content, "tool_calls": calls});
        for (text, expected) in [
            (call("weather").to_string(), message("", json!([expected("weather")]))),
            (
                format!("<think>Which?</think>\n{}", json!([call("weather"), call("time")])),
                message("<think>Which?</think>", json!([expected("weather"), expected("time")])),
            ),
        ] {
            assert_eq!(serde_json::to_value(read(text).unwrap()).unwrap(), expected);
        }
        let error = read("weather(Rome)".into()).unwrap_err();
        assert!(error.starts_with("is a `function_call`, but its text is not JSON: "), "{error}");
        let error = read(json!({"name": "weather"}).to_string()).unwrap_err();
        assert_eq!(error, "is a `function_call`, but a call in it has no `name` or no `arguments`");
    }

    #[test]
    fn content_that_is_no_string_survives() {
        for original in [
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]}),
        ] {
            let message = Message::read(&original).unwrap();
            assert_eq!(serde_json::to_value(&message).unwrap(), original);
        }
    }

    #[test]
    fn bad_messages_say_what_was_found() {
        let check = |value: Value, expected: &str| assert_eq!(Message::read(&value).unwrap_err(), expected);
        check(json!("hi"), "is a string, expected an object with `role` and `content`");
        check(json!({"role": "user", "text": "hi"}), "has no `content` (found `role`, `text`)");
        check(json!({"role": 3, "content": "hi"}), "has a number as `role`, expected a string");
    }
}
