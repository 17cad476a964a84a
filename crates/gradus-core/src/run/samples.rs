//! Completions of evaluations, for reports and comparisons.

use super::RunDir;
use super::database::{Query, Record, RolloutDb, RolloutTable};
use crate::error::Result;

/// One completion of a held-out prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Number of steps before the evaluation; 0 is the start.
    pub step: usize,
    /// Row of the prompt, counted from 1.
    pub row: usize,
    /// Prompt as the model received it.
    pub prompt: String,
    /// Text that the model generated.
    pub completion: String,
    /// Reward; `None` if the reward does not apply.
    pub reward: Option<f64>,
    /// Length in tokens.
    pub tokens: usize,
    /// Why generation ended: `stop_id`, `stop_string` or `length`.
    pub stop: String,
}

impl Sample {
    /// Returns true if both belong to the same prompt. The same row of other data is another prompt.
    pub fn has_same_prompt(&self, other: &Self) -> bool {
        self.row == other.row && self.prompt == other.prompt
    }
}

impl From<Record> for Sample {
    fn from(record: Record) -> Self {
        Self {
            step: record.step,
            row: record.prompt_index + 1,
            prompt: record.prompt,
            completion: record.completion,
            reward: record.reward,
            tokens: record.length,
            stop: record.stop_reason,
        }
    }
}

/// Reads the completions of every evaluation, in order. Empty if the run has no rollout database.
///
/// # Errors
/// As [`RolloutDb::open`].
pub fn read_samples(run: &RunDir) -> Result<Vec<Sample>> {
    if !run.rollouts().is_file() {
        return Ok(Vec::new());
    }
    let records = RolloutDb::open(run)?.query(&Query { table: RolloutTable::Eval, ..Query::default() })?;
    Ok(records.into_iter().map(Sample::from).collect())
}

/// Pairs the completions of the first and of the last evaluation by prompt.
pub fn before_and_after(samples: &[Sample]) -> Vec<(&Sample, &Sample)> {
    let (first, last) =
        (samples.iter().map(|sample| sample.step).min(), samples.iter().map(|sample| sample.step).max());
    let at = |step: Option<usize>| samples.iter().filter(move |sample| Some(sample.step) == step);
    let after = |before: &Sample| at(last).find(|sample| sample.row == before.row);
    if first == last { Vec::new() } else { at(first).filter_map(|before| Some((before, after(before)?))).collect() }
}
