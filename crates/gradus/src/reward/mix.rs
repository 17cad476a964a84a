//! A weighted sum of rewards: the list of their parts, with the weights multiplied.

use super::{Reward, RewardError, Score, Scores, config_error, interrupted, report};
use crate::metric::distinct_names;
use crate::progress::{Progress, RunSteps, Unwatched};
use crate::rollout::{Prompt, Rollouts};

/// `Σ weight · reward`, token by token, over the parts that score the row.
///
/// A part that does not apply to a row (`null`) is left out of that row's sum, as in TRL. A row to which no part
/// applies stays unscored. The parts of a mix inside a mix are named `mix/…`.
pub struct MixReward {
    name: &'static str,
    rewards: Vec<Weighted>,
}

struct Weighted {
    name: String,
    weight: f32,
    reward: Box<dyn Reward>,
}

impl MixReward {
    /// Creates the reward from weights and parts. Parts of the same name get a number: `regex`, `regex_2`.
    ///
    /// # Errors
    /// If there is no part, or a weight is not finite.
    pub fn new(parts: Vec<(f64, Box<dyn Reward>)>) -> crate::Result<Self> {
        if parts.is_empty() {
            return Err(config_error("the reward's `mix` is empty".into(), Some("name at least one reward".into())));
        }
        if let Some((weight, _)) = parts.iter().find(|(weight, _)| !weight.is_finite()) {
            return Err(config_error(format!("a weight of the reward's `mix` is {weight}"), None));
        }
        let names = distinct_names(parts.iter().map(|(_, reward)| reward.name()));
        let named = names.into_iter().zip(parts).map(|(name, (weight, reward))| (name, weight, reward));
        Ok(Self::of_named("mix", named.collect()))
    }

    /// Creates the sum of rewards whose parts have these names.
    pub(super) fn of_named(name: &'static str, parts: Vec<(String, f64, Box<dyn Reward>)>) -> Self {
        let weighted =
            |(name, weight, reward): (String, f64, Box<dyn Reward>)| Weighted { name, weight: weight as f32, reward };
        Self { name, rewards: parts.into_iter().map(weighted).collect() }
    }
}

impl Reward for MixReward {
    fn name(&self) -> String {
        self.name.into()
    }

    fn remarks(&self, prompts: &[&Prompt]) -> Vec<String> {
        self.rewards.iter().flat_map(|weighted| weighted.reward.remarks(prompts)).collect()
    }

    fn depends_on_batch(&self) -> bool {
        self.rewards.iter().any(|weighted| weighted.reward.depends_on_batch())
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        let mut mixed: Scores = vec![Ok(Score::unscored()); rollouts.len()];
        let parts = self.rewards.len();
        for (part, Weighted { name, weight, reward }) in self.rewards.iter_mut().enumerate() {
            let scores = reward.score_with_progress(rollouts, &OfPart { inner: progress, part, parts });
            if scores.iter().flat_map(|score| score.as_ref().err()).any(|error| error.is_interrupted)
                || report(progress, (part + 1) * rollouts.len() / parts, rollouts.len()).is_err()
            {
                return interrupted(rollouts);
            }
            // `apply` reports a wrong number of scores for the whole mix.
            mixed.truncate(scores.len());
            for (sum, score) in mixed.iter_mut().zip(scores) {
                match (&mut *sum, score) {
                    (Ok(sum), Ok(score)) => sum.add(name, *weight, score),
                    (Ok(_), Err(error)) => {
                        *sum = Err(RewardError { message: format!("`{name}`: {}", error.message), ..error });
                    }
                    (Err(_), _) => {}
                }
            }
        }
        mixed
    }
}

/// Converts the progress of one part to a share of the progress of all parts.
struct OfPart<'a> {
    inner: &'a dyn Progress,
    part: usize,
    parts: usize,
}

