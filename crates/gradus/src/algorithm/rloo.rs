//! REINFORCE leave-one-out. The advantage of a completion is its reward minus the mean reward of the prompt's other completions.
//!
//! Ahmadian et al. 2024, <https://arxiv.org/abs/2402.14740>. Follows TRL 1.16: the KL to the reference is part of the
//! reward, and the ratio is that of whole completions, clipped as in PPO. Differs in that denominators cover the
//! optimizer step.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::actor::Actor;
use super::grouped::{self, Grouped};
use super::step::{Denominator, PolicyLoss, Surrogate};
use super::{Advantages, Algorithm, AlgorithmInputs, Experience, OnlineMethod, Update};
use crate::data::{Need, TooLong};
use crate::learner::Learner;
use crate::loss::surrogate::{Clip, Level};
use crate::math::{Baseline, GroupAdvantages, Reduction, Scale, group::SCALE_EPSILON, group_advantages, stats};
use crate::method::{Cast, Defaults, Iteration, Method, Problems, RolloutKeys, Shared, describe_groups, flattened};
use crate::rollout::{Rollout, StopReason};
use crate::settings::{Settings, TrainConfig};
use crate::stats::{Stats, StepReport};

/// Keys of `method.rloo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = |schema: &mut Schema| describe_groups::<RlooConfig>(schema, "TRL"))]
pub struct RlooConfig {
    /// How completions are sampled.
    #[serde(flatten, deserialize_with = "flattened::<RlooConfig, _, _>")]
    pub rollouts: RolloutKeys,
    /// Passes over one batch of rollouts. Default 1 (TRL).
    #[schemars(range(min = 1, max = 10_000))]
    pub update_epochs: usize,
    /// Mini-batches (optimizer steps) per pass. Default 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub mini_batches: usize,
    /// Lower clip range of a completion's ratio: 1 − clip_range. Default 0.2 (TRL).
    pub clip_range: f64,
    /// Upper clip range: 1 + clip_range_high. Default: `clip_range`.
    pub clip_range_high: Option<f64>,
    /// Weight of the KL (k1, summed over the completion) that is subtracted from the reward; 0 needs no reference.
    /// Default 0.05 (TRL).
    pub kl_coefficient: f64,
    /// Normalize advantages over the batch. Default false (TRL).
    pub normalize_advantages: bool,
    /// Bounds of the rewards, applied before the KL is subtracted. Default: none.
    pub reward_clip_range: Option<[f64; 2]>,
    /// Leave completions without a stop id out of the loss. Default false (TRL).
    pub mask_truncated_completions: bool,
    /// Subtract this from the reward of a completion that reached `max_new_tokens` without a stop id, before rewards are
    /// compared within their group. Default: nothing.
    pub missing_eos_penalty: Option<f64>,
}

impl Default for RlooConfig {
    fn default() -> Self {
        Self {
            rollouts: RolloutKeys::new(2, 512, 1.0),
            update_epochs: 1,
            mini_batches: 1,
            clip_range: 0.2,
            clip_range_high: None,
            kl_coefficient: 0.05,
            normalize_advantages: false,
            reward_clip_range: None,
            mask_truncated_completions: false,
            missing_eos_penalty: None,
        }
    }
}

impl Method for RlooConfig {
    fn name(&self) -> &'static str {
        "rloo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on rewards, each completion compared with the others of its prompt"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-6, too_long: TooLong::Skip, best_metric: "eval_reward" }
    }

    fn need(&self) -> Need {
        Need::Prompt
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        grouped::cast(shared, &self.rollouts, self.kl_coefficient)
    }

    fn drops_out(&self) -> bool {
        true
    }

    fn reference_may_follow(&self) -> bool {
        self.kl_coefficient != 0.0
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        problems.require(self.rollouts.group_size >= 2, &["method.rloo.group_size"], || {
            let reason = "a completion is compared with the others of its prompt";
            let message =
                format!("`method.rloo.group_size` is {}, but must be at least 2: {reason}", self.rollouts.group_size);
            (message, Some("2 and 4 are usual; `gradus ppo` works with one completion per prompt".into()))
        });
        problems.between("method.rloo.clip_range", self.clip_range, 0.0, 1.0);
        if let Some(high) = self.clip_range_high {
            problems.above_zero("method.rloo.clip_range_high", high);
        }
        problems.at_least("method.rloo.kl_coefficient", self.kl_coefficient, 0.0);
        problems.at_least("method.rloo.missing_eos_penalty", self.missing_eos_penalty.unwrap_or(0.0), 0.0);
        if let Some([low, high]) = self.reward_clip_range {
            problems.require(low < high, &["method.rloo.reward_clip_range"], || {
                let message = format!(
                    "`method.rloo.reward_clip_range` is [{low}, {high}], but its first number must be the smaller one"
                );
                (message, None)
            });
        }
        self.iteration().rules(problems, self.name(), train);
    }
}

