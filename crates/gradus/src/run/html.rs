//! Pages that need nothing but themselves: one file, styles and pictures inside.

use super::plots::{Chart, LineChart};

/// `text` with the characters that HTML and SVG give a meaning replaced.
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

/// A whole page around `body`, which is HTML already.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title),
        include_str!("report.css")
    )
}

/// Pictures beside each other.
pub fn curves(charts: &[(String, LineChart)]) -> String {
    let figures: String = charts.iter().map(|(_, chart)| format!("<figure>{}</figure>\n", chart.svg())).collect();
    format!("<div class=\"curves\">\n{figures}</div>\n")
}

/// Numbers with their names; the third text is small print.
pub fn cards<'a>(cards: impl IntoIterator<Item = (&'a str, String, String)>) -> String {
    let card = |(name, value, note): (&str, String, String)| {
        // Names may break where their words do.
        let name = escape(name).replace('/', "/<wbr>").replace('_', "_<wbr>");
        let (value, note) = (escape(&value), escape(&note));
        format!("<div class=\"card\"><dt>{name}</dt><dd>{value}</dd><small>{note}</small></div>\n")
    };
    format!("<dl class=\"cards\">\n{}</dl>\n", cards.into_iter().map(card).collect::<String>())
}

/// A cell with a prompt, which scrolls where it is long: the answers are what is read.
pub fn prompt_cell(text: &str) -> String {
    format!("<td class=\"text prompt\"><div>{}</div></td>", escape(text))
}

/// A cell with a text of several lines under a small heading.
pub fn text_cell(heading: &str, text: &str) -> String {
    format!("<td class=\"text\"><b>{}</b>{}</td>", escape(heading), escape(text))
}
