//! Logprobs or rewards of given rows, one result per row, in the order of the rows.

use serde::Serialize;

use super::{PASSES, check_room, open_files};
use crate::data::{self, BadRows, Dataset, LoadOptions, Need, RowLocation, SftExample, TokenizeOptions, left_out};
use crate::device::DeviceChoice;
use crate::error::Error;
use crate::host::read;
use crate::model::{CausalLm, Counted, ModelShape, PositionBudget, Ranker, Rows, Sequence};
use crate::objective::sft;
use crate::pretrained::{Pretrained, TextFiles};

/// Settings of scoring.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreOptions {
    /// Directory or hub name of the scoring model.
    pub model: String,
    /// Adapter on the model: a directory in peft's format or a hub name.
    pub adapter: Option<String>,
    /// Rows that `sft` reads, or pairs.
    pub data: String,
    /// Whether to append the end-of-text token to each row. `None` follows the training of a reward model, if its
    /// directory records it; otherwise nothing is appended.
    pub add_eos: Option<bool>,
    /// Columns with other names, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Maximum number of rows.
    pub max_rows: Option<usize>,
    /// Handling of invalid rows.
    pub bad_rows: BadRows,
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
    /// Sum of `logprobs`, in nats.
    pub sum: f64,
    /// Mean of `logprobs`, in nats; `null` for a completion without tokens.
    pub mean: Option<f64>,
}

/// Score of a reward model for one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RewardRow {
    /// The reward, read at the last token.
    pub reward: f32,
}

/// Receives the score of a row, with the location of the row.
type Each<'a, T, E> = &'a mut dyn FnMut(&RowLocation, Scored<T>) -> Result<(), E>;

/// Scores rows with a language model, and passes each score to `each` with the location of its row. Returns remarks on rows that are left
/// out.
///
/// # Errors
/// If the model or a row is invalid, or if `each` fails.
pub fn logprobs<E: From<Error>>(
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize, usize),
    each: Each<'_, LogprobRow, E>,
) -> Result<Vec<String>, E> {
    let files = open_files(&options.model, options.adapter.as_deref(), &options.text)?;
    if files.dir.is_reward_model() {
        let error = Error::model(&files.dir.path, "this is a reward model, which gives no logprobs");
        return Err(error.with_hint("score with it as `--reward-model`").into());
    }
    let Examples { texts, mut pairs, remarks } = examples(options, &files, false)?;
    let model = CausalLm::load(&files.dir, &options.device.device())?;
    check_length(&texts, &pairs.locations, ModelShape::of(&files.dir)?.text_budget())?;
    in_passes::<E>(&texts, progress, &mut |examples| {
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
            if let Some((location, scored)) = pairs.join(row) {
                each(location, scored)?;
            }
        }
        Ok(())
    })?;
    Ok(remarks)
}

/// Scores rows with a reward model, and passes each score to `each` with the location of its row. Returns remarks on rows that are left
/// out.
///
/// # Errors
/// If the model or a row is invalid, or if `each` fails.
pub fn rewards<E: From<Error>>(
    options: &ScoreOptions,
    progress: &mut dyn FnMut(usize, usize),
    each: Each<'_, RewardRow, E>,
) -> Result<Vec<String>, E> {
    let files = open_files(&options.model, options.adapter.as_deref(), &options.text)?;
    let Examples { texts, mut pairs, remarks } = examples(options, &files, true)?;
    let model = Ranker::load(&files.dir, &options.device.device())?;
    check_length(&texts, &pairs.locations, ModelShape::of(&files.dir)?.text_budget().read_whole())?;
    in_passes::<E>(&texts, progress, &mut |examples| {
        let rows = examples.iter().map(|example| Sequence { counted: Counted::Nothing, ..sft::sequence(example) });
        read(&model.rewards(&Rows::Alone(rows.collect()), None)).into_iter().try_for_each(|reward| {
            check_finite("a reward", f64::from(reward))?;
            pairs.join(RewardRow { reward }).map_or(Ok(()), |(location, scored)| each(location, scored))
        })
    })?;
    Ok(remarks)
}

/// Texts of the rows that are scored.
struct Examples<T> {
    /// The texts, two for a pair.
    texts: Vec<SftExample>,
    /// Their rows.
    pairs: Pairs<T>,
    /// Remarks on rows that are left out.
    remarks: Vec<String>,
}

