//! Writes rows of other libraries to files.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use gradus::data::arrow::arrow_array::RecordBatchReader as _;
use gradus::data::arrow::arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use gradus::data::arrow::write_stream;
use gradus::files::cache::keep;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::callables::text_of;
use crate::errors::exception;

/// Writes a table with Arrow's C stream interface to a file in `folder`, batch by batch and unchanged. Returns the path, whose name is
/// derived from the content.
///
/// # Errors
/// Raises `ValueError` if it has images or a batch cannot be read, and the exception for a file that cannot be written.
#[pyfunction]
pub fn write_table(py: Python<'_>, table: &Bound<'_, PyAny>, folder: PathBuf) -> PyResult<String> {
    let capsule = table.call_method0("__arrow_c_stream__")?;
    let capsule = capsule
        .cast::<PyCapsule>()
        .map_err(|_| PyTypeError::new_err("`__arrow_c_stream__` did not return a capsule"))?;
    let pointer = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name holds a pointer to an `ArrowArrayStream` that is valid while the capsule lives. Taking the stream out
    // leaves a released stream, which the capsule's destructor ignores.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr()) };
    let reader = RecordBatchStreamReader::try_new(stream).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let schema = reader.schema();
    if let Some(field) = schema.fields().iter().find(|field| ["image", "images"].contains(&field.name().as_str())) {
        let name = field.name();
        return Err(PyValueError::new_err(format!(
            "the rows have images (column `{name}`), but gradus trains on text"
        )));
    }
    let kept = py.detach(move || {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".{}-{number}.arrow", std::process::id()));
        let kept = match write_stream(reader, &schema, &path) {
            Ok(0) => Err(gradus::Error::input("there are no rows")),
            Ok(_) => keep(&path, &folder),
            Err(error) => Err(error),
        };
        if kept.is_err() {
            // Remove the partial file of a table that cannot be read.
            let _ = fs::remove_file(&path);
        }
        kept
    });
    kept.map(|kept| text_of(&kept)).map_err(|error| exception(py, error))
}

/// Moves a file into `folder` under a name derived from its content, and returns its new path. An existing file with the same content is
/// kept.
///
/// # Errors
/// Raises an exception if the file cannot be read or moved.
#[pyfunction]
pub fn keep_file(py: Python<'_>, path: PathBuf, folder: PathBuf) -> PyResult<String> {
    let kept = py.detach(|| keep(&path, &folder));
    kept.map(|kept| text_of(&kept)).map_err(|error| exception(py, error))
}
