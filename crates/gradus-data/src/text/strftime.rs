//! `strftime_now` of chat templates, for the date in a system prompt.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::format::StrftimeItems;
use chrono::{DateTime, Utc};

/// Formats `time` in UTC with the codes of C's strftime. An unknown code is an error.
pub(super) fn strftime(time: SystemTime, format: &str) -> Result<String, String> {
    let items =
        StrftimeItems::new(format).parse().map_err(|_| format!("unknown code in the time format `{format}`"))?;
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
    let time = i64::try_from(seconds).ok().and_then(|seconds| DateTime::<Utc>::from_timestamp(seconds, 0));
    Ok(time.unwrap_or_default().format_with_items(items.iter()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_moments() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let check =
            |seconds, format: &str, expected: &str| assert_eq!(strftime(at(seconds), format).unwrap(), expected);
        check(0, "%Y-%m-%d %A", "1970-01-01 Thursday");
        check(951_782_400, "%d %b %Y", "29 Feb 2000");
        check(1_709_210_096, "%F %H:%M:%S, %-d %B", "2024-02-29 12:34:56, 29 February");
        assert_eq!(strftime(at(0), "%Y %!").unwrap_err(), "unknown code in the time format `%Y %!`");
    }
}
