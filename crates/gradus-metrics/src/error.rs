//! Errors in the options of a metric and in the files that they name.

use std::io;
use std::path::{Path, PathBuf};

/// `Result` with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A metric cannot be created. Errors in a row are [`RowError`](crate::RowError)s.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option has an invalid value.
    #[error("{message}")]
    Options {
        /// What was found and what was expected.
        message: String,
        /// What the user can do about it.
        hint: Option<String>,
    },

    /// A file has unexpected contents.
    #[error("{}: {message}", location(.file, *.line))]
    Data {
        /// Path of the file.
        file: PathBuf,
        /// Line number, from 1.
        line: Option<usize>,
        /// What was found and what was expected.
        message: String,
        /// What the user can do about it.
        hint: Option<String>,
    },

    /// A file cannot be read.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
}

fn location(file: &Path, line: Option<usize>) -> String {
    match line {
        Some(line) => format!("{}:{line}", file.display()),
        None => file.display().to_string(),
    }
}

impl Error {
    pub(crate) fn options(message: impl Into<String>) -> Self {
        Self::Options { message: message.into(), hint: None }
    }

    pub(crate) fn data(file: impl Into<PathBuf>, line: Option<usize>, message: impl Into<String>) -> Self {
        Self::Data { file: file.into(), line, message: message.into(), hint: None }
    }

    pub(crate) fn io(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    pub(crate) fn with_hint(mut self, text: impl Into<String>) -> Self {
        match &mut self {
            Self::Options { hint, .. } | Self::Data { hint, .. } => *hint = Some(text.into()),
            Self::Io { .. } => {}
        }
        self
    }

    /// Returns what the user can do about the error.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Options { hint, .. } | Self::Data { hint, .. } => hint.as_deref(),
            Self::Io { .. } => None,
        }
    }
}
