//! What the decoders of different families do differently, said once: by the family and its configuration.

use gradus_kernels::Mask;
use serde_json::{Map, Value};

use super::config::{DecoderConfig, with_defaults};
use super::windows::Windows;
use crate::model::activation::Gate;
use crate::model::family::Family;
use crate::model::rope::Rope;

/// How a decoder is made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Anatomy {
    /// Where a block has norms.
    pub norms: Norms,
    /// What is added to the weights of norms: Gemma's multiply with 1 + w.
    pub norm_offset: f32,
    /// How queries and keys are normalized before they are turned.
    pub qk_norm: Option<QkNorm>,
    /// Whether queries, keys and values have biases, and whether attention's output has one.
    pub attention_biases: [bool; 2],
    /// Whether queries, keys and values are one linear layer, and gate and up another.
    pub fused: bool,
    /// What the feed-forward layer does between its linear layers.
    pub gate: Gate,
    /// What embeddings are multiplied with.
    pub embedding_scale: f32,
    /// What scores are multiplied with.
    pub score_scale: f32,
    /// Where scores are softly capped.
    pub score_cap: Option<f32>,
    /// Where logits are softly capped.
    pub logit_cap: Option<f32>,
    /// By which angles layers turn queries and keys.
    pub ropes: Vec<Rope>,
    /// Every layer.
    pub layers: Vec<LayerAnatomy>,
}

/// What the layers of one decoder differ in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerAnatomy {
    /// What a token sees.
    pub mask: Mask,
    /// Which of the [`Anatomy::ropes`] turns queries and keys, if any does.
    pub rope: Option<usize>,
}

/// Where a block has norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norms {
    /// Of what attention and the feed-forward layer read.
    Before,
    /// Of what they give (OLMo 2).
    After,
    /// Of both (Gemma 2 and 3).
    Around,
}

/// How queries and keys are normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QkNorm {
    /// Head by head.
    Heads,
    /// All heads together (OLMo 2).
    Whole,
}

impl Anatomy {
    /// Reads the configuration of a model of `family`, which is a decoder's.
    ///
    /// # Errors
    /// When something in it is not computed here, or does not fit.
    pub(crate) fn of(family: Family, config: &Map<String, Value>) -> Result<(DecoderConfig, Self), String> {
        let all = with_defaults(family, config);
        let config: DecoderConfig =
            serde_json::from_value(Value::Object(all.clone())).map_err(|error| error.to_string())?;
        if config.use_bidirectional_attention == Some(true) {
            return Err("`use_bidirectional_attention` is set: an encoder, which predicts no tokens".into());
        }
        let is_gemma = family.is_gemma();
        if family == Family::Gemma3 && config.attn_logit_softcapping.is_some() {
            return Err("`attn_logit_softcapping` is set, but Gemma 3 has none".into());
        }
        let ropes = Rope::all_of(family, &all, config.head_dim(), config.max_position_embeddings)?;
        let layers = config.layers(family, ropes.len())?;
        let divisor = config.query_pre_attn_scalar.filter(|_| is_gemma).unwrap_or(config.head_dim() as f64);
        let anatomy = Self {
            norms: match family {
                Family::Gemma2 | Family::Gemma3 => Norms::Around,
                Family::Olmo2 => Norms::After,
                Family::Llama
                | Family::Mistral
                | Family::Qwen2
                | Family::Qwen3
                | Family::SmolLm3
                | Family::Phi3
                | Family::Gpt2
                | Family::T5
                | Family::Mt5
                | Family::Bart
                | Family::Blenderbot
                | Family::BlenderbotSmall => Norms::Before,
            },
            norm_offset: if is_gemma { 1.0 } else { 0.0 },
            qk_norm: match family {
                Family::Qwen3 | Family::Gemma3 => Some(QkNorm::Heads),
                Family::Olmo2 => Some(QkNorm::Whole),
                Family::Llama
                | Family::Mistral
                | Family::Qwen2
                | Family::Gemma2
                | Family::SmolLm3
                | Family::Phi3
                | Family::Gpt2
                | Family::T5
                | Family::Mt5
                | Family::Bart
                | Family::Blenderbot
                | Family::BlenderbotSmall => None,
            },
            attention_biases: match family {
                // Whatever the configuration says.
                Family::Qwen2 => [true, false],
                Family::Phi3 => [false; 2],
                Family::Llama
                | Family::Mistral
                | Family::Qwen3
                | Family::Gemma2
                | Family::Gemma3
                | Family::SmolLm3
                | Family::Olmo2
                | Family::Gpt2
                | Family::T5
                | Family::Mt5
                | Family::Bart
                | Family::Blenderbot
                | Family::BlenderbotSmall => [config.attention_bias; 2],
            },
            fused: family == Family::Phi3,
            gate: Gate::named("hidden_act", &config.hidden_act)?,
            embedding_scale: if is_gemma { (config.hidden_size as f32).sqrt() } else { 1.0 },
            score_scale: divisor.powf(-0.5) as f32,
            score_cap: config.attn_logit_softcapping.filter(|_| is_gemma),
            logit_cap: config.final_logit_softcapping.filter(|_| is_gemma),
            ropes,
            layers,
        };
        Ok((config, anatomy))
    }

    /// The longest sequence whose angles do not depend on how long it is, where there is such a limit.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.ropes.iter().filter_map(Rope::limit).min()
    }

    /// The longest sequence that can be sampled.
    pub(crate) fn max_positions(&self) -> usize {
        self.limit().unwrap_or(usize::MAX).min(self.made_for())
    }

    /// The longest sequence that the model is made for.
    pub(crate) fn made_for(&self) -> usize {
        self.ropes.iter().map(Rope::made_for).min().expect("every model has rotary angles")
    }
}

impl DecoderConfig {
    /// What each layer sees, and which of `ropes` angles turn its queries and keys.
    fn layers(&self, family: Family, ropes: usize) -> Result<Vec<LayerAnatomy>, String> {
        let turned = self.turned(family)?;
        let masks = self.masks(Windows::of(family), &turned)?;
        let layer = |(mask, is_turned): (Mask, &bool)| {
            // Of two bases the second is that of layers with a window.
            let rope = if ropes > 1 && mask != Mask::Causal { 1 } else { 0 };
            LayerAnatomy { mask, rope: is_turned.then_some(rope) }
        };
        Ok(masks.into_iter().zip(&turned).map(layer).collect())
    }

    /// Which layers turn queries and keys by their positions.
    fn turned(&self, family: Family) -> Result<Vec<bool>, String> {
        let layers = self.num_hidden_layers;
        match &self.no_rope_layers {
            _ if family != Family::SmolLm3 => Ok(vec![true; layers]),
            None => Ok((1..=layers).map(|number| !number.is_multiple_of(self.no_rope_layer_interval)).collect()),
            Some(flags) if flags.len() < layers => {
                Err(format!("`no_rope_layers` has {} entries for {layers} layers", flags.len()))
            }
            Some(flags) => Ok(flags[..layers].iter().map(|&flag| flag != 0).collect()),
        }
    }
}
