//! Parses the tool calls in a policy's text.
//!
//! Each family of models writes calls in its own format. A call that cannot be parsed is a call too. Its arguments are the reason, which
//! the policy reads as the tool's answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Map, Value};

use crate::tool::Call;

/// Format in which a family of models writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Qwen, Hermes, SmolLM3.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5, Nemotron 3.
    Qwen3Coder,
    /// `{"name": …, "parameters": {…}}` as the whole turn, optionally after `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS] [{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}`: Mistral.
    Mistral,
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const PARAMETER_ENDS: &str = "</parameter>";
const PYTHON_TAG: &str = "<|python_tag|>";
const TOOL_CALLS: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";
const THOUGHT_ENDS: &str = "</think>";
const THOUGHT_BEGINS: &str = "<think>";

/// Maximum number of bytes of a call that a message quotes.
const QUOTED: usize = 80;

impl CallFormat {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Hermes, Self::Qwen3Coder, Self::Llama3, Self::Mistral];

    /// Guesses the format from the marks in the text of a chat template. `None` if it contains no known mark. Several families use the same
    /// marks for other formats, so [`that_reads`](Self::that_reads) on a rendered turn is more reliable.
    pub fn of_template(source: &str) -> Option<Self> {
        let marks = [
            (FUNCTION, Self::Qwen3Coder),
            (OPEN, Self::Hermes),
            (TOOL_CALLS, Self::Mistral),
            (PYTHON_TAG, Self::Llama3),
        ];
        let found = marks.into_iter().find(|(mark, _)| source.contains(mark)).map(|(_, format)| format);
        // Llama 3.2 writes calls without the tag, but its template shows the format.
        found.or_else(|| source.contains("\"parameters\":").then_some(Self::Llama3))
    }

    /// Returns the format in which a turn consists of exactly this call. `None` if the turn has another format.
    pub fn that_reads(turn: &str, call: &Call) -> Option<Self> {
        Self::ALL.into_iter().find(|format| match &format.read(turn).1[..] {
            // Values in this format have no types.
            [found] if *format == Self::Qwen3Coder => found.name == call.name && as_texts(found) == as_texts(call),
            [found] => (&found.name, &found.arguments) == (&call.name, &call.arguments),
            _ => false,
        })
    }

    /// Like [`read`](Self::read), but converts values to the types that `tools` require if the format itself has no types. `tools` are in
    /// the form of chat templates.
    pub fn read_for(self, text: &str, tools: &[Value]) -> (String, Vec<Call>) {
        let (content, calls) = self.read(text);
        match self {
            Self::Qwen3Coder => (content, calls.into_iter().map(|call| call.fitted(tools)).collect()),
            Self::Hermes | Self::Llama3 | Self::Mistral => (content, calls),
        }
    }

    /// Returns the trimmed text outside of the calls, and the calls in order. `text` is decoded with special tokens and ends before the
    /// end-of-turn mark. Calls within a thought (`<think>…</think>`) are ignored.
    pub fn read(self, text: &str) -> (String, Vec<Call>) {
        let start = match text.rfind(THOUGHT_ENDS) {
            Some(at) => at + THOUGHT_ENDS.len(),
            None if text.contains(THOUGHT_BEGINS) => text.len(),
            None => 0,
        };
        let (thought, rest) = text.split_at(start);
        let (content, calls) = match self {
            Self::Hermes => between_marks(rest, |inside| of_json(inside, "arguments")),
            Self::Qwen3Coder => between_marks(rest, of_function),
            Self::Llama3 => llama3(rest),
            Self::Mistral => mistral(rest),
        };
        (format!("{thought}{content}").trim().to_owned(), calls)
    }
}

/// Returns the arguments as strings, the form of templates without types.
fn as_texts(call: &Call) -> Option<BTreeMap<&str, String>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(call.arguments.as_ref().ok()?.iter().map(|(name, value)| (name.as_str(), text(value))).collect())
}

/// Parses calls between `<tool_call>` and `</tool_call>`.
fn between_marks(text: &str, read: impl Fn(&str) -> Call) -> (String, Vec<Call>) {
    let (mut content, mut calls, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, behind)) = rest.split_once(OPEN) {
        content.push_str(before);
        let (inside, behind) = match behind.split_once(CLOSE) {
            Some((inside, behind)) => (inside, behind),
            None => (behind, ""),
        };
        calls.push(read(inside));
        rest = behind;
    }
    content.push_str(rest);
    (content, calls)
}

