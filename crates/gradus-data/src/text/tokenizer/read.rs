//! Reads the files of a tokenizer.

use std::path::Path;

use serde_json::Value;

use crate::text::tokenizer_bounds;
use crate::{Error, Result, border, files};

/// Parses `bytes` of a `tokenizer.json`. `path` is their origin.
pub(super) fn from_json(path: &Path, bytes: &[u8]) -> Result<tokenizers::Tokenizer> {
    tokenizer_bounds::check(bytes).map_err(|what| Error::model(path, what))?;
    border::catch_panic(|| tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string()))
        .flatten()
        .map_err(|error| Error::model(path, format!("not a tokenizer: {error}")))
}

/// Reads a file of settings. `None` if it does not exist.
pub(super) fn read_json(path: &Path) -> Result<Option<Value>> {
    let bytes = match files::read(path, files::TOKENIZER_BYTES) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, e)),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| Error::model(path, format!("not valid JSON: {e}")))
}
