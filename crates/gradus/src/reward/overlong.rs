//! DAPO's soft penalty on long completions.
//!
//! Yu et al. 2025, equation 13, <https://arxiv.org/abs/2503.14476>; TRL 1.16's `soft_overlong_punishment`.

use super::config::SoftOverlongRule;
use super::{Reward, Scores, config_error, score_each};
use crate::rollout::Rollouts;

/// 0 up to `max_length − cache` tokens (a stop id counts), then falling to −1 at `max_length` and beyond.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftOverlong {
    rule: SoftOverlongRule,
}

impl SoftOverlong {
    /// Creates the reward of a rule.
    ///
    /// # Errors
    /// If `cache` exceeds `max_length`.
    pub fn new(rule: SoftOverlongRule) -> crate::Result<Self> {
        let SoftOverlongRule { max_length, cache } = rule;
        if cache > max_length {
            let message = format!(
                "the soft overlong rule's `cache` is {cache}, but must be at most its `max_length`, {max_length}"
            );
            return Err(config_error(message, Some("a fifth of `max_length` is usual (Yu et al. 2025)".into())));
        }
        Ok(Self { rule })
    }

    fn penalty(&self, tokens: usize) -> f32 {
        let SoftOverlongRule { max_length, cache } = self.rule;
        match tokens {
            _ if tokens <= max_length - cache => 0.0,
            _ if tokens <= max_length => -((tokens - (max_length - cache)) as f32) / cache as f32,
            _ => -1.0,
        }
    }
}

impl Reward for SoftOverlong {
    fn name(&self) -> String {
        "soft_overlong".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        score_each(rollouts, |_, rollout| Ok(self.penalty(rollout.completion_ids.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_then_a_slope_then_all() {
        // The values of TRL 1.16's `get_soft_overlong_punishment(100, 20)` and `(100, 0)`.
        let soft = |cache| SoftOverlong::new(SoftOverlongRule { max_length: 100, cache }).expect("valid");
        let found = [10, 80, 81, 90, 100, 101].map(|tokens| soft(20).penalty(tokens));
        assert_eq!(found, [0.0, 0.0, -0.05, -0.5, -1.0, -1.0]);
        assert_eq!([100, 101].map(|tokens| soft(0).penalty(tokens)), [0.0, -1.0]);
        let error = SoftOverlong::new(SoftOverlongRule { max_length: 5, cache: 6 }).unwrap_err();
        assert_eq!(error.to_string(), "the soft overlong rule's `cache` is 6, but must be at most its `max_length`, 5");
    }
}
