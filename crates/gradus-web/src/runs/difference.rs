//! Word-level differences between two texts, from the longest common subsequence of their words.

/// Kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The text is in both.
    Same,
    /// Only the first text has it.
    Gone,
    /// Only the second text has it.
    New,
}

/// Maximum number of words per text; the rest counts as one word. The time grows with the product of both numbers.
const WORDS: usize = 1000;

/// Splits a text into words, each with the preceding white space. Nothing is left out.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut in_word) = (0, false);
    for (at, c) in text.char_indices() {
        if c.is_whitespace() && in_word {
            words.push(&text[start..at]);
            start = at;
        }
        in_word = !c.is_whitespace();
        if words.len() == WORDS {
            break;
        }
    }
    if start < text.len() {
        words.push(&text[start..]);
    }
    words
}

/// Returns the changes from `before` to `after`. Ranges that are not new add up to `before`, ranges that are not gone to `after`.
pub fn differences(before: &str, after: &str) -> Vec<(DifferenceKind, String)> {
    let (old, new) = (words(before), words(after));
    // Length of the longest common subsequence of the remaining words, from each pair of positions.
    let width = new.len() + 1;
    let mut longest = vec![0u16; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            longest[i * width + j] = match old[i] == new[j] {
                true => longest[(i + 1) * width + j + 1] + 1,
                false => longest[(i + 1) * width + j].max(longest[i * width + j + 1]),
            };
        }
    }
    let mut found: Vec<(DifferenceKind, String)> = Vec::new();
    let mut add = |change: DifferenceKind, word: &str| match found.last_mut() {
        Some((last, text)) if *last == change => text.push_str(word),
        _ => found.push((change, word.to_owned())),
    };
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            add(DifferenceKind::Same, old[i]);
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && longest[(i + 1) * width + j] >= longest[i * width + j + 1]) {
            add(DifferenceKind::Gone, old[i]);
            i += 1;
        } else {
            add(DifferenceKind::New, new[j]);
            j += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(before: &str, after: &str) -> String {
        let of = |(change, text): &(DifferenceKind, String)| match change {
            DifferenceKind::Same => text.clone(),
            DifferenceKind::Gone => format!("[-{text}]"),
            DifferenceKind::New => format!("[+{text}]"),
        };
        differences(before, after).iter().map(of).collect()
    }

    #[test]
    fn what_stays_is_as_much_as_can() {
        assert_eq!(shown("the tea is warm", "the green tea was warm"), "the[+ green] tea[- is][+ was] warm");
        assert_eq!(shown("", "a b"), "[+a b]");
        assert_eq!(shown("a b", ""), "[-a b]");
        assert_eq!(shown("", ""), "");
        assert_eq!(shown("same  text\n", "same  text\n"), "same  text\n");
    }

    #[test]
    fn both_texts_are_there_whole() {
        let long = |seed: usize| (0..3000).map(|i| format!("w{} ", (i * seed) % 17)).collect::<String>();
        for (before, after) in
            [(long(3), long(5)), (" größer 世界".into(), "世界 größer ".into()), ("a\n\nb".into(), "\ta b".into())]
        {
            let found = differences(&before, &after);
            let joined = |not: DifferenceKind| {
                found.iter().filter(|(of, _)| *of != not).map(|(_, text)| text.as_str()).collect::<String>()
            };
            assert_eq!((joined(DifferenceKind::New), joined(DifferenceKind::Gone)), (before, after));
        }
    }
}
