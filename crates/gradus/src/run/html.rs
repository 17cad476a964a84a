//! Self-contained HTML pages: one file with styles and pictures.

use super::metrics::Axis;
use super::plots::{Chart, LineChart};

/// Escapes the special characters of HTML and SVG in `text`.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns a whole page around `body`, which is already HTML.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title),
        include_str!("report.css")
    )
}

/// Formats warnings, each in a box: its subject (may be empty) and its text, with the first sentence in bold.
pub fn alerts<'t>(texts: impl IntoIterator<Item = (&'t str, &'t str)>) -> String {
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
        format!("<div class=\"alert\" role=\"note\"><strong>{}</strong>{}</div>\n", escape(&first), escape(rest))
    };
    texts.into_iter().map(alert).collect()
}

/// Formats a figure.
pub fn figure(chart: &dyn Chart) -> String {
    format!("<figure>{}</figure>\n", chart.svg())
}

/// Puts figures next to each other.
pub fn gallery(figures: impl IntoIterator<Item = String>) -> String {
    format!("<div class=\"curves\">\n{}</div>\n", figures.into_iter().collect::<String>())
}

/// Puts figures of curves next to each other, with a choice of the x-axis. `charts` returns the charts for an axis. An axis with fewer
/// charts than the steps axis is left out.
pub fn curves(charts: &dyn Fn(Axis) -> Vec<(String, LineChart)>) -> String {
    let made: Vec<(Axis, Vec<(String, LineChart)>)> = Axis::ALL.into_iter().map(|axis| (axis, charts(axis))).collect();
    let of_steps = made[0].1.len();
    let shown: Vec<&(Axis, Vec<_>)> =
        made.iter().filter(|(_, charts)| !charts.is_empty() && charts.len() == of_steps).collect();
    if shown.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h2>Curves</h2>\n<div class=\"axes\">\n");
    for (axis, _) in shown.iter().filter(|_| shown.len() > 1) {
        let (name, title) = (axis.name(), if *axis == Axis::Steps { "steps" } else { axis.name() });
        let checked = if *axis == Axis::Steps { " checked" } else { "" };
        html += &format!(
            "<input type=\"radio\" name=\"axis\" id=\"over-{name}\"{checked}><label for=\"over-{name}\">over {title}</label>\n"
        );
    }
    for (axis, charts) in &shown {
        let figures = gallery(charts.iter().map(|(_, chart)| figure(chart)));
        html += &format!("<div class=\"over over-{}\">\n{figures}</div>\n", axis.name());
    }
    html + "</div>\n"
}

/// Formats named numbers as cards; the third text is small print.
pub fn cards<'a>(cards: impl IntoIterator<Item = (&'a str, String, String)>) -> String {
    let card = |(name, value, note): (&str, String, String)| {
        // Allow line breaks between the words of a name.
        let name = escape(name).replace('/', "/<wbr>").replace('_', "_<wbr>");
        let (value, note) = (escape(&value), escape(&note));
        format!("<div class=\"card\"><dt>{name}</dt><dd>{value}</dd><small>{note}</small></div>\n")
    };
    format!("<dl class=\"cards\">\n{}</dl>\n", cards.into_iter().map(card).collect::<String>())
}

/// Table cell with a prompt. Long prompts scroll, because the completions matter more.
pub fn prompt_cell(text: &str) -> String {
    format!("<td class=\"text prompt\"><div>{}</div></td>", escape(text))
}

/// Table cell with a small heading and a text of several lines.
pub fn text_cell(heading: &str, text: &str) -> String {
    format!("<td class=\"text\"><b>{}</b>{}</td>", escape(heading), escape(text))
}
