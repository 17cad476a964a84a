//! Sentence splitting as in NLTK's `PunktSentenceTokenizer`.
//!
//! Kiss and Strunk 2006, <https://aclanthology.org/J06-4003>. The parameters of a trained model (abbreviations, collocations, sentence
//! starters, the capitalization of words) are read from a directory of NLTK's data, such as `tokenizers/punkt_tab/english`. Without a
//! model, a short list of English abbreviations is used, and every other period before whitespace, ignoring closing marks, ends a sentence.
//! Checked against `nltk` 3.10.4 with the same parameters.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::characters::{is_digit, is_space};
use crate::error::{Error, Result};
use crate::files;
use crate::treebank::Rules;

/// Abbreviations without their last period, used without a model.
const ABBREVIATIONS: &[&str] = &[
    "a.m", "al", "apr", "approx", "apt", "assn", "aug", "ave", "bros", "c.f", "cf", "capt", "cmdr", "co", "col",
    "corp", "d.c", "dec", "dept", "dr", "e.g", "esp", "est", "etc", "feb", "fig", "fri", "ft", "gen", "gov", "hon",
    "i.e", "inc", "jan", "jr", "jul", "jun", "lt", "ltd", "m.d", "maj", "mar", "messrs", "mon", "mr", "mrs", "ms",
    "mt", "no", "nov", "oct", "op", "p.m", "ph.d", "pp", "prof", "rep", "rev", "sat", "sen", "sep", "sept", "sgt",
    "sr", "st", "sun", "thu", "tue", "u.k", "u.n", "u.s", "u.s.a", "viz", "vol", "vs", "wed",
];

const MID_UPPER: u32 = 1 << 2;
const UPPER: u32 = 1 << 1 | MID_UPPER | 1 << 3;
const BEGIN_LOWER: u32 = 1 << 4;
const LOWER: u32 = BEGIN_LOWER | 1 << 5 | 1 << 6;

/// Splits texts into sentences.
#[derive(Debug, Clone)]
pub struct Punkt {
    abbreviations: HashSet<String>,
    collocations: HashSet<(String, String)>,
    starters: HashSet<String>,
    /// How a word is capitalized at each position in a sentence: NLTK's flags.
    orthography: HashMap<String, u32>,
    /// Whether a trained model was read.
    is_learned: bool,
}

/// Uses a list of English abbreviations and no trained model.
impl Default for Punkt {
    fn default() -> Self {
        Self {
            abbreviations: ABBREVIATIONS.iter().map(|word| (*word).to_owned()).collect(),
            collocations: HashSet::new(),
            starters: HashSet::new(),
            orthography: HashMap::new(),
            is_learned: false,
        }
    }
}

impl Punkt {
    /// Reads the parameters from a directory, or uses a list of English abbreviations if there is none.
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    pub fn open(directory: Option<&Path>) -> Result<Self> {
        directory.map_or_else(|| Ok(Self::default()), Self::read)
    }

    /// Reads the parameters from a directory, in the format of `nltk.tokenize.punkt.save_punkt_params`.
    ///
    /// # Errors
    /// A file is missing or has a malformed line.
    pub fn read(directory: &Path) -> Result<Self> {
        let lines = |name: &str| -> Result<Vec<String>> {
            let path = directory.join(name);
            let text = files::read_text(&path)?;
            Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
        };
        let pairs = |name: &str| -> Result<Vec<(String, String)>> {
            let pair = |(i, line): (usize, String)| {
                let found = line.split_once('\t').map(|(a, b)| (a.to_owned(), b.to_owned()));
                let message = || format!("expected two columns with a TAB between (found `{line}`)");
                found.ok_or_else(|| Error::data(directory.join(name), Some(i + 1), message()))
            };
            lines(name)?.into_iter().enumerate().map(pair).collect()
        };
        let orthography = pairs("ortho_context.tab")?.into_iter().enumerate().map(|(i, (word, flags))| {
            let message = || format!("expected a number after the TAB (found `{flags}`)");
            let number =
                flags.parse().map_err(|_| Error::data(directory.join("ortho_context.tab"), Some(i + 1), message()))?;
            Ok((word, number))
        });
        Ok(Self {
            abbreviations: lines("abbrev_types.txt")?.into_iter().collect(),
            collocations: pairs("collocations.tab")?.into_iter().collect(),
            starters: lines("sent_starters.txt")?.into_iter().collect(),
            orthography: orthography.collect::<Result<_>>()?,
            is_learned: true,
        })
    }

