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
use gradus_kernels::{Format, FrozenWeight};
use serde_json::{Value, json};

use super::causal::CausalLm;
use super::directory::ModelDir;
use super::reward_model::RewardModel;
use super::trunk::Trunk;
use crate::error::{Error, Result};

pub(super) use tensors::{tensors, zeros};

/// The formats that linear layers are quantised to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantFormat {
    /// Whole numbers up to 127 times a scale for each output.
    Int8,
    /// 4-bit NormalFloat in blocks of 64, their magnitudes in 8 bits.
    Nf4,
}

impl QuantFormat {
    /// `int8` or `nf4`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Nf4 => "nf4",
        }
    }

    /// What `dir`'s configuration says of its linear layers.
    pub fn of_dir(dir: &ModelDir) -> Option<Self> {
        let config = dir.config.get("quantization_config")?;
        let says = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
        match (says("load_in_8bit"), says("load_in_4bit")) {
            (true, _) => Some(Self::Int8),
            (_, true) => Some(Self::Nf4),
            _ => None,
        }
    }

    fn kernel(self) -> Format {
        match self {
            Self::Int8 => Format::Int8,
            Self::Nf4 => Format::Nf4,
        }
    }

    /// Of a packed weight, where it is in one of them.
    fn of(format: Format) -> Option<Self> {
        match format {
            Format::Int8 => Some(Self::Int8),
            Format::Nf4 => Some(Self::Nf4),
            Format::F32 | Format::Bf16 => None,
        }
    }
}

impl std::str::FromStr for QuantFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = [Self::Int8, Self::Nf4].into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| format!("`{name}` is not known (int8, nf4)"))
    }
}

impl CausalLm {
    /// The same model without gradients, the linear layers of its trunk in `format`; layers that are packed already stay.
    #[must_use]
    pub fn quantised(self, format: QuantFormat) -> Self {
        let mut model = self.valid();
        model.trunk.freeze_weights(format.kernel());
        model
    }
}

impl RewardModel {
    /// The same model without gradients, the linear layers of its trunk in `format`; layers that are packed already stay.
    #[must_use]
    pub fn quantised(self, format: QuantFormat) -> Self {
        let mut model = self.valid();
        model.trunk.freeze_weights(format.kernel());
        model
    }
}

impl Trunk {
    /// The format of the linear layers, where they are quantised.
    pub fn quantisation(&self) -> Option<QuantFormat> {
        let mut trunk = self.clone();
        let linears = trunk.linears_mut();
        linears.iter().find_map(|(_, linear)| QuantFormat::of(linear.packed_weight()?.format()))
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
pub(super) fn quantization_config(format: QuantFormat, head: &str) -> Value {
    let mut config = json!({
        "quant_method": "bitsandbytes",
        "load_in_8bit": format == QuantFormat::Int8,
        "load_in_4bit": format == QuantFormat::Nf4,
        "llm_int8_skip_modules": [head],
    });
    let more = match format {
        // Whatever the size of an activation, it is multiplied with the quantised weight.
        QuantFormat::Int8 => json!({ "llm_int8_threshold": 0.0 }),
        QuantFormat::Nf4 => json!({
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
