//! Rows to training examples, token for token as TRL 1.16 makes them.
//!
//! A string row ends with the eos token's text; prompt and completion are joined as text and tokenised once; the
//! completion begins where that differs from the prompt tokenised alone. Conversations are rendered by the chat
//! template and tokenised as they are.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use serde_json::Value;

use super::Message;
use super::example::{Counts, Examples, PreferenceExample, Prompt, SftExample, TokeniseOptions, TooLong};
use super::foreign::{alpaca_prompt, alpaca_question};
use super::implicit::split_shared_prompt;
use super::report::RowErrors;
use super::row::{Content, Row, RowData};
use crate::text::{ChatTemplate, RenderOptions, Tokenizer};
use crate::{Error, Result};

/// Sequences for supervised fine-tuning. Preference rows give their chosen answer.
///
/// # Errors
/// When rows cannot be tokenised (the first ten and a count), or none is left.
pub fn sft_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokeniseOptions,
) -> Result<Examples<SftExample>> {
    let maker = Maker { tokenizer, template, options };
    run(rows, options, |row| {
        let (ids, loss_mask, mismatch) = maker.sft(row)?;
        let cut = maker.cut_sft(ids, loss_mask);
        Ok(Made { mismatch, ..cut.map(|(ids, loss_mask)| SftExample { ids, loss_mask, row: row.index }) })
    })
}

/// Prompt–completion rows, or tokens with a mask, to be scored: tokenised as one text with the tokenizer's own special
/// tokens, never cut; nothing is added but, where `options.add_eos` says so, the eos text.
///
/// # Errors
/// As [`sft_examples`].
pub fn score_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    add_eos: bool,
) -> Result<Examples<SftExample>> {
    let options = TokeniseOptions { max_length: None, add_eos, ..TokeniseOptions::default() };
    sft_examples(rows, tokenizer, template, &options)
}

/// Pairs for DPO and its relatives.
///
/// # Errors
/// As [`sft_examples`].
pub fn preference_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokeniseOptions,
) -> Result<Examples<PreferenceExample>> {
    let maker = Maker { tokenizer, template, options };
    run(rows, options, |row| {
        let (pair, mismatch) = maker.pair(row)?;
        Ok(Made { mismatch, ..maker.cut_pair(pair) })
    })
}

/// Pairs for reward models: whole sequences; a pair is left out when either side is too long.
///
/// # Errors
/// As [`sft_examples`].
pub fn reward_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokeniseOptions,
) -> Result<Examples<PreferenceExample>> {
    let maker = Maker { tokenizer, template, options };
    run(rows, options, |row| {
        let pair = maker.whole_pair(row)?;
        let longest = pair.chosen_ids.len().max(pair.rejected_ids.len());
        let fits = options.max_length.is_none_or(|most| longest <= most);
        Ok(if fits { Made::kept(pair) } else { Made::skipped(longest) })
    })
}

/// Prompts to sample from, never cut: those that leave no room within `max_length` are left out.
///
/// # Errors
/// As [`sft_examples`].
pub fn prompts(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokeniseOptions,
) -> Result<Examples<Prompt>> {
    let maker = Maker { tokenizer, template, options };
    run(rows, options, |row| {
        let prompt = maker.prompt(row)?;
        let length = prompt.ids.len();
        let fits = options.max_length.is_none_or(|most| length < most);
        Ok(if fits { Made::kept(prompt) } else { Made::skipped(length) })
    })
}

/// What became of one row.
struct Made<E> {
    example: Option<E>,
    outcome: Outcome,
    mismatch: bool,
    length: usize,
}

#[derive(PartialEq, Clone, Copy)]
enum Outcome {
    Kept,
    Truncated,
    Skipped,
    WithoutLoss,
}

impl<E> Made<E> {
    fn kept(example: E) -> Self {
        Self { example: Some(example), outcome: Outcome::Kept, mismatch: false, length: 0 }
    }

    fn skipped(length: usize) -> Self {
        Self { example: None, outcome: Outcome::Skipped, mismatch: false, length }
    }

