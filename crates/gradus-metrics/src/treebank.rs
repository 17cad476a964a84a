//! Word splitting as in NLTK's `NLTKWordTokenizer` (Penn Treebank conventions), applied to one sentence.
//!
//! The rules of `nltk` 3.10.4 (`tokenize/destructive.py`). Each rule rewrites the whole sentence and puts spaces between words. Checked
//! against `nltk` 3.10.4.

use crate::characters::{is_digit, is_regex_word, is_space, is_word, split};

/// Version of NLTK whose rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// `nltk` 3.10.4.
    Today,
    /// `nltk` 3.7, which RL4LMs pins: an opening apostrophe stays with its word, and dashes are not separated.
    V3_7,
}

impl Rules {
    /// `\w` of the regex module that NLTK uses: `regex` today, `re` in 3.7.
    pub(super) fn is_word(self, c: char) -> bool {
        match self {
            Self::Today => is_regex_word(c),
            Self::V3_7 => is_word(c),
        }
    }

    /// `\s`: `re` also counts the ASCII separators.
    pub(super) fn is_space(self, c: char) -> bool {
        match self {
            Self::Today => c.is_whitespace(),
            Self::V3_7 => is_space(c),
        }
    }
}

/// Returns the words of one sentence.
pub fn words(sentence: &str, rules: Rules) -> Vec<String> {
    let text = opening_quotes(sentence, rules);
    let text = punctuation(&text, rules);
    let text = pad(&text, |c| "][(){}<>".contains(c));
    let text = replace(&text, "--", " -- ");
    let text = closing_quotes(&format!(" {text} "), rules);
    let text = contractions(&text);
    split(&text).map(str::to_owned).collect()
}

/// Rewrites a text from left to right. `rule` receives the previous character and the remaining text, writes a replacement for its
/// beginning and returns how many bytes it consumed. 0 keeps the character.
fn scan(text: &str, mut rule: impl FnMut(Option<char>, &str, &mut String) -> usize) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    let (mut rest, mut before) = (text, None);
    while let Some(c) = rest.chars().next() {
        let mut taken = rule(before, rest, &mut out);
        if taken == 0 {
            out.push(c);
            taken = c.len_utf8();
        }
        before = rest[..taken].chars().next_back();
        rest = &rest[taken..];
    }
    out
}

/// Puts spaces around single characters.
fn pad(text: &str, is_own: impl Fn(char) -> bool) -> String {
    if !text.contains(&is_own) {
        return text.to_owned();
    }
    scan(text, |_, rest, out| match rest.chars().next() {
        Some(c) if is_own(c) => {
            out.extend([' ', c, ' ']);
            c.len_utf8()
        }
        _ => 0,
    })
}

/// Puts spaces around runs of at least `least` equal characters.
fn pad_runs(text: &str, of: char, least: usize) -> String {
    if !text.contains(of) {
        return text.to_owned();
    }
    scan(text, |_, rest, out| {
        let run = rest.len() - rest.trim_start_matches(of).len();
        if run < least {
            // Shorter runs are copied unchanged.
            out.push_str(&rest[..run]);
            return run;
        }
        out.push(' ');
        out.push_str(&rest[..run]);
        out.push(' ');
        run
    })
}

fn replace(text: &str, from: &str, to: &str) -> String {
    if text.contains(from) { text.replace(from, to) } else { text.to_owned() }
}

fn opening_quotes(text: &str, rules: Rules) -> String {
    let text = pad_runs(&pad(text, |c| "«“‘„".contains(c)), '`', 1);
    let text = match text.strip_prefix('"') {
        Some(rest) => format!("``{rest}"),
        None => text,
    };
    let text = replace(&text, "``", " `` ");
    let text = scan(&text, |_, rest, out| {
        let Some(open) = rest.chars().next().filter(|&c| " ([{<".contains(c)) else { return 0 };
        let after = &rest[open.len_utf8()..];
        let Some(quote) = ["\"", "''"].into_iter().find(|quote| after.starts_with(quote)) else { return 0 };
        out.push(open);
        out.push_str(" `` ");
        open.len_utf8() + quote.len()
    });
    if !text.contains('\'') {
        return text;
    }
    scan(&text, |before, rest, out| {
        let Some(after) = rest.strip_prefix('\'') else { return 0 };
        let Some(next) = after.chars().next().filter(|&c| rules.is_word(c)) else { return 0 };
        let ends_word = |rest: &str| !rest.chars().next().is_some_and(|c| rules.is_word(c));
        let is_split = match rules {
            Rules::Today => {
                let is_clitic = |clitic: &&str| strip_prefix(after, clitic).is_some_and(ends_word);
                !before.is_some_and(|c| rules.is_word(c)) && !CLITICS.iter().any(is_clitic)
            }
            Rules::V3_7 => {
                let is_clitic = |clitic: &&str| strip_prefix(after, clitic).is_some();
                !CLITICS.iter().any(is_clitic) && ends_word(&after[next.len_utf8()..])
            }
        };
        if is_split {
            out.push_str("' ");
        }
        usize::from(is_split)
    })
}

