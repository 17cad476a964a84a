//! Fine-grained feedback: QA-Feedback's annotated answers (Wu et al. 2023, <https://arxiv.org/abs/2306.01693>).
//!
//! A row has a question, passages split into sentences, and four answers. For the first answer it has spans of errors, missing
//! information and a correction. If the answers were compared, it has a preference for each pair. Offsets count characters (Unicode
//! code points) in the file and bytes here, so that a span is always a slice of its answer.

mod counts;
mod coverage;
mod join;
mod labels;
mod pairs;
mod read;

use std::ops::Range;

use serde_json::{Map, Value, json};

pub use counts::FeedbackCounts;
pub use coverage::{coverage_preferences, information};
pub use join::{Joined, join};
pub use labels::{Category, IGNORE, NO_ERROR, SENTENCES, SEPARATOR, SegmentForm, TAGS, segment_labels, segment_row};
pub use pairs::{conflicts, contradict, preference_rows};
pub(super) use read::{fits, read};

use super::grounded::{Passage, reward_prompt};

/// Error message for rows with feedback that were not converted.
pub(super) const UNCONVERTED: &str = "a row with feedback: `gradus data convert` converts it to pairs or labels";

/// Number of answers in a row.
pub const ANSWERS: usize = 4;
/// The two answers that each preference of a row compares, from 0.
pub const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

/// An annotated row.
#[derive(Debug, Clone, PartialEq)]
pub struct Feedback {
    /// The question.
    pub question: String,
    /// Passages that the answer must be based on.
    pub passages: Vec<Sentences>,
    /// Answer written by a person.
    pub gold: String,
    /// Answers of a model. Errors and missing information refer to the first one.
    pub answers: [String; ANSWERS],
    /// Errors of the first answer, in the order of the file. They do not overlap.
    pub errors: Vec<ErrorSpan>,
    /// Information that the first answer lacks.
    pub missing: Vec<Missing>,
    /// First answer, corrected by a person. Empty if the passages hold no answer.
    pub corrected: String,
    /// Which answer of each of [`PAIRS`] is better, if they were compared.
    pub preferences: Option<[Preference; PAIRS.len()]>,
}

/// A passage split into sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentences {
    /// Title of its page: sentence 0 of the annotation.
    pub title: String,
    /// Sentences from number 1.
    pub sentences: Vec<String>,
}

/// A span of the first answer with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorSpan {
    /// Kind of error.
    pub kind: ErrorKind,
    /// Comment of the annotator: the repeated text, the sentences that contradict it (as JSON), or nothing.
    pub explanation: String,
    /// Byte range in the first answer, in whole words.
    pub bytes: Range<usize>,
}

/// Kind of error in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorKind {
    /// Does not answer the question.
    Irrelevant,
    /// Repeats earlier text.
    Redundant,
    /// Cannot be understood.
    Incoherent,
    /// Contradicts the passages.
    WrongGrounding,
    /// Not stated by any passage.
    Unverifiable,
}

/// Information that the first answer lacks, and its place in the passages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Importance of the information.
    pub kind: MissingKind,
    /// Number of the passage, from 1.
    pub passage: usize,
    /// Numbers of its sentences, from 1. Number 0 is the title.
    pub sentences: Vec<usize>,
}

/// Importance of missing information.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MissingKind {
    /// An answer to the question.
    Answer,
    /// Information that an answer needs.
    Major,
    /// Additional information.
    Minor,
}

/// The better of two answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Preference {
    /// Neither answer is better.
    Equal,
    /// The first answer is better.
    First,
    /// The second answer is better.
    Second,
}

