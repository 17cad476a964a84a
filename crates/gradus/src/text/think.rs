//! Reasoning that a model writes before its answer.

use std::borrow::Cow;

/// Begins a thought.
pub const OPEN: &str = "<think>";
/// Ends it.
pub const CLOSE: &str = "</think>";

/// `text` without its `<think>…</think>` blocks and the white space behind each. A block that never ends goes to the end
/// of the text: there is no answer yet.
///
/// What stands before a lone `</think>` is reasoning too, because chat templates may open the block in the prompt.
pub fn without_thoughts(text: &str) -> Cow<'_, str> {
    if !text.contains(OPEN) && !text.contains(CLOSE) {
        return text.into();
    }
    let mut answer = String::new();
    let mut rest = match (text.find(OPEN), text.find(CLOSE)) {
        (open, Some(close)) if open.is_none_or(|open| close < open) => text[close + CLOSE.len()..].trim_start(),
        _ => text,
    };
    while let Some(open) = rest.find(OPEN) {
        answer += &rest[..open];
        rest = rest[open..].find(CLOSE).map_or("", |close| rest[open + close + CLOSE.len()..].trim_start());
    }
    (answer + rest).into()
}

/// A stretch of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'t> {
    /// Between the tags, both included.
    Thought(&'t str),
    /// Everything else.
    Said(&'t str),
}

/// Splits an answer into what was thought and what was said. `inside` says that a thought was begun before it, as chat
/// templates do that end with `<think>`. A thought without an end goes on to the end of the text.
pub fn parts(text: &str, inside: bool) -> Vec<Part<'_>> {
    let (mut parts, mut rest, mut inside) = (Vec::new(), text, inside);
    while !rest.is_empty() {
        let end = match inside {
            true => rest.find(CLOSE).map(|at| at + CLOSE.len()),
            false => rest.find(OPEN),
        };
        let (part, others) = rest.split_at(end.unwrap_or(rest.len()));
        if !part.is_empty() {
            parts.push(if inside { Part::Thought(part) } else { Part::Said(part) });
        }
        (rest, inside) = (others, !inside);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_is_left() {
        for (text, answer) in [
            ("It is 4.", "It is 4."),
            ("<think>2 + 2</think>\n\nIt is 4.", "It is 4."),
            ("<think>\n\n</think>\n\nIt is 4.", "It is 4."),
            ("Well: <think>a</think>x<think>b</think> y", "Well: xy"),
            ("<think>2 + 2 is", ""),
            ("2 + 2</think>It is 4.", "It is 4."),
            ("2</think> It <think>is it?</think>is 4.", "It is 4."),
            ("a < think > b", "a < think > b"),
        ] {
            assert_eq!(without_thoughts(text), answer, "{text:?}");
        }
    }

    #[test]
    fn thoughts_are_told_from_answers() {
        let text = "<think>\nhm\n</think>\n\nYes.";
        assert_eq!(parts(text, false), [Part::Thought("<think>\nhm\n</think>"), Part::Said("\n\nYes.")]);
        assert_eq!(parts("hm</think>Yes", true), [Part::Thought("hm</think>"), Part::Said("Yes")]);
        assert_eq!(parts("Yes <think>but", false), [Part::Said("Yes "), Part::Thought("<think>but")]);
        assert_eq!(parts("", true), []);
    }
}
