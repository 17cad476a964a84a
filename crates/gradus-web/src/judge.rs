//! What says how good an answer is.

use gradus::Result;
use gradus::data::Message;
use gradus::inference::{Answer, ChatJudge, JudgedPart, SegmentsJudge};

use crate::actor::Work;

/// One that judges answers as a whole, or several that judge their segments.
pub enum Judge {
    /// A reward model.
    Whole(Box<ChatJudge>),
    /// Classifiers, or what a run is rewarded with.
    Segments(SegmentsJudge),
}

/// What is said of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// What it is worth: the weighted sum of the parts, where there are any.
    pub reward: f32,
    /// The parts of a dense reward.
    pub parts: Vec<JudgedPart>,
}

impl Judge {
    /// Judges an answer to a conversation.
    ///
    /// # Errors
    /// When it cannot be read.
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
