//! A reward model that scores the answers in a conversation.

use std::path::Path;

use super::transcript::{hh, visible_turns};
use super::{Answer, AnswerEnd};
use crate::data::Message;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::generate::StopReason;
use crate::inference::{PASSES, open};
use crate::model::Precision;
use crate::model::model_of;
use crate::reward::{ModelReward, Reward};
use crate::rollout::{Prompt, Rollout, Rollouts};

/// A reward model for chat.
pub struct ChatJudge {
    reward: ModelReward,
}

impl ChatJudge {
    /// Loads the reward model `name` onto `device`: a directory, a run of `gradus reward`, or a hub name.
    ///
    /// # Errors
    /// If it cannot be read, or is not a reward model.
    pub fn open(name: &str, compute: Precision, device: &DeviceChoice) -> Result<Self> {
        device.check_compute("`--compute`", compute)?;
        let directory = model_of(Path::new(name))?;
        let dir = open(&directory.to_string_lossy(), None)?;
        Ok(Self { reward: ModelReward::load(&dir, &device.device(), compute.into(), PASSES)? })
    }

    /// Returns the reward of an answer to a conversation. The model never sees thoughts.
    ///
    /// # Errors
    /// If the text is too long for it.
    pub fn reward(&mut self, messages: &[Message], answer: &Answer) -> Result<f32> {
        let messages: Vec<Message> = visible_turns(messages)
            .zip(messages)
            .map(|((_, text), m)| Message { content: text, ..m.clone() })
            .collect();
        let stop = if answer.end == AnswerEnd::Stop { StopReason::StopId } else { StopReason::Length };
        let text = hh(&messages);
        let answer_text = answer.without_thoughts();
        // The transcript has a space after the colon, and an answer may already start with one.
        let completion = match answer_text.starts_with(' ') {
            true => answer_text,
            false => format!(" {answer_text}"),
        };
        let prompt = Prompt {
            row: 0,
            text,
            ids: Vec::new(),
            encoder_reads_prompt: false,
            messages: Some(messages),
            columns: serde_json::Map::new(),
        };
        let rollout = Rollout::one_turn(0, completion, vec![0], stop);
        let rollouts = Rollouts { prompts: vec![prompt], rollouts: vec![rollout], group_size: 1, tokenizer: None };
        let score = self.reward.score(&rollouts).remove(0).map_err(|error| Error::input(error.message))?;
        Ok(score.total().unwrap_or(f32::NAN))
    }
}