    /// Returns the sentences of a text, without the whitespace between them.
    pub fn sentences<'a>(&self, text: &'a str) -> Vec<&'a str> {
        self.sentences_by(text, Rules::Today)
    }

    /// Returns the sentences by the rules of this version of NLTK.
    pub fn sentences_by<'a>(&self, text: &'a str, rules: Rules) -> Vec<&'a str> {
        let mut slices = Vec::new();
        let mut start = 0;
        for end in ends(text, rules) {
            // In `['One.', 'Two.']` NLTK ends a sentence before the comma. Only a trained model reproduces that.
            let after = &text[end.mark.end()..];
            let is_clear = self.is_learned || after.starts_with(is_space) || closing(after, rules).is_some();
            if is_clear && self.has_break(&end.context, rules) {
                slices.push((start, end.mark.end()));
                start = end.mark.next;
            }
        }
        slices.push((start, text.trim_end_matches(is_space).len().max(start)));
        realigned(text, &slices, rules)
    }

    /// Returns whether a sentence ends within the words and another word follows.
    fn has_break(&self, text: &str, rules: Rules) -> bool {
        let words = text.split('\n').flat_map(|line| words(line, rules));
        let mut tokens: Vec<Token> = words.map(|word| self.token(word)).collect();
        for i in 0..tokens.len().saturating_sub(1) {
            let (left, right) = tokens.split_at_mut(i + 1);
            self.reconsider(&mut left[i], &right[0], rules);
        }
        tokens.len() > 1 && tokens[..tokens.len() - 1].iter().any(|token| token.is_break)
    }

    /// Classifies a word by itself.
    fn token<'a>(&self, text: &'a str) -> Token<'a> {
        let lower = text.to_lowercase();
        let kind = if is_numeric(&lower) { "##number##".to_owned() } else { lower.clone() };
        let is_dots = text.len() >= 2 && text.bytes().all(|b| b == b'.');
        let mut token = Token { text, kind, is_break: false, is_abbreviation: false, is_ellipsis: is_dots };
        if matches!(text, "." | "?" | "!") {
            token.is_break = true;
            token.is_ellipsis = false;
        } else if !is_dots && text.ends_with('.') && !text.ends_with("..") {
            let word = &lower[..lower.len() - 1];
            let last = word.rsplit('-').next().unwrap_or(word);
            token.is_abbreviation = self.abbreviations.contains(word) || self.abbreviations.contains(last);
            token.is_break = !token.is_abbreviation;
        }
        token
    }

    /// Reclassifies a word that ends in a period, given the next word.
    fn reconsider(&self, token: &mut Token<'_>, next: &Token<'_>, rules: Rules) {
        if !token.text.ends_with('.') {
            return;
        }
        let (kind, next_kind) = (without_period(&token.kind).to_owned(), next.kind_in_sentence());
        let is_initial = is_initial(token.text, rules);
        if self.collocations.contains(&(kind.clone(), next_kind.to_owned())) {
            (token.is_break, token.is_abbreviation) = (false, true);
            return;
        }
        let starts = self.starts_sentence(next);
        if (token.is_abbreviation || token.is_ellipsis) && !is_initial {
            let is_starter = next.is_upper() && self.starters.contains(next_kind);
            if starts == Some(true) || is_starter {
                token.is_break = true;
                return;
            }
        }
        if is_initial || kind == "##number##" {
            let is_name = starts.is_none() && is_initial && next.is_upper() && self.flags(next_kind) & LOWER == 0;
            if starts == Some(false) || is_name {
                (token.is_break, token.is_abbreviation) = (false, true);
            }
        }
    }

    /// Returns whether a word starts a sentence, by its capitalization here and in the training data. `None` if that is inconclusive.
    fn starts_sentence(&self, token: &Token<'_>) -> Option<bool> {
        if matches!(token.text, ";" | ":" | "," | "." | "!" | "?") {
            return Some(false);
        }
        let flags = self.flags(token.kind_in_sentence());
        if token.is_upper() && flags & LOWER != 0 && flags & MID_UPPER == 0 {
            return Some(true);
        }
        (token.is_lower() && (flags & UPPER != 0 || flags & BEGIN_LOWER == 0)).then_some(false)
    }

    fn flags(&self, kind: &str) -> u32 {
        self.orthography.get(kind).copied().unwrap_or(0)
    }
}

struct Token<'a> {
    text: &'a str,
    /// Lower-case form. All numbers share one kind.
    kind: String,
    is_break: bool,
    is_abbreviation: bool,
    is_ellipsis: bool,
}

impl Token<'_> {
    fn kind_in_sentence(&self) -> &str {
        if self.is_break { without_period(&self.kind) } else { &self.kind }
    }

    fn is_upper(&self) -> bool {
        self.text.chars().next().is_some_and(char::is_uppercase)
    }

    fn is_lower(&self) -> bool {
        self.text.chars().next().is_some_and(char::is_lowercase)
    }
}

fn without_period(kind: &str) -> &str {
    kind.strip_suffix('.').filter(|rest| !rest.is_empty()).unwrap_or(kind)
}

