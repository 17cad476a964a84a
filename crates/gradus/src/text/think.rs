//! Reasoning that a model writes before its answer.

use std::borrow::Cow;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

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

#[cfg(test)]
mod tests {
    use super::without_thoughts;

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
}
