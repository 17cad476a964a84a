//! PyTorch's weight files (`pytorch_model.bin`): location of each tensor in the file.
//!
//! There are two formats. Since PyTorch 1.6, the file is an uncompressed zip archive with `data.pkl` and one file per storage. Before that,
//! it was a sequence of pickles, followed by the storages. [`pickle`](super::pickle) reads the pickles and executes nothing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::tensor::{Dtype, TensorInfo};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{PICKLE_BYTES, Pickle, Storage, StoredTensor, Value};
use crate::border;

/// First bytes of a zip archive.
const ZIP: [u8; 4] = *b"PK\x03\x04";

/// First bytes of the older format: a pickle of `torch.serialization.MAGIC_NUMBER`.
const OLD: [u8; 14] = [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// Location of each storage: its first byte, and its size in bytes.
type Places = HashMap<String, (u64, u64)>;

/// Returns the tensors of a file by name, each with the range of its bytes in the file.
///
/// # Errors
/// Describes the problem with the file.
pub(super) fn tensors(file: &File, path: &Path) -> Result<Vec<(String, TensorInfo)>, String> {
    let mut start = Vec::new();
    let mut source = BufReader::new(file);
    source.by_ref().take(OLD.len() as u64).read_to_end(&mut start).map_err(|error| error.to_string())?;
    source.rewind().map_err(|error| error.to_string())?;
    let (pickle, places) = if start.starts_with(&ZIP) {
        border::catch_panic(|| of_archive(source))
            .map_err(|panicked| format!("not a readable archive: {panicked}"))??
    } else if start == OLD {
        of_sequence(source)?
    } else {
        return Err(format!("`{}` is neither an archive nor a pickle of PyTorch", path.display()));
    };
    let mut found = Vec::new();
    for (name, value) in pickle.entries()? {
        match value {
            Value::Tensor(tensor) => {
                let info = place(&pickle, tensor, &places).map_err(|what| format!("tensor `{name}` {what}"))?;
                found.push((name.to_owned(), info));
            }
            Value::Dict(_) => {
                return Err(format!("`{name}` is a mapping: a training checkpoint, not the weights of a model alone"));
            }
            _ => {}
        }
    }
    Ok(found)
}

fn of_archive(source: BufReader<&File>) -> Result<(Pickle, Places), String> {
    let broken = |error: &dyn std::fmt::Display| format!("not a readable archive: {error}");
    let mut archive = ZipArchive::new(source).map_err(|error| broken(&error))?;
    let names: Vec<String> = archive
        .file_names()
        .map(|name| name.map(|name| name.into_owned()))
        .collect::<Result<_, _>>()
        .map_err(|error| broken(&error))?;
    let folder = names.iter().find_map(|name| name.strip_suffix("/data.pkl"));
    let folder = folder.ok_or("the archive has no `data.pkl`")?.to_owned();
    if let Ok(mut order) = archive.by_name(&format!("{folder}/byteorder")) {
        let mut text = String::new();
        order.by_ref().take(16).read_to_string(&mut text).map_err(|error| broken(&error))?;
        if text != "little" {
            return Err(format!("its numbers are stored `{text}`-endian; gradus reads `little`"));
        }
    }
    let pickle = {
        let mut entry = archive.by_name(&format!("{folder}/data.pkl")).map_err(|error| broken(&error))?;
        Pickle::read(&mut entry.by_ref().take(PICKLE_BYTES))?
    };
    let (data, mut places) = (format!("{folder}/data/"), Places::new());
    for (index, name) in names.iter().enumerate() {
        let Some(key) = name.strip_prefix(&data) else { continue };
        let entry = archive.by_index_raw(index).map_err(|error| broken(&error))?;
        if entry.compression() != CompressionMethod::Stored {
            return Err(format!("`{name}` is compressed, which PyTorch never writes"));
        }
        let start = entry.data_start().ok_or_else(|| format!("`{name}` has no place in the archive"))?;
        places.insert(key.to_owned(), (start, entry.size()));
    }
    Ok((pickle, places))
}

fn of_sequence(mut source: BufReader<&File>) -> Result<(Pickle, Places), String> {
    // The magic number, the format version, and the sizes of C types.
    for _ in 0..3 {
        Pickle::read(&mut source)?;
    }
    let (pickle, keys) = (Pickle::read(&mut source)?, Pickle::read(&mut source)?);
    let keys = keys.texts().ok_or("the list of its storages is not a list of names")?;
    let storages: HashMap<&str, &Storage> = pickle.storages().map(|storage| (storage.key.as_str(), storage)).collect();
    let mut places = Places::new();
    for key in keys {
        let storage = storages.get(key).ok_or("it has a storage that no tensor uses")?;
        let mut length = [0; 8];
        source.read_exact(&mut length).map_err(|_| "truncated: a storage is missing")?;
        let start = source.stream_position().map_err(|error| error.to_string())?;
        let bytes =
            u64::from_le_bytes(length).checked_mul(width(storage.dtype)).ok_or("a storage has too many numbers")?;
        places.insert(key.to_owned(), (start, bytes));
        let next = start.checked_add(bytes).ok_or("a storage has too many numbers")?;
        source.seek(SeekFrom::Start(next)).map_err(|error| error.to_string())?;
    }
    Ok((pickle, places))
}

fn width(dtype: Dtype) -> u64 {
    (dtype.bitsize() / 8) as u64
}

/// Returns the location of a tensor's values.
fn place(pickle: &Pickle, tensor: &StoredTensor, places: &Places) -> Result<TensorInfo, String> {
    let Value::Storage(storage) = pickle.get(tensor.storage) else { return Err("has no storage".into()) };
    let mut dense = 1_usize;
    for (&size, &stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
        if size != 1 && stride != dense {
            return Err(format!(
                "is a view with the strides {:?} for its shape {:?}; only whole tensors are read",
                tensor.strides, tensor.shape
            ));
        }
        dense = dense.checked_mul(size).ok_or("has too many numbers")?;
    }
    if tensor.shape.len() != tensor.strides.len() {
        return Err("has a stride too many or too few".into());
    }
    let &(start, bytes) =
        places.get(&storage.key).ok_or_else(|| format!("lies in `{}`, which is missing", storage.key))?;
    let width = width(storage.dtype);
    let range = (tensor.offset as u64).checked_mul(width).zip((dense as u64).checked_mul(width));
    let (before, own) = range.ok_or("has too many numbers")?;
    if before.checked_add(own).is_none_or(|end| end > bytes) {
        return Err(format!("has {own} bytes from byte {before} on, but its storage has {bytes}"));
    }
    let from = usize::try_from(start + before).map_err(|_| "lies too far in the file")?;
    let to = from.checked_add(own as usize).ok_or("lies too far in the file")?;
    Ok(TensorInfo { dtype: storage.dtype, shape: tensor.shape.clone(), data_offsets: (from, to) })
}
