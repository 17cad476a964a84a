//! Splits one row into a source, which the encoder reads, and a target, which the decoder writes.
//!
//! Both are tokenized separately, each with the special tokens that the tokenizer adds to a text. `transformers` users do the same
//! with `tokenizer(source)` and `tokenizer(text_target=target)`. A target ends with the end-of-text token. If the tokenizer does
//! not add one, the token's text is appended to the target.

use super::example::{PreferenceExample, Prompt, SftExample, TooLong};
use super::feedback::UNCONVERTED;
use super::implicit::split_shared_prompt;
use super::message::Message;
use super::row::{Content, Row, RowData};
use super::row_tokenizer::{Failure, RowOutcome, RowTokenizer, Sequence, TokenizedRow};
use crate::Error;

/// Error message for rows without a source.
const NO_SOURCE: &str = "the row has no source: a model with an encoder trains on a source and its target (`prompt` + \
                         `completion`, or `input_ids` + `labels`)";

impl RowTokenizer<'_> {
    /// Returns source and target of a row. All target tokens carry loss.
    pub(super) fn sft_encoder_decoder(&self, row: &Row) -> Result<Sequence, Failure> {
        let (source, target) = match &row.data {
            RowData::PromptCompletion { prompt, completion } | RowData::Unpaired { prompt, completion, .. } => {
                self.source_and_target(prompt, completion, row)?
            }
            RowData::Instruction { history, request, answer } => {
                let (prompt, completion) = self.instruction(history, request, answer)?;
                self.source_and_target(&prompt, &completion, row)?
            }
            RowData::Messages(messages) => {
                let (prompt, completion) = last_answer(messages)?;
                self.source_and_target(&prompt, &completion, row)?
            }
            RowData::Preference { prompt: Some(prompt), chosen, .. } => self.source_and_target(prompt, chosen, row)?,
            RowData::Preference { prompt: None, chosen, rejected, .. } => {
                let (prompt, chosen, _) = split_shared_prompt(chosen, rejected, self.options.implicit_prompt)?;
                self.source_and_target(&prompt, &chosen, row)?
            }
            RowData::Tokens { ids, loss_mask, labels } => {
                self.tokens_encoder_decoder(ids, loss_mask.as_deref(), labels.as_ref())?
            }
            RowData::TokenPreference { prompt_ids, chosen_ids, .. } => (prompt_ids.clone(), chosen_ids.clone()),
            RowData::Text(_) => return Err(Failure::Row(NO_SOURCE.into())),
            RowData::Prompt(_) => return Err(Failure::Row("a prompt without a completion".into())),
            RowData::Columns | RowData::Words(_) => {
                return Err(Failure::Row("a row that only a classifier reads".into()));
            }
            RowData::Feedback(_) => return Err(Failure::Row(UNCONVERTED.into())),
        };
        if source.is_empty() {
            return Err(Failure::Row(NO_SOURCE.into()));
        }
        if target.is_empty() {
            return Err(Failure::Row("the row has a source, but its target is empty".into()));
        }
        let loss_mask = (0..source.len() + target.len()).map(|i| i >= source.len()).collect();
        let ids = [&source[..], &target].concat();
        self.check_ids(&ids)?;
        Ok(Sequence { ids, loss_mask, source_len: source.len(), mismatch: false })
    }

    /// Cuts the target to `target_cut`, then source and target to `max_length` each. The source keeps the end token that its
    /// tokenizer added. A target cut to `target_cut` also keeps its end token.
    pub(super) fn cut_sft_encoder_decoder(&self, sequence: Sequence, row: usize) -> TokenizedRow<SftExample> {
        let (source, target) = sequence.ids.split_at(sequence.source_len);
        let shortened =
            self.options.target_cut.filter(|most| target.len() > *most).map(|most| self.with_end(target, most));
        let target = shortened.as_deref().unwrap_or(target);
        let longest = source.len().max(target.len());
        let most = self.options.max_length.unwrap_or(usize::MAX);
        if longest > most && self.options.too_long == TooLong::Skip {
            return TokenizedRow::skipped(longest);
        }
        let eos = self.tokenizer.eos_id();
        let outcome = match (target.len() > most, source.len() > most) {
            (true, _) => RowOutcome::Truncated,
            (false, true) => RowOutcome::SourceCut,
            _ if shortened.is_some() => RowOutcome::TargetCut,
            _ if self.options.add_eos && eos.is_some() && target.last().copied() != eos => RowOutcome::WithoutEnd,
            _ => RowOutcome::Kept,
        };
        let source = self.cut_source(source, most);
        let target = &target[..target.len().min(most)];
        let ids = [&source[..], target].concat();
        let loss_mask = (0..ids.len()).map(|i| i >= source.len()).collect();
        let example = SftExample { ids, loss_mask, source_len: source.len(), row };
        TokenizedRow { example: Some(example), outcome, mismatch: false, length: longest }
    }

    /// Returns at most `most` ids of a target. If the target has an end-of-text token, that token is kept as the last one.
    fn with_end(&self, target: &[u32], most: usize) -> Vec<u32> {
        match target.last() {
            Some(&last) if Some(last) == self.tokenizer.eos_id() && most > 0 => [&target[..most - 1], &[last]].concat(),
            _ => target[..most].to_vec(),
        }
    }

    /// Returns the source and both targets of a pair.
    pub(super) fn pair_encoder_decoder(&self, row: &Row) -> Result<PreferenceExample, Failure> {
        let (source, chosen, rejected, margin) = match &row.data {
            RowData::Preference { prompt, chosen, rejected, margin } => {
                let (prompt, chosen, rejected) = match prompt {
                    Some(prompt) => (prompt.clone(), chosen.clone(), rejected.clone()),
                    None => split_shared_prompt(chosen, rejected, self.options.implicit_prompt)?,
                };
                let (source, chosen) = self.source_and_target(&prompt, &chosen, row)?;
                (source, chosen, self.source_and_target(&prompt, &rejected, row)?.1, *margin)
            }
            RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, margin } => {
                (prompt_ids.clone(), chosen_ids.clone(), rejected_ids.clone(), *margin)
            }
            _ => return Err(Failure::Row("a row without `chosen` and `rejected`".into())),
        };
        if source.is_empty() {
            return Err(Failure::Row(NO_SOURCE.into()));
        }
        let [chosen_ids, rejected_ids] = [chosen, rejected].map(|target| [&source[..], &target].concat());
        self.check_ids(&chosen_ids)?;
        self.check_ids(&rejected_ids)?;
        Ok(PreferenceExample {
            prompt_len: source.len(),
            chosen_ids,
            rejected_ids,
            encoder_reads_prompt: true,
            margin,
            row: row.index,
        })
    }

    /// Cuts the source and both targets to `max_length` each.
    pub(super) fn cut_pair_encoder_decoder(&self, pair: PreferenceExample) -> TokenizedRow<PreferenceExample> {
        let longest = pair.longest_part();
        let Some(most) = self.options.max_length.filter(|most| longest > *most) else {
            return TokenizedRow::kept(pair);
        };
        if self.options.too_long == TooLong::Skip {
            return TokenizedRow::skipped(longest);
        }
        let source = self.cut_source(&pair.chosen_ids[..pair.prompt_len], most);
        let cut = |ids: &[u32]| {
            let target = &ids[pair.prompt_len..];
            [&source[..], &target[..target.len().min(most)]].concat()
        };
        let (chosen_ids, rejected_ids) = (cut(&pair.chosen_ids), cut(&pair.rejected_ids));
        let is_cut = chosen_ids.len().max(rejected_ids.len()) - source.len() == most;
        let outcome = if is_cut { RowOutcome::Truncated } else { RowOutcome::SourceCut };
        let example = PreferenceExample { prompt_len: source.len(), chosen_ids, rejected_ids, ..pair };
        TokenizedRow { example: Some(example), outcome, mismatch: false, length: longest }
    }

    /// Returns the source that completions are sampled for.
    pub(super) fn prompt_encoder_decoder(&self, content: Content, row: &Row) -> Result<Prompt, Failure> {
        let (text, messages) = match content {
            Content::Text(text) => (text, None),
            Content::Messages(messages) if messages.is_empty() => {
                return Err(Failure::Row("no message before the assistant's".into()));
            }
            Content::Messages(messages) => (self.render(&messages, row, true)?.text, Some(messages)),
        };
        let ids = self.source(&text)?;
        Ok(Prompt { row: row.index, text, ids, encoder_reads_prompt: true, messages, columns: row.columns.clone() })
    }

    fn source_and_target(
        &self,
        prompt: &Content,
        completion: &Content,
        row: &Row,
    ) -> Result<(Vec<u32>, Vec<u32>), Failure> {
        match (prompt, completion) {
            (Content::Text(prompt), Content::Text(completion)) => Ok((self.source(prompt)?, self.target(completion)?)),
            (Content::Messages(prompt), Content::Messages(completion)) => {
                let together = [&prompt[..], completion].concat();
                let [opening, together] = self.render_each([(prompt, true), (&together, false)], row)?;
                let (opening, together) = (opening.text, together.text);
                let Some(answer) = together.strip_prefix(opening.as_str()) else {
                    return Err(Failure::Row(
                        "the conversation renders differently with its answer than without it".into(),
                    ));
                };
                Ok((self.source(&opening)?, self.target(answer)?))
            }
            _ => Err(Failure::Row("prompt and completion must both be text or both be messages".into())),
        }
    }

    /// Tokenizes a text for the encoder.
    fn source(&self, text: &str) -> Result<Vec<u32>, Failure> {
        if text.is_empty() {
            return Err(Failure::Row("the prompt is empty: an encoder has nothing to read".into()));
        }
        self.text(text)
    }

    /// Tokenizes a text for the decoder.
    fn target(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let ends = self.tokenizer.appends_eos() || self.tokenizer.eos_token().is_some();
        if self.options.add_eos && !ends {
            let message = "the tokenizer has no end-of-text token: the model could not learn where a target ends";
            return Err(Failure::All(
                Error::model(self.tokenizer.directory(), message)
                    .with_hint("set one in `tokenizer_config.json` (`eos_token`)"),
            ));
        }
        Ok(self.tokenizer.encode(&self.with_eos(text), true)?)
    }

    /// Splits a row of token ids into source and target. Valid labels are the target; otherwise the mask marks where the target
    /// begins.
    fn tokens_encoder_decoder(
        &self,
        ids: &[u32],
        loss_mask: Option<&[bool]>,
        labels: Option<&super::Labels>,
    ) -> Result<(Vec<u32>, Vec<u32>), Failure> {
        match (labels, loss_mask.and_then(|mask| mask.iter().position(|counts| *counts))) {
            (Some(labels), _) if labels.broken.is_none() => Ok((ids.to_vec(), labels.target.clone())),
            // Labels that are −100 for the source, followed by the target.
            (_, Some(begin)) => Ok((ids[..begin].to_vec(), ids[begin..].to_vec())),
            (Some(labels), None) => Err(Failure::Row(labels.broken.clone().unwrap_or_default())),
            (None, None) => Err(Failure::Row(NO_SOURCE.into())),
        }
    }

    /// Returns the first `most` ids of a source. The end token that the tokenizer adds to every text is kept as the last one.
    pub(super) fn cut_source(&self, source: &[u32], most: usize) -> Vec<u32> {
        match source.last() {
            Some(&last) if source.len() > most && self.tokenizer.appends_eos() && most > 0 => {
                [&source[..most - 1], &[last]].concat()
            }
            _ => source[..source.len().min(most)].to_vec(),
        }
    }
}

/// Splits a conversation into the messages before its last answer, and the rest.
fn last_answer(messages: &[Message]) -> Result<(Content, Content), Failure> {
    match messages.iter().rposition(|message| message.role == "assistant") {
        Some(last) if last > 0 => {
            Ok((Content::Messages(messages[..last].to_vec()), Content::Messages(messages[last..].to_vec())))
        }
        _ => Err(Failure::Row("no answer of the assistant after another message".into())),
    }
}
