//! Draws the state: runs on the left, the selected run on the right, keys at the bottom.

mod curves;
mod dialog;
mod list;
mod pages;
mod samples;
mod text;

#[cfg(test)]
pub use dialog::KEYS;
use gradus::runs::Status;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::state::{Browser, Tab};
use crate::numbers::short_model;
use crate::table::{age, bytes};
use crate::watch::short;

/// Colors of the browser. The text is complete without them.
#[derive(Debug, Clone, Copy)]
pub struct Theme {
    color: bool,
}

impl Theme {
    /// Creates a theme, with colors if `color` is set.
    pub fn new(color: bool) -> Self {
        Self { color }
    }

    fn of(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    fn faint(self) -> Style {
        // Of the 16 colors, bright black is the only gray that every terminal shows.
        if self.color { Style::new().fg(Color::DarkGray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn key(self) -> Style {
        self.of(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn state(self, state: Status) -> Style {
        self.of(match state {
            Status::Running => Color::Cyan,
            Status::Finished => Color::Green,
            Status::Interrupted => Color::Yellow,
            Status::Failed | Status::Broken => Color::Red,
        })
    }

    /// Returns the color of the curve at this position.
    fn curve(self, place: usize) -> Style {
        const CURVES: [Color; 6] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Red, Color::Blue];
        self.of(CURVES[place % CURVES.len()])
    }
}

/// Returns the symbol of a state in narrow lists.
fn symbol(state: Status) -> &'static str {
    match state {
        Status::Running => "▶",
        Status::Finished => "✓",
        Status::Interrupted => "‖",
        Status::Failed => "✗",
        Status::Broken => "!",
    }
}

/// Draws everything. Returns how far the text that receives the scroll keys can be scrolled.
pub fn draw(frame: &mut Frame<'_>, browser: &Browser, theme: Theme) -> usize {
    let [title, middle, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)]).areas(frame.area());
    let list_width = if middle.width >= 150 { 62 } else { (middle.width / 3).clamp(28, 44) };
    let [left, right] = Layout::horizontal([Constraint::Length(list_width), Constraint::Min(20)]).areas(middle);
    top(frame, title, browser, theme);
    list::draw(frame, left, browser, theme);
    let scroll_max = one_run(frame, right, browser, theme);
    hints(frame, bottom, browser, theme);
    match &browser.dialog {
        Some(shown) => dialog::draw(frame, middle, shown, theme),
        None => scroll_max,
    }
}

fn top(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) {
    let running = browser.entries.iter().filter(|entry| entry.state == Status::Running).count();
    let count = browser.entries.len();
    let mut text = format!(" gradus runs · {} · {count} run{}", browser.root, if count == 1 { "" } else { "s" });
    if running > 0 {
        text += &format!(", {running} running");
    }
    if !browser.marked.is_empty() {
        text += &format!(", {} marked", browser.marked.len());
    }
    if !browser.filter.is_empty() {
        text += &format!(" · only `{}` (Esc shows all)", browser.filter);
    }
    let width = area.width as usize;
    frame.render_widget(Paragraph::new(format!("{text:<width$}")).style(theme.chosen()), area);
}

/// Draws the last message, or the most useful keys.
fn hints(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) {
    if let Some(notice) = &browser.notice {
        let style = if notice.is_error { theme.of(Color::Red) } else { theme.of(Color::Green) };
        frame.render_widget(Paragraph::new(format!(" {}", text::printable(&notice.text))).style(style), area);
        return;
    }
    let own: &[(&str, &str)] = match browser.tab() {
        Tab::Curves => &[("m", "metric"), ("s", "smooth")],
        Tab::Samples => &[("n", "next"), ("[ ]", "step"), ("e", "eval"), ("o", "order")],
        Tab::Snapshots => &[("n", "next"), ("x", "export")],
        Tab::Config | Tab::Log | Tab::Warnings => &[("PgDn", "scroll")],
    };
    let first = [("↑↓", "run"), ("←→", "page")];
    let last = [("?", "help"), ("q", "quit")];
    // Keys that do not fit are listed in the help.
    let mut others = vec![("space", "mark"), ("c", "compare"), ("r", "resume")];
    let shown = loop {
        let shown: Vec<(&str, &str)> = first.iter().chain(own).chain(&others).chain(&last).copied().collect();
        let width: usize = shown.iter().map(|(key, what)| text::width(key) + text::width(what) + 3).sum();
        if width <= area.width as usize || others.pop().is_none() {
            break shown;
        }
    };
    let mut spans = vec![Span::raw(" ")];
    for (key, what) in shown {
        spans.extend([Span::styled(key, theme.key()), Span::raw(format!(" {what}  "))]);
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

fn one_run(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) -> usize {
    let block = Block::new().borders(Borders::LEFT).border_style(theme.faint());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let Some(entry) = browser.entry() else {
        let text = match browser.entries.is_empty() {
            true => {
                format!(
                    "no runs in `{}` yet: `gradus demo` creates some, `--runs-dir DIR` sets another directory",
                    browser.root
                )
            }
            false => "no run matches; Esc shows all".to_owned(),
        };
        text::draw(frame, inner, text::wrapped(&text, inner.width.saturating_sub(2) as usize, Style::new()), 0);
        return 0;
    };
    let [head, tabs, body] =
        Layout::vertical([Constraint::Length(3), Constraint::Length(2), Constraint::Min(1)]).areas(inner);
    let facts = [
        entry.method.as_deref().unwrap_or("–").to_owned(),
        format!("from {}", entry.model.as_deref().map_or("–", short_model)),
        bytes(entry.size_bytes),
        entry.changed.map_or("–".into(), |at| format!("{} ago", age(browser.now.saturating_sub(at)))),
        format!("on {}", entry.data.as_deref().unwrap_or("–")),
    ];
    let reason = entry.reason.as_ref().map_or(String::new(), |reason| format!(": {}", text::printable(reason)));
    let mut name = vec![
        Span::styled(format!(" {}  ", entry.name), theme.bold()),
        Span::styled(format!("{} {}{reason}", symbol(entry.state), entry.state.name()), theme.state(entry.state)),
    ];
    name.extend(entry.tags.iter().map(|tag| Span::styled(format!("  #{tag}"), theme.of(Color::Magenta))));
    if let Some(note) = &entry.note {
        name.push(Span::styled(format!("  {}", text::printable(note)), theme.faint()));
    }
    let lines =
        vec![Line::from(name), Line::raw(format!(" {}", facts.join(" · "))), progress(entry, head.width, theme)];
    frame.render_widget(Paragraph::new(lines), head);
    tab_names(frame, tabs, browser, theme);
    let body = Rect { x: body.x + 1, width: body.width.saturating_sub(1), ..body };
    match browser.tab() {
        Tab::Curves => curves::draw(frame, body, browser, theme),
        Tab::Samples => samples::draw(frame, body, browser, theme),
        Tab::Config => pages::config(frame, body, browser, theme),
        Tab::Snapshots => pages::snapshots(frame, body, browser, theme),
        Tab::Log => pages::log(frame, body, browser, theme),
        Tab::Warnings => pages::warnings(frame, body, browser, theme),
    }
}

/// ` step 310/3000 ▐███░░░░░▌ 10 %   eval_loss 3.229, best 3.1 at 280`
fn progress(entry: &gradus::runs::Entry, width: u16, theme: Theme) -> Line<'static> {
    let blocks = if width >= 70 { 14 } else { 8 };
    let mut spans = vec![Span::raw(format!(" step {}", crate::commands::runs::steps(entry)))];
    if let Some(share) = entry.progress() {
        let full = (share * blocks as f64).round() as usize;
        spans.push(Span::raw(" "));
        spans.push(Span::styled("█".repeat(full), theme.state(entry.state)));
        spans.push(Span::styled("░".repeat(blocks - full), theme.faint()));
        spans.push(Span::raw(format!(" {:.0} %", 100.0 * share)));
    }
    if let Some(figure) = &entry.figure {
        spans.push(Span::raw(format!("  {} ", figure.key)));
        spans.push(Span::styled(short(figure.last), theme.bold()));
        let (at, style) = match figure.never_beat_start() {
            true => ("the start".to_owned(), theme.bold()),
            false => (figure.best_step.to_string(), theme.faint()),
        };
        if let Some(best) = figure.selected() {
            spans.push(Span::styled(format!(", best {} at {at}", short(best)), style));
        }
    }
    Line::from(spans)
}

fn tab_names(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) {
    let warnings = browser.details().map_or(0, |details| details.warnings.len());
    let is_wide = area.width >= 66;
    let mut spans = Vec::new();
    for (place, tab) in Tab::ALL.into_iter().enumerate() {
        let count = if tab == Tab::Warnings && warnings > 0 { format!(" {warnings}") } else { String::new() };
        let style = match tab {
            _ if tab == browser.tab() => theme.chosen(),
            Tab::Warnings if warnings > 0 => theme.of(Color::Yellow),
            _ => theme.faint(),
        };
        let name =
            if is_wide { format!(" {} {}{count} ", place + 1, tab.name()) } else { format!("{}{count}", tab.name()) };
        spans.extend([Span::raw(if is_wide { "" } else { " " }), Span::styled(name, style)]);
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}
