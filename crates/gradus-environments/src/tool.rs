//! Tools as a chat template shows them, and calls as a policy writes them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A function that the policy may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, for the policy.
    #[serde(default)]
    pub description: String,
    /// Its arguments: a JSON Schema of an object.
    #[serde(default = "no_arguments")]
    pub parameters: Value,
}

fn no_arguments() -> Value {
    json!({ "type": "object", "properties": {} })
}

impl Tool {
    /// The form that chat templates read: `{"type": "function", "function": {…}}`.
    pub fn to_template(&self) -> Value {
        json!({
            "type": "function",
            "function": { "name": self.name, "description": self.description, "parameters": self.parameters },
        })
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The id that the policy gave it, in formats that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name of the tool.
    pub name: String,
    /// The arguments; or, where the call could not be read, what is wrong with it, for the policy.
    pub arguments: std::result::Result<Map<String, Value>, String>,
}
