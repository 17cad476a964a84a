//! Self-contained HTML pages: one file with styles and pictures.

use crate::html;
use crate::html::Html;
use crate::plots::{Chart, LineChart};
use crate::run::metrics::Axis;

/// Returns a whole page around `body`.
pub fn page(title: &str, body: &Html) -> String {
    let mut page = html![
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" (title) "</title>\n<style>\n"
    ];
    page.markup(include_str!("report.css"));
    page.add(&html!["</style>\n</head>\n<body>\n<main>\n" (body) "</main>\n</body>\n</html>\n"]);
    page.into_string()
}

/// Formats warnings, each in a box: its subject (may be empty) and its text, with the first sentence in bold.
pub fn alerts<'t>(texts: impl IntoIterator<Item = (&'t str, &'t str)>) -> Vec<Html> {
    let alert = |(whose, text): (&str, &str)| {
        // A sentence ends before a capital letter. Points also occur in numbers and names.
        let ends = text.match_indices(". ").map(|(at, _)| at + 1);
        let end = ends.into_iter().find(|&at| text[at + 1..].starts_with(char::is_uppercase)).unwrap_or(text.len());
        let (first, rest) = text.split_at(end);
        let mut letters = first.chars();
        let first: String = match whose {
            "" => letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect(),
            whose => format!("{whose}: {first}"),
        };
        html!["<div class=\"alert\" role=\"note\"><strong>" (first) "</strong>" (rest) "</div>\n"]
    };
    texts.into_iter().map(alert).collect()
}

/// Formats a figure.
pub fn figure(chart: &dyn Chart) -> Html {
    html!["<figure>" (chart.svg()) "</figure>\n"]
}

/// Puts figures next to each other.
pub fn gallery(figures: impl IntoIterator<Item = Html>) -> Html {
    html!["<div class=\"curves\">\n" (figures.into_iter().collect::<Vec<_>>()) "</div>\n"]
}

/// Puts figures of curves next to each other, with a choice of the x-axis. `charts` returns the charts for an axis. An axis with fewer
/// charts than the steps axis is left out.
pub fn curves(charts: &dyn Fn(Axis) -> Vec<(String, LineChart)>) -> Html {
    let made: Vec<(Axis, Vec<(String, LineChart)>)> = Axis::ALL.into_iter().map(|axis| (axis, charts(axis))).collect();
    let of_steps = made[0].1.len();
    let shown: Vec<&(Axis, Vec<_>)> =
        made.iter().filter(|(_, charts)| !charts.is_empty() && charts.len() == of_steps).collect();
    if shown.is_empty() {
        return Html::new();
    }
    let choices: Vec<Html> = match shown.len() {
        1 => Vec::new(),
        _ => shown.iter().map(|(axis, _)| choice(*axis)).collect(),
    };
    let drawn = |(axis, charts): &&(Axis, Vec<(String, LineChart)>)| {
        let figures = gallery(charts.iter().map(|(_, chart)| figure(chart)));
        html!["<div class=\"over over-" (axis.name()) "\">\n" (figures) "</div>\n"]
    };
    let drawn: Vec<Html> = shown.iter().map(drawn).collect();
    html!["<h2>Curves</h2>\n<div class=\"axes\">\n" (choices) (drawn) "</div>\n"]
}

/// Button that chooses the x-axis.
fn choice(axis: Axis) -> Html {
    let (title, checked) = match axis {
        Axis::Steps => ("steps", html![" checked"]),
        axis => (axis.name(), Html::new()),
    };
    html![
        "<input type=\"radio\" name=\"axis\" id=\"over-" (axis.name()) "\"" (checked) ">"
        "<label for=\"over-" (axis.name()) "\">over " (title) "</label>\n"
    ]
}

/// Formats named numbers as cards; the third text is small print.
pub fn cards<'a>(cards: impl IntoIterator<Item = (&'a str, String, String)>) -> Html {
    let card = |(name, value, note): (&str, String, String)| html!["<div class=\"card\"><dt>" (breakable(name)) "</dt><dd>" (value) "</dd><small>" (note) "</small></div>\n"];
    html!["<dl class=\"cards\">\n" (cards.into_iter().map(card).collect::<Vec<_>>()) "</dl>\n"]
}

/// Allows line breaks between the words of a name.
fn breakable(name: &str) -> Html {
    let mut html = Html::new();
    for word in name.split_inclusive(['/', '_']) {
        html.add(word);
        if word.ends_with(['/', '_']) {
            html.markup("<wbr>");
        }
    }
    html
}

/// Table cell with a prompt. Long prompts scroll, because the completions matter more.
pub fn prompt_cell(text: &str) -> Html {
    html!["<td class=\"text prompt\"><div>" (text) "</div></td>"]
}

/// Table cell with a small heading and a text of several lines.
pub fn text_cell(heading: &str, text: &str) -> Html {
    html!["<td class=\"text\"><b>" (heading) "</b>" (text) "</td>"]
}
