//! Group baselines: how much better a completion is than the other completions of the same prompt.
//!
//! Shao et al. 2024, "DeepSeekMath", section 4.1.2, <https://arxiv.org/abs/2402.03300>; Liu et al. 2025 (Dr. GRPO, no
//! division), <https://arxiv.org/abs/2503.20783>; Liu et al. 2026 (GDPO, several rewards),
//! <https://arxiv.org/abs/2601.05242>. Follows TRL 1.16, unscored completions included.

use super::stats::{self, Variance};

/// Added to the standard deviation before dividing, as TRL does (verl 1e-6, OpenRLHF 1e-9).
pub const SCALE_EPSILON: f64 = 1e-4;

/// Baseline that is subtracted from a reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// Mean of the group (Shao et al. 2024).
    Mean,
    /// Mean of the other completions of the group (RLOO), which makes the baseline independent of the completion. Kool
    /// et al. 2019; Ahmadian et al. 2024, equation 7, <https://arxiv.org/abs/2402.14740>.
    LeaveOneOut,
}

/// Divisor of the difference from the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Unbiased standard deviation of the group.
    Group,
    /// Unbiased standard deviation of all rewards.
    Batch,
    /// No division: the advantage is the difference itself.
    None,
}

/// Advantages of `P · G` completions and the statistics behind them.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupAdvantages {
    /// One advantage per completion, `[P·G]`; 0 for a completion without one.
    pub advantages_b: Vec<f32>,
    /// Mean reward of each group, `[P]`; `None` if no completion of it was scored.
    pub means_p: Vec<Option<f64>>,
    /// Unbiased standard deviation of each group, `[P]`; `None` if fewer than two were scored.
    pub stds_p: Vec<Option<f64>>,
}

impl GroupAdvantages {
    /// Indices of the groups without a training signal: their rewards are all equal, or fewer than two were scored.
    pub fn flat_groups(&self) -> Vec<usize> {
        let is_flat = |(p, std): (usize, &Option<f64>)| std.is_none_or(is_zero).then_some(p);
        self.stds_p.iter().enumerate().filter_map(is_flat).collect()
    }

    /// Share of groups whose rewards are all equal. They give no training signal.
    pub fn zero_std_fraction(&self) -> f64 {
        let equal = self.stds_p.iter().filter(|std| std.is_some_and(is_zero)).count();
        if self.stds_p.is_empty() { 0.0 } else { equal as f64 / self.stds_p.len() as f64 }
    }
}

/// TRL's `torch.isclose(std, 0)`: absolute tolerance 1e-8.
fn is_zero(std: f64) -> bool {
    std <= 1e-8
}

/// Computes `Âᵢ = (rᵢ − bᵢ) / (std + 1e-4)`, with the baseline `bᵢ` and the deviation over scored completions.
///
/// `rewards_b` is `[P·G]`, group after group. `None` marks a completion without a score: it enters no mean and has
/// advantage 0. The only scored completion of a group has advantage 0, too.
///
/// # Panics
/// When `group_size` is 0 or does not divide the number of rewards.
pub fn group_advantages(
    rewards_b: &[Option<f32>],
    group_size: usize,
    baseline: Baseline,
    scale: Scale,
) -> GroupAdvantages {
    assert!(group_size > 0 && rewards_b.len().is_multiple_of(group_size), "whole groups");
    let all: Vec<f32> = rewards_b.iter().flatten().copied().collect();
    let batch_std = stats::std(&all, Variance::Unbiased);
    let groups = rewards_b.len() / group_size;
    let mut result = GroupAdvantages {
        advantages_b: Vec::with_capacity(rewards_b.len()),
        means_p: Vec::with_capacity(groups),
        stds_p: Vec::with_capacity(groups),
    };
    for rewards_g in rewards_b.chunks_exact(group_size) {
        let scored: Vec<f32> = rewards_g.iter().flatten().copied().collect();
        let (mean, std) = (stats::mean(&scored), stats::std(&scored, Variance::Unbiased));
        let divisor = match scale {
            Scale::Group => std.map(|std| std + SCALE_EPSILON),
            Scale::Batch => batch_std.map(|std| std + SCALE_EPSILON),
            Scale::None => Some(1.0),
        };
        let sum: f64 = scored.iter().map(|&reward| f64::from(reward)).sum();
        let others = |reward: f64| (scored.len() > 1).then(|| (sum - reward) / (scored.len() - 1) as f64);
        let advantage = |reward: Option<f32>| -> Option<f32> {
            let reward = f64::from(reward?);
            let baseline = match baseline {
                Baseline::Mean => mean?,
                Baseline::LeaveOneOut => others(reward)?,
            };
            Some(((reward - baseline) / divisor?) as f32)
        };
        result.advantages_b.extend(rewards_g.iter().map(|&reward| advantage(reward).unwrap_or(0.0)));
        result.means_p.push(mean);
        result.stds_p.push(std);
    }
    result
}