fn llama3(text: &str) -> (String, Vec<Call>) {
    let trimmed = text.trim();
    let (content, body) = match trimmed.split_once(PYTHON_TAG) {
        Some((before, body)) => (before, body.trim()),
        // Without the tag, the whole turn is the call.
        None if trimmed.starts_with('{') && trimmed.contains("\"name\"") => ("", trimmed),
        None => return (text.to_owned(), Vec::new()),
    };
    let mut calls = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                let read = values.byte_offset();
                calls.push(of_value(value, "parameters"));
                rest = rest[read..].trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',');
            }
            Some(Err(error)) => {
                calls.push(unreadable(String::new(), &format!("it is no JSON: {error}"), rest));
                break;
            }
            None => break,
        }
    }
    (content.to_owned(), calls)
}

fn mistral(text: &str) -> (String, Vec<Call>) {
    let Some((content, mut rest)) = text.split_once(TOOL_CALLS) else { return (text.to_owned(), Vec::new()) };
    let mut calls = Vec::new();
    let list = rest.trim();
    if list.starts_with('[') && !list.starts_with(ARGS) {
        let mut values = Deserializer::from_str(list).into_iter::<Value>();
        match values.next() {
            Some(Ok(Value::Array(list))) => calls.extend(list.into_iter().map(|value| of_value(value, "arguments"))),
            Some(Ok(_)) | None => calls.push(unreadable(String::new(), "it is no list of calls", list)),
            Some(Err(error)) => calls.push(unreadable(String::new(), &format!("it is no JSON: {error}"), list)),
        }
        return (content.to_owned(), calls);
    }
    loop {
        let (one, behind) = match rest.split_once(TOOL_CALLS) {
            Some((one, behind)) => (one, Some(behind)),
            None => (rest, None),
        };
        let (head, arguments) = one.split_once(ARGS).unwrap_or((one, ""));
        let (name, id) = match head.split_once(CALL_ID) {
            Some((name, id)) => (name, Some(id.trim().to_owned())),
            None => (head, None),
        };
        let call = match serde_json::from_str::<Value>(arguments.trim()) {
            Ok(value) => Call { arguments: object(value), id, name: name.trim().to_owned() },
            Err(error) => {
                let call =
                    unreadable(name.trim().to_owned(), &format!("its arguments are no JSON: {error}"), arguments);
                Call { id, ..call }
            }
        };
        calls.push(call);
        match behind {
            Some(behind) => rest = behind,
            None => return (content.to_owned(), calls),
        }
    }
}

/// Parses a call from `<function=NAME>` and parameters. All values are strings.
fn of_function(text: &str) -> Call {
    let head = text.trim().strip_prefix(FUNCTION).and_then(|rest| rest.split_once('>'));
    let Some((name, mut rest)) = head.filter(|(name, _)| !name.trim().is_empty() && !name.contains('\n')) else {
        return unreadable(String::new(), "it does not begin with `<function=NAME>`", text);
    };
    let mut arguments = Map::new();
    while let Some((_, behind)) = rest.split_once(PARAMETER) {
        let Some((key, behind)) = behind.split_once('>').filter(|(key, _)| !key.contains('\n')) else {
            return unreadable(name.to_owned(), "a parameter does not begin with `<parameter=NAME>`", text);
        };
        let Some((value, behind)) = behind.split_once(PARAMETER_ENDS) else {
            return unreadable(name.to_owned(), &format!("the parameter `{key}` has no `{PARAMETER_ENDS}`"), text);
        };
        // One line break on either side is part of the format.
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.to_owned(), value.into());
        rest = behind;
    }
    Call { id: None, name: name.to_owned(), arguments: Ok(arguments) }
}

/// Parses a call from JSON.
fn of_json(text: &str, arguments: &str) -> Call {
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) => of_value(value, arguments),
        Err(error) => unreadable(String::new(), &format!("it is no JSON: {error}"), text),
    }
}

