//! The completions of one step.

use gradus::run::database::{Record, RolloutTable};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::{Theme, text};
use crate::browser::state::Browser;
use crate::commands::runs::{numbers, parts};

/// Draws the completions, beginning with the selected one.
pub fn draw(frame: &mut Frame<'_>, area: Rect, browser: &Browser, theme: Theme) -> usize {
    let page = &browser.page;
    let width = area.width as usize;
    if let Some(problem) = &page.problem {
        return text::draw(frame, area, text::wrapped(problem, width, Style::new()), 0);
    }
    let [head, body] = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(area);
    let table = match page.table {
        RolloutTable::Train => "training",
        RolloutTable::Eval => "evaluation",
        RolloutTable::Test => "test",
    };
    let place = page.steps.iter().position(|step| *step == page.step).map_or(0, |place| place + 1);
    let heading = Line::from(vec![
        Span::styled(format!("{table}, step {}", page.step), theme.bold()),
        Span::styled(format!("  {place} of {} steps · ", page.steps.len()), theme.faint()),
        Span::raw(format!("{} of {}", browser.view.index + 1, page.records.len())),
        Span::styled(format!(" · {}", browser.view.order.name()), theme.faint()),
    ]);
    text::draw(frame, head, vec![heading], 0);
    if page.records.is_empty() {
        return text::draw(frame, body, vec![Line::raw("no completions yet")], 0);
    }
    // As many as fit, and one more. `n` shows the rest.
    let mut lines = Vec::new();
    for record in page.records.iter().skip(browser.view.index) {
        lines.extend(described(record, width, theme));
        if lines.len() > body.height as usize + browser.scroll {
            break;
        }
    }
    text::draw(frame, body, lines, browser.scroll)
}

fn described(record: &Record, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let place = format!("prompt {} · completion {}", record.prompt_index + 1, record.rollout_index + 1);
    let mut lines = vec![Line::styled(place, theme.of(Color::Cyan))];
    lines.extend(text::wrapped(&numbers(record), width, theme.bold()));
    lines.extend(text::wrapped(record.prompt.trim_end(), width, theme.faint()));
    let completion = if record.completion.is_empty() { "(empty)" } else { record.completion.as_str() };
    lines.extend(text::wrapped(completion, width, Style::new()));
    if !record.segments.is_empty() {
        for line in parts(record) {
            lines.extend(text::wrapped(&line, width, theme.faint()));
        }
    }
    lines.push(Line::raw(""));
    lines
}
