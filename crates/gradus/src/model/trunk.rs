//! The trunk of a model: everything below the head. The one `match` on the architecture.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use gradus_kernels::AttentionShape;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::bart::{BartConfig, BartKind, BartModel};
use super::batch::{Batch, Beginnings, Input, Rows};
use super::build::Builder;
use super::context::{Context, KvCache};
use super::decoder::{Anatomy, Decoder};
use super::directory::ModelDir;
use super::encoder::EncoderFamily;
use super::gpt2::{Gpt2Config, Gpt2Model};
use super::layers::Linear;
use super::lora::Lora;
use super::quant;
use super::room::Room;
use super::t5::{T5Config, T5Facts, T5Model};
use crate::error::{Error, Result};

/// Token ids in, hidden states out.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "handles of tensors; a model has one")]
pub enum Trunk {
    /// GPT-2.
    Gpt2(Gpt2Model),
    /// Llama and its kin.
    Decoder(Decoder),
    /// T5 and mT5.
    T5(T5Model),
    /// BART and Blenderbot.
    Bart(BartModel),
}

/// A family: what `config.json` calls it, and the names that follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Gpt2,
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma2,
    /// The text part of Gemma 3.
    Gemma3,
    SmolLm3,
    /// Phi-3, Phi-3.5 and Phi-4.
    Phi3,
    Olmo2,
    T5,
    Mt5,
    Bart,
    Blenderbot,
    BlenderbotSmall,
}

impl Family {
    pub(crate) fn of(dir: &ModelDir) -> Result<Self> {
        Self::named(dir.model_type()).ok_or_else(|| {
            let (name, known) = (dir.model_type(), Self::ALL.map(Self::name).join(", "));
            if EncoderFamily::named(name).is_some() {
                let message = format!("model type `{name}` is an encoder, which predicts no text");
                return Error::model(dir.path.join("config.json"), message)
                    .with_hint("it can score: `gradus score --classifier DIR`");
            }
            if name == "gemma3" {
                let message = "model type `gemma3` reads images too; its text part alone is supported, `gemma3_text`";
                let hint = "in transformers: `Gemma3ForCausalLM.from_pretrained(DIR).save_pretrained(TO)`";
                return Error::model(dir.path.join("config.json"), message).with_hint(hint);
            }
            let message = format!("model type `{name}` is not supported (known: {known})");
            Error::model(dir.path.join("config.json"), message)
        })
    }

    /// All of them.
    const ALL: [Self; 15] = [
        Self::Gpt2,
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Gemma2,
        Self::Gemma3,
        Self::SmolLm3,
        Self::Phi3,
        Self::Olmo2,
        Self::T5,
        Self::Mt5,
        Self::Bart,
        Self::Blenderbot,
        Self::BlenderbotSmall,
    ];

    /// The family of this `model_type`.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// `model_type`, the class prefix in `architectures`, and the class of language models there.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Gpt2 => ["gpt2", "GPT2", "GPT2LMHeadModel"],
            Self::Llama => ["llama", "Llama", "LlamaForCausalLM"],
            Self::Mistral => ["mistral", "Mistral", "MistralForCausalLM"],
            Self::Qwen2 => ["qwen2", "Qwen2", "Qwen2ForCausalLM"],
            Self::Qwen3 => ["qwen3", "Qwen3", "Qwen3ForCausalLM"],
            Self::Gemma2 => ["gemma2", "Gemma2", "Gemma2ForCausalLM"],
            Self::Gemma3 => ["gemma3_text", "Gemma3Text", "Gemma3ForCausalLM"],
            Self::SmolLm3 => ["smollm3", "SmolLM3", "SmolLM3ForCausalLM"],
            Self::Phi3 => ["phi3", "Phi3", "Phi3ForCausalLM"],
            Self::Olmo2 => ["olmo2", "Olmo2", "Olmo2ForCausalLM"],
            Self::T5 => ["t5", "T5", "T5ForConditionalGeneration"],
            Self::Mt5 => ["mt5", "MT5", "MT5ForConditionalGeneration"],
            Self::Bart => ["bart", "Bart", "BartForConditionalGeneration"],
            Self::Blenderbot => ["blenderbot", "Blenderbot", "BlenderbotForConditionalGeneration"],
            Self::BlenderbotSmall => ["blenderbot-small", "BlenderbotSmall", "BlenderbotSmallForConditionalGeneration"],
        }
    }

    /// `model_type`.
    pub(crate) fn name(self) -> &'static str {
        self.names()[0]
    }

    /// The class prefix in `architectures`.
    pub(crate) fn class(self) -> &'static str {
        self.names()[1]
    }

    /// The class of language models in `architectures`.
    pub(crate) fn language_class(self) -> &'static str {
        self.names()[2]
    }

    /// What stands before every trunk tensor's name.
    pub(crate) fn base_prefix(self) -> &'static str {
        match self {
            Self::Gpt2 => "transformer.",
            Self::T5 | Self::Mt5 => "",
            _ => "model.",
        }
    }

    /// Whether it is one of Gemma's.
    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Whether an encoder reads what is given, and a decoder writes what follows.
    pub(crate) fn has_encoder(self) -> bool {
        matches!(self, Self::T5 | Self::Mt5 | Self::Bart | Self::Blenderbot | Self::BlenderbotSmall)
    }

    /// Which of BART's kind it is.
    pub(super) fn bart_kind(self) -> BartKind {
        match self {
            Self::Blenderbot => BartKind::Blenderbot,
            Self::BlenderbotSmall => BartKind::BlenderbotSmall,
            _ => BartKind::Bart,
        }
    }
}

