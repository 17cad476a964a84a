//! Talking to a model: a conversation becomes a prompt, and the answer comes token by token.
//!
//! Answers are sampled by the same engine as rollouts: its rule for stopping is asked after every id, and that is where
//! the text streams from. Each answer draws from a stream of its own, so a conversation can be had again. The engine
//! keeps the conversation: the next turn computes only what differs from what it holds.

mod answer;
mod judge;
mod transcript;

pub use answer::{Answer, AnswerEnd, Flow};
pub use judge::ChatJudge;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use answer::{Listener, UnderWay};
use transcript::{HUMAN, hh, said};

use super::{check_formats, open_files};
use crate::data::Message;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::generate::{Engine, Event, Request, SamplingParams, Turn};
use crate::model::{CausalLm, Precision, WeightFormat};
use crate::pretrained::Pretrained;
use crate::rng::{Purpose, Seed, Stream};
use crate::text::{RenderOptions, think};

/// How a conversation is written as one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatFormat {
    /// As the model's chat template says.
    Template,
    /// `\n\nHuman: …\n\nAssistant:`, as in Anthropic's HH-RLHF.
    Hh,
    /// The texts as they are, one after another: for models that only continue.
    Plain,
}

impl std::str::FromStr for ChatFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "template" => Ok(Self::Template),
            "hh" => Ok(Self::Hh),
            "plain" => Ok(Self::Plain),
            _ => Err("one of `template`, `hh`, `plain` is needed".into()),
        }
    }
}

/// Which model to talk to, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// A model or adapter directory, a checkpoint, a run directory (its `model/`, `best/` or newest checkpoint), or a hub
    /// name.
    pub model: String,
    /// An adapter on it.
    pub adapter: Option<String>,
    /// How the weights are held.
    pub weights: WeightFormat,
    /// A chat template file that replaces the model's own.
    pub chat_template: Option<PathBuf>,
    /// How conversations are written. Default: by the template where there is one, else as in HH-RLHF.
    pub format: Option<ChatFormat>,
    /// Where to compute.
    pub device: DeviceChoice,
}

/// How answers are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatSettings {
    /// The distribution and the limits; the model's own stop ids are added.
    pub params: SamplingParams,
    /// Strings that end an answer, besides those of the format.
    pub stop: Vec<String>,
    /// The seed of every random stream.
    pub seed: Seed,
}

/// A model to talk to.
pub struct ChatModel {
    files: Pretrained,
    model: CausalLm,
    format: ChatFormat,
    directory: PathBuf,
    /// Holds the conversation so far, once there is one.
    memory: Option<Memory>,
    /// The answer that was begun.
    under_way: Option<UnderWay>,
}

/// The conversation in the cache of an engine.
struct Memory {
    engine: Engine<'static>,
    row: usize,
}

/// Tokens that room is made for at first.
const CAPACITY: usize = 1024;

