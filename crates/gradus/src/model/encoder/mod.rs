//! Encoders: texts in, a hidden state for every token out, and every token sees its whole text.
//!
//! An encoder predicts no token and continues no text. It is no [`Trunk`](super::Trunk), so that nothing which samples or
//! predicts can stand on one: what stands on it is the head of a [`Classifier`](super::Classifier). Batches are packed as
//! those of all models are.

mod albert;
mod bert;
mod block;
mod deberta;
mod distilbert;
mod modernbert;
mod texts;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use gradus_kernels::WeightFormat;

pub use albert::AlbertModel;
pub use bert::BertModel;
pub(super) use block::Sizes;
pub use deberta::DebertaModel;
pub use distilbert::DistilBertModel;
pub use modernbert::ModernBertModel;
pub use texts::{Text, TextBatch};

use super::body::Running;
use super::build::Builder;
use super::checkpoint::Checkpoint;
use super::directory::ModelDir;
use super::family::EncoderFamily;
use super::layers::{Layers, Linear, impl_layers, select_rows};
use crate::error::{Error, Result};

/// Texts in, hidden states out.
#[derive(Module, Debug)]
pub enum Encoder {
    /// BERT, RoBERTa, XLM-RoBERTa and Longformer.
    Bert(BertModel),
    /// DistilBERT.
    DistilBert(DistilBertModel),
    /// ALBERT.
    Albert(AlbertModel),
    /// ModernBERT.
    ModernBert(ModernBertModel),
    /// DeBERTa v1, v2 and v3.
    Deberta(DebertaModel),
}

/// What every family's encoder does.
trait Body {
    /// Final hidden states, `[N, D]`.
    fn forward(&self, texts: &TextBatch) -> Tensor<2>;

    /// Those of the first token of each text, `[B, D]`: a family may leave out what they do not follow from.
    fn first(&self, texts: &TextBatch) -> Tensor<2> {
        select_rows(self.forward(texts), &texts.first_indices())
    }

    /// The table of words, `[V, …]`.
    fn words(&self) -> Tensor<2>;

    /// All linear layers with their names in the encoder, such as `encoder.layer.0.output.dense`.
    fn linears_mut(&mut self) -> Vec<(String, &mut Linear)>;

    /// Leaves all layers out but the first `layers`; how many there were.
    fn keep(&mut self, layers: usize) -> usize;

    /// What its configuration says of it.
    fn facts(&self) -> &Facts;

    /// How it is run.
    fn running(&self) -> Running;

    /// The same, to change it.
    fn running_mut(&mut self) -> &mut Running;
}

/// What the rest of the program asks about an encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Facts {
    /// Ids, V.
    pub vocabulary: usize,
    /// Width of the hidden states, D.
    pub width: usize,
    /// Tokens of the longest text, where there is a limit.
    pub max_positions: Option<usize>,
    /// Whether tokens may be global.
    pub has_global: bool,
    /// How many texts a token may be said to belong to: 1 where nothing is said.
    pub types: usize,
    /// The standard deviation of fresh weights.
    pub initializer_range: f32,
}

impl Encoder {
    /// The encoder that `dir` describes, with tensors from the builder.
    pub(super) fn build(b: &mut Builder<'_>, dir: &ModelDir) -> Result<Self> {
        let family = dir.encoder_family()?;
        dir.check_quantization()?;
        let b = b.enter(family.base_prefix().trim_end_matches('.'));
        let built = match family {
            EncoderFamily::Bert
            | EncoderFamily::Roberta
            | EncoderFamily::XlmRoberta
            | EncoderFamily::Camembert
            | EncoderFamily::Longformer => BertModel::build(b, dir, family).map(Self::Bert),
            EncoderFamily::DistilBert => DistilBertModel::build(b, dir).map(Self::DistilBert),
            EncoderFamily::Albert => AlbertModel::build(b, dir).map(Self::Albert),
            EncoderFamily::ModernBert => ModernBertModel::build(b, dir).map(Self::ModernBert),
            EncoderFamily::DebertaV1 | EncoderFamily::Deberta => DebertaModel::build(b, dir, family).map(Self::Deberta),
        };
        built.map_err(|problem| problem.of(dir))
    }

    /// The encoder in `dir`, whatever stands on it, for a model that is not trained: its linear layers are packed as `weights`
    /// says, one by one.
    ///
    /// # Errors
    /// When `dir` holds another kind of model, or weights are missing, misshapen, unexpected or damaged.
    pub fn load_packed(dir: &ModelDir, weights: WeightFormat, device: &Device) -> Result<Self> {
        let mut checkpoint = Checkpoint::open(&dir.path, dir.encoder_family()?.base_prefix())?;
        let mut model = Self::build(&mut Builder::new(&mut checkpoint, device).packing(Some(weights)), dir)?.valid();
        let family = dir.encoder_family()?;
        checkpoint.ignore_where(|name| family.is_of_a_head(name));
        checkpoint.finish()?;
        model.freeze_weights(weights);
        Ok(model)
    }

    /// Leaves all layers out but the first `layers`, so that [`forward`](Self::forward) gives the states after them (of
    /// ModernBERT under its last norm); how many there were. Fewer than `layers` all stay.
    pub fn keep(&mut self, layers: usize) -> usize {
        self.body_mut().keep(layers)
    }

