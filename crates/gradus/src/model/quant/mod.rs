//! Linear layers in 8 or 4 bits, in the files that bitsandbytes and `transformers` write and read.
//!
//! What is quantised are the linear layers of the trunk; embeddings, norms, biases and heads stay as they are. A layer's
//! numbers run output after output, `[out, in]`, for GPT-2 too, whose floats lie the other way round.
//!
//! [`tensors`] says which tensors they are.

mod tensors;
#[cfg(test)]
mod tests;

use burn::module::Module;
use gradus_kernels::{FrozenWeight, Quantisation, WeightFormat};
use serde_json::{Value, json};

use super::adapter::Layers;
use super::causal::CausalLm;
use super::directory::ModelDir;
use super::reward_model::RewardModel;
use super::trunk::Trunk;
use crate::error::{Error, Result};

pub(super) use tensors::{tensors, zeros};

impl ModelDir {
    /// How its linear layers are quantised, as its configuration says.
    pub fn quantisation(&self) -> Option<Quantisation> {
        let config = self.config.get("quantization_config")?;
        let says = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
        match (says("load_in_8bit"), says("load_in_4bit")) {
            (true, _) => Some(Quantisation::Int8),
            (_, true) => Some(Quantisation::Nf4),
            _ => None,
        }
    }
}

impl CausalLm {
    /// The same model without gradients, the linear layers of its trunk in `format`; layers that are packed already stay.
    #[must_use]
    pub fn quantised(self, format: Quantisation) -> Self {
        let mut model = self.valid();
        model.trunk.freeze_weights(format.into());
        model
    }
}

impl RewardModel {
    /// The same model without gradients, the linear layers of its trunk in `format`; layers that are packed already stay.
    #[must_use]
    pub fn quantised(self, format: Quantisation) -> Self {
        let mut model = self.valid();
        model.trunk.freeze_weights(format.into());
        model
    }
}

impl Trunk {
    /// The format of the linear layers, where they are quantised.
    pub fn quantisation(&self) -> Option<Quantisation> {
        let mut trunk = self.clone();
        let linears = trunk.linears_mut();
        linears.iter().find_map(|(_, linear)| match linear.packed_weight()?.format() {
            WeightFormat::Quantised(quantisation) => Some(quantisation),
            WeightFormat::Float(_) => None,
        })
    }

    /// Whether any linear layer is quantised: such a layer takes no gradient.
    pub fn is_quantised(&self) -> bool {
        self.quantisation().is_some()
    }

    /// Refuses to train all weights of a quantised model; `dir` is where it was read from.
    ///
    /// # Errors
    /// When a linear layer is quantised.
    pub fn check_trainable(&self, dir: &ModelDir) -> Result<()> {
        let Some(format) = self.quantisation() else { return Ok(()) };
        let message = format!("its linear layers are quantised ({}), and such weights take no gradient", format.name());
        Err(Error::model(&dir.path, message)
            .with_hint("train an adapter on it (`lora: {}`), or start from the model that it was made of"))
    }

    /// Bytes that the weights of the linear layers take in memory.
    pub fn linear_bytes(&self) -> usize {
        let mut trunk = self.clone();
        let linears = trunk.linears_mut();
        linears.iter().map(|(_, linear)| linear.weight_bytes()).sum()
    }

    /// The packed weights by name, such as `h.0.attn.c_attn`.
    pub(super) fn packed_weights(&self) -> Vec<(String, FrozenWeight)> {
        let mut trunk = self.clone();
        let linears = trunk.linears_mut().into_iter();
        linears.filter_map(|(name, linear)| Some((name, linear.packed_weight()?.clone()))).collect()
    }
}

/// Refuses weights that are quantised by other means than bitsandbytes'.
pub(super) fn check_method(dir: &ModelDir) -> Result<()> {
    let method = dir.config.get("quantization_config").and_then(|config| config.get("quant_method"));
    match method.and_then(Value::as_str) {
        None | Some("bitsandbytes") => Ok(()),
        Some(method) => Err(Error::model(dir.path.join("config.json"), format!("weights quantised by `{method}`"))
            .with_hint("bitsandbytes' INT8 and NF4 can be read; or quantise the original with `gradus quantize`")),
    }
}

/// `quantization_config` of a model whose head is called `head`, as bitsandbytes' users write it.
pub(super) fn quantization_config(format: Quantisation, head: &str) -> Value {
    let mut config = json!({
        "quant_method": "bitsandbytes",
        "load_in_8bit": format == Quantisation::Int8,
        "load_in_4bit": format == Quantisation::Nf4,
        "llm_int8_skip_modules": [head],
    });
    let more = match format {
        // Whatever the size of an activation, it is multiplied with the quantised weight.
        Quantisation::Int8 => json!({ "llm_int8_threshold": 0.0 }),
        Quantisation::Nf4 => json!({
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": true,
            "bnb_4bit_compute_dtype": "float32",
            "bnb_4bit_quant_storage": "uint8",
        }),
    };
    if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
        config.extend(more);
    }
    config
}
