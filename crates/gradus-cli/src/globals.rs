//! Global options: amount and form of the output.

/// Options of every command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Global {
    /// Suppress notes and progress.
    pub quiet: bool,
    /// Verbosity of the log: 0 warnings, 1 information, 2 debugging.
    pub verbose: u8,
    /// Print results as JSON.
    pub json: bool,
    /// Use of colors.
    pub color: ColorChoice,
}

/// Use of colors in text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// If the stream is a terminal and `NO_COLOR` is not set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
