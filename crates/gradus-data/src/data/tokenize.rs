//! Turns rows into training examples, token for token like TRL 1.16.
//!
//! A string row ends with the text of the eos token. Prompt and completion are joined as text and tokenized once; the completion
//! begins where the result differs from the prompt tokenized alone. Conversations are rendered by the chat template and tokenized
//! without additions.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::example::{
    Counts, Examples, PreferenceExample, Prompt, SftExample, TokenizeOptions, TooLong, UnpairedExample,
};
use super::options::BadRows;
use super::prepare;
use super::report::RowErrors;
use super::row::{Row, RowData};
use super::row_tokenizer::{Failure, RowOutcome, RowTokenizer, Sequence, TokenizedRow};
use super::unpaired::unpaired;
use crate::text::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

/// Makes sequences for supervised fine-tuning. Preference rows contribute their chosen answer.
///
/// # Errors
/// If rows cannot be tokenized (the first ten and a count), or none remains.
pub fn sft_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Result<Examples<SftExample>> {
    let row_tokenizer = RowTokenizer { tokenizer, template, options };
    run(rows, options, |row| {
        let sequence = row_tokenizer.sft(row)?;
        let mismatch = sequence.mismatch;
        Ok(TokenizedRow { mismatch, ..row_tokenizer.cut_sft(sequence, row.index) })
    })
}

/// Makes sequences to be scored, from rows with prompt and completion or tokens with a mask. A row is tokenized as one text with
/// the tokenizer's special tokens and is never cut. `options.add_eos` appends the text of the eos token. `options.for_reward`
/// removes thoughts.
///
/// # Errors
/// As for [`sft_examples`].
pub fn score_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Result<Examples<SftExample>> {
    let options = TokenizeOptions { max_length: None, ..options.clone() };
    sft_examples(rows, tokenizer, template, &options)
}

/// Makes pairs for DPO and related methods.
///
/// # Errors
/// As for [`sft_examples`].
pub fn preference_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Result<Examples<PreferenceExample>> {
    let row_tokenizer = RowTokenizer { tokenizer, template, options };
    run(rows, options, |row| {
        if options.encoder_reads_prompt {
            return Ok(row_tokenizer.cut_pair_encoder_decoder(row_tokenizer.pair_encoder_decoder(row)?));
        }
        let (pair, mismatch) = row_tokenizer.pair(row)?;
        Ok(TokenizedRow { mismatch, ..row_tokenizer.cut_pair(pair) })
    })
}

/// Makes completions marked as desirable or undesirable, for KTO. A pair contributes two ([`unpaired`]).
///
/// # Errors
/// As for [`sft_examples`].
pub fn unpaired_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Result<Examples<UnpairedExample>> {
    let options = &TokenizeOptions { completion_only_loss: None, assistant_only_loss: false, ..options.clone() };
    let row_tokenizer = RowTokenizer { tokenizer, template, options };
    run(&unpaired(rows, options.implicit_prompt)?, options, |row| {
        let RowData::Unpaired { is_desirable, .. } = row.data else {
            return Err(Failure::Row("a completion without a `label`".into()));
        };
        let sequence = row_tokenizer.sft(row)?;
        let mismatch = sequence.mismatch;
        // An encoder's source and the target after it are cut apart, so the target's room does not depend on the source.
        let uncut = (!options.encoder_reads_prompt).then(|| sequence.ids.clone());
        let TokenizedRow { example, outcome, length, .. } = row_tokenizer.cut_sft(sequence, row.index);
        let example = example.map(|SftExample { ids, loss_mask, row, .. }| {
            let prompt_len = loss_mask.iter().position(|counts| *counts).unwrap_or(ids.len());
            let uncut = uncut.unwrap_or(ids);
            let (prompt_ids, completion_ids) = uncut.split_at(prompt_len);
            let most = options.max_length.unwrap_or(usize::MAX).min(completion_ids.len());
            UnpairedExample {
                prompt_ids: prompt_ids.to_vec(),
                completion_ids: completion_ids[..most].to_vec(),
                encoder_reads_prompt: options.encoder_reads_prompt,
                is_desirable,
                max_length: options.max_length,
                row,
            }
        });
        Ok(TokenizedRow { example, outcome, mismatch, length })
    })
}

