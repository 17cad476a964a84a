//! What all writers of files share, and the tensors in them.

use std::borrow::Cow;
use std::fs::{self, File};
use std::path::Path;

use safetensors::tensor::{Dtype, View};

use crate::error::{Error, Result};

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
