//! A model's directory with what turns text into ids.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use burn::tensor::Device;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::model::adapter::Adaptable;
use crate::model::{
    CausalLm, Classifier, ModelDir, ModelShape, Precision, Ranker, RewardModel, SavedWeights, Task, WeightFormat,
    resolve, save_causal, save_classifier, save_reward_model,
};
use crate::rng::Stream;
use crate::text::{ChatTemplate, NamedTemplate, Tokenizer};

/// What replaces the files beside a model that turn text into ids and back. Models that are written from it get them too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextFiles {
    /// The tokenizer: a directory, a run or a hub name.
    pub tokenizer: Option<String>,
    /// The chat template: a file, or the name of one (`chatml`, `gemma`, `llama2`, `llama3`, `mistral`, `phi3`, `qwen`,
    /// `zephyr`).
    pub chat_template: Option<PathBuf>,
}

/// A model's directory with what turns text into ids.
#[derive(Debug, Clone)]
pub struct Pretrained {
    /// Configuration, weights, tokenizer files.
    pub dir: ModelDir,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, or the one that replaces it.
    pub template: Option<ChatTemplate>,
    /// What the training rows say of a classifier's labels, once they were read.
    pub labels: OnceLock<LabelPlan>,
}

/// What a classifier learns to say.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelPlan {
    /// Of what, and which labels.
    pub task: Task,
    /// What the loss of each label is multiplied by, `[K]`.
    pub weights_k: Vec<f32>,
    /// What cut the rows' texts into sentences, where all of them say so.
    pub sentences: Option<String>,
}

impl Pretrained {
    /// What lies in `dir`, with the files of `text` in the place of its own.
    ///
    /// # Errors
    /// When a file is missing or corrupt, or the vocabularies of model and tokenizer disagree.
    pub fn of(mut dir: ModelDir, text: &TextFiles) -> Result<Self> {
        if let Some(name) = &text.tokenizer {
            dir.tokenizer = Some(resolve(name, &mut |_, _, _| {})?);
        }
        let tokenizer = Tokenizer::of_model(dir.tokenizer_dir(), &dir.path)?;
        dir.check_vocabulary(tokenizer.vocab_size())?;
        let template = match &text.chat_template {
            Some(choice) => {
                let template = ChatTemplate::chosen(choice, &tokenizer)?;
                dir.chat_template = Some(template.source().to_owned());
                Some(template)
            }
            None => ChatTemplate::from_dir(dir.tokenizer_dir(), &tokenizer)?,
        };
        Ok(Self { dir, tokenizer, template, labels: OnceLock::new() })
    }

    /// The same, from which models are written with weights as `weights` says.
    #[must_use]
    pub fn saving(&self, weights: SavedWeights) -> Self {
        Self { dir: ModelDir { saved_weights: weights, ..self.dir.clone() }, ..self.clone() }
    }

    /// The ids that end a completion: the model's, its tokenizer's, and the one that ends a turn in a template with a name.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids = stop_ids(&self.dir, &self.tokenizer);
        let turn_end = self.turn_end().and_then(|token| self.tokenizer.token_id(token));
        ids.extend(turn_end.filter(|id| !ids.contains(id)));
        ids
    }

    /// What ends a turn of the assistant, where the chat template is one with a name and that is not the end of the text.
    pub fn turn_end(&self) -> Option<&'static str> {
        NamedTemplate::of_source(self.template.as_ref()?.source())?.turn_end
    }

    /// The id that fills gaps in batches elsewhere; see [`pad_id`].
    pub fn pad_id(&self) -> u32 {
        pad_id(&self.dir, &self.tokenizer)
    }
}

/// Another model that reads the ids which one writes: a reference, a critic.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    /// Its part, such as `the reference`.
    pub part: &'a str,
    /// What the user calls it.
    pub name: &'a str,
    /// Its files.
    pub dir: &'a ModelDir,
    /// Its sizes.
    pub shape: &'a ModelShape,
}

