//! Converts rows of one kind to another kind, if the conversion is meaningful.

use serde_json::{Map, Value};

use super::foreign::{instruction_as_text, instruction_as_turns};
use super::implicit::{ImplicitPrompt, split_shared_prompt};
use super::transcript::{as_text, content_as_messages, content_as_text};
use super::{Content, Row, RowData};

/// Kind that rows are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The kind of the input. Implicit prompts become explicit, and foreign formats become gradus' own.
    Same,
    /// `text`.
    Text,
    /// `messages`.
    Messages,
    /// `prompt` and `completion`. Pairs contribute their chosen answer.
    PromptCompletion,
    /// `prompt`, `chosen`, `rejected`.
    Preference,
    /// `prompt`, `completion`, `label`. Pairs must be split first ([`super::unpaired`]).
    Unpaired,
    /// `prompt`.
    Prompt,
}

/// Representation of contents: text or messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Unchanged.
    AsIs,
    /// Text. Messages become a transcript in the HH format.
    Text,
    /// Messages. A transcript becomes its turns; other text becomes one message.
    Messages,
}

/// Returns the columns of `row` as `target`, followed by its other columns.
///
/// # Errors
/// If the row lacks what the target needs.
pub fn convert(row: &Row, target: Target, form: Form, rule: ImplicitPrompt) -> Result<Map<String, Value>, String> {
    let target = if target == Target::Same { same(&row.data) } else { target };
    let mut columns = Map::new();
    match target {
        Target::Same => unchanged(&row.data, &mut columns)?,
        Target::Text => {
            let (before, answer) = whole(&row.data, rule)?;
            let text = match &before {
                Some(prompt) => format!("{}{}", content_as_text(prompt, true), content_as_text(&answer, false)),
                None => match &answer {
                    Content::Text(text) => text.clone(),
                    Content::Messages(messages) => as_text(messages, false),
                },
            };
            columns.insert("text".into(), text.into());
        }
        Target::Messages => {
            let (before, answer) = whole(&row.data, rule)?;
            let mut messages = before.map_or(Vec::new(), |prompt| content_as_messages(&prompt, "user"));
            messages.extend(content_as_messages(&answer, "assistant"));
            columns.insert("messages".into(), json(&messages)?);
        }
        Target::PromptCompletion => {
            let (prompt, completion) = split(&row.data, rule)?;
            insert(&mut columns, "prompt", &prompt, form, true)?;
            insert(&mut columns, "completion", &completion, form, false)?;
        }
        Target::Preference => {
            let RowData::Preference { prompt, chosen, rejected, margin } = &row.data else {
                return Err("holds no pair of answers".into());
            };
            let (prompt, chosen, rejected) = match prompt {
                Some(prompt) => (prompt.clone(), chosen.clone(), rejected.clone()),
                None => split_shared_prompt(chosen, rejected, rule)?,
            };
            insert(&mut columns, "prompt", &prompt, form, true)?;
            insert(&mut columns, "chosen", &chosen, form, false)?;
            insert(&mut columns, "rejected", &rejected, form, false)?;
            if let Some(margin) = margin {
                columns.insert("margin".into(), Value::from(f64::from(*margin)));
            }
        }
        Target::Unpaired => {
            let RowData::Unpaired { prompt, completion, is_desirable } = &row.data else {
                return Err("holds no completion that is marked as desirable or not".into());
            };
            insert(&mut columns, "prompt", prompt, form, true)?;
            insert(&mut columns, "completion", completion, form, false)?;
            columns.insert("label".into(), Value::from(*is_desirable));
        }
        Target::Prompt => {
            let prompt = match &row.data {
                RowData::Prompt(prompt) => prompt.clone(),
                other => split(other, rule)?.0,
            };
            insert(&mut columns, "prompt", &prompt, form, true)?;
        }
    }
    for (name, value) in &row.columns {
        if !columns.contains_key(name) {
            columns.insert(name.clone(), value.clone());
        }
    }
    Ok(columns)
}

/// Returns the kind that a row already has.
fn same(data: &RowData) -> Target {
    match data {
        RowData::Text(_) => Target::Text,
        RowData::Messages(_) => Target::Messages,
        RowData::PromptCompletion { .. } | RowData::Instruction { .. } => Target::PromptCompletion,
        RowData::Preference { .. } => Target::Preference,
        RowData::Unpaired { .. } => Target::Unpaired,
        RowData::Prompt(_) => Target::Prompt,
        RowData::Tokens { .. }
        | RowData::TokenPreference { .. }
        | RowData::Columns
        | RowData::Words(_)
        | RowData::Feedback(_) => Target::Same,
    }
}

