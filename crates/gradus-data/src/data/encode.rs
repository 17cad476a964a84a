//! Encodes texts and conversations as TRL does.

use std::borrow::Cow;
use std::ops::Range;

use super::Message;
use super::row::{Content, Row, RowData};
use super::row_tokenizer::{Failure, Ids, RowTokenizer};
use super::template_columns::TemplateColumns;
use crate::Error;
use crate::text::think::without_empty_thoughts;
use crate::text::{ChatTemplate, RenderOptions, Rendered, Request};

/// Text that a chat template writes around a message of the assistant.
struct Frame {
    /// Text that opens a turn.
    head: String,
    /// Text that ends it, without the white space after that.
    end: String,
}

impl RowTokenizer<'_> {
    /// Appends the text of the eos token, unless the text ends with it or the tokenizer adds its own.
    pub(super) fn with_eos<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.tokenizer.eos_token() {
            Some(eos) if self.options.add_eos && !self.tokenizer.appends_eos() && !text.ends_with(eos) => {
                format!("{text}{eos}").into()
            }
            _ => text.into(),
        }
    }

    pub(super) fn text(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let ids = self.tokenizer.encode(text, true)?;
        if ids.is_empty() { Err(Failure::Row("the text is empty".into())) } else { Ok(ids) }
    }

    /// Tokenizes a prompt alone, without the eos token that some tokenizers append to every text.
    pub(super) fn prompt_text(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let mut ids = self.tokenizer.encode(text, true)?;
        if self.tokenizer.appends_eos() {
            ids.pop();
        }
        Ok(ids)
    }

    pub(super) fn render(&self, messages: &[Message], row: &Row, prompt: bool) -> Result<Rendered, Failure> {
        let [rendered] = self.render_each([(messages, prompt)], row)?;
        Ok(rendered)
    }

    /// Renders several conversations of a row at once. The flag adds the head of the assistant's next turn. The first conversation
    /// that fails is the row's failure.
    pub(super) fn render_each<const N: usize>(
        &self,
        conversations: [(&[Message], bool); N],
        row: &Row,
    ) -> Result<[Rendered; N], Failure> {
        let rendered = self.render_list(&conversations, row)?;
        Ok(rendered.try_into().expect("a text for each conversation"))
    }

    fn render_list(&self, conversations: &[(&[Message], bool)], row: &Row) -> Result<Vec<Rendered>, Failure> {
        let Some(template) = self.template else {
            return Err(Failure::All(row.location.error("conversations need a chat template, and the model has none").with_hint(
                "give one with `--chat-template chatml` or `--chat-template FILE`, or turn the rows into text: `gradus data convert FILE --to prompt-completion --form text --output OTHER.jsonl`",
            )));
        };
        let columns = TemplateColumns::read(&row.columns)?;
        let tools = Some(columns.tools.as_deref().unwrap_or(&self.options.tools));
        let variables = columns.variables.as_deref();
        let request = |&(messages, add_generation_prompt): &(_, bool)| {
            (messages, RenderOptions { tools, add_generation_prompt, variables, now: None })
        };
        let requests: Vec<Request<'_, Message>> = conversations.iter().map(request).collect();
        let tidied = |rendered: crate::Result<Rendered>| {
            let mut rendered = rendered?;
            if self.options.for_reward
                && let Cow::Owned(text) = without_empty_thoughts(&rendered.text)
            {
                // The assistant's ranges are dropped, because only training texts need them.
                rendered = Rendered { text, assistant: None };
            }
            Ok(rendered)
        };
        template.render_all(&requests).into_iter().map(tidied).collect()
    }

    pub(super) fn conversation(
        &self,
        messages: &[Message],
        row: &Row,
        prompt: bool,
        mask: bool,
    ) -> Result<Ids, Failure> {
        let rendered = self.render(messages, row, prompt)?;
        self.ids_of(rendered, messages, row, mask)
    }

    /// Returns the ids of a rendered conversation and, with `mask`, which of them the assistant writes.
    pub(super) fn ids_of(
        &self,
        rendered: Rendered,
        messages: &[Message],
        row: &Row,
        mask: bool,
    ) -> Result<Ids, Failure> {
        if !mask {
            return Ok(Ids { ids: self.tokenizer.encode(&rendered.text, false)?, assistant: None });
        }
        let template = self.template.expect("rendered with it");
        let assistant = match rendered.assistant {
            Some(ranges) => ranges,
            None => self.assistant_ranges(messages, row, &rendered.text)?,
        };
        let encoded = self.tokenizer.encode_with_offsets(&rendered.text)?;
        let mut is_assistant = vec![false; encoded.ids.len()];
        let token_at = |byte: usize| encoded.offsets.iter().position(|(start, end)| (*start..*end).contains(&byte));
        for span in &assistant {
            let Some(first) = token_at(span.start) else { break };
            let last = span.end.checked_sub(1).and_then(token_at).filter(|last| *last > 0);
            let end = last.map_or(is_assistant.len(), |last| last + 1);
            is_assistant[first..end.max(first)].fill(true);
        }
        if !is_assistant.contains(&true) {
            return Err(Failure::Row(
                "no token belongs to the assistant, and `assistant_only_loss` trains on no other tokens".into(),
            ));
        }
        self.check_turn_end(&encoded.ids, &is_assistant, template)?;
        Ok(Ids { ids: encoded.ids, assistant: Some(is_assistant) })
    }

    /// Returns the ranges of `whole` that the assistant writes, for a template without generation blocks. A range begins after the
    /// text that the template writes for the preceding messages and the head of the assistant's turn. It ends with the mark that
    /// ends the turn. White space after that mark is not included, as in templates that mark turns.
    fn assistant_ranges(&self, messages: &[Message], row: &Row, whole: &str) -> Result<Vec<Range<usize>>, Failure> {
        let frame = self.frame(row)?;
        let mut ranges = Vec::new();
        let turns: Vec<usize> = (0..messages.len()).filter(|&i| messages[i].role == "assistant").collect();
        // Each turn, and the messages before it unless it is the first message.
        let conversations = turns.iter().flat_map(|&i| [(&messages[..=i], false), (&messages[..i], true)]);
        let conversations: Vec<(&[Message], bool)> =
            conversations.filter(|(messages, _)| !messages.is_empty()).collect();
        let mut texts = self.render_list(&conversations, row)?.into_iter().map(|rendered| rendered.text);
        for i in turns {
            let turn = texts.next().expect("a text for each turn");
            let head = match i {
                // If the assistant begins the conversation, the text before its message ends with the usual head.
                0 if !frame.head.is_empty() => {
                    turn.find(&frame.head).map_or("", |at| &turn[..at + frame.head.len()]).into()
                }
                0 => String::new(),
                _ => texts.next().expect("a text for what stands before each turn"),
            };
            let length = turn.strip_prefix(&head).filter(|_| whole.starts_with(&head)).and_then(|suffix| {
                let (rest, closed) = (&whole[head.len()..], suffix.trim_end());
                match (rest.starts_with(suffix), frame.end.is_empty()) {
                    (true, false) if closed.ends_with(&frame.end) => Some(closed.len()),
                    (true, _) => Some(suffix.len()),
                    // Thoughts are removed from a turn when others follow it, but it still ends with its mark.
                    (false, false) => rest.find(&frame.end).map(|at| at + frame.end.len()),
                    (false, true) => None,
                }
            });
            let Some(length) = length else {
                return Err(Failure::Row(format!(
                    "the chat template renders message {} differently when others follow, so the assistant's text \
                     cannot be found; `assistant_only_loss` then needs `{{% generation %}}…{{% endgeneration %}}` in \
                     the template around the assistant's turns",
                    i + 1
                )));
            };
            ranges.push(head.len()..head.len() + length);
        }
        Ok(ranges)
    }

    /// Finds the text that the template writes around a message of the assistant, by rendering one question and answer.
    fn frame(&self, row: &Row) -> Result<Frame, Failure> {
        let [question, answer] = [Message::new("user", "question"), Message::new("assistant", "answer")];
        let both = [question, answer];
        let [prompt, open, answered] =
            self.render_each([(&both[..1], false), (&both[..1], true), (&both, false)], row)?;
        let end = answered.text.rsplit_once(both[1].content.as_str()).map_or("", |(_, end)| end.trim_end());
        Ok(Frame { head: open.text.strip_prefix(&prompt.text).unwrap_or_default().to_owned(), end: end.to_owned() })
    }

    /// Rejects rows to which `assistant_only_loss` cannot apply.
    pub(super) fn check_assistant_only(&self, row: &Row) -> Result<(), Failure> {
        if !self.options.assistant_only_loss {
            return Ok(());
        }
        let what = match &row.data {
            RowData::Tokens { loss_mask: Some(_), .. } => return Ok(()),
            RowData::Tokens { loss_mask: None, .. } => "has `input_ids` without `assistant_masks`",
            RowData::Text(_) => "is a text",
            RowData::PromptCompletion { prompt: Content::Text(_), .. } => "is a text and its continuation",
            RowData::Preference { chosen: Content::Text(_), .. } => "holds texts",
            RowData::Instruction { .. } if self.template.is_none() => "is not a conversation without a chat template",
            _ => return Ok(()),
        };
        let message = format!("`assistant_only_loss` needs conversations, and the row {what}");
        Err(Failure::All(row.location.error(message).with_hint(
            "give the rows as `messages`; with `prompt` and `completion`, only the completion is trained on anyway",
        )))
    }

    /// Rejects a template whose end-of-turn token is after the generation block: it would never teach the model to stop.
    pub(super) fn check_turn_end(
        &self,
        ids: &[u32],
        is_assistant: &[bool],
        template: &ChatTemplate,
    ) -> Result<(), Failure> {
        let last = is_assistant.iter().rposition(|s| *s).expect("checked by the caller");
        let outside = ids.get(last + 1).is_some_and(|next| self.tokenizer.is_special(*next));
        if outside && !self.tokenizer.is_special(ids[last]) {
            let token = self.tokenizer.token(ids[last + 1]).unwrap_or_default();
            let message = format!("the generation block ends before `{token}`: the model would never learn to stop");
            return Err(Failure::All(
                Error::model(template.path(), message)
                    .with_hint("move `{% endgeneration %}` after the end-of-turn token"),
            ));
        }
        Ok(())
    }

    pub(super) fn check_ids(&self, ids: &[u32]) -> Result<(), Failure> {
        let size = self.tokenizer.vocab_size();
        match ids.iter().find(|id| **id as usize >= size) {
            Some(id) => Err(Failure::Row(format!("token id {id} is outside the vocabulary of {size}"))),
            None => Ok(()),
        }
    }
}
