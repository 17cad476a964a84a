//! List of runs on the left.

use gradus::runs::Entry;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{Theme, symbol, text};
use crate::browser::state::Browser;
use crate::commands::runs::steps;
use crate::watch::short;

/// Draws as many runs as fit, including the selected one.
pub fn draw(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) {
    let visible = browser.visible();
    let (height, width) = (area.height.saturating_sub(1) as usize, area.width as usize);
    let place = browser.place().unwrap_or(0);
    let first = (place + 1).saturating_sub(height);
    let mut lines = vec![heading(width, theme)];
    for entry in visible.iter().skip(first).take(height) {
        let line = row(entry, browser, width, theme);
        lines.push(if Some(&entry.name) == browser.selected.as_ref() { line.style(theme.chosen()) } else { line });
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Widths of name, method and step. Only wide lists show the latter two.
fn widths(width: usize) -> (usize, usize, usize) {
    let wide = width >= 56;
    let (method, step) = if wide { (7, 12) } else { (0, 0) };
    (width.saturating_sub(4 + method + step + 9), method, step)
}

fn heading(width: usize, theme: Theme) -> Line<'static> {
    let (name, method, step) = widths(width);
    let text =
        format!("    {:<name$}{:<method$}{:>step$}{:>8} ", "run", cut("method", method), cut("step", step), "figure");
    Line::styled(text, theme.faint())
}

fn row(entry: &Entry, browser: &Browser, width: usize, theme: Theme) -> Line<'static> {
    let (name, method, step) = widths(width);
    let is_marked = browser.marked.contains(&entry.name);
    let figure = entry.figure.as_ref().map_or("–".into(), |figure| short(figure.last));
    let shown = text::shortened(&entry.name, name.saturating_sub(1));
    Line::from(vec![
        Span::styled(if is_marked { "●" } else { " " }, theme.of(Color::Magenta)),
        Span::styled(format!("{} ", symbol(entry.state)), theme.state(entry.state)),
        Span::raw(format!(" {}", text::padded(&shown, name))),
        Span::raw(format!("{:<method$}", cut(entry.method.as_deref().unwrap_or("–"), method))),
        Span::raw(format!("{:>step$}", cut(&steps(entry), step))),
        Span::raw(format!("{figure:>8} ")),
    ])
}

/// Returns an empty text if there is no room.
fn cut(text: &str, width: usize) -> &str {
    if width == 0 { "" } else { text }
}
