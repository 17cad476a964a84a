//! Rows for reward models of segments: FineGrainedRLHF's files for relevance (R1) and factuality (R2).
//!
//! `text` has the words of prompt and answer, with a separator in front of each segment of the answer. `feedback_tags` has one
//! label per word; only the labels of separators have a meaning.

use serde_json::{Map, Value};

use super::{ErrorSpan, Feedback};
use crate::text::{Level, SentenceSplitter, segments};

/// Word in front of each segment. It is the separator token of RoBERTa's tokenizers; the score of the segment is read from its
/// state.
pub const SEPARATOR: &str = "</s>";
/// Name of the column with the labels.
pub const TAGS: &str = "feedback_tags";
/// Name of the column with the sentence splitter's name. A model that scores other answers must split them the same way.
pub const SENTENCES: &str = "sentences";
/// Label of words and segments without an annotation.
pub const IGNORE: &str = "Ignore";
/// Label of segments without an error.
pub const NO_ERROR: &str = "O";

/// Category of errors that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// Irrelevant, repeated or incoherent text.
    Relevance,
    /// Facts that the passages contradict or do not state. Segments that only have errors of the other category are ignored: a span
    /// has one error, so their facts were not judged.
    Factuality,
}

impl Category {
    /// Returns the label of segments with such an error.
    pub fn label(self) -> &'static str {
        match self {
            Self::Relevance => "NF-ERR",
            Self::Factuality => "F-ERR",
        }
    }
}

/// Contents of the rows for a reward model of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentForm {
    /// Granularity of the segments.
    pub level: Level,
    /// Category of errors that count.
    pub category: Category,
    /// Whether the prompt has the passages.
    pub reads_passages: bool,
    /// Minimum number of words in a span. Shorter spans count only if a fact is wrong.
    pub fewest_words: usize,
}

impl SegmentForm {
    /// Relevance of sub-sentences, without the passages.
    pub const R1: Self =
        Self { level: Level::SubSentence, category: Category::Relevance, reads_passages: false, fewest_words: 5 };
    /// Factuality of sentences, with the passages.
    pub const R2: Self =
        Self { level: Level::Sentence, category: Category::Factuality, reads_passages: true, fewest_words: 5 };

    /// Returns whether a span counts, in either category.
    fn counts(&self, error: &ErrorSpan, answer: &str) -> bool {
        error.kind.is_factual() || answer[error.bytes.clone()].split_whitespace().count() >= self.fewest_words
    }
}

/// Returns the label of each segment of the first answer.
pub fn segment_labels(feedback: &Feedback, form: &SegmentForm, splitter: &dyn SentenceSplitter) -> Vec<&'static str> {
    cut(feedback, form, splitter).into_iter().map(|(_, label)| label).collect()
}

/// Returns the segments of the first answer with their labels.
fn cut<'f>(
    feedback: &'f Feedback,
    form: &SegmentForm,
    splitter: &dyn SentenceSplitter,
) -> Vec<(&'f str, &'static str)> {
    let answer = &feedback.answers[0];
    let counted: Vec<&ErrorSpan> = feedback.errors.iter().filter(|error| form.counts(error, answer)).collect();
    let label = |segment: &std::ops::Range<usize>| {
        let has = |is_factual: bool| {
            let overlaps = |error: &&&ErrorSpan| error.bytes.start < segment.end && segment.start < error.bytes.end;
            counted.iter().filter(overlaps).any(|error| error.kind.is_factual() == is_factual)
        };
        match form.category {
            Category::Relevance if has(false) => form.category.label(),
            Category::Factuality if has(true) => form.category.label(),
            Category::Factuality if has(false) => IGNORE,
            _ => NO_ERROR,
        }
    };
    let found = segments(splitter, answer, form.level);
    found.into_iter().map(|segment| (&answer[segment.clone()], label(&segment))).collect()
}

/// Returns row `id` of a reward model's file. Returns `None` if it teaches nothing: all labels are ignored, or the answer is blank.
pub fn segment_row(
    feedback: &Feedback,
    id: usize,
    form: &SegmentForm,
    splitter: &dyn SentenceSplitter,
) -> Option<Map<String, Value>> {
    let segments = cut(feedback, form, splitter);
    if segments.iter().all(|(_, label)| *label == IGNORE) {
        return None;
    }
    let prompt = if form.reads_passages { feedback.prompt() } else { format!("question: {}", feedback.question) };
    let mut words: Vec<&str> = prompt.split_whitespace().chain(["answer:"]).collect();
    let mut labels = vec![IGNORE; words.len()];
    for (segment, label) in segments {
        words.push(SEPARATOR);
        labels.push(label);
        words.extend(segment.split_whitespace());
        labels.resize(words.len(), IGNORE);
    }
    let mut row = Map::new();
    row.insert("id".into(), id.to_string().into());
    row.insert("text".into(), words.into());
    row.insert(TAGS.into(), labels.into());
    row.insert(SENTENCES.into(), splitter.name().into());
    Some(row)
}
