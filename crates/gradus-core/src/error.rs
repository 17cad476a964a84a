//! The error type of the library. Its variants differ in what the caller can do about them.
//!
//! Messages are lower case without a full stop, put literals in backticks, and state the found and the expected value.
//! A panic is a bug in gradus; an `Err` has an external cause.

use std::path::{Path, PathBuf};

/// `Result` with gradus' [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong outside gradus' own logic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration or the flags are wrong; lists all problems, not only the first.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<Diagnostic>),

    /// A data file or row is wrong.
    #[error("{}: {message}", location(.file, *.line))]
    Data {
        /// File, as the user named it.
        file: PathBuf,
        /// Line (text files) or row number (Parquet, Arrow, JSON arrays), counted from 1.
        line: Option<usize>,
        /// The problem and the value found.
        message: String,
        /// Hint about what to do.
        hint: Option<String>,
    },

    /// A model directory cannot be used: files, shapes, names, configuration.
    #[error("{}: {message}", .path.display())]
    Model {
        /// File or directory.
        path: PathBuf,
        /// The problem, with the found and the expected value.
        message: String,
        /// Hint about what to do.
        hint: Option<String>,
    },

    /// A loss, gradient or reward became NaN or infinite.
    #[error("step {step}: {what}")]
    Diverged {
        /// Failed optimizer step, counted from 1.
        step: usize,
        /// Quantity that was not finite.
        what: String,
        /// Path to which the offending batch was written.
        batch: Option<PathBuf>,
    },

    /// A reward could not be computed. It never becomes 0, because 0 is a judgement.
    #[error("reward for prompt {row}: {message}")]
    Reward {
        /// Row of the prompt, counted from 1.
        row: usize,
        /// Description of the failure.
        message: String,
        /// Hint about what to do.
        hint: Option<String>,
    },

    /// A file could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },

    /// A hub or server could not be reached, or rejected the request.
    #[error("{what}: {message}")]
    Network {
        /// Requested resource.
        what: String,
        /// Answer or failure.
        message: String,
        /// Hint about what to do.
        hint: Option<String>,
    },

    /// Anything else that is wrong with the input.
    #[error("{message}")]
    Input {
        /// Description of the problem.
        message: String,
        /// Hint about what to do.
        hint: Option<String>,
    },

    /// The user stopped the run; the state was saved first.
    #[error("interrupted")]
    Interrupted,
}

fn location(file: &Path, line: Option<usize>) -> String {
    match line {
        Some(line) => format!("{}:{line}", file.display()),
        None => file.display().to_string(),
    }
}

impl Error {
    /// Creates an [`Error::Io`] about `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// Creates an [`Error::Input`] without a hint.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input { message: message.into(), hint: None }
    }

    /// Creates an [`Error::Model`] without a hint.
    pub fn model(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self::Model { path: path.into(), message: message.into(), hint: None }
    }

    /// Creates an [`Error::Data`] without a hint.
    pub fn data(file: impl Into<PathBuf>, line: Option<usize>, message: impl Into<String>) -> Self {
        Self::Data { file: file.into(), line, message: message.into(), hint: None }
    }

    /// Adds a hint about what the user can do.
    #[must_use]
    pub fn with_hint(mut self, text: impl Into<String>) -> Self {
        match &mut self {
            Self::Data { hint, .. }
            | Self::Model { hint, .. }
            | Self::Reward { hint, .. }
            | Self::Network { hint, .. }
            | Self::Input { hint, .. } => *hint = Some(text.into()),
            _ => {}
        }
        self
    }

    /// Replaces the directory `from` by `to` wherever the error names it, because users do not know temporary
    /// directories.
    #[must_use]
    pub fn relocated(mut self, from: &Path, to: &Path) -> Self {
        let (old, new) = (from.display().to_string(), to.display().to_string());
        match &mut self {
            Self::Io { path, .. } | Self::Model { path, .. } | Self::Data { file: path, .. } => {
                if let Ok(inner) = path.strip_prefix(from) {
                    *path = if inner.as_os_str().is_empty() { to.to_owned() } else { to.join(inner) };
                }
            }
            _ => {}
        }
        if let Self::Model { message, .. } | Self::Data { message, .. } | Self::Input { message, .. } = &mut self {
            *message = message.replace(&old, &new);
        }
        self
    }

    /// Returns the hint, which is shown after the message.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Data { hint, .. }
            | Self::Model { hint, .. }
            | Self::Reward { hint, .. }
            | Self::Network { hint, .. }
            | Self::Input { hint, .. } => hint.as_deref(),
            Self::Io { source, .. } if is_full(source.kind()) => {
                Some("free some disk space; everything written before is intact")
            }
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy => {
                Some("try again in a moment")
            }
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Some("the user of this process needs access to the file and to its folder")
            }
            _ => None,
        }
    }

    /// Whether the same operation can succeed later unchanged: another process uses the file, or the disk is full.
    pub fn passes(&self) -> bool {
        let kind = match self {
            Self::Io { source, .. } => source.kind(),
            _ => return false,
        };
        is_full(kind) || kind == std::io::ErrorKind::ResourceBusy
    }
}

/// Whether the system had no space for the write: the disk, the quota, or the file size limit.
fn is_full(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind;
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// One problem in a configuration, with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The problem, the value and the bound.
    pub message: String,
    /// File positions, or the flag that set the value.
    pub locations: Vec<Location>,
    /// Hint about what to do.
    pub hint: Option<String>,
}

/// Origin of a configuration value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A position in a file.
    File {
        /// The configuration file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// Number of characters to underline.
        width: usize,
        /// Text of the line; for a long line, the part around the column.
        excerpt: String,
        /// Number of characters of the line before the excerpt.
        from: usize,
    },
    /// A command-line flag, such as `--clip-range`.
    Flag(String),
    /// An argument of a function, such as `clip_range`.
    Argument(String),
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// A failure of a program, a service or a plug-in, or the user's interrupt of a wait for it. The callers add where it happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Description of the failure.
    pub message: String,
    /// Hint about what to do.
    pub hint: Option<String>,
    /// Whether the user stopped it.
    pub is_interrupted: bool,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, is_interrupted: false }
    }

    /// An interruption by the user.
    pub fn interrupted() -> Self {
        Self { is_interrupted: true, ..Self::new("interrupted") }
    }

    /// Adds a hint about what the user can do.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self { hint: error.hint().map(str::to_owned), ..Self::new(error.to_string()) }
    }
}

/// Shortens a line for a message, to at most `length` characters.
pub fn excerpt(line: &str, length: usize) -> String {
    let line = line.trim_end();
    match line.char_indices().nth(length) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_permissions_have_a_hint() {
        let error = Error::io("gradus.sqlite", std::io::ErrorKind::PermissionDenied.into());
        assert_eq!(error.hint(), Some("the user of this process needs access to the file and to its folder"));
        assert!(!error.passes());
    }
}
