//! Arguments that rename columns of rows.

use gradus::data::parse_rename;

/// Creates a command line error, with exit code 2.
fn usage(message: String) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n"))
}

/// Columns with other names in the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ColumnArgs {
    /// Read a column under another name; may be given several times
    #[arg(long = "column", value_name = "NAME=COLUMN")]
    columns: Vec<String>,
}

impl ColumnArgs {
    /// Returns pairs of (name in the file, name in gradus).
    ///
    /// # Errors
    /// An argument is malformed.
    pub fn renames(&self) -> anyhow::Result<Vec<(String, String)>> {
        let parse =
            |pair: &String| parse_rename(pair).map_err(|message| usage(format!("`--column {pair}`: {message}")));
        Ok(self.columns.iter().map(parse).collect::<Result<_, _>>()?)
    }

    /// Rejects the flag if it would have no effect. `why` completes "`--column` …".
    ///
    /// # Errors
    /// The flag is given.
    pub fn refuse(&self, why: &str) -> anyhow::Result<()> {
        if self.columns.is_empty() { Ok(()) } else { Err(usage(format!("`--column` {why}")).into()) }
    }
}