impl ErrorKind {
    /// All kinds with their names in files.
    pub const NAMES: [(Self, &'static str); 5] = [
        (Self::Irrelevant, "Irrelevant"),
        (Self::Redundant, "Redundant"),
        (Self::Incoherent, "Incoherent"),
        (Self::WrongGrounding, "Wrong-Grounding"),
        (Self::Unverifiable, "Unverifiable"),
    ];

    /// Returns whether a fact is wrong, as opposed to its presentation.
    pub fn is_factual(self) -> bool {
        matches!(self, Self::WrongGrounding | Self::Unverifiable)
    }
}

impl MissingKind {
    /// All kinds with their names in files.
    pub const NAMES: [(Self, &'static str); 3] = [
        (Self::Answer, "Missing-Answer"),
        (Self::Major, "Missing-Major-Auxiliary"),
        (Self::Minor, "Missing-Minor-Auxiliary"),
    ];
}

impl Preference {
    /// Converts the ordering of the first answer relative to the second.
    pub fn of(ordering: std::cmp::Ordering) -> Self {
        match ordering {
            std::cmp::Ordering::Greater => Self::First,
            std::cmp::Ordering::Less => Self::Second,
            std::cmp::Ordering::Equal => Self::Equal,
        }
    }

    /// Returns the number used in files: 1, 2, or 0 for neither.
    pub fn number(self) -> u8 {
        match self {
            Self::Equal => 0,
            Self::First => 1,
            Self::Second => 2,
        }
    }

    /// Returns +1 if the first is better, −1 if the second is, and 0 for neither.
    fn sign(self) -> i8 {
        match self {
            Self::Equal => 0,
            Self::First => 1,
            Self::Second => -1,
        }
    }
}

impl Feedback {
    /// Returns the prompt that reward models read, without `answer:`; see [`reward_prompt`].
    pub fn prompt(&self) -> String {
        let contents: Vec<String> = self.passages.iter().map(|passage| passage.sentences.join(" ")).collect();
        let passages = self.passages.iter().zip(&contents);
        let passages: Vec<Passage<'_>> =
            passages.map(|(passage, content)| Passage { title: &passage.title, content }).collect();
        reward_prompt(&self.question, &passages)
    }

    /// Reads the columns of a file and checks every rule of the annotation.
    ///
    /// # Errors
    /// A description of what is missing or wrong.
    pub fn from_columns(mut columns: Map<String, Value>) -> Result<Self, String> {
        read(&mut columns)
    }

    /// Returns the columns of a file, in the order of the data set.
    pub fn to_columns(&self) -> Map<String, Value> {
        let first = &self.answers[0];
        let characters = |at: usize| first[..at].chars().count();
        let error = |ErrorSpan { kind, explanation, bytes }: &ErrorSpan| {
            json!({
                "error type": name(&ErrorKind::NAMES, *kind), "explanation": explanation,
                "start": characters(bytes.start), "end": characters(bytes.end),
            })
        };
        let missing = |Missing { kind, passage, sentences }: &Missing| json!({ "error type": name(&MissingKind::NAMES, *kind), "passage_id": passage, "sentence_id": sentences });
        let mut columns = Map::new();
        columns.insert("question".into(), self.question.clone().into());
        let passage = |passage: &Sentences| [std::slice::from_ref(&passage.title), &passage.sentences].concat();
        columns.insert("passages".into(), self.passages.iter().map(passage).collect());
        columns.insert("gold".into(), self.gold.clone().into());
        for (i, answer) in self.answers.iter().enumerate() {
            columns.insert(format!("prediction {}", i + 1), answer.clone().into());
        }
        columns.insert(
            "feedback".into(),
            json!({
                "errors": self.errors.iter().map(error).collect::<Vec<_>>(),
                "missing-info": self.missing.iter().map(missing).collect::<Vec<_>>(),
                "corrected-prediction": self.corrected,
            }),
        );
        if let Some(preferences) = &self.preferences {
            columns.insert("preference".into(), preferences.iter().map(|of| of.number()).collect());
        }
        columns
    }
}

/// Returns the name of a kind in files.
fn name<K: Copy + PartialEq>(names: &[(K, &'static str)], kind: K) -> &'static str {
    names.iter().find(|(known, _)| *known == kind).expect("every kind has a name").1
}
