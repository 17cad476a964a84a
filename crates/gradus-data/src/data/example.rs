//! Training examples: rows as token ids, and counts of the rows that were left out or cut.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::options::BadRows;
use super::{Message, SkippedRow};

/// One sequence to train on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SftExample {
    /// Token ids. With an encoder, the source's ids come first, then the target's.
    pub ids: Vec<u32>,
    /// Loss mask, one entry per id. The first id is never a target, whatever its entry is.
    pub loss_mask: Vec<bool>,
    /// Number of leading ids that an encoder reads; 0 for a model without one.
    pub source_len: usize,
    /// Index of its row, from 0.
    pub row: usize,
}

/// A pair of sequences that share a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PreferenceExample {
    /// Number of leading ids in both sequences that are the prompt, or the source of an encoder. 0 for decoder-only reward models,
    /// which score whole sequences.
    pub prompt_len: usize,
    /// Prompt and chosen answer.
    pub chosen_ids: Vec<u32>,
    /// Prompt and rejected answer.
    pub rejected_ids: Vec<u32>,
    /// Whether an encoder reads the prompt. The prompt then never carries loss.
    pub encoder_reads_prompt: bool,
    /// By how much the chosen answer is better.
    pub margin: Option<f32>,
    /// Index of its row, from 0.
    pub row: usize,
}

/// A prompt and a completion that is marked as desirable or undesirable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpairedExample {
    /// Ids of the prompt, or of the source of an encoder.
    pub prompt_ids: Vec<u32>,
    /// Ids of the whole completion, also where this prompt leaves less room: a shorter prompt of another row may leave more.
    pub completion_ids: Vec<u32>,
    /// Whether an encoder reads the prompt.
    pub encoder_reads_prompt: bool,
    /// Whether the completion is desirable.
    pub is_desirable: bool,
    /// Maximum length of prompt and completion together, also if the completion comes from another row.
    pub max_length: Option<usize>,
    /// Index of its row, from 0.
    pub row: usize,
}

impl UnpairedExample {
    /// Returns the ids of the completion, cut at the maximum length.
    pub fn completion(&self) -> &[u32] {
        self.cut(&self.completion_ids)
    }

    /// Cuts a completion, which may come from another row, so that it ends at the maximum length after this prompt.
    pub fn cut<'a>(&self, completion_ids: &'a [u32]) -> &'a [u32] {
        let room = match self.max_length.filter(|_| !self.encoder_reads_prompt) {
            Some(most) => most.saturating_sub(self.prompt_ids.len()),
            None => usize::MAX,
        };
        &completion_ids[..completion_ids.len().min(room)]
    }

    /// Returns the number of ids of prompt and completion together.
    pub fn tokens(&self) -> usize {
        self.prompt_ids.len() + self.completion().len()
    }
}

impl Prompt {
    /// Returns the ids that a completion continues. They are empty if an encoder reads the prompt.
    pub fn continued(&self) -> &[u32] {
        if self.encoder_reads_prompt { &[] } else { &self.ids }
    }
}

impl PreferenceExample {
    /// Returns the number of ids in the longest of the prompt and both answers.
    pub fn longest_part(&self) -> usize {
        let answer = self.chosen_ids.len().max(self.rejected_ids.len()) - self.prompt_len;
        self.prompt_len.max(answer)
    }
}

/// A prompt that is ready for sampling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Row number in its data set, from 0. It identifies the prompt in messages and in the rollout log.
    pub row: usize,
    /// Rendered prompt: plain text, or the output of the chat template with the generation prompt.
    pub text: String,
    /// Token ids of `text`.
    pub ids: Vec<u32>,
    /// Whether an encoder reads the prompt. Completions then are texts of their own and do not continue it.
    #[serde(rename = "apart")]
    pub encoder_reads_prompt: bool,
    /// Messages of the conversation, if the row has messages.
    pub messages: Option<Vec<Message>>,
    /// Other columns of the row (answers, references, …), passed on to rewards.
    pub columns: Map<String, Value>,
}

/// Treatment of rows over `max_length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TooLong {
    /// Leaves the row out and counts it.
    Skip,
    /// Cuts off the end and counts the row.
    Truncate,
}

