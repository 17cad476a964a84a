//! Rewards: what a completion is worth, per token.
//!
//! A sequence-level reward sits on the last token of the completion, a sentence-level one on the sentence's last
//! token, so holistic and fine-grained training are one code path.

pub mod config;

use crate::rollout::Rollouts;

/// Scores completions. The open extension point of the library: implement it for your own reward.
pub trait Reward: Send {
    /// The name under which this reward is logged (`rewards/<name>/mean`).
    fn name(&self) -> String;

    /// One entry per rollout, in order.
    ///
    /// A failure is an `Err` for that rollout and is never turned into 0: 0 is a judgement.
    fn score(&mut self, rollouts: &Rollouts) -> Vec<Result<Score, RewardError>>;
}

/// What a reward says of one rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// One value per completion token; `None` when this reward does not apply to the row (`null` from a command).
    pub rewards_t: Option<Vec<f32>>,
    /// The parts it is made of, by name, before weighting: for logs.
    pub components: Vec<(String, f32)>,
}

impl Score {
    /// A sequence-level reward: `value` on the last of `tokens` tokens.
    pub fn sequence(value: f32, tokens: usize) -> Self {
        let mut rewards_t = vec![0.0; tokens];
        if let Some(last) = rewards_t.last_mut() {
            *last = value;
        }
        Self { rewards_t: Some(rewards_t), components: Vec::new() }
    }

    /// The sum over tokens; `None` when the row was not scored.
    pub fn total(&self) -> Option<f32> {
        self.rewards_t.as_ref().map(|rewards_t| rewards_t.iter().sum())
    }
}

/// A reward that could not be computed for one rollout.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct RewardError {
    /// What happened.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}