impl OnlineMethod for RlooConfig {
    fn iteration(&self) -> Iteration<'_> {
        Iteration { regroups: true, ..Iteration::new(&self.rollouts, self.update_epochs, self.mini_batches) }
    }

    fn algorithm(&self, _: AlgorithmInputs) -> Box<dyn Algorithm> {
        Box::new(Rloo::new(self))
    }
}

/// The algorithm. It has no state: the rollouts provide everything it needs.
#[derive(Debug, Clone)]
pub struct Rloo {
    config: RlooConfig,
}

impl Rloo {
    /// Creates the algorithm from `config`.
    pub fn new(config: &RlooConfig) -> Self {
        Self { config: config.clone() }
    }

    /// Returns the loss of a step.
    pub fn loss(&self) -> PolicyLoss {
        let config = &self.config;
        let high = config.clip_range_high.unwrap_or(config.clip_range);
        PolicyLoss {
            coefficient: 1.0,
            temperature: config.rollouts.trained_temperature(),
            surrogate: Surrogate::Clipped(Clip { low: config.clip_range, high, delta: None }),
            level: Level::SequenceProduct,
            // All tokens of a completion have the same ratio and the same loss, so their mean is the completion's loss.
            denominator: Denominator::Weights(Reduction::SequenceMean),
            kl: None,
            entropy_coefficient: 0.0,
            value: None,
            off_policy_threshold: None,
            top_entropy_quantile: None,
            clips_jointly: false,
        }
    }
}

impl RlooConfig {
    /// Returns the advantage of each completion, from its reward (`None` without a score) and its KL to the reference.
    /// The completions of a group are adjacent.
    pub fn advantages(&self, rewards_b: &[Option<f32>], kl_b: &[f64]) -> GroupAdvantages {
        let [low, high] = self.reward_clip_range.unwrap_or([f64::NEG_INFINITY, f64::INFINITY]);
        let shaped = |(reward, kl): (&Option<f32>, &f64)| {
            reward.map(|reward| (f64::from(reward).clamp(low, high) - self.kl_coefficient * kl) as f32)
        };
        let shaped_b: Vec<Option<f32>> = rewards_b.iter().zip(kl_b).map(shaped).collect();
        let mut found = group_advantages(&shaped_b, self.rollouts.group_size, Baseline::LeaveOneOut, Scale::None);
        if self.normalize_advantages {
            normalize(&mut found, &shaped_b, self.rollouts.group_size);
        }
        found
    }
}

/// Normalizes to mean 0 and standard deviation 1 over the completions that have an advantage, that is, of groups with
/// at least two scored completions.
fn normalize(found: &mut GroupAdvantages, rewards_b: &[Option<f32>], group_size: usize) {
    let has_one = |i: usize| rewards_b[i].is_some() && found.stds_p[i / group_size].is_some();
    let own: Vec<usize> = (0..rewards_b.len()).filter(|&i| has_one(i)).collect();
    let values: Vec<f32> = own.iter().map(|&i| found.advantages_b[i]).collect();
    let (Some(mean), Some(std)) = (stats::mean(&values), stats::std(&values, stats::Variance::Unbiased)) else {
        return;
    };
    for i in own {
        found.advantages_b[i] = ((f64::from(found.advantages_b[i]) - mean) / (std + SCALE_EPSILON)) as f32;
    }
}

impl Algorithm for Rloo {
    fn needs_reference(&self) -> bool {
        self.config.kl_coefficient != 0.0
    }

    // The KL is part of the reward. If the rewards of a group are equal, its rounding would be the whole advantage.
    fn has_exact_kl(&self) -> bool {
        true
    }

    fn masks_truncated(&self) -> bool {
        self.config.mask_truncated_completions
    }

    fn advantages(&mut self, _actor: &Actor, experience: &Experience, _settings: &Settings) -> Advantages {
        let mut stats = Stats::default();
        let masks = self.masks_truncated();
        let is_masked = |rollout: &Rollout| masks && rollout.stop == StopReason::Length;
        let mut kl_b = experience.kls();
        if let Some(kl_b) = &mut kl_b {
            let mut tokens = 0;
            for (kl, rollout) in kl_b.iter_mut().zip(experience.iter()) {
                match is_masked(rollout) {
                    true => *kl = 0.0,
                    false => tokens += rollout.counted(),
                }
            }
            // TRL's unit: nats per token; 0 if all completions are masked.
            stats.mean("kl", kl_b.iter().sum(), tokens.max(1) as f64);
        }
        let kl_b = kl_b.unwrap_or_else(|| vec![0.0; experience.len()]);
        let rewards_b = experience.penalized_totals(self.config.missing_eos_penalty);
        let found = self.config.advantages(&rewards_b, &kl_b);
        stats.mean("frac_reward_zero_std", found.zero_std_fraction(), 1.0);
        Advantages { stats, ..Advantages::of_rollouts(experience, &found.advantages_b) }
    }

    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String> {
        let config = &self.config;
        let grouped = Grouped {
            loss: self.loss(),
            update_epochs: config.update_epochs,
            mini_batches: config.mini_batches,
            masks_truncated: self.masks_truncated(),
        };
        grouped.update(actor, experience, advantages, update)
    }
}
