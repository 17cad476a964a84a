//! Dense rewards: models judge the segments of a completion, and each reward is on the last token of its segment.
//!
//! Wu et al. 2023, "Fine-Grained Human Feedback Gives Better Rewards for Language Model Training",
//! <https://arxiv.org/abs/2306.01693>: relevance by parts of sentences, factuality by sentences, completeness of the
//! whole. A part is a [`SegmentReward`]; several parts form a sum of rewards, each of which reads the completions of a
//! batch once.

mod config;
mod judge;
#[cfg(test)]
mod tests;

use std::ops::Range;

use burn::tensor::Device;
use serde_json::Value;

pub use config::{FineGrainedConfig, SegmentConfig, SegmentEnd};
use judge::{Judge, RewardMapping};

use super::place::last_token;
use super::score::{CUT, Count, UNREAD};
use super::{Reward, RewardError, Score, Scores, config_error, interrupted, report};
use crate::batches::MicroBatch;
use crate::data::column_text;
use crate::error::{Error, Result};
use crate::model::{ModelDir, WeightFormat};
use crate::progress::{Progress, Unwatched};
use crate::rollout::{Prompt, Rollout, Rollouts, StopReason};
use crate::text::{Joined, Level, RuleSplitter, SentenceSplitter, segments};

/// Reward of the segments of a completion, judged by a model. Completions are read unchanged, thoughts included.
///
/// A segment gets the reward 0 if the model cannot read it because its text is cut off before it. If two segments end
/// within one token, the token gets the reward of the later one. Both are counted.
pub struct SegmentReward {
    judge: Judge,
    splitter: Box<dyn SentenceSplitter>,
    level: Level,
    mapping: RewardMapping,
    /// Column whose elements the model judges one by one.
    each: Option<String>,
    /// Level of the segments among which the reward of a whole completion is divided.
    spread: Option<Level>,
    /// Whether the change of the number is the reward.
    change: bool,
    end: SegmentEnd,
    passes: MicroBatch,
}

/// Judgement of a text alone, without tokens that could carry rewards.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Sum of the rewards of all segments, before weighting.
    pub total: f32,
    /// The segments that the model read; empty if it judges texts as a whole.
    pub segments: Vec<JudgedSegment>,
}

/// A segment of a text with its reward.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedSegment {
    /// Byte range in the text.
    pub bytes: Range<usize>,
    /// Reward before weighting.
    pub value: f32,
    /// Most probable label, if labels determine the reward.
    pub label: Option<String>,
}

/// Questions to the model about one completion.
struct CompletionQuestions {
    segments: Vec<Range<usize>>,
    /// Questions by element, and within an element by segment.
    questions: Vec<Question>,
    /// Number of segments that the model could read, per element.
    read: Vec<usize>,
    /// Number of texts that lost their end.
    cut: usize,
}

/// A text and the token positions to read the output at. For models of whole texts, the first position stands for the
/// text.
struct Question {
    joined: Joined,
    positions: Vec<usize>,
}

impl SegmentReward {
    /// Loads the model in `dir` onto `device`, which tracks no gradients. `weights` sets the format of its weights.
    ///
    /// # Errors
    /// If `config` does not fit the model (unknown labels, a separator that is not a token, segments that it cannot
    /// distinguish), or a file is missing or corrupt.
    pub fn load(
        dir: &ModelDir,
        config: &SegmentConfig,
        device: &Device,
        weights: WeightFormat,
        passes: MicroBatch,
    ) -> Result<Self> {
        let refuse = |(message, hint): (String, Option<String>)| config_error(message, hint);
        let judge = Judge::load(dir, config, device, weights)?;
        let mapping = RewardMapping::of(&judge, dir, config).map_err(refuse)?;
        let level = config.segments.unwrap_or_else(|| judge.usual_level());
        judge.check(config, level).map_err(refuse)?;
        if config.spread.is_some() && level != Level::Whole {
            let message =
                format!("`spread` divides the value of a whole completion, but `{}` judges segments", config.model);
            return Err(config_error(message, Some("set `segments: whole`, or leave `spread` out".into())));
        }
        let splitter: Box<dyn SentenceSplitter> = Box::new(RuleSplitter);
        if let Some(other) =
            dir.training_info().sentences.filter(|name| level != Level::Whole && name != splitter.name())
        {
            let message = format!(
                "`{}` was trained on sentences split by `{other}`, but completions are split by `{}`",
                config.model,
                splitter.name()
            );
            return Err(config_error(
                message,
                Some("train it again on files of this version's `gradus data convert`".into()),
            ));
        }
        let (each, spread, change, end) = (config.each.clone(), config.spread, config.change, config.segment_end);
        Ok(Self { judge, splitter, level, mapping, each, spread, change, end, passes })
    }

