//! Data: typed rows, readers, tokenisation into training examples.

use serde::{Deserialize, Serialize};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// What was said.
    pub content: String,
    /// Everything else a chat template may read (`tool_calls`, `name`, `reasoning_content`).
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}
