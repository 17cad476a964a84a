//! Typed rows: what a data set holds, before any tokenizer.

use serde_json::{Map, Value};

use super::feedback::Feedback;
use super::{LabeledWords, Message, Place};

/// One row: where it stands, what it holds, and its other columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// File and line.
    pub place: Place,
    /// Number in the data set, from 0.
    pub index: usize,
    /// What the recognized columns hold.
    pub data: RowData,
    /// All other columns, for rewards and chat templates.
    pub columns: Map<String, Value>,
}

/// A text or a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Messages, at least one.
    Messages(Vec<Message>),
}

/// What the recognized columns of a row hold.
#[derive(Debug, Clone, PartialEq)]
pub enum RowData {
    /// `text`.
    Text(String),
    /// `messages`, or ShareGPT's `conversations`.
    Messages(Vec<Message>),
    /// `prompt` and `completion`.
    PromptCompletion {
        /// What is given.
        prompt: Content,
        /// What is learned.
        completion: Content,
    },
    /// Something that is asked for and its answer, Alpaca's or `question` and `answer`: one turn of a conversation where the
    /// model has a chat template, a text where it has none.
    Instruction {
        /// The conversation before it: `system` and `history`.
        before: Vec<Message>,
        /// What is asked for.
        asked: Asked,
        /// The answer.
        answer: String,
    },
    /// `chosen` and `rejected`, with or without `prompt`.
    Preference {
        /// The prompt; `None` when `chosen` and `rejected` contain it.
        prompt: Option<Content>,
        /// The better answer.
        chosen: Content,
        /// The worse answer.
        rejected: Content,
        /// By how much it is better.
        margin: Option<f32>,
    },
    /// `prompt`, `completion` and `label`: whether it is a good one.
    Unpaired {
        /// What is given.
        prompt: Content,
        /// What was answered.
        completion: Content,
        /// Whether such an answer is wanted.
        is_desirable: bool,
    },
    /// `prompt` alone.
    Prompt(Content),
    /// `input_ids` with `labels`, `completion_mask` or `assistant_masks`.
    Tokens {
        /// The ids.
        ids: Vec<u32>,
        /// Which of them carry loss; `None`: all.
        loss_mask: Option<Vec<bool>>,
        /// `labels`, where the row has them.
        labels: Option<Labels>,
    },
    /// Whatever the columns hold: what classifiers read of them, their own keys say.
    Columns,
    /// Words with a label each.
    Words(LabeledWords),
    /// A question with annotated answers.
    Feedback(Box<Feedback>),
    /// `chosen_ids` and `rejected_ids`, with or without `prompt_ids` before both.
    TokenPreference {
        /// Ids before both answers; empty when the answers contain the prompt.
        prompt_ids: Vec<u32>,
        /// The better answer.
        chosen_ids: Vec<u32>,
        /// The worse answer.
        rejected_ids: Vec<u32>,
        /// By how much it is better.
        margin: Option<f32>,
    },
}

/// What an [instruction](RowData::Instruction) asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Asked {
    /// Alpaca's `instruction` and `input`.
    Task {
        /// The task.
        instruction: String,
        /// What the task is about; may be empty.
        input: String,
    },
    /// `question`.
    Question(String),
}

/// Labels of token ids: for a model with an encoder, its target; for others, which ids carry loss.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Labels {
    /// The target, without the −100 that pads it.
    pub target: Vec<u32>,
    /// Why they do not say which ids carry loss.
    pub misfit: Option<String>,
    /// Why they are no target.
    pub broken: Option<String>,
}

/// The kind of a data set's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// `text`.
    Text,
    /// `messages`.
    Messages,
    /// `conversations`.
    ShareGpt,
    /// `prompt`, `completion`.
    PromptCompletion,
    /// `question`, `answer`.
    QuestionAnswer,
    /// `instruction`, `output`.
    Alpaca,
    /// `prompt`, `chosen`, `rejected`.
    Preference,
    /// `prompt`, `completion`, `label`; or `messages`, `label`.
    Unpaired,
    /// `chosen`, `rejected` that contain the prompt.
    ImplicitPreference,
    /// `conversations`, `chosen`, `rejected`.
    ShareGptPreference,
    /// `prompt`.
    Prompt,
    /// `input_ids`.
    Tokens,
    /// `chosen_ids`, `rejected_ids`.
    TokenPreference,
    /// Any columns.
    Columns,
    /// `question`, `passages`, `answer`: a question with what it is answered from.
    Grounded,
    /// `prompt` and `continuation`, each with a `text` and scores.
    ScoredContinuation,
    /// `question`, `passages`, `prediction 1` and up, `feedback`, perhaps `preference`: annotated answers.
    Feedback,
    /// `tokens` or `text`, a list of words, with `feedback_tags`, `labels`, `tags` or `ner_tags`.
    Words,
}

impl RowKind {
    /// The kind in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Messages => "conversations (`messages`)",
            Self::ShareGpt => "conversations in the ShareGPT form",
            Self::PromptCompletion => "prompt and completion",
            Self::QuestionAnswer => "question and answer",
            Self::Alpaca => "instructions in the Alpaca form",
            Self::Preference => "preferences with a prompt",
            Self::Unpaired => "completions marked as desirable or not",
            Self::ImplicitPreference => "preferences whose answers contain the prompt",
            Self::ShareGptPreference => "preferences in the ShareGPT form",
            Self::Prompt => "prompts",
            Self::Tokens => "token ids",
            Self::TokenPreference => "preferences as token ids",
            Self::Columns => "columns",
            Self::Grounded => "questions with passages and answers",
            Self::ScoredContinuation => "prompts and continuations with toxicity scores",
            Self::Feedback => "answers with fine-grained feedback",
            Self::Words => "words with a label each",
        }
    }
}

impl Content {
    /// The text, or the texts of the messages one after another; for measuring and comparing, not for training.
    pub fn plain(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Messages(messages) => messages.iter().map(|m| m.content.as_str()).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Whether nothing, or nothing but white space, is said.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Text(text) => text.trim().is_empty(),
            Self::Messages(messages) => messages.iter().all(|m| m.content.trim().is_empty() && m.extra.is_empty()),
        }
    }
}
