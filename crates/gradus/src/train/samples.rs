//! `rollouts.jsonl` (every completion trained on) and `samples.jsonl` (those of evaluations): one JSON object a line.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::algorithm::{Advantages, Experience};
use crate::error::{Error, Result};
use crate::reward::Score;
use crate::rollout::Rollouts;
use crate::run::metrics::number;
use crate::run::{MetricsLog, RunDir};

/// The growing ends of both files.
#[derive(Debug)]
pub struct SampleLog {
    rollouts: Lines,
    samples: Lines,
}

#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: File,
}

impl SampleLog {
    /// Opens both for going on after `step`: lines of later steps are removed.
    ///
    /// # Errors
    /// When they cannot be read or written.
    pub fn open(run: &RunDir, step: usize) -> Result<Self> {
        Ok(Self {
            rollouts: Lines::open(run.path().join("rollouts.jsonl"), step)?,
            samples: Lines::open(run.samples(), step)?,
        })
    }

    /// Appends the rollouts of an iteration.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn rollouts(
        &mut self,
        step: usize,
        experience: &Experience,
        scores: &[Score],
        advantages: &Advantages,
    ) -> Result<()> {
        let mut lines = Vec::with_capacity(scores.len());
        for (i, score) in scores.iter().enumerate() {
            let mut line = describe(step, &experience.rollouts, i, score);
            let advantages_t = &advantages.advantages[i];
            let mean = advantages_t.iter().sum::<f32>() / advantages_t.len().max(1) as f32;
            line.insert("advantage".into(), number(f64::from(mean)));
            lines.push(line);
        }
        self.rollouts.append(lines)
    }

    /// Appends the completions of an evaluation.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn evaluation(&mut self, step: usize, rollouts: &Rollouts, scores: &[Score]) -> Result<()> {
        let lines = scores.iter().enumerate().map(|(i, score)| describe(step, rollouts, i, score));
        self.samples.append(lines)
    }
}

fn describe(step: usize, rollouts: &Rollouts, i: usize, score: &Score) -> Map<String, Value> {
    let (prompt, rollout) = (rollouts.prompt(i), &rollouts.rollouts[i]);
    let number = |value: f32| number(f64::from(value));
    let components: Map<String, Value> =
        score.components.iter().map(|(name, value)| (name.clone(), number(*value))).collect();
    let pairs = [
        ("step", json!(step)),
        ("row", json!(prompt.row + 1)),
        ("index", json!(i % rollouts.group_size)),
        ("prompt", json!(prompt.text)),
        ("completion", json!(rollout.completion)),
        ("reward", score.total().map_or(Value::Null, number)),
        ("components", Value::Object(components)),
        ("tokens", json!(rollout.completion_ids.len())),
        ("stop", json!(rollout.stop.name())),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

impl Lines {
    fn open(path: PathBuf, step: usize) -> Result<Self> {
        drop(MetricsLog::resume(&path, step)?);
        let file = File::options().create(true).append(true).open(&path).map_err(|source| Error::io(&path, source))?;
        Ok(Self { path, file })
    }

    fn append(&mut self, objects: impl IntoIterator<Item = Map<String, Value>>) -> Result<()> {
        let text: String = objects.into_iter().map(|object| Value::Object(object).to_string() + "\n").collect();
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.flush());
        written.map_err(|source| Error::io(&self.path, source))
    }
}
