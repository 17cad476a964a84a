//! Mathematical answers, compared by value, and the same reward scaled by the length of the completion.
//!
//! [`gradus_metrics::mathematics`] defines answers and their equality. The scale is that of Yeo et al. 2025,
//! <https://arxiv.org/abs/2502.03373>, appendix C.1, as in TRL 1.16's `get_cosine_scaled_reward`.

use gradus_metrics::mathematics::MathAnswer;

use super::config::{CosineRule, MathRule};
use super::{Reward, RewardError, Score, Scores, column_text, config_error};
use crate::rollout::{Prompt, Rollout, Rollouts};

/// 1 if the completion's answer equals that of the named column, otherwise 0.
///
/// A row whose column holds no answer is not scored, as in TRL.
#[derive(Debug, Clone)]
pub struct MathReward {
    rule: MathRule,
}

impl MathReward {
    /// Creates the reward of a rule.
    pub fn new(rule: &MathRule) -> Self {
        Self { rule: rule.clone() }
    }
}

/// Returns whether the completion's answer equals the column's, or `None` if the column holds no answer.
fn is_correct(prompt: &Prompt, rollout: &Rollout, rule: &MathRule) -> Result<Option<bool>, RewardError> {
    let gold = column_text(prompt, &rule.column)?;
    let Some(gold) = MathAnswer::gold(&gold) else { return Ok(None) };
    let text = match &rule.after {
        // Text before the mark is not an answer, and without the mark there is no answer.
        Some(mark) => match rollout.completion.rsplit_once(mark.as_str()) {
            Some((_, answer)) => answer,
            None => return Ok(Some(false)),
        },
        None => &rollout.completion,
    };
    Ok(Some(MathAnswer::find(text).is_some_and(|answer| gold.is_matched_by(&answer))))
}

fn scored(rollouts: &Rollouts, rule: &MathRule, value: impl Fn(bool, usize) -> f32) -> Scores {
    let each = rollouts.rollouts.iter().map(|rollout| {
        let tokens = rollout.completion_ids.len();
        let correct = is_correct(&rollouts.prompts[rollout.prompt], rollout, rule)?;
        Ok(correct.map_or_else(Score::unscored, |correct| Score::sequence(value(correct, tokens), tokens)))
    });
    each.collect()
}

impl Reward for MathReward {
    fn name(&self) -> String {
        "math".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        scored(rollouts, &self.rule, |correct, _| f32::from(u8::from(correct)))
    }
}

/// Correctness as in [`MathReward`], scaled by the completion's length n in tokens along a cosine: `low + (high − low)
/// (1 + cos(π min(n / max_length, 1))) / 2`. By default, short right answers earn most; among wrong answers, long ones
/// earn most.
#[derive(Debug, Clone)]
pub struct CosineReward {
    rule: CosineRule,
    math: MathRule,
}

impl CosineReward {
    /// Creates the reward of a rule.
    ///
    /// # Errors
    /// If `max_length` is 0.
    pub fn new(rule: &CosineRule) -> crate::Result<Self> {
        if rule.max_length == 0 {
            return Err(config_error("the cosine rule's `max_length` is 0, but at least 1 is needed".into(), None));
        }
        let math = MathRule { column: rule.column.clone(), after: rule.after.clone() };
        Ok(Self { rule: rule.clone(), math })
    }

    fn value(&self, correct: bool, tokens: usize) -> f32 {
        let CosineRule { max_length, right, wrong, .. } = &self.rule;
        let progress = (tokens as f64 / *max_length as f64).min(1.0);
        let (long, short) = match correct {
            true => (right.long, right.short),
            false => (wrong.long, wrong.short),
        };
        (long + 0.5 * (short - long) * (1.0 + (progress * std::f64::consts::PI).cos())) as f32
    }
}

impl Reward for CosineReward {
    fn name(&self) -> String {
        "cosine_length".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        scored(rollouts, &self.math, |correct, tokens| self.value(correct, tokens))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_rollouts::{rollouts, totals};
    use super::*;

    #[test]
    fn answers_are_compared_by_value() {
        let made = rollouts([
            ("p", json!({ "solution": r"\frac{1}{3}" }), r"My answer is \boxed{\frac{2}{6}}"),
            ("p", json!({ "solution": r"$x^2+2x+1$" }), r"so $(x+1)^2$"),
            ("p", json!({ "solution": 18 }), "#### 17"),
        ]);
        let mut reward = MathReward::new(&MathRule { column: "solution".into(), after: None });
        assert_eq!(totals(&mut reward, &made), [1.0, 1.0, 0.0]);
        let none = rollouts([("p", json!({ "solution": "see the book" }), "3")]);
        assert_eq!(reward.score(&none), [Ok(Score::unscored())]);
        let mut thinking = MathReward::new(&MathRule { column: "solution".into(), after: Some("</think>".into()) });
        let made = rollouts([
            ("p", json!({ "solution": "4" }), "<think>4</think> It is 5."),
            ("p", json!({ "solution": "4" }), "<think>5</think> It is 4."),
            ("p", json!({ "solution": "4" }), "<think>It is 4."),
        ]);
        assert_eq!(totals(&mut thinking, &made), [0.0, 1.0, 0.0]);
    }

    #[test]
    fn lengths_scale_as_in_trl() {
        // TRL 1.16: `get_cosine_scaled_reward(100)` of 0, 25, 50, 100 and 150 tokens.
        let yaml = "column: solution\nmax_length: 100";
        let reward = CosineReward::new(&serde_saphyr::from_str(yaml).expect("a rule")).expect("valid");
        for (tokens, right, wrong) in
            [(0, 1.0, -1.0), (25, 0.926_776_7, -0.926_776_7), (50, 0.75, -0.75), (100, 0.5, -0.5), (150, 0.5, -0.5)]
        {
            assert!((reward.value(true, tokens) - right).abs() < 1e-6, "{tokens}");
            assert!((reward.value(false, tokens) - wrong).abs() < 1e-6, "{tokens}");
        }
    }
}