    fn map<F>(self, f: impl FnOnce(E) -> F) -> Made<F> {
        Made { example: self.example.map(f), outcome: self.outcome, mismatch: self.mismatch, length: self.length }
    }
}

/// Why a row gave no example: the row is bad, or everything is (a missing chat template).
enum Failure {
    Row(String),
    All(Error),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Row(message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Input { message, .. } => Self::Row(message),
            Error::Model { message, .. } if message.starts_with("chat template: ") => Self::Row(message),
            other => Self::All(other),
        }
    }
}

/// Token counts of an example: all, and with loss.
trait Measured {
    fn sizes(&self) -> (usize, usize);
}

impl Measured for SftExample {
    fn sizes(&self) -> (usize, usize) {
        (self.ids.len(), self.loss_mask.iter().skip(1).filter(|m| **m).count())
    }
}

impl Measured for PreferenceExample {
    fn sizes(&self) -> (usize, usize) {
        let all = self.chosen_ids.len() + self.rejected_ids.len();
        (all, all - 2 * self.prompt_len)
    }
}

impl Measured for Prompt {
    fn sizes(&self) -> (usize, usize) {
        (self.ids.len(), 0)
    }
}

/// Makes the examples of all rows, in parallel and in order, and counts.
fn run<E: Send + Measured>(
    rows: &[Row],
    options: &TokeniseOptions,
    make: impl Fn(&Row) -> Result<Made<E>, Failure> + Sync,
) -> Result<Examples<E>> {
    let failures = AtomicUsize::new(0);
    let made: Vec<Result<Made<E>, Failure>> = rows
        .par_iter()
        .map(|row| {
            let made = make(row);
            if made.is_err() {
                failures.fetch_add(1, Ordering::Relaxed);
            }
            made
        })
        .collect();
    let mut errors = RowErrors::default();
    let mut counts = Counts { rows: rows.len(), ..Counts::default() };
    let mut examples = Vec::with_capacity(rows.len() - failures.into_inner());
    let mut shortest = usize::MAX;
    for (row, made) in rows.iter().zip(made) {
        let made = match made {
            Ok(made) => made,
            Err(Failure::Row(message)) => {
                errors.push(row.place.error(message));
                continue;
            }
            Err(Failure::All(error)) => return Err(error),
        };
        counts.prompt_mismatches += usize::from(made.mismatch);
        match made.outcome {
            Outcome::Kept => {}
            Outcome::Truncated => counts.truncated += 1,
            Outcome::WithoutLoss => counts.without_loss += 1,
            Outcome::Skipped => counts.skipped += 1,
        }
        match made.example {
            Some(example) => {
                let (tokens, loss_tokens) = example.sizes();
                counts.tokens += tokens;
                counts.loss_tokens += loss_tokens;
                examples.push(example);
            }
            None => shortest = shortest.min(made.length),
        }
    }
    if let Some(error) = errors.into_error(rows.len()) {
        return Err(error);
    }
    counts.kept = examples.len();
    if examples.is_empty() {
        let (Some(first), Some(most)) = (rows.first(), options.max_length) else {
            return Err(Error::input("no rows: the data set is empty"));
        };
        let all = rows.len();
        let message = if shortest == usize::MAX || shortest <= most {
            format!("none of the {all} rows keeps a token with loss within `max_length` {most}")
        } else {
            format!("all {all} rows are longer than `max_length` {most}; the shortest has {shortest} tokens")
        };
        return Err(Error::data(&*first.place.file, None, message).with_hint("raise `max_length`"));
    }
    Ok(Examples { examples, counts })
}

struct Maker<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    options: &'a TokeniseOptions,
}

/// Ids and which of them the assistant said, where that was asked for.
struct Ids {
    ids: Vec<u32>,
    assistant: Option<Vec<bool>>,
}

type Sequence = (Vec<u32>, Vec<bool>, bool);

