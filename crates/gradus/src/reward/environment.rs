//! Rewards from the environment, for turns and for whole episodes.

use super::{Reward, Score, Scores};
use crate::error::Error;
use crate::rollout::{EpisodeEnd, Rollout, Rollouts};

/// Rewards of the environment that replied. The reward of a turn is on the turn's last token; the reward of the episode
/// is on the last token sampled by the policy. If the environment gave none, the reward does not apply.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnvironmentReward;

impl Reward for EnvironmentReward {
    fn name(&self) -> String {
        "environment".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        rollouts.rollouts.iter().map(|rollout| Ok(of_episode(rollout))).collect()
    }
}

fn of_episode(rollout: &Rollout) -> Score {
    let mut rewards_t = vec![0.0; rollout.completion_ids.len()];
    let (mut start, mut last, mut is_given) = (0, 0, false);
    for turn in &rollout.turns {
        last = start + turn.drawn - 1;
        if let Some(reward) = turn.exchange.as_ref().and_then(|exchange| exchange.observation.reward) {
            rewards_t[last] += reward as f32;
            is_given = true;
        }
        start += turn.drawn + turn.answered;
    }
    if let Some(reward) = rollout.episode.as_ref().and_then(|episode| episode.reward) {
        rewards_t[last] += reward as f32;
        is_given = true;
    }
    if is_given { Score::per_token(rewards_t) } else { Score::unscored() }
}

/// Remedy if an episode failed.
const FAILED: &str = "correct the environment";

/// Ends of episodes by [`EpisodeEnd::name`], with their description and the remedy if no episode had a reward.
const ENDS: [(&str, &str, &str); 5] = [
    (
        "tokens",
        "cut by the limit of tokens",
        "raise `--max-new-tokens`: it limits all turns and answers of an episode together",
    ),
    ("turns", "cut by the limit of turns", "raise `episode.max_turns`, or end the episode earlier in the environment"),
    ("time", "cut by the limit of time", "raise `episode.timeout_s`"),
    ("done", "ended by the environment without a reward", "return a `reward` when the environment ends an episode"),
    ("failed", "failed", FAILED),
];

/// Returns the error about a run without any reward. It counts the `ends` of the last episodes. If an episode failed, the error shows the first
/// failure, because the other ends may follow from it. Otherwise the hint is about the most common end.
pub(super) fn no_reward(ends: &[&EpisodeEnd]) -> Error {
    let count = |name: &str| ends.iter().filter(|end| end.name() == name).count();
    let mut found: Vec<(usize, &str, &str)> =
        ENDS.iter().map(|(name, what, remedy)| (count(name), *what, *remedy)).filter(|(n, ..)| *n > 0).collect();
    // The sort is stable, so ends that are equally common keep their order.
    found.sort_by_key(|(n, ..)| std::cmp::Reverse(*n));
    let counts: Vec<String> = found.iter().map(|(n, what, _)| format!("{n} {what}")).collect();
    let message =
        format!("the environment has given no reward so far. The last {} episodes: {}", ends.len(), counts.join(", "));
    let failure = ends.iter().find_map(|end| match end {
        EpisodeEnd::Failed(reason) => Some(reason),
        _ => None,
    });
    match (failure, found.first()) {
        (Some(reason), _) => Error::input(format!("{message}. The first failure: {reason}")).with_hint(FAILED),
        (None, Some((_, _, remedy))) => Error::input(message).with_hint(*remedy),
        (None, None) => Error::input(message),
    }
}

#[cfg(test)]
mod tests {
    use gradus_environments as env;

    use super::*;
    use crate::rollout::{Episode, EpisodeEnd, EpisodeObject, Exchange, Retokenized, StopReason, Turn};

    #[test]
    fn an_error_without_rewards_says_how_the_episodes_ended() {
        let error = no_reward(&[&EpisodeEnd::Done, &EpisodeEnd::Tokens, &EpisodeEnd::Tokens]);
        assert_eq!(
            error.to_string(),
            "the environment has given no reward so far. The last 3 episodes: 2 cut by the limit of tokens, 1 ended by the environment \
             without a reward"
        );
        assert!(error.hint().is_some_and(|hint| hint.starts_with("raise `--max-new-tokens`")));
        // A failure is shown even if it is rare.
        let failed = EpisodeEnd::Failed("step 1, prompt 1, completion 2: the database is down".into());
        let error = no_reward(&[&EpisodeEnd::Tokens, &EpisodeEnd::Tokens, &failed]);
        assert!(
            error
                .to_string()
                .ends_with("1 failed. The first failure: step 1, prompt 1, completion 2: the database is down"),
            "{error}"
        );
        assert_eq!(error.hint(), Some("correct the environment"));
        let error = no_reward(&[&EpisodeEnd::Turns]);
        assert!(error.hint().is_some_and(|hint| hint.starts_with("raise `episode.max_turns`")));
    }

    #[test]
    fn rewards_stand_on_the_last_tokens_of_turns() {
        let turn = |drawn, answered, reward| {
            let observation = env::Observation { reward, ..env::Observation::default() };
            Turn { drawn, answered, exchange: Some(Exchange { turn: env::Turn::default(), observation }) }
        };
        let of = |rewards: [Option<f64>; 2], whole| Rollout {
            turns: vec![turn(2, 1, rewards[0]), turn(1, 0, rewards[1])],
            episode: Some(Episode {
                name: String::new(),
                opening: None,
                end: EpisodeEnd::Done,
                reward: whole,
                retokenized: Retokenized::default(),
                object: EpisodeObject::default(),
            }),
            ..Rollout::one_turn(0, "", vec![5; 4], StopReason::StopId)
        };
        assert_eq!(of_episode(&of([Some(0.5), None], Some(2.0))), Score::per_token(vec![0.0, 0.5, 0.0, 2.0]));
        assert_eq!(of_episode(&of([None, Some(1.0)], Some(2.0))), Score::per_token(vec![0.0, 0.0, 0.0, 3.0]));
        assert_eq!(of_episode(&of([None, None], None)), Score::unscored());
        // 0 is a reward; `None` is not.
        assert_eq!(of_episode(&of([None, None], Some(0.0))), Score::per_token(vec![0.0; 4]));
    }
}
