//! A model that can be talked to: how conversations become its prompts, and how its answers end.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::transcript::{HUMAN, hh, said};
use super::{ChatFormat, ChatOptions};
use crate::data::Message;
use crate::error::{Error, Result};
use crate::generate::SamplingParams;
use crate::inference::{check_formats, open_files};
use crate::model::{CausalLm, Precision, model_of};
use crate::pretrained::Pretrained;
use crate::text::{RenderOptions, think};

/// What a chat template is rendered with besides the messages.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Descriptions of the tools that the model may call.
    pub tools: Vec<Value>,
    /// Further variables of the template (`enable_thinking`, …).
    pub variables: Map<String, Value>,
}

/// A model with its files, and how it is talked to.
pub(super) struct Talker {
    pub files: Pretrained,
    pub model: CausalLm,
    pub format: ChatFormat,
    pub directory: PathBuf,
}

impl Talker {
    /// Loads the model.
    pub(super) fn open(options: &ChatOptions) -> Result<Self> {
        check_formats(&options.device, Precision::F32, options.weights)?;
        let directory = model_of(Path::new(&options.model))?;
        let name = directory.to_string_lossy();
        let files = open_files(&name, options.adapter.as_deref(), options.chat_template.as_deref())?;
        if files.dir.is_reward_model() {
            let error = Error::model(&files.dir.path, "this is a reward model, which does not answer");
            return Err(error.with_hint("give it as `--reward-model`, and a language model as `--model`"));
        }
        let format = match (options.format, &files.template) {
            (Some(ChatFormat::Template), None) => {
                return Err(Error::model(&files.dir.path, "the model has no chat template").with_hint(
                    "give one as `--chat-template NAME|FILE`, or choose `--format hh` or `--format plain`",
                ));
            }
            (Some(format), _) => format,
            (None, Some(_)) => ChatFormat::Template,
            // What an encoder reads is no beginning of a dialogue that would go on.
            (None, None) if files.dir.has_encoder()? => ChatFormat::Plain,
            (None, None) => ChatFormat::Hh,
        };
        let model = CausalLm::load(&files.dir, &options.device.device())?.into_frozen(options.weights);
        Ok(Self { files, model, format, directory })
    }

    /// The conversation as the model reads it, up to where its answer begins.
    pub(super) fn text_of(&self, messages: &[Message], asked: &Asked) -> Result<String> {
        match (self.format, &self.files.template) {
            (ChatFormat::Template, Some(template)) => {
                let options = RenderOptions {
                    tools: Some(&asked.tools),
                    add_generation_prompt: true,
                    variables: Some(&asked.variables),
                    ..RenderOptions::default()
                };
                Ok(template.render(messages, &options)?.text)
            }
            _ if !asked.tools.is_empty() => Err(Error::input("tools need a chat template, and this model has none")),
            (ChatFormat::Plain, _) => Ok(said(messages).map(|(_, text)| text).collect()),
            _ => Ok(hh(messages)),
        }
    }

    /// The ids of [`text_of`](Self::text_of), and whether it has begun a thought.
    pub(super) fn prompt_of(&self, messages: &[Message], asked: &Asked) -> Result<(Vec<u32>, bool)> {
        let text = self.text_of(messages, asked)?;
        let begins_inside = text.trim_end().ends_with(think::OPEN);
        // A template writes its own special tokens, but for those that an encoder reads around every text.
        let special = self.has_encoder() || self.format != ChatFormat::Template;
        Ok((self.files.tokenizer.encode(&text, special)?, begins_inside))
    }

    /// `params` with the ids that end and begin this model's answers, and no more tokens than its positions leave after a
    /// prompt of `prompt` ids.
    pub(super) fn params(&self, prompt: usize, params: SamplingParams) -> Result<SamplingParams> {
        let mut params = params.forcing(self.files.dir.forced_ids());
        params.stop_ids.extend(self.files.stop_ids());
        let Some(room) = self.model.room().after(prompt) else { return Ok(params) };
        if room == 0 {
            let limit = self.model.max_positions().unwrap_or_default();
            return Err(Error::input(format!(
                "the conversation has {prompt} tokens, but the model has {limit} positions"
            )));
        }
        params.max_new_tokens = params.max_new_tokens.min(room);
        Ok(params)
    }

    /// The strings that end an answer of a conversation: those that are asked for, and the format's.
    pub(super) fn stop(&self, asked: &[String]) -> Vec<String> {
        let own = match self.format {
            ChatFormat::Hh => Some(HUMAN),
            ChatFormat::Template => self.files.turn_end(),
            ChatFormat::Plain => None,
        };
        asked.iter().cloned().chain(own.map(str::to_owned)).collect()
    }

    /// Whether an encoder reads the conversation.
    pub(super) fn has_encoder(&self) -> bool {
        self.model.trunk.decoder_start().is_some()
    }
}