impl Maker<'_> {
    /// Ids, loss mask, and whether the prompt's end differed.
    fn sft(&self, row: &Row) -> Result<Sequence, Failure> {
        match &row.data {
            RowData::Text(text) => {
                let ids = self.text(&self.with_eos(text))?;
                let mask = vec![true; ids.len()];
                Ok((ids, mask, false))
            }
            RowData::Messages(messages) => {
                let whole = self.conversation(messages, row, false, self.options.assistant_only_loss)?;
                let mask = whole.assistant.unwrap_or_else(|| vec![true; whole.ids.len()]);
                Ok((whole.ids, mask, false))
            }
            RowData::PromptCompletion { prompt, completion } => self.prompt_completion(prompt, completion, row),
            RowData::Alpaca { before, instruction, input, output } => {
                let (prompt, completion) = self.alpaca(before, instruction, input, output);
                self.prompt_completion(&prompt, &completion, row)
            }
            RowData::Preference { prompt, chosen, rejected, .. } => match prompt {
                Some(prompt) => self.prompt_completion(prompt, chosen, row),
                None => {
                    let (prompt, chosen, _) = split_shared_prompt(chosen, rejected, self.options.implicit_prompt)?;
                    self.prompt_completion(&prompt, &chosen, row)
                }
            },
            RowData::Tokens { ids, loss_mask } => {
                self.check_ids(ids)?;
                // TRL ignores a completion mask here unless told otherwise; gradus applies what the row says.
                let all = self.options.completion_only_loss == Some(false);
                let mask = loss_mask.clone().filter(|_| !all).unwrap_or_else(|| vec![true; ids.len()]);
                Ok((ids.clone(), mask, false))
            }
            RowData::Prompt(_) => Err(Failure::Row("a prompt without a completion".into())),
            RowData::TokenPreference { prompt_ids, chosen_ids, .. } => {
                let ids = [&prompt_ids[..], chosen_ids].concat();
                self.check_ids(&ids)?;
                let mask = (0..ids.len()).map(|i| i >= prompt_ids.len()).collect();
                Ok((ids, mask, false))
            }
        }
    }

    fn prompt_completion(&self, prompt: &Content, completion: &Content, row: &Row) -> Result<Sequence, Failure> {
        let (prompt_ids, whole) = match (prompt, completion) {
            (Content::Text(prompt), Content::Text(completion)) => {
                let whole = self.text(&format!("{prompt}{}", self.with_eos(completion)))?;
                (self.prompt_text(prompt)?, Ids { ids: whole, assistant: None })
            }
            (Content::Messages(prompt), Content::Messages(completion)) => {
                let together = [&prompt[..], completion].concat();
                let whole = self.conversation(&together, row, false, self.options.assistant_only_loss)?;
                (self.conversation(prompt, row, true, false)?.ids, whole)
            }
            _ => return Err(Failure::Row("prompt and completion must both be text or both be messages".into())),
        };
        let prompt_len = common_prefix(&prompt_ids, &whole.ids);
        let completion_only = self.options.completion_only_loss.unwrap_or(true);
        let mask = (0..whole.ids.len())
            .map(|i| (!completion_only || i >= prompt_len) && whole.assistant.as_ref().is_none_or(|said| said[i]))
            .collect();
        Ok((whole.ids, mask, prompt_len < prompt_ids.len()))
    }

    fn cut_sft(&self, mut ids: Vec<u32>, mut loss_mask: Vec<bool>) -> Made<(Vec<u32>, Vec<bool>)> {
        let length = ids.len();
        let mut outcome = Outcome::Kept;
        if let Some(most) = self.options.max_length
            && length > most
        {
            if self.options.too_long == TooLong::Skip {
                return Made::skipped(length);
            }
            ids.truncate(most);
            loss_mask.truncate(most);
            outcome = Outcome::Truncated;
        }
        // TRL drops rows without any loss only where it cuts; a row that never had any would add nothing either.
        if !loss_mask.contains(&true) {
            return Made { example: None, outcome: Outcome::WithoutLoss, mismatch: false, length };
        }
        Made { example: Some((ids, loss_mask)), outcome, mismatch: false, length }
    }

    fn pair(&self, row: &Row) -> Result<(PreferenceExample, bool), Failure> {
        let (prompt, chosen, rejected, margin) = match &row.data {
            RowData::Preference { prompt: Some(prompt), chosen, rejected, margin } => {
                (prompt.clone(), chosen.clone(), rejected.clone(), *margin)
            }
            RowData::Preference { prompt: None, chosen, rejected, margin } => {
                let (prompt, chosen, rejected) = split_shared_prompt(chosen, rejected, self.options.implicit_prompt)?;
                (prompt, chosen, rejected, *margin)
            }
            RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, margin } => {
                let (chosen_ids, rejected_ids) =
                    ([&prompt_ids[..], chosen_ids].concat(), [&prompt_ids[..], rejected_ids].concat());
                self.check_ids(&chosen_ids)?;
                self.check_ids(&rejected_ids)?;
                let prompt_len = if prompt_ids.is_empty() {
                    common_prefix(&chosen_ids, &rejected_ids).min(chosen_ids.len().min(rejected_ids.len()) - 1)
                } else {
                    prompt_ids.len()
                };
                let pair = PreferenceExample { prompt_len, chosen_ids, rejected_ids, margin: *margin, row: row.index };
                return Ok((pair, false));
            }
            _ => return Err(Failure::Row("a row without `chosen` and `rejected`".into())),
        };
        let (prompt_ids, chosen_ids, rejected_ids) = match (&prompt, &chosen, &rejected) {
            (Content::Text(prompt), Content::Text(chosen), Content::Text(rejected)) => (
                self.prompt_text(prompt)?,
                self.text(&format!("{prompt}{}", self.with_eos(chosen)))?,
                self.text(&format!("{prompt}{}", self.with_eos(rejected)))?,
            ),
            (Content::Messages(prompt), Content::Messages(chosen), Content::Messages(rejected)) => (
                // Two conversations may differ from their first message on.
                if prompt.is_empty() { Vec::new() } else { self.conversation(prompt, row, true, false)?.ids },
                self.conversation(&[&prompt[..], chosen].concat(), row, false, false)?.ids,
                self.conversation(&[&prompt[..], rejected].concat(), row, false, false)?.ids,
            ),
            _ => {
                return Err(Failure::Row(
                    "`prompt`, `chosen` and `rejected` must all be text or all be messages".into(),
                ));
            }
        };
        let prompt_len = common_prefix(&prompt_ids, &chosen_ids).min(common_prefix(&prompt_ids, &rejected_ids));
        let mismatch = prompt_len < prompt_ids.len();
        Ok((PreferenceExample { prompt_len, chosen_ids, rejected_ids, margin, row: row.index }, mismatch))
    }

    fn cut_pair(&self, mut pair: PreferenceExample) -> Made<PreferenceExample> {
        let longest = pair.chosen_ids.len().max(pair.rejected_ids.len());
        let Some(most) = self.options.max_length.filter(|most| longest > *most) else {
            return Made::kept(pair);
        };
        if self.options.too_long == TooLong::Skip {
            return Made::skipped(longest);
        }
        if pair.prompt_len >= most {
            return Made { example: None, outcome: Outcome::WithoutLoss, mismatch: false, length: longest };
        }
        pair.chosen_ids.truncate(most);
        pair.rejected_ids.truncate(most);
        Made { example: Some(pair), outcome: Outcome::Truncated, mismatch: false, length: longest }
    }

    /// Both sides as whole sequences.
    fn whole_pair(&self, row: &Row) -> Result<PreferenceExample, Failure> {
        let pair = |chosen_ids, rejected_ids, margin: &Option<f32>| PreferenceExample {
            prompt_len: 0,
            chosen_ids,
            rejected_ids,
            margin: *margin,
            row: row.index,
        };
        let side = |prompt: &Option<Content>, answer: &Content| match (prompt, answer) {
            (None, Content::Text(answer)) => self.text(&self.with_eos(answer)),
            (None, Content::Messages(answer)) => Ok(self.conversation(answer, row, false, false)?.ids),
            (Some(Content::Text(prompt)), Content::Text(answer)) => {
                self.text(&format!("{prompt}{}", self.with_eos(answer)))
            }
            (Some(Content::Messages(prompt)), Content::Messages(answer)) => {
                Ok(self.conversation(&[&prompt[..], answer].concat(), row, false, false)?.ids)
            }
            _ => Err(Failure::Row("`prompt`, `chosen` and `rejected` must all be text or all be messages".into())),
        };
        match &row.data {
            RowData::Preference { prompt, chosen, rejected, margin } => {
                Ok(pair(side(prompt, chosen)?, side(prompt, rejected)?, margin))
            }
            RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, margin } => {
                let (chosen, rejected) =
                    ([&prompt_ids[..], chosen_ids].concat(), [&prompt_ids[..], rejected_ids].concat());
                self.check_ids(&chosen)?;
                self.check_ids(&rejected)?;
                Ok(pair(chosen, rejected, margin))
            }
            _ => Err(Failure::Row("a row without `chosen` and `rejected`".into())),
        }
    }

    fn prompt(&self, row: &Row) -> Result<Prompt, Failure> {
        let content = match &row.data {
            RowData::Prompt(prompt) | RowData::PromptCompletion { prompt, .. } => prompt.clone(),
            RowData::Preference { prompt: Some(prompt), .. } => prompt.clone(),
            RowData::Preference { prompt: None, chosen, rejected, .. } => {
                split_shared_prompt(chosen, rejected, self.options.implicit_prompt)?.0
            }
            RowData::Alpaca { before, instruction, input, output } => self.alpaca(before, instruction, input, output).0,
            RowData::Messages(messages) => {
                let last = messages.iter().rposition(|m| m.role == "assistant").unwrap_or(messages.len());
                Content::Messages(messages[..last].to_vec())
            }
            _ => return Err(Failure::Row("a row without a prompt".into())),
        };
        let (text, mut ids, messages) = match content {
            Content::Text(text) => {
                let ids = self.prompt_text(&text)?;
                (text, ids, None)
            }
            Content::Messages(messages) if messages.is_empty() => {
                return Err(Failure::Row("no message before the assistant's".into()));
            }
            Content::Messages(messages) => {
                let text = self.render(&messages, row, true)?.text;
                let ids = self.tokenizer.encode(&text, false)?;
                (text, ids, Some(messages))
            }
        };
        if ids.is_empty() {
            let begin = self.tokenizer.bos_id().ok_or_else(|| "the prompt is empty".to_owned())?;
            ids.push(begin);
        }
        Ok(Prompt { row: row.index, text, ids, messages, columns: row.columns.clone() })
    }

    /// Alpaca rows are conversations where the model has a chat template, else Alpaca's own text.
    fn alpaca(&self, before: &[Message], instruction: &str, input: &str, output: &str) -> (Content, Content) {
        if self.template.is_some() {
            let mut prompt = before.to_vec();
            prompt.push(Message::new("user", alpaca_question(instruction, input)));
            return (Content::Messages(prompt), Content::Messages(vec![Message::new("assistant", output)]));
        }
        (Content::Text(alpaca_prompt(instruction, input)), Content::Text(output.to_owned()))
    }

    /// The text with the eos token's text behind it, unless it ends with it or the tokenizer adds its own.
    fn with_eos<'t>(&self, text: &'t str) -> std::borrow::Cow<'t, str> {
        match self.tokenizer.eos_token() {
            Some(eos) if self.options.add_eos && !self.tokenizer.appends_eos() && !text.ends_with(eos) => {
                format!("{text}{eos}").into()
            }
            _ => text.into(),
        }
    }

    fn text(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let ids = self.tokenizer.encode(text, true)?;
        if ids.is_empty() { Err(Failure::Row("the text is empty".into())) } else { Ok(ids) }
    }

    /// A prompt alone: without the eos that some tokenizers end every text with.
    fn prompt_text(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let mut ids = self.tokenizer.encode(text, true)?;
        if self.tokenizer.appends_eos() {
            ids.pop();
        }
        Ok(ids)
    }

    fn render(&self, messages: &[Message], row: &Row, prompt: bool) -> Result<crate::text::Rendered, Failure> {
        let Some(template) = self.template else {
            return Err(Failure::All(row.place.error("conversations need a chat template, and the model has none").with_hint(
                "give one with `--chat-template FILE`, or turn the rows into text: `gradus data convert --to prompt-completion`",
            )));
        };
        let parsed;
        let tools = match row.columns.get("tools") {
            Some(Value::Array(tools)) => Some(tools.as_slice()),
            Some(Value::String(text)) if !text.trim().is_empty() => {
                parsed = serde_json::from_str::<Vec<Value>>(text)
                    .map_err(|e| format!("column `tools` is no JSON list: {e}"))?;
                Some(parsed.as_slice())
            }
            _ => None,
        };
        let variables = row.columns.get("chat_template_kwargs").and_then(Value::as_object);
        Ok(template.render(messages, &RenderOptions { tools, add_generation_prompt: prompt, variables, now: None })?)
    }

    fn conversation(&self, messages: &[Message], row: &Row, prompt: bool, mask: bool) -> Result<Ids, Failure> {
        let rendered = self.render(messages, row, prompt)?;
        if !mask {
            return Ok(Ids { ids: self.tokenizer.encode(&rendered.text, false)?, assistant: None });
        }
        let encoded = self.tokenizer.encode_with_offsets(&rendered.text)?;
        let mut said = vec![false; encoded.ids.len()];
        let token_at = |byte: usize| encoded.offsets.iter().position(|(start, end)| (*start..*end).contains(&byte));
        for span in &rendered.assistant {
            let Some(first) = token_at(span.start) else { break };
            let last = span.end.checked_sub(1).and_then(token_at).filter(|last| *last > 0);
            let end = last.map_or(said.len(), |last| last + 1);
            said[first..end.max(first)].fill(true);
        }
        let template = self.template.expect("rendered with it");
        if !said.contains(&true) {
            let message = "no token is marked as the assistant's".to_owned();
            if template.marks_assistant() {
                return Err(Failure::Row(message));
            }
            return Err(Failure::All(
                Error::model(template.path(), "the chat template does not mark what the assistant says").with_hint(
                    "`assistant_only_loss` needs `{% generation %}…{% endgeneration %}` around the assistant's turns",
                ),
            ));
        }
        self.check_turn_end(&encoded.ids, &said, template)?;
        Ok(Ids { ids: encoded.ids, assistant: Some(said) })
    }

    /// A template whose end-of-turn token lies behind the generation block would never teach the model to stop.
    fn check_turn_end(&self, ids: &[u32], said: &[bool], template: &ChatTemplate) -> Result<(), Failure> {
        let last = said.iter().rposition(|s| *s).expect("checked by the caller");
        let outside = ids.get(last + 1).is_some_and(|next| self.tokenizer.is_special(*next));
        if outside && !self.tokenizer.is_special(ids[last]) {
            let token = self.tokenizer.token(ids[last + 1]).unwrap_or_default();
            let message = format!("the generation block ends before `{token}`: the model would never learn to stop");
            return Err(Failure::All(
                Error::model(template.path(), message)
                    .with_hint("move `{% endgeneration %}` behind the end-of-turn token"),
            ));
        }
        Ok(())
    }

    fn check_ids(&self, ids: &[u32]) -> Result<(), Failure> {
        let size = self.tokenizer.vocab_size();
        match ids.iter().find(|id| **id as usize >= size) {
            Some(id) => Err(Failure::Row(format!("token id {id} is outside the vocabulary of {size}"))),
            None => Ok(()),
        }
    }
}

/// How many leading ids two sequences have in common.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
