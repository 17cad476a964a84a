//! Parses the tool calls in a policy's text.
//!
//! A turn consists of thoughts, calls and other text. The first mark wins, and everything up to its end belongs to it, as in transformers: a
//! call in a thought is a part of the thought, and `<think>` in an argument is a part of the call.
//!
//! Each family of models writes calls in its own format. A call that cannot be parsed is a call too. Its arguments are the reason, which
//! the policy reads as the tool's answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Map, Value};

use crate::think;
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
    /// `{"name": …, "parameters": {…}}` at the end of the turn, optionally after `<|python_tag|>`: Llama 3.
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
/// Start of a call of Llama 3.
const LLAMA_CALL: &str = "{\"name\":";

/// Maximum number of bytes of a call that a message quotes.
const QUOTED: usize = 80;

impl CallFormat {
    /// Marks of calls and thoughts. In some tokenizers they are special tokens.
    pub const MARKS: [&str; 8] = [OPEN, CLOSE, PYTHON_TAG, TOOL_CALLS, ARGS, CALL_ID, think::OPEN, think::CLOSE];

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
        Self::ALL.into_iter().find(|format| {
            let ParsedTurn { answer, calls, .. } = format.read(turn, false);
            match &calls[..] {
                // Values in this format have no types.
                [found] if *format == Self::Qwen3Coder => found.name == call.name && as_texts(found) == as_texts(call),
                // Other families write such an object after marks of their own.
                _ if *format == Self::Llama3 && !answer.is_empty() => false,
                [found] => (&found.name, &found.arguments) == (&call.name, &call.arguments),
                _ => false,
            }
        })
    }

    /// Like [`read`](Self::read), but converts texts to the types that `tools` require, as transformers does. `tools` are in the form of chat
    /// templates.
    pub fn read_for(self, text: &str, begins_in_thought: bool, tools: &[Value]) -> ParsedTurn {
        let mut parsed = self.read(text, begins_in_thought);
        parsed.calls = parsed.calls.into_iter().map(|call| call.fitted(tools)).collect();
        parsed
    }

    /// Splits a turn into its parts. `text` is decoded with special tokens and ends before the end-of-turn mark. `begins_in_thought` means
    /// that the text before the turn ends with `<think>`, which some chat templates write.
    pub fn read(self, text: &str, begins_in_thought: bool) -> ParsedTurn {
        let mut parsed = ParsedTurn::default();
        let mut thoughts: Vec<&str> = Vec::new();
        for part in self.parts(text, begins_in_thought) {
            match part {
                Part::Thought { whole, inner } => {
                    parsed.outside.push_str(whole);
                    thoughts.push(inner.trim());
                }
                Part::Text(text) => {
                    parsed.outside.push_str(text);
                    parsed.answer.push_str(text);
                }
                Part::Calls(calls) => parsed.calls.extend(calls),
            }
        }
        thoughts.retain(|thought| !thought.is_empty());
        parsed.thought = thoughts.join("\n");
        parsed.answer = parsed.answer.trim().to_owned();
        parsed
    }

    /// Returns the number of bytes of an unfinished turn that belong to no call, whatever follows.
    pub fn certain_text(text: &str, begins_in_thought: bool) -> usize {
        let mut at = 0;
        let mut is_thought = begins_in_thought;
        loop {
            if is_thought {
                let Some(end) = text[at..].find(think::CLOSE) else { return text.len() };
                at += end + think::CLOSE.len();
            }
            let rest = &text[at..];
            // A call may be the whole turn, even after white space.
            if matches!(rest.trim_start().chars().next(), None | Some('{')) {
                return at;
            }
            let first = |marks: &[&str]| marks.iter().filter_map(|mark| rest.find(mark)).min();
            let call = first(&[OPEN, TOOL_CALLS, PYTHON_TAG, LLAMA_CALL]);
            match (first(&[think::OPEN]), call) {
                (Some(thought), call) if call.is_none_or(|call| thought < call) => {
                    at += thought + think::OPEN.len();
                    is_thought = true;
                }
                (_, Some(call)) => return at + call,
                (_, None) => {
                    // The text may end within a mark.
                    let marks = [OPEN, TOOL_CALLS, PYTHON_TAG, LLAMA_CALL, think::OPEN];
                    let halves = |mark: &'static str| (1..mark.len()).filter(|&end| rest.ends_with(&mark[..end])).max();
                    return text.len() - marks.into_iter().filter_map(halves).max().unwrap_or(0);
                }
            }
        }
    }

    /// Splits a turn into thoughts, calls and other text.
    fn parts(self, text: &str, begins_in_thought: bool) -> Vec<Part<'_>> {
        let (mut parts, mut rest, mut is_start) = (Vec::new(), text, true);
        // The mark of the thought that `rest` begins with.
        let mut mark = begins_in_thought.then_some("");
        loop {
            if let Some(mark) = mark.take() {
                let inner = &rest[mark.len()..];
                let inner = inner.split_once(think::CLOSE).map_or(inner, |(inner, _)| inner);
                let end = (mark.len() + inner.len() + think::CLOSE.len()).min(rest.len());
                parts.push(Part::Thought { whole: &rest[..end], inner });
                rest = &rest[end..];
            }
            let (thought, call) = (rest.find(think::OPEN), self.find_call(rest, is_start));
            let begin = match (thought, call) {
                (Some(thought), call) if call.is_none_or(|call| thought < call) => thought,
                (_, Some(call)) => call,
                (_, None) => rest.len(),
            };
            let (before, behind) = rest.split_at(begin);
            parts.push(Part::Text(before));
            is_start &= before.trim().is_empty();
            rest = behind;
            if call == Some(begin) {
                let (length, calls) = self.read_calls(rest);
                parts.push(Part::Calls(calls));
                rest = &rest[length..];
                is_start = false;
            } else if thought == Some(begin) {
                mark = Some(think::OPEN);
            } else {
                return parts;
            }
        }
    }

    /// Returns the position of the next call. `is_start` means that only thoughts precede the text.
    fn find_call(self, text: &str, is_start: bool) -> Option<usize> {
        match self {
            Self::Hermes | Self::Qwen3Coder => text.find(OPEN),
            Self::Mistral => text.find(TOOL_CALLS),
            Self::Llama3 => {
                let blank = text.len() - text.trim_start().len();
                let whole = Some(blank).filter(|&at| is_start && (is_llama3(&text[at..]) || is_call(&text[at..])));
                [text.find(PYTHON_TAG), whole.or_else(|| final_calls(text))].into_iter().flatten().min()
            }
        }
    }

    /// Parses the call that `text` begins with, and those that follow it without a mark of their own. Also returns their length.
    fn read_calls(self, text: &str) -> (usize, Vec<Call>) {
        match self {
            Self::Hermes => between_marks(text, |inside| of_json(inside, "arguments")),
            Self::Qwen3Coder => between_marks(text, of_function),
            Self::Llama3 => llama3(text),
            Self::Mistral => (text.len(), mistral(text)),
        }
    }
}

