//! Logprobs or rewards of given rows, one result per row, in the order of the rows.

use serde::Serialize;

use super::{PASSES, open_files};
use crate::data::{self, LoadOptions, Need, SftExample, TokenizeOptions};
use crate::device::DeviceChoice;
use crate::error::Error;
use crate::host::read;
use crate::model::{CausalLm, Counted, PositionBudget, Ranker, Rows, Sequence};
use crate::objective::sft;
use crate::pretrained::{Pretrained, TextFiles};

/// Settings of scoring.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreOptions {
    /// Directory or hub name of the scoring model.
    pub model: String,
    /// Adapter on the model: a directory in peft's format or a hub name.
    pub adapter: Option<String>,
    /// Rows with `prompt` and `completion`, or `input_ids` with `completion_mask`.
    pub data: String,
    /// Whether to append the end-of-text token to each row. `None` follows the training of a reward model, if its
    /// directory records it; otherwise nothing is appended.
    pub add_eos: Option<bool>,
    /// Columns with other names, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Maximum number of rows.
    pub max_rows: Option<usize>,
    /// Files that replace the tokenizer and the chat template.
    pub text: TextFiles,
    /// Device to compute on.
    pub device: DeviceChoice,
}

/// Score of one row, or of both answers of a pair.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Scored<T> {
    /// A row with one text.
    One(T),
    /// A pair.
    Pair {
        /// Score of the better answer.
        chosen: T,
        /// Score of the worse answer.
        rejected: T,
    },
}

/// Scores of a language model for one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobRow {
    /// Log-probability of each completion token, in nats.
    pub logprobs: Vec<f32>,
    /// Their sum.
    pub sum: f64,
    /// Their mean; `null` for a completion without tokens.
    pub mean: Option<f64>,
}

/// Score of a reward model for one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RewardRow {
    /// The reward, read at the last token.
    pub reward: f32,
}

/// Scores rows with a language model.
///
/// # Errors
/// If the model or a row is invalid, or if `each` fails.
pub fn logprobs<E: From<Error>>(
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize, usize),
    each: &mut dyn FnMut(Scored<LogprobRow>) -> Result<(), E>,
) -> Result<(), E> {
    let files = open_files(&options.model, options.adapter.as_deref(), &options.text)?;
    if files.dir.is_reward_model() {
        let error = Error::model(&files.dir.path, "this is a reward model, which gives no logprobs");
        return Err(error.with_hint("score with it as `--reward-model`").into());
    }
    let (examples, mut pairs) = examples(options, &files, false)?;
    let model = CausalLm::load(&files.dir, &options.device.device())?;
    check_length(&examples, &pairs.rows, model.position_budget())?;
    in_passes(&examples, progress, &mut |examples| {
        let batch = model.batch(&Rows::Alone(examples.iter().map(sft::sequence).collect()));
        let logprobs_m = match batch.targets().is_empty() {
            true => Vec::new(),
            false => read(&model.logprobs(&batch, 1.0).logprobs_m),
        };
        let mut rest = logprobs_m.as_slice();
        for &count in batch.counts_b() {
            let (own, others) = rest.split_at(count);
            rest = others;
            let sum = own.iter().map(|&logprob| f64::from(logprob)).sum::<f64>();
            check_finite("the log-probability of a token", sum)?;
            let row = LogprobRow { logprobs: own.to_vec(), sum, mean: (count > 0).then(|| sum / count as f64) };
            pairs.join(row).map_or(Ok(()), &mut *each)?;
        }
        Ok(())
    })
}

/// Scores rows with a reward model.
///
/// # Errors
/// If the model or a row is invalid, or if `each` fails.
pub fn rewards<E: From<Error>>(
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize, usize),
    each: &mut dyn FnMut(Scored<RewardRow>) -> Result<(), E>,
) -> Result<(), E> {
    let files = open_files(&options.model, options.adapter.as_deref(), &options.text)?;
    let (examples, mut pairs) = examples(options, &files, true)?;
    let model = Ranker::load(&files.dir, &options.device.device())?;
    check_length(&examples, &pairs.rows, model.position_budget())?;
    in_passes(&examples, progress, &mut |examples| {
        let rows = examples.iter().map(|example| Sequence { counted: Counted::Nothing, ..sft::sequence(example) });
        read(&model.rewards(&Rows::Alone(rows.collect()), None)).into_iter().try_for_each(|reward| {
            check_finite("a reward", f64::from(reward))?;
            pairs.join(RewardRow { reward }).map_or(Ok(()), &mut *each)
        })
    })
}

