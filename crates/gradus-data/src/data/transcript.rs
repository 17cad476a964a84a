//! Converts transcripts in the HH format (`\n\nHuman: …\n\nAssistant: …`) to messages and back.

use super::implicit::ASSISTANT;
use super::{Content, Message, RowData};

/// Start of a person's turn.
const HUMAN: &str = "\n\nHuman:";

/// One turn of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn<'t> {
    pub role: &'static str,
    pub text: &'t str,
}

/// Returns the turns of a transcript. Empty if the text is not a transcript. Some data sets remove the blank line at the start of a text:
/// the first turn of a text with answers may begin with `Human:` alone.
pub(super) fn turns(text: &str) -> Vec<Turn<'_>> {
    let bare = HUMAN.trim_start();
    let begins_bare = text.starts_with(bare) && text.contains(ASSISTANT);
    let mut marks: Vec<(usize, usize, &'static str)> = text
        .match_indices(HUMAN)
        .map(|(at, _)| (at, at + HUMAN.len(), "user"))
        .chain(text.match_indices(ASSISTANT).map(|(at, _)| (at, at + ASSISTANT.len(), "assistant")))
        .chain(begins_bare.then_some((0, bare.len(), "user")))
        .collect();
    marks.sort_unstable();
    let ends: Vec<usize> = marks.iter().skip(1).map(|(at, ..)| *at).chain([text.len()]).collect();
    marks.iter().zip(ends).map(|((_, start, role), end)| Turn { role, text: &text[*start..end] }).collect()
}

/// Replaces CR LF by LF in the texts of a row with a transcript that Windows wrote. Otherwise, no turn would be found.
pub(super) fn use_line_feeds(data: &mut RowData) {
    fn text(content: &mut Content) -> Option<&mut String> {
        match content {
            Content::Text(text) => Some(text),
            Content::Messages(_) => None,
        }
    }
    let texts: Vec<Option<&mut String>> = match data {
        RowData::Text(text) => vec![Some(text)],
        RowData::Prompt(prompt) => vec![text(prompt)],
        RowData::PromptCompletion { prompt, completion } | RowData::Unpaired { prompt, completion, .. } => {
            vec![text(prompt), text(completion)]
        }
        RowData::Preference { prompt, chosen, rejected, .. } => {
            vec![prompt.as_mut().and_then(text), text(chosen), text(rejected)]
        }
        _ => return,
    };
    let has_turn = |text: &str| ["\r\n\r\nHuman:", "\r\n\r\nAssistant:"].iter().any(|mark| text.contains(mark));
    if texts.iter().flatten().any(|text| has_turn(text)) {
        for text in texts.into_iter().flatten() {
            *text = text.replace("\r\n", "\n");
        }
    }
}

/// Converts a text to messages: a transcript by its turns, any other text as one message of `role`.
///
/// The open turn at the end of a prompt (`\n\nAssistant:`) is not a message.
pub(super) fn as_messages(text: &str, role: &str) -> Vec<Message> {
    let turns = turns(text);
    let head = turns.first().map_or(text, |first| {
        let start = first.text.as_ptr() as usize - text.as_ptr() as usize;
        text[..start].rsplit_once("\n\n").map_or("", |(head, _)| head)
    });
    let mut messages = Vec::new();
    if !head.trim().is_empty() || turns.is_empty() {
        let role = if turns.is_empty() || role == "assistant" { role } else { "system" };
        messages.push(Message::new(role, head.trim()));
    }
    let last = turns.len().saturating_sub(1);
    for (i, turn) in turns.iter().enumerate() {
        let open = i == last && turn.role == "assistant" && turn.text.trim().is_empty();
        if !open {
            messages.push(Message::new(turn.role, turn.text.trim()));
        }
    }
    messages
}

/// Formats messages as a transcript. A prompt ends with `\n\nAssistant:`.
pub(super) fn as_text(messages: &[Message], prompt: bool) -> String {
    let mut text = String::new();
    for message in messages {
        match message.role.as_str() {
            "assistant" => text += &format!("{ASSISTANT} {}", message.content),
            "user" => text += &format!("{HUMAN} {}", message.content),
            _ => text += &format!("\n\n{}", message.content),
        }
    }
    if prompt { text + ASSISTANT } else { text }
}