/// Makes pairs of whole sequences for reward models. A pair with a side that is too long is left out or, with `options.too_long`,
/// cut. With an encoder for the prompt it is always left out. Pairs that are equal after the cut teach nothing and are left out,
/// too.
///
/// # Errors
/// As for [`sft_examples`].
pub fn reward_examples(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Result<Examples<PreferenceExample>> {
    let options = &TokenizeOptions { for_reward: true, ..options.clone() };
    let row_tokenizer = RowTokenizer { tokenizer, template, options };
    run(rows, options, |row| {
        let pair = if options.encoder_reads_prompt {
            row_tokenizer.pair_encoder_decoder(row)?
        } else {
            row_tokenizer.whole_pair(row)?
        };
        let longest = if options.encoder_reads_prompt {
            pair.longest_part()
        } else {
            pair.chosen_ids.len().max(pair.rejected_ids.len())
        };
        Ok(match options.max_length.filter(|most| longest > *most) {
            None => TokenizedRow::kept(pair),
            Some(_) if options.encoder_reads_prompt || options.too_long == TooLong::Skip => {
                TokenizedRow::skipped(longest)
            }
            Some(most) => row_tokenizer.cut_whole_pair(pair, most),
        })
    })
}

/// Makes prompts for sampling. They are cut by `options.prompt_cut` only. Prompts that leave no room within `max_length` are left
/// out.
///
/// # Errors
/// As for [`sft_examples`].
pub fn prompts(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Result<Examples<Prompt>> {
    let row_tokenizer = RowTokenizer { tokenizer, template, options };
    run(rows, options, |row| {
        let (prompt, is_cut) = row_tokenizer.cut_prompt(row_tokenizer.prompt(row)?);
        let length = prompt.ids.len();
        let fits = options.max_length.is_none_or(|most| length < most);
        let outcome = if is_cut { RowOutcome::PromptCut } else { RowOutcome::Kept };
        Ok(if fits { TokenizedRow { outcome, ..TokenizedRow::kept(prompt) } } else { TokenizedRow::skipped(length) })
    })
}

/// A sequence that a row is trained on, before any cut.
pub(super) struct RowSequence {
    /// Name of the side, for pairs.
    pub name: Option<&'static str>,
    pub ids: Vec<u32>,
    pub loss_mask: Vec<bool>,
    /// Whether the prompt tokenizes differently alone.
    pub mismatch: bool,
    /// Whether the row is trained on. Prompts are only sampled from.
    pub learns: bool,
    /// Number of leading ids that an encoder reads.
    pub source_len: usize,
}

impl RowSequence {
    /// Returns the length that `max_length` limits: all ids or, with an encoder, the longer of source and target.
    pub fn bounded(&self) -> usize {
        self.source_len.max(self.ids.len() - self.source_len)
    }

    /// Cuts the sequence at `max_length` like training data. Prompts and words of classifiers stay whole. Returns the number of ids
    /// that were removed.
    pub fn cut(&mut self, row_tokenizer: &RowTokenizer<'_>) -> usize {
        let before = self.ids.len();
        match row_tokenizer.options.max_length {
            Some(most) if self.learns && row_tokenizer.options.encoder_reads_prompt => {
                let source = row_tokenizer.cut_source(&self.ids[..self.source_len], most);
                let target = &self.ids[self.source_len..];
                let ids = [&source[..], &target[..target.len().min(most)]].concat();
                self.loss_mask = (0..ids.len()).map(|i| i >= source.len()).collect();
                (self.source_len, self.ids) = (source.len(), ids);
            }
            Some(most) if self.learns => {
                self.ids.truncate(most);
                self.loss_mask.truncate(most);
            }
            _ => {}
        }
        before - self.ids.len()
    }
}

/// Returns the uncut sequences of a row: two for a pair, one for anything else.
pub(super) fn row_sequences(
    row: &Row,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Result<Vec<RowSequence>, String> {
    let row = &*prepare::prepare_row(row, options)?;
    let row_tokenizer = RowTokenizer { tokenizer, template, options };
    let made = match &row.data {
        RowData::Preference { .. } | RowData::TokenPreference { .. } => match options.encoder_reads_prompt {
            true => row_tokenizer.pair_encoder_decoder(row).map(|pair| (pair, false)),
            false => row_tokenizer.pair(row),
        }
        .map(|(pair, mismatch)| {
            let side = |name, ids: Vec<u32>| RowSequence {
                name: Some(name),
                loss_mask: (0..ids.len()).map(|i| i >= pair.prompt_len).collect(),
                source_len: if options.encoder_reads_prompt { pair.prompt_len } else { 0 },
                ids,
                mismatch,
                learns: true,
            };
            vec![side("chosen", pair.chosen_ids), side("rejected", pair.rejected_ids)]
        }),
        RowData::Prompt(_) => row_tokenizer.prompt(row).map(|prompt| {
            let loss_mask = vec![false; prompt.ids.len()];
            let source_len = if options.encoder_reads_prompt { prompt.ids.len() } else { 0 };
            vec![RowSequence { name: None, ids: prompt.ids, loss_mask, mismatch: false, learns: false, source_len }]
        }),
        RowData::Words(words) => words.ids(tokenizer).map_err(Failure::All).map(|(ids, loss_mask)| {
            vec![RowSequence { name: None, ids, loss_mask, mismatch: false, learns: false, source_len: 0 }]
        }),
        _ => row_tokenizer.sft(row).map(|Sequence { ids, loss_mask, mismatch, source_len }| {
            vec![RowSequence { name: None, ids, loss_mask, mismatch, learns: true, source_len }]
        }),
    };
    made.map_err(|failure| match failure {
        Failure::Row(message) => message,
        Failure::All(Error::Data { message, .. } | Error::Model { message, .. }) => message,
        Failure::All(error) => error.to_string(),
    })
}

/// A sequence that a row is trained on, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainedSequence {
    /// Name of the side, for pairs: `chosen` or `rejected`.
    pub name: Option<&'static str>,
    /// Input of the model with special tokens, in parts: the text, and whether its tokens carry loss.
    pub parts: Vec<(String, bool)>,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of tokens that carry loss.
    pub learned: usize,
    /// Number of further tokens, which `max_length` cuts off.
    pub cut: usize,
}

/// Returns the sequences that a model is trained on for `row`: two for a pair, one for anything else. Sequences to learn are cut at
/// `options.max_length`.
///
/// # Errors
/// Why the row cannot be tokenized.
pub fn trained_sequences(
    row: &Row,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Result<Vec<TrainedSequence>, String> {
    let sequences = row_sequences(row, tokenizer, template, options)?;
    let row_tokenizer = RowTokenizer { tokenizer, template, options };
    let shown = sequences.into_iter().map(|mut sequence| {
        let cut = sequence.cut(&row_tokenizer);
        let RowSequence { name, ids, loss_mask, .. } = sequence;
        let decode = |ids: &[u32]| tokenizer.decode(ids, false).map_err(|error| error.to_string());
        let (mut parts, mut start, mut before) = (Vec::new(), 0, String::new());
        for end in 1..=ids.len() {
            if end == ids.len() || loss_mask[end] != loss_mask[start] {
                // Some decoders drop a leading space, so the text of a part is what it adds to the decoded ids before it.
                let whole = decode(&ids[..end])?;
                let text = match whole.strip_prefix(before.as_str()) {
                    Some(added) => added.to_owned(),
                    None => decode(&ids[start..end])?,
                };
                parts.push((text, loss_mask[start]));
                (start, before) = (end, whole);
            }
        }
        let learned = loss_mask.iter().filter(|counts| **counts).count();
        Ok(TrainedSequence { name, parts, tokens: ids.len(), learned, cut })
    });
    shown.collect()
}

/// The longest row that is kept.
pub(super) struct LengthLimit {
    /// Number of tokens.
    most: usize,
    /// The keys that determine it.
    keys: &'static str,
    /// What to do if every row is longer.
    remedy: &'static str,
}

/// Lengths of a kind of example.
pub(super) trait ExampleSizes {
    /// Returns the number of tokens: in total, and with loss.
    fn sizes(&self) -> (usize, usize);

    /// Returns the limit that `options` set; `None` for no limit.
    fn limit(options: &TokenizeOptions) -> Option<LengthLimit> {
        let remedy = "shorten the rows, or raise `max_length` if the model has more positions";
        options.max_length.map(|most| LengthLimit { most, keys: "`max_length`", remedy })
    }
}

impl ExampleSizes for SftExample {
    fn sizes(&self) -> (usize, usize) {
        (self.ids.len(), self.loss_mask.iter().skip(1).filter(|m| **m).count())
    }
}

impl ExampleSizes for PreferenceExample {
    fn sizes(&self) -> (usize, usize) {
        let all = self.chosen_ids.len() + self.rejected_ids.len();
        (all, all - 2 * self.prompt_len)
    }
}

impl ExampleSizes for UnpairedExample {
    fn sizes(&self) -> (usize, usize) {
        (self.tokens(), self.completion().len())
    }
}

impl ExampleSizes for Prompt {
    fn sizes(&self) -> (usize, usize) {
        (self.ids.len(), 0)
    }

    /// A prompt must leave room for its completion, except where an encoder reads it.
    fn limit(options: &TokenizeOptions) -> Option<LengthLimit> {
        let most = options.max_length?.saturating_sub(1);
        Some(match options.encoder_reads_prompt && most > 0 {
            true => LengthLimit {
                most,
                keys: "`max_length`, or the model's positions",
                remedy: "shorten the prompts, or raise `max_length` if the model has more positions",
            },
            false => LengthLimit {
                most,
                keys: "`max_length`, or the model's positions, less `max_new_tokens`",
                remedy: "lower `max_new_tokens`, shorten the prompts, or raise `max_length` if the model has more positions",
            },
        })
    }
}

/// Makes the examples of all rows in parallel, in order, and counts what happened.
pub(super) fn run<E: Send + ExampleSizes>(
    rows: &[Row],
    options: &TokenizeOptions,
    make: impl Fn(&Row) -> Result<TokenizedRow<E>, Failure> + Sync,
) -> Result<Examples<E>> {
    let failures = AtomicUsize::new(0);
    // First row whose failure ends the run. Later rows are not tried, because each may take as long as the limits allow.
    let last = AtomicUsize::new(usize::MAX);
    let made: Vec<Option<Result<TokenizedRow<E>, Failure>>> = rows
        .par_iter()
        .enumerate()
        .map(|(at, row)| {
            if at > last.load(Ordering::Relaxed) {
                return None;
            }
            let made = prepare::prepare_row(row, options).map_err(Failure::Row).and_then(|row| make(&row));
            if made.is_err() {
                failures.fetch_add(1, Ordering::Relaxed);
            }
            if matches!(made, Err(Failure::All(_))) {
                last.fetch_min(at, Ordering::Relaxed);
            }
            Some(made)
        })
        .collect();
    let mut errors = RowErrors::new(options.bad_rows);
    let limit = E::limit(options);
    let counted = limit.as_ref().map(|limit| (limit.most, limit.keys));
    let mut counts = Counts { rows: rows.len(), limit: counted, ..Counts::default() };
    let mut examples = Vec::with_capacity(rows.len() - failures.into_inner());
    let mut shortest = usize::MAX;
    for (row, made) in rows.iter().zip(made).map_while(|(row, made)| Some((row, made?))) {
        let made = match made {
            Ok(made) => made,
            Err(Failure::Row(message)) => {
                errors.push(row.location.error(message));
                continue;
            }
            Err(Failure::All(error)) => return Err(error),
        };
        counts.prompt_mismatches += usize::from(made.mismatch);
        match made.outcome {
            RowOutcome::Kept => {}
            RowOutcome::Truncated => counts.truncated += 1,
            RowOutcome::Cut => counts.cut += 1,
            RowOutcome::SourceCut => counts.sources_cut += 1,
            RowOutcome::TargetCut => counts.targets_cut += 1,
            RowOutcome::PromptCut => counts.prompts_cut += 1,
            RowOutcome::WithoutEnd => counts.without_end += 1,
            RowOutcome::WithoutLoss => counts.without_loss += 1,
            RowOutcome::WithoutLabels => counts.without_labels += 1,
            RowOutcome::Skipped => counts.skipped += 1,
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
    if (options.bad_rows != BadRows::Skip || examples.is_empty())
        && let Some(error) = std::mem::take(&mut errors).into_error(rows.len())
    {
        return Err(error);
    }
    counts.kept = examples.len();
    if examples.is_empty() {
        let Some(first) = rows.first() else {
            return Err(Error::input("no rows: the data set is empty"));
        };
        let is_limited = counts.skipped + counts.without_loss > 0;
        let Some(LengthLimit { most, keys, remedy }) = limit.filter(|_| is_limited) else {
            let hint = "check the column of the labels, or the loss mask";
            return Err(Error::data(&*first.location.file, None, "no row has a token with loss").with_hint(hint));
        };
        let all = match rows.len() {
            1 => "the only row is".to_owned(),
            many => format!("all {many} rows are"),
        };
        let message = if shortest == usize::MAX || shortest <= most {
            format!("no row keeps a token with loss within {most} tokens ({keys})")
        } else {
            format!("{all} longer than {most} tokens ({keys}); the shortest has {shortest}")
        };
        return Err(Error::data(&*first.location.file, None, message).with_hint(remedy));
    }
    Ok(Examples { examples, counts, skipped: errors.into_skipped() })
}