/// Every family that is known: what `model_type` of `config.json` says, language models first, then encoders.
pub fn families() -> Vec<&'static str> {
    Family::ALL.map(Family::name).into_iter().chain(EncoderFamily::ALL.map(EncoderFamily::model_type)).collect()
}

/// What is dropped with probability 1 is nothing but zeros.
pub(super) fn check_probability(key: &str, value: f32) -> Result<(), String> {
    match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(format!("`{key}` is {value}, but a probability of dropout is at least 0 and below 1")),
    }
}

/// What `transformers` takes for keys that `config.json` lacks, of a family that takes something else than its kin. Llama's kin
/// have a table of their own.
fn defaults(model_type: &str) -> &'static str {
    match (Family::named(model_type), EncoderFamily::named(model_type)) {
        (Some(Family::Mt5), _) => r#"{"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}"#,
        (Some(Family::Bart), _) => r#"{"decoder_start_token_id": 2}"#,
        (Some(Family::Blenderbot | Family::BlenderbotSmall), _) => r#"{"decoder_start_token_id": 1}"#,
        (_, Some(encoder)) => encoder.defaults(),
        _ => "{}",
    }
}

/// `config.json` of a model, with what `transformers` takes for keys that it lacks where families differ.
pub(super) fn whole_config(dir: &ModelDir) -> Map<String, Value> {
    let mut all: Map<String, Value> = serde_json::from_str(defaults(dir.model_type())).expect("an object");
    all.extend(dir.config.clone());
    all
}

pub(crate) fn read_config<C: DeserializeOwned>(dir: &ModelDir) -> Result<C> {
    serde_json::from_value(Value::Object(whole_config(dir)))
        .map_err(|error| Error::model(dir.path.join("config.json"), error.to_string()))
}

