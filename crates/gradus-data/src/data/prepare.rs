//! Prepares a row for tokenizing: converts transcripts to conversations, adds a system message, and removes thoughts from answers.

use std::borrow::Cow;

use super::example::TokenizeOptions;
use super::implicit::split_shared_prompt;
use super::transcript::{content_as_messages, turns};
use super::{Content, Message, Row, RowData};
use crate::text::think::without_thoughts_after;
use crate::text::without_thoughts;

/// Prepares the row as `options` require. Borrows it if nothing changes.
pub(super) fn prepare_row<'r>(row: &'r Row, options: &TokenizeOptions) -> Result<Cow<'r, Row>, String> {
    let mut prepared = Cow::Borrowed(row);
    if options.transcripts_as_messages
        && let Some(data) = as_conversation(&row.data, options)?
    {
        prepared.to_mut().data = data;
    }
    if let Some(system) = &options.system_prompt {
        begin_with_system(&mut prepared.to_mut().data, system)?;
    }
    if options.for_reward
        && let Some(data) = without_reasoning(&prepared.data)
    {
        prepared.to_mut().data = data;
    }
    Ok(prepared)
}

/// Converts a transcript to messages. Returns `None` if the row is not a transcript.
fn as_conversation(data: &RowData, options: &TokenizeOptions) -> Result<Option<RowData>, String> {
    let is_transcript = |content: &Content| matches!(content, Content::Text(text) if !turns(text).is_empty());
    let prompt_of = |prompt: &Content| Content::Messages(content_as_messages(prompt, "user"));
    let answer_of = |answer: &Content| Content::Messages(content_as_messages(answer, "assistant"));
    Ok(match data {
        RowData::Text(text) if !turns(text).is_empty() => {
            Some(RowData::Messages(content_as_messages(&Content::Text(text.clone()), "user")))
        }
        RowData::Prompt(prompt) if is_transcript(prompt) => Some(RowData::Prompt(prompt_of(prompt))),
        RowData::PromptCompletion { prompt, completion } if is_transcript(prompt) => {
            Some(RowData::PromptCompletion { prompt: prompt_of(prompt), completion: answer_of(completion) })
        }
        RowData::Unpaired { prompt, completion, is_desirable } if is_transcript(prompt) => {
            let (prompt, completion) = (prompt_of(prompt), answer_of(completion));
            Some(RowData::Unpaired { prompt, completion, is_desirable: *is_desirable })
        }
        RowData::Preference { prompt: Some(prompt), chosen, rejected, margin } if is_transcript(prompt) => {
            let (prompt, chosen, rejected) = (prompt_of(prompt), answer_of(chosen), answer_of(rejected));
            Some(RowData::Preference { prompt: Some(prompt), chosen, rejected, margin: *margin })
        }
        RowData::Preference { prompt: None, chosen, rejected, margin } if is_transcript(chosen) => {
            // Split as text first: a turn in which both answers begin alike belongs to the answers as a whole.
            let (prompt, chosen, rejected) = split_shared_prompt(chosen, rejected, options.implicit_prompt)?;
            let (prompt, chosen, rejected) = (prompt_of(&prompt), answer_of(&chosen), answer_of(&rejected));
            Some(RowData::Preference { prompt: Some(prompt), chosen, rejected, margin: *margin })
        }
        _ => None,
    })
}

/// Inserts the system message into a conversation that does not begin with one.
fn begin_with_system(data: &mut RowData, system: &str) -> Result<(), String> {
    let begin = |messages: &mut Vec<Message>| {
        if messages.first().is_none_or(|first| first.role != "system") {
            messages.insert(0, Message::new("system", system));
        }
    };
    match data {
        RowData::Messages(messages)
        | RowData::Prompt(Content::Messages(messages))
        | RowData::PromptCompletion { prompt: Content::Messages(messages), .. }
        | RowData::Unpaired { prompt: Content::Messages(messages), .. }
        | RowData::Preference { prompt: Some(Content::Messages(messages)), .. }
        | RowData::Instruction { history: messages, .. } => begin(messages),
        RowData::Preference {
            prompt: None,
            chosen: Content::Messages(chosen),
            rejected: Content::Messages(rejected),
            ..
        } => [chosen, rejected].into_iter().for_each(begin),
        _ => {
            return Err(
                "`system_prompt` needs conversations, and the row is not one (give the rows as `messages`; transcripts \
                        become conversations with `transcripts_as_messages`)"
                    .into(),
            );
        }
    }
    Ok(())
}