/// Returns whether the text is one letter and a period.
fn is_initial(text: &str, rules: Rules) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|c| rules.is_word(c) && !is_digit(c)) && characters.as_str() == "."
}

/// `-?[.,]?\d[\d,.-]*\.?`
fn is_numeric(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let text = text.strip_prefix(['.', ',']).unwrap_or(text);
    text.starts_with(is_digit) && text.chars().all(|c| is_digit(c) || ",.-".contains(c))
}

/// A period, question mark or exclamation mark that may end a sentence. All positions are in bytes.
#[derive(Clone, Copy)]
struct Mark {
    /// Position of the mark.
    at: usize,
    /// End of the next word, or of the mark that follows immediately.
    after: usize,
    /// Start of the next sentence, if this mark ends one.
    next: usize,
}

impl Mark {
    /// Returns the position after the mark, which is ASCII.
    fn end(&self) -> usize {
        self.at + 1
    }
}

/// A mark with the text that decides on it: its word and what follows.
struct End<'a> {
    mark: Mark,
    context: Cow<'a, str>,
}

/// Returns the marks followed by whitespace and a word, or by a mark that cannot occur within a word.
fn possible_ends(text: &str, rules: Rules) -> Vec<Mark> {
    let is_space = |c: char| rules.is_space(c);
    let mark = |(at, _): (usize, char)| {
        let end = at + 1;
        let follows = &text[end..];
        let next = follows.chars().next()?;
        if is_no_word(next, rules) {
            return Some(Mark { at, after: end + next.len_utf8(), next: end });
        }
        let rest = follows.trim_start_matches(is_space);
        if rest.len() == follows.len() || rest.is_empty() {
            return None;
        }
        let begins = text.len() - rest.len();
        Some(Mark { at, after: begins + rest.find(is_space).unwrap_or(rest.len()), next: begins })
    };
    text.char_indices().filter(|(_, c)| matches!(c, '.' | '?' | '!')).filter_map(mark).collect()
}

/// Returns the candidates. If a word has several marks, only the last one counts.
fn ends(text: &str, rules: Rules) -> Vec<End<'_>> {
    let marks = possible_ends(text, rules);
    match rules {
        Rules::Today => ends_today(text, &marks),
        Rules::V3_7 => ends_of_3_7(text, &marks),
    }
}

fn ends_today<'a>(text: &'a str, marks: &[Mark]) -> Vec<End<'a>> {
    let mut found: Vec<End<'_>> = Vec::new();
    // Start of the word with the previous mark, and position of that mark.
    let (mut word, mut last) = (0, 0);
    for &mark in marks {
        // NLTK searches for the last ASCII whitespace since the previous mark, but ignores whitespace directly at that position.
        let is_blank = |c: char| " \t\n\r\u{b}\u{c}".contains(c);
        let begins = match text[last..mark.at].rfind(is_blank) {
            Some(blank) if blank > 0 => last + blank + 1,
            _ => word,
        };
        if !found.is_empty() && last > begins {
            found.pop();
        }
        (word, last) = (begins, mark.at);
        found.push(End { mark, context: Cow::Borrowed(&text[begins..mark.after]) });
    }
    found
}

/// Works from the last mark backwards. A mark that stands alone belongs to the word before the whitespace; other marks within that word do
/// not count.
fn ends_of_3_7<'a>(text: &'a str, marks: &[Mark]) -> Vec<End<'a>> {
    let mut found: Vec<End<'_>> = Vec::new();
    let mut begins = usize::MAX;
    for &mark in marks.iter().rev() {
        if mark.end() > begins {
            continue;
        }
        let before = text[..mark.at].trim_end_matches(is_space);
        let word =
            before.rfind(is_space).map_or(0, |blank| blank + before[blank..].chars().next().map_or(0, char::len_utf8));
        begins = before[..word].trim_end_matches(is_space).len();
        found.push(End { mark, context: Cow::Owned(format!("{}{}", &before[word..], &text[mark.at..mark.after])) });
    }
    found.reverse();
    found
}

/// Characters that cannot occur within a word.
fn is_no_word(c: char, rules: Rules) -> bool {
    "?!)\";}]*:@'({[".contains(c) || is_curly(c, rules)
}

/// Non-ASCII quotes. Today's rules treat them like ASCII quotes.
fn is_curly(c: char, rules: Rules) -> bool {
    rules == Rules::Today && "‘’“”«»".contains(c)
}

/// Splits a line into words; of the punctuation, only periods stay attached.
fn words(line: &str, rules: Rules) -> Vec<&str> {
    let is_space = |c: char| rules.is_space(c);
    let mut words = Vec::new();
    let mut rest = line.trim_start_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let length = match marks(rest, rules) {
            0 if "(\"`{[:;&#*@)}]-,".contains(first) => first.len_utf8(),
            0 => word_length(rest, rules),
            marks => marks,
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start_matches(is_space);
    }
    words
}

