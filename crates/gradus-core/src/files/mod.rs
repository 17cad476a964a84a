//! Functions for all readers and writers of files, and the tensors in files.

pub mod atomic;
pub mod cache;
pub mod durable;
mod network;
pub mod output;

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use safetensors::tensor::{Dtype, View};

use crate::error::{Error, Result};
pub use network::network_file_system;

/// Maximum size of a settings file, ten times the largest known one.
pub const SETTINGS_BYTES: u64 = 64 << 20;
/// Maximum size of a tokenizer file, ten times the largest known one.
pub const TOKENIZER_BYTES: u64 = 1 << 30;
/// Tokenizer files. Every directory with a tokenizer has one of them.
pub const TOKENIZERS: [&str; 7] = [
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spm.model",
];

/// Opens a regular file. A pipe or a device is rejected, because opening it may block, or it may have no end.
///
/// # Errors
/// An error of the operating system, or what the path is instead of a file.
pub fn open(path: &Path) -> io::Result<File> {
    check_regular(path)?;
    File::open(path)
}

/// Rejects a pipe, a socket or a device.
///
/// # Errors
/// As for [`open`].
pub fn check_regular(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_dir() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, but a file is needed", special(kind))))
}

#[cfg(unix)]
fn special(kind: fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn special(_: fs::FileType) -> &'static str {
    "a device"
}

/// Reads the regular file `path`, of at most `most` bytes.
///
/// # Errors
/// As for [`open`], or if the file is larger, which is checked before reading.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let size = file.metadata()?.len();
    if size > most {
        let message = format!("it has {size} bytes, but at most {most} are read");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // The file may grow while it is read.
    file.by_ref().take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file of a run, of any size. Runs may come from others, so a pipe or a device is rejected.
///
/// # Errors
/// As for [`open`].
pub fn read_run(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read(path.as_ref(), u64::MAX)
}

/// Reads a text file of a run like [`read_run`].
///
/// # Errors
/// As for [`read_run`], or if the file is not UTF-8.
pub fn read_run_text(path: impl AsRef<Path>) -> io::Result<String> {
    read_text(path.as_ref(), u64::MAX)
}

/// Reads a text file like [`read`].
///
/// # Errors
/// As for [`read`], or if the file is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("byte {} is not UTF-8", at + 1))
    })
}

/// A named tensor in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor<'a> {
    /// Key in the file.
    pub name: Cow<'a, str>,
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Values in row-major order.
    pub values: Cow<'a, [f32]>,
}

impl<'a> NamedTensor<'a> {
    /// Creates a tensor that owns or borrows its values.
    ///
    /// # Panics
    /// If the number of values does not match `shape`.
    pub fn new(name: impl Into<Cow<'a, str>>, shape: impl Into<Vec<usize>>, values: impl Into<Cow<'a, [f32]>>) -> Self {
        let (name, shape, values) = (name.into(), shape.into(), values.into());
        assert_eq!(shape.iter().product::<usize>(), values.len(), "shape of `{name}`");
        Self { name, shape, values }
    }
}

impl View for &NamedTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = Vec::with_capacity(self.data_len());
        self.values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        bytes.into()
    }
    fn data_len(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}

/// A named tensor of one-byte codes.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedCodes<'a> {
    /// Key in the file.
    pub name: Cow<'a, str>,
    /// Sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Codes in row-major order.
    pub codes: Cow<'a, [u8]>,
}

/// A tensor in a state file: numbers or codes.
#[derive(Debug, Clone, PartialEq)]
pub enum StateTensor<'a> {
    /// Values in f32.
    Numbers(NamedTensor<'a>),
    /// Codes of one byte each.
    Codes(NamedCodes<'a>),
}

impl StateTensor<'_> {
    /// Returns the key in the file.
    pub fn name(&self) -> &str {
        match self {
            Self::Numbers(tensor) => &tensor.name,
            Self::Codes(tensor) => &tensor.name,
        }
    }
}

impl<'a> From<NamedTensor<'a>> for StateTensor<'a> {
    fn from(tensor: NamedTensor<'a>) -> Self {
        Self::Numbers(tensor)
    }
}

impl View for &StateTensor<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            StateTensor::Numbers(tensor) => tensor.dtype(),
            StateTensor::Codes(_) => Dtype::U8,
        }
    }
    fn shape(&self) -> &[usize] {
        match self {
            StateTensor::Numbers(tensor) => &tensor.shape,
            StateTensor::Codes(tensor) => &tensor.shape,
        }
    }
    fn data(&self) -> Cow<'_, [u8]> {
        match self {
            StateTensor::Numbers(tensor) => Cow::Owned(tensor.data().into_owned()),
            StateTensor::Codes(tensor) => Cow::Borrowed(&tensor.codes),
        }
    }
    fn data_len(&self) -> usize {
        match self {
            StateTensor::Numbers(tensor) => tensor.data_len(),
            StateTensor::Codes(tensor) => tensor.codes.len(),
        }
    }
}

/// Writes safetensors to `path` with the usual permissions of new files. The library writes through a temporary file that only its
/// owner can read.
///
/// # Errors
/// [`Error::Io`], or [`Error::Model`] if the tensors do not form a valid file.
pub fn write_safetensors<N, V, I>(
    tensors: I,
    metadata: Option<std::collections::HashMap<String, String>>,
    path: &Path,
) -> Result<()>
where
    N: AsRef<str> + Ord + std::fmt::Display,
    V: safetensors::View,
    I: IntoIterator<Item = (N, V)>,
{
    let io = |source| Error::io(path, source);
    let usual = File::create(path).and_then(|file| file.metadata()).map_err(io)?.permissions();
    safetensors::serialize_to_file(tensors, metadata, path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(source) => io(source),
        other => Error::model(path, other.to_string()),
    })?;
    fs::set_permissions(path, usual).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    #[test]
    #[cfg(unix)]
    fn what_has_no_end_is_not_opened() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let pipe = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        let refused = |path: &Path| read(path, 100).expect_err("refused").to_string();
        assert_eq!(refused(&pipe), "it is a pipe, but a file is needed");
        assert_eq!(refused("/dev/urandom".as_ref()), "it is a device, but a file is needed");
        let file = directory.path().join("large");
        fs::write(&file, [b'a'; 101]).expect("written");
        assert_eq!(refused(&file), "it has 101 bytes, but at most 100 are read");
        fs::write(&file, b"ab\xff").expect("written");
        assert_eq!(read_text(&file, 100).expect_err("no text").to_string(), "byte 3 is not UTF-8");
    }

    #[test]
    #[cfg(unix)]
    fn a_file_of_tensors_may_be_read_by_whom_any_new_file_may() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (path, plain) = (directory.path().join("a.safetensors"), directory.path().join("plain"));
        let bytes = 1.0f32.to_le_bytes();
        let view = TensorView::new(Dtype::F32, vec![1], &bytes).expect("a tensor");
        write_safetensors([("a", view)], None, &path).expect("written");
        fs::write(&plain, "").expect("written");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
    }
}
