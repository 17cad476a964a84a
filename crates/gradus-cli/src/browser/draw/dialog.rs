//! Dialogs on top of the other content.

use ratatui::Frame;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear};

use super::{Theme, text};
use crate::browser::state::Dialog;

/// Key bindings, grouped by topic.
pub const KEYS: [(&str, &str); 23] = [
    ("↑ ↓  k j  g G", "previous, next run; first, last run"),
    ("← →  Tab  1-6", "the page on the right"),
    ("PgUp PgDn  K J", "scroll the page"),
    ("/", "filter runs by text; Esc shows all"),
    ("S", "sort by start or by name"),
    ("space", "mark a run to draw its curves too; Esc: unmark"),
    ("c", "compare the marked runs"),
    ("u", "reload everything"),
    ("", ""),
    ("m  M", "curves: next, previous metric"),
    ("s", "curves: smoothed or as measured"),
    ("n  p", "samples, snapshots: next, previous"),
    ("[  ]", "samples: previous, next step"),
    ("e", "samples: from evaluations or training"),
    ("o", "samples: as sampled, best, worst first"),
    ("", ""),
    ("r", "resume the run (leaves the browser)"),
    ("x", "export: copy a snapshot"),
    ("t  N", "tags; a note"),
    ("R  d  D", "rename; delete the run, the chosen checkpoint"),
    ("", ""),
    ("?  q  Ctrl-C", "this page; quit"),
    ("▶ ✓ ‖ ✗ !", "running, finished, interrupted, failed, broken"),
];

/// Draws the dialog. Returns how far its text can be scrolled.
pub fn draw(frame: &mut Frame<'_>, area: Rect, dialog: &Dialog, theme: Theme) -> usize {
    let width = (area.width as usize).saturating_sub(4);
    match dialog {
        Dialog::Help => {
            let key = |(key, what): &(&'static str, &'static str)| {
                Line::from(vec![Span::styled(text::padded(key, 16), theme.key()), Span::raw(*what)])
            };
            let mut lines: Vec<Line<'_>> = KEYS.iter().map(key).collect();
            // On a small screen, empty lines are dropped first.
            if lines.len() + 2 > area.height as usize {
                lines.retain(|line| line.width() > 16);
            }
            let inner = frame_of(frame, area, (66, lines.len()), " Keys ", theme.faint());
            text::draw(frame, inner, lines, 0)
        }
        Dialog::Confirm { question, .. } => {
            let lines = text::wrapped(question, width.min(70), Style::new());
            let mut lines: Vec<Line<'_>> = lines.into_iter().collect();
            lines.extend([
                Line::raw(""),
                Line::from(vec![Span::styled("y", theme.key()), Span::raw(" yes   any other key: no")]),
            ]);
            let inner = frame_of(frame, area, (width.min(70), lines.len()), " Sure? ", theme.of(Color::Yellow));
            text::draw(frame, inner, lines, 0)
        }
        Dialog::Input { title, text: line, cursor, .. } => {
            let inner = frame_of(frame, area, (width.min(70), 3), &format!(" {title} "), theme.of(Color::Cyan));
            let room = (inner.width as usize).saturating_sub(1).max(1);
            let letters: Vec<char> = line.chars().collect();
            let first = (cursor + 1).saturating_sub(room);
            let shown: String = letters.iter().skip(first).take(room).collect();
            let before: String = letters[..*cursor].iter().skip(first).collect();
            let keys =
                vec![Span::styled("Enter", theme.key()), Span::raw(" done   "), Span::styled("Esc", theme.key())];
            let lines = vec![Line::raw(shown), Line::raw(""), Line::from([keys, vec![Span::raw(" cancel")]].concat())];
            frame.set_cursor_position(Position::new(inner.x + text::width(&before) as u16, inner.y));
            text::draw(frame, inner, lines, 0)
        }
        Dialog::Text { title, lines, scroll } => {
            let size = (area.width as usize, area.height as usize);
            let inner =
                frame_of(frame, area, size, &format!(" {title} · ↑↓ scroll, any other key: back "), theme.faint());
            let lines = lines.iter().map(|line| Line::raw(text::printable(line))).collect();
            text::draw(frame, inner, lines, *scroll)
        }
    }
}

/// Draws an empty frame in the center and returns its inner area. The inner area has this size, if the screen is large enough.
fn frame_of(frame: &mut Frame<'_>, area: Rect, (width, height): (usize, usize), title: &str, style: Style) -> Rect {
    let (width, height) = ((width + 4).min(area.width as usize) as u16, (height + 2).min(area.height as usize) as u16);
    let at = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let block = Block::bordered().border_type(BorderType::Rounded).border_style(style).title(title.to_owned());
    let inner = block.inner(at);
    frame.render_widget(Clear, at);
    frame.render_widget(block, at);
    Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner }
}
