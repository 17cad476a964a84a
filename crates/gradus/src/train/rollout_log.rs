//! Records in `rollouts.sqlite`: the completions of online training and of evaluations, and warnings about them.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ops::Range;

use gradus_environments::Recorded;
use serde_json::{Map, Value};

use super::EvalSplit;
use super::warnings::{StepStats, Warning, Watch};
use crate::algorithm::{Advantages, Experience};
use crate::error::Result;
use crate::evaluation::Evaluated;
use crate::reward::{RewardPart, Score};
use crate::rollout::{Episode, Exchange, Rollout, Rollouts, Turn};
use crate::run::database::{EpisodeRecord, Query, Record, RolloutDb, RolloutTable, Segment, TurnRecord, WarningRecord};
use crate::run::{Checkpoint, RolloutWriter, RunDir, RunState};

/// Key of the [`Watch`] in [`RunState::method`].
const WATCH: &str = "warnings";

/// Records the completions of a run and watches them for problems.
#[derive(Debug)]
pub struct RolloutLog {
    writer: RolloutWriter,
    watch: Watch,
    /// True if completions of training are stored.
    keeps_rollouts: bool,
}

impl RolloutLog {
    /// Continues from `state` and removes the records of later steps. `keeps_rollouts` is `train.save_rollouts`.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn open(run: &RunDir, state: &RunState, keeps_rollouts: bool) -> Result<Self> {
        // Checkpoints of versions without warnings have no watch; a new one is started.
        let watch = state.method.get(WATCH).and_then(|watch| serde_json::from_value(watch.clone()).ok());
        let writer = RolloutWriter::open(&run.rollouts(), state.kept_records())?;
        Ok(Self { writer, watch: watch.unwrap_or_default(), keeps_rollouts })
    }

    /// State for checkpoints.
    pub fn state(&self) -> Map<String, Value> {
        let watch = serde_json::to_value(&self.watch).expect("plain data with string keys");
        Map::from_iter([(WATCH.to_owned(), watch)])
    }

    /// Observes a step. Returns and records new warnings.
    ///
    /// # Errors
    /// The error of an earlier write.
    pub fn watch(&mut self, step: usize, stats: StepStats) -> Result<Vec<Warning>> {
        let warnings = self.watch.observe(stats);
        let record = |Warning { kind, message }: &Warning| {
            let (kind, message) = ((*kind).to_owned(), message.clone());
            WarningRecord { step, kind, message }
        };
        self.writer.warn(warnings.iter().map(record).collect())?;
        Ok(warnings)
    }

    /// Appends the rollouts of a training step; `kls` are those of [`Experience::kls`].
    ///
    /// # Errors
    /// The error of an earlier write.
    pub fn rollouts(
        &mut self,
        (step, epoch): (usize, usize),
        experience: &Experience,
        scores: &[Score],
        advantages: &Advantages,
        kls: Option<&[f64]>,
    ) -> Result<()> {
        if !self.keeps_rollouts {
            return Ok(());
        }
        let record = |i: usize| {
            let (scored, advantages_t) = (&experience.rollouts[i], &advantages.targets[i].advantages_t);
            let mean = advantages_t.iter().sum::<f32>() / advantages_t.len().max(1) as f32;
            // Rollouts without a score are not trained on, whatever advantages their tokens have.
            let taught_t = if scored.rewards_t.is_some() { &advantages_t[..] } else { &[] };
            let known = record(experience, i, &scores[i], taught_t)?;
            // The name at the server is new in each session, and equal runs record the same rows.
            let weight_version = scored.rollout.sampled_with.as_ref().map(|with| format!("v{}", with.step));
            let advantage = Some(f64::from(mean));
            Ok(Record { step, epoch, kl: kls.map(|kls| kls[i]), advantage, weight_version, ..known })
        };
        self.writer.append(RolloutTable::Train, (0..experience.len()).map(record).collect::<Result<_>>()?)
    }

    /// Records the completions of an evaluation and replaces existing ones of this step.
    ///
    /// # Errors
    /// The error of an earlier write.
    pub fn evaluation(&mut self, split: EvalSplit, (step, epoch): (usize, usize), found: &Evaluated) -> Result<()> {
        let rows = found.measures.iter().filter_map(|(key, measure)| Some((key, measure.row_values()?)));
        let rows: Vec<(&String, Vec<f64>)> = rows.collect();
        let record = |(i, score): (usize, &Score)| {
            let kl = found.kls.as_ref().map(|kls| kls[i]);
            let mut known = record(&found.rollouts, i, score, &[])?;
            let value =
                |(key, rows): &(&String, Vec<f64>)| ((*key).clone(), Some(rows[i]).filter(|value| value.is_finite()));
            known.components.extend(rows.iter().map(value));
            Ok(Record { step, epoch, kl, ..known })
        };
        let records = found.scores.iter().enumerate().map(record).collect::<Result<_>>()?;
        self.writer.evaluation(split.table(), step, records)?;
        // The metrics of this evaluation are logged next. Trackers then read its completions.
        self.flush()
    }

    /// Waits until everything is on disk, so that a checkpoint may refer to it.
    ///
    /// # Errors
    /// The error of a write.
    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush()
    }

    /// Completes the database: a single file that no longer changes.
    ///
    /// # Errors
    /// The error of a write.
    pub fn finish(self) -> Result<()> {
        self.writer.finish()
    }
}

