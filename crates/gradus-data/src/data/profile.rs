//! Statistics of the answers in a data set: lengths, turns, first words, and features besides quality that pairs reward.

use std::collections::{BTreeMap, HashMap};

use rayon::prelude::*;
use serde::Serialize;

use super::filter::{answers, has_equal_answers, is_tie};
use super::row::{Content, Row, RowData};
use super::stats::parts;
use super::transcript::turns;
use super::{Quantiles, TokenizeOptions};
use crate::text::Tokenizer;

/// Answers with fewer characters than this count as short.
pub const SHORT: usize = 10;

/// Number of words in an opening.
const OPENING: usize = 3;

/// Number of openings that are listed.
const OPENINGS: usize = 20;

/// Number of locations that are listed for each of ties, equal pairs and short answers.
const LISTED: usize = 10;

/// Statistics of the rows in a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    /// Number of rows.
    pub rows: usize,
    /// Lengths in characters, by part of the row.
    pub characters: Vec<Lengths>,
    /// Lengths in tokens, by part of the row, each tokenized alone without special tokens. Empty without a tokenizer.
    pub tokens: Vec<Lengths>,
    /// Number of rows by their number of turns: messages, or turns of a transcript. A prompt and its answer are two turns.
    pub turns: BTreeMap<usize, usize>,
    /// Most frequent openings of answers.
    pub openings: Vec<Opening>,
    /// Statistics of pairs, if there are any.
    pub pairs: Option<PairProfile>,
    /// Rows with an answer of fewer than [`SHORT`] characters.
    pub short: RowExamples,
}

/// Lengths of one part of the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lengths {
    /// Name of the part: `prompt`, `chosen`, `rejected`, …
    pub part: &'static str,
    /// Quantiles of the lengths.
    pub quantiles: Quantiles,
    /// Lengths in the order of the rows.
    #[serde(skip)]
    pub lengths: Vec<usize>,
}

/// First words of answers, and the number of answers that begin with them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Opening {
    /// First three words.
    pub words: String,
    /// Chosen answers that begin with them, or all answers if the rows are not pairs.
    pub chosen: usize,
    /// Rejected answers that begin with them.
    pub rejected: usize,
}

/// Statistics of pairs: the lengths of their answers, ties, and equal answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairProfile {
    /// Number of pairs.
    pub pairs: usize,
    /// Pairs whose chosen answer has more characters (or tokens, for rows of token ids).
    pub longer_chosen: usize,
    /// Pairs whose rejected answer has more.
    pub longer_rejected: usize,
    /// Pairs whose answers are equally long.
    pub same_length: usize,
    /// Share of pairs with the longer answer chosen, among pairs with answers of different lengths.
    pub longer_chosen_share: Option<f64>,
    /// Length of the chosen answer minus that of the rejected one, per pair.
    #[serde(skip)]
    pub differences: Vec<f64>,
    /// Mean of the differences.
    pub mean_difference: f64,
    /// Pairs that the data marks as ties.
    pub ties: RowExamples,
    /// Pairs with equal answers.
    pub equal: RowExamples,
}

/// Number of rows of a kind, and the locations of the first ones.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RowExamples {
    /// Number of rows.
    pub count: usize,
    /// Locations of the first rows, as `file:line`.
    pub first: Vec<String>,
}

impl RowExamples {
    fn of<'r>(rows: impl Iterator<Item = &'r Row>) -> Self {
        let mut noted = Self::default();
        for row in rows {
            noted.count += 1;
            if noted.first.len() < LISTED {
                noted.first.push(row.location.to_string());
            }
        }
        noted
    }
}

/// Profiles all `rows`. Lengths in tokens are measured for at most `sample` evenly spaced rows.
///
/// # Errors
/// Errors of the tokenizer.
pub fn profile(
    rows: &[Row],
    options: &TokenizeOptions,
    tokenizer: Option<&Tokenizer>,
    sample: usize,
) -> crate::Result<Profile> {
    let characters: Vec<Vec<(&'static str, usize)>> = rows
        .par_iter()
        .map(|row| parts(row, options).into_iter().map(|(name, text)| (name, text.chars().count())).collect())
        .collect();
    let sampled = sample.min(rows.len());
    let of_tokens = |tokenizer: &Tokenizer| -> crate::Result<Vec<Vec<(&'static str, usize)>>> {
        let count = |row: &Row| {
            let found = parts(row, options).into_iter();
            found.map(|(name, text)| Ok((name, tokenizer.encode(&text, false)?.len()))).collect()
        };
        (0..sampled).into_par_iter().map(|i| count(&rows[i * rows.len() / sampled])).collect()
    };
    let mut tokens = tokenizer.map(of_tokens).transpose()?.unwrap_or_default();
    tokens.extend(rows.iter().filter_map(ids));
    let rule = options.implicit_prompt;
    let row_answers: Vec<Vec<String>> = rows.par_iter().map(|row| answers(row, rule)).collect();
    let is_short =
        |(_, row_answers): &(&Row, &Vec<String>)| row_answers.iter().any(|answer| answer.chars().count() < SHORT);
    let mut counted: BTreeMap<usize, usize> = BTreeMap::new();
    for count in rows.iter().filter_map(count_turns) {
        *counted.entry(count).or_default() += 1;
    }
    Ok(Profile {
        rows: rows.len(),
        characters: lengths(characters),
        tokens: lengths(tokens),
        turns: counted,
        openings: openings(&row_answers),
        pairs: pairs(rows, &row_answers),
        short: RowExamples::of(rows.iter().zip(&row_answers).filter(is_short).map(|(row, _)| row)),
    })
}

/// Returns the lengths of a row of token ids.
fn ids(row: &Row) -> Option<Vec<(&'static str, usize)>> {
    match &row.data {
        RowData::Tokens { ids, .. } => Some(vec![("input_ids", ids.len())]),
        RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, .. } => {
            let prompt = (!prompt_ids.is_empty()).then_some(("prompt", prompt_ids.len()));
            let both = [("chosen", chosen_ids.len()), ("rejected", rejected_ids.len())];
            Some(prompt.into_iter().chain(both).collect())
        }
        _ => None,
    }
}

