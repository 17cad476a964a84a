//! Comparison of reward models on the same pairs.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::{HELD, QuantizeOptions, QuantizeReport, sizes};
use crate::data::{self, LoadOptions, Need, TokenizeOptions};
use crate::error::{Error, Result};
use crate::host::read;
use crate::inference::PASSES;
use crate::math::stats::{correlation, mean};
use crate::model::{RewardModel, Rows, Sequence};
use crate::objective::reward_model;
use crate::pretrained::Pretrained;

/// Differences between the rewards of two models on the same pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RewardQuality {
    /// Number of pairs; each has two rewards.
    pub pairs: usize,
    /// Share of pairs whose better answer has the larger reward, before quantization.
    pub accuracy_before: f64,
    /// The same share after quantization.
    pub accuracy_after: f64,
    /// Share of pairs in which both models prefer the same answer.
    pub agreement: f64,
    /// Pearson correlation of the rewards; `None` if they do not vary.
    pub correlation: Option<f64>,
    /// Mean absolute change of a reward.
    pub reward_error: f64,
    /// Largest change of a reward.
    pub largest_reward_error: f64,
}

pub(super) fn compare(
    options: &QuantizeOptions,
    files: &Pretrained,
    before: RewardModel,
    after: RewardModel,
    path: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<QuantizeReport> {
    let mut report = sizes(options, files, (&before, &before.trunk), (&after, &after.trunk), path)?;
    let Some(data) = &options.data else {
        report.remarks.push("without `--data`, rewards were not compared".into());
        return Ok(report);
    };
    let load = LoadOptions { max_rows: options.max_rows, ..LoadOptions::needing(Need::Preference) };
    let rows = data::load(data, &load)?.rows;
    let room = before.trunk.position_budget().read_whole();
    let limit = room.after(0).unwrap_or(usize::MAX).min(options.max_length);
    let tokenize = TokenizeOptions { max_length: Some(limit), ..super::super::tokenize(files)? };
    let made = data::reward_examples(&rows, &files.tokenizer, files.template.as_ref(), &tokenize)?;
    report.remarks = made.counts.remarks();
    if made.examples.is_empty() {
        return Err(Error::input(format!("`{data}` has no pair of at most {limit} tokens")));
    }
    let sequences: Vec<Sequence<'_>> = made.examples.iter().flat_map(reward_model::sequences).collect();
    progress("comparing");
    let (first, rate) = rewards(&before.into_frozen(HELD), &sequences);
    report.before.score_tokens_per_s = rate;
    let (second, rate) = rewards(&after.into_frozen(HELD), &sequences);
    report.after.score_tokens_per_s = rate;
    report.reward = Some(quality(&first, &second));
    Ok(report)
}

/// Returns the reward of each sequence, and the tokens per second.
fn rewards(model: &RewardModel, sequences: &[Sequence<'_>]) -> (Vec<f32>, Option<f64>) {
    let lengths: Vec<usize> = sequences.iter().map(Sequence::tokens).collect();
    let start = Instant::now();
    let pass =
        |pass: std::ops::Range<usize>| read(&model.rewards(&model.batch(&Rows::Alone(sequences[pass].to_vec()))));
    let found = PASSES.split(&lengths).into_iter().flat_map(pass).collect();
    let seconds = start.elapsed().as_secs_f64();
    (found, (seconds > 0.0).then(|| lengths.iter().sum::<usize>() as f64 / seconds))
}

/// Compares rewards. Those of chosen and rejected answers alternate.
fn quality(first: &[f32], second: &[f32]) -> RewardQuality {
    let is_right = |rewards: &[f32]| rewards.as_chunks::<2>().0.iter().map(|[c, r]| c > r).collect::<Vec<bool>>();
    let share =
        |right: &mut dyn Iterator<Item = bool>| right.filter(|&right| right).count() as f64 / (first.len() / 2) as f64;
    let (before, after) = (is_right(first), is_right(second));
    let moved: Vec<f32> = first.iter().zip(second).map(|(first, second)| (first - second).abs()).collect();
    RewardQuality {
        pairs: before.len(),
        accuracy_before: share(&mut before.iter().copied()),
        accuracy_after: share(&mut after.iter().copied()),
        agreement: share(&mut before.iter().zip(&after).map(|(before, after)| before == after)),
        correlation: correlation(first, second),
        reward_error: mean(&moved).unwrap_or(0.0),
        largest_reward_error: f64::from(moved.iter().fold(0.0f32, |max, &x| max.max(x))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_two_reward_models_by_hand() {
        let found = quality(&[1.0, 0.0, 2.0, 3.0, 5.0, 1.0], &[1.5, 0.0, 2.0, 1.0, 5.0, 1.0]);
        assert_eq!((found.pairs, found.accuracy_after), (3, 1.0));
        assert!((found.accuracy_before - 2.0 / 3.0).abs() < 1e-9 && (found.agreement - 2.0 / 3.0).abs() < 1e-9);
        assert!((found.reward_error - 2.5 / 6.0).abs() < 1e-6 && found.largest_reward_error == 2.0);
        assert!(found.correlation.is_some_and(|r| (0.8..0.9).contains(&r)), "{:?}", found.correlation);
    }
}
