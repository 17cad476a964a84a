//! The score of a completion: named parts, each with its weight and one value per token.

use super::RewardError;
use serde::{Deserialize, Serialize};

/// Name of the count of segments that were cut off before a model read them.
pub(super) const UNREAD: &str = "unread";
/// Name of the count of whole texts that lost their end.
pub(super) const CUT: &str = "cut";

/// The score of one rollout: the reward of a token is the weighted sum of its parts at that token.
///
/// Without parts, the reward does not apply to the row (`null` from a command). A part that does not apply is left out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Score {
    /// Parts, in the order in which they are added.
    pub parts: Vec<RewardPart>,
    /// Counts for the log.
    pub counts: Vec<Count>,
}

/// A share or a mean over units other than completions, such as right segments among all segments. Over several
/// completions both numbers are summed, so a completion with more segments has more weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// Name in the log.
    pub name: String,
    /// Numerator: the sum over the counted units.
    pub sum: f64,
    /// Denominator: the number of units; 0 if there were none.
    pub of: f64,
}

impl Count {
    /// Creates the count `sum` / `of`.
    pub fn new(name: impl Into<String>, sum: f64, of: usize) -> Self {
        Self { name: name.into(), sum, of: of as f64 }
    }

    /// Returns the part of the reward whose texts did not fit into its model, if this count is about that.
    pub fn over_limit(&self) -> Option<&str> {
        let (part, name) = self.name.rsplit_once('/')?;
        [UNREAD, CUT].contains(&name).then_some(part)
    }
}

/// One part of a reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RewardPart {
    /// Name in the log. Empty for a reward with a single part, which uses the reward's own name.
    pub name: String,
    /// Factor of its values in the sum; negative if less is better.
    pub weight: f32,
    /// One value per completion token, before weighting.
    pub rewards_t: Vec<f32>,
}

impl RewardPart {
    /// Returns the sum over tokens, before weighting.
    pub fn total(&self) -> f32 {
        self.rewards_t.iter().sum()
    }
}

impl Score {
    /// Creates a score with one value per token.
    pub fn per_token(rewards_t: Vec<f32>) -> Self {
        Self { parts: vec![RewardPart { name: String::new(), weight: 1.0, rewards_t }], counts: Vec::new() }
    }

    /// Creates a sequence-level score: `value` on the last of `tokens` tokens.
    pub fn sequence(value: f32, tokens: usize) -> Self {
        let mut rewards_t = vec![0.0; tokens];
        if let Some(last) = rewards_t.last_mut() {
            *last = value;
        }
        Self::per_token(rewards_t)
    }

    /// Creates the score of a row to which the reward does not apply.
    pub fn unscored() -> Self {
        Self::default()
    }

    /// Computes `Σ weight · reward` for each token, added in the order of the parts; `None` if the row was not scored.
    pub fn rewards_t(&self) -> Option<Vec<f32>> {
        let mut sums_t = vec![0.0; self.parts.first()?.rewards_t.len()];
        for RewardPart { weight, rewards_t, .. } in &self.parts {
            for (sum, reward) in sums_t.iter_mut().zip(rewards_t) {
                *sum += weight * reward;
            }
        }
        Some(sums_t)
    }

    /// Returns the sum over tokens; `None` if the row was not scored.
    pub fn total(&self) -> Option<f32> {
        self.rewards_t().map(|rewards_t| rewards_t.iter().sum())
    }

    /// Adds `other` as the part `name` with this weight; its own parts and counts are then named `name/…`.
    pub(super) fn add(&mut self, name: &str, weight: f32, other: Self) {
        let named = |own: String| if own.is_empty() { name.to_owned() } else { format!("{name}/{own}") };
        let part = |part: RewardPart| RewardPart { name: named(part.name), weight: weight * part.weight, ..part };
        self.parts.extend(other.parts.into_iter().map(part));
        self.counts.extend(other.counts.into_iter().map(|count| Count { name: named(count.name), ..count }));
    }

    /// Rejects scores that no trainer can use: parts of the wrong length, and sums that are not finite. Also rejects several parts of which
    /// one has no name or the name of the whole `reward`: its values could not be told apart from those of the sum.
    pub(super) fn check(&self, reward: &str, tokens: usize) -> Result<(), RewardError> {
        let is_taken = |part: &RewardPart| part.name.is_empty() || part.name == reward;
        if self.parts.len() > 1 && self.parts.iter().any(is_taken) {
            let message =
                format!("one of its {} parts has the name of the reward itself, `{reward}`", self.parts.len());
            return Err(RewardError::new(message).with_hint("give the part or the reward another name"));
        }
        for RewardPart { name, rewards_t, .. } in &self.parts {
            if rewards_t.len() != tokens {
                let of = if name.is_empty() { String::new() } else { format!("`{name}`: ") };
                let message = format!("{of}{} values for a completion of {tokens} tokens", rewards_t.len());
                return Err(RewardError::new(message));
            }
        }
        match self.rewards_t().unwrap_or_default().iter().find(|value| !value.is_finite()) {
            Some(value) => Err(RewardError::new(format!("the reward is {value}, but a finite number is needed"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_worth_the_weighted_sum_of_its_parts() {
        let part = |name: &str, weight, rewards_t: [f32; 3]| RewardPart {
            name: name.into(),
            weight,
            rewards_t: rewards_t.into(),
        };
        let of = |parts: Vec<RewardPart>| Score { parts, ..Score::default() };
        let score = of(vec![part("a", 2.0, [1.0, 0.0, 3.0]), part("b", -0.5, [0.0, 4.0, 2.0])]);
        assert_eq!(score.rewards_t(), Some(vec![2.0, -2.0, 5.0])); // 2·1, −½·4, 2·3 − ½·2
        assert_eq!((score.parts[0].total(), score.parts[1].total(), score.total()), (4.0, 6.0, Some(5.0)));
        assert_eq!((Score::unscored().rewards_t(), Score::unscored().total()), (None, None));
    }

    #[test]
    fn weights_of_sums_within_sums_multiply() {
        let part = |name: &str, weight| RewardPart { name: name.into(), weight, rewards_t: vec![3.0] };
        let inner = Score { parts: vec![part("inner", -0.5)], counts: vec![Count::new("right", 1.0, 2)] };
        let mut sum = Score::default();
        sum.add("outer", 4.0, inner);
        sum.add("other", 2.0, Score::per_token(vec![3.0]));
        assert_eq!(sum.parts, [part("outer/inner", -2.0), part("other", 2.0)]);
        assert_eq!(sum.counts, [Count::new("outer/right", 1.0, 2)]);
    }

    #[test]
    fn a_part_of_the_wrong_length_is_named() {
        let part = |name: &str, tokens| RewardPart { name: name.into(), weight: 1.0, rewards_t: vec![0.0; tokens] };
        let of = |parts: Vec<RewardPart>| Score { parts, ..Score::default() };
        let score = of(vec![part("a", 3), part("b", 2)]);
        let error = score.check("mine", 3).unwrap_err();
        assert_eq!(error.message, "`b`: 2 values for a completion of 3 tokens");
        let error = score.check("a", 3).unwrap_err();
        assert_eq!(error.message, "one of its 2 parts has the name of the reward itself, `a`");
        of(vec![part("a", 3)]).check("a", 3).expect("it has no other part");
        // A part with weight 0 may still be infinite; the sum is then NaN.
        let score = of(vec![RewardPart { weight: 0.0, rewards_t: vec![f32::INFINITY], ..part("a", 1) }]);
        assert_eq!(score.check("mine", 1).unwrap_err().message, "the reward is NaN, but a finite number is needed");
    }
}