    /// What is computed of `texts`, of which no token is global unless its text says so.
    ///
    /// # Panics
    /// When there is no text, or one cannot be read ([`Self::check`]).
    pub fn batch(&self, texts: &[Text<'_>]) -> TextBatch {
        TextBatch::new(texts, false)
    }

    /// The sizes that `dir`'s configuration describes.
    pub(super) fn sizes(dir: &ModelDir) -> Result<Sizes> {
        let family = dir.encoder_family()?;
        let found = match family {
            EncoderFamily::Bert
            | EncoderFamily::Roberta
            | EncoderFamily::XlmRoberta
            | EncoderFamily::Camembert
            | EncoderFamily::Longformer => bert::sizes(dir, family),
            EncoderFamily::DistilBert => distilbert::sizes(dir),
            EncoderFamily::Albert => albert::sizes(dir),
            EncoderFamily::ModernBert => modernbert::sizes(dir),
            EncoderFamily::DebertaV1 | EncoderFamily::Deberta => deberta::sizes(dir, family),
        };
        found.map_err(|problem| problem.of(dir))
    }

    fn body(&self) -> &dyn Body {
        match self {
            Self::Bert(model) => model,
            Self::DistilBert(model) => model,
            Self::Albert(model) => model,
            Self::ModernBert(model) => model,
            Self::Deberta(model) => model,
        }
    }

    fn body_mut(&mut self) -> &mut dyn Body {
        match self {
            Self::Bert(model) => model,
            Self::DistilBert(model) => model,
            Self::Albert(model) => model,
            Self::ModernBert(model) => model,
            Self::Deberta(model) => model,
        }
    }

    /// Final hidden states of packed texts, `[N, D]`.
    pub fn forward(&self, texts: &TextBatch) -> Tensor<2> {
        self.body().forward(texts)
    }

    /// Final hidden states of the first token of each text, `[B, D]`. BERT, RoBERTa, Longformer and DistilBERT compute nothing
    /// of the last block that these do not follow from, a twelfth of a pass through twelve, unless numbers are dropped: masks
    /// fall on all tokens.
    pub fn first(&self, texts: &TextBatch) -> Tensor<2> {
        match self.drops_out() && texts.dropout().is_some() {
            true => select_rows(self.forward(texts), &texts.first_indices()),
            false => self.body().first(texts),
        }
    }

    /// All linear layers with their names in the encoder.
    pub(crate) fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        self.body_mut().linears_mut()
    }

    /// Has the backward pass run the blocks again instead of keeping what they computed.
    pub fn set_recompute(&mut self, recompute: bool) {
        self.body_mut().running_mut().recompute = recompute;
    }

    /// Whether numbers are dropped as the configuration says.
    pub(super) fn drops_out(&self) -> bool {
        self.body().running().dropout
    }

    /// Refuses to train weights that are packed.
    ///
    /// # Errors
    /// When a linear layer is quantized.
    pub(crate) fn check_trainable(&self, dir: &ModelDir) -> Result<()> {
        match dir.quantization() {
            None => Ok(()),
            Some(format) => {
                let message =
                    format!("its linear layers are quantized ({}): such weights take no gradient", format.name());
                Err(Error::model(&dir.path, message).with_hint("start from the model that it was made of"))
            }
        }
    }

    /// Whether numbers are dropped as the configuration says, in passes that have masks.
    pub fn set_dropout(&mut self, dropout: bool) {
        self.body_mut().running_mut().dropout = dropout;
    }

    /// V and D.
    pub fn dims(&self) -> (usize, usize) {
        let facts = self.body().facts();
        (facts.vocabulary, facts.width)
    }

    /// Tokens of the longest text, where there is a limit: tables of learned positions end.
    pub fn max_positions(&self) -> Option<usize> {
        self.body().facts().max_positions
    }

    /// The standard deviation of fresh weights.
    pub(super) fn initializer_range(&self) -> f32 {
        self.body().facts().initializer_range
    }

    /// Why `text` cannot be read.
    ///
    /// # Errors
    /// When it has no ids or too many, an id that is not in the vocabulary, more types than the encoder knows, or a global
    /// token beyond its end.
    pub fn check(&self, text: &Text<'_>) -> Result<(), String> {
        let Facts { vocabulary, max_positions, types, .. } = *self.body().facts();
        let n = text.ids.len();
        if n == 0 {
            return Err("the text has no tokens".into());
        }
        if let Some(limit) = max_positions.filter(|&limit| limit < n) {
            return Err(format!("the text has {n} tokens, but the model has {limit} positions"));
        }
        if let Some(id) = text.ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(format!("id {id} is not in the vocabulary of {vocabulary} ids"));
        }
        if !text.types.is_empty() && text.types.len() != n {
            return Err(format!("{} types for {n} tokens", text.types.len()));
        }
        if let Some(token) = text.global.unwrap_or_default().iter().find(|&&token| token >= n) {
            return Err(format!("token {token} is global, but the text has {n} tokens"));
        }
        match text.types.iter().find(|&&kind| types > 1 && kind as usize >= types) {
            Some(kind) => Err(format!("type {kind}, but the model knows types below {types}")),
            None => Ok(()),
        }
    }

    /// Whether it is told which of two texts a token belongs to.
    pub(super) fn reads_types(&self) -> bool {
        self.body().facts().types > 1
    }

    /// Whether tokens may see beyond its windows and be seen from beyond them.
    pub(super) fn has_global(&self) -> bool {
        self.body().facts().has_global
    }

    /// The device of the weights.
    pub fn device(&self) -> Device {
        self.body().words().device()
    }
}

impl_layers!(Encoder);
