//! What a model says that calls tools, and what it says besides.
//!
//! Templates tell models to write calls as text. Three forms are read: `<tool_call>{…}</tool_call>` (Qwen, Hermes), an object
//! `{"name": …, "parameters": …}` or a list of them that is the whole answer (Llama 3, Mistral). What names no tool that was
//! given is text.

use serde_json::{Map, Value, json};

use gradus::text::certain;

/// What begins a call.
const OPEN: &str = "<tool_call>";
/// What ends it.
const CLOSE: &str = "</tool_call>";

/// An answer of a model that was given tools, while it is said.
#[derive(Debug, Default)]
pub struct Speech {
    /// The names of the tools; without any, all is text.
    names: Vec<String>,
    text: String,
    /// Bytes that were told as text.
    told: usize,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// What it is called with, as JSON.
    pub arguments: String,
}

impl Call {
    /// In OpenAI's form.
    pub fn told(&self, id: &str, index: usize) -> Value {
        let function = json!({ "name": self.name, "arguments": self.arguments });
        json!({ "index": index, "id": format!("call_{id}_{index}"), "type": "function", "function": function })
    }
}

impl Speech {
    /// Nothing was said; `tools` are what the model was given.
    pub fn new(tools: &[Value]) -> Self {
        let name = |tool: &Value| Some(tool.get("function").unwrap_or(tool).get("name")?.as_str()?.to_owned());
        Self { names: tools.iter().filter_map(name).collect(), ..Self::default() }
    }

    /// Hears more; gives what is text whatever follows.
    pub fn hear(&mut self, new: &str) -> String {
        self.text += new;
        let end = match self.names.is_empty() {
            true => self.text.len(),
            // It may all be one call, also after white space.
            false if matches!(self.text.trim_start().chars().next(), None | Some('{' | '[')) => self.told,
            false => match self.text.find(OPEN) {
                Some(at) => at,
                None => certain(&self.text, &[OPEN.to_owned()]).len(),
            },
        };
        let end = end.max(self.told);
        self.text[std::mem::replace(&mut self.told, end)..end].to_owned()
    }

    /// The end: what is text of what was held back, and the calls.
    pub fn end(self) -> (String, Vec<Call>) {
        let held = &self.text[self.told..];
        let calls = self.calls();
        match calls.is_empty() {
            true => (held.to_owned(), calls),
            false => (String::new(), calls),
        }
    }

    /// All calls, or none where one of them cannot be read.
    fn calls(&self) -> Vec<Call> {
        if self.names.is_empty() {
            return Vec::new();
        }
        let text = self.text.trim();
        let values: Option<Vec<Value>> = match text.find(OPEN) {
            Some(at) => {
                let blocks = text[at..].split(OPEN).skip(1);
                blocks.map(|block| serde_json::from_str(block.split(CLOSE).next()?.trim()).ok()).collect()
            }
            None => match serde_json::from_str(text) {
                Ok(Value::Array(values)) => Some(values),
                Ok(value) => Some(vec![value]),
                Err(_) => None,
            },
        };
        let call = |value: &Value| {
            let name = value.get("name")?.as_str()?;
            let arguments = value.get("arguments").or_else(|| value.get("parameters"));
            let arguments = match arguments {
                Some(Value::String(text)) => text.clone(),
                Some(object @ Value::Object(_)) => object.to_string(),
                Some(_) => return None,
                None => Value::Object(Map::new()).to_string(),
            };
            self.names.iter().any(|known| known == name).then(|| Call { name: name.to_owned(), arguments })
        };
        values.and_then(|values| values.iter().map(call).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(text: &str, step: usize) -> (String, Vec<Call>) {
        let tools = [json!({"type": "function", "function": {"name": "weather"}}), json!({"name": "time"})];
        let mut speech = Speech::new(&tools);
        let pieces: Vec<char> = text.chars().collect();
        let mut said: String =
            pieces.chunks(step).map(|piece| speech.hear(&piece.iter().collect::<String>())).collect();
        let (rest, calls) = speech.end();
        said += &rest;
        (said, calls)
    }

    #[test]
    fn calls_are_read_however_they_come() {
        let weather = Call { name: "weather".into(), arguments: r#"{"city":"Bern"}"#.into() };
        let time = Call { name: "time".into(), arguments: "{}".into() };
        let one = r#"{"name": "weather", "arguments": {"city": "Bern"}}"#;
        for step in [1, 3, 1000] {
            let qwen =
                format!("I look.\n<tool_call>\n{one}\n</tool_call>\n<tool_call>{{\"name\":\"time\"}}</tool_call>");
            assert_eq!(heard(&qwen, step), ("I look.\n".into(), vec![weather.clone(), time.clone()]));
            let llama = r#" {"name": "weather", "parameters": {"city": "Bern"}}"#;
            assert_eq!(heard(llama, step), (String::new(), vec![weather.clone()]));
            assert_eq!(heard(&format!("[{one}]"), step), (String::new(), vec![weather.clone()]));
        }
    }

    #[test]
    fn what_is_no_call_of_a_given_tool_is_text() {
        for text in [
            "no call < tool",
            r#"{"name": "format_disk", "parameters": {}}"#,
            "<tool_call>{broken</tool_call>",
            "<tool_call>",
            "<tool_cal",
            r#"{"city": "Bern"}"#,
            "[1, 2]",
            "{ a set",
        ] {
            for step in [1, 4, 1000] {
                assert_eq!(heard(text, step), (text.to_owned(), Vec::new()), "{text}");
            }
        }
        let mut none = Speech::new(&[]);
        assert_eq!(none.hear("<tool_call>{"), "<tool_call>{");
    }
}
