//! Tables for the terminal: the first column to the left, numbers to the right.

/// Rows of cells as lines, two blanks between columns; a row may be shorter than the others.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(c, (cell, &width))| match c {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A fraction in percent: `71 %`, below ten with a digit more: `0.4 %`.
pub fn percent(fraction: f64) -> String {
    let percent = 100.0 * fraction;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Seconds in the unit that keeps three digits: `1.24 s`, `35.1 ms`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.0} µs", seconds * 1e6),
        1e-3..1e-1 => format!("{:.1} ms", seconds * 1e3),
        1e-1..1.0 => format!("{:.0} ms", seconds * 1e3),
        1.0..100.0 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// Bytes in the unit that keeps two digits or more: `4.12 GB`, `310 MB`; a dash for nothing.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0 => "–".into(),
        1..1_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        1_000_000..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// A count with three digits or more: `124 M`, `5.2 k`, `97`.
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
    fn units_follow_the_size() {
        assert_eq!([percent(0.7123), percent(0.004)], ["71 %", "0.4 %"]);
        assert_eq!(
            [seconds(0.0000251), seconds(0.0351), seconds(0.2), seconds(1.239)],
            ["25 µs", "35.1 ms", "200 ms", "1.24 s"]
        );
        assert_eq!([bytes(0), bytes(310_400_000), bytes(4_124_000_000)], ["–", "310 MB", "4.12 GB"]);
        assert_eq!([count(97.4), count(5234.0), count(124_439_808.0)], ["97", "5.23 k", "124.4 M"]);
    }
}