impl ChatModel {
    /// Loads the model.
    ///
    /// # Errors
    /// When it cannot be found or read, is a reward model, or has no chat template although one is asked for.
    pub fn open(options: &ChatOptions) -> Result<Self> {
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
                return Err(Error::model(&files.dir.path, "the model has no chat template")
                    .with_hint("give one as `--chat-template FILE`, or choose `--format hh` or `--format plain`"));
            }
            (Some(format), _) => format,
            (None, Some(_)) => ChatFormat::Template,
            // What an encoder reads is no beginning of a dialogue that would go on.
            (None, None) if files.dir.has_encoder()? => ChatFormat::Plain,
            (None, None) => ChatFormat::Hh,
        };
        let model = CausalLm::load(&files.dir, &options.device.device())?.into_frozen(options.weights);
        Ok(Self { files, model, format, directory, memory: None, under_way: None })
    }

    /// The directory the model came from.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How conversations are written.
    pub fn format(&self) -> ChatFormat {
        self.format
    }

    /// The conversation as the model reads it, up to where its answer begins.
    ///
    /// # Errors
    /// When the template refuses the conversation.
    pub fn text_of(&self, messages: &[Message]) -> Result<String> {
        match (self.format, &self.files.template) {
            (ChatFormat::Template, Some(template)) => {
                let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
                Ok(template.render(messages, &options)?.text)
            }
            (ChatFormat::Plain, _) => Ok(said(messages).map(|(_, text)| text).collect()),
            _ => Ok(hh(messages)),
        }
    }

    /// Answers the conversation. `turn` and `attempt` choose the random stream; `hear` gets every piece of the answer as
    /// soon as it is certain, and says whether to go on.
    ///
    /// # Errors
    /// As [`begin`](Self::begin) and [`step`](Self::step).
    pub fn answer(
        &mut self,
        messages: &[Message],
        settings: &ChatSettings,
        of: (u64, u64),
        hear: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Answer> {
        self.begin(messages, settings, of)?;
        loop {
            if let Some(answer) = self.step(hear)? {
                return Ok(answer);
            }
        }
    }

    /// Begins an answer to the conversation; [`step`](Self::step) goes on with it. What the conversation has in common
    /// with the one before is not computed again.
    ///
    /// # Errors
    /// When the conversation has become too long, or a setting has no meaning.
    pub fn begin(&mut self, messages: &[Message], settings: &ChatSettings, (turn, attempt): (u64, u64)) -> Result<()> {
        let text = self.text_of(messages)?;
        let begins_inside = text.trim_end().ends_with(think::OPEN);
        // A template writes its own special tokens, but for those that an encoder reads around every text.
        let ids = self.files.tokenizer.encode(&text, self.has_encoder() || self.format != ChatFormat::Template)?;
        let mut params = settings.params.clone().forcing(self.files.dir.forced_ids());
        params.stop_ids.extend(self.files.stop_ids());
        self.check_room(ids.len(), &mut params)?;
        let mut stop = settings.stop.clone();
        if self.format == ChatFormat::Hh {
            stop.push(HUMAN.into());
        }
        self.go_on(&ids, Arc::new(params), settings.seed.stream(Purpose::Chat, turn, attempt))?;
        // A decoder begins anew: its answer continues nothing.
        let continued = if self.has_encoder() { Vec::new() } else { ids };
        self.under_way = Some(UnderWay::new(continued, stop, begins_inside));
        Ok(())
    }

    /// One more token of the answer that was begun, or, after the last one, the answer.
    ///
    /// # Errors
    /// When the answer is no text, or none was begun.
    pub fn step(&mut self, hear: &mut dyn FnMut(&str) -> Flow) -> Result<Option<Answer>> {
        let (Some(memory), Some(answer)) = (&mut self.memory, &mut self.under_way) else {
            return Err(Error::input("no answer was begun"));
        };
        let events = memory.engine.step(&mut Listener::new(&self.files.tokenizer, answer, hear));
        let ended = events.into_iter().find_map(|event| match event {
            Event::Finished { completion, .. } => Some(completion),
            Event::Token { .. } => None,
        });
        let (Some(completion), Some(answer)) = (ended, &self.under_way) else { return Ok(None) };
        let answer = answer.end(&self.files.tokenizer, &completion, hear)?;
        self.under_way = None;
        Ok(Some(answer))
    }

    /// Tokens of conversations that were computed so far, answers aside.
    pub fn prefilled(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.engine.prefilled())
    }

    /// Has the engine continue `ids`, from where they differ from what it holds.
    fn go_on(&mut self, ids: &[u32], params: Arc<SamplingParams>, stream: Stream) -> Result<()> {
        // An encoder reads every conversation as a whole.
        let has_encoder = self.has_encoder();
        if let Some(Memory { engine, row }) = &mut self.memory {
            let held = engine.ids(*row).unwrap_or_default();
            // Something must be left to compute: the last id gives the first logits.
            let common = held.iter().zip(ids).take_while(|(held, id)| held == id).count().min(ids.len() - 1);
            if !has_encoder && engine.rewind(*row, common) {
                return engine.extend(*row, Turn { ids: ids[common..].to_vec(), params, stream });
            }
            engine.cancel(*row);
        }
        let new = || Memory { engine: Engine::new(&self.model, 1, CAPACITY), row: 0 };
        let memory = self.memory.get_or_insert_with(new);
        let request = Request { prompt: ids.to_vec(), params, streams: vec![stream], is_kept: true };
        memory.row = memory.engine.submit(request)?.start;
        Ok(())
    }

    fn has_encoder(&self) -> bool {
        self.model.trunk.decoder_start().is_some()
    }

    /// Lowers the longest length to what the model's positions leave.
    fn check_room(&self, prompt: usize, params: &mut SamplingParams) -> Result<()> {
        let Some(room) = self.model.room().after(prompt) else { return Ok(()) };
        if room == 0 {
            let limit = self.model.max_positions().unwrap_or_default();
            return Err(Error::input(format!(
                "the conversation has {prompt} tokens, but the model has {limit} positions"
            ))
            .with_hint("`/reset` begins a new one"));
        }
        params.max_new_tokens = params.max_new_tokens.min(room);
        Ok(())
    }
}

