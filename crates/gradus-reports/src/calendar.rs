//! Dates in universal time.

use chrono::{DateTime, Utc};

/// Formats seconds since 1970 in UTC, by the codes of C's `strftime`. A time that no calendar has is the start of 1970.
///
/// # Panics
/// If `format` has an unknown code.
pub fn utc(seconds: u64, format: &str) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| DateTime::<Utc>::from_timestamp(seconds, 0));
    time.unwrap_or_default().format(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        // From `date -u -d @N '+%F'`.
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_164_800, "2024-02-29"),
            (4_107_456_000, "2100-02-28"),
            (4_107_542_400, "2100-03-01"),
            (u64::MAX, "1970-01-01"),
        ] {
            assert_eq!(utc(seconds, "%F"), expected);
        }
    }
}
