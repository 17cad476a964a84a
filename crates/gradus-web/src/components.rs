//! Parts shared by several pages.

use gradus::html;
use gradus::html::Html;

/// Renders a text in which backticks mark code.
pub fn with_code(text: &str) -> Vec<Html> {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { html!["<code>" (part) "</code>"] } else { html![(part)] }).collect()
}

/// Renders a name, such as that of a key, which may break after `/`, `.` and `_`.
pub fn breakable(name: &str) -> Html {
    let mut html = Html::new();
    for part in name.split_inclusive(['/', '.', '_']) {
        if !html.is_empty() {
            html.markup("<wbr>");
        }
        html.add(part);
    }
    html
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_break_between_their_parts_and_backticks_mark_code() {
        assert_eq!(breakable("train.max_steps/<b>").into_string(), "train.<wbr>max_<wbr>steps/<wbr>&lt;b&gt;");
        assert_eq!(html![(with_code("set `a` to <b>"))].into_string(), "set <code>a</code> to &lt;b&gt;");
    }
}
