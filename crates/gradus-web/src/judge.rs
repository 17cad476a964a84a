//! Models that score answers.

use gradus::Result;
use gradus::data::Message;
use gradus::inference::{Answer, ChatJudge, JudgedPart, SegmentsJudge};

use crate::actor::Work;

/// Scores an answer as a whole, or its segments.
pub enum Judge {
    /// A reward model.
    Whole(Box<ChatJudge>),
    /// Classifiers, or the segment rewards of a run.
    Segments(SegmentsJudge),
}

/// Score of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// Reward: the weighted sum of the parts, if there are any.
    pub reward: f32,
    /// Parts of a dense reward.
    pub parts: Vec<JudgedPart>,
}

impl Judge {
    /// Scores an answer in a conversation.
    ///
    /// # Errors
    /// The text cannot be processed.
    pub fn judge(&mut self, messages: &[Message], answer: &Answer) -> Result<Judged> {
        match self {
            Self::Whole(judge) => Ok(Judged { reward: judge.reward(messages, answer)?, parts: Vec::new() }),
            Self::Segments(judge) => {
                let parts = judge.judge(messages, answer)?;
                let reward = parts.iter().map(|part| part.weight as f32 * part.total).sum();
                Ok(Judged { reward, parts })
            }
        }
    }
}

impl Work for Judge {}
