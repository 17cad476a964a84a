//! A model directory together with its tokenizer and chat template.

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

/// Replacements for the tokenizer and chat template of a model. Models that are saved from it contain them too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextFiles {
    /// Tokenizer: a directory, a run or a hub name.
    pub tokenizer: Option<String>,
    /// Chat template: a file, or a built-in name (`chatml`, `gemma`, `llama2`, `llama3`, `mistral`, `phi3`, `qwen`,
    /// `zephyr`).
    pub chat_template: Option<PathBuf>,
}

/// A model directory together with its tokenizer and chat template.
#[derive(Debug, Clone)]
pub struct Pretrained {
    /// Configuration, weights, tokenizer files.
    pub dir: ModelDir,
    /// Tokenizer of the model.
    pub tokenizer: Tokenizer,
    /// Chat template of the model, or its replacement.
    pub template: Option<ChatTemplate>,
    /// Labels that a classifier gets from the training rows, once they were read.
    pub labels: OnceLock<LabelPlan>,
}

/// Labels that a classifier is trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelPlan {
    /// Task with its labels.
    pub task: Task,
    /// Factor of the loss of each label, `[K]`.
    pub weights_k: Vec<f32>,
    /// Name of the sentence splitter of the rows' texts, if all rows state the same.
    pub sentences: Option<String>,
}

impl Pretrained {
    /// Opens the model in `dir`; the files of `text` replace its own.
    ///
    /// # Errors
    /// If a file is missing or corrupt, or the vocabularies of model and tokenizer disagree.
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

    /// Returns the same, with `weights` as the format in which models are saved.
    #[must_use]
    pub fn saving(&self, weights: SavedWeights) -> Self {
        Self { dir: ModelDir { saved_weights: weights, ..self.dir.clone() }, ..self.clone() }
    }

    /// Returns the ids that end a completion: the model's, its tokenizer's, and the one that ends a turn of a built-in
    /// template.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids = stop_ids(&self.dir, &self.tokenizer);
        let turn_end = self.turn_end().and_then(|token| self.tokenizer.token_id(token));
        ids.extend(turn_end.filter(|id| !ids.contains(id)));
        ids
    }

    /// Returns the token that ends an assistant turn, if the chat template is a built-in one and that token is not the
    /// end of the text.
    pub fn turn_end(&self) -> Option<&'static str> {
        NamedTemplate::of_source(self.template.as_ref()?.source())?.turn_end
    }

    /// Returns the padding id that reward models store for other software. It never ends a text.
    pub fn pad_id(&self) -> u32 {
        pad_id(&self.dir, &self.tokenizer)
    }
}

/// A model that reads the ids of a tokenizer: a policy, a reference, a critic, a reward model.
#[derive(Debug, Clone, Copy)]
pub struct IdReader<'a> {
    /// Role of the model, such as `the reference`.
    pub role: &'a str,
    /// Name that the user gave.
    pub name: &'a str,
    /// Model directory.
    pub dir: &'a ModelDir,
    /// Dimensions of the model.
    pub shape: &'a ModelShape,
}