/// Writes the columns of rows without text unchanged.
fn unchanged(data: &RowData, columns: &mut Map<String, Value>) -> Result<(), String> {
    match data {
        RowData::Tokens { ids, loss_mask, labels } => {
            columns.insert("input_ids".into(), json(ids)?);
            if let Some(labels) = labels.as_ref().filter(|labels| labels.misfit.is_some()) {
                columns.insert("labels".into(), json(&labels.target)?);
            } else if let Some(mask) = loss_mask {
                columns.insert("completion_mask".into(), mask.iter().map(|bit| Value::from(u8::from(*bit))).collect());
            }
        }
        RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, margin } => {
            if !prompt_ids.is_empty() {
                columns.insert("prompt_ids".into(), json(prompt_ids)?);
            }
            columns.insert("chosen_ids".into(), json(chosen_ids)?);
            columns.insert("rejected_ids".into(), json(rejected_ids)?);
            if let Some(margin) = margin {
                columns.insert("margin".into(), Value::from(f64::from(*margin)));
            }
        }
        RowData::Feedback(feedback) => columns.extend(feedback.to_columns()),
        RowData::Words(words) => columns.extend(words.to_columns()),
        _ => {}
    }
    Ok(())
}

/// Returns a whole sequence: the prompt, if it is separate, and the rest.
fn whole(data: &RowData, rule: ImplicitPrompt) -> Result<(Option<Content>, Content), String> {
    match data {
        RowData::Text(text) => Ok((None, Content::Text(text.clone()))),
        RowData::Messages(messages) => Ok((None, Content::Messages(messages.clone()))),
        RowData::Preference { prompt: None, chosen, .. } => Ok((None, chosen.clone())),
        other => split(other, rule).map(|(prompt, completion)| (Some(prompt), completion)),
    }
}

/// Returns prompt and completion. For a pair, the completion is the chosen answer.
fn split(data: &RowData, rule: ImplicitPrompt) -> Result<(Content, Content), String> {
    match data {
        RowData::PromptCompletion { prompt, completion }
        | RowData::Unpaired { prompt, completion, is_desirable: true } => Ok((prompt.clone(), completion.clone())),
        RowData::Unpaired { is_desirable: false, .. } => {
            Err("holds a completion that is not wanted; `unpaired` keeps its label".into())
        }
        RowData::Instruction { history, request, answer } if history.is_empty() => {
            Ok(instruction_as_text(request, answer))
        }
        RowData::Instruction { history, request, answer } => Ok(instruction_as_turns(history, request, answer)),
        RowData::Preference { prompt: Some(prompt), chosen, .. } => Ok((prompt.clone(), chosen.clone())),
        RowData::Preference { prompt: None, chosen, rejected, .. } => {
            split_shared_prompt(chosen, rejected, rule).map(|(prompt, chosen, _)| (prompt, chosen))
        }
        RowData::Messages(messages) => {
            let last = messages.iter().rposition(|m| m.role == "assistant").filter(|at| *at > 0);
            let at = last.ok_or("holds no answer of the assistant")?;
            Ok((Content::Messages(messages[..at].to_vec()), Content::Messages(messages[at..=at].to_vec())))
        }
        RowData::Text(_) => Err("holds a text without a prompt".into()),
        RowData::Prompt(_) => Err("holds a prompt without a completion".into()),
        RowData::Tokens { .. } | RowData::TokenPreference { .. } => Err("holds token ids, not text".into()),
        RowData::Columns => Err("holds columns of no known form".into()),
        RowData::Words(_) => Err("holds words with labels, which are for `gradus classify`".into()),
        RowData::Feedback(_) => Err("holds feedback, which converts to `preference`, `r1`, `r2` or `r3`".into()),
    }
}

fn insert(
    columns: &mut Map<String, Value>,
    name: &str,
    content: &Content,
    form: Form,
    prompt: bool,
) -> Result<(), String> {
    let value = match (form, content) {
        (Form::Text, _) | (Form::AsIs, Content::Text(_)) => Value::from(content_as_text(content, prompt)),
        (Form::Messages, _) | (Form::AsIs, Content::Messages(_)) => {
            json(&content_as_messages(content, if prompt { "user" } else { "assistant" }))?
        }
    };
    columns.insert(name.into(), value);
    Ok(())
}

fn json(value: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|e| e.to_string())
}
