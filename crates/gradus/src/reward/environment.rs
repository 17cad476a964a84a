//! Rewards from the environment, for turns and for whole episodes.

use super::{Reward, RewardError, Score};
use crate::rollout::{Rollout, Rollouts};

/// Rewards of the environment that replied. The reward of a turn is on the turn's last token; the reward of the episode
/// is on the last token sampled by the policy. If the environment gave none, the reward does not apply.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnvironmentReward;

impl Reward for EnvironmentReward {
    fn name(&self) -> String {
        "environment".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Vec<Result<Score, RewardError>> {
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

#[cfg(test)]
mod tests {
    use gradus_environments as env;

    use super::*;
    use crate::rollout::{Episode, EpisodeEnd, Exchange, Retokenized, StopReason, Turn};

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
