//! An answer, in progress and finished.

use crate::data::Message;
use crate::error::Result;
use crate::generate::{Completion, StopReason, StopRule};
use crate::text::{StopStrings, Tokenizer, certain, continuation, cut_at_stop, think, without_thoughts};

/// Reason for the end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The model ended it, by a stop id or a stop string.
    Stop,
    /// It reached the maximum length.
    Length,
    /// The listener stopped it.
    Interrupted,
}

impl AnswerEnd {
    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Interrupted => "interrupted",
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The text, including thoughts.
    pub text: String,
    /// Whether the prompt ended inside a thought.
    pub begins_inside: bool,
    /// Number of tokens.
    pub tokens: usize,
    /// Reason for its end.
    pub end: AnswerEnd,
}

impl Answer {
    /// Returns the text without thoughts.
    pub fn without_thoughts(&self) -> String {
        without_thoughts(&self.message().content).into_owned()
    }

    /// Returns the answer as a turn of the conversation.
    pub fn message(&self) -> Message {
        let open = if self.begins_inside { think::OPEN } else { "" };
        Message::new("assistant", format!("{open}{}", self.text))
    }
}

/// Whether an answer continues after a piece of it was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// More of the answer is sampled.
    Continue,
    /// The answer ends here.
    Stop,
}

/// An answer that is being sampled.
pub(super) struct PartialAnswer {
    prompt_ids: Vec<u32>,
    stop: Vec<String>,
    begins_inside: bool,
    /// Special tokens that stay in the text.
    kept: Vec<u32>,
    sent: String,
    is_interrupted: bool,
}

impl PartialAnswer {
    /// Creates an empty answer to `prompt_ids`.
    pub(super) fn new(prompt_ids: Vec<u32>, stop: Vec<String>, begins_inside: bool) -> Self {
        Self { prompt_ids, stop, begins_inside, kept: Vec::new(), sent: String::new(), is_interrupted: false }
    }

    /// Keeps these special tokens in the text.
    pub(super) fn keeping(self, kept: Vec<u32>) -> Self {
        Self { kept, ..self }
    }

    /// Returns the text of `ids`.
    fn text(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String> {
        let (mut text, mut start) = (String::new(), 0);
        let kept = (0..ids.len()).filter(|&at| self.kept.contains(&ids[at]));
        for end in kept.chain([ids.len()]) {
            let before = [&self.prompt_ids[..], &ids[..start]].concat();
            text += &continuation(tokenizer, &before, &ids[start..end])?;
            if let Some(&id) = ids.get(end) {
                text += &tokenizer.token(id).unwrap_or_default();
                start = end + 1;
            }
        }
        Ok(text)
    }

    /// Converts `completion` to the finished answer. `on_text` receives the text that was held back as a possible stop string.
    pub(super) fn end(
        &self,
        tokenizer: &Tokenizer,
        completion: &Completion,
        on_text: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Answer> {
        let whole = self.text(tokenizer, &completion.ids)?;
        let text = cut_at_stop(&whole, &self.stop).to_owned();
        let end = match (self.is_interrupted, completion.stop) {
            (true, _) => AnswerEnd::Interrupted,
            (_, StopReason::Length) => AnswerEnd::Length,
            _ => AnswerEnd::Stop,
        };
        if let Some(rest) = text.strip_prefix(&self.sent).filter(|rest| !rest.is_empty()) {
            on_text(rest);
        }
        Ok(Answer { text, begins_inside: self.begins_inside, tokens: completion.ids.len(), end })
    }
}

/// Delivers the text of an answer as it grows.
pub(super) struct Listener<'a> {
    tokenizer: &'a Tokenizer,
    strings: StopStrings<'a>,
    answer: &'a mut PartialAnswer,
    on_text: &'a mut dyn FnMut(&str) -> Flow,
}

impl<'a> Listener<'a> {
    /// Creates a listener. `on_text` receives the final pieces of `answer`.
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        answer: &'a mut PartialAnswer,
        on_text: &'a mut dyn FnMut(&str) -> Flow,
    ) -> Self {
        let strings = StopStrings::new(tokenizer, answer.stop.iter().cloned());
        Self { tokenizer, strings, answer, on_text }
    }
}

impl StopRule for Listener<'_> {
    fn stops(&mut self, _: usize, completion_ids: &[u32]) -> bool {
        let ended = self.strings.stops(&self.answer.prompt_ids, completion_ids);
        let text = self.answer.text(self.tokenizer, completion_ids);
        let PartialAnswer { stop, sent, is_interrupted, .. } = &mut *self.answer;
        // Text that cannot be decoded yet is delivered with a later id.
        if let Ok(text) = text {
            let certain = certain(cut_at_stop(&text, stop), stop);
            let new = certain.strip_prefix(sent.as_str()).unwrap_or_default();
            *is_interrupted |= (self.on_text)(new) == Flow::Stop;
            sent.push_str(new);
        }
        ended || *is_interrupted
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/tool_calls/tokenizer");

    #[test]
    fn only_kept_special_tokens_are_text() {
        let tokenizer = Tokenizer::from_dir(Path::new(TOKENIZER)).expect("a tokenizer");
        let ids = tokenizer.encode("é[TOOL_CALLS]add[ARGS]{}<|im_end|>", false).expect("ids");
        let text = |kept: &[&str]| {
            let kept = kept.iter().map(|token| tokenizer.token_id(token).expect("a token")).collect();
            let answer = PartialAnswer::new(Vec::new(), Vec::new(), false).keeping(kept);
            answer.text(&tokenizer, &ids).expect("a text")
        };
        assert_eq!(text(&[]), "éadd{}");
        assert_eq!(text(&["[TOOL_CALLS]", "[ARGS]"]), "é[TOOL_CALLS]add[ARGS]{}");
        assert_eq!(text(&["<|im_end|>"]), "éadd{}<|im_end|>");
    }
}
