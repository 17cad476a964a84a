//! Conversations as plain text, without thoughts.

use crate::data::Message;
use crate::text::without_thoughts;

/// Start of a person's turn in Anthropic's transcripts, which also ends the assistant's turn.
pub(super) const HUMAN: &str = "\n\nHuman:";
/// Start of the assistant's turn.
const ASSISTANT: &str = "\n\nAssistant:";

/// Returns role and text of each turn, without thoughts.
pub(super) fn visible_turns(messages: &[Message]) -> impl Iterator<Item = (&str, String)> {
    messages.iter().map(|message| (message.role.as_str(), without_thoughts(&message.content).into_owned()))
}

/// Returns the conversation as a transcript. A system prompt comes first.
pub(super) fn hh(messages: &[Message]) -> String {
    let turn = |(role, text): (&str, String)| match role {
        "user" => format!("{HUMAN} {text}"),
        "assistant" => format!("{ASSISTANT} {}", text.trim_start()),
        _ => text,
    };
    visible_turns(messages).map(turn).collect::<String>() + ASSISTANT
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
