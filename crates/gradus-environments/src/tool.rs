//! Tools in the form of chat templates, and calls of a policy.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A function that the policy may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// Description for the policy.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments, an object.
    #[serde(default = "no_arguments")]
    pub parameters: Value,
    /// JSON Schema of the result; `None` if templates do not show it.
    #[serde(default, rename = "return", skip_serializing_if = "Option::is_none")]
    pub returns: Option<Value>,
}

fn no_arguments() -> Value {
    json!({ "type": "object", "properties": {} })
}

impl Tool {
    /// Returns the form that chat templates read: `{"type": "function", "function": {…}}`.
    pub fn to_template(&self) -> Value {
        json!({ "type": "function", "function": self })
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Id that the policy gave the call, in formats with ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments. If the call could not be parsed, a description of the problem for the policy.
    pub arguments: Result<Map<String, Value>, String>,
}

impl Call {
    /// Converts string arguments to the types that the tool's schema requires. `tools` are in the form of chat templates.
    #[must_use]
    pub fn fitted(self, tools: &[Value]) -> Self {
        let mut tools = tools.iter().map(|tool| tool.get("function").unwrap_or(tool));
        let own = tools.rfind(|tool| tool.get("name").and_then(Value::as_str) == Some(&self.name));
        match (own.and_then(|tool| tool.get("parameters")), &self.arguments) {
            (Some(schema), Ok(arguments)) => Self { arguments: Ok(fitted(schema, arguments)), ..self },
            _ => self,
        }
    }
}

/// Converts string arguments to the types that the schema requires, as transformers does: `"7"` becomes 7 if an integer is required. Models
/// write many arguments as strings.
pub(crate) fn fitted(schema: &Value, arguments: &Map<String, Value>) -> Map<String, Value> {
    let property = |name: &str| schema.get("properties")?.get(name);
    let fit = |(name, value): (&String, &Value)| {
        let read = value
            .as_str()
            .zip(property(name))
            .and_then(|(text, property)| types_of(property).into_iter().find_map(|kind| read_as(text.trim(), kind)));
        (name.clone(), read.unwrap_or_else(|| value.clone()))
    };
    arguments.iter().map(fit).collect()
}

/// Returns the types that a schema allows.
fn types_of(schema: &Value) -> Vec<&str> {
    let mut types: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for union in ["anyOf", "oneOf"] {
        types.extend(schema.get(union).and_then(Value::as_array).into_iter().flatten().flat_map(types_of));
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        types.push("null");
    }
    types
}

/// Parses `text` as a value of the type `kind`.
fn read_as(text: &str, kind: &str) -> Option<Value> {
    let number = || text.parse::<f64>().ok().filter(|number| number.is_finite());
    let whole = || text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from)).ok();
    match kind {
        "integer" => {
            whole().or_else(|| number().filter(|number| is_whole(*number)).map(|number| Value::from(number as i64)))
        }
        "number" => whole().or_else(|| {
            let number = number()?;
            let is_integer = is_whole(number) && !text.contains('.');
            Some(if is_integer { Value::from(number as i64) } else { Value::from(number) })
        }),
        "boolean" => match text.to_lowercase().as_str() {
            "true" | "1" => Some(true.into()),
            "false" | "0" => Some(false.into()),
            _ => None,
        },
        "null" => matches!(text, "null" | "None").then_some(Value::Null),
        "object" => serde_json::from_str(text).ok().filter(Value::is_object),
        "array" => serde_json::from_str(text).ok().filter(Value::is_array),
        _ => None,
    }
}

/// Whether a number is an integer that a float represents exactly.
fn is_whole(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() < 2f64.powi(53)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those of transformers 5.23, `utils.chat_parsing.response_parser._coerce`.
    #[test]
    fn texts_stand_for_values_of_the_type_that_is_wanted() {
        for (kind, text, expected) in [
            (json!({ "type": "integer" }), "7", json!(7)),
            (json!({ "type": "integer" }), " -7 ", json!(-7)),
            (json!({ "type": "integer" }), "3.0", json!(3)),
            (json!({ "type": "integer" }), "3.5", json!("3.5")),
            (json!({ "type": "integer" }), "seven", json!("seven")),
            (json!({ "type": "number" }), "7", json!(7)),
            (json!({ "type": "integer" }), "12345678901234567890", json!(12_345_678_901_234_567_890_u64)),
            (json!({ "type": "number" }), "2.5e1", json!(25.0)),
            (json!({ "type": "number" }), "1e3", json!(1000)),
            (json!({ "type": "number" }), "inf", json!("inf")),
            (json!({ "type": "boolean" }), "True", json!(true)),
            (json!({ "type": "boolean" }), "0", json!(false)),
            (json!({ "type": "boolean" }), "no", json!("no")),
            (json!({ "type": "null" }), "None", json!(null)),
            (json!({ "type": "array" }), "[1, 2]", json!([1, 2])),
            (json!({ "type": "array" }), "{}", json!("{}")),
            (json!({ "type": "object" }), "{\"a\": 1}", json!({ "a": 1 })),
            (json!({ "type": "string" }), "7", json!("7")),
            (json!({ "type": ["string", "integer"] }), "7", json!(7)),
            (json!({ "anyOf": [{ "type": "integer" }, { "type": "null" }] }), "None", json!(null)),
            (json!({ "type": "integer", "nullable": true }), "null", json!(null)),
            (json!({}), "7", json!("7")),
        ] {
            let schema = json!({ "properties": { "x": kind } });
            let given = json!({ "x": text, "other": "7" });
            let found = fitted(&schema, given.as_object().expect("an object"));
            assert_eq!(Value::Object(found), json!({ "x": expected, "other": "7" }), "{kind} {text}");
        }
    }

    /// The keys and their order are those of `transformers.utils.get_json_schema`.
    #[test]
    fn a_template_shows_the_result_after_the_arguments() {
        let mut tool = Tool { name: "say".into(), description: "Says.".into(), parameters: json!({}), returns: None };
        let shown = |tool: &Tool| tool.to_template().to_string();
        let expected = r#"{"type":"function","function":{"name":"say","description":"Says.","parameters":{}}}"#;
        assert_eq!(shown(&tool), expected);
        tool.returns = Some(json!({ "type": "string" }));
        assert_eq!(shown(&tool), expected.replace("{}}}", r#"{},"return":{"type":"string"}}}"#));
    }

    #[test]
    fn a_call_fits_the_tool_of_its_name() {
        let tool =
            |name: &str, kind: &str| json!({ "name": name, "parameters": { "properties": { "x": { "type": kind } } } });
        let tools = [json!({ "type": "function", "function": tool("add", "integer") }), tool("say", "string")];
        for (name, expected) in [("add", json!(7)), ("say", json!("7")), ("other", json!("7"))] {
            let arguments = Ok(Map::from_iter([("x".to_owned(), json!("7"))]));
            let call = Call { id: None, name: name.into(), arguments }.fitted(&tools);
            assert_eq!(call.arguments.expect("arguments")["x"], expected, "{name}");
        }
    }
}
