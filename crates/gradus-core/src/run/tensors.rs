//! Named tensors in safetensors files: optimizer moments and other state outside the model.

use std::io::Read;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::files;
pub use crate::files::{NamedCodes, NamedTensor, StateTensor};

/// Writes tensors to a safetensors file. The order in the file depends only on the names.
///
/// # Errors
/// [`Error::Io`] with the path.
pub fn write_tensors(path: &Path, tensors: &[NamedTensor<'_>]) -> Result<()> {
    let entries = tensors.iter().map(|tensor| (tensor.name.as_ref(), tensor));
    files::write_safetensors(entries, None, path)
}

/// As [`write_tensors`], for numbers and codes.
///
/// # Errors
/// [`Error::Io`] with the path.
pub fn write_state(path: &Path, tensors: &[StateTensor<'_>]) -> Result<()> {
    files::write_safetensors(tensors.iter().map(|tensor| (tensor.name(), tensor)), None, path)
}

/// Reads every tensor of a safetensors file, in the order of their names.
///
/// # Errors
/// [`Error::Io`], or [`Error::Model`] if the file is corrupt or contains formats other than `f32`.
pub fn read_tensors(path: &Path) -> Result<Vec<NamedTensor<'static>>> {
    let numbers = |tensor| match tensor {
        StateTensor::Numbers(tensor) => Ok(tensor),
        StateTensor::Codes(tensor) => Err(Error::model(path, format!("`{}` is U8, expected F32", tensor.name))),
    };
    read(path, "F32")?.into_iter().map(numbers).collect()
}

/// As [`read_tensors`], for numbers and codes.
///
/// # Errors
/// [`Error::Io`], or [`Error::Model`] if the file is corrupt or contains formats other than `f32` and `u8`.
pub fn read_state(path: &Path) -> Result<Vec<StateTensor<'static>>> {
    read(path, "F32 or U8")
}

/// Reads the tensors of a file. `expected` names the accepted formats in messages.
fn read(path: &Path, expected: &str) -> Result<Vec<StateTensor<'static>>> {
    let bytes = files::read_run(path).map_err(|source| Error::io(path, source))?;
    check_length(path)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| Error::model(path, error.to_string()))?;
    let mut tensors = Vec::with_capacity(file.len());
    for (name, view) in file.iter() {
        let (name, shape) = (name.to_owned(), view.shape().to_vec());
        tensors.push(match view.dtype() {
            Dtype::F32 => {
                let values: Vec<f32> =
                    view.data().as_chunks().0.iter().map(|&bytes: &[u8; 4]| f32::from_le_bytes(bytes)).collect();
                StateTensor::Numbers(NamedTensor::new(name, shape, values))
            }
            Dtype::U8 => {
                StateTensor::Codes(NamedCodes { name: name.into(), shape, codes: view.data().to_vec().into() })
            }
            other => return Err(Error::model(path, format!("`{name}` is {other}, expected {expected}"))),
        });
    }
    tensors.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(tensors)
}

/// Compares a safetensors file's length with its header, without reading the tensors.
///
/// # Errors
/// [`Error::Io`], or [`Error::Model`] if the header is corrupt or the file was cut off.
pub fn check_length(path: &Path) -> Result<()> {
    let io = |source| Error::io(path, source);
    let mut file = files::open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?.len();
    let mut header = vec![0; 8];
    let cut_off = || Error::model(path, format!("not a safetensors file, or cut off: {found} bytes"));
    file.read_exact(&mut header).map_err(|_| cut_off())?;
    let header_bytes = u64::from_le_bytes(header[..8].try_into().expect("eight bytes"));
    if header_bytes > found.saturating_sub(8) {
        return Err(cut_off());
    }
    header.clear();
    file.take(header_bytes).read_to_end(&mut header).map_err(io)?;
    let entries: Map<String, Value> =
        serde_json::from_slice(&header).map_err(|error| Error::model(path, format!("broken header: {error}")))?;
    let end = |entry: &Value| entry.get("data_offsets")?.get(1)?.as_u64();
    let expected = 8 + header_bytes + entries.values().filter_map(end).max().unwrap_or(0);
    if found == expected {
        return Ok(());
    }
    Err(Error::model(path, format!("{found} bytes, but its header promises {expected}")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn tensors_come_back_bit_for_bit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("optimizer.safetensors");
        let values = [0.1, -0.0, f32::MIN_POSITIVE, 3.0e38, 1.0, -2.5];
        let tensors = [
            NamedTensor::new("exp_avg_sq.b", [2, 3], &values[..]),
            NamedTensor::new("exp_avg.a", [1], vec![7.0]),
            NamedTensor::new("empty", [0], vec![]),
        ];
        write_tensors(&path, &tensors).unwrap();
        let read = read_tensors(&path).unwrap();
        let names: Vec<_> = read.iter().map(|tensor| tensor.name.as_ref()).collect();
        assert_eq!(names, ["empty", "exp_avg.a", "exp_avg_sq.b"]);
        assert_eq!(read[2].shape, [2, 3]);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read[2].values), bits(&values));
        check_length(&path).unwrap();
    }

    #[test]
    fn codes_come_back_beside_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("optimizer.safetensors");
        let codes = NamedCodes { name: "exp_avg.a".into(), shape: vec![3], codes: vec![0, 255, 7].into() };
        let tensors = [StateTensor::Codes(codes), NamedTensor::new("exp_avg_absmax.a", [1], vec![0.5]).into()];
        write_state(&path, &tensors).unwrap();
        assert_eq!(read_state(&path).unwrap(), tensors);
        let expected = format!("{}: `exp_avg.a` is U8, expected F32", path.display());
        assert_eq!(read_tensors(&path).unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_truncated_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("optimizer.safetensors");
        write_tensors(&path, &[NamedTensor::new("a", [4], vec![1.0; 4])]).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        let expected =
            format!("{}: {} bytes, but its header promises {}", path.display(), bytes.len() - 5, bytes.len());
        assert_eq!(check_length(&path).unwrap_err().to_string(), expected);
        assert_eq!(read_tensors(&path).unwrap_err().to_string(), expected);
        fs::write(&path, &bytes[..20]).unwrap();
        let message = check_length(&path).unwrap_err().to_string();
        assert_eq!(message, format!("{}: not a safetensors file, or cut off: 20 bytes", path.display()));
    }
}
