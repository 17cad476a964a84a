//! The Gregorian calendar in universal time.
//!
//! Years are counted from March, so that the leap day is the last of its year; 400 years have 146,097 days.

/// Days from 0000-03-01 to 1970-01-01.
const TO_1970: u64 = 719_468;

/// Returns year, month and day of a day counted from 1970-01-01.
pub fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + TO_1970;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// Returns the days from 1970-01-01 to a date that is not before it.
pub fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - TO_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_turn_into_each_other() {
        // From `date -u -d @N '+%F'`, where N is a multiple of 86,400.
        for (day, expected) in [
            (0, (1970, 1, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (20_777, (2026, 11, 20)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            let (year, month, of_month) = date(day);
            assert_eq!((year, month, of_month), expected);
            assert_eq!(days(year, month, of_month), day);
        }
        assert!((0..200_000).all(|day| days(date(day).0, date(day).1, date(day).2) == day));
    }
}
