//! Bad rows: the first ten and how many there are.

use crate::Error;

/// How many bad rows are shown.
const SHOWN: usize = 10;

/// The first ten bad rows, and how many there were.
#[derive(Debug, Default)]
pub struct RowErrors {
    first: Vec<Error>,
    count: usize,
}

impl RowErrors {
    /// Takes note of a bad row.
    pub fn push(&mut self, error: Error) {
        self.count += 1;
        if self.first.len() < SHOWN {
            self.first.push(error);
        }
    }

    /// The first ten.
    pub fn first(&self) -> &[Error] {
        &self.first
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether every row was good.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of it as one error, `None` when every row was good. `rows` is how many rows were read, good and bad.
    pub fn into_error(self, rows: usize) -> Option<Error> {
        let count = self.count;
        let mut errors = self.first.into_iter();
        let mut first = errors.next()?;
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
}
