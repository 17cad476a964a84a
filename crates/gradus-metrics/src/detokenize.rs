//! The English rules of Moses' `detokenizer.perl`, which ToTTo's evaluation applies to every text.
//!
//! Checked against `sacremoses` 0.2.0, its port to Python.

use std::sync::LazyLock;

use regex::Regex;

use crate::characters::is_digit;

static CURRENCY: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[\p{Sc}(\[{¿¡]+$").expect("a class of characters"));

const ENTITIES: [(&str, &str); 11] = [
    ("&bar;", "|"),
    ("&#124;", "|"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&bra;", "["),
    ("&ket;", "]"),
    ("&quot;", "\""),
    ("&apos;", "'"),
    ("&#91;", "["),
    ("&#93;", "]"),
    ("&amp;", "&"),
];

/// Joins the tokens of a line into text: punctuation is attached to its word. A line that is or looks like a single tag stays unchanged.
pub fn detokenized(line: &str) -> String {
    if line.starts_with('<') && line.ends_with('>') && line.chars().nth(2).is_some() {
        return line.to_owned();
    }
    let mut text = format!(" {line} ").replace(" @-@ ", "-");
    for (entity, plain) in ENTITIES {
        if text.contains('&') {
            text = text.replace(entity, plain);
        }
    }
    let words: Vec<&str> = text.split(' ').collect();
    let mut out = String::with_capacity(text.len());
    let mut glue = " ";
    let mut quotes = Vec::new();
    for (i, &word) in words.iter().enumerate() {
        let before = if i > 0 { words[i - 1] } else { "" };
        let (joins, next_glue) = match word {
            _ if word.starts_with(is_cjk) => (before.ends_with(is_cjk), " "),
            _ if CURRENCY.is_match(word) => (false, ""),
            _ if is_all(word, ",.?!:;\\%}])") => (true, " "),
            _ if is_contraction(word) && before.ends_with(is_alphanumeric) => (true, " "),
            _ if is_all(word, "'\"„“`") => quote(word, before, &mut quotes),
            _ => (false, " "),
        };
        if !joins {
            out.push_str(glue);
        }
        out.push_str(word);
        glue = next_glue;
    }
    let mut clean = String::with_capacity(out.len());
    for word in out.split(' ').filter(|word| !word.is_empty()) {
        if !clean.is_empty() {
            clean.push(' ');
        }
        clean.push_str(word);
    }
    clean
}

fn is_all(word: &str, of: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| of.contains(c))
}

/// Perl's `\p{IsAlnum}`, which excludes fractions and superscripts.
fn is_alphanumeric(c: char) -> bool {
    c.is_alphabetic() || is_digit(c)
}

fn is_contraction(word: &str) -> bool {
    word.strip_prefix('\'').is_some_and(|rest| rest.starts_with(char::is_alphabetic))
}

/// Handles a quote. Quotes of one kind open and close alternately; an apostrophe after an `s` is a possessive. Returns whether the quote
/// joins the previous word, and the separator in front of the next word.
fn quote<'a>(word: &'a str, before: &str, open: &mut Vec<&'a str>) -> (bool, &'static str) {
    let kind = if is_all(word, "„“”") { "\"" } else { word };
    match open.iter().position(|other| *other == kind) {
        Some(i) => {
            open.swap_remove(i);
            (true, " ")
        }
        None if word == "'" && before.ends_with('s') => (true, " "),
        None => {
            open.push(kind);
            (false, "")
        }
    }
}

fn is_cjk(c: char) -> bool {
    matches!(
        u32::from(c),
        0x1100..=0x11ff
            | 0x2e80..=0xa4cf
            | 0xa840..=0xa87f
            | 0xac00..=0xd7af
            | 0xf900..=0xfaff
            | 0xfe30..=0xfe4f
            | 0xff65..=0xffdc
            | 0x20000..=0x2ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from `detokenizer.perl` itself, for texts that its Python port treats differently.
    #[test]
    fn tags_and_fractions_as_perl_has_them() {
        for (line, expected) in [
            ("<b> the dog 's ( name ) </b>", "<b> the dog 's ( name ) </b>"),
            ("<> a , b", "<> a, b"),
            ("<> the dog 's", "<> the dog's"),
            ("5 ½ 's", "5 ½ 's"),
            ("m² 's", "m² 's"),
            ("٣ 's", "٣'s"),
        ] {
            assert_eq!(detokenized(line), expected, "{line}");
        }
    }
}