/// Parses a call from an object with the arguments under the key `arguments`, or under the other common key.
fn of_value(value: Value, arguments: &str) -> Call {
    let quoted = value.to_string();
    let Value::Object(mut object_) = value else { return unreadable(String::new(), "it is no object", &quoted) };
    let inner = match object_.remove("function") {
        Some(Value::Object(inner)) => inner,
        _ => object_.clone(),
    };
    let id = object_.get("id").and_then(Value::as_str).map(str::to_owned);
    let Some(name) = inner.get("name").and_then(Value::as_str) else {
        return Call { id, ..unreadable(String::new(), "it has no `name`", &quoted) };
    };
    let found = [arguments, "arguments", "parameters"].iter().find_map(|key| inner.get(*key));
    let arguments = object(found.cloned().unwrap_or_else(|| Value::Object(Map::new())));
    Call { id, name: name.to_owned(), arguments }
}

/// Returns arguments as an object. Some models write them as a string that contains one.
fn object(value: Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(Value::Object(map)) => Ok(map),
            _ => Err(format!("the arguments are the text `{}`, but must be an object", excerpt(&text))),
        },
        other => Err(format!("the arguments are `{}`, but must be an object", excerpt(&other.to_string()))),
    }
}

fn unreadable(name: String, why: &str, text: &str) -> Call {
    Call { id: None, name, arguments: Err(format!("the call cannot be read: {why} (`{}`)", excerpt(text.trim()))) }
}