impl IdReader<'_> {
    /// Builds an error about this model.
    fn refuse(&self, what: &str) -> Error {
        Error::input(format!("{} `{}` {what}", self.role, self.name))
    }

    /// Rejects a model that assigns other tokens to the ids of `writer` (named `policy` by the user) or lacks some of
    /// them. With `samples`, the writer may produce any row of its table, including rows without a token.
    ///
    /// # Errors
    /// [`Error::Input`] with the first difference.
    pub fn check(&self, writer: &Pretrained, policy: &str, samples: bool) -> Result<()> {
        let own_shape = ModelShape::of(&writer.dir)?;
        if Tokenizer::is_in(self.dir.tokenizer_dir()) {
            let own = Tokenizer::of_model(self.dir.tokenizer_dir(), &self.dir.path)?;
            if let Some(id) = first_other(&writer.tokenizer, &own) {
                let token_of = |by: &Tokenizer| by.token(id).map_or("nothing".to_owned(), |token| format!("`{token}`"));
                let (to_it, to_policy) = (token_of(&own), token_of(&writer.tokenizer));
                return Err(self.refuse(&format!(
                    "has a different tokenizer than the policy `{policy}`: id {id} is {to_it} in its vocabulary and \
                     {to_policy} in that of the policy"
                )));
            }
        }
        if self.shape.has_encoder() != own_shape.has_encoder() {
            let has = |shape: &ModelShape| if shape.has_encoder() { "has an encoder" } else { "has none" };
            let what = format!("{}, but the policy `{policy}` {}", has(self.shape), has(&own_shape));
            return Err(self.refuse(&what));
        }
        if self.shape.has_encoder() && self.dir.decoder_start()? != writer.dir.decoder_start()? {
            return Err(self.refuse(&format!("begins its decoder with a different id than the policy `{policy}`")));
        }
        let needed = if samples { own_shape.vocabulary } else { writer.tokenizer.vocab_size() };
        let known = self.shape.vocabulary;
        if known < needed {
            return Err(self.refuse(&format!("has {known} ids, but the policy `{policy}` uses {needed}")));
        }
        Ok(())
    }

    /// Rejects a model with fewer positions than the longest sequence, which has `needed` tokens.
    ///
    /// # Errors
    /// [`Error::Input`] if it has too few positions.
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

/// Returns the first id of `one` that is a different token in `other`. `other` may have additional tokens, such as
/// padding.
fn first_other(one: &Tokenizer, other: &Tokenizer) -> Option<u32> {
    if one.directory() == other.directory() {
        return None;
    }
    (0..one.vocab_size() as u32).find(|&id| one.token(id) != other.token(id))
}

/// A model that can be trained, loaded from and saved to a directory.
pub trait Trainable: Adaptable {
    /// Loads the model in `dir`. `packed` is the format of linear layers that are not trained. A missing head is
    /// initialized from `head`.
    ///
    /// # Errors
    /// If a file is missing or corrupt.
    fn open(dir: &ModelDir, packed: Option<WeightFormat>, head: &mut Stream, device: &Device) -> Result<Self>;

    /// Writes the model to `directory` with the configuration and the tokenizer of `source`.
    ///
    /// # Errors
    /// If it cannot be written.
    fn save(&self, source: &Pretrained, directory: &Path) -> Result<()>;

    /// Returns the same model with `compute` as the format of operands in products.
    #[must_use]
    fn computing(self, compute: Precision) -> Self;

    /// Returns the language model, if this is one.
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

/// Returns the ids that end a completion: the model's and its tokenizer's.
pub(crate) fn stop_ids(dir: &ModelDir, tokenizer: &Tokenizer) -> Vec<u32> {
    let mut ids = dir.eos_ids();
    ids.extend(tokenizer.eos_id().filter(|id| !ids.contains(id)));
    ids
}

/// Returns the padding id that reward models store for other software. It never ends a text, because `transformers`
/// reads the reward at the last id that is not padding.
pub(crate) fn pad_id(dir: &ModelDir, tokenizer: &Tokenizer) -> u32 {
    let tokens = tokenizer.vocab_size() as u32;
    let named = [dir.pad_id(), tokenizer.pad_id()].into_iter().flatten();
    let special = (0..tokens).filter(|&id| tokenizer.is_special(id));
    let reserved = special.filter(|&id| tokenizer.token(id).is_some_and(|token| token.contains("pad")));
    // If no token is reserved, the last token is used: it is the rarest, and no text ends with it, because texts end
    // with eos.
    distinct(named.chain(reserved).chain((0..tokens).rev()), &stop_ids(dir, tokenizer))
}

/// Returns the first candidate that does not end a text; 0 if there is none.
fn distinct(mut candidates: impl Iterator<Item = u32>, ends: &[u32]) -> u32 {
    candidates.find(|id| !ends.contains(id)).unwrap_or(0)
}

/// Writes the padding token into the tokenizer configuration of the reward model in `directory`, if the tokenizer names
/// another.
///
/// # Errors
/// If the file is broken or cannot be written.
pub(crate) fn name_padding(directory: &Path, tokenizer: &Tokenizer, pad_id: u32) -> Result<()> {
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
