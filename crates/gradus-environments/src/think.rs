//! Reasoning ("thoughts") that a model writes before its answer.

use std::borrow::Cow;

/// Opening tag of a thought.
pub const OPEN: &str = "<think>";
/// Closing tag of a thought.
pub const CLOSE: &str = "</think>";

/// Removes `<think>…</think>` blocks and the white space after each. An unclosed block extends to the end of the text, because
/// there is no answer yet.
///
/// Text before a lone `</think>` is also reasoning, because chat templates may open the block in the prompt.
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

/// Removes thoughts from a prompt and its completion, for a reward model.
///
/// A prompt may end within a thought, if a chat template opens the block. The opening of that block is removed, and the completion
/// is reasoning up to the end of the thought. A lone `</think>` in a prompt is ordinary text, unlike in an answer: the text before
/// it is part of the request.
pub fn without_thoughts_after<'t>(prompt: &'t str, completion: &'t str) -> (Cow<'t, str>, Cow<'t, str>) {
    let opens_last = |text: &str| text.rfind(OPEN).is_some_and(|open| !text[open..].contains(CLOSE));
    let cleaned_prompt = match prompt.find(OPEN) {
        // From the first opened block on, every closing tag has its opening tag.
        Some(open) => (prompt[..open].to_owned() + &without_thoughts(&prompt[open..])).into(),
        None => prompt.into(),
    };
    let cleaned_completion = match opens_last(prompt) && !completion.contains(CLOSE) {
        true => "".into(),
        false => without_thoughts(completion),
    };
    (cleaned_prompt, cleaned_completion)
}

/// Removes empty blocks from a text that a chat template rendered. Templates write them for models that answer without reasoning.
pub fn without_empty_thoughts(text: &str) -> Cow<'_, str> {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(open) = rest.find(OPEN) {
        let (before, inside) = (&rest[..open], &rest[open + OPEN.len()..]);
        kept += before;
        rest = match inside.trim_start().strip_prefix(CLOSE) {
            Some(after) => after.trim_start(),
            None => {
                kept += OPEN;
                inside
            }
        };
    }
    if kept.is_empty() && rest.len() == text.len() { text.into() } else { (kept + rest).into() }
}

/// Splits an answer into the thought at its start, without tags, and the rest. A lone `</think>` ends a thought that the chat template
/// opened. An unclosed thought extends to the end of the text. Tags elsewhere are ordinary text, which an answer may quote.
pub fn first_thought(text: &str) -> (Option<&str>, &str) {
    let begun = text.trim_start().strip_prefix(OPEN);
    match (begun.unwrap_or(text).split_once(CLOSE), begun) {
        (Some((before, _)), None) if before.contains(OPEN) => (None, text),
        (Some((thought, rest)), _) => (Some(thought), rest),
        (None, Some(thought)) => (Some(thought), ""),
        (None, None) => (None, text),
    }
}

/// A part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerPart<'t> {
    /// Thought, including its tags.
    Thought(&'t str),
    /// Everything else.
    Answer(&'t str),
}

/// Splits an answer into thoughts and other text. `inside` means that a thought was opened before the text, as by chat templates
/// that end with `<think>`. An unclosed thought extends to the end of the text.
pub fn parts(text: &str, inside: bool) -> Vec<AnswerPart<'_>> {
    let (mut parts, mut rest, mut inside) = (Vec::new(), text, inside);
    while !rest.is_empty() {
        let end = match inside {
            true => rest.find(CLOSE).map(|at| at + CLOSE.len()),
            false => rest.find(OPEN),
        };
        let (part, others) = rest.split_at(end.unwrap_or(rest.len()));
        if !part.is_empty() {
            parts.push(if inside { AnswerPart::Thought(part) } else { AnswerPart::Answer(part) });
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
    fn a_prompt_may_open_the_thought_that_its_completion_ends() {
        for (prompt, completion, expected_prompt, expected_completion) in [
            ("2 + 2?", " It is 4.", "2 + 2?", " It is 4."),
            ("2 + 2? <think>\n", "hm</think> It is 4.", "2 + 2? ", "It is 4."),
            ("2 + 2? <think>\n", "hm, it is", "2 + 2? ", ""),
            ("2 + 2?", "hm</think>It is 4.", "2 + 2?", "It is 4."),
            ("1 + 1? <think>a</think>2. And 2 + 2?", "<think>b</think>4", "1 + 1? 2. And 2 + 2?", "4"),
            ("What does </think> end?", "A thought.", "What does </think> end?", "A thought."),
        ] {
            let found = without_thoughts_after(prompt, completion);
            assert_eq!((&*found.0, &*found.1), (expected_prompt, expected_completion), "{prompt:?} {completion:?}");
        }
    }

    #[test]
    fn only_empty_blocks_leave_a_rendered_conversation() {
        for (text, left) in [
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n4<|im_end|>\n", "<|im_start|>assistant\n4<|im_end|>\n"),
            ("a <think>b</think> <think></think>c", "a <think>b</think> c"),
            ("<think></think>", ""),
            ("no thought", "no thought"),
            ("an open <think>", "an open <think>"),
        ] {
            assert_eq!(without_empty_thoughts(text), left, "{text:?}");
        }
    }

    #[test]
    fn only_the_start_of_an_answer_is_its_first_thought() {
        for (text, thought, rest) in [
            (" <think>hm</think> Yes <think>b</think>", Some("hm"), " Yes <think>b</think>"),
            ("hm</think>Yes", Some("hm"), "Yes"),
            ("<think>hm", Some("hm"), ""),
            ("Write <think> and </think>.", None, "Write <think> and </think>."),
            ("Yes <think>", None, "Yes <think>"),
        ] {
            assert_eq!(first_thought(text), (thought, rest), "{text:?}");
        }
    }

    #[test]
    fn thoughts_are_told_from_answers() {
        let text = "<think>\nhm\n</think>\n\nYes.";
        assert_eq!(parts(text, false), [AnswerPart::Thought("<think>\nhm\n</think>"), AnswerPart::Answer("\n\nYes.")]);
        assert_eq!(parts("hm</think>Yes", true), [AnswerPart::Thought("hm</think>"), AnswerPart::Answer("Yes")]);
        assert_eq!(parts("Yes <think>but", false), [AnswerPart::Answer("Yes "), AnswerPart::Thought("<think>but")]);
        assert_eq!(parts("", true), []);
    }
}
