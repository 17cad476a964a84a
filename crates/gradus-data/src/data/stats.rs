//! Statistics of a data set: sizes, lengths and contents.

use rayon::prelude::*;
use serde::Serialize;

use super::feedback::FeedbackCounts;
use super::implicit::split_shared_prompt;
use super::row::{Content, Request, Row, RowData};
use super::row_tokenizer::RowTokenizer;
use super::tokenize::{RowSequence, row_sequences};
use super::{Dataset, LabelTotals, TokenizeOptions};
use crate::text::{ChatTemplate, Tokenizer};

/// Sizes and lengths of a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// Number of rows.
    pub rows: usize,
    /// Bytes on disk, over all files.
    pub bytes: u64,
    /// Parts of a row (`prompt`, `chosen`, …) and their lengths in characters.
    pub characters: Vec<Field>,
    /// Lengths in tokens of whole rows, as trained on. Pairs count their longer side.
    pub tokens: Option<TokenStats>,
    /// Columns outside of the row's format, with the number of rows that have them.
    pub columns: Vec<(String, usize)>,
    /// For annotated answers: number of errors, missing facts and preferences of each kind.
    pub feedback: Option<FeedbackCounts>,
    /// For words with labels: number of occurrences of each label.
    pub labels: Option<LabelTotals>,
}

/// Lengths in tokens for a sample of the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenStats {
    /// Number of tokenized rows, evenly spaced.
    pub sampled: usize,
    /// Number of them that could not be tokenized.
    pub failed: usize,
    /// Why the first of those failed.
    pub failure: Option<String>,
    /// Number of rows that are cut at `max_length`, if lengths are those after the cut.
    pub cut: usize,
    /// Number of rows without a token that carries loss after the cut. Their lengths do not count.
    pub dropped: usize,
    /// Quantiles of the lengths. Pairs count the longer text; with an encoder, the longer of source and target counts.
    pub quantiles: Quantiles,
    /// Histogram of the lengths.
    pub histogram: Histogram,
}

/// Lengths of one part of the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Field {
    /// Name of the part.
    pub name: &'static str,
    /// Quantiles of its lengths.
    pub quantiles: Quantiles,
}

/// Mean, quantiles (nearest rank) and extremes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// Mean.
    pub mean: f64,
    /// Smallest value.
    pub min: usize,
    /// Median.
    pub p50: usize,
    /// 90th percentile.
    pub p90: usize,
    /// 99th percentile.
    pub p99: usize,
    /// Largest value.
    pub max: usize,
}

/// Counts of lengths in bins of equal width.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Lower end of the first bin, a multiple of `width`.
    pub start: usize,
    /// Width of a bin.
    pub width: usize,
    /// Bin `i` counts lengths from `start + i · width` up to, but not including, `start + (i + 1) · width`. The last bin also counts
    /// all longer ones.
    pub counts: Vec<usize>,
}

/// Measures a data set, with token lengths for at most `sample` rows. If `as_trained`, these lengths are those of sequences that are cut
/// at `options.max_length`.
pub fn measure(
    dataset: &Dataset,
    tokenizer: Option<(&Tokenizer, Option<&ChatTemplate>)>,
    options: &TokenizeOptions,
    sample: usize,
    as_trained: bool,
) -> Stats {
    let rows = &dataset.rows;
    let bytes = dataset.source.files.iter().filter_map(|f| std::fs::metadata(f).ok()).map(|m| m.len()).sum();
    let tokens =
        tokenizer.and_then(|(tokenizer, template)| token_stats(rows, tokenizer, template, options, sample, as_trained));
    let (characters, columns) = (characters(rows, options), columns(rows));
    let (feedback, labels) = (FeedbackCounts::of(rows), LabelTotals::of(rows));
    Stats { rows: rows.len(), bytes, characters, tokens, columns, feedback, labels }
}

