//! Segments of a text: the whole text, its sentences, or parts of sentences.
//!
//! The rules are those of FineGrainedRLHF (Wu et al. 2023, <https://arxiv.org/abs/2306.01693>).

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sentences::{SentenceSplitter, word_ranges};

/// Granularity of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The whole text.
    Whole,
    /// Sentences.
    Sentence,
    /// Parts of sentences, separated by commas, semicolons and similar marks, of at least five words.
    SubSentence,
}

/// Minimum number of words in a part, if the sentence has several parts.
const FEWEST_WORDS: usize = 5;

/// Returns the byte range of each segment of `text`, in order and without gaps. A blank text has none. A sentence begins with the
/// space before it. A part of a sentence begins with its first word; text before the first word is left out.
pub fn segments(splitter: &dyn SentenceSplitter, text: &str, level: Level) -> Vec<Range<usize>> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    match level {
        Level::Whole => std::iter::once(0..text.len()).collect(),
        Level::Sentence => splitter.split(text),
        Level::SubSentence => {
            let mut starts = Vec::new();
            for sentence in splitter.split(text) {
                let words = word_ranges(&text[sentence.clone()]);
                let spelled: Vec<&str> = words.iter().map(|word| &text[sentence.clone()][word.clone()]).collect();
                starts.extend(part_starts(&spelled).into_iter().map(|word| sentence.start + words[word].start));
            }
            let ends = starts.iter().skip(1).copied().chain([text.len()]);
            starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
        }
    }
}

/// Returns the indices of the words that begin a part of a sentence.
///
/// A word may begin a part if the word before it ends in `,`, `;`, `!` or `?`, and more than five words are left, including itself.
/// A part of fewer than five words is merged into the preceding part. The first part is merged into the following one.
pub fn part_starts(words: &[&str]) -> Vec<usize> {
    let mut starts = Vec::new();
    if !words.is_empty() {
        starts.push(0);
    }
    for (i, pair) in words.windows(2).enumerate().map(|(before, pair)| (before + 1, pair)) {
        if !pair[0].ends_with([',', ';', '!', '?']) || i + FEWEST_WORDS >= words.len() {
            continue;
        }
        let last = *starts.last().expect("the first word begins one");
        match i - last >= FEWEST_WORDS {
            true => starts.push(i),
            false if last > 0 => *starts.last_mut().expect("just read") = i,
            false => {}
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::RuleSplitter;

    fn starts(n: usize, punctuated: &[usize]) -> Vec<usize> {
        let words: Vec<&str> = (0..n).map(|i| if punctuated.contains(&i) { "w," } else { "w" }).collect();
        part_starts(&words)
    }

    #[test]
    fn the_vectors_of_the_specification() {
        // Word 2 would end too short a part; 15 and 16 are too close to the end.
        assert_eq!(starts(19, &[1, 7, 14, 15]), [0, 8]);
        // Word 5 begins a part of three words, which is merged into the first.
        assert_eq!(starts(15, &[4, 7]), [0, 8]);
        assert_eq!(starts(2, &[0]), [0]);
        assert!(starts(0, &[]).is_empty());
    }

    #[test]
    fn several_parts_have_five_words_each_and_the_last_six() {
        // All sentences of up to 16 words, with punctuation at all possible places.
        for n in 1..=16usize {
            for marks in 0..1u32 << (n - 1) {
                let punctuated: Vec<usize> = (0..n).filter(|i| marks >> i & 1 == 1).collect();
                let starts = starts(n, &punctuated);
                assert_eq!(starts[0], 0);
                let lengths: Vec<usize> =
                    starts.iter().zip(starts.iter().skip(1).chain([&n])).map(|(start, end)| end - start).collect();
                if let [rest @ .., last] = lengths.as_slice()
                    && !rest.is_empty()
                {
                    assert!(rest.iter().all(|&length| length >= 5) && *last >= 6, "{n} {punctuated:?}: {lengths:?}");
                }
            }
        }
    }

    #[test]
    fn only_the_last_character_of_a_word_is_a_boundary() {
        let parts = |text: &str| segments(&RuleSplitter, text, Level::SubSentence).len();
        assert_eq!(parts("one two three four five, six seven eight nine ten eleven"), 2);
        for mark in [":", "-", ",\""] {
            assert_eq!(parts(&format!("one two three four five{mark} six seven eight nine ten eleven")), 1, "{mark}");
        }
    }

    #[test]
    fn slices_reproduce_the_text() {
        let text = " The tea is hot now, so it must cool a while first. It sings, and then the cup is full of tea. ";
        let slices = |level| -> Vec<&str> {
            segments(&RuleSplitter, text, level).into_iter().map(|range| &text[range]).collect()
        };
        assert_eq!(slices(Level::Whole), [text]);
        assert_eq!(slices(Level::Sentence).concat(), text);
        assert_eq!(slices(Level::SubSentence).concat(), text.trim_start());
        assert_eq!(
            slices(Level::SubSentence),
            ["The tea is hot now, ", "so it must cool a while first. ", "It sings, and then the cup is full of tea. ",]
        );
        assert!(segments(&RuleSplitter, " \n", Level::Whole).is_empty());
    }
}
