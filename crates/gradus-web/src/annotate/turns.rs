//! Display of a question as the turns of a conversation.
//!
//! Annotations refer to the text of a task: `user: …`, `assistant: …` and so on, or `Human: …` and `Assistant: …`, with an
//! empty line before each turn. This module only affects the display.

use gradus::html;
use gradus::html::Html;

/// Roles, and the CSS classes of their turns.
const ROLES: [(&str, &str); 7] = [
    ("system", "turn-reply"),
    ("developer", "turn-reply"),
    ("user", "turn-reply"),
    ("human", "turn-reply"),
    ("tool", "turn-reply"),
    ("assistant", "turn-policy"),
    ("model", "turn-policy"),
];

/// A turn: role, CSS class, and text.
type Turn<'t> = (&'t str, &'static str, String);

/// Renders the question, as a list of turns if it is a conversation.
pub fn question(text: &str) -> Html {
    match turns(text) {
        None => html!["<p class=\"text\" dir=\"auto\">" (text) "</p>\n"],
        Some(turns) => {
            let turn = |(who, class, content): &Turn<'_>| {
                html![
                    "<li class=\"" (*class) "\"><p class=\"who\">" (*who) "</p><div class=\"text\" dir=\"auto\">" (content) "</div></li>\n"
                ]
            };
            html!["<ol class=\"episode\">\n" (turns.iter().map(turn).collect::<Vec<_>>()) "</ol>\n"]
        }
    }
}

/// Splits a text into turns. `None` if the text does not begin with a turn or has only one.
fn turns(text: &str) -> Option<Vec<Turn<'_>>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for paragraph in text.trim().split("\n\n") {
        let begun = paragraph.split_once(':').and_then(|(who, content)| {
            let role = ROLES.iter().find(|(role, _)| role.eq_ignore_ascii_case(who.trim()))?;
            Some((who.trim(), role.1, content.trim().to_owned()))
        });
        match (begun, turns.last_mut()) {
            (Some(turn), _) => turns.push(turn),
            (None, Some((_, _, content))) => {
                content.push_str("\n\n");
                content.push_str(paragraph);
            }
            (None, None) => return None,
        }
    }
    // Prompts may end with the role of the next answer.
    if turns.last().is_some_and(|(_, _, content)| content.is_empty()) {
        turns.pop();
    }
    (turns.len() > 1).then_some(turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_are_turns_and_other_questions_are_text() {
        let of = |text: &str| {
            turns(text)
                .map(|turns| turns.into_iter().map(|(who, _, content)| format!("{who}={content}")).collect::<Vec<_>>())
        };
        let hh = "\n\nHuman: Is tea warm?\n\nAssistant: It is.\n\nVery.\n\nHuman: <b>Why</b>?\n\nAssistant:";
        assert_eq!(of(hh).expect("turns"), ["Human=Is tea warm?", "Assistant=It is.\n\nVery.", "Human=<b>Why</b>?"]);
        let roles = "system: Be kind.\n\nuser: a: b\n\ntool: 3";
        assert_eq!(of(roles).expect("turns"), ["system=Be kind.", "user=a: b", "tool=3"]);
        for text in ["Is tea warm?", "user: alone", "Note: a\n\nuser: b", "", "\n\nHuman: a\n\nAssistant:"] {
            assert_eq!(of(text), None, "{text}");
        }
        let page = question(hh).into_string();
        assert!(
            page.contains("&lt;b&gt;Why&lt;/b&gt;?") && page.matches("<li class=\"turn-policy\">").count() == 1,
            "{page}"
        );
        assert_eq!(question("a <b>").into_string(), "<p class=\"text\" dir=\"auto\">a &lt;b&gt;</p>\n");
    }
}
