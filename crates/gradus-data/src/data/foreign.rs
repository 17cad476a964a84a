//! Row formats of other tools: Alpaca's instructions, and questions with answers.

use serde_json::{Map, Value};

use super::Message;
use super::message::kind_name;
use super::row::{Content, Request};

impl Request {
    /// Returns the text for models without a chat template.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Task { instruction, input } => alpaca_prompt(instruction, input),
            Self::Question(question) => question.clone(),
        }
    }

    /// Returns the user's message in a conversation.
    pub(super) fn message(&self) -> Message {
        let content = match self {
            Self::Task { instruction, input } if input.trim().is_empty() => instruction.clone(),
            Self::Task { instruction, input } => format!("{instruction}\n{input}"),
            Self::Question(question) => question.clone(),
        };
        Message::new("user", content)
    }
}

/// Converts an instruction and its answer to a conversation.
pub(super) fn instruction_as_turns(history: &[Message], request: &Request, answer: &str) -> (Content, Content) {
    let prompt = history.iter().cloned().chain([request.message()]).collect();
    (Content::Messages(prompt), Content::Messages(vec![Message::new("assistant", answer)]))
}

/// Converts an instruction and its answer to text.
pub(super) fn instruction_as_text(request: &Request, answer: &str) -> (Content, Content) {
    (Content::Text(request.text()), Content::Text(answer.to_owned()))
}

/// Formats Alpaca's prompt (Taori et al. 2023).
fn alpaca_prompt(instruction: &str, input: &str) -> String {
    let task = "Below is an instruction that describes a task";
    if input.trim().is_empty() {
        format!(
            "{task}. Write a response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n\
             ### Response:\n"
        )
    } else {
        format!(
            "{task}, paired with an input that provides further context. Write a response that appropriately completes \
             the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
        )
    }
}

/// Takes `system` and `history` (a list of `[question, answer]`) of LLaMA-Factory's Alpaca format out of the columns.
pub(super) fn alpaca_history(columns: &mut Map<String, Value>) -> Result<Vec<Message>, String> {
    let mut messages = Vec::new();
    match columns.remove("system") {
        None | Some(Value::Null) => {}
        Some(Value::String(system)) if system.trim().is_empty() => {}
        Some(Value::String(system)) => messages.push(Message::new("system", system)),
        Some(other) => return Err(format!("column `system` is {}, expected a string", kind_name(&other))),
    }
    match columns.remove("history") {
        None | Some(Value::Null) => {}
        Some(Value::Array(turns)) => {
            for (i, turn) in turns.iter().enumerate() {
                let pair =
                    turn.as_array().map(|t| (t.first().and_then(Value::as_str), t.get(1).and_then(Value::as_str)));
                let Some((Some(question), Some(answer))) = pair else {
                    return Err(format!("turn {} of `history` is not a list of two strings", i + 1));
                };
                messages.push(Message::new("user", question));
                messages.push(Message::new("assistant", answer));
            }
        }
        Some(other) => return Err(format!("column `history` is {}, expected a list", kind_name(&other))),
    }
    Ok(messages)
}
