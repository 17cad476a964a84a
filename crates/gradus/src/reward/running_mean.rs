//! The running mean of a reward over completions.

use super::{Reward, Score, Scores};
use crate::progress::{Progress, Unwatched};
use crate::rollout::{Prompt, Rollouts};

/// Replaces each completion's value by the mean over the completions of its group up to this one. A group is a fixed
/// number of consecutive completions. RL4LMs' code does this to `intent_accuracy` by mistake; a completion then earns
/// the reward of others.
pub struct RunningMean {
    inner: Box<dyn Reward>,
    group: usize,
}

impl RunningMean {
    /// Creates the running mean of `inner` over groups of `group` completions, at least 1.
    pub fn new(inner: Box<dyn Reward>, group: usize) -> Self {
        Self { inner, group: group.max(1) }
    }
}

impl Reward for RunningMean {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn remarks(&self, prompts: &[&Prompt]) -> Vec<String> {
        self.inner.remarks(prompts)
    }

    fn depends_on_batch(&self) -> bool {
        self.group > 1 || self.inner.depends_on_batch()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        let mut scores = self.inner.score_with_progress(rollouts, progress);
        for (group, scores) in scores.chunks_mut(self.group).enumerate() {
            let (mut sum, mut count) = (0.0, 0.0);
            for (i, score) in scores.iter_mut().enumerate() {
                // An unscored completion has no value and does not enter the mean.
                let Some(total) = score.as_ref().ok().and_then(Score::total) else { continue };
                sum += f64::from(total);
                count += 1.0;
                let Some(rollout) = rollouts.rollouts.get(group * self.group + i) else { continue };
                *score = Ok(Score::sequence((sum / count) as f32, rollout.completion_ids.len()));
            }
        }
        scores
    }
}

#[cfg(test)]
mod tests {
    use super::super::FnReward;
    use super::super::test_rollouts::{completions, totals};
    use super::*;

    #[test]
    fn a_completion_earns_the_mean_of_its_group_so_far() {
        let inner = || Box::new(FnReward::new("number", |_, rollout| Ok(rollout.completion.parse::<f32>().ok())));
        let rows = completions(["1", "3", "none", "5", "8"]);
        let found = |group: usize| RunningMean::new(inner(), group).score(&rows);
        let values = |group: usize| -> Vec<Option<f32>> {
            found(group).into_iter().map(|score| score.expect("no error").total()).collect()
        };
        assert_eq!(values(10), [Some(1.0), Some(2.0), None, Some(3.0), Some(4.25)]);
        assert_eq!(values(3), [Some(1.0), Some(2.0), None, Some(5.0), Some(6.5)]);
        assert_eq!(totals(&mut RunningMean::new(inner(), 1), &completions(["1", "3"])), [1.0, 3.0]);
    }
}
