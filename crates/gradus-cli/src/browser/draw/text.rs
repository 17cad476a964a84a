//! Lines of text: wrapping, shortening, scrolling.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

pub use crate::commands::runs::printable;

/// Returns the number of columns that a text occupies on the screen.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Wraps a text into lines of at most `width` columns, at spaces if possible.
pub fn wrapped(text: &str, width_max: usize, style: Style) -> Vec<Line<'static>> {
    let width_max = width_max.max(1);
    let mut lines = Vec::new();
    for line in text.split('\n').map(printable) {
        let mut current = String::new();
        let mut used = 0;
        for word in line.split_inclusive(' ') {
            if used > 0 && used + width(word.trim_end()) > width_max {
                lines.push(Line::styled(std::mem::take(&mut current), style));
                used = 0;
            }
            for letter in word.chars() {
                let wide = width(letter.encode_utf8(&mut [0; 4]));
                // A space at the end of a full line does not start a new line.
                if used + wide > width_max && letter != ' ' {
                    lines.push(Line::styled(std::mem::take(&mut current), style));
                    used = 0;
                }
                if used + wide <= width_max {
                    current.push(letter);
                    used += wide;
                }
            }
        }
        lines.push(Line::styled(current, style));
    }
    lines
}

/// Shortens a text to at most `width_max` columns. It keeps the end of a name, which is more distinctive than its beginning.
pub fn shortened(text: &str, width_max: usize) -> String {
    if width(text) <= width_max {
        return text.to_owned();
    }
    let mut kept: Vec<char> = Vec::new();
    let mut used = 1;
    for letter in text.chars().rev() {
        let wide = width(letter.encode_utf8(&mut [0; 4]));
        if used + wide > width_max {
            break;
        }
        kept.push(letter);
        used += wide;
    }
    std::iter::once('…').chain(kept.into_iter().rev()).collect()
}

/// Pads a text on the right with spaces, up to `width_min` columns.
pub fn padded(text: &str, width_min: usize) -> String {
    format!("{text}{}", " ".repeat(width_min.saturating_sub(width(text))))
}

/// Draws lines, beginning with line `scroll`. Returns how far they can be scrolled.
pub fn draw(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>, scroll: usize) -> usize {
    let scroll_max = lines.len().saturating_sub(area.height as usize);
    let shown: Vec<Line<'_>> = lines.into_iter().skip(scroll.min(scroll_max)).take(area.height as usize).collect();
    frame.render_widget(Paragraph::new(shown), area);
    scroll_max
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, width: usize) -> Vec<String> {
        wrapped(text, width, Style::new()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn text_is_wrapped_at_blanks_where_it_can_be() {
        assert_eq!(lines("the cat sat", 7), ["the cat", "sat"]);
        assert_eq!(lines("the cat sat", 8), ["the cat ", "sat"]);
        assert_eq!(lines("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(lines("a\n\nb", 4), ["a", "", "b"]);
        assert_eq!(lines("日本語", 4), ["日本", "語"], "wide letters take two columns");
        assert_eq!(lines("a\u{1b}[31mb", 20), ["a\u{fffd}[31mb"], "no escape reaches the terminal");
    }

    #[test]
    fn names_keep_their_ends() {
        assert_eq!(shortened("demo/grpo", 9), "demo/grpo");
        assert_eq!(shortened("demo/grpo-12", 8), "…grpo-12");
        assert_eq!(padded("日", 4), "日  ");
    }
}
