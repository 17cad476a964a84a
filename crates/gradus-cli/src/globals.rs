//! What every command is told: how much to print, and how.

/// Options that every command understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Global {
    /// Print no notes and no progress.
    pub quiet: bool,
    /// How much the log says: 0 warnings, 1 information, 2 debugging.
    pub verbose: u8,
    /// Results as JSON.
    pub json: bool,
    /// Whether to color.
    pub color: ColorChoice,
}

/// When text is colored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// When the stream is a terminal and `NO_COLOR` is not set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
