//! Text pages: configuration, snapshots, log, warnings.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::{Theme, text};
use crate::browser::state::Browser;
use crate::table::bytes;
use crate::watch::short;

/// Draws all configuration keys and highlights those that the user set.
pub fn config(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) -> usize {
    let keys = browser.details().map_or(&[][..], |details| &details.settings);
    let widest = keys.iter().map(|key| key.path.len()).max().unwrap_or(0);
    let room = (area.width as usize).saturating_sub(widest + 4).max(8);
    let mut lines = vec![Line::styled("● was set; the others are defaults", theme.faint())];
    for key in keys {
        let (sign, style) = if key.is_set { ("● ", theme.bold()) } else { ("  ", theme.faint()) };
        for (place, value) in text::wrapped(&key.value, room, style).into_iter().enumerate() {
            let (sign, path) = if place == 0 { (sign, key.path.as_str()) } else { ("  ", "") };
            let name = Span::raw(format!("{path:<widest$}  "));
            lines.push(Line::from(
                [vec![Span::styled(sign, theme.of(Color::Cyan)), name], styled(value, style)].concat(),
            ));
        }
    }
    text::draw(frame, area, lines, browser.scroll)
}

fn styled(line: Line<'static>, style: Style) -> Vec<Span<'static>> {
    line.spans.into_iter().map(|span| span.style(style)).collect()
}

/// Draws the list of models and marks the selected one.
pub fn snapshots(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) -> usize {
    let found = browser.details().map_or(&[][..], |details| &details.snapshots);
    if found.is_empty() {
        return text::draw(frame, area, vec![Line::raw("no checkpoint yet")], 0);
    }
    let metric = browser.entry().and_then(|entry| entry.figure.as_ref()).map_or("", |figure| &figure.key);
    let mut lines =
        vec![Line::styled(format!("{:<12} {:>8} {:>10}  {metric}", "snapshot", "step", "size"), theme.faint())];
    for (place, snapshot) in found.iter().enumerate() {
        let step = snapshot.step.map_or("–".into(), |step| step.to_string());
        let value = snapshot.value.map_or("–".into(), short);
        let row = format!("{:<12} {step:>8} {:>10}  {value}", snapshot.name(), bytes(snapshot.size_bytes));
        lines.push(Line::styled(row, if place == browser.snapshot { theme.chosen() } else { Style::new() }));
        if let Some(defect) = &snapshot.defect {
            lines.extend(text::wrapped(
                &format!("  not complete: {defect}"),
                area.width as usize,
                theme.of(Color::Red),
            ));
        }
    }
    if let Some(chosen) = found.get(browser.snapshot) {
        lines.extend([Line::raw(""), Line::styled(chosen.path.display().to_string(), theme.faint())]);
    }
    text::draw(frame, area, lines, browser.scroll)
}

/// Draws the log, scrolled to its end.
pub fn log(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) -> usize {
    let log = browser.details().map_or(&[][..], |details| &details.log);
    if log.is_empty() {
        return text::draw(frame, area, vec![Line::raw("no log")], 0);
    }
    let style = |line: &String| if line.contains("s  warning: ") { theme.of(Color::Yellow) } else { Style::new() };
    let lines: Vec<Line<'_>> =
        log.iter().flat_map(|line| text::wrapped(line, area.width as usize, style(line))).collect();
    let scroll_max = lines.len().saturating_sub(area.height as usize);
    text::draw(frame, area, lines, scroll_max - browser.scroll.min(scroll_max));
    scroll_max
}

/// Draws the warnings, latest first.
pub fn warnings(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) -> usize {
    let warnings = browser.details().map_or(&[][..], |details| &details.warnings);
    let mut lines = Vec::new();
    for warning in warnings.iter().rev() {
        let width = (area.width as usize).saturating_sub(2);
        for (place, line) in text::wrapped(warning, width, Style::new()).into_iter().enumerate() {
            let sign = Span::styled(if place == 0 { "! " } else { "  " }, theme.of(Color::Yellow));
            lines.push(Line::from([vec![sign], line.spans].concat()));
        }
    }
    if lines.is_empty() {
        lines.push(Line::raw("no warnings"));
    }
    text::draw(frame, area, lines, browser.scroll)
}
