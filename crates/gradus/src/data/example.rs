//! Training examples: rows as token ids, with what was left out counted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::options::BadRows;
use super::{Message, SkippedRow};

/// One sequence to learn from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SftExample {
    /// The ids: with an encoder the source's, then the target's.
    pub ids: Vec<u32>,
    /// Which of them carry loss, one entry per id. The first id is never a target, whatever stands here.
    pub loss_mask: Vec<bool>,
    /// How many ids, from the start, an encoder reads; 0 for a model without one.
    pub source_len: usize,
    /// The row it came from, from 0.
    pub row: usize,
}

/// A pair of sequences that share a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PreferenceExample {
    /// How many ids, from the start of both, are the prompt: with an encoder, its source. 0 for reward models without one,
    /// which score whole sequences.
    pub prompt_len: usize,
    /// Prompt and better answer.
    pub chosen_ids: Vec<u32>,
    /// Prompt and worse answer.
    pub rejected_ids: Vec<u32>,
    /// Whether an encoder reads the prompt, which is then never learned.
    pub apart: bool,
    /// By how much the better answer is better.
    pub margin: Option<f32>,
    /// The row it came from, from 0.
    pub row: usize,
}

/// A completion that is marked as desirable or not, after its prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpairedExample {
    /// How many ids, from the start, are the prompt: with an encoder, its source.
    pub prompt_len: usize,
    /// Prompt and completion.
    pub ids: Vec<u32>,
    /// Whether an encoder reads the prompt.
    pub apart: bool,
    /// Whether such a completion is wanted.
    pub is_desirable: bool,
    /// The longest that prompt and completion may be together, also where the completion is another row's.
    pub max_length: Option<usize>,
    /// The row it came from, from 0.
    pub row: usize,
}

impl Prompt {
    /// The ids that a completion continues: none where an encoder reads the prompt.
    pub fn continued(&self) -> &[u32] {
        if self.apart { &[] } else { &self.ids }
    }
}

impl PreferenceExample {
    /// Ids of the longest of prompt and both answers.
    pub fn longest_part(&self) -> usize {
        let answer = self.chosen_ids.len().max(self.rejected_ids.len()) - self.prompt_len;
        self.prompt_len.max(answer)
    }
}

/// A prompt ready for sampling: its text, its ids, and the row it came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// The row number in its data set, counted from 0; names the prompt in messages and in the rollout log.
    pub row: usize,
    /// The rendered prompt: plain text, or the chat template's output with the generation prompt.
    pub text: String,
    /// `text`, tokenized.
    pub ids: Vec<u32>,
    /// Whether an encoder reads it, so that completions are texts of their own and do not continue it.
    pub apart: bool,
    /// The conversation, when the row held messages.
    pub messages: Option<Vec<Message>>,
    /// The row's other columns (answers, references, …), passed on to rewards.
    pub columns: Map<String, Value>,
}

/// What happens to rows over `max_length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TooLong {
    /// The row is left out, and counted.
    Skip,
    /// The end is cut off, and the row counted.
    Truncate,
}

