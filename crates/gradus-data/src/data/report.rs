//! Bad rows: the first of them, and their number.

use std::path::PathBuf;

use serde::Serialize;

use super::options::BadRows;
use crate::{Error, Result};

/// Number of bad rows shown in an error.
const SHOWN: usize = 10;

/// Maximum number of skipped rows that are listed. A data set with more of them probably is of another kind.
const LISTED: usize = 100_000;

/// The first bad rows, and their total number.
#[derive(Debug, Default)]
pub struct RowErrors {
    kept: Vec<Error>,
    count: usize,
    bad_rows: BadRows,
}

/// A row that was left out, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedRow {
    /// File, as the user named it.
    pub file: PathBuf,
    /// Line, or row number in the file, from 1.
    pub line: Option<usize>,
    /// Description of the problem.
    pub problem: String,
}

impl RowErrors {
    /// Creates an empty list. `bad_rows` decides how many errors it keeps.
    pub fn new(bad_rows: BadRows) -> Self {
        Self { bad_rows, ..Self::default() }
    }

    /// Records a bad row.
    pub fn push(&mut self, error: Error) {
        self.count += 1;
        let most = match self.bad_rows {
            BadRows::Fail | BadRows::FailOrSkip => SHOWN,
            BadRows::Skip => LISTED,
        };
        if self.kept.len() < most {
            self.kept.push(error);
        }
    }

    /// Returns the first ten errors.
    pub fn first(&self) -> &[Error] {
        &self.kept[..self.kept.len().min(SHOWN)]
    }

    /// Returns the skipped rows, at most the first hundred thousand.
    pub fn into_skipped(self) -> Vec<SkippedRow> {
        let row = |error| match error {
            Error::Data { file, line, message, .. } => SkippedRow { file, line, problem: message },
            other => SkippedRow { file: PathBuf::new(), line: None, problem: other.to_string() },
        };
        self.kept.into_iter().map(row).collect()
    }

    /// Returns the number of bad rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns whether every row was good.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns itself if bad rows may be skipped. `read` is the number of rows read, and `kept` the number of good ones.
    ///
    /// # Errors
    /// All bad rows as one error, if they may not be skipped or no row was good.
    pub fn settle(self, read: usize, kept: usize) -> Result<Self> {
        if self.bad_rows == BadRows::Skip && kept > 0 {
            return Ok(self);
        }
        self.into_error(read).map_or_else(|| Ok(Self::default()), Err)
    }

    /// Adds the bad rows of another list.
    pub fn append(&mut self, other: Self) {
        let count = self.count + other.count;
        other.kept.into_iter().for_each(|error| self.push(error));
        self.count = count;
    }

    /// Combines all bad rows into one error, or returns `None` if every row was good. `rows` is the number of rows read, good and
    /// bad.
    pub fn into_error(self, rows: usize) -> Option<Error> {
        let count = self.count;
        // If no row is good, leaving out bad rows leaves nothing.
        let is_skippable = self.bad_rows == BadRows::FailOrSkip && count < rows;
        let mut errors = self.kept.into_iter().take(SHOWN);
        let mut first = errors.next()?;
        if is_skippable {
            let hint = first.hint().map_or(String::new(), |hint| format!("{hint}; "));
            first =
                first.with_hint(format!("{hint}`--skip-bad-rows` leaves bad rows out, `gradus data check` lists them"));
        }
        if count == 1 {
            return Some(first);
        }
        let others: String = errors.map(|e| format!("\n{e}")).collect();
        if let Error::Data { message, .. } = &mut first {
            message.push_str(&others);
            if count > SHOWN {
                message.push_str(&format!("\n… and {} more", count - SHOWN));
            }
            message.push_str(&format!("\n{count} of {rows} rows are bad"));
        }
        Some(first)
    }
}

/// Returns a remark about skipped rows, if there are any.
pub fn left_out(skipped: &[SkippedRow]) -> Option<String> {
    let first = skipped.first()?;
    let place = first.line.map_or(String::new(), |line| format!(":{line}"));
    let (count, file, problem) = (skipped.len(), first.file.display(), &first.problem);
    Some(format!(
        "{count} bad {} left out, the first {file}{place}: {problem}",
        if count == 1 { "row is" } else { "rows are" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_are_shown_and_all_are_counted() {
        let mut errors = RowErrors::default();
        for line in 1..=12 {
            errors.push(Error::data("a.jsonl", Some(line), "bad"));
        }
        let message = errors.into_error(20).unwrap().to_string();
        assert_eq!(message.lines().count(), 12);
        assert!(message.starts_with("a.jsonl:1: bad\na.jsonl:2: bad\n"));
        assert!(message.ends_with("a.jsonl:10: bad\n… and 2 more\n12 of 20 rows are bad"));
        assert!(RowErrors::default().into_error(3).is_none());
    }

    #[test]
    fn the_way_out_is_named_where_there_is_one() {
        let hint = |bad_rows, rows| {
            let mut errors = RowErrors::new(bad_rows);
            errors.push(Error::data("a.jsonl", Some(1), "bad").with_hint("repair it"));
            errors.into_error(rows).and_then(|error| error.hint().map(str::to_owned))
        };
        let found = hint(BadRows::FailOrSkip, 2);
        let expected = "repair it; `--skip-bad-rows` leaves bad rows out, `gradus data check` lists them";
        assert_eq!(found.as_deref(), Some(expected));
        assert_eq!(hint(BadRows::FailOrSkip, 1).as_deref(), Some("repair it"), "no row would be left");
        assert_eq!(hint(BadRows::Fail, 2).as_deref(), Some("repair it"));
    }

    #[test]
    fn rows_that_are_left_out_are_all_listed() {
        let mut errors = RowErrors::new(BadRows::Skip);
        for line in 1..=12 {
            errors.push(Error::data("a.jsonl", Some(line), "bad"));
        }
        assert_eq!((errors.first().len(), errors.count()), (10, 12));
        let skipped = errors.into_skipped();
        assert_eq!(skipped.len(), 12);
        assert_eq!(skipped[11], SkippedRow { file: "a.jsonl".into(), line: Some(12), problem: "bad".into() });
    }
}