    /// Splits a completion into segments. A completion that is judged as a whole is one segment, even if it is empty.
    fn segments(&self, completion: &str) -> Vec<Range<usize>> {
        match self.level {
            Level::Whole => std::iter::once(0..completion.len()).collect(),
            level => segments(&*self.splitter, completion, level),
        }
    }

    /// Prepares the questions about a completion.
    fn read(&self, prompt: &Prompt, rollout: &Rollout) -> Result<CompletionQuestions, RewardError> {
        let completion = &rollout.completion;
        let segments = self.segments(completion);
        let (mut questions, mut read, mut cut) = (Vec::new(), Vec::new(), 0);
        for element in self.elements(prompt)? {
            let column = |name: &str| {
                let found = element.and_then(|(list, element)| element_text(list, element, name));
                found.unwrap_or_else(|| column_text(&prompt.columns, name)).map_err(RewardError::new)
            };
            if let Some(before) = self.judge.prompt() {
                let before =
                    before.fill(|name| if name == "prompt" { Ok(prompt.text.clone()) } else { column(name) })?;
                let parts: Vec<&str> = segments.iter().map(|segment| &completion[segment.clone()]).collect();
                let (joined, positions) =
                    self.judge.separated(&before, &parts).map_err(|error| RewardError::from(&error))?;
                cut += usize::from(positions.len() < parts.len());
                read.push(positions.len());
                if !positions.is_empty() {
                    questions.push(Question { joined, positions });
                }
            } else {
                for (i, segment) in segments.iter().enumerate() {
                    let value = |name: &str| match name {
                        "prompt" => Ok(prompt.text.clone()),
                        "completion" => Ok(completion.clone()),
                        "segment" => Ok(completion[segment.clone()].to_owned()),
                        "so_far" => Ok(completion[..segment.end].to_owned()),
                        column_name => column(column_name),
                    };
                    let has_ended = i + 1 == segments.len() && rollout.stop != StopReason::Length;
                    let (joined, was_cut) = self.judge.alone(value, has_ended)?;
                    cut += usize::from(was_cut);
                    questions.push(Question { joined, positions: vec![0] });
                }
                read.push(segments.len());
            }
        }
        for Question { joined, .. } in &questions {
            self.judge.check_text(joined).map_err(RewardError::new)?;
        }
        Ok(CompletionQuestions { segments, questions, read, cut })
    }

