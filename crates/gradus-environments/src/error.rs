//! Errors of environments.

/// `Result` with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The environment cannot be used with this configuration. No episode can begin.
    #[error("{message}")]
    Config {
        /// Message that says what was found and what was expected.
        message: String,
        /// Hint at a remedy.
        hint: Option<String>,
    },

    /// One episode failed. Others may continue.
    #[error("{message}")]
    Episode {
        /// Message without the name of the episode, which the caller has.
        message: String,
        /// Hint at a remedy.
        hint: Option<String>,
    },

    /// The user canceled the wait.
    #[error("interrupted")]
    Interrupted,
}

/// Maximum size of a message in bytes. Messages quote foreign text, which may be long.
const MESSAGE_BYTES: usize = 4000;

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
        message.push_str("… (cut)");
    }
    message
}

impl Error {
    /// Creates a configuration error. A long message is truncated.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config { message: shortened(message.into()), hint: None }
    }

    /// Creates an episode error. A long message is truncated.
    pub fn episode(message: impl Into<String>) -> Self {
        Self::Episode { message: shortened(message.into()), hint: None }
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(mut self, text: impl Into<String>) -> Self {
        match &mut self {
            Self::Config { hint, .. } | Self::Episode { hint, .. } => *hint = Some(text.into()),
            Self::Interrupted => {}
        }
        self
    }

    /// Returns the hint, if any.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Config { hint, .. } | Self::Episode { hint, .. } => hint.as_deref(),
            Self::Interrupted => None,
        }
    }
}
