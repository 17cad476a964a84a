//! Tables for the terminal: the first column is left-aligned, numbers are right-aligned.

use crate::output::on_one_line;

/// Formats rows of cells as lines, with two spaces between columns. Rows may have different lengths.
pub fn aligned(rows: &[Vec<String>]) -> String {
    laid_out(rows, |column| column > 0, |_, _, cell| cell)
}

/// Like [`aligned`]. `is_number` selects the right-aligned columns. `style` colors a cell, given its row, its column and its padded text.
pub fn laid_out(
    rows: &[Vec<String>],
    is_number: impl Fn(usize) -> bool,
    style: impl Fn(usize, usize, String) -> String,
) -> String {
    // Names and values come from files. A line end in one would begin a false row, and a pager may obey escape sequences.
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| on_one_line(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (r, row) in rows.iter().enumerate() {
        let last = row.iter().rposition(|cell| !cell.is_empty()).unwrap_or(0);
        let cells = row.iter().zip(&widths).enumerate().take(last + 1).map(|(c, (cell, &width))| {
            let padded = match (is_number(c), c == last) {
                (true, _) => format!("{cell:>width$}"),
                (false, true) => cell.clone(),
                (false, false) => format!("{cell:<width$}"),
            };
            style(r, c, padded)
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Formats a fraction in percent: `71 %`, with one more digit below ten: `0.4 %`.
pub fn percent(fraction: f64) -> String {
    let percent = 100.0 * fraction;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Formats seconds in a suitable unit: `1.24 s`, `35.1 ms`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.0} µs", seconds * 1e6),
        1e-3..1e-1 => format!("{:.1} ms", seconds * 1e3),
        1e-1..1.0 => format!("{:.0} ms", seconds * 1e3),
        1.0..100.0 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// Formats bytes in a suitable unit: `4.12 GB`, `310 MB`, `1.8 MB`; a dash for 0.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0 => "–".into(),
        1..9_950_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        9_950_000..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Formats a count in a suitable unit: `124 M`, `5.2 k`, `97`.
pub fn count(count: f64) -> String {
    match count {
        ..1e3 => format!("{count:.0}"),
        1e3..1e4 => format!("{:.2} k", count / 1e3),
        1e4..1e6 => format!("{:.1} k", count / 1e3),
        1e6..1e7 => format!("{:.2} M", count / 1e6),
        1e7..1e9 => format!("{:.1} M", count / 1e6),
        _ => format!("{:.2} G", count / 1e9),
    }
}

/// Formats an elapsed time in a suitable unit: `12 s`, `3 min`, `2 h`, `5 d`.
pub fn age(seconds: u64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Formats Unix seconds as `2026-11-20 16:31`, in UTC.
pub fn date(seconds: u64) -> String {
    gradus::calendar::utc(seconds, "%Y-%m-%d %H:%M")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_each_other() {
        let row = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
        let rows = [row(&["8 × 256", "step", "of peak"]), row(&["a", "3.5 s", "71 %"]), row(&["note"])];
        assert_eq!(aligned(&rows), "8 × 256   step  of peak\na        3.5 s     71 %\nnote\n");
    }

    #[test]
    fn words_stand_to_the_left_and_colors_take_no_room() {
        let row = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
        let rows = [row(&["a", "running", "9", "tag"]), row(&["bcd", "done", "10", ""])];
        let style = |_, c, cell: String| if c == 1 { format!("<{cell}>") } else { cell };
        assert_eq!(laid_out(&rows, |c| c == 2, style), "a    <running>   9  tag\nbcd  <done   >  10\n");
    }

    #[test]
    fn times_read_like_a_calendar() {
        assert_eq!([age(59), age(60), age(7200), age(172_800)], ["59 s", "1 min", "2 h", "2 d"]);
        // Expected values from `date -u -d @N '+%F %R'`.
        let dates = [0, 951_782_400, 1_709_251_199, 1_795_192_264].map(date);
        assert_eq!(dates, ["1970-01-01 00:00", "2000-02-29 00:00", "2024-02-29 23:59", "2026-11-20 16:31"]);
    }

    #[test]
    fn units_follow_the_size() {
        assert_eq!([percent(0.7123), percent(0.004)], ["71 %", "0.4 %"]);
        assert_eq!(
            [seconds(0.0000251), seconds(0.0351), seconds(0.2), seconds(1.239)],
            ["25 µs", "35.1 ms", "200 ms", "1.24 s"]
        );
        assert_eq!([bytes(0), bytes(310_400_000), bytes(4_124_000_000)], ["–", "310 MB", "4.12 GB"]);
        assert_eq!([bytes(40_000), bytes(1_760_000), bytes(9_949_999)], ["0.0 MB", "1.8 MB", "9.9 MB"]);
        assert_eq!(bytes(9_950_000), "10 MB");
        assert_eq!([count(97.4), count(5234.0), count(124_439_808.0)], ["97", "5.23 k", "124.4 M"]);
    }
}
