//! Turns one row into token ids: joins its parts, finds where the completion begins, and cuts it.

use super::Message;
use super::Side;
use super::example::{PreferenceExample, Prompt, ReferenceRule, SftExample, TokenizeOptions, TooLong};
use super::feedback::UNCONVERTED;
use super::foreign::{instruction_as_text, instruction_as_turns};
use super::implicit::split_shared_prompt;
use super::references::references;
use super::row::{Content, Request, Row, RowData};
use crate::Error;
use crate::text::{ChatTemplate, Tokenizer};

/// Result of tokenizing one row.
pub(super) struct TokenizedRow<E> {
    pub example: Option<E>,
    pub outcome: RowOutcome,
    pub mismatch: bool,
    pub length: usize,
}

#[derive(PartialEq, Clone, Copy)]
pub(super) enum RowOutcome {
    Kept,
    Truncated,
    /// The text of a classifier was cut; its special tokens are kept.
    Cut,
    /// Only the source was cut, not the target.
    SourceCut,
    /// A separate target was cut and keeps its end token.
    TargetCut,
    /// A prompt for sampling was cut.
    PromptCut,
    /// The target for a decoder has no end-of-text token.
    WithoutEnd,
    Skipped,
    /// A cut removed every token with loss.
    WithoutLoss,
    /// No token has loss, although nothing was cut.
    WithoutLabels,
}

impl<E> TokenizedRow<E> {
    pub(super) fn kept(example: E) -> Self {
        Self { example: Some(example), outcome: RowOutcome::Kept, mismatch: false, length: 0 }
    }

    pub(super) fn skipped(length: usize) -> Self {
        Self { example: None, outcome: RowOutcome::Skipped, mismatch: false, length }
    }
}

/// Why a row gave no example: the row is bad, or tokenizing cannot work at all (a missing chat template).
pub(super) enum Failure {
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

/// Tokenizer, chat template and options for tokenizing rows.
pub(super) struct RowTokenizer<'a> {
    pub tokenizer: &'a Tokenizer,
    pub template: Option<&'a ChatTemplate>,
    pub options: &'a TokenizeOptions,
}

/// Token ids and, if requested, which of them the assistant wrote.
pub(super) struct Ids {
    pub ids: Vec<u32>,
    pub assistant: Option<Vec<bool>>,
}

/// Token ids and loss mask of a row.
pub(super) struct Sequence {
    pub ids: Vec<u32>,
    pub loss_mask: Vec<bool>,
    /// Number of leading ids that an encoder reads.
    pub source_len: usize,
    /// Whether the prompt tokenizes differently alone.
    pub mismatch: bool,
}

impl Sequence {
    /// Creates a sequence that one model both reads and predicts.
    fn joined(ids: Vec<u32>, loss_mask: Vec<bool>, mismatch: bool) -> Self {
        Self { ids, loss_mask, source_len: 0, mismatch }
    }
}