impl Progress for OfPart<'_> {
    fn advance(&self, what: &'static str, done: usize, total: usize) -> crate::Result<()> {
        self.inner.advance(what, (self.part * total + done) / self.parts, total)
    }

    fn warn(&self, message: &str) {
        self.inner.warn(message);
    }

    fn run_steps(&self) -> Option<RunSteps> {
        self.inner.run_steps()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::test_rollouts::{Reports, completions, reports};
    use super::super::{FnReward, RegexReward, SubstringReward};
    use super::*;

    fn constant(name: &str, value: Option<f32>) -> Box<dyn Reward> {
        Box::new(FnReward::new(name, move |_, _| Ok(value)))
    }

    /// Returns the names and totals of the parts.
    fn totals(score: &Score) -> Vec<(&str, f32)> {
        score.parts.iter().map(|part| (part.name.as_str(), part.total())).collect()
    }

    #[test]
    fn weights_multiply_and_parts_are_kept_before_weighting() {
        let parts: Vec<(f64, Box<dyn Reward>)> =
            vec![(2.0, constant("a", Some(3.0))), (-0.5, constant("b", Some(4.0)))];
        let mut mix = MixReward::new(parts).expect("valid");
        let score = mix.score(&completions(["one"])).remove(0).expect("scored");
        assert_eq!(score.rewards_t(), Some(vec![0.0, 4.0])); // 2·3 − 0.5·4
        assert_eq!(totals(&score), [("a", 3.0), ("b", 4.0)]);
        assert_eq!(score.parts.iter().map(|part| part.weight).collect::<Vec<_>>(), [2.0, -0.5]);
    }

    #[test]
    fn null_is_left_out_and_all_null_stays_unscored() {
        let parts = vec![(2.0, constant("a", None)), (0.5, constant("b", Some(4.0)))];
        let score = MixReward::new(parts).expect("valid").score(&completions(["one"])).remove(0).expect("scored");
        assert_eq!((score.total(), totals(&score)), (Some(2.0), vec![("b", 4.0)]));

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
        assert_eq!(totals(&score), [("mix/regex", 0.0), ("mix/regex_2", 1.0), ("substring", 1.0)]);
        assert_eq!(score.total(), Some(2.0));
    }

    #[test]
    fn a_part_that_fails_is_named() {
        let fails = Box::new(FnReward::new("fails", |_, _| Err(RewardError::new("out of ink"))));
        let parts: Vec<(f64, Box<dyn Reward>)> = vec![(1.0, constant("a", Some(1.0))), (1.0, fails)];
        let error = MixReward::new(parts).expect("valid").score(&completions(["one"])).remove(0).unwrap_err();
        assert_eq!(error.message, "`fails`: out of ink");
    }

    /// Scores each rollout with what the function returns for its number and the progress.
    struct Watching<F>(F);

    impl<F: FnMut(usize, &dyn Progress) -> Result<f32, RewardError> + Send> Reward for Watching<F> {
        fn name(&self) -> String {
            "watching".into()
        }

        fn score(&mut self, rollouts: &Rollouts) -> Scores {
            self.score_with_progress(rollouts, &Unwatched)
        }

        fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
            let lengths = rollouts.rollouts.iter().map(|rollout| rollout.completion_ids.len());
            lengths.enumerate().map(|(i, length)| Ok(Score::sequence((self.0)(i, progress)?, length))).collect()
        }
    }

    /// Progress of work after step 3 of 8.
    struct AfterThree;

    impl Progress for AfterThree {
        fn advance(&self, _what: &'static str, _done: usize, _total: usize) -> crate::Result<()> {
            Ok(())
        }

        fn run_steps(&self) -> Option<RunSteps> {
            Some(RunSteps { done: 3, total: 8 })
        }
    }

    #[test]
    fn parts_know_the_steps_of_the_run() {
        let steps = Watching(|_: usize, progress: &dyn Progress| {
            Ok(progress.run_steps().map_or(-1.0, |steps| (100 * steps.done + steps.total) as f32))
        });
        let mut mix = MixReward::new(vec![(1.0, Box::new(steps))]).expect("valid");
        let made = completions(["one"]);
        let score = mix.score_with_progress(&made, &AfterThree).remove(0).expect("scored");
        assert_eq!(score.total(), Some(308.0));
        assert_eq!(mix.score(&made).remove(0).expect("scored").total(), Some(-1.0), "outside of a run");
    }

    #[test]
    fn the_parts_share_one_progress_and_end_together() {
        let count = Arc::<AtomicUsize>::default();
        let made = completions(["one", "two", "three", "four"]);
        let total = made.len();
        let each = || -> Box<dyn Reward> {
            let count = count.clone();
            Box::new(Watching(move |i: usize, progress: &dyn Progress| {
                count.fetch_add(1, Ordering::Relaxed);
                report(progress, i + 1, total).map(|()| 1.0)
            }))
        };
        let mut mix = MixReward::new(vec![(1.0, each()), (1.0, constant("b", None))]).expect("valid");
        // The first part is half of the work; the second one reports only when it is done.
        assert_eq!(reports(&mut mix, &made), [(0, 4), (0, 4), (1, 4), (1, 4), (2, 4), (2, 4), (4, 4)]);

        let mut mix = MixReward::new(vec![(1.0, each()), (1.0, each())]).expect("valid");
        count.store(0, Ordering::Relaxed);
        let stops = Reports { stops_after: Some(3), ..Reports::default() };
        let error = super::super::apply_with_progress(&mut mix, &made, &stops).expect_err("interrupted");
        assert!(matches!(error, crate::Error::Interrupted), "{error}");
        assert_eq!(count.load(Ordering::Relaxed), total, "the second part is not begun");
    }

    #[test]
    fn an_empty_mix_is_refused() {
        assert_eq!(MixReward::new(vec![]).err().expect("refused").to_string(), "the reward's `mix` is empty");
    }
}