fn lengths(rows: Vec<Vec<(&'static str, usize)>>) -> Vec<Lengths> {
    let mut found: Vec<(&'static str, Vec<usize>)> = Vec::new();
    for (name, length) in rows.into_iter().flatten() {
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.push(length),
            None => found.push((name, vec![length])),
        }
    }
    let of_part = |(part, lengths): (&'static str, Vec<usize>)| {
        Some(Lengths { part, quantiles: Quantiles::of(lengths.clone())?, lengths })
    };
    found.into_iter().filter_map(of_part).collect()
}

/// Returns the number of turns in a row, or `None` if the row is not text.
fn count_turns(row: &Row) -> Option<usize> {
    let of = |content: &Content| match content {
        Content::Text(text) => turns(text).len(),
        Content::Messages(messages) => messages.len(),
    };
    // The prompt of a transcript ends with the mark of the answer's turn. Other texts have no marks.
    let joined = |prompt: &Content, answer: &Content| match (prompt, answer) {
        (Content::Text(_), Content::Text(_)) => (of(prompt) + of(answer)).max(2),
        _ => of(prompt) + of(answer),
    };
    match &row.data {
        RowData::Text(text) => Some(turns(text).len().max(1)),
        RowData::Messages(messages) => Some(messages.len()),
        RowData::PromptCompletion { prompt, completion } | RowData::Unpaired { prompt, completion, .. } => {
            Some(joined(prompt, completion))
        }
        RowData::Instruction { history, .. } => Some(history.len() + 2),
        RowData::Preference { prompt: Some(prompt), chosen, .. } => Some(joined(prompt, chosen)),
        RowData::Preference { prompt: None, chosen, .. } => Some(of(chosen).max(1)),
        RowData::Prompt(prompt) => Some(of(prompt).max(1)),
        RowData::Tokens { .. }
        | RowData::TokenPreference { .. }
        | RowData::Columns
        | RowData::Words(_)
        | RowData::Feedback(_) => None,
    }
}

/// Returns the most frequent openings, in descending order. Openings of a single answer are left out.
fn openings(answers: &[Vec<String>]) -> Vec<Opening> {
    let mut counts: HashMap<String, [usize; 2]> = HashMap::new();
    for row_answers in answers {
        for (side, answer) in row_answers.iter().take(2).enumerate() {
            let words = answer.split_whitespace().take(OPENING).collect::<Vec<_>>().join(" ");
            // The sentence may end here or continue.
            let words = words.trim_end_matches([',', '.', ';', ':', '!', '?']).to_owned();
            if !words.is_empty() {
                counts.entry(words).or_default()[side] += 1;
            }
        }
    }
    let opening = |(words, [chosen, rejected]): (String, [usize; 2])| Opening { words, chosen, rejected };
    let mut found: Vec<Opening> = counts.into_iter().map(opening).collect();
    found.retain(|opening| opening.chosen + opening.rejected > 1);
    found.sort_by(|a, b| (b.chosen + b.rejected).cmp(&(a.chosen + a.rejected)).then_with(|| a.words.cmp(&b.words)));
    found.truncate(OPENINGS);
    found
}

fn pairs(rows: &[Row], answers: &[Vec<String>]) -> Option<PairProfile> {
    let of = |(row, row_answers): (&Row, &Vec<String>)| match (&row.data, &row_answers[..]) {
        (RowData::TokenPreference { chosen_ids, rejected_ids, .. }, _) => Some([chosen_ids.len(), rejected_ids.len()]),
        (RowData::Preference { .. }, [chosen, rejected]) => Some([chosen.chars().count(), rejected.chars().count()]),
        _ => None,
    };
    let lengths: Vec<[usize; 2]> = rows.iter().zip(answers).filter_map(of).collect();
    if lengths.is_empty() {
        return None;
    }
    let longer_chosen = lengths.iter().filter(|[chosen, rejected]| chosen > rejected).count();
    let longer_rejected = lengths.iter().filter(|[chosen, rejected]| chosen < rejected).count();
    let different = longer_chosen + longer_rejected;
    let differences: Vec<f64> = lengths.iter().map(|[chosen, rejected]| *chosen as f64 - *rejected as f64).collect();
    Some(PairProfile {
        pairs: lengths.len(),
        longer_chosen,
        longer_rejected,
        same_length: lengths.len() - different,
        longer_chosen_share: (different > 0).then(|| longer_chosen as f64 / different as f64),
        mean_difference: differences.iter().sum::<f64>() / differences.len() as f64,
        differences,
        ties: RowExamples::of(rows.iter().filter(|row| is_tie(row))),
        equal: RowExamples::of(rows.iter().filter(|row| has_equal_answers(row))),
    })
}
