//! Splits texts into sentences, so that each can be scored separately.

use std::fmt::Debug;
use std::ops::Range;

/// A sentence splitter. Training data and the texts to be scored must be split by the same splitter, so each has a name.
pub trait SentenceSplitter: Debug + Send + Sync {
    /// Returns the name with its version. It is stored with everything that was trained with the splitter.
    fn name(&self) -> &'static str;

    /// Returns the byte range of each sentence. The ranges follow each other without gaps from 0 to the end of the text, so the
    /// white space at a boundary belongs to one of the two sentences. No sentence is blank, and a blank text has none.
    fn split(&self, text: &str) -> Vec<Range<usize>>;
}

/// Splits sentences by rules on the two words at a boundary.
///
/// The rules imitate the boundaries of spaCy's `en_core_web_sm` (FineGrainedRLHF's segmenter, a dependency parser) on answers to
/// questions. A sentence ends at a blank line, and after a word that ends in `.`, `!`, `?` or `…`, ignoring closing marks. It does
/// not end there if the word is an initial or an abbreviation, or the next word starts with a lower-case letter or punctuation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleSplitter;

/// Abbreviations that precede a name or a number.
const BEFORE_NAMES: &[&str] = &[
    "Adm", "Brig", "Capt", "Ch", "Cmdr", "Col", "Cpl", "Dr", "Fig", "Figs", "Ft", "Gen", "Gov", "Hon", "Lt", "Maj",
    "Messrs", "Mme", "Mr", "Mrs", "Ms", "Mt", "No", "Nos", "Op", "Pres", "Prof", "Rep", "Rev", "Sec", "Sen", "Sgt",
    "St", "Sts", "Supt", "Vol", "approx", "c", "ca", "cf", "e.g", "ft", "i.e", "p", "pp", "v", "viz", "vs",
];

/// Abbreviations that may also end a sentence.
const ANYWHERE: &[&str] = &[
    "Apr", "Assn", "Aug", "Ave", "Blvd", "Bn", "Bros", "Calif", "Co", "Corp", "Dec", "Dept", "Est", "Feb", "Inc",
    "Jan", "Jr", "Jul", "Jun", "Ltd", "Mar", "Mass", "Md", "Nov", "Oct", "Pa", "Ph.D", "Rd", "Sep", "Sept", "Sr",
    "Univ", "Va", "a.m", "al", "est", "etc", "feat", "in", "lb", "lbs", "max", "mi", "min", "p.m", "sq",
];

/// Words that begin a sentence even after an abbreviation from [`ANYWHERE`].
const STARTERS: &[&str] = &[
    "A", "After", "All", "An", "And", "Another", "As", "At", "Before", "Both", "But", "By", "During", "Each", "For",
    "From", "He", "Her", "His", "However", "I", "If", "In", "It", "Its", "Many", "Most", "Of", "On", "One", "Other",
    "She", "Since", "Some", "That", "The", "Their", "There", "These", "They", "This", "Those", "To", "Two", "We",
    "What", "When", "Which", "While", "Although", "Who", "With", "You",
];

impl SentenceSplitter for RuleSplitter {
    fn name(&self) -> &'static str {
        "gradus-rules-1"
    }

    fn split(&self, text: &str) -> Vec<Range<usize>> {
        let words = word_ranges(text);
        let (mut sentences, mut start) = (Vec::new(), 0);
        for pair in words.windows(2) {
            let between = &text[pair[0].end..pair[1].start];
            if ends(&text[pair[0].clone()], &text[pair[1].clone()]) || between.matches('\n').count() > 1 {
                // A single space begins the next sentence; longer white space ends this one. This agrees with spaCy's tokens.
                let end = if between == " " { pair[0].end } else { pair[1].start };
                sentences.push(start..end);
                start = end;
            }
        }
        if !words.is_empty() {
            sentences.push(start..text.len());
        }
        sentences
    }
}

/// Returns the byte range of each word: the text between white space.
pub fn word_ranges(text: &str) -> Vec<Range<usize>> {
    let start = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    text.split_whitespace().map(|word| start(word)..start(word) + word.len()).collect()
}

/// Returns whether a sentence ends between these words.
fn ends(word: &str, next: &str) -> bool {
    const OPENING: &[char] = &['\'', '"', '(', '[', '{', '“', '‘', '«', '*'];
    const CLOSING: &[char] = &['\'', '"', ')', ']', '}', '”', '’', '»'];
    let bare = word.trim_end_matches(CLOSING);
    let stem = bare.trim_end_matches(['.', '!', '?', '…']);
    let marks = &bare[stem.len()..];
    let Some(mark) = marks.chars().next() else { return false };
    let inner = next.trim_start_matches(OPENING);
    let inner = if inner.is_empty() { next } else { inner };
    let first = inner.chars().next().unwrap_or(' ');
    if first.is_lowercase() || matches!(first, ',' | ';' | ':' | ')' | '-' | '–' | '—' | '&' | '|' | '.') {
        return false;
    }
    if marks.starts_with("...") || mark == '…' {
        return first.is_uppercase() || next.starts_with(OPENING);
    }
    // A word with a closing mark is not an abbreviation.
    if mark != '.' || marks.len() > 1 || bare.len() < word.len() {
        return true;
    }
    let stem = stem.trim_start_matches(OPENING);
    if BEFORE_NAMES.contains(&stem) {
        return false;
    }
    let is_initials =
        stem.split('.').all(|part| part.len() == 1 && part.starts_with(|c: char| c.is_ascii_alphabetic()))
            && (stem.len() > 1 || stem.starts_with(|c: char| c.is_ascii_uppercase()));
    if is_initials || ANYWHERE.contains(&stem) {
        return STARTERS.contains(&inner.trim_end_matches(','));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(text: &str) -> Vec<&str> {
        let ranges = RuleSplitter.split(text);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "no gaps");
        ranges.into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn sentences_end_with_their_marks() {
        assert_eq!(
            sentences("The tea is hot. It sings! Why? (No one knows.) Ever."),
            ["The tea is hot.", " It sings!", " Why?", " (No one knows.)", " Ever.",]
        );
        assert_eq!(
            sentences("One cup.  Two cups.\n\nA title\n\nThree, and it ends"),
            ["One cup.  ", "Two cups.\n\n", "A title\n\n", "Three, and it ends",]
        );
    }

    #[test]
    fn abbreviations_initials_and_what_goes_on_do_not_end_one() {
        for text in [
            "Dr. Kettle and Mr. Cup met J. R. Pot at No. 9 in the U.S. tea house.",
            "It sold 3.5 m. cups, approx. 12 per day, vs. none before.",
            "The band Tea! is not a song but \"Pour!\" is.",
            "He poured... and poured.",
        ] {
            assert_eq!(sentences(text), [text]);
        }
        assert_eq!(sentences("It is sold in the U.S. The tea is not."), ["It is sold in the U.S.", " The tea is not."]);
        assert_eq!(sentences("He poured... \"Enough\""), ["He poured...", " \"Enough\""]);
    }

    #[test]
    fn a_blank_text_has_no_sentence_and_others_lose_nothing() {
        assert!(sentences("").is_empty() && sentences(" \n\t ").is_empty());
        for text in ["  a. B", "Grün. É?! \u{3000}Ω", ". . .", "a\u{a0}b. C "] {
            assert_eq!(sentences(text).concat(), text);
            assert!(sentences(text).iter().all(|sentence| !sentence.trim().is_empty()));
        }
    }
}