/// Builds the fields that evaluations and training share. `advantages_t` are those of the counted tokens, if there are any.
fn record<R: Borrow<Rollout>>(rollouts: &Rollouts<R>, i: usize, score: &Score, advantages_t: &[f32]) -> Result<Record> {
    let (prompt, rollout) = (rollouts.prompt(i), rollouts.rollout(i));
    let spread: Vec<&RewardPart> = score.parts.iter().filter(is_spread).collect();
    // If all advantages are equal, their mean is enough.
    let differ = advantages_t.iter().any(|advantage| *advantage != advantages_t[0]);
    let places_t = if spread.is_empty() && !differ { Vec::new() } else { places(rollouts, i)? };
    let segment = |(&value, characters): (&f32, &Range<usize>)| Segment {
        characters: characters.clone(),
        value: f64::from(value),
    };
    let of_part = |part: &RewardPart| {
        let values = part.rewards_t.iter().zip(&places_t).filter(|(reward, _)| **reward != 0.0);
        (part.name.clone(), values.map(segment).collect())
    };
    let segments = spread.into_iter().map(of_part).collect();
    let counted = rollout.only_counted(&places_t);
    let advantages = if differ { advantages_t.iter().zip(counted).map(segment).collect() } else { Vec::new() };
    let total = |part: &RewardPart| {
        let total = part.total();
        (part.name.clone(), total.is_finite().then_some(f64::from(total)))
    };
    Ok(Record {
        prompt_index: prompt.row,
        rollout_index: i % rollouts.group_size,
        prompt: prompt.text.clone(),
        completion: rollout.completion.clone(),
        reward: score.total().map(f64::from),
        components: score.parts.iter().map(total).collect(),
        segments,
        advantages,
        length: rollout.completion_ids.len(),
        stop_reason: rollout.stop.name().to_owned(),
        episode: rollout.episode.as_ref().map(|episode| of_episode(rollout, episode)),
        ..Record::default()
    })
}

/// Returns the episodes that a run recorded after `checkpoint`, by name. A run that resumes from it will repeat them.
///
/// # Errors
/// If the database cannot be read.
pub fn recorded(run: &RunDir, checkpoint: Option<&Checkpoint>) -> Result<HashMap<String, Recorded>> {
    let Some(checkpoint) = checkpoint.filter(|_| run.rollouts().is_file()) else { return Ok(HashMap::new()) };
    let database = RolloutDb::open(run)?;
    let mut found = HashMap::new();
    for table in RolloutTable::ALL {
        let query = Query { table, first_step: Some(checkpoint.run_state.step), ..Query::default() };
        for record in database.query(&query)? {
            let Some(episode) = record.episode.filter(|episode| episode.failure.is_none()) else { continue };
            let turns = episode.turns.into_iter().map(|turn| (turn.text, turn.observation)).collect();
            found.insert(episode.name, Recorded { opening: episode.opening, turns, reward: episode.reward });
        }
    }
    Ok(found)
}

fn of_episode(rollout: &Rollout, episode: &Episode) -> EpisodeRecord {
    let of_turn = |turn: &Turn| {
        let Exchange { turn: sampled, observation } = turn.exchange.as_ref()?;
        Some(TurnRecord { text: sampled.text.clone(), observation: observation.clone(), is_read: turn.answered > 0 })
    };
    EpisodeRecord {
        name: episode.name.clone(),
        opening: episode.opening.clone(),
        turns: rollout.turns.iter().filter_map(of_turn).collect(),
        end: episode.end.name().to_owned(),
        failure: rollout.failure().map(str::to_owned),
        reward: episode.reward,
    }
}

/// Returns true if a component has rewards on other tokens than the last one.
fn is_spread(part: &&RewardPart) -> bool {
    let before_last = part.rewards_t.split_last().map_or(&[][..], |(_, before)| before);
    before_last.iter().any(|&reward| reward != 0.0)
}

/// Character range of each token in the completion.
fn places<R: Borrow<Rollout>>(rollouts: &Rollouts<R>, i: usize) -> Result<Vec<Range<usize>>> {
    let (text, mut characters, mut counted) = (&rollouts.rollout(i).completion, 0, 0);
    let mut place = |at: usize| {
        characters += text[std::mem::replace(&mut counted, at)..at].chars().count();
        characters
    };
    Ok(rollouts.ranges(i)?.into_iter().map(|range| place(range.start)..place(range.end)).collect())
}