/// Removes `<think>…</think>` blocks. Returns `None` if there are none to remove.
fn without_reasoning(data: &RowData) -> Option<RowData> {
    Some(match data {
        RowData::Text(text) => RowData::Text(whole(text)?),
        RowData::Messages(messages) => RowData::Messages(messages_without_thoughts(messages)),
        RowData::PromptCompletion { prompt, completion } => {
            let (prompt, completion) = answered(prompt, completion);
            RowData::PromptCompletion { prompt, completion }
        }
        RowData::Unpaired { prompt, completion, is_desirable } => {
            let (prompt, completion) = answered(prompt, completion);
            RowData::Unpaired { prompt, completion, is_desirable: *is_desirable }
        }
        RowData::Preference { prompt: Some(prompt), chosen, rejected, margin } => {
            let ((prompt, chosen), (_, rejected)) = (answered(prompt, chosen), answered(prompt, rejected));
            RowData::Preference { prompt: Some(prompt), chosen, rejected, margin: *margin }
        }
        RowData::Preference { prompt: None, chosen, rejected, margin } => {
            let alone = |content: &Content| match content {
                Content::Text(text) => Content::Text(whole(text).unwrap_or_else(|| text.clone())),
                Content::Messages(messages) => Content::Messages(messages_without_thoughts(messages)),
            };
            RowData::Preference { prompt: None, chosen: alone(chosen), rejected: alone(rejected), margin: *margin }
        }
        _ => return None,
    })
}

/// Removes thoughts from a text that holds prompt and answer. Returns `None` if there are none.
fn whole(text: &str) -> Option<String> {
    match without_thoughts_after(text, "").0 {
        Cow::Borrowed(_) => None,
        Cow::Owned(text) => Some(text),
    }
}

fn answered(prompt: &Content, answer: &Content) -> (Content, Content) {
    match (prompt, answer) {
        (Content::Text(prompt), Content::Text(answer)) => {
            let (prompt, answer) = without_thoughts_after(prompt, answer);
            (Content::Text(prompt.into_owned()), Content::Text(answer.into_owned()))
        }
        (prompt, Content::Messages(answer)) => {
            let prompt = match prompt {
                Content::Messages(messages) => Content::Messages(messages_without_thoughts(messages)),
                Content::Text(_) => prompt.clone(),
            };
            (prompt, Content::Messages(messages_without_thoughts(answer)))
        }
        (prompt, answer) => (prompt.clone(), answer.clone()),
    }
}

/// Removes thoughts from the assistant's messages.
fn messages_without_thoughts(messages: &[Message]) -> Vec<Message> {
    let mut messages = messages.to_vec();
    for message in messages.iter_mut().filter(|message| message.role == "assistant") {
        if let Cow::Owned(answer) = without_thoughts(&message.content) {
            message.content = answer;
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::super::RowLocation;
    use super::*;

    fn read_as(data: RowData, options: &TokenizeOptions) -> RowData {
        let row = Row {
            location: RowLocation::new(&std::sync::Arc::from(std::path::Path::new("rows.jsonl")), 1),
            index: 0,
            data,
            columns: Map::new(),
        };
        prepare_row(&row, options).expect("readable").into_owned().data
    }

    fn text(text: &str) -> Content {
        Content::Text(text.into())
    }

    fn messages(turns: &[(&str, &str)]) -> Content {
        Content::Messages(turns.iter().map(|(role, text)| Message::new(*role, *text)).collect())
    }

    #[test]
    fn transcripts_become_conversations_where_that_is_wanted() {
        let options = TokenizeOptions { transcripts_as_messages: true, ..TokenizeOptions::default() };
        let pair = |prompt, chosen, rejected| RowData::Preference { prompt, chosen, rejected, margin: Some(1.0) };
        let hh = pair(
            None,
            text("\n\nHuman: Hi\n\nAssistant: Hello there."),
            text("\n\nHuman: Hi\n\nAssistant: Hello, what?"),
        );
        let expected = pair(
            Some(messages(&[("user", "Hi")])),
            messages(&[("assistant", "Hello there.")]),
            messages(&[("assistant", "Hello, what?")]),
        );
        assert_eq!(read_as(hh.clone(), &options), expected);
        assert_eq!(read_as(hh.clone(), &TokenizeOptions::default()), hh, "nothing unless asked");
        let plain = RowData::PromptCompletion { prompt: text("2 + 2"), completion: text(" 4") };
        assert_eq!(read_as(plain.clone(), &options), plain, "no transcript");
        let row = RowData::Prompt(text("\n\nHuman: a?\n\nAssistant:"));
        assert_eq!(read_as(row, &options), RowData::Prompt(messages(&[("user", "a?")])));
    }

    #[test]
    fn a_reward_model_reads_what_was_said() {
        let options = TokenizeOptions { for_reward: true, ..TokenizeOptions::default() };
        let pair = |prompt, chosen, rejected| RowData::Preference { prompt, chosen, rejected, margin: None };
        let text_pair = pair(Some(text("2 + 2?")), text(" <think>hm</think>4"), text(" 5"));
        assert_eq!(read_as(text_pair, &options), pair(Some(text("2 + 2?")), text(" 4"), text(" 5")));
        let thought = messages(&[("user", "What is <think>?"), ("assistant", "<think>a tag</think>\n\nA tag.")]);
        let plain = messages(&[("user", "What is <think>?"), ("assistant", "A tag.")]);
        assert_eq!(read_as(pair(None, thought.clone(), plain.clone()), &options), pair(None, plain.clone(), plain));
        let alone = pair(None, thought.clone(), thought);
        assert_eq!(read_as(alone.clone(), &TokenizeOptions::default()), alone);
    }
}
