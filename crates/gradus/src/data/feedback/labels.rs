//! Rows for reward models of segments: FineGrainedRLHF's files for relevance (R1) and factuality (R2).
//!
//! The words of prompt and answer stand in `text`, with a separator before each segment of the answer; `feedback_tags` has a
//! label a word, which says something at separators alone.

use serde_json::{Map, Value};

use super::{ErrorSpan, Feedback};
use crate::text::{Level, SentenceSplitter, segments};

/// The word before each segment. It is the separator token of RoBERTa's tokenizers, so its state is read there.
pub const SEPARATOR: &str = "</s>";
/// The column of the labels.
pub const TAGS: &str = "feedback_tags";
/// The column that says what cut the answer into sentences: whoever judges other answers must cut them so too.
pub const SENTENCES: &str = "sentences";
/// The label of whatever nothing is said of.
pub const IGNORE: &str = "Ignore";
/// The label of segments without an error.
pub const NO_ERROR: &str = "O";

/// Which errors count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// What is irrelevant, repeated or incoherent.
    Relevance,
    /// What the passages contradict or do not say. Segments with errors of the other category alone are ignored: a span has
    /// one error, so nothing is known of their facts.
    Factuality,
}

impl Category {
    /// The label of segments with such an error.
    pub fn label(self) -> &'static str {
        match self {
            Self::Relevance => "NF-ERR",
            Self::Factuality => "F-ERR",
        }
    }
}

/// What rows for a reward model of segments hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentForm {
    /// How finely the answer is cut.
    pub level: Level,
    /// Which errors count.
    pub category: Category,
    /// Whether the passages are read.
    pub reads_passages: bool,
    /// Spans of fewer words than this count only where a fact is wrong.
    pub fewest_words: usize,
}

impl SegmentForm {
    /// Relevance by parts of sentences, without the passages.
    pub const R1: Self =
        Self { level: Level::SubSentence, category: Category::Relevance, reads_passages: false, fewest_words: 5 };
    /// Factuality by sentences.
    pub const R2: Self =
        Self { level: Level::Sentence, category: Category::Factuality, reads_passages: true, fewest_words: 5 };

    /// Whether a span counts, for whichever category.
    fn counts(&self, error: &ErrorSpan, answer: &str) -> bool {
        error.kind.is_factual() || answer[error.bytes.clone()].split_whitespace().count() >= self.fewest_words
    }
}

/// The label of each segment of the first answer.
pub fn segment_labels(feedback: &Feedback, form: &SegmentForm, splitter: &dyn SentenceSplitter) -> Vec<&'static str> {
    cut(feedback, form, splitter).into_iter().map(|(_, label)| label).collect()
}

/// The segments of the first answer with their labels.
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

/// The row `id` of a reward model's file; nothing where nothing is to be learned of it: all labels are ignored, or the answer
/// is blank.
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