fn excerpt(text: &str) -> String {
    let end = text.floor_char_boundary(QUOTED);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The content, and the name and arguments of each call.
    type Read = (String, Vec<(String, Result<Value, String>)>);

    fn names(format: CallFormat, text: &str) -> Read {
        let (content, calls) = format.read(text);
        (content, calls.into_iter().map(|call| (call.name, call.arguments.map(Value::Object))).collect())
    }

    fn called(name: &str, arguments: Value) -> (String, Result<Value, String>) {
        (name.to_owned(), Ok(arguments))
    }

    #[test]
    fn every_family_is_read() {
        let two = "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>";
        let calls = vec![called("add", json!({"a": 1})), called("now", json!({}))];
        assert_eq!(names(CallFormat::Hermes, two), ("Let me see.".into(), calls));
        assert_eq!(names(CallFormat::Hermes, "none at all"), ("none at all".into(), vec![]));
        for text in [
            "{\"name\": \"add\", \"parameters\": {\"a\": \"1\"}}",
            "<|python_tag|>{\"type\": \"function\", \"name\": \"add\", \"parameters\": {\"a\": \"1\"}}",
        ] {
            assert_eq!(names(CallFormat::Llama3, text), (String::new(), vec![called("add", json!({"a": "1"}))]));
        }
        let several = "{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"parameters\": {}}";
        assert_eq!(names(CallFormat::Llama3, several).1.len(), 2);
        assert_eq!(names(CallFormat::Llama3, "{1, 2} is a set"), ("{1, 2} is a set".into(), vec![]));
        let list = "Well.[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}]";
        let (content, calls) = CallFormat::Mistral.read(list);
        assert_eq!((content.as_str(), calls[0].id.as_deref()), ("Well.", Some("abcdefghi")));
        let coder = "I add.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n\n y\n</parameter>\n\
                     </function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";
        let calls = vec![called("add", json!({"a": "1", "b": "x\n\n y"})), called("now", json!({}))];
        assert_eq!(names(CallFormat::Qwen3Coder, coder), ("I add.".into(), calls));
        let add =
            json!({"name": "add", "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}});
        let (_, calls) = CallFormat::Qwen3Coder.read_for(coder, &[json!({"type": "function", "function": add})]);
        assert_eq!(calls[0].arguments.clone().map(Value::Object), Ok(json!({"a": 1, "b": "x\n\n y"})));
        let new = "[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{\"a\": 1}[TOOL_CALLS]now[ARGS]{}";
        let calls = vec![called("add", json!({"a": 1})), called("now", json!({}))];
        assert_eq!(names(CallFormat::Mistral, new), (String::new(), calls));
    }

    #[test]
    fn the_form_is_the_one_that_reads_what_a_template_writes() {
        let arguments = Map::from_iter([("text".to_owned(), json!("water")), ("count".to_owned(), json!([7]))]);
        let call = Call { id: None, name: "look".into(), arguments: Ok(arguments) };
        let of = |count: &str| {
            format!(
                "<tool_call>\n<function=look>\n<parameter=text>\nwater\n</parameter>\n<parameter=count>\n{count}\n</parameter>\n</function>\n</tool_call>"
            )
        };
        assert_eq!(CallFormat::that_reads(&of("[7]"), &call), Some(CallFormat::Qwen3Coder));
        assert_eq!(CallFormat::that_reads(&of("7"), &call), None);
        let hermes =
            "<tool_call>{\"name\": \"look\", \"arguments\": {\"text\": \"water\", \"count\": [7]}}</tool_call>";
        assert_eq!(CallFormat::that_reads(hermes, &call), Some(CallFormat::Hermes));
    }

    #[test]
    fn calls_within_a_thought_are_none() {
        let text =
            "<think>I could <tool_call>{\"name\": \"a\"}</tool_call></think>\n<tool_call>{\"name\": \"b\"}</tool_call>";
        let (content, calls) = CallFormat::Hermes.read(text);
        assert!(content.starts_with("<think>I could") && content.ends_with("</think>"), "{content}");
        assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(CallFormat::Hermes.read("<think>still <tool_call>{\"name\": \"a\"}</tool_call>").1.is_empty());
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (format, text, why) in [
            (CallFormat::Hermes, "<tool_call>{\"name\": \"a\", \"arguments\": {</tool_call>", "it is no JSON"),
            (CallFormat::Hermes, "<tool_call>{\"name\": \"a\"", "it is no JSON"),
            (CallFormat::Hermes, "<tool_call>[1]</tool_call>", "it is no object"),
            (CallFormat::Hermes, "<tool_call>{\"arguments\": {}}</tool_call>", "it has no `name`"),
            (CallFormat::Hermes, "<tool_call>{\"name\": \"a\", \"arguments\": 3}</tool_call>", "must be an object"),
            (
                CallFormat::Qwen3Coder,
                "<tool_call>{\"name\": \"a\"}</tool_call>",
                "does not begin with `<function=NAME>`",
            ),
            (CallFormat::Qwen3Coder, "<tool_call></tool_call>", "does not begin with `<function=NAME>`"),
            (CallFormat::Qwen3Coder, "<tool_call><function=></tool_call>", "does not begin with `<function=NAME>`"),
            (CallFormat::Qwen3Coder, "<tool_call><function=a", "does not begin with `<function=NAME>`"),
            (CallFormat::Qwen3Coder, "<tool_call><function=a><parameter=b", "does not begin with `<parameter=NAME>`"),
            (CallFormat::Qwen3Coder, "<tool_call><function=a><parameter=b>\n1", "`b` has no `</parameter>`"),
            (CallFormat::Llama3, "<|python_tag|>print(1)", "it is no JSON"),
            (CallFormat::Mistral, "[TOOL_CALLS] [{]", "it is no JSON"),
            (CallFormat::Mistral, "[TOOL_CALLS]add[ARGS]{", "its arguments are no JSON"),
            (CallFormat::Mistral, "[TOOL_CALLS]add", "its arguments are no JSON"),
        ] {
            let (_, calls) = format.read(text);
            let found = calls[0].arguments.as_ref().expect_err(text);
            assert!(found.contains(why), "{text}: {found}");
        }
        // If the arguments are a string that contains an object, the object is used.
        let (_, calls) =
            CallFormat::Hermes.read("<tool_call>{\"name\": \"a\", \"arguments\": \"{\\\"b\\\": 1}\"}</tool_call>");
        assert_eq!(calls[0].arguments, Ok(Map::from_iter([("b".to_owned(), json!(1))])));
    }

    #[test]
    fn templates_tell_their_format() {
        assert_eq!(CallFormat::of_template("… <tool_call> …"), Some(CallFormat::Hermes));
        let coder = "… <tool_call>\n<function=example> …";
        assert_eq!(CallFormat::of_template(coder), Some(CallFormat::Qwen3Coder));
        assert_eq!(CallFormat::of_template("… [TOOL_CALLS] …"), Some(CallFormat::Mistral));
        assert_eq!(CallFormat::of_template("{{ '<|python_tag|>' }}"), Some(CallFormat::Llama3));
        assert_eq!(CallFormat::of_template("{{ '\"parameters\":' }}"), Some(CallFormat::Llama3));
        assert_eq!(CallFormat::of_template("{{ messages[0].content }}"), None);
    }
}