/// Joins the scores of the answers of pairs.
struct Pairs<T> {
    /// Index of the data row of each text, from 0. Both texts of a pair have the same row.
    rows: Vec<usize>,
    /// Location of each text.
    locations: Vec<RowLocation>,
    /// Number of texts scored so far.
    scored: usize,
    chosen: Option<T>,
}

impl<T> Pairs<T> {
    /// Adds the score of the next text, and returns the scores of its row if they are complete.
    fn join(&mut self, result: T) -> Option<(&RowLocation, Scored<T>)> {
        let row = self.rows[self.scored];
        self.scored += 1;
        let scored = match self.chosen.take() {
            Some(chosen) => Scored::Pair { chosen, rejected: result },
            None if self.rows.get(self.scored) == Some(&row) => {
                self.chosen = Some(result);
                return None;
            }
            None => Scored::One(result),
        };
        Some((&self.locations[self.scored - 1], scored))
    }
}

/// Returns the texts of the data, two for a pair, and the rows that they belong to. Unless bad rows are skipped, every row has a result.
fn examples<T>(options: &ScoreOptions, files: &Pretrained, for_reward: bool) -> Result<Examples<T>, Error> {
    let (max_rows, bad_rows, rename) = (options.max_rows, options.bad_rows, options.rename.clone());
    let load = LoadOptions { max_rows, bad_rows, rename, ..LoadOptions::needing(Need::Score) };
    let add_eos = options.add_eos.or(files.dir.training_info().add_eos.filter(|_| for_reward)).unwrap_or(false);
    let read = TokenizeOptions { add_eos, for_reward, bad_rows, ..super::tokenize(files)? };
    let Dataset { rows: found, mut bad, mut remarks, .. } = data::load(&options.data, &load)?;
    let count = found.len() + bad.count();
    let (mut rows, mut of) = (Vec::new(), Vec::new());
    for row in found {
        let index = row.index;
        match row.answers(read.implicit_prompt) {
            Ok(Some(answers)) => rows.extend(answers),
            Ok(None) => rows.push(row),
            Err(message) => bad.push(row.location.error(message)),
        }
        of.resize(rows.len(), index);
    }
    rows.iter_mut().enumerate().for_each(|(index, row)| row.index = index);
    let (mut texts, mut skipped) = (Vec::new(), Vec::new());
    if !rows.is_empty() {
        let made = data::score_examples(&rows, &files.tokenizer, files.template.as_ref(), &read)?;
        (texts, skipped) = (made.examples, made.skipped);
    }
    // A bad answer makes its whole pair bad.
    let mut is_whole = vec![true; of.last().map_or(0, |last| last + 1)];
    let mut made = texts.iter().peekable();
    for (i, row) in rows.iter().enumerate() {
        let message = match made.next_if(|text| text.row == i) {
            Some(text) if text.ids.is_empty() => "the row has no tokens",
            Some(_) => continue,
            None => "the row has nothing to score",
        };
        is_whole[of[i]] = false;
        let is_known = skipped
            .iter()
            .any(|skipped| *skipped.file == *row.location.file && skipped.line == Some(row.location.line));
        if !is_known {
            bad.push(row.location.error(message));
        }
    }
    skipped.into_iter().for_each(|row| bad.push(Error::data(row.file, row.line, row.problem)));
    texts.retain(|text| is_whole[of[text.row]]);
    let bad = bad.settle(count, texts.len())?;
    let (rows, locations) = texts.iter().map(|text| (of[text.row], rows[text.row].location.clone())).unzip();
    remarks.extend(left_out(&bad.into_skipped()));
    Ok(Examples { texts, pairs: Pairs { rows, locations, scored: 0, chosen: None }, remarks })
}

/// Rejects numbers that JSON cannot represent.
pub(super) fn check_finite(what: &str, value: f64) -> Result<(), Error> {
    if value.is_finite() {
        return Ok(());
    }
    Err(Error::input(format!("{what} is {value}: the numbers of the model are too large to compute with"))
        .with_hint("the training that wrote it may have diverged: use an earlier checkpoint"))
}

fn check_length(texts: &[SftExample], locations: &[RowLocation], room: PositionBudget) -> Result<(), Error> {
    let way_out = |limit: usize| {
        format!("shorten the row: scores of cut texts would mislead; `gradus eval --max-length {limit}` cuts long rows")
    };
    texts.iter().zip(locations).try_for_each(|(text, location)| {
        check_room(location, (text.source_len, text.ids.len() - text.source_len), room, &way_out)
    })
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
