//! Differences between the decoder families, derived from the family and its configuration.

use gradus_kernels::Mask;

use super::config::DecoderConfig;
use super::windows::{Rotation, Windows};
use crate::model::activation::Gate;
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
    /// Dropout of the outputs of attention and the feed-forward layer.
    pub residual_dropout: f32,
    /// Whether one linear layer computes queries, keys and values, and another gate and up.
    pub fused: bool,
    /// Activation of the feed-forward layer's gate.
    pub gate: Gate,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Whether noise on embeddings is added before they are scaled, because the factor is not part of `transformers`' embedding layer.
    pub noise_before_scale: bool,
    /// Factor of the outputs of attention and the feed-forward layer before they are added to the hidden states.
    pub residual_scale: f32,
    /// Factor of the final hidden states before the LM head.
    pub head_scale: f32,
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
    /// Length of the longest sequence whose angles do not depend on its length; `None` if angles never do.
    pub fn limit(&self) -> Option<usize> {
        self.ropes.iter().filter_map(Rope::limit).min()
    }

    /// Length of the longest sequence that can be sampled.
    pub fn max_positions(&self) -> usize {
        self.ropes.iter().map(Rope::max_sampled).min().expect("every model has rotary angles")
    }

    /// Length of the longest sequence that the model is designed for.
    pub fn made_for(&self) -> usize {
        self.ropes.iter().map(Rope::made_for).min().expect("every model has rotary angles")
    }
}

impl DecoderConfig {
    /// Returns the mask and the rotary angles of each layer, given `ropes` sets of angles.
    ///
    /// # Errors
    /// When the layers that `no_rope_layers` or `layer_types` list do not fit.
    pub(super) fn layers(
        &self,
        windows: Windows,
        rotation: Rotation,
        ropes: usize,
    ) -> Result<Vec<LayerStructure>, String> {
        let has_rope = self.has_rope(rotation)?;
        let masks = self.masks(windows, &has_rope)?;
        let layer = |(mask, has_rope): (Mask, &bool)| {
            // If there are two sets of angles, the second is for layers with a window.
            let rope = if ropes > 1 && mask != Mask::Causal { 1 } else { 0 };
            LayerStructure { mask, rope: has_rope.then_some(rope) }
        };
        Ok(masks.into_iter().zip(&has_rope).map(layer).collect())
    }

    /// Returns which layers rotate queries and keys by their positions.
    fn has_rope(&self, rotation: Rotation) -> Result<Vec<bool>, String> {
        let layers = self.num_hidden_layers;
        match &self.no_rope_layers {
            _ if rotation != Rotation::InSomeLayers => Ok(vec![true; layers]),
            None => Ok((1..=layers).map(|number| !number.is_multiple_of(self.no_rope_layer_interval)).collect()),
            Some(flags) if flags.len() < layers => {
                Err(format!("`no_rope_layers` has {} entries for {layers} layers", flags.len()))
            }
            Some(flags) => Ok(flags[..layers].iter().map(|&flag| flag != 0).collect()),
        }
    }
}
