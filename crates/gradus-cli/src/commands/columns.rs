//! Arguments that name the columns of rows.

use gradus::data::parse_rename;

/// A mistake on the command line: exit code 2.
fn usage(message: String) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n"))
}

/// Columns that have other names in the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ColumnArgs {
    /// Read a column under another name; may be given several times
    #[arg(long = "column", value_name = "NAME=COLUMN")]
    columns: Vec<String>,
}

impl ColumnArgs {
    /// As (name in the file, name here).
    ///
    /// # Errors
    /// An argument of another form.
    pub fn renames(&self) -> anyhow::Result<Vec<(String, String)>> {
        let parse =
            |pair: &String| parse_rename(pair).map_err(|message| usage(format!("`--column {pair}`: {message}")));
        Ok(self.columns.iter().map(parse).collect::<Result<_, _>>()?)
    }

    /// Refuses the flag where nothing would use it: `why` completes "`--column` …".
    ///
    /// # Errors
    /// When it is given.
    pub fn refuse(&self, why: &str) -> anyhow::Result<()> {
        if self.columns.is_empty() { Ok(()) } else { Err(usage(format!("`--column` {why}")).into()) }
    }
}
