//! Models that judge the segments of an answer: its sentences, parts of them, or the whole.

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

/// The label of what nothing is wrong with, as FineGrainedRLHF names it.
const NOTHING: &str = "O";

/// What one part of a dense reward says of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedPart {
    /// Its name; empty where there is one alone.
    pub name: String,
    /// What it weighs in the whole.
    pub weight: f64,
    /// What all segments are worth together, before weighting.
    pub total: f32,
    /// The segments, where it judges some: their characters in what was said, what they are worth, and the label that fits best.
    pub segments: Vec<(Range<usize>, f32, Option<String>)>,
}

/// The parts of a dense reward, listening.
pub struct SegmentsJudge {
    parts: Vec<Part>,
}

struct Part {
    name: String,
    weight: f64,
    reward: SegmentReward,
    /// Columns that it reads of a row.
    columns: Vec<String>,
}

impl SegmentsJudge {
    /// Loads the classifier or reward model in the directory, or run, `name`, which judges by itself: of a classifier of tokens a
    /// segment with the label `O`, which says that nothing is wrong, is worth 1, and any other −1; where no label is called so, all
    /// are worth 0, and only named.
    ///
    /// # Errors
    /// When it cannot be read, or says nothing of segments or texts.
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

    /// Loads the parts of a reward, each with its name and what it weighs in the whole.
    ///
    /// # Errors
    /// When a model cannot be read, or its part asks for something that it does not say.
    pub fn of_parts(parts: Vec<(String, f64, SegmentConfig)>, device: &DeviceChoice) -> Result<Self> {
        let part = |(name, weight, config): (String, f64, SegmentConfig)| {
            let dir = open(&config.model, None)?;
            let reward = SegmentReward::load(&dir, &config, &device.device(), Precision::F32.into(), PASSES)?;
            let patterns = [&config.prompt, &config.text].into_iter().flatten();
            let columns = patterns.filter_map(|text| Pattern::parse(text).ok());
            let columns =
                columns.flat_map(|pattern| pattern.columns().map(str::to_owned).collect::<Vec<_>>()).collect();
            Ok(Part { name, weight, reward, columns })
        };
        Ok(Self { parts: parts.into_iter().map(part).collect::<Result<_>>()? })
    }

    /// What each part makes of an answer to a conversation. What a row of data would say beside the prompt (`{question}`), a
    /// conversation says in what was last said to the model.
    ///
    /// # Errors
    /// When a part cannot read it.
    pub fn judge(&self, messages: &[Message], answer: &Answer) -> Result<Vec<JudgedPart>> {
        let last = messages.last().map_or("", |message| message.content.as_str());
        // One question is asked as it is; what went before it is told as in HH-RLHF.
        let text = if messages.len() == 1 { last.to_owned() } else { hh(messages) };
        let prompt = |columns: &[String]| Prompt {
            row: 0,
            text: text.clone(),
            ids: Vec::new(),
            apart: false,
            messages: None,
            columns: columns.iter().map(|name| (name.clone(), last.into())).collect(),
        };
        let stop = if answer.end == AnswerEnd::Stop { StopReason::StopId } else { StopReason::Length };
        let said = Rollout::one_turn(0, answer.text.clone(), vec![0], stop);
        let of = |part: &Part| {
            let judged = part.reward.judge(&prompt(&part.columns), &said);
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