/// A turn of the policy, split into its parts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParsedTurn {
    /// Text outside of the calls: thoughts with their marks, and the answer.
    pub outside: String,
    /// Thoughts without their marks.
    pub thought: String,
    /// Text outside of calls and thoughts.
    pub answer: String,
    /// Calls, in order.
    pub calls: Vec<Call>,
}

enum Part<'t> {
    /// A thought, with and without its marks.
    Thought {
        whole: &'t str,
        inner: &'t str,
    },
    Text(&'t str),
    Calls(Vec<Call>),
}

/// Returns the arguments as strings, the form of templates without types.
fn as_texts(call: &Call) -> Option<BTreeMap<&str, String>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(call.arguments.as_ref().ok()?.iter().map(|(name, value)| (name.as_str(), text(value))).collect())
}

/// Parses the call between `<tool_call>`, which `text` begins with, and `</tool_call>`.
fn between_marks(text: &str, read: impl Fn(&str) -> Call) -> (usize, Vec<Call>) {
    let behind = &text[OPEN.len()..];
    let inside = behind.split_once(CLOSE).map_or(behind, |(inside, _)| inside);
    let length = (OPEN.len() + inside.len() + CLOSE.len()).min(text.len());
    (length, vec![read(inside)])
}

/// Whether `text` begins as Llama 3's template writes a call, up to the arguments.
fn is_llama3(text: &str) -> bool {
    let arguments = || {
        let (name, behind) = text.strip_prefix(LLAMA_CALL)?.trim_start().strip_prefix('"')?.split_once('"')?;
        let behind = behind.strip_prefix(',')?.trim_start().strip_prefix("\"parameters\":")?;
        Some(behind).filter(|_| !name.is_empty())
    };
    arguments().is_some()
}