/// Returns the parts of a row by name, as text. A prompt that both answers share is split off.
pub fn parts(row: &Row, options: &TokenizeOptions) -> Vec<(&'static str, String)> {
    match &row.data {
        RowData::Text(text) => vec![("text", text.clone())],
        RowData::Messages(messages) => vec![("messages", Content::Messages(messages.clone()).plain())],
        RowData::PromptCompletion { prompt, completion } | RowData::Unpaired { prompt, completion, .. } => {
            vec![("prompt", prompt.plain()), ("completion", completion.plain())]
        }
        RowData::Instruction { request: Request::Task { instruction, input }, answer, .. } => {
            vec![("instruction", instruction.clone()), ("input", input.clone()), ("output", answer.clone())]
        }
        RowData::Instruction { request: Request::Question(question), answer, .. } => {
            vec![("question", question.clone()), ("answer", answer.clone())]
        }
        RowData::Preference { prompt: Some(prompt), chosen, rejected, .. } => {
            vec![("prompt", prompt.plain()), ("chosen", chosen.plain()), ("rejected", rejected.plain())]
        }
        RowData::Preference { prompt: None, chosen, rejected, .. } => {
            match split_shared_prompt(chosen, rejected, options.implicit_prompt) {
                Ok((prompt, chosen, rejected)) => {
                    vec![("prompt", prompt.plain()), ("chosen", chosen.plain()), ("rejected", rejected.plain())]
                }
                Err(_) => vec![("chosen", chosen.plain()), ("rejected", rejected.plain())],
            }
        }
        RowData::Prompt(prompt) => vec![("prompt", prompt.plain())],
        RowData::Feedback(feedback) => {
            let [first, second, third, fourth] = feedback.answers.clone();
            vec![
                ("question", feedback.question.clone()),
                ("answer 1", first),
                ("answer 2", second),
                ("answer 3", third),
                ("answer 4", fourth),
                ("corrected", feedback.corrected.clone()),
            ]
        }
        RowData::Words(words) => vec![("words", words.plain())],
        RowData::Tokens { .. } | RowData::TokenPreference { .. } | RowData::Columns => Vec::new(),
    }
}

fn characters(rows: &[Row], options: &TokenizeOptions) -> Vec<Field> {
    let lengths: Vec<Vec<(&'static str, usize)>> = rows
        .par_iter()
        .map(|row| parts(row, options).into_iter().map(|(name, text)| (name, text.chars().count())).collect())
        .collect();
    let mut fields: Vec<(&'static str, Vec<usize>)> = Vec::new();
    for (name, length) in lengths.into_iter().flatten() {
        match fields.iter_mut().find(|(n, _)| *n == name) {
            Some((_, all)) => all.push(length),
            None => fields.push((name, vec![length])),
        }
    }
    fields
        .into_iter()
        .filter_map(|(name, lengths)| Quantiles::of(lengths).map(|quantiles| Field { name, quantiles }))
        .collect()
}

fn token_stats(
    rows: &[Row],
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
    sample: usize,
    as_trained: bool,
) -> Option<TokenStats> {
    let sampled = sample.min(rows.len());
    let row_tokenizer = RowTokenizer { tokenizer, template, options };
    // Length of each row and whether it is cut. `None` if nothing is left to learn.
    let made: Vec<Result<Option<(usize, bool)>, String>> = (0..sampled)
        .into_par_iter()
        .map(|i| {
            let row = &rows[i * rows.len() / sampled];
            let mut sequences = row_sequences(row, tokenizer, template, options)?;
            let mut is_cut = false;
            if as_trained {
                for sequence in &mut sequences {
                    is_cut |= sequence.cut(&row_tokenizer) > 0;
                }
                let teaches = |sequence: &RowSequence| !sequence.learns || sequence.loss_mask.contains(&true);
                if !sequences.iter().any(teaches) {
                    return Ok(None);
                }
            }
            Ok(Some((sequences.iter().map(RowSequence::bounded).max().unwrap_or(0), is_cut)))
        })
        .collect();
    let failure = made.iter().find_map(|m| m.as_ref().err().cloned());
    let failed = made.iter().filter(|made| made.is_err()).count();
    let kept: Vec<(usize, bool)> = made.into_iter().flatten().flatten().collect();
    let (cut, dropped) = (kept.iter().filter(|(_, is_cut)| *is_cut).count(), sampled - failed - kept.len());
    let lengths: Vec<usize> = kept.into_iter().map(|(length, _)| length).collect();
    let histogram = Histogram::of(&lengths);
    let quantiles = Quantiles::of(lengths).unwrap_or(Quantiles { mean: 0.0, min: 0, p50: 0, p90: 0, p99: 0, max: 0 });
    (sampled > 0).then_some(TokenStats { sampled, failed, failure, cut, dropped, quantiles, histogram })
}

fn columns(rows: &[Row]) -> Vec<(String, usize)> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for name in rows.iter().flat_map(|row| row.columns.keys()) {
        match counts.iter_mut().find(|(n, _)| n == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name.clone(), 1)),
        }
    }
    counts
}

