//! The format of reasoning models: thoughts between marks, then an answer. As TRL 1.16's `think_format_reward`.

use super::{Reward, Scores, score_each};
use crate::rollout::Rollouts;

/// 1 if the completion begins with `<think>`, contains it once, and closes it with `</think>`; otherwise 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThinkFormatReward;

fn is_well_formed(text: &str) -> bool {
    text.strip_prefix("<think>").is_some_and(|rest| rest.contains("</think>") && !rest.contains("<think>"))
}

impl Reward for ThinkFormatReward {
    fn name(&self) -> String {
        "think_format".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        score_each(rollouts, |_, rollout| Ok(f32::from(u8::from(is_well_formed(&rollout.completion)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_stand_once_at_the_start() {
        // The verdicts of TRL 1.16.
        for (text, expected) in [
            ("<think>\nI add.\n</think>\nIt is 4.", true),
            ("<think></think>", true),
            ("<think>I add. It is 4.", false),
            (" <think>a</think>", false),
            ("a <think>b</think>", false),
            ("<think>a<think>b</think>", false),
            ("<think>a</think> b <think>c</think>", false),
            ("<think>a</think></think>", true),
            ("", false),
        ] {
            assert_eq!(is_well_formed(text), expected, "{text}");
        }
    }
}
