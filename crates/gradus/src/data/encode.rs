//! Texts and conversations to ids, as TRL encodes them.

use std::borrow::Cow;

use serde_json::Value;

use super::Message;
use super::maker::{Failure, Ids, Maker};
use super::row::Row;
use crate::Error;
use crate::text::think::without_empty_thoughts;
use crate::text::{ChatTemplate, RenderOptions, Rendered};

impl Maker<'_> {
    /// The text with the eos token's text behind it, unless it ends with it or the tokenizer adds its own.
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

    /// A prompt alone: without the eos that some tokenizers end every text with.
    pub(super) fn prompt_text(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let mut ids = self.tokenizer.encode(text, true)?;
        if self.tokenizer.appends_eos() {
            ids.pop();
        }
        Ok(ids)
    }

    pub(super) fn render(&self, messages: &[Message], row: &Row, prompt: bool) -> Result<Rendered, Failure> {
        let Some(template) = self.template else {
            return Err(Failure::All(row.place.error("conversations need a chat template, and the model has none").with_hint(
                "give one with `--chat-template FILE`, or turn the rows into text: `gradus data convert --to prompt-completion`",
            )));
        };
        let parsed;
        let tools = match row.columns.get("tools") {
            Some(Value::Array(tools)) => Some(tools.as_slice()),
            Some(Value::String(text)) if !text.trim().is_empty() => {
                parsed = serde_json::from_str::<Vec<Value>>(text)
                    .map_err(|e| format!("column `tools` is no JSON list: {e}"))?;
                Some(parsed.as_slice())
            }
            _ => None,
        };
        let variables = row.columns.get("chat_template_kwargs").and_then(Value::as_object);
        let mut rendered =
            template.render(messages, &RenderOptions { tools, add_generation_prompt: prompt, variables, now: None })?;
        if self.options.for_reward
            && let Cow::Owned(text) = without_empty_thoughts(&rendered.text)
        {
            // Where the assistant speaks in it is only asked for in training texts.
            rendered = Rendered { text, assistant: Vec::new() };
        }
        Ok(rendered)
    }

    pub(super) fn conversation(
        &self,
        messages: &[Message],
        row: &Row,
        prompt: bool,
        mask: bool,
    ) -> Result<Ids, Failure> {
        let rendered = self.render(messages, row, prompt)?;
        if !mask {
            return Ok(Ids { ids: self.tokenizer.encode(&rendered.text, false)?, assistant: None });
        }
        let encoded = self.tokenizer.encode_with_offsets(&rendered.text)?;
        let mut said = vec![false; encoded.ids.len()];
        let token_at = |byte: usize| encoded.offsets.iter().position(|(start, end)| (*start..*end).contains(&byte));
        for span in &rendered.assistant {
            let Some(first) = token_at(span.start) else { break };
            let last = span.end.checked_sub(1).and_then(token_at).filter(|last| *last > 0);
            let end = last.map_or(said.len(), |last| last + 1);
            said[first..end.max(first)].fill(true);
        }
        let template = self.template.expect("rendered with it");
        if !said.contains(&true) {
            let message = "no token is marked as the assistant's".to_owned();
            if template.marks_assistant() {
                return Err(Failure::Row(message));
            }
            return Err(Failure::All(
                Error::model(template.path(), "the chat template does not mark what the assistant says").with_hint(
                    "`assistant_only_loss` needs `{% generation %}…{% endgeneration %}` around the assistant's turns",
                ),
            ));
        }
        self.check_turn_end(&encoded.ids, &said, template)?;
        Ok(Ids { ids: encoded.ids, assistant: Some(said) })
    }

    /// A template whose end-of-turn token lies behind the generation block would never teach the model to stop.
    pub(super) fn check_turn_end(&self, ids: &[u32], said: &[bool], template: &ChatTemplate) -> Result<(), Failure> {
        let last = said.iter().rposition(|s| *s).expect("checked by the caller");
        let outside = ids.get(last + 1).is_some_and(|next| self.tokenizer.is_special(*next));
        if outside && !self.tokenizer.is_special(ids[last]) {
            let token = self.tokenizer.token(ids[last + 1]).unwrap_or_default();
            let message = format!("the generation block ends before `{token}`: the model would never learn to stop");
            return Err(Failure::All(
                Error::model(template.path(), message)
                    .with_hint("move `{% endgeneration %}` behind the end-of-turn token"),
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

/// How many leading ids two sequences have in common.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