/// How rows become token ids.
#[derive(Debug, Clone)]
pub struct TokenizeOptions {
    /// Longest sequence in tokens, prompt and completion together (each alone where they are read [`apart`](Self::apart));
    /// `None`: any length. Default 1024 (TRL).
    pub max_length: Option<usize>,
    /// What happens to longer rows. Default: cut at the end. Pairs for reward models are always left out (TRL).
    pub too_long: TooLong,
    /// At which side a pair for a decoder-only or an encoder reward model is cut. Cut at the left, a side keeps its end and the
    /// special tokens before it. Default right.
    pub pair_cut: super::Side,
    /// Loss on the completion only. Default: true where a row has a prompt and a completion (TRL).
    pub completion_only_loss: Option<bool>,
    /// Loss on assistant turns only, as the chat template marks them. Default false (TRL).
    pub assistant_only_loss: bool,
    /// Whether string rows end with the eos token's text. Default true (TRL).
    pub add_eos: bool,
    /// Whether a reward model reads the rows, which never sees what stands between `<think>` and `</think>`.
    pub for_reward: bool,
    /// Whether transcripts (`Human:`, `Assistant:`) become conversations, which the chat template renders. Default false.
    pub transcripts_as_messages: bool,
    /// What stands as the system's message before every conversation that has none of its own; rows that are no
    /// conversations are refused where it is given. Default: nothing.
    pub system_prompt: Option<String>,
    /// Where the prompt ends that `chosen` and `rejected` share.
    pub implicit_prompt: super::ImplicitPrompt,
    /// Prompts to sample from keep at most so many tokens, and are cut at this side; special tokens that the tokenizer puts around a
    /// text stay. Default: none is cut.
    pub prompt_cut: Option<(usize, super::Side)>,
    /// Tools that the chat template shows where a row has none of its own. Default: none.
    pub tools: Vec<Value>,
    /// Whether completions of the prompts are compared with the rows' [references](super::references): rows where these are no texts
    /// are bad ones. Default false.
    pub compares: bool,
    /// Whether an encoder reads the prompt and a decoder writes the completion: both are tokenized alone, each with what
    /// the tokenizer puts around a text, and `max_length` bounds each of them. Default false.
    pub apart: bool,
    /// Longest target of sequences to learn, where it is read [`apart`](Self::apart); a longer one is cut and keeps its end-of-text
    /// token. Default: only `max_length` bounds it.
    pub target_cut: Option<usize>,
    /// What happens to rows that cannot be tokenized. Default: they are an error.
    pub bad_rows: BadRows,
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
            compares: false,
            apart: false,
            target_cut: None,
            bad_rows: BadRows::Fail,
        }
    }
}

/// What happened to the rows of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Rows given.
    pub rows: usize,
    /// Examples made of them.
    pub kept: usize,
    /// Rows left out because they are too long.
    pub skipped: usize,
    /// Rows cut at the end; they lost their end-of-text token.
    pub truncated: usize,
    /// Rows whose text, for a classifier, was cut.
    pub cut: usize,
    /// Rows whose source, for an encoder, was cut.
    pub sources_cut: usize,
    /// Rows whose target, for a decoder, was cut before its end-of-text token.
    pub targets_cut: usize,
    /// Rows whose prompt, to sample from, was cut.
    pub prompts_cut: usize,
    /// Rows whose target, for a decoder, does not end with the end-of-text token, though nothing was cut.
    pub without_end: usize,
    /// Rows left out because cutting left no token with loss.
    pub without_loss: usize,
    /// Rows whose prompt, tokenized alone, is not how prompt and completion together begin: the differing end of the
    /// prompt counts as completion.
    pub prompt_mismatches: usize,
    /// Blocks that the kept rows were joined and cut into; 0 where every row stays alone.
    pub blocks: usize,
    /// Tokens in all examples.
    pub tokens: usize,
    /// Tokens with loss in all examples.
    pub loss_tokens: usize,
}

/// Examples and what was counted on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct Examples<E> {
    /// The examples, in the order of the rows.
    pub examples: Vec<E>,
    /// What happened to the rows.
    pub counts: Counts,
    /// The bad rows, where they were to be left out.
    pub skipped: Vec<SkippedRow>,
}

impl Counts {
    /// What a user should know, one sentence each; nothing where every row was taken as it was.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let mut say = |count: usize, what: &str| {
            if count > 0 {
                remarks.push(format!("{count} of {} rows {what}", self.rows));
            }
        };
        say(self.skipped, "left out: longer than the limit");
        say(self.truncated, "cut at the end: they lost their end-of-text token");
        say(self.cut, "cut: their text is longer than the limit");
        say(self.sources_cut, "have a source that was cut at the end");
        say(self.targets_cut, "have a target that was cut before its end-of-text token");
        say(self.prompts_cut, "have a prompt that was cut to the limit");
        say(self.without_end, "have a target without the end-of-text token: where it ends is not learned");
        say(self.without_loss, "left out: the cut removed every token with loss");
        say(self.prompt_mismatches, "have a prompt that tokenizes differently alone than with its completion");
        remarks
    }
}
