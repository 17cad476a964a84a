//! Location of a row.

use std::path::Path;
use std::sync::Arc;

use crate::Error;

/// Location of a row: its file and line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowLocation {
    /// File, as the user named it.
    pub file: Arc<Path>,
    /// Line on which the row begins, or the row number in Parquet and Arrow files. From 1.
    pub line: usize,
    /// Row number, from 1, in a JSON array that has several rows on this line.
    pub row_in_array: Option<usize>,
}

impl RowLocation {
    pub(super) fn new(file: &Arc<Path>, line: usize) -> Self {
        Self { file: file.clone(), line, row_in_array: None }
    }

    /// Creates an error about this row.
    pub fn error(&self, message: impl Into<String>) -> Error {
        let message = message.into();
        let message = match self.row_in_array {
            Some(row) => format!("{message} (row {row} of the array)"),
            None => message,
        };
        Error::data(&*self.file, Some(self.line), message)
    }
}

impl std::fmt::Display for RowLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)?;
        match self.row_in_array {
            Some(row) => write!(f, " (row {row})"),
            None => Ok(()),
        }
    }
}
