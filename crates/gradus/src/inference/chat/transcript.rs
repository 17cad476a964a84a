//! Conversations as plain text, thoughts left out.

use crate::data::Message;
use crate::text::without_thoughts;

/// What begins a person's turn in Anthropic's transcripts, and ends the assistant's.
pub(super) const HUMAN: &str = "\n\nHuman:";
/// What begins the assistant's.
const ASSISTANT: &str = "\n\nAssistant:";

/// Role and text of each turn, thoughts left out.
pub(super) fn said(messages: &[Message]) -> impl Iterator<Item = (&str, String)> {
    messages.iter().map(|message| (message.role.as_str(), without_thoughts(&message.content).into_owned()))
}

/// The conversation as a transcript, a system prompt before it.
pub(super) fn hh(messages: &[Message]) -> String {
    let turn = |(role, text): (&str, String)| match role {
        "user" => format!("{HUMAN} {text}"),
        "assistant" => format!("{ASSISTANT} {}", text.trim_start()),
        _ => text,
    };
    said(messages).map(turn).collect::<String>() + ASSISTANT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Vec<Message> {
        [("system", "Be kind."), ("user", "Hello"), ("assistant", "<think>hm</think>\n\nHi!"), ("user", "Tea?")]
            .map(|(role, text)| Message::new(role, text))
            .to_vec()
    }

    #[test]
    fn a_transcript_as_in_hh_rlhf() {
        assert_eq!(hh(&conversation()), "Be kind.\n\nHuman: Hello\n\nAssistant: Hi!\n\nHuman: Tea?\n\nAssistant:");
    }
}
