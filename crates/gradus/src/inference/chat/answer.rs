//! An answer: while it is sampled, and when it has ended.

use crate::data::Message;
use crate::error::Result;
use crate::generate::{Completion, StopReason, StopRule};
use crate::text::{StopStrings, Tokenizer, certain, continuation, cut_at_stop, think, without_thoughts};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The model ended it, by an id or a string.
    Stop,
    /// It reached its longest length.
    Length,
    /// Whoever listened has heard enough.
    Interrupted,
}

impl AnswerEnd {
    /// The name in JSON.
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
    /// What was said, thoughts included.
    pub text: String,
    /// Whether the prompt had begun a thought.
    pub begins_inside: bool,
    /// How many tokens it has.
    pub tokens: usize,
    /// Why it ended.
    pub end: AnswerEnd,
}

impl Answer {
    /// What was said, without thoughts.
    pub fn said(&self) -> String {
        without_thoughts(&self.message().content).into_owned()
    }

    /// The answer as a turn of the conversation.
    pub fn message(&self) -> Message {
        let open = if self.begins_inside { think::OPEN } else { "" };
        Message::new("assistant", format!("{open}{}", self.text))
    }
}

/// What becomes of an answer after a piece of it was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    GoOn,
    /// That was enough.
    Stop,
}

/// An answer that is being sampled.
pub(super) struct UnderWay {
    prompt_ids: Vec<u32>,
    stop: Vec<String>,
    begins_inside: bool,
    heard: String,
    is_interrupted: bool,
}

impl UnderWay {
    /// Nothing of the answer to `prompt_ids` is there yet.
    pub(super) fn new(prompt_ids: Vec<u32>, stop: Vec<String>, begins_inside: bool) -> Self {
        Self { prompt_ids, stop, begins_inside, heard: String::new(), is_interrupted: false }
    }

    /// The answer that `completion` is; `hear` gets what was held back because it might have become a stop string.
    pub(super) fn end(
        &self,
        tokenizer: &Tokenizer,
        completion: &Completion,
        hear: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Answer> {
        let whole = continuation(tokenizer, &self.prompt_ids, &completion.ids)?;
        let text = cut_at_stop(&whole, &self.stop).to_owned();
        let end = match (self.is_interrupted, completion.stop) {
            (true, _) => AnswerEnd::Interrupted,
            (_, StopReason::Length) => AnswerEnd::Length,
            _ => AnswerEnd::Stop,
        };
        if let Some(rest) = text.strip_prefix(&self.heard).filter(|rest| !rest.is_empty()) {
            hear(rest);
        }
        Ok(Answer { text, begins_inside: self.begins_inside, tokens: completion.ids.len(), end })
    }
}

/// Hands on the text of an answer as it grows.
pub(super) struct Listener<'a> {
    tokenizer: &'a Tokenizer,
    strings: StopStrings<'a>,
    answer: &'a mut UnderWay,
    hear: &'a mut dyn FnMut(&str) -> Flow,
}

impl<'a> Listener<'a> {
    /// `hear` gets what becomes certain of `answer`.
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        answer: &'a mut UnderWay,
        hear: &'a mut dyn FnMut(&str) -> Flow,
    ) -> Self {
        let strings = StopStrings::new(tokenizer, answer.stop.iter().cloned());
        Self { tokenizer, strings, answer, hear }
    }
}

impl StopRule for Listener<'_> {
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool {
        let ended = self.strings.stops(row, completion_ids);
        let UnderWay { prompt_ids, stop, heard, is_interrupted, .. } = &mut *self.answer;
        // Text that cannot be decoded yet comes with a later id.
        if let Ok(text) = continuation(self.tokenizer, prompt_ids, completion_ids) {
            let certain = certain(cut_at_stop(&text, stop), stop);
            let new = certain.strip_prefix(heard.as_str()).unwrap_or_default();
            *is_interrupted |= (self.hear)(new) == Flow::Stop;
            heard.push_str(new);
        }
        ended || *is_interrupted
    }
}
