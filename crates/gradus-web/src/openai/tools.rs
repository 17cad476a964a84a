//! Separation of a model's output into tool calls and text.
//!
//! Templates tell models to write calls as text. The forms are those of [`CallFormat`], which environments also use. A call that names no
//! given tool is text.

use gradus_environments::{CallFormat, ParsedTurn};
use serde_json::{Value, json};

/// Output of a model with tools, while it is generated.
#[derive(Debug, Clone, Default)]
pub struct ToolCallParser {
    /// Tools. If empty, all output is text.
    tools: Vec<Value>,
    begins_in_thought: bool,
    /// Marks that are special tokens. The output contains them, but not the text that is sent.
    marks: Vec<String>,
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
    /// Creates an empty output. `tools` are those given to the model. `begins_in_thought` means that the prompt opens a thought, and
    /// `is_special` whether a mark of calls is a special token.
    pub fn new(tools: &[Value], begins_in_thought: bool, is_special: impl Fn(&str) -> bool) -> Self {
        let tools: Vec<Value> = tools.iter().filter(|tool| name(tool).is_some()).cloned().collect();
        let marks = CallFormat::MARKS.into_iter().filter(|mark| !tools.is_empty() && is_special(mark));
        Self { marks: marks.map(str::to_owned).collect(), tools, begins_in_thought, ..Self::default() }
    }

    /// Returns the special tokens that the output must contain.
    pub fn marks(&self) -> &[String] {
        &self.marks
    }

    /// Adds output. Returns the part that is certainly text.
    pub fn push(&mut self, new: &str) -> String {
        self.text += new;
        let end = match self.tools.is_empty() {
            true => self.text.len(),
            false => CallFormat::certain_text(&self.text, self.begins_in_thought),
        };
        let end = end.max(self.sent);
        let start = std::mem::replace(&mut self.sent, end);
        self.without_marks(&self.text[start..end])
    }

    /// Ends the output. Returns the remaining text and the calls.
    pub fn end(self) -> (String, Vec<Call>) {
        let (rest, calls) = match self.calls() {
            // All sent text is before the first call.
            Some((outside, calls)) => (outside.get(self.sent..).unwrap_or_default().trim().to_owned(), calls),
            None => (self.text[self.sent..].to_owned(), Vec::new()),
        };
        (self.without_marks(&rest), calls)
    }

    /// Returns the text outside of the calls, and all calls. `None` if there are none, or if one cannot be parsed or calls no given tool.
    fn calls(&self) -> Option<(String, Vec<Call>)> {
        if self.tools.is_empty() {
            return None;
        }
        let known_call = |call: &gradus_environments::Call| {
            let arguments = Value::Object(call.arguments.clone().ok()?).to_string();
            let is_known = self.tools.iter().any(|tool| name(tool) == Some(&call.name));
            is_known.then(|| Call { name: call.name.clone(), arguments })
        };
        CallFormat::ALL.into_iter().find_map(|format| {
            let ParsedTurn { outside, calls, .. } = format.read_for(&self.text, self.begins_in_thought, &self.tools);
            let calls: Vec<Call> = calls.iter().map(known_call).collect::<Option<_>>()?;
            (!calls.is_empty()).then_some((outside, calls))
        })
    }

    /// Removes the marks that are special tokens.
    fn without_marks(&self, text: &str) -> String {
        self.marks.iter().fold(text.to_owned(), |text, mark| text.replace(mark.as_str(), ""))
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
        event_of(text, step, false, |_| false)
    }

    fn event_of(
        text: &str,
        step: usize,
        begins_in_thought: bool,
        is_special: impl Fn(&str) -> bool,
    ) -> (String, Vec<Call>) {
        let tools = [json!({"type": "function", "function": {"name": "weather"}}), json!({"name": "time"})];
        let mut parser = ToolCallParser::new(&tools, begins_in_thought, is_special);
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
            assert_eq!(event(&format!("[TOOL_CALLS] [{one}]"), step), (String::new(), vec![weather.clone()]));
        }
    }

    #[test]
    fn a_call_within_a_thought_is_text_and_one_after_it_is_a_call() {
        let call = |name: &str| format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{}}}}</tool_call>");
        for step in [1, 5, 1000] {
            let text = format!("<think>Perhaps {}</think>\n{}", call("weather"), call("time"));
            let (content, calls) = event(&text, step);
            assert_eq!(content, format!("<think>Perhaps {}</think>\n", call("weather")));
            assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["time"]);
            let text = format!("<think>Perhaps {}", call("weather"));
            assert_eq!(event(&text, step), (text, Vec::new()));
            // The prompt has opened the thought.
            let text = format!("Perhaps {}", call("weather"));
            assert_eq!(event_of(&text, step, true, |_| false), (text, Vec::new()));
        }
    }

    #[test]
    fn a_call_with_marks_of_thoughts_in_an_argument_is_returned_once() {
        let text = "<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a <think> b\"}}\n</tool_call>";
        let call = Call { name: "weather".into(), arguments: r#"{"city":"a <think> b"}"#.into() };
        for step in [1, 7, 1000] {
            assert_eq!(event(text, step), ("<think>\n\n</think>\n\n".into(), vec![call.clone()]));
            let llama = r#"Sure: {"name": "weather", "parameters": {"city": "a <think> b"}}"#;
            assert_eq!(event(llama, step), ("Sure: ".into(), vec![call.clone()]));
        }
    }

    #[test]
    fn marks_that_are_special_tokens_are_read_and_not_sent() {
        let is_special = |mark: &str| mark.starts_with('[');
        let calls = ["weather", "time"].map(|name| Call { name: name.into(), arguments: "{}".into() });
        for step in [1, 5, 1000] {
            let text = "Well.[TOOL_CALLS]weather[ARGS]{}[TOOL_CALLS]time[ARGS]{}";
            assert_eq!(event_of(text, step, false, is_special), ("Well.".into(), calls.to_vec()));
            let unknown = "Well.[TOOL_CALLS]format_disk[ARGS]{}";
            assert_eq!(event_of(unknown, step, false, is_special), ("Well.format_disk{}".into(), Vec::new()));
        }
        let with = |tools: &[Value]| ToolCallParser::new(tools, false, is_special).marks().to_vec();
        assert_eq!(with(&[json!({"name": "time"})]), ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]);
        assert!(with(&[]).is_empty());
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
        let mut none = ToolCallParser::new(&[], false, |_| false);
        assert_eq!(none.push("<tool_call>{"), "<tool_call>{");
    }
}
