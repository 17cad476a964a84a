//! How products are computed.

use gradus_kernels::{Format, Precision};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the operands of matrix products are held; weights in training, sums, and everything between products are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compute {
    /// As f32.
    #[default]
    F32,
    /// Rounded to bfloat16: about twice as fast where the processor multiplies it (AVX512-BF16).
    Bf16,
}

impl Compute {
    /// How many logits of `rows` rows are in memory at a time: in a pass recorded for the backward pass, whose products are
    /// computed as `recorded` says, or in one that is not.
    pub fn logits_held(rows: usize, vocabulary: usize, recorded: Option<Self>) -> usize {
        gradus_kernels::logits_held(rows, vocabulary, recorded.map(Self::precision))
    }

    /// For the kernels.
    pub fn precision(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
        }
    }

    /// `f32` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// How the weights of a model are held that is sampled from, or that is never trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    /// As f32.
    F32,
    /// Rounded to bfloat16.
    Bf16,
    /// Whole numbers up to 127 times a scale for each output; multiplied with activations in bfloat16.
    Int8,
    /// 4-bit NormalFloat in blocks of 64; the LM head as bfloat16.
    Nf4,
}

impl Weights {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Nf4 => "nf4",
        }
    }

    /// For the kernels.
    pub fn format(self) -> Format {
        match self {
            Self::F32 => Format::F32,
            Self::Bf16 => Format::Bf16,
            Self::Int8 => Format::Int8,
            Self::Nf4 => Format::Nf4,
        }
    }

    /// For the LM head, which 4 bits would hurt most: QLoRA leaves it in 16.
    pub(super) fn head_format(self) -> Format {
        match self {
            Self::Nf4 => Format::Bf16,
            Self::F32 | Self::Bf16 | Self::Int8 => self.format(),
        }
    }
}

impl From<Compute> for Weights {
    fn from(compute: Compute) -> Self {
        match compute {
            Compute::F32 => Self::F32,
            Compute::Bf16 => Self::Bf16,
        }
    }
}

impl std::str::FromStr for Weights {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::F32, Self::Bf16, Self::Int8, Self::Nf4]
            .into_iter()
            .find(|weights| weights.name() == name)
            .ok_or_else(|| format!("`{name}` is not known (f32, bf16, int8, nf4)"))
    }
}

impl std::str::FromStr for Compute {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::F32, Self::Bf16]
            .into_iter()
            .find(|compute| compute.name() == name)
            .ok_or_else(|| format!("`{name}` is not known (f32, bf16)"))
    }
}
