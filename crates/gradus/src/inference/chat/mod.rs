//! Chat with a model: a conversation becomes a prompt, and the answer is streamed token by token.
//!
//! Answers are sampled by the same engine as rollouts. Its stop rule runs after every id, and the text is streamed from
//! there. Each answer draws from its own random stream, so a conversation can be reproduced. The engine keeps the
//! conversation: the next turn computes only the part that differs from the cache.

mod answer;
mod backend;
mod judge;
mod segments;
mod session;
mod transcript;

pub use answer::{Answer, AnswerEnd, Flow};
pub use backend::{PromptError, Prompter, TemplateInputs};
pub use judge::ChatJudge;
pub use segments::{JudgedPart, SegmentsJudge};
pub use session::{Base, CompletionRequest, Piece, Session, TokenScore, score_text};

use std::path::Path;
use std::sync::Arc;

use answer::{Listener, PartialAnswer};
use backend::ChatBackend;

use crate::data::Message;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::generate::{Engine, Event, Request, SamplingParams, Turn};
use crate::model::{Precision, WeightFormat};
use crate::pretrained::TextFiles;
use crate::rng::{Purpose, Seed, Stream};

/// Format that converts a conversation to text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatFormat {
    /// The model's chat template.
    Template,
    /// `\n\nHuman: …\n\nAssistant:`, as in Anthropic's HH-RLHF.
    Hh,
    /// The texts unchanged, one after another, for models that only continue text.
    Plain,
}

impl std::str::FromStr for ChatFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "template" => Ok(Self::Template),
            "hh" => Ok(Self::Hh),
            "plain" => Ok(Self::Plain),
            _ => Err("expected `template`, `hh` or `plain`".into()),
        }
    }
}

/// The model to chat with, and its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// Directory of a model or an adapter, a checkpoint, a run directory (its `model/`, `best/` or newest checkpoint),
    /// or a hub name.
    pub model: String,
    /// Adapter on the model.
    pub adapter: Option<String>,
    /// Number format of the operands of matrix products, unless the format of the weights determines it.
    pub compute: Precision,
    /// Format of the weights in memory.
    pub weights: WeightFormat,
    /// Files that replace the tokenizer and the chat template.
    pub text: TextFiles,
    /// Format of conversations. Default: the template if there is one, else that of HH-RLHF.
    pub format: Option<ChatFormat>,
    /// Device to compute on.
    pub device: DeviceChoice,
}

/// Sampling settings of answers.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatSettings {
    /// Distribution and limits. The model's own stop ids are added.
    pub params: SamplingParams,
    /// Strings that end an answer, in addition to those of the format.
    pub stop: Vec<String>,
    /// Seed of every random stream.
    pub seed: Seed,
}

/// A model to chat with.
pub struct ChatModel {
    backend: ChatBackend,
    /// Cache of the conversation so far, once there is one.
    memory: Option<Memory>,
    /// The answer in progress.
    partial_answer: Option<PartialAnswer>,
}

/// The conversation in the cache of an engine.
struct Memory {
    engine: Engine<'static>,
    row: usize,
}

/// Initial capacity of the cache in tokens.
const CAPACITY: usize = 1024;

impl ChatModel {
    /// Loads the model.
    ///
    /// # Errors
    /// If it cannot be found or read, is a reward model, or lacks a requested chat template.
    pub fn open(options: &ChatOptions) -> Result<Self> {
        Ok(Self { backend: ChatBackend::open(options)?, memory: None, partial_answer: None })
    }

    /// Returns the directory that the model was loaded from.
    pub fn directory(&self) -> &Path {
        &self.backend.directory
    }

    /// Returns the format of conversations.
    pub fn format(&self) -> ChatFormat {
        self.backend.format()
    }

    /// Returns the conversation as the model reads it, up to the start of its answer.
    ///
    /// # Errors
    /// If the template rejects the conversation.
    pub fn text_of(&self, messages: &[Message]) -> Result<String> {
        self.backend.prompter.text_of(messages, &TemplateInputs::default())
    }

    /// Answers the conversation. `turn` and `attempt` select the random stream. `on_text` receives every piece of the
    /// answer as soon as it is final, and returns whether to continue.
    ///
    /// # Errors
    /// As [`begin`](Self::begin) and [`step`](Self::step).
    pub fn answer(
        &mut self,
        messages: &[Message],
        settings: &ChatSettings,
        of: (u64, u64),
        on_text: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Answer> {
        self.begin(messages, settings, of)?;
        loop {
            if let Some(answer) = self.step(on_text)? {
                return Ok(answer);
            }
        }
    }

    /// Starts an answer to the conversation; [`step`](Self::step) continues it. The common start with the previous
    /// conversation is not computed again.
    ///
    /// # Errors
    /// If the conversation is too long, or a setting is invalid.
    pub fn begin(&mut self, messages: &[Message], settings: &ChatSettings, (turn, attempt): (u64, u64)) -> Result<()> {
        let (ids, begins_inside) = self.backend.prompter.begin(messages, &TemplateInputs::default())?;
        let params = self.backend.params("the conversation", ids.len(), settings.params.clone());
        let params = params.map_err(|error| {
            error.with_hint("shorten the prompt, or write `/reset` before it: this starts a new conversation")
        })?;
        let stop = self.backend.stop(&settings.stop);
        self.continue_with(&ids, Arc::new(params), settings.seed.stream(Purpose::Chat, turn, attempt))?;
        // A decoder starts from its own start id: its answer continues no text.
        let continued = if self.backend.has_encoder() { Vec::new() } else { ids };
        self.partial_answer = Some(PartialAnswer::new(continued, stop, begins_inside));
        Ok(())
    }

    /// Samples one more token of the answer in progress. Returns the answer after its last token.
    ///
    /// # Errors
    /// If the answer is not valid text, or if none was started.
    pub fn step(&mut self, on_text: &mut dyn FnMut(&str) -> Flow) -> Result<Option<Answer>> {
        let (Some(memory), Some(answer)) = (&mut self.memory, &mut self.partial_answer) else {
            return Err(Error::input("no answer was begun"));
        };
        let events = memory.engine.step(&mut Listener::new(&self.backend.files.tokenizer, answer, on_text));
        let ended = events.into_iter().find_map(|event| match event {
            Event::Finished { completion, .. } => Some(completion),
            Event::Token { .. } => None,
        });
        let (Some(completion), Some(answer)) = (ended, &self.partial_answer) else { return Ok(None) };
        let answer = answer.end(&self.backend.files.tokenizer, &completion, on_text)?;
        self.partial_answer = None;
        Ok(Some(answer))
    }

    /// Returns the number of conversation tokens computed so far, without answers.
    pub fn prefilled(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.engine.prefilled())
    }

