//! `strftime_now` of chat templates, for the date in a system prompt.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::calendar;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats `time` in UTC with the codes of C's strftime that chat templates use. An unknown code is an error that names it.
pub(super) fn strftime(time: SystemTime, format: &str) -> Result<String, String> {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = calendar::date(days);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[((days + 4) % 7) as usize]);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut form = chars.next();
        let unpadded = form == Some('-');
        if unpadded {
            form = chars.next();
        }
        let two = |n: u64| if unpadded { n.to_string() } else { format!("{n:02}") };
        out += &match form {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => two(minute),
            Some('S') => two(second % 60),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            other => return Err(format!("unknown time format `%{}`", other.map_or(String::new(), String::from))),
        };
    }
    Ok(out)
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
        assert_eq!(strftime(at(0), "%q").unwrap_err(), "unknown time format `%q`");
    }
}
