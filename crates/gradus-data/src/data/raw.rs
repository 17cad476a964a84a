//! Untyped rows as stored in files, and the limits of every reader.

use std::io::{self, BufRead};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::json;
use super::message::kind_name;
use super::row_location::RowLocation;
use crate::{Error, Result};

/// An untyped row: its columns as JSON, in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct RawRow {
    /// File and line.
    pub location: RowLocation,
    /// All columns.
    pub columns: Map<String, Value>,
}

/// File that is read, and whether it is gzipped, for messages.
pub(super) struct Origin {
    pub file: Arc<Path>,
    pub gzip: bool,
}

impl Origin {
    /// Returns the error of a read that failed after `line` good lines.
    pub fn failed(&self, line: usize, error: &io::Error) -> Error {
        let after = if line == 0 { "before the first row".to_owned() } else { format!("after line {line}") };
        match (self.gzip, error.kind()) {
            (true, io::ErrorKind::UnexpectedEof) => {
                Error::data(&*self.file, None, format!("the gzip data is cut off {after}"))
                    .with_hint("the file is not complete; copy or download it again")
            }
            (true, _) => Error::data(&*self.file, None, format!("the gzip data is corrupt {after} ({error})"))
                .with_hint("copy or download the file again"),
            (false, kind) => Error::io(&*self.file, io::Error::new(kind, error.to_string())),
        }
    }
}

/// Maximum size of one row. A text of a million words takes a tenth of it.
pub(super) const ROW_BYTES: usize = 64 << 20;

/// Returns the error for a row that is too large. It concerns the whole file, because nothing is read after it.
pub(super) fn too_large(file: &Path, line: usize) -> Error {
    let message = format!("the row on line {line} has more than {ROW_BYTES} bytes, the limit for a row");
    Error::data(file, None, message)
}

/// Returns the error for a row with a NaN or an infinity in `column`.
pub(super) fn not_finite(location: &RowLocation, column: &str) -> Error {
    location
        .error(format!("column `{column}` holds a number that is not finite"))
        .with_hint("rows have no such number: write null in its place, or leave the column out")
}

/// Parses a row from its JSON text.
pub(super) fn parse_object(bytes: &[u8], mut location: RowLocation) -> Result<RawRow> {
    if let Err(e) = std::str::from_utf8(bytes) {
        return Err(location.error(format!("not valid UTF-8 at byte {} of the row", e.valid_up_to() + 1)));
    }
    match json::parse(bytes) {
        Ok(Value::Object(columns)) => Ok(RawRow { location, columns }),
        Ok(other) => Err(location.error(format!("a row is an object with named columns, found {}", kind_name(&other)))),
        Err(json::Fault { message, line, column }) => {
            location.line += line.saturating_sub(1);
            Err(location.error(format!("{message}, at column {column}")))
        }
    }
}

/// Reads a whole stream into memory.
pub(super) fn read_all(origin: &Origin, input: &mut dyn BufRead) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes).map_err(|e| origin.failed(0, &e))?;
    Ok(bytes)
}
