//! The one error type of the library: variants by what the caller can do about them.
//!
//! Messages are lower case without a full stop, literals in backticks, the value found against the value expected.
//! A panic is a bug of gradus; an `Err` is the world's.

use std::path::{Path, PathBuf};

/// `Result` with gradus' [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong outside gradus' own logic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration or the flags are wrong; every problem found, not only the first.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<Diagnostic>),

    /// A data file or row is wrong.
    #[error("{}: {message}", location(.file, *.line))]
    Data {
        /// The file, as the user named it.
        file: PathBuf,
        /// Line (text files) or row number (Parquet, Arrow, JSON arrays), counted from 1.
        line: Option<usize>,
        /// What is wrong and what was found.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },

    /// A model directory cannot be used: files, shapes, names, configuration.
    #[error("{}: {message}", .path.display())]
    Model {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong: found against expected.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },

    /// A loss, gradient or reward became NaN or infinite.
    #[error("step {step}: {what}")]
    Diverged {
        /// The optimizer step that failed, counted from 1.
        step: usize,
        /// Which quantity was not finite.
        what: String,
        /// Where the offending batch was written.
        batch: Option<PathBuf>,
    },

    /// A reward could not be computed. Never scored 0: 0 is a judgement.
    #[error("reward for prompt {row}: {message}")]
    Reward {
        /// The prompt row, counted from 1.
        row: usize,
        /// What happened.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },

    /// A file could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },

    /// A hub or server could not be reached or refused.
    #[error("{what}: {message}")]
    Network {
        /// What was asked for.
        what: String,
        /// What came back.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },

    /// Anything else that is wrong with the input.
    #[error("{message}")]
    Input {
        /// What is wrong.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },

    /// The user asked to stop; the state was saved first.
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
    /// An [`Error::Io`] about `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// An [`Error::Input`] without a hint.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input { message: message.into(), hint: None }
    }

    /// An [`Error::Model`] without a hint.
    pub fn model(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self::Model { path: path.into(), message: message.into(), hint: None }
    }

    /// An [`Error::Data`] without a hint.
    pub fn data(file: impl Into<PathBuf>, line: Option<usize>, message: impl Into<String>) -> Self {
        Self::Data { file: file.into(), line, message: message.into(), hint: None }
    }

    /// Adds a hint: what the user can do.
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

    /// With `to` in the place of the directory `from` wherever the error names it: users do not know the names of temporary
    /// directories.
    #[must_use]
    pub(crate) fn relocated(mut self, from: &Path, to: &Path) -> Self {
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

    /// What the user can do about it, shown after the message.
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
            _ => None,
        }
    }

    /// Whether the same can succeed later without a change: another process holds the file, or the disk is full.
    pub fn passes(&self) -> bool {
        let kind = match self {
            Self::Io { source, .. } => source.kind(),
            _ => return false,
        };
        is_full(kind) || kind == std::io::ErrorKind::ResourceBusy
    }
}

/// Whether the system had no room for what was written: the disk, the quota, or the limit on a file's size.
fn is_full(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind;
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// One problem in a configuration, with where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// What is wrong, the value and the bound.
    pub message: String,
    /// Where: file positions, or the flag that set the value.
    pub places: Vec<Place>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Where a configuration value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A position in a file: line and column counted from 1, and how many characters to underline.
    File {
        /// The configuration file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// Characters to underline.
        width: usize,
        /// The text of the line; of a long one what stands around the column.
        excerpt: String,
        /// Characters of the line before the excerpt.
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
/// The beginning of a line that a message quotes: at most `length` characters.
pub(crate) fn excerpt(line: &str, length: usize) -> String {
    let line = line.trim_end();
    match line.char_indices().nth(length) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
