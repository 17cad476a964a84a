//! A reward that prefers short completions.

use gradus::reward::{Reward, RewardError, Score};
use gradus::rollout::Rollouts;
use schemars::JsonSchema;
use serde::Deserialize;

/// 1 for an empty completion, falling to 0 at a number of words.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Brevity {
    /// Number of words at which the reward reaches 0. Default 20.
    #[serde(default = "twenty")]
    pub words: usize,
}

fn twenty() -> usize {
    20
}

impl Reward for Brevity {
    fn name(&self) -> String {
        "brevity".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Vec<Result<Score, RewardError>> {
        let each = rollouts.rollouts.iter().map(|rollout| {
            let words = rollout.completion.split_whitespace().count() as f32;
            let value = (1.0 - words / self.words.max(1) as f32).max(0.0);
            // The reward of a whole completion is assigned to its last token.
            Ok(Score::sequence(value, rollout.completion_ids.len()))
        });
        each.collect()
    }
}