    /// Returns the elements of the list, each with the name of its column; or one `None` if the model judges only the
    /// row.
    fn elements<'p>(&'p self, prompt: &'p Prompt) -> Result<Vec<Option<(&'p str, &'p Value)>>, RewardError> {
        let Some(name) = self.each.as_deref() else { return Ok(vec![None]) };
        match prompt.columns.get(name) {
            Some(Value::Array(list)) => Ok(list.iter().map(|element| Some((name, element))).collect()),
            Some(_) => Err(RewardError::new(format!("the column `{name}` is not a list, but `each` needs one"))),
            None => Err(RewardError::new(format!("missing column `{name}`, which `each` names"))),
        }
    }

    /// Returns the model's output and the raw value of each segment. With several elements, the one with the lowest
    /// value counts. A segment that was cut off for one of them counts as unread.
    fn segment_outputs<'s>(
        &self,
        reading: &CompletionQuestions,
        outputs: &'s [Vec<f32>],
    ) -> Vec<(Option<&'s [f32]>, f32)> {
        if reading.read.is_empty() {
            let max_value = self.mapping.max_value();
            return reading.segments.iter().map(|_| (None, max_value)).collect();
        }
        let mut rest = outputs;
        let mut of_elements = Vec::with_capacity(reading.read.len());
        for &count in &reading.read {
            let (own, others) = rest.split_at(count);
            let values = self.values(own);
            of_elements.push(own.iter().map(|logits| Some(logits.as_slice())).zip(values).collect::<Vec<_>>());
            rest = others;
        }
        let segments = of_elements.iter().map(Vec::len).min().unwrap_or(0);
        let least = |segment: usize| {
            let all = of_elements.iter().map(|element| element[segment]);
            all.reduce(|least, other| if other.1 < least.1 { other } else { least }).expect("an element")
        };
        (0..segments).map(least).collect()
    }

    /// Judges one completion by its text alone, without its tokens.
    ///
    /// # Errors
    /// If the model cannot read it, or the prompt lacks a column.
    pub fn judge(&self, prompt: &Prompt, rollout: &Rollout) -> Result<Judgement, RewardError> {
        let reading = self.read(prompt, rollout)?;
        let questions: Vec<(&Joined, &[usize])> =
            reading.questions.iter().map(|q| (&q.joined, &*q.positions)).collect();
        let outputs = self.judge.run(&questions, self.passes, &|_| Ok(()))?;
        let segment = |(bytes, (logits, value)): (&Range<usize>, (Option<&[f32]>, f32))| JudgedSegment {
            bytes: bytes.clone(),
            value: self.mapping.reward(value),
            label: logits.and_then(|logits| self.mapping.label(logits)).and_then(|label| self.judge.label(label)),
        };
        let segment_outputs = self.segment_outputs(&reading, &outputs);
        let segments: Vec<JudgedSegment> = reading.segments.iter().zip(segment_outputs).map(segment).collect();
        let total = segments.iter().map(|segment| segment.value).sum();
        Ok(Judgement { total, segments: if self.level == Level::Whole { Vec::new() } else { segments } })
    }

    /// Returns the raw values of the model's output on segments.
    fn values(&self, outputs: &[Vec<f32>]) -> Vec<f32> {
        let mut values: Vec<f32> = outputs.iter().map(|logits| self.mapping.raw(logits)).collect();
        if self.change {
            let before: Vec<f32> = std::iter::once(0.0).chain(values.iter().copied()).collect();
            values.iter_mut().zip(before).for_each(|(value, before)| *value -= before);
        }
        values
    }

    /// Returns the token of rollout `i` that gets the reward of each segment.
    fn places(&self, rollouts: &Rollouts, i: usize, segments: &[Range<usize>]) -> Result<Vec<usize>> {
        let Rollout { completion, completion_ids, .. } = &rollouts.rollouts[i];
        let last = completion_ids.len() - 1;
        match self.end {
            SegmentEnd::Text => {
                let ranges_t = rollouts.ranges(i)?;
                let end = |segment: &Range<usize>| segment.start + completion[segment.clone()].trim_end().len();
                Ok(segments.iter().map(|segment| last_token(&ranges_t, end(segment)).unwrap_or(last)).collect())
            }
            SegmentEnd::Retokenised => {
                let tokenizer = rollouts.tokenizer.as_ref().ok_or_else(|| {
                    Error::input("these rollouts have no tokenizer that could tokenize their text anew")
                })?;
                let place = |segment: &Range<usize>| {
                    let count = tokenizer.encode(&completion[..segment.end], false)?.len();
                    Ok(count.saturating_sub(1).min(last))
                };
                segments.iter().map(place).collect()
            }
        }
    }

    /// Returns the score of a completion from the model's output on the segments that it read.
    fn judged(
        &self,
        reading: &CompletionQuestions,
        outputs: &[Vec<f32>],
        rollout: &Rollout,
        places: impl FnOnce(&[Range<usize>]) -> Result<Vec<usize>>,
    ) -> Result<Score, RewardError> {
        let tokens = rollout.completion_ids.len();
        let values: Vec<f32> = self.segment_outputs(reading, outputs).into_iter().map(|(_, value)| value).collect();
        let mut rewards_t = vec![0.0; tokens];
        let mut collided = 0;
        if let (Level::Whole, Some(level)) = (self.level, self.spread) {
            // Shares of one reward add up if they meet on a token, so nothing is lost.
            let parts = segments(&*self.splitter, &rollout.completion, level);
            let places = if parts.is_empty() {
                vec![tokens - 1]
            } else {
                places(&parts).map_err(|error| RewardError::from(&error))?
            };
            for value in &values {
                let part = self.mapping.reward(*value) / places.len() as f32;
                places.iter().for_each(|&place| rewards_t[place] += part);
            }
        } else {
            let places: Vec<usize> = match self.level {
                Level::Whole => vec![tokens - 1],
                _ if values.is_empty() => Vec::new(),
                _ => places(&reading.segments).map_err(|error| RewardError::from(&error))?,
            };
            let mut taken = vec![false; tokens];
            for (&value, &place) in values.iter().zip(&places) {
                rewards_t[place] = self.mapping.reward(value);
                collided += usize::from(std::mem::replace(&mut taken[place], true));
            }
        }
        let all = reading.segments.len();
        let counts = match self.level {
            Level::Whole => vec![Count::new(CUT, reading.cut as f64, all)],
            _ => vec![
                Count::new("segments", all as f64, 1),
                Count::new(UNREAD, (all - values.len()) as f64, all),
                Count::new("collided", collided as f64, all),
                Count::new("per_segment", rewards_t.iter().map(|&reward| f64::from(reward)).sum(), all),
            ],
        };
        let found = Count::new(
            self.mapping.statistic_name(),
            values.iter().map(|&value| self.mapping.statistic(value)).sum(),
            values.len(),
        );
        Ok(Score { counts: std::iter::once(found).chain(counts).collect(), ..Score::per_token(rewards_t) })
    }
}

