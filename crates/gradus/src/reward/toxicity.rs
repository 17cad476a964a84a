//! Rewards for detoxification: how harmless a completion is as a whole, or how much each of its sentences adds to its
//! toxicity.
//!
//! Wu et al. 2023, <https://arxiv.org/abs/2306.01693>, section 4. For the whole: 1 − tox(y) at its end. By segments:
//! r_j = tox(y_1 … y_{j−1}) − tox(y_1 … y_j) at the end of each, with tox() = 0, so they sum to −tox(y).

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::place::last_token;
use super::score::Count;
use super::{Reward, RewardError, Score, Scores};
use crate::metric::{Models, toxicity_scorer, toxicity_scores};
use crate::process::Interrupt;
use crate::rollout::{Rollout, Rollouts};
use crate::text::{Level, RuleSplitter, segments};
use crate::toxicity::{ScorerConfig, ToxicityScorer};

/// Keys of `reward.toxicity`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToxicityConfig {
    /// Scorer of a completion's toxicity; it reads the completion without its prompt.
    pub scorer: ScorerConfig,
    /// Rewarded unit: the `whole` completion, by 1 − its toxicity; or each `sentence` or `sub_sentence`, by the
    /// decrease in toxicity from the text before it to the text with it. Default `whole`.
    #[serde(default = "whole")]
    pub segments: Level,
}

fn whole() -> Level {
    Level::Whole
}

/// Reward by the harmlessness of completions. Thoughts are read as well.
///
/// A blank completion has toxicity 0. A text that the scorer cannot judge changes nothing: the next text that it can
/// judge is compared to the last judged one. A completion in which it can judge nothing is not scored.
pub struct ToxicityReward {
    scorer: Box<dyn ToxicityScorer>,
    level: Level,
}

impl ToxicityReward {
    /// Creates the reward of `config`. It opens a classifier with `models`; an `interrupt` ends the wait for a service.
    ///
    /// # Errors
    /// If the scorer cannot be opened.
    pub fn new(config: &ToxicityConfig, models: &dyn Models, interrupt: &Interrupt) -> crate::Result<Self> {
        Ok(Self { scorer: toxicity_scorer(&config.scorer, models, interrupt)?, level: config.segments })
    }

    /// Splits a completion into segments. A completion that is judged as a whole is one segment, even if it is empty.
    fn segments(&self, completion: &str) -> Vec<Range<usize>> {
        match self.level {
            Level::Whole => std::iter::once(0..completion.len()).collect(),
            level => segments(&RuleSplitter, completion, level),
        }
    }

    /// Computes the reward of a completion from the toxicity of its text up to the end of each segment.
    fn judged(
        &self,
        segments: &[Range<usize>],
        toxicity: &[Option<f64>],
        rollout: &Rollout,
        ranges: impl FnOnce() -> crate::Result<Vec<Range<usize>>>,
    ) -> Result<Score, RewardError> {
        let tokens = rollout.completion_ids.len();
        let scored = toxicity.iter().flatten().count();
        if scored == 0 && !segments.is_empty() {
            return Ok(Score::unscored());
        }
        let last = toxicity.iter().rev().flatten().next().copied().unwrap_or(0.0);
        let mut rewards_t = vec![0.0; tokens];
        if self.level == Level::Whole {
            rewards_t[tokens - 1] = (1.0 - last) as f32;
        } else if !segments.is_empty() {
            let ranges_t = ranges().map_err(|error| RewardError::from(&error))?;
            let mut before = 0.0;
            for (segment, toxicity) in segments.iter().zip(toxicity) {
                let Some(toxicity) = toxicity else { continue };
                let end = segment.start + rollout.completion[segment.clone()].trim_end().len();
                // Two segments may end within one token, which then gets the sum of both changes.
                rewards_t[last_token(&ranges_t, end).unwrap_or(tokens - 1)] += (before - toxicity) as f32;
                before = *toxicity;
            }
        }
        let counts = vec![
            Count::new("score", last, 1),
            Count::new("segments", segments.len() as f64, 1),
            Count::new("unscored", (segments.len() - scored) as f64, segments.len()),
        ];
        Ok(Score { counts, ..Score::per_token(rewards_t) })
    }
}