/// The model that a path stands for: of a run, its final one, else its best, else its newest checkpoint.
fn model_of(path: &Path) -> Result<PathBuf> {
    let is_model = |path: &Path| path.join("config.json").is_file() || path.join("adapter_config.json").is_file();
    if !path.is_dir() || is_model(path) {
        return Ok(path.to_owned());
    }
    let Ok(run) = crate::run::RunDir::open(path) else { return Ok(path.to_owned()) };
    let newest = run.checkpoint_steps()?.last().map(|&step| run.checkpoint(step));
    let found = [Some(run.model()), Some(run.best()), newest].into_iter().flatten().find(|path| is_model(path));
    found.ok_or_else(|| {
        Error::model(path, "a run without a model: it has neither `model/` nor `best/` nor a checkpoint")
            .with_hint("go on with it until its first checkpoint")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(format: ChatFormat) -> ChatModel {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
        let options = ChatOptions {
            model: root.to_string_lossy().into_owned(),
            adapter: None,
            weights: WeightFormat::F32,
            chat_template: None,
            format: Some(format),
            device: DeviceChoice::cpu(),
        };
        ChatModel::open(&options).expect("a fixture")
    }

    fn settings(max_new_tokens: usize) -> ChatSettings {
        let params = SamplingParams { max_new_tokens, ..SamplingParams::default() };
        ChatSettings { params, stop: Vec::new(), seed: Seed(5) }
    }

    #[test]
    fn a_turn_computes_what_is_new_and_answers_as_if_all_were() {
        let (mut one, settings) = (model(ChatFormat::Hh), settings(10));
        let mut messages = vec![Message::new("user", "The tea is")];
        let mut go_on = |_: &str| Flow::GoOn;
        let mut computed = 0;
        for (turn, said) in ["warm.", "The cup is"].into_iter().enumerate() {
            let answer = one.answer(&messages, &settings, (turn as u64, 0), &mut go_on).expect("an answer");
            assert_eq!(
                answer,
                model(ChatFormat::Hh).answer(&messages, &settings, (turn as u64, 0), &mut go_on).expect("alone")
            );
            computed = one.prefilled();
            messages.extend([answer.message(), Message::new("user", said)]);
        }
        let ids =
            |one: &ChatModel| one.files.tokenizer.encode(&one.text_of(&messages).expect("a text"), true).expect("ids");
        let (all, held) = (ids(&one), one.memory.as_ref().expect("a conversation"));
        let held = held.engine.ids(held.row).expect("it is kept").to_vec();
        let common = held.iter().zip(&all).take_while(|(held, id)| held == id).count();
        assert!(common * 2 > all.len(), "most of the conversation is there: {common} of {}", all.len());
        one.answer(&messages, &settings, (2, 0), &mut go_on).expect("an answer");
        // The last id of an answer is drawn, not computed.
        let drawn = usize::from(common == held.len());
        assert_eq!(one.prefilled() - computed, all.len() - common + drawn);
    }

    #[test]
    fn another_answer_computes_one_token_again() {
        let mut one = model(ChatFormat::Plain);
        let messages = [Message::new("user", "The tea is good and the cup is warm.")];
        let mut answer = |attempt| one.answer(&messages, &settings(9), (0, attempt), &mut |_| Flow::GoOn).expect("one");
        assert_ne!(answer(0), answer(1));
        let ids = one.files.tokenizer.encode(&messages[0].content, true).expect("ids");
        assert_eq!(one.prefilled(), ids.len() + 1);
    }
}