/// Returns the length of the first word: at least one character, up to the next possible end.
fn word_length(text: &str, rules: Rules) -> usize {
    let is_end = |c: char| rules.is_space(c) || is_no_word(c, rules);
    let ends = |rest: &str| rest.chars().next().is_none_or(is_end) || marks(rest, rules) > 0;
    let is_end = |at: usize| {
        let rest = &text[at..];
        ends(rest) || rest.strip_prefix(',').is_some_and(ends)
    };
    text.char_indices().skip(1).map(|(at, _)| at).find(|&at| is_end(at)).unwrap_or(text.len())
}

/// Returns the length of a run of dashes or periods at the beginning, such as `--`, `..` or `. . .`; 0 if there is none.
fn marks(text: &str, rules: Rules) -> usize {
    for mark in ['-', '.'] {
        let run = text.len() - text.trim_start_matches(mark).len();
        if run >= 2 {
            return run;
        }
    }
    let (mut length, mut pairs) = (0, 0);
    while let Some(after) = text[length..].strip_prefix('.') {
        match after.chars().next().filter(|&c| rules.is_space(c)) {
            Some(blank) => {
                length += 1 + blank.len_utf8();
                pairs += 1;
            }
            None => return if pairs >= 2 { length + 1 } else { 0 },
        }
    }
    // No period follows the last space, so the match ends at the period of the last pair.
    if pairs >= 3 { last_period(&text[..length]) } else { 0 }
}

/// Returns the length up to and including the last period.
fn last_period(text: &str) -> usize {
    text.rfind('.').map_or(0, |at| at + 1)
}

/// Moves closing marks from the beginning of a sentence to the end of the previous one.
fn realigned<'a>(text: &'a str, slices: &[(usize, usize)], rules: Rules) -> Vec<&'a str> {
    let mut sentences = Vec::new();
    let mut moved = 0;
    for (i, &(start, end)) in slices.iter().enumerate() {
        let start = (start + moved).min(end);
        moved = 0;
        let closing =
            slices.get(i + 1).and_then(|&(next, next_end)| Some((next, closing(&text[next..next_end], rules)?)));
        let end = match closing {
            Some((next, (marks, taken))) => {
                moved = taken;
                next + marks
            }
            None => end,
        };
        if start < end || closing.is_some() {
            sentences.push(&text[start..end]);
        }
    }
    sentences
}

/// Finds closing quotes and brackets that are followed by whitespace, `--` or the end of the text. Returns their length without and with
/// that whitespace.
fn closing(text: &str, rules: Rules) -> Option<(usize, usize)> {
    let is_mark = |c: char| "\"')]}".contains(c) || is_curly(c, rules);
    // The shortest match.
    let mut ends = text.char_indices().take_while(|(_, c)| is_mark(*c)).map(|(at, c)| at + c.len_utf8());
    ends.find_map(|marks| {
        let rest = &text[marks..];
        let blanks = rest.len() - rest.trim_start_matches(|c| rules.is_space(c)).len();
        (blanks > 0 || rest.is_empty() || rest.starts_with("--")).then_some((marks, marks + blanks))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_model_periods_end_sentences_but_for_abbreviations() {
        let check = |text: &str, expected: &[&str]| assert_eq!(Punkt::default().sentences(text), expected, "{text}");
        check(
            "Mr. Hale left at 5 p.m. and slept. Did he? \"Yes.\" So.",
            &["Mr. Hale left at 5 p.m. and slept.", "Did he?", "\"Yes.\"", "So."],
        );
        check("['One.', 'Two.']", &["['One.', 'Two.']"]);
        check("J. Ott had 3.5 apples... and 5. Then", &["J. Ott had 3.5 apples... and 5.", "Then"]);
        check("", &[]);
        check(" . ", &[" ."]);
    }

    /// Expected values from NLTK 3.10.4. NLTK 3.7 finds one sentence.
    #[test]
    fn quotes_beyond_ascii_close_a_sentence() {
        let text = "He said “yes.” She left. ‘No.’ It rains. «Oui.» They go.";
        let today = ["He said “yes.”", "She left.", "‘No.’", "It rains.", "«Oui.»", "They go."];
        assert_eq!(Punkt::default().sentences(text), today);
        let before = ["He said “yes.” She left.", "‘No.’ It rains.", "«Oui.» They go."];
        assert_eq!(Punkt::default().sentences_by(text, Rules::V3_7), before);
        // In NLTK 3.7, a mark that stands alone belongs to the word before it.
        assert_eq!(Punkt::default().sentences("Go. ! Now"), ["Go.", "!", "Now"]);
        assert_eq!(Punkt::default().sentences_by("Go. ! Now", Rules::V3_7), ["Go. !", "Now"]);
    }
}