/// Joins the scores of the answers of pairs.
struct Pairs<T> {
    /// Index of the data row of each text, from 0. Both texts of a pair have the same row.
    rows: Vec<usize>,
    /// Number of texts scored so far.
    scored: usize,
    chosen: Option<T>,
}

impl<T> Pairs<T> {
    /// Adds the score of the next text, and returns the scores of its row if they are complete.
    fn join(&mut self, result: T) -> Option<Scored<T>> {
        let row = self.rows[self.scored];
        self.scored += 1;
        match self.chosen.take() {
            Some(chosen) => Some(Scored::Pair { chosen, rejected: result }),
            None if self.rows.get(self.scored) == Some(&row) => {
                self.chosen = Some(result);
                None
            }
            None => Some(Scored::One(result)),
        }
    }
}

/// Returns the texts of the data, two for a pair, and the rows that they belong to.
fn examples<T>(
    options: &ScoreOptions,
    files: &Pretrained,
    for_reward: bool,
) -> Result<(Vec<SftExample>, Pairs<T>), Error> {
    let load =
        LoadOptions { max_rows: options.max_rows, rename: options.rename.clone(), ..LoadOptions::needing(Need::Score) };
    let add_eos = options.add_eos.or(files.dir.training_info().add_eos.filter(|_| for_reward)).unwrap_or(false);
    let read = TokenizeOptions { add_eos, for_reward, ..super::tokenize(files)? };
    let (mut rows, mut of) = (Vec::new(), Vec::new());
    for row in data::load(&options.data, &load)?.rows {
        let answers = row.answers(read.implicit_prompt).map_err(|message| row.place.error(message))?;
        let index = row.index;
        match answers {
            Some(answers) => rows.extend(answers),
            None => rows.push(row),
        }
        of.resize(rows.len(), index);
    }
    rows.iter_mut().enumerate().for_each(|(index, row)| row.index = index);
    let made = data::score_examples(&rows, &files.tokenizer, files.template.as_ref(), &read)?.examples;
    // Callers rely on one result per row, so no row may be left out.
    let missing = rows.iter().enumerate().find(|(i, _)| made.get(*i).is_none_or(|example| example.row != *i));
    match missing {
        None => match made.iter().find(|example| example.ids.is_empty()) {
            None => Ok((made, Pairs { rows: of, scored: 0, chosen: None })),
            Some(empty) => Err(rows[empty.row].place.error("the row has no tokens")),
        },
        Some((_, row)) => Err(row.place.error("the row has nothing to score")),
    }
}

/// Rejects numbers that JSON cannot represent.
pub(super) fn check_finite(what: &str, value: f64) -> Result<(), Error> {
    if value.is_finite() {
        return Ok(());
    }
    Err(Error::input(format!("{what} is {value}: the numbers of the model are too large to compute with"))
        .with_hint("the training that wrote it may have diverged: use an earlier checkpoint"))
}

fn check_length(examples: &[SftExample], rows: &[usize], room: PositionBudget) -> Result<(), Error> {
    let fits = |example: &&SftExample| room.holds(example.source_len, example.ids.len() - example.source_len);
    let Some(long) = examples.iter().find(|example| !fits(example)) else { return Ok(()) };
    let (row, limit) = (rows[long.row] + 1, room.after(0).unwrap_or_default());
    let message = match long.source_len {
        0 => format!("row {row} has {} tokens, but the model has {limit} positions", long.ids.len()),
        source => {
            let target = long.ids.len() - source;
            format!(
                "row {row} has {source} tokens in its prompt and {target} in its completion, but the decoder has room \
                 for {limit} and the encoder for {}",
                room.too_long(0) - 1
            )
        }
    };
    Err(Error::input(message).with_hint("shorten the row; `gradus eval` cuts rows that are too long"))
}

fn in_passes<E: From<Error>>(
    examples: &[SftExample],
    progress: &mut dyn FnMut(usize, usize),
    pass: &mut dyn FnMut(&[SftExample]) -> Result<(), E>,
) -> Result<(), E> {
    let lengths: Vec<usize> = examples.iter().map(|example| example.ids.len()).collect();
    progress(0, examples.len());
    for range in PASSES.split(&lengths) {
        let done = range.end;
        pass(&examples[range])?;
        progress(done, examples.len());
    }
    Ok(())
}
