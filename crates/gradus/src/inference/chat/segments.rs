//! Models that score segments of an answer: sentences, parts of sentences, or the whole answer.

use std::ops::Range;
use std::path::Path;

use super::transcript::hh;
use super::{Answer, AnswerEnd};
use crate::data::Message;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::generate::StopReason;
use crate::inference::{PASSES, open};
use crate::model::model_of;
use crate::model::{Precision, Scope, Task};
use crate::reward::fine_grained::SegmentConfig;
use crate::reward::{Judgement, SegmentReward};
use crate::rollout::{Prompt, Rollout};
use crate::text::Pattern;

/// FineGrainedRLHF's label for text without errors.
const NOTHING: &str = "O";

/// Scores of one part of a dense reward for an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedPart {
    /// Name; empty if there is only one part.
    pub name: String,
    /// Weight in the total.
    pub weight: f64,
    /// Sum of the scores of all segments, unweighted.
    pub total: f32,
    /// Segments, if the part scores any: character range in the answer without thoughts, score, and likeliest label.
    pub segments: Vec<(Range<usize>, f32, Option<String>)>,
}

/// The parts of a dense reward, for chat.
pub struct SegmentsJudge {
    parts: Vec<LoadedPart>,
}

/// A part of a reward with its loaded model.
struct LoadedPart {
    name: String,
    weight: f64,
    reward: SegmentReward,
    /// Columns of a row that it reads.
    columns: Vec<String>,
}

impl SegmentsJudge {
    /// Loads a single classifier or reward model from the directory or run `name`.
    ///
    /// A segment of a token classifier scores 1 for the label `O`, which means no error, and −1 for any other label. If
    /// there is no label `O`, all segments score 0 and only have labels.
    ///
    /// # Errors
    /// If it cannot be read, or scores neither segments nor texts.
    pub fn open(name: &str, device: &DeviceChoice) -> Result<Self> {
        let directory = model_of(Path::new(name))?;
        let dir = open(&directory.to_string_lossy(), None)?;
        let mut config = SegmentConfig::of(directory.to_string_lossy());
        if dir.is_classifier() {
            let task = Task::of(&dir)?;
            if task.scope == Scope::Token {
                let has_nothing = task.labels.iter().any(|label| label == NOTHING);
                let worth = |label: &String| match has_nothing {
                    true if label == NOTHING => 1.0,
                    true => -1.0,
                    false => 0.0,
                };
                config.values = task.labels.iter().map(|label| (label.clone(), worth(label))).collect();
            }
        }
        Self::of_parts(vec![(String::new(), 1.0, config)], device)
    }

    /// Loads the parts of a reward, each with its name and its weight in the total.
    ///
    /// # Errors
    /// If a model cannot be read, or does not provide what its part requires.
    pub fn of_parts(parts: Vec<(String, f64, SegmentConfig)>, device: &DeviceChoice) -> Result<Self> {
        let part = |(name, weight, config): (String, f64, SegmentConfig)| {
            let dir = open(&config.model, None)?;
            let reward = SegmentReward::load(&dir, &config, &device.device(), Precision::F32.into(), PASSES)?;
            let patterns = [&config.prompt, &config.text].into_iter().flatten();
            let columns = patterns.filter_map(|text| Pattern::parse(text).ok());
            let columns =
                columns.flat_map(|pattern| pattern.columns().map(str::to_owned).collect::<Vec<_>>()).collect();
            Ok(LoadedPart { name, weight, reward, columns })
        };
        Ok(Self { parts: parts.into_iter().map(part).collect::<Result<_>>()? })
    }

    /// Scores an answer to a conversation with every part. Other columns that a data row would have (`{question}`) take
    /// the text of the last message to the model.
    ///
    /// # Errors
    /// If a part cannot read it.
    pub fn judge(&self, messages: &[Message], answer: &Answer) -> Result<Vec<JudgedPart>> {
        let last = messages.last().map_or("", |message| message.content.as_str());
        // A single question is passed unchanged. A longer conversation is written as in HH-RLHF.
        let text = if messages.len() == 1 { last.to_owned() } else { hh(messages) };
        let prompt = |columns: &[String]| Prompt {
            row: 0,
            text: text.clone(),
            ids: Vec::new(),
            encoder_reads_prompt: false,
            messages: None,
            columns: columns.iter().map(|name| (name.clone(), last.into())).collect(),
        };
        let stop = if answer.end == AnswerEnd::Stop { StopReason::StopId } else { StopReason::Length };
        let rollout = Rollout::one_turn(0, answer.text.clone(), vec![0], stop);
        let of = |part: &LoadedPart| {
            let judged = part.reward.judge(&prompt(&part.columns), &rollout);
            let Judgement { total, segments } = judged.map_err(|error| Error::input(error.message))?;
            let (mut characters, mut counted) = (0, 0);
            let mut place = |at: usize| {
                characters += answer.text[std::mem::replace(&mut counted, at)..at].chars().count();
                characters
            };
            let segments = segments.into_iter();
            let segments =
                segments.map(|found| (place(found.bytes.start)..place(found.bytes.end), found.value, found.label));
            Ok(JudgedPart { name: part.name.clone(), weight: part.weight, total, segments: segments.collect() })
        };
        self.parts.iter().map(of).collect()
    }
}
