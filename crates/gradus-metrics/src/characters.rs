//! Character classes of Python and of its `regex` module.

use std::sync::LazyLock;

use regex::Regex;

/// `str.isspace`, on which `str.split` and `\s` are based: Unicode white space and the four ASCII separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.split()`.
pub fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// The characters of some general categories.
struct Category(LazyLock<Regex>);

impl Category {
    fn has(&self, c: char) -> bool {
        self.0.is_match(c.encode_utf8(&mut [0; 4]))
    }
}

fn class(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a class of characters")
}

static NUMBER: Category = Category(LazyLock::new(|| class(r"^\p{N}$")));
static DECIMAL: Category = Category(LazyLock::new(|| class(r"^\p{Nd}$")));
static PUNCTUATION: Category = Category(LazyLock::new(|| class(r"^\p{P}$")));
static SYMBOL: Category = Category(LazyLock::new(|| class(r"^\p{S}$")));
static REGEX_WORD: Category = Category(LazyLock::new(|| class(r"^\w$")));
static WORD: Category = Category(LazyLock::new(|| class(r"^[\p{L}\p{N}_]$")));

/// `\p{N}`: decimal digits, Roman numerals, fractions and other numbers.
pub fn is_number(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_digit() } else { NUMBER.has(c) }
}

/// `\d`: a decimal digit of any script.
pub fn is_digit(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_digit() } else { DECIMAL.has(c) }
}

/// `\p{P}`.
pub fn is_punctuation(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_punctuation() && !is_ascii_symbol(c) } else { PUNCTUATION.has(c) }
}

/// `\p{S}`.
pub fn is_symbol(c: char) -> bool {
    if c.is_ascii() { is_ascii_symbol(c) } else { SYMBOL.has(c) }
}

fn is_ascii_symbol(c: char) -> bool {
    "$+<=>^`|~".contains(c)
}

/// `\w`: letters, numbers and the underscore.
pub fn is_word(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_alphanumeric() || c == '_' } else { WORD.has(c) }
}

/// `\w` of the module `regex`, which follows Unicode: it includes combining marks and connectors, but of the numbers only digits.
pub fn is_regex_word(c: char) -> bool {
    if c.is_ascii() { is_word(c) } else { REGEX_WORD.has(c) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_is_classed_as_the_rest_is() {
        for c in (0..128u8).map(char::from) {
            assert_eq!(is_number(c), NUMBER.has(c), "{c:?}");
            assert_eq!(is_digit(c), DECIMAL.has(c), "{c:?}");
            assert_eq!(is_punctuation(c), PUNCTUATION.has(c), "{c:?}");
            assert_eq!(is_symbol(c), SYMBOL.has(c), "{c:?}");
            assert_eq!(is_word(c), WORD.has(c), "{c:?}");
            assert_eq!(is_regex_word(c), REGEX_WORD.has(c), "{c:?}");
        }
    }

    #[test]
    fn beyond_ascii_as_python_says() {
        assert!(is_space('\u{1c}') && is_space('\u{a0}') && !is_space('\u{200b}'));
        assert!(is_number('½') && !is_digit('½') && is_digit('٣') && is_word('½') && !is_regex_word('½'));
        assert!(is_regex_word('\u{301}') && is_regex_word('\u{200d}') && is_regex_word('٣') && !is_regex_word('–'));
        assert!(is_punctuation('„') && is_punctuation('。') && is_symbol('€') && !is_word('\u{301}'));
        assert_eq!(split(" a\u{1f}b\u{3000}c ").collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
