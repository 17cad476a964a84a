//! Encoders: texts in, one hidden state per token out. Every token attends to its whole text.
//!
//! An encoder predicts no tokens and continues no text. It is not a [`Trunk`](super::Trunk), so that code which samples or predicts cannot
//! use one. It is used below the head of a [`Classifier`](super::Classifier). Batches are packed, as for all models.

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
use super::layers::{Layers, Linear, Linears, impl_layers, linears, select_rows};
use crate::error::{Error, Result};

/// Encoder of any family: texts in, hidden states out.
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

/// Interface of every family's encoder.
trait Body {
    /// Computes final hidden states, `[N, D]`.
    fn forward(&self, texts: &TextBatch) -> Tensor<2>;

    /// Computes final hidden states of the first token of each text, `[B, D]`. A family may skip computations that these do not depend on.
    fn first(&self, texts: &TextBatch) -> Tensor<2> {
        select_rows(self.forward(texts), &texts.first_indices())
    }

    /// Removes all layers except the first `layers`, and returns the previous number of layers.
    fn keep_layers(&mut self, layers: usize) -> usize;
}

/// Properties of an encoder that the rest of the program uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EncoderInfo {
    /// Vocabulary size, V.
    pub vocabulary: usize,
    /// Width of the hidden states, D.
    pub width: usize,
    /// Number of tokens of the longest text; `None` if there is no limit.
    pub max_positions: Option<usize>,
    /// Whether the encoder supports global tokens.
    pub has_global: bool,
    /// Number of token types; 1 if there are none.
    pub types: usize,
    /// Standard deviation of newly initialized weights.
    pub initializer_range: f32,
}

/// Evaluates `$of` for the model of any family in `$encoder`.
macro_rules! of_family {
    ($encoder:expr, $model:ident => $of:expr) => {
        match $encoder {
            Encoder::Bert($model) => $of,
            Encoder::DistilBert($model) => $of,
            Encoder::Albert($model) => $of,
            Encoder::ModernBert($model) => $of,
            Encoder::Deberta($model) => $of,
        }
    };
}

linears! {
    enum Encoder: Bert, DistilBert, Albert, ModernBert, Deberta;
}

impl Encoder {
    /// Builds the encoder that `dir` describes, with tensors from the builder.
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

    /// Loads the encoder in `dir`, with any head, for a model that is not trained: packs its linear layers in the format `weights`, one by
    /// one.
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

    /// Removes all layers except the first `layers`, so that [`forward`](Self::forward) returns the states after them (in ModernBERT, after
    /// its last norm). Returns the previous number of layers. If there are fewer than `layers`, all stay.
    pub fn keep_layers(&mut self, layers: usize) -> usize {
        of_family!(self, model => model.keep_layers(layers))
    }

    /// Builds a batch from `texts`. Only tokens that a text lists as global are global.
    ///
    /// # Panics
    /// When there is no text, or one cannot be read ([`Self::check`]).
    pub fn batch(&self, texts: &[Text<'_>]) -> TextBatch {
        TextBatch::new(texts, false)
    }

    /// Reads the sizes from the configuration of `dir`.
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

    /// Properties from the configuration.
    fn info(&self) -> &EncoderInfo {
        of_family!(self, model => &model.info)
    }

    /// Runtime settings.
    fn running(&self) -> &Running {
        of_family!(self, model => &model.running)
    }

    fn running_mut(&mut self) -> &mut Running {
        of_family!(self, model => &mut model.running)
    }

    /// Computes final hidden states of packed texts, `[N, D]`.
    pub fn forward(&self, texts: &TextBatch) -> Tensor<2> {
        of_family!(self, model => model.forward(texts))
    }

    /// Computes final hidden states of the first token of each text, `[B, D]`. BERT, RoBERTa, Longformer and DistilBERT skip the parts of
    /// the last block that these do not depend on. With twelve blocks, that saves a twelfth of a pass. With dropout nothing is skipped,
    /// because masks are drawn for all tokens.
    pub fn first(&self, texts: &TextBatch) -> Tensor<2> {
        match self.drops_out() && texts.dropout().is_some() {
            true => select_rows(self.forward(texts), &texts.first_indices()),
            false => of_family!(self, model => model.first(texts)),
        }
    }

    /// Whether the configured dropout is active.
    pub(super) fn drops_out(&self) -> bool {
        self.running().dropout
    }

    /// Rejects training weights that are quantized.
    ///
    /// # Errors
    /// When a linear layer is quantized.
    pub(crate) fn check_trainable(&self, dir: &ModelDir) -> Result<()> {
        match dir.quantization() {
            None => Ok(()),
            Some(format) => {
                let message =
                    format!("its linear layers are quantized ({}): such weights take no gradient", format.name());
                Err(Error::model(&dir.path, message).with_hint("start from the original model"))
            }
        }
    }

    /// Sizes V and D.
    pub fn dims(&self) -> (usize, usize) {
        let info = self.info();
        (info.vocabulary, info.width)
    }

    /// Number of tokens of the longest text; `None` if there is no limit. Tables of learned positions have a limit.
    pub fn max_positions(&self) -> Option<usize> {
        self.info().max_positions
    }

    /// Standard deviation of newly initialized weights.
    pub(super) fn initializer_range(&self) -> f32 {
        self.info().initializer_range
    }

    /// Checks that `text` can be read.
    ///
    /// # Errors
    /// When it has no ids or too many, an id outside of the vocabulary, a type that the encoder does not have, or a global token beyond its
    /// end.
    pub fn check(&self, text: &Text<'_>) -> Result<(), String> {
        let EncoderInfo { vocabulary, max_positions, types, .. } = *self.info();
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
            Some(kind) => Err(format!("type {kind}, but the model has only types below {types}")),
            None => Ok(()),
        }
    }

    /// Whether the encoder reads token types, which tell two texts apart.
    pub(super) fn reads_types(&self) -> bool {
        self.info().types > 1
    }

    /// Whether the encoder supports global tokens, which attend and are attended to beyond its windows.
    pub(super) fn has_global(&self) -> bool {
        self.info().has_global
    }

    /// Device of the weights.
    pub fn device(&self) -> Device {
        of_family!(self, model => model.embeddings.words()).device()
    }
}

impl_layers!(Encoder);