/// Advantages from several rewards per completion (GDPO). Each reward is normalized within its group, the normalized
/// rewards are weighted and added, and the sums are normalized over the batch. Statistics of the groups are those of the sums.
///
/// `rewards_bk` is `[P·G]`, group after group, with one entry per reward. `None` marks a reward that does not apply to a
/// completion: it enters no mean, and adds nothing to the sum. The only completion of a group that has a reward gets
/// nothing from it. A completion without any reward has advantage 0.
///
/// # Panics
/// When `group_size` is 0 or does not divide the number of completions, or a completion does not have one entry per weight.
pub fn objective_advantages(rewards_bk: &[Vec<Option<f32>>], weights_k: &[f64], group_size: usize) -> GroupAdvantages {
    assert!(group_size > 0 && rewards_bk.len().is_multiple_of(group_size), "whole groups");
    assert!(rewards_bk.iter().all(|rewards_k| rewards_k.len() == weights_k.len()), "one entry per reward");
    let has_one = |rewards_k: &Vec<Option<f32>>| rewards_k.iter().any(Option::is_some);
    let mut sums_b: Vec<Option<f64>> = rewards_bk.iter().map(|rewards_k| has_one(rewards_k).then_some(0.0)).collect();
    for (k, weight) in weights_k.iter().enumerate() {
        for (rewards_gk, sums_g) in rewards_bk.chunks_exact(group_size).zip(sums_b.chunks_exact_mut(group_size)) {
            let scored: Vec<f32> = rewards_gk.iter().filter_map(|rewards_k| rewards_k[k]).collect();
            let (mean, std) = (stats::mean(&scored), stats::std(&scored, Variance::Unbiased));
            let (Some(mean), Some(std)) = (mean, std) else { continue };
            for (rewards_k, sum) in rewards_gk.iter().zip(sums_g) {
                if let (Some(reward), Some(sum)) = (rewards_k[k], sum) {
                    *sum += weight * ((f64::from(reward) - mean) / (std + SCALE_EPSILON));
                }
            }
        }
    }
    let sums_b: Vec<Option<f32>> = sums_b.into_iter().map(|sum| sum.map(|sum| sum as f32)).collect();
    let all: Vec<f32> = sums_b.iter().flatten().copied().collect();
    let (mean, std) = (stats::mean(&all), stats::std(&all, Variance::Unbiased));
    let advantage = |sum: &Option<f32>| Some(((f64::from((*sum)?) - mean?) / (std? + SCALE_EPSILON)) as f32);
    let advantages_b = sums_b.iter().map(|sum| advantage(sum).unwrap_or(0.0)).collect();
    GroupAdvantages { advantages_b, ..group_advantages(&sums_b, group_size, Baseline::Mean, Scale::None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some(rewards: &[f32]) -> Vec<Option<f32>> {
        rewards.iter().copied().map(Some).collect()
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} against {expected}");
        }
    }

    #[test]
    fn two_right_two_wrong() {
        // Mean ½, unbiased std √(1/3) = 0.57735, 0.5 / 0.57745 = 0.865875 (TRL 1.16).
        let found = group_advantages(&some(&[1.0, 0.0, 0.0, 1.0]), 4, Baseline::Mean, Scale::Group);
        close(&found.advantages_b, &[0.865_875_3, -0.865_875_3, -0.865_875_3, 0.865_875_3]);
        assert_eq!(found.means_p, [Some(0.5)]);
        assert_eq!(found.zero_std_fraction(), 0.0);
    }

    #[test]
    fn batch_scale_and_no_scale() {
        // Groups (0, 2) and (5, 5): all rewards have mean 3 and unbiased variance (9 + 1 + 4 + 4)/3 = 6.
        let rewards = some(&[0.0, 2.0, 5.0, 5.0]);
        let scaled = (1.0 / (6.0f64.sqrt() + 1e-4)) as f32;
        close(&group_advantages(&rewards, 2, Baseline::Mean, Scale::Batch).advantages_b, &[-scaled, scaled, 0.0, 0.0]);
        let plain = group_advantages(&rewards, 2, Baseline::Mean, Scale::None);
        close(&plain.advantages_b, &[-1.0, 1.0, 0.0, 0.0]);
        assert_eq!(plain.zero_std_fraction(), 0.5);
        assert_eq!(plain.flat_groups(), [1]);
    }

    #[test]
    fn what_was_not_scored_enters_nothing() {
        let rewards = [Some(1.0), None, Some(3.0), None, Some(7.0), None, None, None, None];
        let found = group_advantages(&rewards, 3, Baseline::Mean, Scale::None);
        close(&found.advantages_b, &[-1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(found.means_p, [Some(2.0), Some(7.0), None]);
        assert_eq!(found.stds_p[1..], [None, None]);
        assert_eq!(found.flat_groups(), [1, 2]);
        for scale in [Scale::Group, Scale::Batch] {
            let advantages_b = group_advantages(&rewards, 3, Baseline::Mean, scale).advantages_b;
            assert!(advantages_b.iter().all(|a| a.is_finite()), "{advantages_b:?}");
            close(&advantages_b[3..], &[0.0; 6]);
        }
        let others = group_advantages(&rewards, 3, Baseline::LeaveOneOut, Scale::None);
        close(&others.advantages_b, &[-2.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn each_reward_is_normalized_before_they_are_added() {
        // In the first group, the second reward is a thousand times the first and of the other order.
        let rewards = |a: [f32; 4], b: [f32; 4]| -> Vec<Vec<Option<f32>>> {
            a.iter().zip(b).map(|(&a, b)| vec![Some(a), Some(b)]).collect()
        };
        let opposed = rewards([0.0, 1.0, 0.0, 1.0], [1000.0, 0.0, 0.0, 1000.0]);
        let found = objective_advantages(&opposed, &[1.0, 1.0], 2);
        // Each group has the deviation √½ or 1000·√½, so the sums are about 0, 0, −√2 and √2. Their deviation is √(4/3).
        assert!(found.advantages_b[..2].iter().all(|advantage| advantage.abs() < 1e-3), "{found:?}");
        assert!((found.advantages_b[3] - (2.0f32).sqrt() / (4.0f32 / 3.0).sqrt()).abs() < 1e-3, "{found:?}");
        assert_eq!(found.advantages_b[2], -found.advantages_b[3]);
        // With the sums of the plain rewards, the first group would prefer its first completion.
        let sums: Vec<Option<f32>> = opposed.iter().map(|rewards| rewards.iter().copied().sum()).collect();
        assert!(group_advantages(&sums, 2, Baseline::Mean, Scale::Group).advantages_b[0] > 0.7);
    }

    #[test]
    fn rewards_that_do_not_apply_add_nothing() {
        let rewards_bk = [vec![Some(1.0), None], vec![Some(0.0), Some(5.0)], vec![None, None], vec![None, Some(3.0)]];
        let found = objective_advantages(&rewards_bk, &[2.0, -1.0], 2);
        // The second reward has one completion per group, so only the first counts: 2·½/√½, −2·½/√½, nothing, 0.
        assert_eq!((found.advantages_b[2], found.advantages_b[3]), (0.0, 0.0));
        assert!((found.advantages_b[0] - 1.0).abs() < 1e-3, "{found:?}");
        assert_eq!(found.advantages_b[0], -found.advantages_b[1]);
        assert_eq!(objective_advantages(&[vec![], vec![]], &[], 2).advantages_b, [0.0; 2], "nothing is scored");
    }

    proptest! {
        #[test]
        fn advantages_sum_to_zero_and_ignore_a_constant(
            rewards in prop::collection::vec(-2.0f32..2.0, 8), constant in -3.0f32..3.0,
        ) {
            for (baseline, scale) in [
                (Baseline::Mean, Scale::Group),
                (Baseline::Mean, Scale::None),
                (Baseline::LeaveOneOut, Scale::Group),
                (Baseline::LeaveOneOut, Scale::None),
            ] {
                let plain = group_advantages(&some(&rewards), 4, baseline, scale).advantages_b;
                for group in plain.chunks(4) {
                    prop_assert!(group.iter().sum::<f32>().abs() < 1e-5);
                }
                let shifted: Vec<f32> = rewards.iter().map(|r| r + constant).collect();
                for (a, b) in plain.iter().zip(group_advantages(&some(&shifted), 4, baseline, scale).advantages_b) {
                    prop_assert!((a - b).abs() < 1e-3, "{} against {}", a, b);
                }
            }
        }

        #[test]
        fn equal_rewards_teach_nothing(reward in -5.0f32..5.0, group in 1usize..9) {
            for scale in [Scale::Group, Scale::Batch, Scale::None] {
                let found = group_advantages(&vec![Some(reward); group], group, Baseline::Mean, scale);
                prop_assert!(found.advantages_b.iter().all(|a| *a == 0.0));
            }
        }
    }
}