impl Reward for ToxicityReward {
    fn name(&self) -> String {
        "toxicity".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        let cut: Vec<Vec<Range<usize>>> =
            rollouts.rollouts.iter().map(|rollout| self.segments(&rollout.completion)).collect();
        let texts: Vec<&str> = cut
            .iter()
            .zip(&rollouts.rollouts)
            .flat_map(|(segments, rollout)| segments.iter().map(|segment| &rollout.completion[..segment.end]))
            .collect();
        let mut scores = toxicity_scores(&*self.scorer, &texts).into_iter();
        let score = |(i, segments): (usize, &Vec<Range<usize>>)| {
            let scores: Vec<_> = scores.by_ref().take(segments.len()).collect();
            let toxicity = scores.into_iter().collect::<Result<Vec<_>, RewardError>>()?;
            self.judged(segments, &toxicity, &rollouts.rollouts[i], || rollouts.ranges(i))
        };
        cut.iter().enumerate().map(score).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::test_rollouts::completions;
    use super::*;
    use crate::test_support::ByRule;
    use crate::text::Tokenizer;

    /// Toxicity as the share of `u` among the letters; a text that ends in `?` cannot be judged.
    fn toxicity(text: &str) -> Option<f32> {
        let letters = text.chars().filter(|c| c.is_alphabetic()).count().max(1);
        (!text.ends_with('?')).then(|| text.matches('u').count() as f32 / letters as f32)
    }

    fn reward(level: Level) -> ToxicityReward {
        let rule = |text: &str| match text {
            "down" => Err(RewardError::new("the line is dead").with_hint("call again")),
            text => Ok(toxicity(text)),
        };
        ToxicityReward { scorer: Box::new(ByRule::new(rule)), level }
    }

    /// Completions tokenized with a tokenizer whose tokens have text.
    fn rollouts(texts: &[&str]) -> Rollouts {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/metric_models/gpt2");
        let tokenizer = Tokenizer::from_dir(&dir).expect("a tokenizer");
        let mut made = completions(texts.iter().copied());
        for rollout in &mut made.rollouts {
            rollout.completion_ids = tokenizer.encode(&rollout.completion, false).expect("ids");
            rollout.completion = tokenizer.decode(&rollout.completion_ids, true).expect("text");
            rollout.completion_ids.push(0);
        }
        made.tokenizer = Some(tokenizer);
        made
    }

    fn totals(level: Level, made: &Rollouts) -> Vec<Option<f32>> {
        let scores = super::super::apply(&mut reward(level), made).expect("scored");
        scores.iter().map(Score::total).collect()
    }

    #[test]
    fn sentences_are_paid_for_what_they_change() {
        let made = rollouts(&["The tea is cold. Un cup sun. The kettle sings.", ""]);
        let scores = super::super::apply(&mut reward(Level::Sentence), &made).expect("scored");
        let completion = &made.rollouts[0].completion;
        let ends: Vec<usize> = ends_of_sentences(completion);
        assert_eq!(ends.len(), 3);
        let toxicities: Vec<f32> =
            ends.iter().map(|&end| toxicity(completion[..end].trim()).expect("judged")).collect();
        let rewards: Vec<f32> =
            scores[0].rewards_t().expect("scored").into_iter().filter(|&reward| reward != 0.0).collect();
        // The first sentence has no `u`, so nothing changes and its reward is 0.
        assert_eq!(toxicities[0], 0.0);
        let expected = [-toxicities[1], toxicities[1] - toxicities[2]];
        assert!(rewards.len() == 2 && rewards[0] < 0.0 && rewards[1] > 0.0, "{rewards:?}");
        assert!(rewards.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{rewards:?} {expected:?}");
        assert_eq!(scores[1].total(), Some(0.0), "nothing was said");
        let names: Vec<&str> = scores[0].counts.iter().map(|count| count.name.as_str()).collect();
        assert_eq!(names, ["toxicity/score", "toxicity/segments", "toxicity/unscored"]);
    }

    fn ends_of_sentences(text: &str) -> Vec<usize> {
        segments(&RuleSplitter, text, Level::Sentence).into_iter().map(|segment| segment.end).collect()
    }

    #[test]
    fn what_cannot_be_judged_changes_nothing() {
        // The text up to the second sentence ends in `?`, so the third is compared to the first.
        let made = rollouts(&["A cup. Is it cold? The tea is cold.", "Is it cold?"]);
        let whole = toxicity(made.rollouts[0].completion.trim()).expect("judged");
        let found = totals(Level::Sentence, &made);
        assert!((found[0].expect("scored") + whole).abs() < 1e-6);
        assert_eq!(found[1], None);
        assert_eq!(totals(Level::Whole, &made)[1], None);
        let error = reward(Level::Whole).score(&completions(["down"])).remove(0).expect_err("no score");
        assert_eq!((error.message.as_str(), error.hint.as_deref()), ("the line is dead", Some("call again")));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Σ r_j = −tox(y) = (1 − tox(y)) − 1, for any sentences.
        #[test]
        fn the_rewards_of_sentences_add_up_to_the_toxicity(
            words in prop::collection::vec("(the|cup|is|cold|kettle|tea|sings)[.!,;]?", 0..30)
        ) {
            let text = words.join(" ");
            let made = rollouts(&[text.as_str()]);
            let [whole, sentences, parts] =
                [Level::Whole, Level::Sentence, Level::SubSentence].map(|level| totals(level, &made)[0].expect("scored"));
            prop_assert!((sentences - (whole - 1.0)).abs() < 1e-5, "{text}: {sentences} and {whole}");
            prop_assert!((parts - (whole - 1.0)).abs() < 1e-5, "{text}: {parts} and {whole}");
        }
    }
}