    /// Continues `ids` in the engine, from the first difference to the cache.
    fn continue_with(&mut self, ids: &[u32], params: Arc<SamplingParams>, stream: Stream) -> Result<()> {
        // An encoder always reads a whole conversation.
        let has_encoder = self.backend.has_encoder();
        if let Some(Memory { engine, row }) = &mut self.memory {
            let held = engine.ids(*row).unwrap_or_default();
            // At least one id must be computed, because the last id gives the first logits.
            let common = held.iter().zip(ids).take_while(|(held, id)| held == id).count().min(ids.len() - 1);
            if !has_encoder && engine.rewind(*row, common) {
                return engine.extend(*row, Turn { ids: ids[common..].to_vec(), params, stream });
            }
            engine.cancel(*row);
        }
        let new = || Memory { engine: Engine::new(&self.backend.model, 1, CAPACITY), row: 0 };
        let memory = self.memory.get_or_insert_with(new);
        let request = Request { prompt: ids.to_vec(), params, streams: vec![stream], is_kept: true };
        memory.row = memory.engine.submit(request)?.start;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(format: ChatFormat) -> ChatOptions {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
        ChatOptions {
            model: root.to_string_lossy().into_owned(),
            adapter: None,
            compute: Precision::F32,
            weights: WeightFormat::F32,
            text: TextFiles::default(),
            format: Some(format),
            device: DeviceChoice::cpu(),
        }
    }

    fn model(format: ChatFormat) -> ChatModel {
        ChatModel::open(&options(format)).expect("a fixture")
    }

    fn settings(max_new_tokens: usize) -> ChatSettings {
        let params = SamplingParams { max_new_tokens, ..SamplingParams::default() };
        ChatSettings { params, stop: Vec::new(), seed: Seed(5) }
    }

    #[test]
    fn products_are_in_the_chosen_format() {
        for compute in [Precision::F32, Precision::Bf16] {
            let options = ChatOptions { compute, ..options(ChatFormat::Plain) };
            match options.device.multiplies_in(compute) {
                true => assert_eq!(ChatModel::open(&options).expect("a fixture").backend.model.compute(), compute),
                false => assert!(ChatModel::open(&options).is_err()),
            }
        }
    }

    #[test]
    fn a_turn_computes_what_is_new_and_answers_as_if_all_were() {
        let (mut one, settings) = (model(ChatFormat::Hh), settings(10));
        let mut messages = vec![Message::new("user", "The tea is")];
        let mut on_text = |_: &str| Flow::Continue;
        let mut computed = 0;
        for (turn, text) in ["warm.", "The cup is"].into_iter().enumerate() {
            let answer = one.answer(&messages, &settings, (turn as u64, 0), &mut on_text).expect("an answer");
            assert_eq!(
                answer,
                model(ChatFormat::Hh).answer(&messages, &settings, (turn as u64, 0), &mut on_text).expect("alone")
            );
            computed = one.prefilled();
            messages.extend([answer.message(), Message::new("user", text)]);
        }
        let ids = |one: &ChatModel| {
            one.backend.files.tokenizer.encode(&one.text_of(&messages).expect("a text"), true).expect("ids")
        };
        let (all, held) = (ids(&one), one.memory.as_ref().expect("a conversation"));
        let held = held.engine.ids(held.row).expect("it is kept").to_vec();
        let common = held.iter().zip(&all).take_while(|(held, id)| held == id).count();
        assert!(common * 2 > all.len(), "most of the conversation is there: {common} of {}", all.len());
        one.answer(&messages, &settings, (2, 0), &mut on_text).expect("an answer");
        // The last id of an answer is sampled but not computed.
        let drawn = usize::from(common == held.len());
        assert_eq!(one.prefilled() - computed, all.len() - common + drawn);
    }

    #[test]
    fn another_answer_computes_one_token_again() {
        let mut one = model(ChatFormat::Plain);
        let messages = [Message::new("user", "The tea is good and the cup is warm.")];
        let mut answer =
            |attempt| one.answer(&messages, &settings(9), (0, attempt), &mut |_| Flow::Continue).expect("one");
        assert_ne!(answer(0), answer(1));
        let ids = one.backend.files.tokenizer.encode(&messages[0].content, true).expect("ids");
        assert_eq!(one.prefilled(), ids.len() + 1);
    }
}
