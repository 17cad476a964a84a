//! The tokenizers of sacreBLEU 2.6: 13a and intl after NIST's `mteval`, zh, char, none.

use serde::{Deserialize, Serialize};

use crate::characters::{is_number, is_punctuation, is_space, is_symbol};

/// Tokenizer of sacreBLEU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Tokenizer {
    /// `mteval-v13a`, used by WMT.
    #[default]
    #[serde(rename = "13a")]
    V13a,
    /// `mteval-v14 --international-tokenization`: splits by Unicode's classes of punctuation and symbols.
    #[serde(rename = "intl")]
    International,
    /// Every character is a word.
    #[serde(rename = "char")]
    Char,
    /// Each Chinese character is a word; the rest is split as by 13a.
    #[serde(rename = "zh")]
    Chinese,
    /// Split at whitespace only.
    #[serde(rename = "none")]
    None,
}

impl Tokenizer {
    /// Returns the text with spaces between words.
    pub fn tokenize(self, text: &str) -> String {
        let text = text.trim_end_matches(is_space);
        match self {
            Self::V13a => v13a(text),
            Self::International => international(text),
            Self::Char => text.chars().flat_map(|c| [c, ' ']).collect(),
            Self::Chinese => western(&padded(text.trim_matches(is_space), is_chinese)),
            Self::None => text.to_owned(),
        }
    }
}

/// 13a of the whole text, including white space at its end.
pub fn v13a(text: &str) -> String {
    western(&format!(" {} ", unescaped(text)))
}

/// Joins hyphenated line ends and resolves entities, in `mteval`'s order.
fn unescaped(text: &str) -> String {
    let mut text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if text.contains('&') {
        for (entity, plain) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
            text = text.replace(entity, plain);
        }
    }
    text
}

/// Rewrites a text from left to right. `rule` receives a character and the next one, writes their replacement and returns how many of them
/// it consumed. 0 keeps the character.
pub fn rewrite(text: &str, mut rule: impl FnMut(char, Option<char>, &mut String) -> usize) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match rule(c, characters.clone().next(), &mut out) {
            0 => out.push(c),
            1 => {}
            _ => {
                characters.next();
            }
        }
    }
    out
}

/// Puts a space on both sides of the characters that `is_word` selects.
pub fn padded(text: &str, is_word: impl Fn(char) -> bool) -> String {
    rewrite(text, |c, _, out| {
        if !is_word(c) {
            return 0;
        }
        out.extend([' ', c, ' ']);
        1
    })
}

/// ASCII punctuation except `'`, `,`, `-` and `.`.
pub fn is_western_punctuation(c: char) -> bool {
    matches!(c, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/')
}

/// The steps of 13a for Western languages.
fn western(text: &str) -> String {
    let text = padded(text, is_western_punctuation);
    split_dashes_after_digits(&split_periods_and_commas(&text))
}

/// Separates periods and commas from words, unless they are between digits.
pub fn split_periods_and_commas(text: &str) -> String {
    let is_mark = |c: char| c == '.' || c == ',';
    let after_others = rewrite(text, |c, next, out| match next {
        Some(mark) if !c.is_ascii_digit() && is_mark(mark) => {
            out.extend([c, ' ', mark, ' ']);
            2
        }
        _ => 0,
    });
    rewrite(&after_others, |c, next, out| match next {
        Some(next) if is_mark(c) && !next.is_ascii_digit() => {
            out.extend([' ', c, ' ', next]);
            2
        }
        _ => 0,
    })
}

/// Separates a dash from the digit before it.
pub fn split_dashes_after_digits(text: &str) -> String {
    rewrite(text, |c, next, out| {
        if !(c.is_ascii_digit() && next == Some('-')) {
            return 0;
        }
        out.extend([c, ' ', '-', ' ']);
        2
    })
}

fn international(text: &str) -> String {
    let text = rewrite(text, |c, next, out| match next {
        Some(mark) if is_punctuation(mark) && !is_number(c) => {
            out.extend([c, ' ', mark, ' ']);
            2
        }
        _ => 0,
    });
    let text = rewrite(&text, |c, next, out| match next {
        Some(next) if is_punctuation(c) && !is_number(next) => {
            out.extend([' ', c, ' ', next]);
            2
        }
        _ => 0,
    });
    padded(&text, is_symbol)
}

/// Chinese characters and punctuation. The ranges are sacreBLEU's, including its mistake: Python reads `\u20000` as two characters, so two
/// ranges meant for higher planes fall into the first one.
fn is_chinese(c: char) -> bool {
    matches!(
        c,
        '\u{3400}'..='\u{4db5}'
            | '\u{4e00}'..='\u{9fa5}'
            | '\u{9fa6}'..='\u{9fbb}'
            | '\u{f900}'..='\u{fa2d}'
            | '\u{fa30}'..='\u{fa6a}'
            | '\u{fa70}'..='\u{fad9}'
            | '\u{2001}'..='\u{2a6d}'
            | '\u{2f81}'..='\u{2fa1}'
            | '\u{ff00}'..='\u{ffef}'
            | '\u{2e80}'..='\u{2eff}'
            | '\u{3000}'..='\u{303f}'
            | '\u{31c0}'..='\u{31ef}'
            | '\u{2f00}'..='\u{2fdf}'
            | '\u{2ff0}'..='\u{2fff}'
            | '\u{3100}'..='\u{312f}'
            | '\u{31a0}'..='\u{31bf}'
            | '\u{fe10}'..='\u{fe1f}'
            | '\u{fe30}'..='\u{fe4f}'
            | '\u{3200}'..='\u{32ff}'
            | '\u{3300}'..='\u{33ff}'
    )
}
