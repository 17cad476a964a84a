//! From rewards per token to advantages: relative to a critic, or to the other completions of a prompt.

use super::actor::concat;
use super::{Advantages, CriticTargets, Experience, ScoredRollout, TokenTargets};
use crate::math::stats::{Variance, explained_variance, mean, std};
use crate::math::{Baseline, GroupAdvantages, Scale, gae, group_advantages, objective_advantages, returns};
use crate::stats::Stats;

/// Computes generalized advantage estimates. `values` are the critic's values of the states before each token.
///
/// Each rollout ends with its last token. With `padding`, it is extended to the length of the longest rollout by tokens
/// with that reward and a value of 0. Metrics cover only the rollouts in `scored`.
pub fn of_critic(
    rewards: &[Vec<f32>],
    values: Vec<Vec<f32>>,
    scored: &[usize],
    (discount, gae_lambda): (f64, f64),
    padding: Option<f32>,
) -> Advantages {
    let mut stats = Stats::default();
    let longest = rewards.iter().map(Vec::len).max().unwrap_or(0);
    let estimate = |(rewards_t, values_t): (&Vec<f32>, &Vec<f32>)| match padding {
        None => gae(rewards_t, values_t, 0.0, discount, gae_lambda),
        Some(padding) => {
            let after = longest - rewards_t.len();
            let rewards_t = [&rewards_t[..], &vec![padding; after]].concat();
            let padded_t = [&values_t[..], &vec![0.0; after]].concat();
            let mut advantages_t = gae(&rewards_t, &padded_t, 0.0, discount, gae_lambda);
            advantages_t.truncate(values_t.len());
            advantages_t
        }
    };
    let advantages: Vec<Vec<f32>> = rewards.iter().zip(&values).map(estimate).collect();
    let returns: Vec<Vec<f32>> =
        advantages.iter().zip(&values).map(|(advantages_t, values_t)| returns(advantages_t, values_t)).collect();
    let (predicted, observed) = (concat(&values, scored), concat(&returns, scored));
    if let Some(explained) = explained_variance(&predicted, &observed) {
        stats.mean("explained_variance", explained, 1.0);
    }
    stats.mean("values/mean", mean(&predicted).unwrap_or(0.0), 1.0);
    stats.mean("values/std", std(&predicted, Variance::Biased).unwrap_or(0.0), 1.0);
    stats.mean("returns/mean", mean(&observed).unwrap_or(0.0), 1.0);
    let targets = advantages.into_iter().zip(returns).zip(values).map(|((advantages_t, returns_t), values_t)| {
        TokenTargets { advantages_t, critic: Some(CriticTargets { returns_t, values_t }) }
    });
    Advantages { targets: targets.collect(), stats, kl: None }
}

/// Computes one advantage per completion, the same for all of its tokens: its reward in `rewards_b` relative to its group.
pub fn of_groups(rewards_b: &[Option<f32>], experience: &Experience, baseline: Baseline, scale: Scale) -> Advantages {
    of_completions(&group_advantages(rewards_b, experience.group_size, baseline, scale), experience)
}

/// Computes one advantage per completion, the same for all of its tokens, from the parts of its reward. Each part is
/// normalized within its group before they are added ([`objective_advantages`]).
pub fn of_objectives(experience: &Experience) -> Advantages {
    // A part that does not apply to a row is absent there, so each rollout may have other parts.
    let mut objectives: Vec<(&str, f64)> = Vec::new();
    for part in experience.rollouts.iter().flat_map(|scored| &scored.parts) {
        if objectives.iter().all(|(name, _)| *name != part.name) {
            objectives.push((part.name.as_str(), f64::from(part.weight)));
        }
    }
    let total =
        |scored: &ScoredRollout, name: &str| scored.parts.iter().find(|part| part.name == name).map(|part| part.total);
    let of_one =
        |scored: &ScoredRollout| objectives.iter().map(|(name, _)| total(scored, name)).collect::<Vec<Option<f32>>>();
    let rewards_bk: Vec<Vec<Option<f32>>> = experience.rollouts.iter().map(of_one).collect();
    let weights_k: Vec<f64> = objectives.iter().map(|(_, weight)| *weight).collect();
    of_completions(&objective_advantages(&rewards_bk, &weights_k, experience.group_size), experience)
}

fn of_completions(groups: &GroupAdvantages, experience: &Experience) -> Advantages {
    let mut found = Advantages::of_rollouts(experience, &groups.advantages_b);
    found.stats.mean("frac_reward_zero_std", groups.zero_std_fraction(), 1.0);
    found
}