/// Formats an answer: the assistant's turns, without the mark that already ends the prompt.
pub(super) fn answer_as_text(messages: &[Message]) -> String {
    let text = as_text(messages, false);
    text.strip_prefix(ASSISTANT).map_or(text.clone(), str::to_owned)
}

/// Converts any content to text.
pub(super) fn content_as_text(content: &Content, prompt: bool) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Messages(messages) if prompt => as_text(messages, true),
        Content::Messages(messages) => answer_as_text(messages),
    }
}

/// Converts any content to messages.
pub(super) fn content_as_messages(content: &Content, role: &str) -> Vec<Message> {
    match content {
        Content::Text(text) => as_messages(text, role),
        Content::Messages(messages) => messages.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcripts_and_messages_are_the_same() {
        let text = "\n\nHuman: a?\n\nAssistant: b\n\nHuman: c?\n\nAssistant:";
        let messages = as_messages(text, "user");
        assert_eq!(messages, [Message::new("user", "a?"), Message::new("assistant", "b"), Message::new("user", "c?")]);
        assert_eq!(as_text(&messages, true), text);
    }

    #[test]
    fn the_first_turn_may_lack_its_blank_line() {
        let messages = as_messages("Human: a?\n\nAssistant: b\n\nHuman: c?\n\nAssistant:", "user");
        assert_eq!(messages, [Message::new("user", "a?"), Message::new("assistant", "b"), Message::new("user", "c?")]);
        // Without an answer, this is a sentence.
        assert_eq!(as_messages("Human: a species", "user"), [Message::new("user", "Human: a species")]);
    }

    #[test]
    fn transcripts_of_windows_are_read_like_others() {
        let content = |text: &str| Content::Text(text.into());
        let pair = |prompt: Option<&str>, chosen: &str, rejected: &str| RowData::Preference {
            prompt: prompt.map(content),
            chosen: content(chosen),
            rejected: content(rejected),
            margin: None,
        };
        let rows = [
            pair(None, "\n\nHuman: a?\n\nAssistant: It is\nso", "\n\nHuman: a?\n\nAssistant: It was"),
            // The answers alone are no transcripts.
            pair(Some("Human: a?\n\nAssistant:"), " It\nis", " It was"),
            RowData::Text("\n\nHuman: a?\n\nAssistant: b\n".into()),
            RowData::Prompt(content("\n\nHuman: a?\n\nAssistant:")),
            RowData::PromptCompletion { prompt: content("Human: a?\n\nAssistant:"), completion: content(" b\nc") },
        ];
        let windows = |text: &mut String| *text = text.replace('\n', "\r\n");
        for row in rows {
            let mut changed = row.clone();
            match &mut changed {
                RowData::Text(text) => windows(text),
                RowData::Prompt(Content::Text(prompt)) => windows(prompt),
                RowData::PromptCompletion { prompt: Content::Text(prompt), completion: Content::Text(completion) } => {
                    [prompt, completion].into_iter().for_each(windows);
                }
                RowData::Preference {
                    prompt,
                    chosen: Content::Text(chosen),
                    rejected: Content::Text(rejected),
                    ..
                } => {
                    [chosen, rejected].into_iter().for_each(windows);
                    if let Some(Content::Text(prompt)) = prompt {
                        windows(prompt);
                    }
                }
                _ => unreachable!("no other rows"),
            }
            assert_ne!(changed, row);
            use_line_feeds(&mut changed);
            assert_eq!(changed, row);
        }
        // Other texts keep their line ends.
        let mut other = RowData::Text("a\r\n\r\nb".into());
        use_line_feeds(&mut other);
        assert_eq!(other, RowData::Text("a\r\n\r\nb".into()));
    }

    #[test]
    fn plain_text_is_one_message() {
        assert_eq!(as_messages(" It is.", "assistant"), [Message::new("assistant", "It is.")]);
        assert_eq!(answer_as_text(&[Message::new("assistant", "It is.")]), " It is.");
    }

    #[test]
    fn text_before_the_first_turn_is_the_system_message() {
        let messages = as_messages("Be brief.\n\nHuman: a?", "user");
        assert_eq!(messages, [Message::new("system", "Be brief."), Message::new("user", "a?")]);
    }
}
