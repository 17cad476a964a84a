//! Splits a text into words, the smallest units that can be marked.
//!
//! A word is delimited by whitespace. In scripts without spaces (Chinese, Japanese, Thai and similar ones), each user-perceived character
//! is a word: an extended grapheme cluster (Unicode Standard Annex 29). Offsets are code points.

use unicode_segmentation::UnicodeSegmentation;

/// First and last character of scripts without spaces between words, and of their punctuation.
const WITHOUT_SPACES: [(char, char); 18] = [
    ('\u{0e00}', '\u{0eff}'),   // Thai, Lao
    ('\u{0f00}', '\u{0fff}'),   // Tibetan
    ('\u{1000}', '\u{109f}'),   // Myanmar
    ('\u{1780}', '\u{17ff}'),   // Khmer
    ('\u{1950}', '\u{19df}'),   // Tai Le, New Tai Lue
    ('\u{1a20}', '\u{1aaf}'),   // Tai Tham
    ('\u{2e80}', '\u{2fdf}'),   // Han radicals
    ('\u{3001}', '\u{303f}'),   // Chinese and Japanese punctuation
    ('\u{3040}', '\u{30ff}'),   // Hiragana, Katakana
    ('\u{31f0}', '\u{31ff}'),   // Katakana
    ('\u{3400}', '\u{4dbf}'),   // Han
    ('\u{4e00}', '\u{9fff}'),   // Han
    ('\u{a980}', '\u{a9df}'),   // Javanese
    ('\u{aa60}', '\u{aadf}'),   // Myanmar, Tai Viet
    ('\u{f900}', '\u{faff}'),   // Han
    ('\u{ff01}', '\u{ff0f}'),   // wide punctuation
    ('\u{ff1a}', '\u{ff9f}'),   // wide punctuation and letters, half-width Katakana
    ('\u{20000}', '\u{323af}'), // Han
];

fn stands_alone(grapheme: &str) -> bool {
    let first = grapheme.chars().next();
    first.is_some_and(|c| WITHOUT_SPACES.iter().any(|(from, to)| (*from..=*to).contains(&c)))
}

/// Returns the words of a text in order, as pairs of start and end (exclusive).
pub fn words(text: &str) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    let (mut at, mut joins) = (0, false);
    for grapheme in text.graphemes(true) {
        let end = at + grapheme.chars().count();
        match grapheme.chars().all(char::is_whitespace) {
            true => joins = false,
            false if stands_alone(grapheme) => {
                found.push((at, end));
                joins = false;
            }
            false => {
                match found.last_mut().filter(|_| joins) {
                    Some(word) => word.1 = end,
                    None => found.push((at, end)),
                }
                joins = true;
            }
        }
        at = end;
    }
    found
}

/// Returns the range of words that a selection touches. `None` if it touches no word.
pub fn whole_words(text: &str, start: usize, end: usize) -> Option<(usize, usize)> {
    let touched = |word: &&(usize, usize)| word.0 < end && start < word.1;
    let words = words(text);
    let mut touched = words.iter().filter(touched);
    let first = touched.next()?;
    Some((first.0, touched.next_back().unwrap_or(first).1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let chars: Vec<char> = text.chars().collect();
        words(text).into_iter().map(|(start, end)| chars[start..end].iter().collect()).collect()
    }

    #[test]
    fn words_stand_between_spaces_or_are_single_characters() {
        assert_eq!(texts("  the tea\n\tis warm. "), ["the", "tea", "is", "warm."]);
        assert_eq!(texts("お茶は warm!"), ["お", "茶", "は", "warm!"]);
        assert_eq!(texts("世界hello世"), ["世", "界", "hello", "世"]);
        // Thai vowels belong to their letter. A flag or a joined family emoji is one character.
        assert_eq!(texts("ที่นี่"), ["ที่", "นี่"]);
        assert_eq!(texts("a👨‍👩‍👧b c"), ["a👨‍👩‍👧b", "c"]);
        assert_eq!(texts("e\u{301}t\u{e9}"), ["e\u{301}t\u{e9}"]);
        assert!(words("").is_empty() && words(" \r\n ").is_empty());
    }

    #[test]
    fn a_selection_becomes_whole_words() {
        let text = "  the tea  is warm";
        assert_eq!(whole_words(text, 3, 7), Some((2, 9)));
        assert_eq!(whole_words(text, 0, 2), None);
        assert_eq!(whole_words(text, 5, 6), None);
        assert_eq!(whole_words(text, 5, 7), Some((6, 9)), "spaces are trimmed before it widens");
        assert_eq!(whole_words(text, 0, 400), Some((2, 18)));
        assert_eq!(whole_words("größer 世界", 2, 8), Some((0, 8)), "one of the two characters");
        assert_eq!(whole_words("我喜欢喝茶", 1, 3), Some((1, 3)));
        assert_eq!(whole_words("", 0, 3), None);
    }
}
