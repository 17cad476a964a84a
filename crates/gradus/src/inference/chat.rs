//! Talking to a model: a conversation becomes a prompt, and the answer comes token by token.
//!
//! Answers are sampled by the same engine as rollouts: its rule for stopping is asked after every id, and that is where
//! the text streams from. Each answer draws from a stream of its own, so a conversation can be had again.

mod judge;
mod transcript;

pub use judge::ChatJudge;

use std::path::{Path, PathBuf};

use transcript::{HUMAN, hh, said};

use super::{check_formats, open_files};
use crate::data::Message;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::generate::{SamplingParams, StopReason, StopRule, generate};
use crate::model::{CausalLm, Compute, Weights};
use crate::pretrained::Pretrained;
use crate::rng::{Purpose, Seed};
use crate::text::{RenderOptions, StopStrings, continuation, cut_at_stop, think, without_thoughts};

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
    pub weights: Weights,
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

/// A model to talk to.
pub struct ChatModel {
    files: Pretrained,
    model: CausalLm,
    format: ChatFormat,
    directory: PathBuf,
}

impl ChatModel {
    /// Loads the model.
    ///
    /// # Errors
    /// When it cannot be found or read, is a reward model, or has no chat template although one is asked for.
    pub fn open(options: &ChatOptions) -> Result<Self> {
        check_formats(&options.device, Compute::F32, options.weights)?;
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
            (None, None) => ChatFormat::Hh,
        };
        let model = CausalLm::load(&files.dir, &options.device.device())?.into_frozen(options.weights);
        Ok(Self { files, model, format, directory })
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
    /// When the conversation has become too long, or a setting has no meaning.
    pub fn answer(
        &self,
        messages: &[Message],
        settings: &ChatSettings,
        (turn, attempt): (u64, u64),
        hear: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Answer> {
        let text = self.text_of(messages)?;
        let begins_inside = text.trim_end().ends_with(think::OPEN);
        // A template writes its own special tokens.
        let ids = self.files.tokenizer.encode(&text, self.format != ChatFormat::Template)?;
        let mut params = settings.params.clone();
        params.stop_ids.extend(self.files.stop_ids());
        self.check_room(ids.len(), &mut params)?;
        let mut stop = settings.stop.clone();
        if self.format == ChatFormat::Hh {
            stop.push(HUMAN.into());
        }
        let mut listener = Listener {
            files: &self.files,
            prompt_ids: &ids,
            strings: StopStrings::new(&self.files.tokenizer, stop.iter().cloned()),
            stop: &stop,
            heard: String::new(),
            hear,
            interrupted: false,
        };
        let stream = |_: usize| settings.seed.stream(Purpose::Chat, turn, attempt);
        let completion = generate(&self.model, &[&ids], 1, &params, &mut listener, &stream)?.remove(0);
        let whole = continuation(&self.files.tokenizer, &ids, &completion.ids)?;
        let text = cut_at_stop(&whole, &stop).to_owned();
        let end = match (listener.interrupted, completion.stop) {
            (true, _) => AnswerEnd::Interrupted,
            (_, StopReason::Length) => AnswerEnd::Length,
            _ => AnswerEnd::Stop,
        };
        // What was held back because it might have become a stop string.
        if let Some(rest) = text.strip_prefix(&listener.heard).filter(|rest| !rest.is_empty()) {
            (listener.hear)(rest);
        }
        Ok(Answer { text, begins_inside, tokens: completion.ids.len(), end })
    }

    /// Lowers the longest length to what the model's positions leave.
    fn check_room(&self, prompt: usize, params: &mut SamplingParams) -> Result<()> {
        let Some(limit) = self.model.max_positions() else { return Ok(()) };
        let room = limit.saturating_sub(prompt);
        if room == 0 {
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

/// Hands on the text of an answer as it grows.
struct Listener<'a> {
    files: &'a Pretrained,
    prompt_ids: &'a [u32],
    strings: StopStrings<'a>,
    stop: &'a [String],
    heard: String,
    hear: &'a mut dyn FnMut(&str) -> Flow,
    interrupted: bool,
}

impl StopRule for Listener<'_> {
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool {
        let ended = self.strings.stops(row, completion_ids);
        // Text that cannot be decoded yet comes with a later id.
        if let Ok(text) = continuation(&self.files.tokenizer, self.prompt_ids, completion_ids) {
            let certain = certain(cut_at_stop(&text, self.stop), self.stop);
            if let Some(new) = certain.strip_prefix(self.heard.as_str()).filter(|new| !new.is_empty()) {
                let flow = (self.hear)(new);
                self.heard += new;
                self.interrupted = flow == Flow::Stop;
            } else if (self.hear)("") == Flow::Stop {
                self.interrupted = true;
            }
        }
        ended || self.interrupted
    }
}

/// The part of an unfinished text that no later id changes: without half a character, or what may become a stop string.
fn certain<'t>(text: &'t str, stop: &[String]) -> &'t str {
    let text = text.trim_end_matches('\u{FFFD}');
    let half = |stop: &String| {
        let ends = stop.char_indices().map(|(at, _)| at).filter(|&at| at > 0);
        ends.filter(|&at| text.ends_with(&stop[..at])).max().unwrap_or(0)
    };
    &text[..text.len() - stop.iter().map(half).max().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_become_a_stop_string_is_held_back() {
        let stop = [HUMAN.to_owned(), "END".to_owned()];
        assert_eq!(certain("yes.\n\nHum", &stop), "yes.");
        assert_eq!(certain("yes.\n", &stop), "yes.");
        assert_eq!(certain("yes. E", &stop), "yes. ");
        assert_eq!(certain("yes. \u{FFFD}", &stop), "yes. ");
        assert_eq!(certain("yes", &[]), "yes");
    }
}
