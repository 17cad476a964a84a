//! What a reader of rows wants: which rows, and what becomes of bad ones.

/// What happens when a row is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadRows {
    /// Loading fails, with the first ten.
    #[default]
    Fail,
    /// The same, and the error says that `--skip-bad-rows` leaves them out.
    FailOrSkip,
    /// They are left out; [`Dataset::bad`] and [`Examples::skipped`](super::Examples) say which.
    Skip,
}

/// How rows are read.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// What the rows are for; decides which form is taken where several fit, and the message when none does.
    pub need: Need,
    /// The column that holds plain text. Default `text`.
    pub text_column: String,
    /// Columns to read under another name, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Read at most this many rows.
    pub max_rows: Option<usize>,
    /// What happens when a row is bad.
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
    /// The defaults, for rows that are needed for `need`.
    pub fn needing(need: Need) -> Self {
        Self { need, ..Self::default() }
    }
}

/// What rows are needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Need {
    /// Anything.
    #[default]
    Any,
    /// Supervised fine-tuning: `text`, `messages`, `prompt` + `completion`, or the chosen answers of preferences.
    Sft,
    /// `chosen` and `rejected`.
    Preference,
    /// `prompt`, `completion` and `label`; of preferences, either side.
    Unpaired,
    /// Prompts to sample from.
    Prompt,
    /// `prompt` and `completion`, or pairs, to be scored.
    Score,
    /// Whatever a classifier reads: the columns stay as they are.
    Columns,
}

impl Need {
    /// Whether a task's prompts and references will do.
    pub fn takes_tasks(self) -> bool {
        !matches!(self, Self::Preference | Self::Unpaired | Self::Columns)
    }
}