/// Clitics that keep the apostrophe before them.
const CLITICS: [&str; 8] = ["re", "ve", "ll", "m", "t", "s", "d", "n"];

/// `str::strip_prefix`, ignoring ASCII case.
fn strip_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let start = text.get(..prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

fn punctuation(text: &str, rules: Rules) -> String {
    let text = final_period(text, rules);
    // Separates colons and commas, unless a digit follows.
    let text = scan(&text, |_, rest, out| {
        let mut characters = rest.chars();
        match (characters.next(), characters.next()) {
            (Some(mark @ (':' | ',')), Some(next)) if !is_digit(next) => {
                out.extend([' ', mark, ' ', next]);
                mark.len_utf8() + next.len_utf8()
            }
            _ => 0,
        }
    });
    let text = final_mark(text);
    let text = pad_runs(&text, '.', 2);
    let text = pad(&text, |c| ";@#$%&".contains(c));
    let text = match rules {
        Rules::Today => pad(&text, |c| ('\u{2012}'..='\u{2015}').contains(&c)),
        Rules::V3_7 => text,
    };
    let text = pad(&text, |c| c == '?' || c == '!');
    let text = if text.contains("' ") {
        scan(&text, |_, rest, out| match rest.chars().next() {
            Some(c) if c != '\'' && rest[c.len_utf8()..].starts_with("' ") => {
                out.push(c);
                out.push_str(" ' ");
                c.len_utf8() + 2
            }
            _ => 0,
        })
    } else {
        text
    };
    pad(&text, |c| c == '*')
}

/// Separates the period that ends the sentence, ignoring closing marks after it. Other periods stay part of their word. (NLTK has a second
/// rule of this kind, which never matches after this one.)
fn final_period(text: &str, rules: Rules) -> String {
    let Some(period) = text.rfind('.') else { return text.to_owned() };
    let has_word = text[..period].chars().next_back().is_some_and(|c| c != '.');
    let after = &text[period + 1..];
    let closing = after.len() - after.trim_start_matches(|c| "])}>\"'»”’ ".contains(c)).len();
    if !has_word || !after[closing..].chars().all(|c| rules.is_space(c)) {
        return text.to_owned();
    }
    format!("{} . {} ", &text[..period], &after[..closing])
}

/// Separates a colon or comma at the end, or before the line break that ends the text.
fn final_mark(text: String) -> String {
    let body = text.strip_suffix('\n').unwrap_or(&text);
    match body.strip_suffix([':', ',']) {
        Some(rest) => format!("{rest} {} {}", &body[rest.len()..], &text[body.len()..]),
        None => text,
    }
}

fn closing_quotes(text: &str, rules: Rules) -> String {
    let text = pad(text, |c| "»”’".contains(c));
    let text = replace(&replace(&text, "''", " '' "), "\"", " '' ");
    let blanks = match rules {
        Rules::Today => with_single_blanks(&text),
        // Before a line break or a tab, a clitic stays with its word.
        Rules::V3_7 => text,
    };
    if !blanks.contains('\'') {
        return replace_negations(&blanks);
    }
    let text = scan(&blanks, |_, rest, out| {
        let Some(c) = rest.chars().next().filter(|c| !"' ".contains(*c)) else { return 0 };
        let Some(after) = rest[c.len_utf8()..].strip_prefix('\'') else { return 0 };
        let clitic = match after.as_bytes() {
            [b's' | b'S' | b'm' | b'M' | b'd' | b'D', b' ', ..] => 1,
            [b' ', ..] => 0,
            _ => return 0,
        };
        out.push(c);
        out.push_str(" '");
        out.push_str(&after[..clitic]);
        out.push(' ');
        c.len_utf8() + 1 + clitic + 1
    });
    replace_negations(&text)
}

/// Replaces every run of whitespace by one space.
fn with_single_blanks(text: &str) -> String {
    let mut blanks = String::with_capacity(text.len());
    let mut was_space = false;
    for c in text.chars() {
        let space = Rules::Today.is_space(c);
        if !(space && was_space) {
            blanks.push(if space { ' ' } else { c });
        }
        was_space = space;
    }
    blanks
}

/// Separates `'ll`, `'re`, `'ve` and `n't` before a space, all in one case.
fn replace_negations(text: &str) -> String {
    const ENDS: [&str; 8] = ["'ll ", "'LL ", "'re ", "'RE ", "'ve ", "'VE ", "n't ", "N'T "];
    if !text.contains('\'') {
        return text.to_owned();
    }
    scan(text, |_, rest, out| {
        let Some(c) = rest.chars().next().filter(|c| !"' ".contains(*c)) else { return 0 };
        let after = &rest[c.len_utf8()..];
        let Some(end) = ENDS.iter().find(|end| after.starts_with(**end)) else { return 0 };
        out.push(c);
        out.push(' ');
        out.push_str(end);
        c.len_utf8() + end.len()
    })
}

/// Splits contractions written as one word: `cannot`, `gonna`, `'tis`.
fn contractions(text: &str) -> String {
    const PAIRS: [(&str, &str); 8] = [
        ("can", "not"),
        ("d", "'ye"),
        ("gim", "me"),
        ("gon", "na"),
        ("got", "ta"),
        ("lem", "me"),
        ("more", "'n"),
        ("wan", "na"),
    ];
    let ends_word = |rest: &str| !rest.chars().next().is_some_and(is_word);
    let text = scan(text, |before, rest, out| {
        if before.is_some_and(is_word) || !rest.starts_with(|c: char| "cdglmwCDGLMW".contains(c)) {
            return 0;
        }
        for (first, second) in PAIRS {
            let Some(after) = strip_prefix(rest, first).and_then(|rest| strip_prefix(rest, second)) else { continue };
            let is_end = if first == "wan" { after.starts_with(is_space) } else { ends_word(after) };
            if is_end {
                let length = first.len() + second.len();
                out.push(' ');
                out.push_str(&rest[..first.len()]);
                out.push(' ');
                out.push_str(&rest[first.len()..length]);
                out.push(' ');
                return length;
            }
        }
        0
    });
    if !text.contains("'t") && !text.contains("'T") {
        return text;
    }
    scan(&text, |_, rest, out| {
        let Some(after) = strip_prefix(rest, " 't") else { return 0 };
        let Some(second) = ["is", "was"].into_iter().find(|word| strip_prefix(after, word).is_some_and(ends_word))
        else {
            return 0;
        };
        out.push(' ');
        out.push_str(&rest[1..3]);
        out.push(' ');
        out.push_str(&after[..second.len()]);
        out.push(' ');
        3 + second.len()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_apostrophe_is_a_word_today_and_was_none() {
        // Expected values from nltk 3.7: the tokens of references written by `repr`.
        assert_eq!(words("['Jeff said hi.']", Rules::V3_7), ["[", "'Jeff", "said", "hi", ".", "'", "]"]);
        assert_eq!(words("['Jeff said hi.']", Rules::Today), ["[", "'", "Jeff", "said", "hi", ".", "'", "]"]);
    }

    /// Expected values from nltk 3.10.4 and 3.7.
    #[test]
    fn white_space_and_marks_are_what_their_modules_say() {
        let check = |text: &str, today: &[&str], before: &[&str]| {
            assert_eq!(words(text, Rules::Today), today, "{text:?}");
            assert_eq!(words(text, Rules::V3_7), before, "{text:?}");
        };
        check("the dog's\nbed", &["the", "dog", "'s", "bed"], &["the", "dog's", "bed"]);
        // For `regex` a combining mark is part of a word, for `re` a fraction is. The ASCII separators are whitespace only for `re`.
        check("e\u{301}'x", &["e\u{301}'x"], &["e\u{301}", "'", "x"]);
        check("½'xy", &["½", "'", "xy"], &["½'xy"]);
        check("end.\u{1f}", &["end."], &["end", "."]);
    }

    #[test]
    fn nothing_is_lost_at_the_ends() {
        for (text, expected) in
            [("", vec![]), ("'", vec!["'"]), ("a,", vec!["a", ","]), ("a:\n", vec!["a", ":"]), (".", vec!["."])]
        {
            assert_eq!(words(text, Rules::Today), expected, "{text:?}");
        }
    }
}
