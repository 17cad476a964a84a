//! What all writers of files share.

use std::fs::{self, File};
use std::path::Path;

use crate::error::{Error, Result};

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
    use safetensors::tensor::{Dtype, TensorView};

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