impl Reader<'_> {
    /// What this model is said to be wrong about, as an error.
    fn refuse(&self, what: &str) -> Error {
        Error::input(format!("{} `{}` {what}", self.part, self.name))
    }

    /// Refuses a model that means something else by the ids of `writer`, which the user calls `policy`, or that does not
    /// know all of them. Where `samples`, any row of the writer's table may be written, also one that no token has.
    ///
    /// # Errors
    /// [`Error::Input`] with the first difference.
    pub fn check(&self, writer: &Pretrained, policy: &str, samples: bool) -> Result<()> {
        let own_shape = ModelShape::of(&writer.dir)?;
        if Tokenizer::is_in(self.dir.tokenizer_dir()) {
            let own = Tokenizer::of_model(self.dir.tokenizer_dir(), &self.dir.path)?;
            if let Some(id) = first_other(&writer.tokenizer, &own) {
                let said = |by: &Tokenizer| by.token(id).map_or("nothing".to_owned(), |token| format!("`{token}`"));
                let (to_it, to_policy) = (said(&own), said(&writer.tokenizer));
                return Err(self.refuse(&format!(
                    "has another tokenizer than the policy `{policy}`: id {id} is {to_it} to it and {to_policy} to the policy"
                )));
            }
        }
        if self.shape.has_encoder() != own_shape.has_encoder() {
            let has = |shape: &ModelShape| if shape.has_encoder() { "has an encoder" } else { "has none" };
            let what = format!("{}, but the policy `{policy}` {}", has(self.shape), has(&own_shape));
            return Err(self.refuse(&what));
        }
        if self.shape.has_encoder() && self.dir.decoder_start()? != writer.dir.decoder_start()? {
            return Err(self.refuse(&format!("begins its decoder with another id than the policy `{policy}`")));
        }
        let needed = if samples { own_shape.vocabulary } else { writer.tokenizer.vocab_size() };
        let known = self.shape.vocabulary;
        if known < needed {
            return Err(self.refuse(&format!("knows {known} ids, but the policy `{policy}` uses {needed}")));
        }
        Ok(())
    }

    /// Refuses a model that is made for shorter sequences than the longest one, which has `needed` tokens.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub fn check_positions(&self, needed: usize) -> Result<()> {
        match self.shape.made_for {
            Some(most) if most < needed => {
                Err(self
                    .refuse(&format!("has {most} positions, but the longest sequence of this run has {needed} tokens")))
            }
            _ => Ok(()),
        }
    }
}

/// The first id of `one` that is not the same token in the other. That one may have more: a token for padding.
fn first_other(one: &Tokenizer, other: &Tokenizer) -> Option<u32> {
    if one.directory() == other.directory() {
        return None;
    }
    (0..one.vocab_size() as u32).find(|&id| one.token(id) != other.token(id))
}

/// A model that can be trained: a directory holds it before and after.
pub trait Trainable: Adaptable {
    /// Reads the model in `dir`; `packed` says how its linear layers are held where they are not trained. A head that is
    /// not there is drawn from `head`.
    ///
    /// # Errors
    /// When a file is missing or corrupt.
    fn open(dir: &ModelDir, packed: Option<WeightFormat>, head: &mut Stream, device: &Device) -> Result<Self>;

    /// Writes it into `directory` with the configuration and the tokenizer of `source`.
    ///
    /// # Errors
    /// When it cannot be written.
    fn save(&self, source: &Pretrained, directory: &Path) -> Result<()>;

    /// The same model with the operands of its products held as `compute` says.
    #[must_use]
    fn computing(self, compute: Precision) -> Self;

    /// The language model that it is, if it is one.
    fn language(&self) -> Option<&CausalLm> {
        None
    }
}

impl Trainable for CausalLm {
    fn open(dir: &ModelDir, packed: Option<WeightFormat>, _head: &mut Stream, device: &Device) -> Result<Self> {
        match packed {
            Some(weights) => Self::load_packed(dir, weights, device),
            None => Self::load(dir, device),
        }
    }

    fn save(&self, source: &Pretrained, directory: &Path) -> Result<()> {
        save_causal(self, &source.dir, directory)
    }

    fn computing(self, compute: Precision) -> Self {
        self.with_compute(compute)
    }

    fn language(&self) -> Option<&CausalLm> {
        Some(self)
    }
}

impl Trainable for Classifier {
    fn open(dir: &ModelDir, packed: Option<WeightFormat>, head: &mut Stream, device: &Device) -> Result<Self> {
        match (&dir.head, packed) {
            (Some(task), _) if !Task::of(dir).is_ok_and(|own| own == *task) => {
                Self::with_fresh_head(dir, task.clone(), packed, head, device)
            }
            (_, Some(weights)) => Self::load_packed(dir, weights, device),
            (_, None) => Self::load(dir, device),
        }
    }