impl Trunk {
    /// The trunk that `dir` describes, with tensors from the builder.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub(crate) fn build(b: &mut Builder<'_>, dir: &ModelDir) -> Result<Self> {
        let family = Family::of(dir)?;
        let refuse = |message: String| Error::model(dir.path.join("config.json"), message);
        quant::check_method(dir)?;
        let b = b.enter(family.base_prefix().trim_end_matches('.'));
        Ok(match family {
            Family::Gpt2 => {
                let config: Gpt2Config = read_config(dir)?;
                if !["gelu_new", "gelu", "gelu_pytorch_tanh", "relu"].contains(&config.activation_function.as_str()) {
                    let name = &config.activation_function;
                    return Err(refuse(format!("`activation_function` `{name}` is not supported")));
                }
                Self::Gpt2(Gpt2Model::build(b, config))
            }
            Family::T5 | Family::Mt5 => {
                let config: T5Config = read_config(dir)?;
                config.check().map_err(refuse)?;
                let activation = config.activation().map_err(refuse)?;
                // mT5 never had its states divided.
                let scales = family == Family::T5 && config.scale_decoder_outputs.unwrap_or(config.tie_word_embeddings);
                let head_scale = if scales { (config.d_model as f32).powf(-0.5) } else { 1.0 };
                let facts = T5Facts { start: dir.decoder_start()?, head_scale, activation };
                Self::T5(T5Model::build(b, config, facts))
            }
            Family::Bart | Family::Blenderbot | Family::BlenderbotSmall => {
                let config: BartConfig = read_config(dir)?;
                config.check().map_err(refuse)?;
                Self::Bart(BartModel::build(b, config, family.bart_kind(), dir.decoder_start()?))
            }
            Family::Llama
            | Family::Mistral
            | Family::Qwen2
            | Family::Qwen3
            | Family::Gemma2
            | Family::Gemma3
            | Family::SmolLm3
            | Family::Phi3
            | Family::Olmo2 => {
                let (config, anatomy) = Anatomy::of(family, &dir.config).map_err(refuse)?;
                Self::Decoder(Decoder::build(b, config, anatomy))
            }
        })
    }

    /// Final hidden states, `[N, D]`.
    pub fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        match self {
            Self::Gpt2(model) => model.forward(context),
            Self::Decoder(model) => model.forward(context),
            Self::T5(model) => model.forward(context),
            Self::Bart(model) => model.forward(context),
        }
    }

    /// The embedding table, `[V, D]`: the LM head of tied models.
    pub fn embedding(&self) -> Tensor<2> {
        match self {
            Self::Gpt2(model) => model.embedding(),
            Self::Decoder(model) => model.embedding(),
            Self::T5(model) => model.embedding(),
            Self::Bart(model) => model.embedding(),
        }
    }

    /// All linear layers with their names in the trunk, such as `h.0.attn.c_attn`.
    pub(crate) fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        match self {
            Self::Gpt2(model) => model.linears_mut(),
            Self::Decoder(model) => model.linears_mut(),
            Self::T5(model) => model.linears_mut(),
            Self::Bart(model) => model.linears_mut(),
        }
    }

    /// Has the backward pass run the blocks again instead of keeping what they computed: the same gradients, to the bit,
    /// with the activations of one block in memory at a time, for one more forward pass.
    pub fn set_recompute(&mut self, recompute: bool) {
        match self {
            Self::Gpt2(model) => model.recompute = recompute,
            Self::Decoder(model) => model.recompute = recompute,
            Self::T5(model) => model.recompute = recompute,
            Self::Bart(model) => model.recompute = recompute,
        }
    }

    /// Whether numbers are dropped as the configuration says, in passes that have masks.
    pub fn set_dropout(&mut self, dropout: bool) {
        match self {
            Self::Gpt2(model) => model.dropout = dropout,
            Self::Decoder(model) => model.dropout = dropout,
            Self::T5(model) => model.dropout = dropout,
            Self::Bart(model) => model.dropout = dropout,
        }
    }

    /// Whether numbers are dropped in passes with masks: by the model, as its configuration says, or by its adapter.
    pub(crate) fn drops_out(&self) -> bool {
        let own = match self {
            Self::Gpt2(model) => model.dropout,
            Self::Decoder(model) => model.dropout,
            Self::T5(model) => model.dropout,
            Self::Bart(model) => model.dropout,
        };
        own || self.clone().linears_mut().iter().any(|(_, linear)| linear.lora.as_ref().is_some_and(Lora::drops_out))
    }

    /// V and D.
    pub fn dims(&self) -> (usize, usize) {
        match self {
            Self::Gpt2(model) => (model.config().vocab_size, model.config().n_embd),
            Self::Decoder(model) => (model.config().vocab_size, model.config().hidden_size),
            Self::T5(model) => (model.config().vocab_size, model.config().d_model),
            Self::Bart(model) => (model.config().vocab_size, model.config().d_model),
        }
    }

    /// The standard deviation of fresh weights.
    pub(crate) fn initializer_range(&self) -> f32 {
        match self {
            Self::Gpt2(model) => model.config().initializer_range as f32,
            Self::Decoder(model) => model.config().initializer_range as f32,
            Self::T5(model) => model.config().initializer_factor as f32,
            Self::Bart(model) => model.config().init_std as f32,
        }
    }

    /// Whether the configuration ties the LM head to the embedding.
    pub(crate) fn ties_head(&self) -> bool {
        match self {
            Self::Gpt2(model) => model.config().tie_word_embeddings,
            Self::Decoder(model) => model.config().tie_word_embeddings,
            Self::T5(model) => model.config().tie_word_embeddings,
            Self::Bart(model) => model.config().tie_word_embeddings,
        }
    }

    /// What hidden states are multiplied with before the LM head.
    pub(crate) fn head_scale(&self) -> f32 {
        match self {
            Self::Gpt2(_) | Self::Decoder(_) | Self::Bart(_) => 1.0,
            Self::T5(model) => model.head_scale(),
        }
    }

    /// Where logits are softly capped.
    pub(crate) fn logit_cap(&self) -> Option<f32> {
        match self {
            Self::Decoder(model) => model.logit_cap(),
            Self::Gpt2(_) | Self::T5(_) | Self::Bart(_) => None,
        }
    }

    /// The id that a decoder begins with that reads what an encoder made of the prompt; none where the prompt itself is
    /// continued.
    pub fn decoder_start(&self) -> Option<u32> {
        match self {
            Self::Gpt2(_) | Self::Decoder(_) => None,
            Self::T5(model) => Some(model.start()),
            Self::Bart(model) => Some(model.start()),
        }
    }

    /// What is computed of prompts before anything is sampled.
    ///
    /// # Panics
    /// When there is none, or one is empty.
    pub(crate) fn prompts(&self, prompts: &[&[u32]]) -> Input {
        match self.decoder_start() {
            Some(start) => Input::sources(prompts, start),
            None => Input::prompts(prompts),
        }
    }

    /// What is computed of `rows`. Sequences that are handed over together share the tokens that they all begin with, where
    /// this trunk gives such tokens the same numbers in all of them.
    ///
    /// # Panics
    /// When there is no sequence, one has no ids (with an encoder: no source), or a mask has another length than its target.
    pub fn batch(&self, rows: &Rows<'_>) -> Batch {
        match self {
            Self::T5(model) => Batch::across(rows, model.start()),
            Self::Bart(model) => Batch::across(rows, model.start()),
            // The angles of every token depend on how long its sequence becomes.
            Self::Decoder(model) if model.limit().is_some() => Batch::joined(rows, Beginnings::Apart),
            _ => Batch::joined(rows, Beginnings::Shared),
        }
    }

    /// The longest sequence that can be computed, where there is a limit.
    ///
    /// Learned positions end with their table, rotary ones with what the model is made for, or earlier where longer
    /// sequences change the angles of earlier tokens (dynamic scaling, longrope): sampling could then not agree with
    /// training. T5's relative positions have no end.
    pub fn max_positions(&self) -> Option<usize> {
        match self {
            Self::Gpt2(model) => Some(model.config().n_positions),
            Self::Decoder(model) => Some(model.max_positions()),
            Self::Bart(model) => Some(model.config().max_position_embeddings),
            Self::T5(_) => None,
        }
    }

    /// How long prompts and completions may be.
    pub fn room(&self) -> Room {
        Room::new(self.max_positions(), self.decoder_start().is_some())
    }

    /// An empty cache for sampling: `slots` rows that have room for `capacity` new tokens at first.
    pub fn new_cache(&self, slots: usize, capacity: usize) -> KvCache {
        let cache = |layers: Vec<AttentionShape>, across: Vec<AttentionShape>| {
            KvCache::new(layers.into_iter(), across.into_iter(), slots, capacity)
        };
        match self {
            Self::Gpt2(model) => {
                cache((0..model.config().n_layer).map(|layer| model.layer_shape(layer)).collect(), Vec::new())
            }
            Self::Decoder(model) => cache(model.layer_shapes(), Vec::new()),
            Self::T5(model) => {
                let [own, across] = model.layer_shapes().map(|shape| vec![shape; model.config().decoder_layers()]);
                cache(own, across)
            }
            Self::Bart(model) => {
                let [own, across] = model.layer_shapes().map(|shape| vec![shape; model.config().decoder_layers]);
                cache(own, across)
            }
        }
    }

    /// The device of the weights.
    pub fn device(&self) -> Device {
        self.embedding().device()
    }
}
