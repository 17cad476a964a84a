//! Parts shared by several pages.

use gradus::html;
use gradus::html::Html;

/// Renders a table with a heading. Columns whose name begins with `#` contain numbers.
pub fn table(name: &'static str, heads: &[&'static str], rows: Vec<Html>) -> Html {
    let head = |head: &&'static str| match head.strip_prefix('#') {
        Some(head) => html!["<th scope=\"col\" class=\"number\">" (head) "</th>"],
        None => html!["<th scope=\"col\">" (*head) "</th>"],
    };
    let heads: Vec<Html> = heads.iter().map(head).collect();
    html![
        "<h2>" (name) "</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"" (name) "\"><table>\n<thead><tr>" (heads)
        "</tr></thead>\n<tbody>\n" (rows) "</tbody>\n</table></div>\n"
    ]
}

/// Renders a number with a label.
pub fn tile(name: &'static str, value: Html, note: &'static str) -> Html {
    html![
        "<div class=\"tile\"><span class=\"soft small\">" (name) "</span><strong>" (value) "</strong><span class=\"soft small\">" (note) "</span></div>\n"
    ]
}