/// Returns the text of `{list}` or `{list.field}` for an element of the column `list`; `None` if `name` does not refer
/// to the list.
fn element_text(list: &str, element: &Value, name: &str) -> Option<Result<String, String>> {
    let field = match name.strip_prefix(list)? {
        "" => None,
        rest => Some(rest.strip_prefix('.')?),
    };
    let found = field.map_or(Some(element), |field| element.get(field));
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        _ => Err(format!("`{name}` of an element is not a text")),
    };
    Some(found.map_or_else(|| Err(format!("an element of `{list}` has no `{name}`")), text))
}

impl Reward for SegmentReward {
    fn name(&self) -> String {
        "segments".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        let readings: Vec<Result<CompletionQuestions, RewardError>> =
            (0..rollouts.len()).map(|i| self.read(rollouts.prompt(i), &rollouts.rollouts[i])).collect();
        let questions: Vec<(&Joined, &[usize])> = readings
            .iter()
            .flatten()
            .flat_map(|reading| &reading.questions)
            .map(|q| (&q.joined, &*q.positions))
            .collect();
        // A completion has one or more questions, so the progress in rollouts is derived from the share of finished
        // questions.
        let on_progress = |done: usize| report(progress, rollouts.len() * done / questions.len(), rollouts.len());
        let Ok(outputs) = self.judge.run(&questions, self.passes, &on_progress) else { return interrupted(rollouts) };
        let mut outputs = outputs.into_iter();
        let score = |(i, reading): (usize, Result<CompletionQuestions, RewardError>)| {
            let reading = reading?;
            let positions = reading.questions.iter().map(|question| question.positions.len()).sum();
            let outputs: Vec<Vec<f32>> = outputs.by_ref().take(positions).collect();
            self.judged(&reading, &outputs, &rollouts.rollouts[i], |segments| self.places(rollouts, i, segments))
        };
        readings.into_iter().enumerate().map(score).collect()
    }
}