impl Quantiles {
    /// Computes the quantiles of some lengths. Returns `None` for an empty list.
    pub fn of(mut lengths: Vec<usize>) -> Option<Self> {
        lengths.sort_unstable();
        let (min, max) = (*lengths.first()?, *lengths.last()?);
        let rank = |share: f64| lengths[((share * lengths.len() as f64).ceil() as usize).clamp(1, lengths.len()) - 1];
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        Some(Self { mean, min, p50: rank(0.5), p90: rank(0.9), p99: rank(0.99), max })
    }
}

/// Maximum number of bins in a histogram.
const BINS: usize = 16;

impl Histogram {
    /// Counts lengths in bins of a round width. The first bin contains the shortest length. The few longest share the last bin.
    pub fn of(lengths: &[usize]) -> Self {
        let least = lengths.iter().copied().min().unwrap_or(0);
        let most = Quantiles::of(lengths.to_vec()).map_or(0, |q| q.p99.max(q.max.min(2 * q.p99)));
        let bins = |width: usize| most / width - least / width + 1;
        let width = [1, 2, 5].iter().cycle().zip(0u32..).map(|(digit, i)| digit * 10usize.pow(i / 3));
        let width = width.take(54).find(|width| bins(*width) <= BINS).unwrap_or(usize::MAX);
        let (first, mut counts) = (least / width, vec![0; bins(width)]);
        let last = counts.len() - 1;
        for length in lengths {
            counts[(length / width - first).min(last)] += 1;
        }
        Self { start: first * width, width, counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let quantiles = Quantiles::of((1..=100).collect()).unwrap();
        assert_eq!((quantiles.p50, quantiles.p90, quantiles.p99, quantiles.max), (50, 90, 99, 100));
        assert_eq!(quantiles.mean, 50.5);
        assert_eq!(Quantiles::of(vec![7]).unwrap().p99, 7);
        assert!(Quantiles::of(Vec::new()).is_none());
    }

    #[test]
    fn histograms_have_round_bins_and_lose_nothing() {
        let histogram = Histogram::of(&[0, 9, 10, 31, 159]);
        assert_eq!((histogram.width, histogram.counts.len()), (10, 16));
        assert_eq!(histogram.counts.iter().sum::<usize>(), 5);
        assert_eq!(&histogram.counts[..4], &[2, 1, 0, 1]);
        assert_eq!(Histogram::of(&[]).counts, [0]);
        // No empty bins before the shortest length.
        let expected = Histogram { start: 11, width: 1, counts: vec![2, 0, 1] };
        assert_eq!(Histogram::of(&[11, 13, 11]), expected);
        let expected = Histogram { start: 90, width: 10, counts: vec![1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1] };
        assert_eq!(Histogram::of(&[99, 120, 205]), expected);
    }
}
