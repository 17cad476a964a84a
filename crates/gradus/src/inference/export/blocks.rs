//! Number formats in a GGUF file: f32, bf16, or q8_0, which has blocks of 32 8-bit integers with a half-precision scale.
//!
//! q8_0: `d = max|x| / 127`, `q = round(x / d)`, halves away from zero, as the `gguf` package computes them.

use serde::Serialize;

use crate::error::{Error, Result};

/// Numbers per block of q8_0.
const BLOCK: usize = 32;
/// Bytes per block of q8_0.
const BLOCK_BYTES: usize = 2 + BLOCK;

/// Format of the weights in a GGUF file. Norms and biases are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GgufWeights {
    /// Four bytes per number.
    F32,
    /// Two bytes per number: the upper 16 bits, with ties rounded to even.
    Bf16,
    /// Blocks of 32 with a scale: 8.5 bits per number.
    #[serde(rename = "q8_0")]
    Q8,
}

impl GgufWeights {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Q8];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8_0",
        }
    }

    /// Returns the type code in tensor headers (`ggml_type`).
    pub(super) fn tensor_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Q8 => 8,
            Self::Bf16 => 30,
        }
    }

    /// Returns the type code of a file that contains mostly this format (`llama_ftype`).
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Q8 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Returns the size of `values` numbers in bytes.
    pub(super) fn bytes(self, values: usize) -> usize {
        match self {
            Self::F32 => 4 * values,
            Self::Bf16 => 2 * values,
            Self::Q8 => values / BLOCK * BLOCK_BYTES,
        }
    }

    /// Returns the format of a tensor with dimensions `dims` in a file of this format. Vectors, and tensors whose rows
    /// are not whole blocks, stay in f32.
    pub(super) fn of(self, dims: &[usize]) -> Self {
        match (self, dims) {
            (_, [] | [_]) => Self::F32,
            (Self::Q8, [.., width]) if !width.is_multiple_of(BLOCK) => Self::F32,
            _ => self,
        }
    }

    /// Appends `values`.
    pub(super) fn write(self, values: &[f32], to: &mut Vec<u8>) {
        match self {
            Self::F32 => values.iter().for_each(|value| to.extend(value.to_le_bytes())),
            Self::Bf16 => values.iter().for_each(|&value| to.extend(bf16(value).to_le_bytes())),
            Self::Q8 => values.as_chunks::<BLOCK>().0.iter().for_each(|block| to.extend(q8(block))),
        }
    }
}

impl std::str::FromStr for GgufWeights {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::input(format!("`{name}` is not a format of weights in GGUF (known: {known})"))
        })
    }
}

fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 64;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn q8(block: &[f32; BLOCK]) -> [u8; BLOCK_BYTES] {
    let scale = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs())) / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut bytes = [0; BLOCK_BYTES];
    bytes[..2].copy_from_slice(&half(scale).to_le_bytes());
    for (byte, value) in bytes[2..].iter_mut().zip(block) {
        *byte = (value * inverse).round() as i8 as u8;
    }
    bytes
}

/// Converts a non-negative number to half precision, with ties rounded to even.
fn half(value: f32) -> u16 {
    // Below 2⁻¹⁴, half precision has steps of 2⁻²⁴; there are fewer than 2¹⁰ of them.
    if value < 2.0f32.powi(-14) {
        return (value * 2.0f32.powi(24)).round_ties_even() as u16;
    }
    let bits = value.to_bits();
    let rounded = bits + 0xfff + (bits >> 13 & 1);
    // The exponent bias is 15 instead of 127; numbers that are too large become infinite.
    (((rounded >> 13) - (112 << 10)).min(0x7c00)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// The fixture was written by `tools/parity/gguf_blocks.py` with the package `gguf`.
    #[test]
    fn the_bytes_are_those_of_the_gguf_package() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/gguf/blocks.json");
        let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("a fixture")).expect("JSON");
        for case in fixture["cases"].as_array().expect("cases") {
            // As bits, to keep infinities and the last digit.
            let bits: Vec<u32> = serde_json::from_value(case["bits"].clone()).expect("bits");
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            for (format, key) in [(GgufWeights::Bf16, "bf16"), (GgufWeights::Q8, "q8_0")] {
                let Some(expected) = case[key].as_str() else { continue };
                let mut found = Vec::new();
                format.write(&values, &mut found);
                let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(found, expected, "{} as {key}", case["name"]);
                assert_eq!(format.bytes(values.len()), expected.len() / 2);
            }
        }
    }
}
