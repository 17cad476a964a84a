//! What all readers and writers of files share, and the tensors in them.

pub mod atomic;
mod network;
pub mod output;

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use safetensors::tensor::{Dtype, View};

use crate::error::{Error, Result};
pub use network::network_file_system;

/// The most that a file of settings may hold, and one of a tokenizer: ten times what is known.
pub(crate) const SETTINGS_BYTES: u64 = 64 << 20;
pub(crate) const TOKENIZER_BYTES: u64 = 1 << 30;
/// The files that a tokenizer is read from: one of them lies in every directory of a tokenizer.
pub(crate) const TOKENIZERS: [&str; 7] = [
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spm.model",
];

/// Opens a regular file. A pipe or a device is refused: it blocks whoever opens it, or has no end.
///
/// # Errors
/// The operating system's, or what it is instead.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_dir() {
        return File::open(path);
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

/// What the regular file `path` holds, of at most `most` bytes.
///
/// # Errors
/// As [`open`]; or when it is larger, before it is read.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let size = file.metadata()?.len();
    if size > most {
        let message = format!("it has {size} bytes, but at most {most} are read");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // A file may grow meanwhile.
    file.by_ref().take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// [`read`] of a text.
///
/// # Errors
/// As [`read`]; or when it is not UTF-8.
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("byte {} is not UTF-8", at + 1))
    })
}

/// One tensor with its name, as host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor<'a> {
    /// The key in the file.
    pub name: Cow<'a, str>,
    /// The sizes of its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The values in row-major order.
    pub values: Cow<'a, [f32]>,
}

impl<'a> NamedTensor<'a> {
    /// A tensor that owns or borrows its values.
    ///
    /// # Panics
    /// When `shape` does not hold that many values.
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

/// One tensor of codes of a byte each, with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedCodes<'a> {
    /// The key in the file.
    pub name: Cow<'a, str>,
    /// The sizes of its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The codes in row-major order.
    pub codes: Cow<'a, [u8]>,
}

/// A tensor of a file of state: numbers or codes.
#[derive(Debug, Clone, PartialEq)]
pub enum StateTensor<'a> {
    /// In f32.
    Numbers(NamedTensor<'a>),
    /// A byte each.
    Codes(NamedCodes<'a>),
}

impl StateTensor<'_> {
    /// The key in the file.
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

/// Writes safetensors to `path`, with the permissions that a new file gets here: the library writes through a temporary
/// file that only its owner may read.
///
/// # Errors
/// [`Error::Io`], or [`Error::Model`] where the tensors do not make a file.
pub(crate) fn write_safetensors<N, V, I>(
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
