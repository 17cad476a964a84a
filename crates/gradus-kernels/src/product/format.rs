//! Number formats: of operands of a product, of quantized weights, and of stored weights.

use std::str::FromStr;

/// Type in which operands are held during multiplication. Sums are in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16: the upper half of an f32, rounded to nearest even.
    Bf16,
}

/// Quantization of weights, in memory and in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// Integers from −127 to 127 with one f32 scale per output of a layer: the largest magnitude of the output's weights over 127. The
    /// other operand is rounded to bfloat16.
    Int8,
    /// 4-bit NormalFloat in blocks of 64 along an output, with the largest magnitude of each block in 8 bits ([`Nf4`](crate::Nf4)).
    /// Products use the decoded numbers, in f32 by default.
    Nf4,
}

/// Storage format of a frozen weight, which is packed once for many products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// In the precision of the operands of its products.
    Float(Precision),
    /// In fewer bits than the operands of products.
    Quantized(Quantization),
}

impl Precision {
    /// All values.
    pub const ALL: &[Self] = &[Self::F32, Self::Bf16];

    /// `f32` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl Quantization {
    /// All values.
    pub const ALL: &[Self] = &[Self::Int8, Self::Nf4];

    /// `int8` or `nf4`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Nf4 => "nf4",
        }
    }
}

impl WeightFormat {
    /// Single precision.
    pub const F32: Self = Self::Float(Precision::F32);
    /// bfloat16.
    pub const BF16: Self = Self::Float(Precision::Bf16);
    /// Integers of 8 bits.
    pub const INT8: Self = Self::Quantized(Quantization::Int8);
    /// 4-bit NormalFloat.
    pub const NF4: Self = Self::Quantized(Quantization::Nf4);

    /// All formats, the most precise first.
    pub const ALL: &[Self] = &[Self::F32, Self::BF16, Self::INT8, Self::NF4];

    /// Bytes of `numbers` weights, without per-output scales.
    pub const fn bytes(self, numbers: u64) -> u64 {
        match self {
            Self::Float(Precision::F32) => 4 * numbers,
            Self::Float(Precision::Bf16) => 2 * numbers,
            Self::Quantized(Quantization::Int8) => numbers,
            // 64 codes of half a byte, and one byte for their largest magnitude.
            Self::Quantized(Quantization::Nf4) => 33 * numbers / 64,
        }
    }

    /// `f32`, `bf16`, `int8` or `nf4`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float(precision) => precision.name(),
            Self::Quantized(quantization) => quantization.name(),
        }
    }
}

impl From<Precision> for WeightFormat {
    fn from(precision: Precision) -> Self {
        Self::Float(precision)
    }
}

impl From<Quantization> for WeightFormat {
    fn from(quantization: Quantization) -> Self {
        Self::Quantized(quantization)
    }
}

/// Returns the value of `all` with the name `name`.
fn called<T: Copy>(name: &str, all: &[T], name_of: fn(T) -> &'static str) -> Result<T, String> {
    let found = all.iter().copied().find(|&format| name_of(format) == name);
    let known = || all.iter().map(|&format| name_of(format)).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("`{name}` is not known ({})", known()))
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        called(name, Self::ALL, Self::name)
    }
}

impl FromStr for Quantization {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        called(name, Self::ALL, Self::name)
    }
}

impl FromStr for WeightFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        called(name, Self::ALL, Self::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_found_by_its_name_and_the_whole_list_is_shown_where_none_is() {
        for &format in WeightFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let parts = Precision::ALL.iter().map(|&precision| WeightFormat::from(precision));
        let all: Vec<_> = parts.chain(Quantization::ALL.iter().map(|&way| WeightFormat::from(way))).collect();
        assert_eq!(all, WeightFormat::ALL, "operands and quantized weights together are what weights are held as");
        assert_eq!("bf16".parse(), Ok(Precision::Bf16));
        assert_eq!("int8".parse::<Precision>(), Err("`int8` is not known (f32, bf16)".to_owned()));
        assert_eq!("f32".parse::<Quantization>(), Err("`f32` is not known (int8, nf4)".to_owned()));
        assert_eq!("fp8".parse::<WeightFormat>(), Err("`fp8` is not known (f32, bf16, int8, nf4)".to_owned()));
    }
}