impl RowTokenizer<'_> {
    /// Tokenizes a row for supervised fine-tuning.
    pub(super) fn sft(&self, row: &Row) -> Result<Sequence, Failure> {
        self.check_assistant_only(row)?;
        if self.options.encoder_reads_prompt {
            return self.sft_encoder_decoder(row);
        }
        match &row.data {
            RowData::Text(text) => {
                let ids = self.text(&self.with_eos(text))?;
                let mask = vec![true; ids.len()];
                Ok(Sequence::joined(ids, mask, false))
            }
            RowData::Messages(messages) => {
                let whole = self.conversation(messages, row, false, self.options.assistant_only_loss)?;
                let mask = whole.assistant.unwrap_or_else(|| vec![true; whole.ids.len()]);
                Ok(Sequence::joined(whole.ids, mask, false))
            }
            RowData::PromptCompletion { prompt, completion } | RowData::Unpaired { prompt, completion, .. } => {
                self.prompt_completion(prompt, completion, row)
            }
            RowData::Instruction { history, request, answer } => {
                let (prompt, completion) = self.instruction(history, request, answer)?;
                self.prompt_completion(&prompt, &completion, row)
            }
            RowData::Preference { prompt, chosen, rejected, .. } => match prompt {
                Some(prompt) => self.prompt_completion(prompt, chosen, row),
                None => {
                    let (prompt, chosen, _) = split_shared_prompt(chosen, rejected, self.options.implicit_prompt)?;
                    self.prompt_completion(&prompt, &chosen, row)
                }
            },
            RowData::Tokens { ids, loss_mask, labels } => {
                self.check_ids(ids)?;
                if let Some(misfit) = labels.as_ref().and_then(|labels| labels.misfit.clone()) {
                    return Err(Failure::Row(misfit));
                }
                // TRL ignores a completion mask here by default; gradus applies the row's mask.
                let all = self.options.completion_only_loss == Some(false);
                let mask = loss_mask.clone().filter(|_| !all).unwrap_or_else(|| vec![true; ids.len()]);
                Ok(Sequence::joined(ids.clone(), mask, false))
            }
            RowData::Prompt(_) => Err(Failure::Row("a prompt without a completion".into())),
            RowData::Columns | RowData::Words(_) => Err(Failure::Row("a row that only a classifier reads".into())),
            RowData::Feedback(_) => Err(Failure::Row(UNCONVERTED.into())),
            RowData::TokenPreference { prompt_ids, chosen_ids, .. } => {
                let ids = [&prompt_ids[..], chosen_ids].concat();
                self.check_ids(&ids)?;
                let mask = (0..ids.len()).map(|i| i >= prompt_ids.len()).collect();
                Ok(Sequence::joined(ids, mask, false))
            }
        }
    }

    pub(super) fn prompt_completion(
        &self,
        prompt: &Content,
        completion: &Content,
        row: &Row,
    ) -> Result<Sequence, Failure> {
        let (prompt_ids, whole) = match (prompt, completion) {
            (Content::Text(prompt), Content::Text(completion)) => {
                let whole = self.text(&format!("{prompt}{}", self.with_eos(completion)))?;
                (self.prompt_text(prompt)?, Ids { ids: whole, assistant: None })
            }
            (Content::Messages(prompt), Content::Messages(completion)) => {
                let together = [&prompt[..], completion].concat();
                let [whole, opening] = self.render_each([(&together, false), (prompt, true)], row)?;
                let whole = self.ids_of(whole, &together, row, self.options.assistant_only_loss)?;
                (self.ids_of(opening, prompt, row, false)?.ids, whole)
            }
            _ => return Err(Failure::Row("prompt and completion must both be text or both be messages".into())),
        };
        let prompt_len = common_prefix(&prompt_ids, &whole.ids);
        let completion_only = self.options.completion_only_loss.unwrap_or(true);
        let mask = (0..whole.ids.len())
            .map(|i| {
                (!completion_only || i >= prompt_len) && whole.assistant.as_ref().is_none_or(|assistant| assistant[i])
            })
            .collect();
        Ok(Sequence::joined(whole.ids, mask, prompt_len < prompt_ids.len()))
    }

    pub(super) fn cut_sft(&self, sequence: Sequence, row: usize) -> TokenizedRow<SftExample> {
        if self.options.encoder_reads_prompt {
            return self.cut_sft_encoder_decoder(sequence, row);
        }
        let Sequence { mut ids, mut loss_mask, source_len, .. } = sequence;
        let length = ids.len();
        let mut outcome = RowOutcome::Kept;
        if let Some(most) = self.options.max_length
            && length > most
        {
            if self.options.too_long == TooLong::Skip {
                return TokenizedRow::skipped(length);
            }
            ids.truncate(most);
            loss_mask.truncate(most);
            outcome = RowOutcome::Truncated;
        }
        // TRL drops rows without loss only if it cuts them. gradus always drops them, because they add nothing.
        if !loss_mask.contains(&true) {
            let is_cut = outcome == RowOutcome::Truncated;
            let outcome = if is_cut { RowOutcome::WithoutLoss } else { RowOutcome::WithoutLabels };
            return TokenizedRow { example: None, outcome, mismatch: false, length };
        }
        TokenizedRow { example: Some(SftExample { ids, loss_mask, source_len, row }), outcome, mismatch: false, length }
    }

    pub(super) fn pair(&self, row: &Row) -> Result<(PreferenceExample, bool), Failure> {
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
                let pair = PreferenceExample {
                    prompt_len,
                    chosen_ids,
                    rejected_ids,
                    encoder_reads_prompt: false,
                    margin: *margin,
                    row: row.index,
                };
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
            (Content::Messages(prompt), Content::Messages(chosen), Content::Messages(rejected)) => {
                let (chosen, rejected) = ([&prompt[..], chosen].concat(), [&prompt[..], rejected].concat());
                let ids = |rendered| Ok::<_, Failure>(self.ids_of(rendered, prompt, row, false)?.ids);
                // Two conversations may differ from their first message on.
                if prompt.is_empty() {
                    let [chosen, rejected] = self.render_each([(&chosen, false), (&rejected, false)], row)?;
                    (Vec::new(), ids(chosen)?, ids(rejected)?)
                } else {
                    let three = [(&prompt[..], true), (&chosen, false), (&rejected, false)];
                    let [opening, chosen, rejected] = self.render_each(three, row)?;
                    (ids(opening)?, ids(chosen)?, ids(rejected)?)
                }
            }
            _ => {
                return Err(Failure::Row(
                    "`prompt`, `chosen` and `rejected` must all be text or all be messages".into(),
                ));
            }
        };
        let prompt_len = common_prefix(&prompt_ids, &chosen_ids).min(common_prefix(&prompt_ids, &rejected_ids));
        let mismatch = prompt_len < prompt_ids.len();
        Ok((
            PreferenceExample {
                prompt_len,
                chosen_ids,
                rejected_ids,
                encoder_reads_prompt: false,
                margin,
                row: row.index,
            },
            mismatch,
        ))
    }

    pub(super) fn cut_pair(&self, mut pair: PreferenceExample) -> TokenizedRow<PreferenceExample> {
        let longest = pair.chosen_ids.len().max(pair.rejected_ids.len());
        let Some(most) = self.options.max_length.filter(|most| longest > *most) else {
            return TokenizedRow::kept(pair);
        };
        if self.options.too_long == TooLong::Skip {
            return TokenizedRow::skipped(longest);
        }
        if pair.prompt_len >= most {
            return TokenizedRow { example: None, outcome: RowOutcome::WithoutLoss, mismatch: false, length: longest };
        }
        pair.chosen_ids.truncate(most);
        pair.rejected_ids.truncate(most);
        TokenizedRow { example: Some(pair), outcome: RowOutcome::Truncated, mismatch: false, length: longest }
    }

    /// Returns the special tokens that the tokenizer adds in front of a text.
    fn leading_special(&self) -> Vec<u32> {
        let encode = |special| self.tokenizer.encode("a", special).unwrap_or_default();
        let (whole, bare) = (encode(true), encode(false));
        let text = whole.windows(bare.len().max(1)).position(|ids| ids == bare);
        whole[..text.unwrap_or(0)].to_vec()
    }

    /// Cuts each side of the pair at [`TokenizeOptions::pair_cut`]. A cut on the right keeps the end token that the tokenizer adds.
    /// A cut on the left keeps the end of the text, and the special tokens in front of it.
    pub(super) fn cut_whole_pair(&self, mut pair: PreferenceExample, most: usize) -> TokenizedRow<PreferenceExample> {
        let length = pair.chosen_ids.len().max(pair.rejected_ids.len());
        if self.options.pair_cut == Side::Left {
            let head = &self.leading_special()[..];
            for ids in [&mut pair.chosen_ids, &mut pair.rejected_ids].into_iter().filter(|ids| ids.len() > most) {
                let kept = if ids.starts_with(head) && head.len() < most { head.len() } else { 0 };
                ids.drain(kept..ids.len() - (most - kept));
            }
            let outcome = if pair.chosen_ids == pair.rejected_ids { RowOutcome::WithoutLoss } else { RowOutcome::Cut };
            let example = (outcome == RowOutcome::Cut).then_some(pair);
            return TokenizedRow { example, outcome, mismatch: false, length };
        }
        let end = self.tokenizer.eos_id().filter(|_| self.tokenizer.appends_eos());
        for ids in [&mut pair.chosen_ids, &mut pair.rejected_ids].into_iter().filter(|ids| ids.len() > most) {
            ids.truncate(most);
            if let (Some(end), Some(last)) = (end, ids.last_mut()) {
                *last = end;
            }
        }
        if pair.chosen_ids == pair.rejected_ids {
            return TokenizedRow { example: None, outcome: RowOutcome::WithoutLoss, mismatch: false, length };
        }
        let outcome = if end.is_some() { RowOutcome::Cut } else { RowOutcome::Truncated };
        TokenizedRow { example: Some(pair), outcome, mismatch: false, length }
    }

    /// Tokenizes both sides as whole sequences.
    pub(super) fn whole_pair(&self, row: &Row) -> Result<PreferenceExample, Failure> {
        let pair = |chosen_ids, rejected_ids, margin: &Option<f32>| PreferenceExample {
            prompt_len: 0,
            chosen_ids,
            rejected_ids,
            encoder_reads_prompt: false,
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

    pub(super) fn prompt(&self, row: &Row) -> Result<Prompt, Failure> {
        let rule = self.options.references;
        if rule > ReferenceRule::Any && references(&row.columns)?.is_empty() && rule == ReferenceRule::Required {
            let message = "no references to compare with (column `references`, `reference`, `answer`, `completion`, `output` or \
                           `chosen`)";
            return Err(Failure::Row(message.into()));
        }
        let content = match &row.data {
            RowData::Prompt(prompt) | RowData::PromptCompletion { prompt, .. } | RowData::Unpaired { prompt, .. } => {
                prompt.clone()
            }
            RowData::Preference { prompt: Some(prompt), .. } => prompt.clone(),
            RowData::Preference { prompt: None, chosen, rejected, .. } => {
                split_shared_prompt(chosen, rejected, self.options.implicit_prompt)?.0
            }
            RowData::Instruction { history, request, answer } => self.instruction(history, request, answer)?.0,
            RowData::Messages(messages) => {
                let last = messages.iter().rposition(|m| m.role == "assistant").unwrap_or(messages.len());
                Content::Messages(messages[..last].to_vec())
            }
            _ => return Err(Failure::Row("a row without a prompt".into())),
        };
        if self.options.encoder_reads_prompt {
            return self.prompt_encoder_decoder(content, row);
        }
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
        Ok(Prompt { row: row.index, text, ids, encoder_reads_prompt: false, messages, columns: row.columns.clone() })
    }

    /// Cuts the prompt to its limit. Also returns whether it was cut.
    pub(super) fn cut_prompt(&self, mut prompt: Prompt) -> (Prompt, bool) {
        let ids = &prompt.ids;
        let Some((most, side)) = self.options.prompt_cut.filter(|(most, _)| ids.len() > *most) else {
            return (prompt, false);
        };
        let begins = ids.first().copied().filter(|first| Some(*first) == self.tokenizer.bos_id());
        let ends = ids.last().copied().filter(|_| prompt.encoder_reads_prompt && self.tokenizer.appends_eos());
        let (head, tail) = (usize::from(begins.is_some()), usize::from(ends.is_some()));
        let (text, room) = (&ids[head..ids.len() - tail], most.saturating_sub(head + tail));
        let kept = match side {
            Side::Left => &text[text.len() - room..],
            Side::Right => &text[..room],
        };
        prompt.ids = begins.into_iter().chain(kept.iter().copied()).chain(ends).collect();
        (prompt, true)
    }

    /// Converts an instruction to a conversation if the model has a chat template, else to text.
    pub(super) fn instruction(
        &self,
        history: &[Message],
        request: &Request,
        answer: &str,
    ) -> Result<(Content, Content), Failure> {
        match (self.template, history) {
            (Some(_), _) => Ok(instruction_as_turns(history, request, answer)),
            (None, []) => Ok(instruction_as_text(request, answer)),
            (None, [first, ..]) => {
                let message = format!(
                    "a message of the {} comes before the question, and the model has no chat template to render it",
                    first.role
                );
                Err(Failure::Row(message))
            }
        }
    }
}

/// Returns the number of leading ids that two sequences share.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