/// Whether `text` begins with an object that is a call. Other objects, such as `{"name": "Bob", "age": 3}`, are text.
fn is_call(text: &str) -> bool {
    let Some(Ok(value)) = Deserializer::from_str(text).into_iter::<Value>().next() else { return false };
    let call = value.get("function").unwrap_or(&value);
    call.get("name").is_some_and(Value::is_string)
        && ["parameters", "arguments"].iter().any(|key| call.get(*key).is_some())
}

/// Returns the position of the readable calls of Llama 3 that end the text. Reads each object once: what follows a call also follows the
/// calls between the two, so the search continues there.
fn final_calls(text: &str) -> Option<usize> {
    let mut at = 0;
    'search: loop {
        at += text[at..].find(LLAMA_CALL)?;
        if !is_llama3(&text[at..]) {
            at += 1;
            continue;
        }
        let begin = at;
        while at < text.len() {
            match Some(&text[at..]).filter(|rest| rest.starts_with('{')).and_then(llama3_call) {
                Some(Ok((length, call))) => {
                    at += length;
                    if call.arguments.is_err() {
                        continue 'search;
                    }
                }
                // A call may follow within the broken object.
                Some(Err(_)) => {
                    at += 1;
                    continue 'search;
                }
                None => continue 'search,
            }
        }
        return Some(begin);
    }
}

/// Parses the object that `text` begins with as a call of Llama 3. Also returns its length, including the separators behind it. `None` if the
/// text is blank.
fn llama3_call(text: &str) -> Option<serde_json::Result<(usize, Call)>> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    Some(values.next()?.map(|value| {
        let behind = &text[values.byte_offset()..];
        let behind = behind.trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',');
        (text.len() - behind.len(), of_value(value, "parameters"))
    }))
}

/// Parses calls up to the end of the text, or up to other text. `text` begins with the first one, or with `<|python_tag|>`.
fn llama3(text: &str) -> (usize, Vec<Call>) {
    let tagged = text.strip_prefix(PYTHON_TAG);
    let mut rest = tagged.unwrap_or(text).trim_start();
    let mut calls = Vec::new();
    while !rest.is_empty() && (tagged.is_some() || rest.starts_with('{')) {
        match llama3_call(rest) {
            Some(Ok((length, call))) => {
                calls.push(call);
                rest = &rest[length..];
            }
            Some(Err(error)) => {
                calls.push(unreadable(String::new(), &format!("it is no JSON: {error}"), rest));
                return (text.len(), calls);
            }
            None => break,
        }
    }
    (text.len() - rest.len(), calls)
}

