//! Typed rows of a data set, before tokenizing.

use serde_json::{Map, Value};

use super::feedback::Feedback;
use super::{LabeledWords, Message, RowLocation};

/// One row: its location, its data and its other columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// File and line.
    pub location: RowLocation,
    /// Number in the data set, from 0.
    pub index: usize,
    /// Contents of the recognized columns.
    pub data: RowData,
    /// Other columns, for rewards and chat templates.
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

/// Contents of the recognized columns of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum RowData {
    /// `text`.
    Text(String),
    /// `messages`, or ShareGPT's `conversations`.
    Messages(Vec<Message>),
    /// `prompt` and `completion`.
    PromptCompletion {
        /// Input of the model.
        prompt: Content,
        /// Text to train on.
        completion: Content,
    },
    /// A request and its answer, from Alpaca's columns or `question` and `answer`. It becomes a conversation if the model has a
    /// chat template, else text.
    Instruction {
        /// Messages before the request: `system` and `history`.
        history: Vec<Message>,
        /// The request.
        request: Request,
        /// Answer to the request.
        answer: String,
    },
    /// `chosen` and `rejected`, with or without `prompt`.
    Preference {
        /// Prompt, or `None` if `chosen` and `rejected` contain it.
        prompt: Option<Content>,
        /// The chosen answer.
        chosen: Content,
        /// The rejected answer.
        rejected: Content,
        /// By how much the chosen answer is better.
        margin: Option<f32>,
    },
    /// `prompt`, `completion` and `label`.
    Unpaired {
        /// Input of the model.
        prompt: Content,
        /// Answer to the prompt.
        completion: Content,
        /// Whether the answer is desirable.
        is_desirable: bool,
    },
    /// `prompt` alone.
    Prompt(Content),
    /// `input_ids` with `labels`, `completion_mask` or `assistant_masks`.
    Tokens {
        /// Token ids.
        ids: Vec<u32>,
        /// Loss mask. `None`: all tokens carry loss.
        loss_mask: Option<Vec<bool>>,
        /// `labels`, if the row has them.
        labels: Option<Labels>,
    },
    /// Any columns. The configuration of the classifier decides which of them it reads.
    Columns,
    /// Words with one label each.
    Words(LabeledWords),
    /// A question with annotated answers.
    Feedback(Box<Feedback>),
    /// `chosen_ids` and `rejected_ids`, with or without `prompt_ids` for both.
    TokenPreference {
        /// Ids before both answers. Empty if the answers contain the prompt.
        prompt_ids: Vec<u32>,
        /// Ids of the chosen answer.
        chosen_ids: Vec<u32>,
        /// Ids of the rejected answer.
        rejected_ids: Vec<u32>,
        /// By how much the chosen answer is better.
        margin: Option<f32>,
    },
}

/// Request of an [instruction](RowData::Instruction).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Alpaca's `instruction` and `input`.
    Task {
        /// Task to do.
        instruction: String,
        /// Input for the task; may be empty.
        input: String,
    },
    /// `question`.
    Question(String),
}

/// Labels of token ids. With an encoder they are the target; for other models they define the loss mask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Labels {
    /// Target without its −100 padding.
    pub target: Vec<u32>,
    /// Why the labels do not define a loss mask.
    pub misfit: Option<String>,
    /// Why the labels are not a valid target.
    pub broken: Option<String>,
}

/// Kind of rows in a data set.
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
    /// `chosen`, `rejected`, both with the prompt.
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
    /// `question`, `passages`, `answer`: a question with the passages that answer it.
    Grounded,
    /// `prompt` and `continuation`, each with a `text` and scores.
    ScoredContinuation,
    /// `question`, `passages`, `prediction 1` and up, `feedback` and optionally `preference`: annotated answers.
    Feedback,
    /// `tokens` or `text` (a list of words), with `feedback_tags`, `labels`, `tags` or `ner_tags`.
    Words,
}

impl RowKind {
    /// Returns the kind in words.
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

impl RowData {
    /// Returns the answer of a row to its prompt, and the column that it came from. `None` if the data have no prompt of their own or no
    /// answer that a model should give, or if the answer is messages without text, such as calls of tools.
    pub fn answer(&self) -> Option<(&'static str, String)> {
        let of = |content: &Content| {
            let text = content.plain();
            (matches!(content, Content::Text(_)) || !text.trim().is_empty()).then_some(text)
        };
        match self {
            Self::PromptCompletion { completion, .. } | Self::Unpaired { completion, is_desirable: true, .. } => {
                Some(("completion", of(completion)?))
            }
            Self::Instruction { request: Request::Task { .. }, answer, .. } => Some(("output", answer.clone())),
            Self::Instruction { request: Request::Question(_), answer, .. } => Some(("answer", answer.clone())),
            Self::Preference { prompt: Some(_), chosen, .. } => Some(("chosen", of(chosen)?)),
            _ => None,
        }
    }

    /// Returns whether a chat template can render the row: it holds messages, or a request that becomes messages.
    pub fn is_conversation(&self) -> bool {
        match self {
            Self::Messages(_) | Self::Instruction { .. } => true,
            Self::Prompt(content)
            | Self::PromptCompletion { prompt: content, .. }
            | Self::Unpaired { prompt: content, .. }
            | Self::Preference { chosen: content, .. } => matches!(content, Content::Messages(_)),
            Self::Text(_)
            | Self::Tokens { .. }
            | Self::Columns
            | Self::Words(_)
            | Self::Feedback(_)
            | Self::TokenPreference { .. } => false,
        }
    }
}

impl Content {
    /// Returns the text, or the joined texts of the messages. For measuring and comparing, not for training.
    pub fn plain(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Messages(messages) => messages.iter().map(|m| m.content.as_str()).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Returns whether the content is empty or only white space.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Text(text) => text.trim().is_empty(),
            Self::Messages(messages) => messages.iter().all(|m| m.content.trim().is_empty() && m.extra.is_empty()),
        }
    }
}
