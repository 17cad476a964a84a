//! A reward from a closure, for library users.

use super::{Reward, RewardError, Score, Scores};
use crate::rollout::{Prompt, Rollout, Rollouts};

/// A sequence-level reward that calls a closure for each completion.
///
/// The closure returns the value, or `None` if the reward does not apply to the row.
///
/// ```
/// use gradus::reward::{FnReward, Reward};
///
/// let mut brevity = FnReward::new("brevity", |_prompt, rollout| Ok(Some(1.0 / (1 + rollout.completion.len()) as f32)));
/// assert_eq!(brevity.name(), "brevity");
/// ```
pub struct FnReward<F> {
    name: String,
    value: F,
}

impl<F> FnReward<F>
where
    F: FnMut(&Prompt, &Rollout) -> Result<Option<f32>, RewardError> + Send,
{
    /// Creates a reward named `name` that calls `value`.
    pub fn new(name: impl Into<String>, value: F) -> Self {
        Self { name: name.into(), value }
    }
}

impl<F> Reward for FnReward<F>
where
    F: FnMut(&Prompt, &Rollout) -> Result<Option<f32>, RewardError> + Send,
{
    fn name(&self) -> String {
        self.name.clone()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        let each = rollouts.rollouts.iter().map(|rollout| {
            let value = (self.value)(&rollouts.prompts[rollout.prompt], rollout)?;
            Ok(value.map_or_else(Score::unscored, |value| Score::sequence(value, rollout.completion_ids.len())))
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_rollouts::completions;
    use super::*;

    #[test]
    fn the_closure_scores_skips_or_fails() {
        let mut reward = FnReward::new("vowels", |_, rollout: &Rollout| match rollout.completion.as_str() {
            "skip" => Ok(None),
            "fail" => Err(RewardError::new("as asked")),
            text => Ok(Some(text.chars().filter(|c| "aeiou".contains(*c)).count() as f32)),
        });
        let scores = reward.score(&completions(["queue up", "skip", "fail"]));
        assert_eq!(scores[0], Ok(Score::per_token(vec![0.0, 0.0, 5.0])));
        assert_eq!(scores[1], Ok(Score::unscored()));
        assert_eq!(scores[2], Err(RewardError::new("as asked")));
    }
}
