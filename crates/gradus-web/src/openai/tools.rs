//! Separation of a model's output into tool calls and text.
//!
//! Templates tell models to write calls as text. The forms are those of [`CallFormat`], which environments also use. A call that names no
//! given tool is text.

use gradus::text::certain;
use gradus_environments::CallFormat;
use serde_json::{Value, json};

/// Start of a call in the forms of Hermes and Qwen3-Coder. Text before it is sent immediately.
const OPEN: &str = "<tool_call>";
/// Start of a list of calls in the form of Mistral.
const LIST: &str = "[TOOL_CALLS]";

/// Output of a model with tools, while it is generated.
#[derive(Debug, Default)]
pub struct ToolCallParser {
    /// Tools. If empty, all output is text.
    tools: Vec<Value>,
    text: String,
    /// Number of bytes that were sent as text.
    sent: usize,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON.
    pub arguments: String,
}

impl Call {
    /// Converts the call to OpenAI's form.
    pub fn to_openai(&self, id: &str, index: usize) -> Value {
        let function = json!({ "name": self.name, "arguments": self.arguments });
        json!({ "index": index, "id": format!("call_{id}_{index}"), "type": "function", "function": function })
    }
}

impl ToolCallParser {
    /// Creates an empty output. `tools` are those given to the model.
    pub fn new(tools: &[Value]) -> Self {
        Self { tools: tools.iter().filter(|tool| name(tool).is_some()).cloned().collect(), ..Self::default() }
    }

    /// Adds output. Returns the part that is certainly text.
    pub fn push(&mut self, new: &str) -> String {
        self.text += new;
        let end = match self.tools.is_empty() {
            true => self.text.len(),
            // The whole output may be one call, even after white space.
            false if matches!(self.text.trim_start().chars().next(), None | Some('{' | '[')) => self.sent,
            false => match self.text.find(OPEN) {
                Some(at) => at,
                None => certain(&self.text, &[OPEN.to_owned()]).len(),
            },
        };
        let end = end.max(self.sent);
        self.text[std::mem::replace(&mut self.sent, end)..end].to_owned()
    }

    /// Ends the output. Returns the remaining text and the calls.
    pub fn end(self) -> (String, Vec<Call>) {
        let held = &self.text[self.sent..];
        match self.calls() {
            // The whole output is the call, so no text remains.
            Some((CallFormat::Llama3 | CallFormat::Mistral, calls)) => (String::new(), calls),
            Some((format @ (CallFormat::Hermes | CallFormat::Qwen3Coder), calls)) => (format.read(held).0, calls),
            None => (held.to_owned(), Vec::new()),
        }
    }

    /// Returns all calls and their form. `None` if there are none, or if one cannot be parsed or calls no given tool.
    fn calls(&self) -> Option<(CallFormat, Vec<Call>)> {
        if self.tools.is_empty() {
            return None;
        }
        let known_call = |call: &gradus_environments::Call| {
            let arguments = Value::Object(call.arguments.clone().ok()?).to_string();
            let is_known = self.tools.iter().any(|tool| name(tool) == Some(&call.name));
            is_known.then(|| Call { name: call.name.clone(), arguments })
        };
        CallFormat::ALL.into_iter().find_map(|format| {
            // The marker before a list of calls is a special token, which is missing from the text.
            let (mark, text) = match format {
                CallFormat::Mistral if self.text.trim_start().starts_with('[') => (LIST, self.text.trim()),
                _ => ("", self.text.as_str()),
            };
            let calls = format.read_for(&format!("{mark}{text}"), &self.tools).1;
            let calls: Vec<Call> = calls.iter().map(known_call).collect::<Option<_>>()?;
            (!calls.is_empty()).then_some((format, calls))
        })
    }
}

/// Returns the name of a tool, as templates read it.
fn name(tool: &Value) -> Option<&str> {
    tool.get("function").unwrap_or(tool).get("name")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str, step: usize) -> (String, Vec<Call>) {
        let tools = [json!({"type": "function", "function": {"name": "weather"}}), json!({"name": "time"})];
        let mut parser = ToolCallParser::new(&tools);
        let pieces: Vec<char> = text.chars().collect();
        let mut content: String =
            pieces.chunks(step).map(|piece| parser.push(&piece.iter().collect::<String>())).collect();
        let (rest, calls) = parser.end();
        content += &rest;
        (content, calls)
    }

    #[test]
    fn calls_are_read_however_they_come() {
        let weather = Call { name: "weather".into(), arguments: r#"{"city":"Bern"}"#.into() };
        let time = Call { name: "time".into(), arguments: "{}".into() };
        let one = r#"{"name": "weather", "arguments": {"city": "Bern"}}"#;
        for step in [1, 3, 1000] {
            let qwen =
                format!("I look.\n<tool_call>\n{one}\n</tool_call>\n<tool_call>{{\"name\":\"time\"}}</tool_call>");
            assert_eq!(event(&qwen, step), ("I look.\n".into(), vec![weather.clone(), time.clone()]));
            let coder = "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>\n\
                         <tool_call>\n<function=time>\n</function>\n</tool_call>";
            assert_eq!(event(coder, step), ("I look.\n".into(), vec![weather.clone(), time.clone()]));
            let llama = r#" {"name": "weather", "parameters": {"city": "Bern"}}"#;
            assert_eq!(event(llama, step), (String::new(), vec![weather.clone()]));
            assert_eq!(event(&format!("[{one}]"), step), (String::new(), vec![weather.clone()]));
        }
    }

    #[test]
    fn a_call_within_a_thought_is_text_and_one_after_it_is_a_call() {
        let call = |name: &str| format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{}}}}</tool_call>");
        for step in [1, 5, 1000] {
            let text = format!("<think>Perhaps {}</think>\n{}", call("weather"), call("time"));
            let (content, calls) = event(&text, step);
            assert_eq!(content, format!("<think>Perhaps {}</think>", call("weather")));
            assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["time"]);
            let text = format!("<think>Perhaps {}", call("weather"));
            assert_eq!(event(&text, step), (text, Vec::new()));
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
                assert_eq!(event(text, step), (text.to_owned(), Vec::new()), "{text}");
            }
        }
        let mut none = ToolCallParser::new(&[]);
        assert_eq!(none.push("<tool_call>{"), "<tool_call>{");
    }
}
