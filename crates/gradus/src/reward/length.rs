//! Closeness of the completion's length to a target, with a triangular shape.

use super::config::LengthRule;
use super::{Reward, Scores, config_error, score_each};
use crate::rollout::{Rollout, Rollouts, StopReason};

/// `max(0, 1 − |n − target| / tolerance)`, where `n` counts the completion's tokens without a stop id.
#[derive(Debug, Clone, PartialEq)]
pub struct LengthReward {
    target: usize,
    tolerance: usize,
}

impl LengthReward {
    /// Creates the reward of a rule.
    ///
    /// # Errors
    /// If the tolerance is 0 (without one, the target): no length could be close.
    pub fn new(rule: &LengthRule) -> crate::Result<Self> {
        let tolerance = rule.tolerance.unwrap_or(rule.target);
        if tolerance == 0 {
            let message = "the length rule's `tolerance` is 0, but at least 1 is needed".into();
            return Err(config_error(message, Some("without `tolerance` the `target` is used, so set one".into())));
        }
        Ok(Self { target: rule.target, tolerance })
    }
}

impl Reward for LengthReward {
    fn name(&self) -> String {
        "length".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        let closeness = |rollout: &Rollout| {
            let tokens = rollout.completion_ids.len() - usize::from(rollout.stop == StopReason::StopId);
            (1.0 - tokens.abs_diff(self.target) as f32 / self.tolerance as f32).max(0.0)
        };
        score_each(rollouts, |_, rollout| Ok(closeness(rollout)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_rollouts::{completions, totals};
    use super::*;

    #[test]
    fn a_triangle_around_the_target() {
        let mut reward = LengthReward::new(&LengthRule { target: 3, tolerance: Some(2) }).expect("valid");
        let texts = ["", "a", "a b", "a b c", "a b c d", "a b c d e"];
        assert_eq!(totals(&mut reward, &completions(texts)), [0.0, 0.0, 0.5, 1.0, 0.5, 0.0]);
    }

    #[test]
    fn a_stop_id_is_not_counted_but_other_ends_are() {
        let mut reward = LengthReward::new(&LengthRule { target: 2, tolerance: None }).expect("valid");
        let mut made = completions(["a b", "a b"]);
        made.rollouts[1].stop = StopReason::Length;
        assert_eq!(totals(&mut reward, &made), [1.0, 0.5]);
    }

    #[test]
    fn no_tolerance_is_refused() {
        let error = LengthReward::new(&LengthRule { target: 0, tolerance: None }).unwrap_err();
        assert_eq!(error.to_string(), "the length rule's `tolerance` is 0, but at least 1 is needed");
    }
}
