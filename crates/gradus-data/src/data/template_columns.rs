//! The columns of a row that its chat template reads.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::message::kind_name;

/// What a row gives to its chat template besides its messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateColumns<'r> {
    /// Column `tools`: descriptions of tools.
    pub tools: Option<Cow<'r, [Value]>>,
    /// Column `chat_template_kwargs`: variables of the template.
    pub variables: Option<Cow<'r, Map<String, Value>>>,
}

impl<'r> TemplateColumns<'r> {
    /// Names of the columns.
    pub const NAMES: [&'static str; 2] = ["tools", "chat_template_kwargs"];

    /// Variables that gradus itself sets. A row that replaced them would be trained on other text than its messages.
    const RESERVED: [&'static str; 3] = ["messages", "tools", "add_generation_prompt"];

    /// Reads both columns. Each may also be a JSON string, because tables with fixed column types hold free-form values as text. Null
    /// and blank text count as absent.
    ///
    /// # Errors
    /// If a column has another type, or sets a variable that gradus sets.
    pub fn read(columns: &'r Map<String, Value>) -> Result<Self, String> {
        let [tools, variables] = Self::NAMES.map(|name| value(name, columns));
        let tools = match tools? {
            None => None,
            Some(Cow::Borrowed(Value::Array(tools))) => Some(Cow::Borrowed(tools.as_slice())),
            Some(Cow::Owned(Value::Array(tools))) => Some(Cow::Owned(tools)),
            Some(other) => return Err(format!("column `tools` holds {}, expected a list of tools", kind_name(&other))),
        };
        if let Some(other) = tools.iter().flat_map(|tools| tools.iter()).find(|tool| !tool.is_object()) {
            return Err(format!("column `tools` holds a list with {}, expected objects", kind_name(other)));
        }
        let variables = match variables? {
            None => None,
            Some(Cow::Borrowed(Value::Object(variables))) => Some(Cow::Borrowed(variables)),
            Some(Cow::Owned(Value::Object(variables))) => Some(Cow::Owned(variables)),
            Some(other) => {
                return Err(format!("column `chat_template_kwargs` holds {}, expected an object", kind_name(&other)));
            }
        };
        let is_set = |name: &str| variables.as_ref().is_some_and(|variables| variables.contains_key(name));
        if let Some(name) = Self::RESERVED.into_iter().find(|name| is_set(name)) {
            return Err(format!(
                "`chat_template_kwargs` sets `{name}`, which gradus sets itself; remove it from the row"
            ));
        }
        Ok(Self { tools, variables })
    }
}

/// Returns the value of a column, parsed if it is text.
fn value<'r>(name: &str, columns: &'r Map<String, Value>) -> Result<Option<Cow<'r, Value>>, String> {
    match columns.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(Value::Null) => Ok(None),
            Ok(value) => Ok(Some(Cow::Owned(value))),
            Err(error) => Err(format!("column `{name}` is text, but not valid JSON: {error}")),
        },
        Some(value) => Ok(Some(Cow::Borrowed(value))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::TemplateColumns;

    fn columns(tools: Value, variables: Value) -> Map<String, Value> {
        [("tools".to_owned(), tools), ("chat_template_kwargs".to_owned(), variables)].into_iter().collect()
    }

    #[test]
    fn values_and_their_json_text_are_the_same() {
        let [tools, variables] = [json!([{ "name": "f" }]), json!({ "enable_thinking": false })];
        let plain = columns(tools.clone(), variables.clone());
        let text = columns(tools.to_string().into(), variables.to_string().into());
        let read = TemplateColumns::read(&plain).expect("valid columns");
        assert_eq!(read.tools.as_deref(), tools.as_array().map(Vec::as_slice));
        assert_eq!(read.variables.as_deref(), variables.as_object());
        assert_eq!(TemplateColumns::read(&text).expect("valid columns"), read);
    }

    #[test]
    fn null_and_blank_text_are_absent() {
        for absent in [json!(null), json!(" "), json!("null")] {
            let columns = columns(absent.clone(), absent);
            assert_eq!(TemplateColumns::read(&columns), Ok(TemplateColumns::default()));
        }
        assert_eq!(TemplateColumns::read(&Map::new()), Ok(TemplateColumns::default()));
    }

    #[test]
    fn other_types_and_reserved_names_are_refused() {
        let reserved = |name: &str| {
            format!("`chat_template_kwargs` sets `{name}`, which gradus sets itself; remove it from the row")
        };
        let cases = [
            (json!(5), json!(null), "column `tools` holds a number, expected a list of tools".to_owned()),
            (json!({}), json!(null), "column `tools` holds an object, expected a list of tools".to_owned()),
            (json!("{}"), json!(null), "column `tools` holds an object, expected a list of tools".to_owned()),
            (json!([1]), json!(null), "column `tools` holds a list with a number, expected objects".to_owned()),
            (json!(null), json!([1]), "column `chat_template_kwargs` holds a list, expected an object".to_owned()),
            (
                json!(null),
                json!("true"),
                "column `chat_template_kwargs` holds true or false, expected an object".to_owned(),
            ),
            (json!(null), json!({ "messages": [] }), reserved("messages")),
            (json!(null), json!({ "tools": [] }), reserved("tools")),
            (json!(null), json!("{\"add_generation_prompt\": true}"), reserved("add_generation_prompt")),
        ];
        for (tools, variables, expected) in cases {
            assert_eq!(TemplateColumns::read(&columns(tools, variables)), Err(expected));
        }
        let broken = columns(json!("f"), json!(null));
        let message = TemplateColumns::read(&broken).expect_err("it is not JSON");
        assert!(message.starts_with("column `tools` is text, but not valid JSON: "), "{message}");
    }
}
