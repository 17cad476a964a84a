//! The file format: a header of keys and values, a list of tensors, and their numbers, aligned to 32 bytes.
//!
//! GGUF version 3, little-endian: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::io::Write;

use super::blocks::GgufWeights;

/// Alignment of tensors in bytes.
const ALIGNMENT: usize = 32;

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    U32(u32),
    F32(f32),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<f32>),
    Counts(Vec<i32>),
}

impl Value {
    /// Returns the type code, and for a list also that of its elements.
    fn types(&self) -> (u32, Option<u32>) {
        const LIST: u32 = 9;
        match self {
            Self::U32(_) => (4, None),
            Self::F32(_) => (6, None),
            Self::Flag(_) => (7, None),
            Self::Text(_) => (8, None),
            Self::Texts(_) => (LIST, Some(8)),
            Self::Numbers(_) => (LIST, Some(6)),
            Self::Counts(_) => (LIST, Some(5)),
        }
    }

    fn write(&self, to: &mut Vec<u8>) {
        let (own, of_elements) = self.types();
        to.extend(own.to_le_bytes());
        to.extend(of_elements.into_iter().flat_map(u32::to_le_bytes));
        match self {
            Self::U32(value) => to.extend(value.to_le_bytes()),
            Self::F32(value) => to.extend(value.to_le_bytes()),
            Self::Flag(value) => to.push(u8::from(*value)),
            Self::Text(value) => text(value, to),
            Self::Texts(values) => list(values, to, |value, to| text(value, to)),
            Self::Numbers(values) => list(values, to, |value, to| to.extend(value.to_le_bytes())),
            Self::Counts(values) => list(values, to, |value, to| to.extend(value.to_le_bytes())),
        }
    }
}

fn text(value: &str, to: &mut Vec<u8>) {
    to.extend((value.len() as u64).to_le_bytes());
    to.extend(value.as_bytes());
}

fn list<T>(values: &[T], to: &mut Vec<u8>, mut write: impl FnMut(&T, &mut Vec<u8>)) {
    to.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|value| write(value, to));
}

/// A tensor of the file. Its values are computed when they are written.
pub(super) struct Tensor {
    pub name: String,
    /// Row-major: the last dimension is contiguous.
    pub dims: Vec<usize>,
    pub values: Box<dyn Fn() -> Vec<f32>>,
}

impl Tensor {
    fn size(&self) -> usize {
        self.dims.iter().product()
    }
}

/// Writes a file with these keys and tensors, and the weights in the format `weights`.
pub(super) fn write(
    metadata: &[(String, Value)],
    tensors: &[Tensor],
    weights: GgufWeights,
    to: &mut dyn Write,
) -> std::io::Result<()> {
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(key, &mut header);
        value.write(&mut header);
    }
    let mut offset = 0;
    for tensor in tensors {
        let format = weights.of(&tensor.dims);
        text(&tensor.name, &mut header);
        header.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().rev().for_each(|&dim| header.extend((dim as u64).to_le_bytes()));
        header.extend(format.tensor_type().to_le_bytes());
        header.extend((offset as u64).to_le_bytes());
        offset += format.bytes(tensor.size()).next_multiple_of(ALIGNMENT);
    }
    let aligned = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    aligned(&mut header);
    to.write_all(&header)?;
    let mut bytes = Vec::new();
    for tensor in tensors {
        bytes.clear();
        weights.of(&tensor.dims).write(&(tensor.values)(), &mut bytes);
        aligned(&mut bytes);
        to.write_all(&bytes)?;
    }
    Ok(())
}
