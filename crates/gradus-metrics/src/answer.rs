//! Short answers as SQuAD compares them.

use crate::characters::{is_word, split};

/// The words of an answer: lower case, without punctuation of ASCII and articles.
pub fn words(answer: &str) -> Vec<String> {
    let plain: String = answer.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let mut kept = String::with_capacity(plain.len());
    let mut rest = plain.as_str();
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        kept.push_str(if matches!(run, "a" | "an" | "the") { " " } else { run });
        rest = after;
    }
    split(&kept).map(str::to_owned).collect()
}
