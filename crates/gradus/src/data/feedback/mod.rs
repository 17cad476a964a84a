//! Fine-grained feedback: QA-Feedback's annotated answers (Wu et al. 2023, <https://arxiv.org/abs/2306.01693>).
//!
//! A row has a question, its passages as sentences, four answers, spans of errors and missing information of the first
//! answer, its correction, and which of each two answers is better, if they were compared. Offsets count characters (Unicode code points) in the
//! file and bytes here, so that a span is always a slice of its answer.

mod coverage;
mod join;
mod labels;
mod pairs;
mod read;
mod tally;

use std::ops::Range;

use serde_json::{Map, Value, json};

pub use coverage::{coverage_preferences, information};
pub use join::{Joined, join};
pub use labels::{Category, IGNORE, NO_ERROR, SENTENCES, SEPARATOR, SegmentForm, TAGS, segment_labels, segment_row};
pub use pairs::{conflicts, contradict, preference_rows};
pub(super) use read::{fits, read};
pub use tally::Tally;

use super::grounded::{Passage, reward_prompt};

/// What is said where rows with feedback are used as they are.
pub(super) const UNCONVERTED: &str = "a row with feedback: `gradus data convert` makes pairs or labels of it";

/// Answers of a row.
pub const ANSWERS: usize = 4;
/// Which two answers each of a row's preferences compares, from 0.
pub const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

/// An annotated row.
#[derive(Debug, Clone, PartialEq)]
pub struct Feedback {
    /// The question.
    pub question: String,
    /// What it is answered from.
    pub passages: Vec<Sentences>,
    /// A person's answer.
    pub gold: String,
    /// Answers of a model; errors and missing information are those of the first.
    pub answers: [String; ANSWERS],
    /// Errors of the first answer, in the order of the file; none overlaps another.
    pub errors: Vec<ErrorSpan>,
    /// What the first answer lacks.
    pub missing: Vec<Missing>,
    /// The first answer as a person corrected it; empty where the passages hold no answer.
    pub corrected: String,
    /// Which answer of each of [`PAIRS`] is better, where someone compared them.
    pub preferences: Option<[Preference; PAIRS.len()]>,
}

/// A passage by its sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentences {
    /// The title of the page that it is from: sentence 0 of the annotation.
    pub title: String,
    /// Sentences 1 and up.
    pub sentences: Vec<String>,
}

/// A span of the first answer with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorSpan {
    /// What is wrong.
    pub kind: ErrorKind,
    /// What the annotator said: the repeated text, the sentences that say otherwise (as JSON), or nothing.
    pub explanation: String,
    /// Its bytes in the first answer: whole words.
    pub bytes: Range<usize>,
}

/// What is wrong with a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorKind {
    /// Does not answer the question.
    Irrelevant,
    /// Says what was said before.
    Redundant,
    /// Cannot be understood.
    Incoherent,
    /// The passages say otherwise.
    WrongGrounding,
    /// No passage says so.
    Unverifiable,
}

/// What the first answer lacks, and where the passages say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// How much it matters.
    pub kind: MissingKind,
    /// The passage, from 1.
    pub passage: usize,
    /// Its sentences, from 1; 0 is the title.
    pub sentences: Vec<usize>,
}

/// How much missing information matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MissingKind {
    /// An answer.
    Answer,
    /// Something that an answer needs.
    Major,
    /// Something beside it.
    Minor,
}

/// Which of two answers is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Preference {
    /// Neither.
    Equal,
    /// The first.
    First,
    /// The second.
    Second,
}

impl ErrorKind {
    /// All, as files name them.
    pub const NAMES: [(Self, &'static str); 5] = [
        (Self::Irrelevant, "Irrelevant"),
        (Self::Redundant, "Redundant"),
        (Self::Incoherent, "Incoherent"),
        (Self::WrongGrounding, "Wrong-Grounding"),
        (Self::Unverifiable, "Unverifiable"),
    ];

    /// Whether a fact is wrong, and not what is said about it.
    pub fn is_factual(self) -> bool {
        matches!(self, Self::WrongGrounding | Self::Unverifiable)
    }
}

impl MissingKind {
    /// All, as files name them.
    pub const NAMES: [(Self, &'static str); 3] = [
        (Self::Answer, "Missing-Answer"),
        (Self::Major, "Missing-Major-Auxiliary"),
        (Self::Minor, "Missing-Minor-Auxiliary"),
    ];
}

impl Preference {
    /// From how the two compare.
    pub fn of(ordering: std::cmp::Ordering) -> Self {
        match ordering {
            std::cmp::Ordering::Greater => Self::First,
            std::cmp::Ordering::Less => Self::Second,
            std::cmp::Ordering::Equal => Self::Equal,
        }
    }

    /// As files have it: 1, 2, or 0 for neither.
    pub fn number(self) -> u8 {
        match self {
            Self::Equal => 0,
            Self::First => 1,
            Self::Second => 2,
        }
    }

    /// As a sign: +1 where the first is better, −1 where the second is, 0 where neither.
    fn sign(self) -> i8 {
        match self {
            Self::Equal => 0,
            Self::First => 1,
            Self::Second => -1,
        }
    }
}

impl Feedback {
    /// What reward models read before an answer, without `answer:`; see [`reward_prompt`].
    pub fn prompt(&self) -> String {
        let contents: Vec<String> = self.passages.iter().map(|passage| passage.sentences.join(" ")).collect();
        let passages = self.passages.iter().zip(&contents);
        let passages: Vec<Passage<'_>> =
            passages.map(|(passage, content)| Passage { title: &passage.title, content }).collect();
        reward_prompt(&self.question, &passages)
    }

    /// From the columns of a file, with every rule of the annotation checked.
    ///
    /// # Errors
    /// What is missing or wrong, in words.
    pub fn from_columns(mut columns: Map<String, Value>) -> Result<Self, String> {
        read(&mut columns)
    }

    /// As columns of a file, in the data set's own order.
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

/// The name of a kind.
fn name<K: Copy + PartialEq>(names: &[(K, &'static str)], kind: K) -> &'static str {
    names.iter().find(|(known, _)| *known == kind).expect("every kind has a name").1
}
