//! Trunk of a model: all layers below the head, for any family.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use gradus_kernels::{FrozenWeight, Quantization, WeightFormat};

use super::bart::{BartConfig, BartKind, BartModel};
use super::batch::{Batch, Beginnings, Input, Rows};
use super::body::{Body, Running};
use super::build::Builder;
use super::context::{Context, KvCache};
use super::decoder::Decoder;
use super::directory::ModelDir;
use super::family::Family;
use super::gpt_neox::{self, GptNeoxConfig, GptNeoxModel};
use super::gpt2::{Gpt2Config, Gpt2Model};
use super::layers::{Linear, Linears, impl_layers, linears};
use super::lora::Lora;
use super::noise::EmbeddingNoise;
use super::opt::{OptConfig, OptModel};
use super::position_budget::PositionBudget;
use super::t5::{T5Config, T5Info, T5Model};
use crate::error::{Error, Result};

/// Trunk of a model: token ids in, hidden states out.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "handles of tensors; a model has one")]
pub enum Trunk {
    /// GPT-2.
    Gpt2(Gpt2Model),
    /// GPT-NeoX.
    GptNeox(GptNeoxModel),
    /// OPT.
    Opt(OptModel),
    /// Llama and similar models.
    Decoder(Decoder),
    /// T5 and mT5.
    T5(T5Model),
    /// BART and Blenderbot.
    Bart(BartModel),
}

/// Evaluates `$of` for the model of any family in `$trunk`.
macro_rules! of_family {
    ($trunk:expr, $model:ident => $of:expr) => {
        match $trunk {
            Trunk::Gpt2($model) => $of,
            Trunk::GptNeox($model) => $of,
            Trunk::Opt($model) => $of,
            Trunk::Decoder($model) => $of,
            Trunk::T5($model) => $of,
            Trunk::Bart($model) => $of,
        }
    };
}

linears! {
    enum Trunk: Gpt2, GptNeox, Opt, Decoder, T5, Bart;
}

