//! A model for chat: how conversations become its prompts, and how its answers end.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::transcript::{HUMAN, hh, visible_turns};
use super::{ChatFormat, ChatOptions};
use crate::data::Message;
use crate::error::{Error, Result};
use crate::generate::SamplingParams;
use crate::inference::open_files;
use crate::model::{CausalLm, WeightFormat, model_of};
use crate::pretrained::Pretrained;
use crate::text::{ChatTemplate, RenderOptions, Tokenizer, think};

/// Inputs of a chat template in addition to the messages.
#[derive(Debug, Clone, Default)]
pub struct TemplateInputs {
    /// Descriptions of the tools that the model may call.
    pub tools: Vec<Value>,
    /// Further variables of the template (`enable_thinking`, …).
    pub variables: Map<String, Value>,
}

/// Reason why a prompt has no ids.
#[derive(Debug)]
pub enum PromptError {
    /// It has far more tokens than the model has positions.
    TooLong(Error),
    /// Any other reason.
    Other(Error),
}

impl From<Error> for PromptError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl From<PromptError> for Error {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::TooLong(error) | PromptError::Other(error) => error,
        }
    }
}

/// A model with its files and its prompt format. Copies share the weights.
#[derive(Clone)]
pub(super) struct ChatBackend {
    pub files: Pretrained,
    pub model: CausalLm,
    pub prompter: Prompter,
    pub directory: PathBuf,
}

impl ChatBackend {
    /// Loads the model.
    pub(super) fn open(options: &ChatOptions) -> Result<Self> {
        let directory = model_of(Path::new(&options.model))?;
        let name = directory.to_string_lossy();
        let files = open_files(&name, options.adapter.as_deref(), &options.text)?;
        if files.dir.is_reward_model() {
            let error = Error::model(&files.dir.path, "this is a reward model, which does not answer");
            return Err(error.with_hint("pass it as `--reward-model`, and a language model as `--model`"));
        }
        let format = match (options.format, &files.template) {
            (Some(ChatFormat::Template), None) => {
                return Err(Error::model(&files.dir.path, "the model has no chat template").with_hint(
                    "pass one as `--chat-template NAME|FILE`, or choose `--format hh` or `--format plain`",
                ));
            }
            (Some(format), _) => format,
            (None, Some(_)) => ChatFormat::Template,
            // Text for an encoder is not the start of a dialogue that the model would continue.
            (None, None) if files.dir.has_encoder()? => ChatFormat::Plain,
            (None, None) => ChatFormat::Hh,
        };
        options.device.check_compute("`--compute`", options.compute)?;
        let model = CausalLm::load(&files.dir, &options.device.device())?.with_compute(options.compute);
        let model = model.into_frozen(options.weights);
        let prompter = Prompter {
            tokenizer: files.tokenizer.clone(),
            template: files.template.clone(),
            format,
            has_encoder: model.trunk.decoder_start().is_some(),
            positions: model.max_positions(),
        };
        Ok(Self { files, model, prompter, directory })
    }

    /// Returns the model with the adapter in `path`. Tokenizer and template stay those of the base.
    pub(super) fn with_adapter(self, path: &Path) -> Result<Self> {
        let dir = self.files.dir.with_adapter(path)?;
        // Weights that are already packed keep their format.
        let model = self.model.with_saved_adapter(&dir)?.into_frozen(WeightFormat::F32);
        let files = Pretrained { dir, ..self.files };
        Ok(Self { files, model, directory: path.to_owned(), ..self })
    }

    /// Adds this model's stop ids and forced ids to `params`, and limits the tokens to the positions that a prompt of
    /// `prompt` ids leaves; `name` names the prompt in messages.
    pub(super) fn params(&self, name: &str, prompt: usize, params: SamplingParams) -> Result<SamplingParams> {
        let mut params = params.forcing(self.files.dir.forced_ids());
        params.stop_ids.extend(self.files.stop_ids());
        let Some(room) = self.model.position_budget().after(prompt) else { return Ok(params) };
        if room == 0 {
            let limit = self.model.max_positions().unwrap_or_default();
            return Err(Error::input(format!("{name} has {prompt} tokens, but the model has {limit} positions")));
        }
        params.max_new_tokens = params.max_new_tokens.min(room);
        Ok(params)
    }

    /// Returns the strings that end an answer in a conversation: `requested`, and those of the format.
    pub(super) fn stop(&self, requested: &[String]) -> Vec<String> {
        let own = match self.format() {
            ChatFormat::Hh => Some(HUMAN),
            ChatFormat::Template => self.files.turn_end(),
            ChatFormat::Plain => None,
        };
        requested.iter().cloned().chain(own.map(str::to_owned)).collect()
    }

    /// Returns the format of conversations.
    pub(super) fn format(&self) -> ChatFormat {
        self.prompter.format
    }

    /// Whether an encoder reads the conversation.
    pub(super) fn has_encoder(&self) -> bool {
        self.prompter.has_encoder
    }
}