/// Options for turning rows into token ids.
#[derive(Debug, Clone)]
pub struct TokenizeOptions {
    /// Maximum length of prompt and completion together in tokens, or of each of them if
    /// [`encoder_reads_prompt`](Self::encoder_reads_prompt). `None`: no limit. Default 1024 (TRL).
    pub max_length: Option<usize>,
    /// Treatment of longer rows. Default: cut at the end. Pairs for reward models that read the prompt with an encoder are always
    /// left out.
    pub too_long: TooLong,
    /// Side on which pairs for decoder-only or encoder reward models are cut. A cut on the left keeps the end of the text, and the
    /// special tokens in front of it. Default right.
    pub pair_cut: super::Side,
    /// Train on the completion only. Default: true for rows with a prompt and a completion (TRL).
    pub completion_only_loss: Option<bool>,
    /// Train on the assistant's turns only, as marked by the chat template. Default false (TRL).
    pub assistant_only_loss: bool,
    /// Append the text of the eos token to string rows. Default true (TRL).
    pub add_eos: bool,
    /// Whether a reward model reads the rows. Reward models never see text between `<think>` and `</think>`.
    pub for_reward: bool,
    /// Whether transcripts (`Human:`, `Assistant:`) become conversations, which the chat template renders. Default false.
    pub transcripts_as_messages: bool,
    /// System message for conversations without one. If it is set, rows that are not conversations are rejected. Default: none.
    pub system_prompt: Option<String>,
    /// Rule for finding the prompt that `chosen` and `rejected` share.
    pub implicit_prompt: super::ImplicitPrompt,
    /// Maximum length in tokens of prompts for sampling, and the side on which longer ones are cut. Special tokens that the
    /// tokenizer adds are kept. Default: no limit.
    pub prompt_cut: Option<(usize, super::Side)>,
    /// Tools that the chat template shows for rows without tools of their own. Default: none.
    pub tools: Vec<Value>,
    /// What the [references](super::references) of a prompt's row must be. Other rows are bad. Default: anything.
    pub references: ReferenceRule,
    /// Whether an encoder reads the prompt and a decoder writes the completion. Both are then tokenized separately, each with the
    /// special tokens that the tokenizer adds, and `max_length` limits each of them. Default false.
    pub encoder_reads_prompt: bool,
    /// Maximum length of the targets to train on, if [`encoder_reads_prompt`](Self::encoder_reads_prompt). Longer targets are
    /// cut and keep their end-of-text token. Default: only `max_length` limits them.
    pub target_cut: Option<usize>,
    /// Treatment of rows that cannot be tokenized. Default: an error.
    pub bad_rows: BadRows,
}

/// What the references of a row must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ReferenceRule {
    /// Anything, because nothing is compared with them.
    #[default]
    Any,
    /// Texts, if there are any.
    Texts,
    /// At least one text.
    Required,
}

impl Default for TokenizeOptions {
    fn default() -> Self {
        Self {
            max_length: Some(1024),
            too_long: TooLong::Truncate,
            pair_cut: super::Side::Right,
            completion_only_loss: None,
            assistant_only_loss: false,
            add_eos: true,
            for_reward: false,
            transcripts_as_messages: false,
            system_prompt: None,
            implicit_prompt: super::ImplicitPrompt::default(),
            prompt_cut: None,
            tools: Vec::new(),
            references: ReferenceRule::Any,
            encoder_reads_prompt: false,
            target_cut: None,
            bad_rows: BadRows::Fail,
        }
    }
}

/// Counts of what happened to the rows of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Input rows.
    pub rows: usize,
    /// Examples made from them.
    pub kept: usize,
    /// Rows left out because they are too long.
    pub skipped: usize,
    /// Rows cut at the end; they lost their end-of-text token.
    pub truncated: usize,
    /// Rows for a classifier whose text was cut.
    pub cut: usize,
    /// Rows whose source for an encoder was cut.
    pub sources_cut: usize,
    /// Rows whose target for a decoder was cut before its end-of-text token.
    pub targets_cut: usize,
    /// Rows whose prompt for sampling was cut.
    pub prompts_cut: usize,
    /// Rows whose target for a decoder lacks the end-of-text token, although nothing was cut.
    pub without_end: usize,
    /// Rows left out because no token with loss remained after cutting.
    pub without_loss: usize,
    /// Rows left out because no token has a label or loss, although nothing was cut.
    pub without_labels: usize,
    /// Rows whose prompt tokenizes differently alone than together with its completion. The differing end of the prompt counts as
    /// completion.
    pub prompt_mismatches: usize,
    /// Blocks that the kept rows were packed into; 0 without packing.
    pub blocks: usize,
    /// Tokens in all examples.
    pub tokens: usize,
    /// Tokens with loss in all examples.
    pub loss_tokens: usize,
    /// Maximum number of tokens in a row, and the keys that set it. `None` for no limit, or if rows have limits of their own.
    #[serde(skip)]
    pub limit: Option<(usize, &'static str)>,
}

/// Examples and the counts of their rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Examples<E> {
    /// The examples, in the order of the rows.
    pub examples: Vec<E>,
    /// Counts of what happened to the rows.
    pub counts: Counts,
    /// Bad rows, if they were skipped.
    pub skipped: Vec<SkippedRow>,
}

impl Counts {
    /// Returns one sentence for each kind of change that a user should notice. Empty if every row was used unchanged.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let mut say = |count: usize, what: &str| {
            if count > 0 {
                remarks.push(format!("{count} of {} rows {what}", self.rows));
            }
        };
        match self.limit {
            Some((most, keys)) => say(self.skipped, &format!("left out: longer than {most} tokens ({keys})")),
            None => say(self.skipped, "left out: longer than the limit"),
        }
        let to = self.limit.map_or(String::new(), |(most, keys)| format!(" to {most} tokens ({keys})"));
        say(self.truncated, &format!("cut at the end{to}: they lost their end-of-text token"));
        say(self.cut, "cut: their text is longer than the limit");
        say(self.sources_cut, "have a source that was cut at the end");
        say(self.targets_cut, "have a target that was cut before its end-of-text token");
        say(self.prompts_cut, "have a prompt that was cut to the limit");
        say(self.without_end, "have a target without the end-of-text token: the model does not learn where it ends");
        say(self.without_loss, "left out: the cut removed every token with loss");
        say(self.without_labels, "left out: no token has a label or counts in the loss");
        say(self.prompt_mismatches, "have a prompt that tokenizes differently alone than with its completion");
        remarks
    }
}
