//! Two texts in columns.

use crate::output::{ESC, visible};

/// Minimum width of a column. If the terminal is narrower, the texts are shown one below the other.
const NARROWEST: usize = 38;
/// Separator of the columns.
const GAP: &str = " │ ";

/// Two texts in columns, shown while they grow.
pub struct Columns {
    titles: [String; 2],
    column: usize,
    /// Number of lines in the terminal.
    height: usize,
    shown: Vec<String>,
}

impl Columns {
    /// Creates columns for a terminal of `width` characters by `height` lines, if it is wide enough.
    pub fn new(titles: [&str; 2], (width, height): (usize, usize)) -> Option<Self> {
        let column = width.saturating_sub(GAP.chars().count()) / 2;
        let titles = titles.map(|title| shortened(&visible(title), column));
        (column >= NARROWEST).then_some(Self { titles, column, height, shown: Vec::new() })
    }

    /// Returns the output that updates the screen to `texts`. Texts that have not `ended` may still grow.
    ///
    /// Only lines that are still on the screen can be changed. The longer text therefore waits once it is one screen ahead.
    pub fn show(&mut self, texts: [&str; 2], ended: [bool; 2]) -> String {
        let lines = [0, 1].map(|i| {
            [vec![self.titles[i].clone(), "─".repeat(self.column)], wrap(&visible(texts[i]), self.column)].concat()
        });
        // The last word of a growing text may still move to the next line.
        let settled = |i: usize| if ended[i] { usize::MAX } else { lines[i].len().saturating_sub(1) };
        let room = settled(0).min(settled(1)).saturating_add(self.height.saturating_sub(2));
        let line = |i: usize, row: usize| lines[i].get(row).cloned().unwrap_or_default();
        let row = |row: usize| {
            let left = line(0, row);
            let pad = " ".repeat(self.column - left.chars().count());
            format!("{left}{pad}{GAP}{}", line(1, row)).trim_end().to_owned()
        };
        let rows: Vec<String> = (0..lines[0].len().max(lines[1].len()).min(room)).map(row).collect();
        let same = rows.iter().zip(&self.shown).take_while(|(new, old)| new == old).count();
        let back = match self.shown.len() - same {
            0 => String::new(),
            // Go back to the first line that differs, and erase everything from there.
            lines => format!("{ESC}[{lines}A{ESC}[J"),
        };
        let new = rows[same..].iter().map(|row| format!("{row}\n")).collect::<String>();
        self.shown = rows;
        back + &new
    }
}

/// Shortens a title and keeps its end, which distinguishes directories.
fn shortened(title: &str, width: usize) -> String {
    let count = title.chars().count();
    if count <= width {
        title.to_owned()
    } else {
        format!("…{}", title.chars().skip(count + 1 - width).collect::<String>())
    }
}

/// Wraps a text into lines of at most `width` characters, between words if possible.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.trim().lines() {
        let mut line = String::new();
        for word in paragraph.replace('\t', "    ").split_inclusive(' ') {
            let mut word = word;
            if line.chars().count() + word.trim_end().chars().count() > width && !line.is_empty() {
                lines.push(std::mem::take(&mut line).trim_end().to_owned());
            }
            while word.trim_end().chars().count() > width {
                let at = word.char_indices().nth(width).map_or(word.len(), |(at, _)| at);
                let (head, rest) = word.split_at(at);
                lines.push(head.to_owned());
                word = rest;
            }
            line += word;
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrap("a\n\nb", 9), ["a", "", "b"]);
    }

    /// Returns the final content of a terminal of `height` lines that receives `printed`, including lines that have scrolled off.
    fn screen(printed: &str, height: usize) -> String {
        let mut lines = vec![String::new()];
        let mut rest = printed;
        while let Some(c) = rest.chars().next() {
            if let Some((up, after)) = rest.strip_prefix("\u{fdd2}[").and_then(|code| code.split_once("A\u{fdd2}[J")) {
                let up: usize = up.parse().unwrap();
                assert!(up < height, "{up} lines up: what has scrolled off cannot be changed");
                lines.truncate(lines.len() - up);
                *lines.last_mut().unwrap() = String::new();
                rest = after;
            } else {
                match c {
                    '\n' => lines.push(String::new()),
                    c => lines.last_mut().unwrap().push(c),
                }
                rest = &rest[c.len_utf8()..];
            }
        }
        lines.join("\n")
    }

    #[test]
    fn columns_where_there_is_room() {
        let mut columns = Columns::new(["first", "second"], (81, 24)).unwrap();
        let shown = columns.show(["yes", "no\nnever"], [true, true]);
        let line = |left: &str, right: &str| format!("{left:<39} │ {right}\n");
        let rule = "─".repeat(39);
        assert_eq!(shown, [line("first", "second"), line(&rule, &rule), line("yes", "no"), line("", "never")].concat());
        assert!(Columns::new(["a", "b"], (60, 24)).is_none());
        assert_eq!(shortened("runs/one/model", 9), "…ne/model");
    }

    #[test]
    fn growing_columns_end_as_if_they_had_been_shown_at_once() {
        let left: String = (0..60).map(|i| format!("{}word ", "long".repeat(i % 5))).collect();
        let right: String = (0..40).map(|i| if i % 7 == 0 { "and\n".into() } else { format!("next{i} ") }).collect();
        for height in [4, 9, 50] {
            let new = || Columns::new(["first", "second"], (81, height)).unwrap();
            let (mut columns, mut printed) = (new(), String::new());
            // The left text grows faster and ends first.
            for step in 0..=right.len() {
                let end = (4 * step).min(left.len());
                printed += &columns.show([&left[..end], &right[..step]], [end == left.len(), step == right.len()]);
            }
            let at_once = new().show([&left, &right], [true, true]);
            assert_eq!(screen(&printed, height), at_once, "{height} lines");
            assert_eq!(columns.show([&left, &right], [true, true]), "", "lines that stay are not printed again");
        }
    }
}
