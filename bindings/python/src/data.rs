//! Rows of other libraries as files.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use ring::digest::{Context, SHA256};

use crate::callables::text_of;
use crate::errors::exception;

/// Moves a file into `folder`, under a name made of its content, and gives its path there. A file of the same content stays.
///
/// # Errors
/// When it cannot be read or moved.
#[pyfunction]
pub fn keep_file(py: Python<'_>, path: PathBuf, folder: PathBuf) -> PyResult<String> {
    let kept = py.detach(|| keep(&path, &folder));
    kept.map(|kept| text_of(&kept)).map_err(|error| exception(py, error))
}

fn keep(path: &Path, folder: &Path) -> gradus::Result<PathBuf> {
    let failed = |source| gradus::Error::io(path, source);
    let mut file = fs::File::open(path).map_err(failed)?;
    let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => break,
            read => context.update(&buffer[..read]),
        }
    }
    let name: String = context.finish().as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let extension = path.extension().unwrap_or_default();
    let kept = folder.join(name).with_extension(extension);
    fs::rename(path, &kept).map_err(failed)?;
    Ok(kept)
}
