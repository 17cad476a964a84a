//! What can go wrong with an environment.

/// `Result` with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with an environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The environment cannot be used as it is configured. No episode can begin.
    #[error("{message}")]
    Config {
        /// What was found and what was expected.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },

    /// One episode failed. Others may go on.
    #[error("{message}")]
    Episode {
        /// What happened, without the name of the episode: the caller knows it.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },

    /// The user does not want to wait any longer.
    #[error("interrupted")]
    Interrupted,
}

/// The most bytes of a message: what others wrote may be long.
const MESSAGE_BYTES: usize = 4000;

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
        message.push_str("… (cut)");
    }
    message
}

impl Error {
    /// An environment that cannot be used as it is configured. A long message is cut.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config { message: shortened(message.into()), hint: None }
    }

    /// A failure of one episode. A long message is cut.
    pub fn episode(message: impl Into<String>) -> Self {
        Self::Episode { message: shortened(message.into()), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(mut self, text: impl Into<String>) -> Self {
        match &mut self {
            Self::Config { hint, .. } | Self::Episode { hint, .. } => *hint = Some(text.into()),
            Self::Interrupted => {}
        }
        self
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Config { hint, .. } | Self::Episode { hint, .. } => hint.as_deref(),
            Self::Interrupted => None,
        }
    }
}
