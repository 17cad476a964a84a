//! Quantized weights in their file format: codes and scales of a linear layer, output after output.
//!
//! Both kinds follow bitsandbytes: [`Int8`] its `Linear8bitLt`, [`Nf4`] its `Linear4bit`. Weights are written back exactly as they were
//! read. Products use [`FrozenWeight`](crate::FrozenWeight), which holds the same numbers in another order.

mod nf4;

pub use nf4::{Absmax, BLOCK, NESTED_BLOCK, NF4_MAP, NestedAbsmax, Nf4};

/// A weight in one of the two formats.
#[derive(Debug, Clone, PartialEq)]
pub enum Quantized {
    /// In 8 bits.
    Int8(Int8),
    /// In 4 bits.
    Nf4(Nf4),
}

impl Quantized {
    /// Numbers of outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Int8(weight) => weight.shape(),
            Self::Nf4(weight) => weight.shape(),
        }
    }
}

/// A weight of integers: element `(o, i)` is `codes[o · in + i] · absmax[o] / 127`.
#[derive(Debug, Clone, PartialEq)]
pub struct Int8 {
    shape: [usize; 2],
    codes: Vec<i8>,
    absmax: Vec<f32>,
}

impl Int8 {
    /// Creates a weight of `shape`, `[out, in]`.
    ///
    /// # Errors
    /// If the number of codes or scales does not fit the shape.
    pub fn new(shape: [usize; 2], codes: Vec<i8>, absmax: Vec<f32>) -> Result<Self, String> {
        let [out, width] = shape;
        check("codes", codes.len(), out * width)?;
        check("largest magnitudes", absmax.len(), out)?;
        Ok(Self { shape, codes, absmax })
    }

    /// Numbers of outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Integers from −127 to 127, `[out, in]`.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// Largest magnitude of each output.
    pub fn absmax(&self) -> &[f32] {
        &self.absmax
    }
}

/// Checks that there are `expected` numbers.
fn check(what: &str, found: usize, expected: usize) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found} {what}, expected {expected}")) }
}
