//! Normalization of short answers by SQuAD's rules.

use crate::characters::{is_word, split};

/// Returns the words of an answer in lower case, without ASCII punctuation and articles.
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