/// Rejects conversations that only a chat template can write.
fn check_plain(messages: &[Message], inputs: &TemplateInputs) -> Result<()> {
    const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];
    let is_set = |value: &Value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
    let of_message = |(i, message): (usize, &Message)| match &message.role {
        role if !ROLES.contains(&role.as_str()) => Some(format!("`messages[{i}]` has the role `{role}`, which needs")),
        _ if message.extra.get("tool_calls").is_some_and(is_set) => {
            Some(format!("`messages[{i}]` has `tool_calls`, which need"))
        }
        _ => None,
    };
    let of_inputs = || match (inputs.tools.is_empty(), inputs.variables.is_empty()) {
        (true, true) => None,
        (true, false) => Some("`chat_template_kwargs` need".to_owned()),
        (false, _) => Some("tools need".to_owned()),
    };
    match of_inputs().or_else(|| messages.iter().enumerate().find_map(of_message)) {
        Some(what) => Err(Error::input(format!("{what} a chat template, and this model has none"))
            .with_hint("`--chat-template NAME|FILE` sets one")),
        None => Ok(()),
    }
}

/// Converts conversations to prompts of a model. Copies are cheap and need neither the model nor its thread.
#[derive(Debug, Clone)]
pub struct Prompter {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    format: ChatFormat,
    /// Whether an encoder reads the conversation.
    has_encoder: bool,
    /// Number of positions of the model, if limited.
    positions: Option<usize>,
}

impl Prompter {
    /// Returns the conversation as the model reads it, up to the start of its answer.
    ///
    /// # Errors
    /// If the template rejects the conversation, or if there is no template and the conversation needs one.
    pub fn text_of(&self, messages: &[Message], inputs: &TemplateInputs) -> Result<String> {
        match (self.format, &self.template) {
            (ChatFormat::Template, Some(template)) => {
                let options = RenderOptions {
                    tools: Some(&inputs.tools),
                    add_generation_prompt: true,
                    variables: Some(&inputs.variables),
                    ..RenderOptions::default()
                };
                Ok(template.render(messages, &options)?.text)
            }
            (format, _) => {
                check_plain(messages, inputs)?;
                Ok(match format {
                    ChatFormat::Plain => visible_turns(messages).map(|(_, text)| text).collect(),
                    _ => hh(messages),
                })
            }
        }
    }

    /// Returns the ids of [`text_of`](Self::text_of), and whether they end inside a thought.
    ///
    /// # Errors
    /// As [`prompt_of`](Self::prompt_of).
    pub fn begin(&self, messages: &[Message], inputs: &TemplateInputs) -> Result<(Vec<u32>, bool), PromptError> {
        let text = self.text_of(messages, inputs)?;
        let begins_inside = text.trim_end().ends_with(think::OPEN);
        // A template writes its own special tokens, except for those that an encoder expects around every text.
        let special = self.has_encoder || self.format != ChatFormat::Template;
        Ok((self.ids("the conversation", &text, special)?, begins_inside))
    }

    /// Returns the ids of a prompt; `name` is its name in messages.
    ///
    /// # Errors
    /// If it is much longer than the model has positions.
    fn ids(&self, name: &str, text: &str, special: bool) -> Result<Vec<u32>, PromptError> {
        let Some(limit) = self.positions else { return Ok(self.tokenizer.encode(text, special)?) };
        self.tokenizer.encode_within(text, special, limit)?.ok_or_else(|| {
            let bytes = text.len();
            let message = format!("{name} of {bytes} bytes has far more tokens than the model has positions ({limit})");
            PromptError::TooLong(Error::input(message).with_hint("shorten it"))
        })
    }

    /// Returns the ids of a conversation, up to the start of its answer.
    ///
    /// # Errors
    /// As [`text_of`](Self::text_of), or if it is much longer than the model has positions.
    pub fn prompt_of(&self, messages: &[Message], inputs: &TemplateInputs) -> Result<Vec<u32>> {
        Ok(self.begin(messages, inputs)?.0)
    }

    /// Returns the ids of a text that is a prompt. With `add_special`, they include those that the tokenizer puts around it.
    ///
    /// # Errors
    /// If it is much longer than the model has positions.
    pub fn ids_of(&self, text: &str, add_special: bool) -> Result<Vec<u32>, PromptError> {
        self.ids("the prompt", text, add_special)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_and_answers_of_tools_need_a_template() {
        let check = |message: Value| {
            let message = Message::read(&message).expect("a message");
            check_plain(&[Message::new("user", "a"), message], &TemplateInputs::default())
        };
        for role in ["system", "developer", "user", "assistant"] {
            check(json!({ "role": role, "content": "b", "tool_calls": [] })).expect("plain text");
        }
        let call = json!({ "type": "function", "function": { "name": "add", "arguments": {} } });
        for (message, what) in [
            (json!({ "role": "tool", "content": "4" }), "`messages[1]` has the role `tool`"),
            (json!({ "role": "critic", "content": "4" }), "`messages[1]` has the role `critic`"),
            (json!({ "role": "assistant", "content": null, "tool_calls": [call] }), "`messages[1]` has `tool_calls`"),
        ] {
            let error = check(message).expect_err(what).to_string();
            assert!(error.starts_with(what) && error.ends_with("a chat template, and this model has none"), "{error}");
        }
        let variables = [("enable_thinking".to_owned(), json!(false))].into_iter().collect();
        let inputs = TemplateInputs { variables, ..TemplateInputs::default() };
        let error = check_plain(&[Message::new("user", "a")], &inputs).expect_err("no template").to_string();
        assert_eq!(error, "`chat_template_kwargs` need a chat template, and this model has none");
    }
}
