//! Differences between the decoder families, derived from the family and its configuration.

use gradus_kernels::Mask;
use serde_json::{Map, Value};

use super::config::{DecoderConfig, with_defaults};
use super::windows::Windows;
use crate::model::activation::Gate;
use crate::model::family::Family;
use crate::model::rope::Rope;

/// Structure of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderStructure {
    /// Positions of the norms in a block.
    pub norms: Norms,
    /// Offset that is added to the weights of norms: Gemma's norms multiply by 1 + w.
    pub norm_offset: f32,
    /// Normalization of queries and keys before the rotation.
    pub qk_norm: Option<QkNorm>,
    /// Whether queries, keys and values have biases, and whether attention's output has one.
    pub attention_biases: [bool; 2],
    /// Whether one linear layer computes queries, keys and values, and another gate and up.
    pub fused: bool,
    /// Activation of the feed-forward layer's gate.
    pub gate: Gate,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Factor of the scores.
    pub score_scale: f32,
    /// Soft cap of scores.
    pub score_cap: Option<f32>,
    /// Soft cap of logits.
    pub logit_cap: Option<f32>,
    /// Sets of rotary angles for queries and keys.
    pub ropes: Vec<Rope>,
    /// Structure of every layer.
    pub layers: Vec<LayerStructure>,
}

/// Differences between the layers of one decoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerStructure {
    /// Attention mask.
    pub mask: Mask,
    /// Index into [`DecoderStructure::ropes`]; `None` without rotary positions.
    pub rope: Option<usize>,
}

/// Positions of the norms in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    /// Before attention and the feed-forward layer.
    Before,
    /// After them (OLMo 2).
    After,
    /// Before and after them (Gemma 2 and 3).
    Around,
}

/// Normalization of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head separately.
    Heads,
    /// All heads together (OLMo 2).
    Whole,
}

impl DecoderStructure {
    /// Reads the configuration of a model of `family`, which must be a decoder family.
    ///
    /// # Errors
    /// When something in it is not supported, or does not fit.
    pub fn of(family: Family, config: &Map<String, Value>) -> Result<(DecoderConfig, Self), String> {
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
        let structure = Self {
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
                // Independent of the configuration.
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
        Ok((config, structure))
    }

    /// Length of the longest sequence whose angles do not depend on its length; `None` if angles never do.
    pub fn limit(&self) -> Option<usize> {
        self.ropes.iter().filter_map(Rope::limit).min()
    }

    /// Length of the longest sequence that can be sampled.
    pub fn max_positions(&self) -> usize {
        self.limit().unwrap_or(usize::MAX).min(self.made_for())
    }

    /// Length of the longest sequence that the model is designed for.
    pub fn made_for(&self) -> usize {
        self.ropes.iter().map(Rope::made_for).min().expect("every model has rotary angles")
    }
}

impl DecoderConfig {
    /// Returns the mask and the rotary angles of each layer, given `ropes` sets of angles.
    fn layers(&self, family: Family, ropes: usize) -> Result<Vec<LayerStructure>, String> {
        let has_rope = self.has_rope(family)?;
        let masks = self.masks(Windows::of(family), &has_rope)?;
        let layer = |(mask, has_rope): (Mask, &bool)| {
            // If there are two sets of angles, the second is for layers with a window.
            let rope = if ropes > 1 && mask != Mask::Causal { 1 } else { 0 };
            LayerStructure { mask, rope: has_rope.then_some(rope) }
        };
        Ok(masks.into_iter().zip(&has_rope).map(layer).collect())
    }

    /// Returns which layers rotate queries and keys by their positions.
    fn has_rope(&self, family: Family) -> Result<Vec<bool>, String> {
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
