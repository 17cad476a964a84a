//! A weighted sum of rewards, per token.

use super::{Reward, RewardError, Score, config_error};
use crate::rollout::Rollouts;

/// `Σ weight · reward`, token by token, over the parts that score the row.
///
/// A part that does not apply to a row (`null`) is left out of that row's sum, as in TRL; a row to which no part
/// applies stays unscored. Every part's total is recorded as a component, before weighting.
pub struct MixReward {
    parts: Vec<Part>,
}

struct Part {
    name: String,
    weight: f32,
    reward: Box<dyn Reward>,
}

impl MixReward {
    /// The reward of weights and parts. Parts of the same name are told apart by a number: `regex`, `regex_2`.
    ///
    /// # Errors
    /// When there is no part or a weight is not finite.
    pub fn new(parts: Vec<(f64, Box<dyn Reward>)>) -> crate::Result<Self> {
        if parts.is_empty() {
            return Err(config_error("the reward's `mix` is empty".into(), Some("name at least one reward".into())));
        }
        let mut made: Vec<Part> = Vec::new();
        for (weight, reward) in parts {
            if !weight.is_finite() {
                return Err(config_error(format!("a weight of the reward's `mix` is {weight}"), None));
            }
            let base = reward.name();
            let mut name = base.clone();
            let mut number = 1;
            while made.iter().any(|part| part.name == name) {
                number += 1;
                name = format!("{base}_{number}");
            }
            made.push(Part { name, weight: weight as f32, reward });
        }
        Ok(Self { parts: made })
    }
}

impl Reward for MixReward {
    fn name(&self) -> String {
        "mix".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Vec<Result<Score, RewardError>> {
        let mut mixed: Vec<Result<Score, RewardError>> = vec![Ok(Score::unscored()); rollouts.len()];
        for part in &mut self.parts {
            let scores = part.reward.score(rollouts);
            // A count that differs is reported by `apply` for the whole mix.
            mixed.truncate(scores.len());
            for (sum, score) in mixed.iter_mut().zip(scores) {
                let added = match (&mut *sum, score) {
                    (Ok(sum), Ok(score)) => add(sum, part.weight, &part.name, score),
                    (Ok(_), Err(error)) => Err(error),
                    (Err(_), _) => continue,
                };
                if let Err(RewardError { message, hint }) = added {
                    *sum = Err(RewardError { message: format!("`{}`: {message}", part.name), hint });
                }
            }
        }
        mixed
    }

    fn sign(&self, component: &str) -> f32 {
        let of_part = |part: &Part| {
            let inner = component.strip_prefix(&part.name)?;
            let inner = if inner.is_empty() { Some(inner) } else { inner.strip_prefix('/') };
            inner.map(|inner| part.weight.signum() * if inner.is_empty() { 1.0 } else { part.reward.sign(inner) })
        };
        self.parts.iter().find_map(of_part).unwrap_or(1.0)
    }
}

fn add(sum: &mut Score, weight: f32, name: &str, score: Score) -> Result<(), RewardError> {
    if let Some(total) = score.total() {
        sum.components.push((name.into(), total));
        sum.components.extend(score.components.into_iter().map(|(inner, value)| (format!("{name}/{inner}"), value)));
    }
    let Some(rewards_t) = score.rewards_t else { return Ok(()) };
    let sums_t = sum.rewards_t.get_or_insert_with(|| vec![0.0; rewards_t.len()]);
    if sums_t.len() != rewards_t.len() {
        return Err(RewardError::new(format!("{} values where another part gave {}", rewards_t.len(), sums_t.len())));
    }
    for (sum, reward) in sums_t.iter_mut().zip(rewards_t) {
        *sum += weight * reward;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::test_rollouts::completions;
    use super::super::{FnReward, RegexReward, SubstringReward};
    use super::*;

    fn constant(name: &str, value: Option<f32>) -> Box<dyn Reward> {
        Box::new(FnReward::new(name, move |_, _| Ok(value)))
    }

    #[test]
    fn weights_multiply_and_components_are_recorded_before_weighting() {
        let parts: Vec<(f64, Box<dyn Reward>)> =
            vec![(2.0, constant("a", Some(3.0))), (-0.5, constant("b", Some(4.0)))];
        let mut mix = MixReward::new(parts).expect("valid");
        let score = mix.score(&completions(["one"])).remove(0).expect("scored");
        assert_eq!(score.rewards_t, Some(vec![0.0, 4.0])); // 2·3 − 0.5·4
        assert_eq!(score.components, [("a".to_string(), 3.0), ("b".to_string(), 4.0)]);
    }

    #[test]
    fn null_is_left_out_and_all_null_stays_unscored() {
        let parts = vec![(2.0, constant("a", None)), (0.5, constant("b", Some(4.0)))];
        let score = MixReward::new(parts).expect("valid").score(&completions(["one"])).remove(0).expect("scored");
        assert_eq!((score.total(), score.components), (Some(2.0), vec![("b".to_string(), 4.0)]));

        let parts = vec![(1.0, constant("a", None)), (1.0, constant("b", None))];
        let score = MixReward::new(parts).expect("valid").score(&completions(["one"])).remove(0).expect("scored");
        assert_eq!(score, Score::unscored());
    }

    #[test]
    fn parts_of_one_name_are_numbered_and_mixes_nest() {
        let regex = |pattern: &str| -> Box<dyn Reward> { Box::new(RegexReward::new(pattern).expect("valid")) };
        let inner = MixReward::new(vec![(1.0, regex("a")), (1.0, regex("b"))]).expect("valid");
        let substring = Box::new(SubstringReward::new("b"));
        let parts: Vec<(f64, Box<dyn Reward>)> = vec![(1.0, Box::new(inner)), (1.0, substring)];
        let score = MixReward::new(parts).expect("valid").score(&completions(["b"])).remove(0).expect("scored");
        let expected = [("mix", 1.0), ("mix/regex", 0.0), ("mix/regex_2", 1.0), ("substring", 1.0)]
            .map(|(n, v)| (n.to_string(), v));
        assert_eq!(score.components, expected);
        assert_eq!(score.total(), Some(2.0));
    }

    #[test]
    fn a_part_that_fails_is_named() {
        let fails = Box::new(FnReward::new("fails", |_, _| Err(RewardError::new("out of ink"))));
        let parts: Vec<(f64, Box<dyn Reward>)> = vec![(1.0, constant("a", Some(1.0))), (1.0, fails)];
        let error = MixReward::new(parts).expect("valid").score(&completions(["one"])).remove(0).unwrap_err();
        assert_eq!(error.message, "`fails`: out of ink");
    }

    #[test]
    fn an_empty_mix_is_refused() {
        assert_eq!(MixReward::new(vec![]).err().expect("refused").to_string(), "the reward's `mix` is empty");
    }
}
