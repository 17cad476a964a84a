//! A model that can be talked to: how conversations become its prompts, and how its answers end.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::transcript::{HUMAN, hh, said};
use super::{ChatFormat, ChatOptions};
use crate::data::Message;
use crate::error::{Error, Result};
use crate::generate::SamplingParams;
use crate::inference::open_files;
use crate::model::{CausalLm, WeightFormat, model_of};
use crate::pretrained::Pretrained;
use crate::text::{ChatTemplate, RenderOptions, Tokenizer, think};

/// What a chat template is rendered with besides the messages.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Descriptions of the tools that the model may call.
    pub tools: Vec<Value>,
    /// Further variables of the template (`enable_thinking`, …).
    pub variables: Map<String, Value>,
}

/// A model with its files, and how it is talked to. Copies share the weights.
#[derive(Clone)]
pub(super) struct Talker {
    pub files: Pretrained,
    pub model: CausalLm,
    pub prompter: Prompter,
    pub directory: PathBuf,
}

impl Talker {
    /// Loads the model.
    pub(super) fn open(options: &ChatOptions) -> Result<Self> {
        let directory = model_of(Path::new(&options.model))?;
        let name = directory.to_string_lossy();
        let files = open_files(&name, options.adapter.as_deref(), &options.text)?;
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
        let prompter = Prompter {
            tokenizer: files.tokenizer.clone(),
            template: files.template.clone(),
            format,
            has_encoder: model.trunk.decoder_start().is_some(),
            positions: model.max_positions(),
        };
        Ok(Self { files, model, prompter, directory })
    }

    /// The same model with the adapter in `path`; the tokenizer and the template stay those of the base.
    pub(super) fn with_adapter(self, path: &Path) -> Result<Self> {
        let dir = self.files.dir.with_adapter(path)?;
        // What is packed already stays as it is.
        let model = self.model.with_saved_adapter(&dir)?.into_frozen(WeightFormat::F32);
        let files = Pretrained { dir, ..self.files };
        Ok(Self { files, model, directory: path.to_owned(), ..self })
    }

    /// `params` with the ids that end and begin this model's answers, and no more tokens than its positions leave after a
    /// prompt of `prompt` ids.
    pub(super) fn params(&self, prompt: usize, params: SamplingParams) -> Result<SamplingParams> {
        let mut params = params.forcing(self.files.dir.forced_ids());
        params.stop_ids.extend(self.files.stop_ids());
        let Some(room) = self.model.position_budget().after(prompt) else { return Ok(params) };
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
        let own = match self.format() {
            ChatFormat::Hh => Some(HUMAN),
            ChatFormat::Template => self.files.turn_end(),
            ChatFormat::Plain => None,
        };
        asked.iter().cloned().chain(own.map(str::to_owned)).collect()
    }

    /// How conversations are written.
    pub(super) fn format(&self) -> ChatFormat {
        self.prompter.format
    }

    /// Whether an encoder reads the conversation.
    pub(super) fn has_encoder(&self) -> bool {
        self.prompter.has_encoder
    }
}

/// How conversations become the prompts of a model. Copies are cheap, and need neither the model nor the thread that has it.
#[derive(Debug, Clone)]
pub struct Prompter {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    format: ChatFormat,
    /// Whether an encoder reads the conversation.
    has_encoder: bool,
    /// The model's positions, where they are limited.
    positions: Option<usize>,
}

impl Prompter {
    /// The conversation as the model reads it, up to where its answer begins.
    ///
    /// # Errors
    /// When the template refuses the conversation, or tools are given and there is no template.
    pub fn text_of(&self, messages: &[Message], asked: &Asked) -> Result<String> {
        match (self.format, &self.template) {
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
    pub(super) fn begin(&self, messages: &[Message], asked: &Asked) -> Result<(Vec<u32>, bool)> {
        let text = self.text_of(messages, asked)?;
        let begins_inside = text.trim_end().ends_with(think::OPEN);
        // A template writes its own special tokens, but for those that an encoder reads around every text.
        let special = self.has_encoder || self.format != ChatFormat::Template;
        Ok((self.ids("the conversation", &text, special)?, begins_inside))
    }

    /// The ids of a prompt, which messages call `name`.
    ///
    /// # Errors
    /// When it is far longer than the model has positions.
    fn ids(&self, name: &str, text: &str, special: bool) -> Result<Vec<u32>> {
        let Some(limit) = self.positions else { return self.tokenizer.encode(text, special) };
        self.tokenizer.encode_within(text, special, limit)?.ok_or_else(|| {
            let bytes = text.len();
            Error::input(format!("{name} of {bytes} bytes has far more tokens than the model has positions ({limit})"))
                .with_hint("shorten it")
        })
    }

    /// The ids of a conversation, up to where its answer begins.
    ///
    /// # Errors
    /// As [`text_of`](Self::text_of); or when it is far longer than the model has positions.
    pub fn prompt_of(&self, messages: &[Message], asked: &Asked) -> Result<Vec<u32>> {
        Ok(self.begin(messages, asked)?.0)
    }

    /// The ids of a text that is a prompt; with `add_special`, also those that the tokenizer puts around it.
    ///
    /// # Errors
    /// When it is far longer than the model has positions.
    pub fn ids_of(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.ids("the prompt", text, add_special)
    }
}