    fn save(&self, source: &Pretrained, directory: &Path) -> Result<()> {
        save_classifier(self, &source.dir, directory)
    }

    fn computing(self, compute: Precision) -> Self {
        self.with_compute(compute)
    }
}

impl Trainable for Ranker {
    fn open(dir: &ModelDir, packed: Option<WeightFormat>, head: &mut Stream, device: &Device) -> Result<Self> {
        Self::start(dir, packed, head, device)
    }

    fn save(&self, source: &Pretrained, directory: &Path) -> Result<()> {
        match self {
            Self::Decoder(model) => Trainable::save(model, source, directory),
            Self::Encoder(model) => Trainable::save(model, source, directory),
        }
    }

    fn computing(self, compute: Precision) -> Self {
        self.with_compute(compute)
    }
}

impl Trainable for RewardModel {
    fn open(dir: &ModelDir, packed: Option<WeightFormat>, head: &mut Stream, device: &Device) -> Result<Self> {
        match packed {
            _ if !dir.is_reward_model() => Self::from_causal(dir, packed, head, device),
            Some(weights) => Self::load_packed(dir, weights, device),
            None => Self::load(dir, device),
        }
    }

    fn save(&self, source: &Pretrained, directory: &Path) -> Result<()> {
        let pad_id = source.pad_id();
        save_reward_model(self, &source.dir, directory, pad_id)?;
        name_padding(directory, &source.tokenizer, pad_id)
    }

    fn computing(self, compute: Precision) -> Self {
        self.with_compute(compute)
    }
}

/// The ids that end a completion: the model's, and its tokenizer's.
pub fn stop_ids(dir: &ModelDir, tokenizer: &Tokenizer) -> Vec<u32> {
    let mut ids = dir.eos_ids();
    ids.extend(tokenizer.eos_id().filter(|id| !ids.contains(id)));
    ids
}

/// The id that fills gaps in batches elsewhere, written into the configuration of reward models: never one that ends a
/// text, because `transformers` reads the reward at the last id that is no padding.
pub fn pad_id(dir: &ModelDir, tokenizer: &Tokenizer) -> u32 {
    let tokens = tokenizer.vocab_size() as u32;
    let named = [dir.pad_id(), tokenizer.pad_id()].into_iter().flatten();
    let special = (0..tokens).filter(|&id| tokenizer.is_special(id));
    let reserved = special.filter(|&id| tokenizer.token(id).is_some_and(|token| token.contains("pad")));
    // Where nothing is reserved, the last token is the rarest, and no text ends with it: texts end with eos.
    distinct(named.chain(reserved).chain((0..tokens).rev()), &stop_ids(dir, tokenizer))
}

/// The first candidate that ends no text; 0 where every one does.
fn distinct(mut candidates: impl Iterator<Item = u32>, ends: &[u32]) -> u32 {
    candidates.find(|id| !ends.contains(id)).unwrap_or(0)
}

/// Writes into `directory`, a reward model's, which token is the padding, where its tokenizer names another.
///
/// # Errors
/// When the file is broken or cannot be written.
pub fn name_padding(directory: &Path, tokenizer: &Tokenizer, pad_id: u32) -> Result<()> {
    let path = directory.join("tokenizer_config.json");
    if tokenizer.pad_id() == Some(pad_id) || !path.is_file() {
        return Ok(());
    }
    let text = std::fs::read(&path).map_err(|source| Error::io(&path, source))?;
    let mut config: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|error| Error::model(&path, format!("broken JSON: {error}")))?;
    config.insert("pad_token".into(), tokenizer.token(pad_id).into());
    let text = serde_json::to_string_pretty(&config).expect("JSON values serialize") + "\n";
    std::fs::write(&path, text).map_err(|source| Error::io(&path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_padding_of_a_reward_model_ends_no_text() {
        assert_eq!(distinct([0, 1].into_iter(), &[2]), 0, "its own padding is kept");
        assert_eq!(distinct([50256, 50256, 50255].into_iter(), &[50256]), 50255, "padding that is the end is replaced");
        assert_eq!(distinct([2].into_iter(), &[2]), 0);
    }
}
