//! Row forms of other tools: Alpaca's instructions.

use serde_json::{Map, Value};

use super::Message;
use super::message::kind_name;

/// Alpaca's prompt (Taori et al. 2023) for models without a chat template.
pub(super) fn alpaca_prompt(instruction: &str, input: &str) -> String {
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

/// Alpaca's task as one user message.
pub(super) fn alpaca_question(instruction: &str, input: &str) -> String {
    if input.trim().is_empty() { instruction.to_owned() } else { format!("{instruction}\n{input}") }
}

/// `system` and `history` (a list of `[question, answer]`) of LLaMA-Factory's Alpaca form, taken out of the columns.
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