/// Parses the calls of a turn from `[TOOL_CALLS]`, which `text` begins with, to its end.
fn mistral(text: &str) -> Vec<Call> {
    let mut rest = &text[TOOL_CALLS.len()..];
    let mut calls = Vec::new();
    let list = rest.trim();
    if list.starts_with('[') && !list.starts_with(ARGS) {
        let mut values = Deserializer::from_str(list).into_iter::<Value>();
        match values.next() {
            Some(Ok(Value::Array(list))) => calls.extend(list.into_iter().map(|value| of_value(value, "arguments"))),
            Some(Ok(_)) | None => calls.push(unreadable(String::new(), "it is no list of calls", list)),
            Some(Err(error)) => calls.push(unreadable(String::new(), &format!("it is no JSON: {error}"), list)),
        }
        return calls;
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
            None => return calls,
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
        let parsed = format.read(text, false);
        (
            parsed.outside.trim().to_owned(),
            parsed.calls.into_iter().map(|call| (call.name, call.arguments.map(Value::Object))).collect(),
        )
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
        let parsed = CallFormat::Mistral.read(list, false);
        assert_eq!((parsed.answer.as_str(), parsed.calls[0].id.as_deref()), ("Well.", Some("abcdefghi")));
        let coder = "I add.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n\n y\n</parameter>\n\
                     </function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";
        let calls = vec![called("add", json!({"a": "1", "b": "x\n\n y"})), called("now", json!({}))];
        assert_eq!(names(CallFormat::Qwen3Coder, coder), ("I add.".into(), calls));
        let add =
            json!({"name": "add", "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}});
        let tools = [json!({"type": "function", "function": add})];
        let parsed = CallFormat::Qwen3Coder.read_for(coder, false, &tools);
        assert_eq!(parsed.calls[0].arguments.clone().map(Value::Object), Ok(json!({"a": 1, "b": "x\n\n y"})));
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
        let llama = "{\"name\": \"look\", \"parameters\": {\"text\": \"water\", \"count\": [7]}}";
        assert_eq!(CallFormat::that_reads(llama, &call), Some(CallFormat::Llama3));
        assert_eq!(CallFormat::that_reads(&format!("<|call|>{llama}"), &call), None);
    }

    fn called_names(format: CallFormat, text: &str, begins_in_thought: bool) -> Vec<String> {
        format.read(text, begins_in_thought).calls.into_iter().map(|call| call.name).collect()
    }

    #[test]
    fn calls_within_a_thought_are_none() {
        let text =
            "<think>I could <tool_call>{\"name\": \"a\"}</tool_call></think>\n<tool_call>{\"name\": \"b\"}</tool_call>";
        let parsed = CallFormat::Hermes.read(text, false);
        assert_eq!(parsed.outside.trim(), "<think>I could <tool_call>{\"name\": \"a\"}</tool_call></think>");
        assert_eq!(parsed.thought, "I could <tool_call>{\"name\": \"a\"}</tool_call>");
        assert_eq!((parsed.answer.as_str(), parsed.calls[0].name.as_str(), parsed.calls.len()), ("", "b", 1));
        let unfinished = "still <tool_call>{\"name\": \"a\"}</tool_call>";
        assert!(called_names(CallFormat::Hermes, &format!("<think>{unfinished}"), false).is_empty());
        // The prompt has opened the thought.
        assert!(called_names(CallFormat::Hermes, unfinished, true).is_empty());
        assert_eq!(called_names(CallFormat::Hermes, unfinished, false), ["a"]);
        let ended = format!("{unfinished}</think><tool_call>{{\"name\": \"b\"}}</tool_call>");
        assert_eq!(called_names(CallFormat::Hermes, &ended, true), ["b"]);
        let second = format!("<think>\n</think>\n<think>{unfinished}</think> done");
        let parsed = CallFormat::Hermes.read(&second, false);
        assert!(parsed.calls.is_empty() && parsed.answer == "done" && parsed.thought == unfinished, "{parsed:?}");
    }

    #[test]
    fn marks_of_thoughts_in_a_call_are_part_of_it() {
        for text in ["use <think> tags", "end </think> here", "<think> x </think>"] {
            let hermes = format!(
                "<tool_call>{{\"name\": \"say\", \"arguments\": {{\"text\": \"{text}\"}}}}</tool_call>\n</think>\n"
            );
            let coder = format!(
                "</think>\n<tool_call>\n<function=say>\n<parameter=text>\n{text}\n</parameter>\n</function>\n</tool_call>"
            );
            let llama = format!("{{\"name\": \"say\", \"parameters\": {{\"text\": \"{text}\"}}}}");
            let mistral = format!("[TOOL_CALLS]say[ARGS]{{\"text\": \"{text}\"}}");
            for (format, turn, begins_in_thought) in [
                (CallFormat::Hermes, hermes, false),
                (CallFormat::Qwen3Coder, coder.clone(), true),
                (CallFormat::Qwen3Coder, coder, false),
                (CallFormat::Llama3, llama, false),
                (CallFormat::Mistral, mistral, false),
            ] {
                let calls = format.read(&turn, begins_in_thought).calls;
                let expected = Map::from_iter([("text".to_owned(), json!(text))]);
                assert!(calls.len() == 1 && calls[0].arguments == Ok(expected), "{turn}: {calls:?}");
            }
        }
    }

    #[test]
    fn objects_that_are_no_calls_are_text() {
        for text in [
            "{\"name\": \"Bob\", \"age\": 3}",
            "{\"age\": 3, \"name\": \"Bob\"}",
            "{\"x\": 1, \"y\": {\"name\": 2}}",
            "{ \"name\" of the thing is unclear",
            "It is {\"name\": \"add\", \"parameters\": {}}, as JSON.",
        ] {
            assert_eq!(names(CallFormat::Llama3, text), (text.to_owned(), vec![]));
        }
        let call = "{\"name\": \"add\", \"parameters\": {\"a\": 1}}";
        let read = (String::from("Sure:"), vec![called("add", json!({"a": 1}))]);
        assert_eq!(names(CallFormat::Llama3, &format!("Sure: {call}\n")), read);
        let read = (String::from("and so on"), vec![called("add", json!({"a": 1}))]);
        assert_eq!(names(CallFormat::Llama3, &format!("{call} and so on")), read);
    }

    #[test]
    fn only_the_calls_that_end_a_turn_of_llama_3_are_read() {
        let read = |text: &str| called_names(CallFormat::Llama3, text, false);
        let call = |name: &str| format!("{{\"name\": \"{name}\", \"parameters\": {{}}}}");
        let (a, b) = (call("a"), call("b"));
        assert_eq!(read(&format!("Sure: {a}; {b}")), ["a", "b"]);
        assert_eq!(read(&format!("Sure: {a} größer {b}")), ["b"]);
        assert_eq!(read(&format!("Sure: {a} {{\"x\": 1}} {b}")), ["b"]);
        let broken = a.replace("{}", "3");
        assert_eq!(read(&format!("Sure: {broken} {b}")), ["b"]);
        let unfinished = a.replace("{}}", "{ ");
        assert_eq!(read(&format!("Sure: {a} {unfinished} {b}")), ["b"]);
        // An object within another one does not end the turn.
        assert!(read(&format!("Sure: {{\"x\": [{a}]}}")).is_empty());
        // The time for this text is proportional to its length.
        let many = a.clone() + &format!(" {a}").repeat(50_000);
        assert!(read(&format!("Sure: {many} x")).is_empty());
        assert_eq!(read(&format!("Sure: {many} x {b}")), ["b"]);
    }

    #[test]
    fn text_is_certain_up_to_where_a_call_may_begin() {
        for (text, begins_in_thought, certain) in [
            ("I look.", false, "I look."),
            ("I look.\n<tool_c", false, "I look.\n"),
            ("I look. <tool_call>{", false, "I look. "),
            ("Sure: {\"name\": \"a\"", false, "Sure: "),
            ("a [TOOL_CALLS]add", false, "a "),
            (" {\"a\"", false, ""),
            ("[", false, ""),
            ("<think>a <tool_call>", false, "<think>a <tool_call>"),
            ("<think>a</think>\n", false, "<think>a</think>"),
            ("a <tool_call>", true, "a <tool_call>"),
            ("a</think>b <tool_call>", true, "a</think>b "),
        ] {
            assert_eq!(&text[..CallFormat::certain_text(text, begins_in_thought)], certain, "{text}");
        }
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
            let calls = format.read(text, false).calls;
            let found = calls[0].arguments.as_ref().expect_err(text);
            assert!(found.contains(why), "{text}: {found}");
        }
        // If the arguments are a string that contains an object, the object is used.
        let text = "<tool_call>{\"name\": \"a\", \"arguments\": \"{\\\"b\\\": 1}\"}</tool_call>";
        let calls = CallFormat::Hermes.read(text, false).calls;
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
