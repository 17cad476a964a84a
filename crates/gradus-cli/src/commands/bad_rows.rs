//! Argument that leaves out bad rows.

use gradus::data::BadRows;

/// Treatment of bad rows.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct BadRowArgs {
    /// Leave out bad rows with a warning, instead of failing
    #[arg(long)]
    skip_bad_rows: bool,
}

impl BadRowArgs {
    /// Returns whether bad rows are left out.
    pub fn skips(self) -> bool {
        self.skip_bad_rows
    }

    /// Rejects the flag if it would have no effect. `why` completes "`--skip-bad-rows` …".
    ///
    /// # Errors
    /// The flag is given.
    pub fn refuse(self, why: &str) -> anyhow::Result<()> {
        anyhow::ensure!(!self.skip_bad_rows, "`--skip-bad-rows` {why}");
        Ok(())
    }
}

impl From<BadRowArgs> for BadRows {
    fn from(args: BadRowArgs) -> Self {
        if args.skip_bad_rows { Self::Skip } else { Self::FailOrSkip }
    }
}