impl Trunk {
    /// Builds the trunk that `dir` describes, with tensors from the builder.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub(crate) fn build(b: &mut Builder<'_>, dir: &ModelDir) -> Result<Self> {
        let family = dir.family()?;
        let refuse = |message: String| Error::model(dir.path.join("config.json"), message);
        dir.check_quantization()?;
        let b = b.enter(family.base_prefix().trim_end_matches('.'));
        let mut trunk = match family {
            Family::Gpt2 => {
                let config: Gpt2Config = dir.read_config()?;
                Self::Gpt2(Gpt2Model::build(b, config).map_err(refuse)?)
            }
            Family::GptNeox => {
                let config: GptNeoxConfig = dir.read_config()?;
                let rope = gpt_neox::angles(&config, &dir.config).map_err(refuse)?;
                Self::GptNeox(GptNeoxModel::build(b, config, rope).map_err(refuse)?)
            }
            Family::Opt => {
                let config: OptConfig = dir.read_config()?;
                Self::Opt(OptModel::build(b, config).map_err(refuse)?)
            }
            Family::T5 | Family::Mt5 => {
                let config: T5Config = dir.read_config()?;
                config.check().map_err(refuse)?;
                let activation = config.activation().map_err(refuse)?;
                // mT5 never divides its states.
                let scales = family == Family::T5 && config.scale_decoder_outputs.unwrap_or(config.tie_word_embeddings);
                let head_scale = if scales { (config.d_model as f32).powf(-0.5) } else { 1.0 };
                let info = T5Info { start: dir.decoder_start()?, head_scale, activation };
                Self::T5(T5Model::build(b, config, info))
            }
            Family::Bart => Self::bart(b, dir, BartKind::Bart)?,
            Family::Blenderbot => Self::bart(b, dir, BartKind::Blenderbot)?,
            Family::BlenderbotSmall => Self::bart(b, dir, BartKind::BlenderbotSmall)?,
            Family::Decoder(of) => {
                let (config, structure) = of.read(&dir.config).map_err(refuse)?;
                Self::Decoder(Decoder::build(b, config, structure))
            }
        };
        if family.has_encoder() {
            trunk.running_mut().sampling_start = Some(dir.sampling_start()?);
        }
        Ok(trunk)
    }

    fn bart(b: Builder<'_>, dir: &ModelDir, kind: BartKind) -> Result<Self> {
        let config: BartConfig = dir.read_config()?;
        let built = BartModel::build(b, config, kind, dir.decoder_start()?);
        built.map(Self::Bart).map_err(|message| Error::model(dir.path.join("config.json"), message))
    }

    fn body(&self) -> &dyn Body {
        of_family!(self, model => model)
    }

    /// Runtime settings.
    fn running(&self) -> &Running {
        of_family!(self, model => &model.running)
    }

    fn running_mut(&mut self) -> &mut Running {
        of_family!(self, model => &mut model.running)
    }

    /// Computes final hidden states, `[N, D]`.
    pub fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        self.body().forward(context)
    }

    /// Returns the embedding table, `[V, D]`: the LM head of tied models.
    pub fn embedding(&self) -> Tensor<2> {
        self.body().embedding()
    }

    /// Whether passes with masks use dropout, of the model's configuration or of its adapter.
    pub fn drops_out(&self) -> bool {
        let by_adapter = |(_, linear): &(String, &mut Linear)| linear.lora.as_ref().is_some_and(Lora::drops_out);
        self.running().dropout || self.clone().linears_mut().iter().any(by_adapter)
    }

    /// Sizes V and D.
    pub fn dims(&self) -> (usize, usize) {
        let info = self.body().info();
        (info.vocabulary, info.width)
    }

    /// Standard deviation of newly initialized weights.
    pub(crate) fn initializer_range(&self) -> f32 {
        self.body().info().initializer_range
    }

    /// Whether the configuration ties the LM head to the embedding.
    pub(crate) fn ties_head(&self) -> bool {
        self.body().info().ties_head
    }

    /// Factor of hidden states before the LM head.
    pub(crate) fn head_scale(&self) -> f32 {
        self.body().info().head_scale
    }

    /// Soft cap of logits.
    pub(crate) fn logit_cap(&self) -> Option<f32> {
        self.body().info().logit_cap
    }

    /// Start id of the decoder in training, in a model with an encoder. `None` for a model that continues the prompt itself.
    pub fn decoder_start(&self) -> Option<u32> {
        self.body().info().decoder_start
    }

    /// Start id of the decoder in sampling, in a model with an encoder.
    pub(crate) fn sampling_start(&self) -> Option<u32> {
        self.running().sampling_start
    }

    /// Builds the input that is computed before sampling.
    ///
    /// # Panics
    /// When there is no prompt, or one is empty.
    pub(crate) fn prompts(&self, prompts: &[&[u32]]) -> Input {
        match self.sampling_start() {
            Some(start) => Input::sources(prompts, start),
            None => Input::prompts(prompts),
        }
    }

    /// Builds a batch from `rows`. Sequences of one group share the tokens of their common beginning, if this trunk computes the same
    /// states for these tokens in all of them.
    ///
    /// # Panics
    /// When there is no sequence, one has no ids (with an encoder: no source), or a mask does not have the length of its target.
    pub fn batch(&self, rows: &Rows<'_>) -> Batch {
        let info = self.body().info();
        match info.decoder_start {
            Some(start) => Batch::across(rows, start),
            None if info.angles_vary => Batch::joined(rows, Beginnings::Separate),
            None => Batch::joined(rows, Beginnings::Shared),
        }
    }

    /// Like [`batch`](Self::batch), with `noise` on the embeddings, if given. Each sequence has its own noise, so none shares tokens.
    ///
    /// # Panics
    /// As [`batch`](Self::batch), and when there is noise for a model with an encoder.
    pub fn batch_with_noise(&self, rows: &Rows<'_>, noise: Option<EmbeddingNoise>) -> Batch {
        let Some(noise) = noise else { return self.batch(rows) };
        assert!(self.decoder_start().is_none(), "models with an encoder are trained without noise");
        self.batch(&rows.apart()).noisy(noise.of(&rows.places()))
    }

    /// Length of the longest sequence that it can compute; `None` if there is no limit.
    ///
    /// Learned positions end with their table. Rotary positions end with the length that the model is designed for. They end earlier if
    /// longer sequences change the angles of earlier tokens (dynamic scaling, longrope), because sampling would then differ from training.
    /// T5's relative positions have no limit.
    pub fn max_positions(&self) -> Option<usize> {
        self.body().info().max_positions
    }

    /// Limits of the lengths of prompts and completions.
    pub fn position_budget(&self) -> PositionBudget {
        PositionBudget::new(self.max_positions(), self.decoder_start().is_some())
    }

    /// Creates an empty KV cache for sampling with `slots` rows and initial room for `capacity` new tokens.
    pub fn new_cache(&self, slots: usize, capacity: usize) -> KvCache {
        let [own, across] = self.body().attention();
        KvCache::new(own.into_iter(), across.into_iter(), slots, capacity)
    }

    /// Device of the weights.
    pub fn device(&self) -> Device {
        self.embedding().device()
    }

    /// Whether a row's numbers may depend, in their last bits, on which other rows are computed with it. On the CPU they do not.
    pub fn mixes_rows(&self) -> bool {
        !gradus_kernels::rows_are_independent(&self.device())
    }

    /// Format of the linear layers, if they are quantized.
    pub fn quantization(&self) -> Option<Quantization> {
        let mut trunk = self.clone();
        let linears = trunk.linears_mut();
        linears.iter().find_map(|(_, linear)| match linear.packed_weight()?.format() {
            WeightFormat::Quantized(quantization) => Some(quantization),
            WeightFormat::Float(_) => None,
        })
    }

    /// Whether any linear layer is quantized. Such a layer has no gradient.
    pub fn is_quantized(&self) -> bool {
        self.quantization().is_some()
    }

    /// Rejects training all weights of a quantized model; `dir` is the source of the model.
    ///
    /// # Errors
    /// When a linear layer is quantized.
    pub fn check_trainable(&self, dir: &ModelDir) -> Result<()> {
        let Some(format) = self.quantization() else { return Ok(()) };
        let message = format!("its linear layers are quantized ({}), and such weights take no gradient", format.name());
        Err(Error::model(&dir.path, message)
            .with_hint("train an adapter on it (`lora: {}`), or start from the original model"))
    }

    /// Number of bytes that the weights of the linear layers take in memory.
    pub fn linear_bytes(&self) -> usize {
        let mut trunk = self.clone();
        let linears = trunk.linears_mut();
        linears.iter().map(|(_, linear)| linear.weight_bytes()).sum()
    }

    /// Returns the packed weights by name, such as `h.0.attn.c_attn`.
    pub(super) fn packed_weights(&self) -> Vec<(String, FrozenWeight)> {
        let mut trunk = self.clone();
        let linears = trunk.linears_mut().into_iter();
        linears.filter_map(|(name, linear)| Some((name, linear.packed_weight()?.clone()))).collect()
    }
}

impl_layers!(Trunk);
