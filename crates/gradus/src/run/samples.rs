//! `samples.jsonl`: completions of held-out prompts, one JSON object a line.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One completion. Readers ignore keys they do not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// After how many steps; 0 is the start.
    pub step: usize,
    /// The row of the prompt, counted from 1.
    pub row: usize,
    /// The prompt as the model saw it.
    pub prompt: String,
    /// What it answered.
    pub completion: String,
    /// What that is worth; none where the reward does not apply.
    #[serde(default)]
    pub reward: Option<f64>,
    /// Its length in tokens.
    #[serde(default)]
    pub tokens: usize,
    /// Why it ended: `stop_id`, `stop_string` or `length`.
    #[serde(default)]
    pub stop: String,
}

/// Reads every sample; a torn last line is left out, a file that is not there is empty.
///
/// # Errors
/// [`Error::Io`], or [`Error::Data`] for another line that is no sample.
pub fn read_samples(path: &Path) -> Result<Vec<Sample>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(path).map_err(|source| Error::io(path, source))?;
    let mut samples = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(sample) => samples.push(sample),
            Err(_) if !line.ends_with('\n') => {}
            Err(error) => return Err(Error::data(path, Some(index + 1), format!("not a sample: {error}"))),
        }
    }
    Ok(samples)
}

/// The completions of the first and of the last evaluation, prompt by prompt.
pub fn before_and_after(samples: &[Sample]) -> Vec<(&Sample, &Sample)> {
    let (first, last) =
        (samples.iter().map(|sample| sample.step).min(), samples.iter().map(|sample| sample.step).max());
    let at = |step: Option<usize>| samples.iter().filter(move |sample| Some(sample.step) == step);
    let after = |before: &Sample| at(last).find(|sample| sample.row == before.row);
    if first == last { Vec::new() } else { at(first).filter_map(|before| Some((before, after(before)?))).collect() }
}
