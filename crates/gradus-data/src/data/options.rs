//! Options for reading rows: which rows to read, and the treatment of bad ones.

/// Treatment of bad rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadRows {
    /// Loading fails. The error shows the first ten.
    #[default]
    Fail,
    /// Like `Fail`, but the error mentions that `--skip-bad-rows` leaves them out.
    FailOrSkip,
    /// Bad rows are left out. [`Dataset::bad`](super::Dataset::bad) and [`Examples::skipped`](super::Examples) list them.
    Skip,
}

/// Options for reading rows.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Purpose of the rows. It decides between several matching formats, and the message if none matches.
    pub need: Need,
    /// Column with plain text. Default `text`.
    pub text_column: String,
    /// Columns to rename, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Maximum number of rows to read.
    pub max_rows: Option<usize>,
    /// Treatment of bad rows.
    pub bad_rows: BadRows,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            need: Need::Any,
            text_column: "text".into(),
            rename: Vec::new(),
            max_rows: None,
            bad_rows: BadRows::Fail,
        }
    }
}

impl LoadOptions {
    /// Returns the defaults, with this purpose.
    pub fn needing(need: Need) -> Self {
        Self { need, ..Self::default() }
    }
}

/// Purpose of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Need {
    /// Any purpose.
    #[default]
    Any,
    /// Supervised fine-tuning: `text`, `messages`, `prompt` + `completion`, or the chosen answers of preferences.
    Sft,
    /// `chosen` and `rejected`.
    Preference,
    /// `prompt`, `completion` and `label`, or the two sides of preferences.
    Unpaired,
    /// Prompts for sampling.
    Prompt,
    /// `prompt` and `completion`, or pairs, for scoring.
    Score,
    /// Input of a classifier. The columns stay unchanged.
    Columns,
}

impl Need {
    /// Returns whether the prompts and references of a task fit this purpose.
    pub fn takes_tasks(self) -> bool {
        !matches!(self, Self::Preference | Self::Unpaired | Self::Columns)
    }
}
