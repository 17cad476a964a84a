//! Reward models of either kind: a decoder that is read at its last token, or an encoder with a head of one output.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use gradus_kernels::{Precision, WeightFormat};

use super::adapter::{Adaptable, Attached, PeftConfig};
use super::batch::{Rows, Sequence};
use super::classifier::{Classifier, Reading, Scope, Task};
use super::directory::ModelDir;
use super::dropout::DropoutStream;
use super::encoder::Text;
use super::layers::Layers;
use super::position_budget::PositionBudget;
use super::reward_model::RewardModel;
use crate::error::Result;
use crate::rng::Stream;

/// A model that scores a text with one number.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "a run has a handful of models")]
pub enum Ranker {
    /// A decoder, with or without an encoder.
    Decoder(RewardModel),
    /// An encoder (BERT, RoBERTa, Longformer, …): a text classifier with one output.
    Encoder(Classifier),
}

impl Ranker {
    /// Loads the reward model in `dir` onto `device`.
    ///
    /// # Errors
    /// When `dir` holds another kind of model, or weights are missing, misshapen, unexpected or damaged.
    pub fn load(dir: &ModelDir, device: &Device) -> Result<Self> {
        Self::read(dir, None, device)
    }

    /// Like [`load`](Self::load), for a model that is not trained; see [`RewardModel::load_packed`].
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_packed(dir: &ModelDir, weights: WeightFormat, device: &Device) -> Result<Self> {
        Self::read(dir, Some(weights), device)
    }

    fn read(dir: &ModelDir, weights: Option<WeightFormat>, device: &Device) -> Result<Self> {
        if !dir.is_encoder() {
            return Ok(Self::Decoder(match weights {
                Some(weights) => RewardModel::load_packed(dir, weights, device)?,
                None => RewardModel::load(dir, device)?,
            }));
        }
        dir.check_ranker()?;
        Ok(Self::Encoder(match weights {
            Some(weights) => Classifier::load_packed(dir, weights, device)?,
            None => Classifier::load(dir, device)?,
        }))
    }

    /// Loads the model in `dir` for training. A model without a head gets one initialized from `head`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn start(dir: &ModelDir, packed: Option<WeightFormat>, head: &mut Stream, device: &Device) -> Result<Self> {
        match dir.is_encoder() {
            true if dir.ranks() => Self::read(dir, packed, device),
            true => Classifier::with_fresh_head(dir, ranking(), packed, head, device).map(Self::Encoder),
            false if dir.is_reward_model() => Self::read(dir, packed, device),
            false => RewardModel::from_causal(dir, packed, head, device).map(Self::Decoder),
        }
    }

    /// Sets the precision of the operands of products; see [`RewardModel::with_compute`].
    #[must_use]
    pub fn with_compute(self, compute: Precision) -> Self {
        match self {
            Self::Decoder(model) => Self::Decoder(model.with_compute(compute)),
            Self::Encoder(model) => Self::Encoder(model.with_compute(compute)),
        }
    }

    /// Removes gradients and packs the weights in the format `weights`.
    #[must_use]
    pub fn into_frozen(self, weights: WeightFormat) -> Self {
        match self {
            Self::Decoder(model) => Self::Decoder(model.into_frozen(weights)),
            Self::Encoder(model) => Self::Encoder(model.into_frozen(weights)),
        }
    }

    /// Limits of the lengths of texts.
    pub fn position_budget(&self) -> PositionBudget {
        match self {
            Self::Decoder(model) => model.trunk.position_budget().read_whole(),
            Self::Encoder(model) => PositionBudget::new(model.encoder.max_positions(), false),
        }
    }

    /// Whether an encoder reads the prompt and a decoder the completion.
    pub fn encoder_reads_prompt(&self) -> bool {
        matches!(self, Self::Decoder(model) if model.trunk.decoder_start().is_some())
    }

    /// Computes the reward of each sequence of `rows`, `[B]`, with gradient to the weights, in the order of the rows: of pairs, all first ones, then all second ones. Training passes draw
    /// dropout masks from `dropout`.
    pub fn rewards(&self, rows: &Rows<'_>, dropout: Option<DropoutStream>) -> Tensor<1> {
        match self {
            Self::Decoder(model) => model.rewards(&model.batch(rows).dropping(dropout)),
            Self::Encoder(model) => {
                let whole = |sequence: &Sequence<'_>| [sequence.source, sequence.target].concat();
                let texts: Vec<Vec<u32>> = rows.sequences().iter().map(whole).collect();
                let texts: Vec<Text<'_>> = texts.iter().map(|ids| Text::new(ids)).collect();
                model.logits(&model.batch(&texts).dropping(dropout)).reshape([-1])
            }
        }
    }
}

/// Task of a reward model's head on an encoder.
fn ranking() -> Task {
    Task { scope: Scope::Sequence, reading: Reading::Values, labels: vec!["LABEL_0".into()] }
}

impl Adaptable for Ranker {
    type Below = dyn Layers;

    fn adapted(&self) -> (&Self::Below, &Attached) {
        match self {
            Self::Decoder(model) => {
                let (below, attached) = model.adapted();
                (below, attached)
            }
            Self::Encoder(model) => {
                let (below, attached) = model.adapted();
                (below, attached)
            }
        }
    }

    fn adapted_mut(&mut self) -> (&mut Self::Below, &mut Attached) {
        match self {
            Self::Decoder(model) => {
                let (below, attached) = model.adapted_mut();
                (below, attached)
            }
            Self::Encoder(model) => {
                let (below, attached) = model.adapted_mut();
                (below, attached)
            }
        }
    }

    fn fitted(&self, config: PeftConfig) -> PeftConfig {
        match self {
            Self::Decoder(model) => model.fitted(config),
            Self::Encoder(model) => model.fitted(config),
        }
    }

    fn train_heads(&mut self) {
        match self {
            Self::Decoder(model) => model.train_heads(),
            Self::Encoder(model) => model.train_heads(),
        }
    }
}

impl ModelDir {
    /// Whether this is a reward model on an encoder: a text classifier with one numeric output.
    pub fn ranks(&self) -> bool {
        let gives_one =
            |task: Task| (task.scope, task.reading, task.labels.len()) == (Scope::Sequence, Reading::Values, 1);
        self.is_encoder() && Task::of(self).is_ok_and(gives_one)
    }

    /// Checks that this is a reward model on an encoder.
    fn check_ranker(&self) -> Result<()> {
        if self.ranks() {
            return Ok(());
        }
        let labels = Task::of(self)?.labels;
        let message = format!("a reward model outputs one number, but this classifier has {} labels", labels.len());
        Err(crate::Error::model(&self.path, message)
            .with_hint("train one with `gradus reward`; `reward: { classifier: … }` rewards one of its labels"))
    }
}
