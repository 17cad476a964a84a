//! Group relative policy optimization: configuration and update.
//!
//! Shao et al. 2024, <https://arxiv.org/abs/2402.03300>. Follows TRL 1.16, with two differences. Denominators cover the
//! optimizer step; only `bnpo` is defined per micro-batch. The KL term is reduced like the policy loss, the entropy is
//! averaged over the tokens of the step, and tokens of high entropy are chosen among all tokens of the step.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::actor::Actor;
use super::advantage::{of_groups, of_objectives};
use super::grouped::{self, Grouped};
use super::step::{Denominator, PolicyLoss, Surrogate};
use super::{Advantages, Algorithm, AlgorithmInputs, Experience, OnlineMethod, Update};
use crate::data::{Need, TooLong};
use crate::learner::Learner;
use crate::loss::kl::KlCorrection;
use crate::loss::surrogate::{Clip, Level};
use crate::loss::vespo::Gamma;
use crate::math::{AdaptiveEntropy, Baseline, EntropyController, Reduction, Scale};
use crate::method::{
    Cast, Defaults, Iteration, Method, Preset, Problems, RolloutKeys, Shared, describe_groups, flattened,
};
use crate::settings::{RolloutsConfig, Settings, TrainConfig};
use crate::stats::StepReport;

/// Zheng et al. 2025, section 5.1: clip ranges, and four mini-batches per iteration.
const GSPO: &str = "\
method:
  grpo:
    importance_sampling_level: sequence
    loss_type: grpo
    clip_range: 3e-4
    clip_range_high: 4e-4
    kl_coefficient: 0
    mini_batches: 4
";

/// Yu et al. 2025, section 4.1: clip-higher, dynamic sampling, token-level loss, overlong filtering.
const DAPO: &str = "\
method:
  grpo:
    group_size: 16
    loss_type: dapo
    clip_range: 0.2
    clip_range_high: 0.28
    kl_coefficient: 0
    mask_truncated_completions: true
    resample_rounds: 10
";

/// Liu et al. 2025, section 3.2: no division by the length of a completion or the standard deviation of a group.
const DR_GRPO: &str = "\
method:
  grpo:
    loss_type: dr_grpo
    scale_rewards: none
    kl_coefficient: 0
";

/// Keys of `method.grpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = |schema: &mut Schema| describe_groups::<GrpoConfig>(schema, "TRL"))]
pub struct GrpoConfig {
    /// How completions are sampled.
    #[serde(flatten, deserialize_with = "flattened::<GrpoConfig, _, _>")]
    pub rollouts: RolloutKeys,
    /// Passes over one batch of rollouts, μ. Default 1 (TRL).
    #[schemars(range(min = 1, max = 10_000))]
    pub update_epochs: usize,
    /// Mini-batches (optimizer steps) per pass. Default 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub mini_batches: usize,
    /// Lower clip range of the ratio: 1 − clip_range. Default 0.2 (TRL).
    pub clip_range: f64,
    /// Upper clip range: 1 + clip_range_high. For `cispo`, the bound of the ratio itself, which is required. Default: `clip_range`.
    pub clip_range_high: Option<f64>,
    /// Upper bound of the ratio even if the advantage is negative (two-sided clipping). Default: none.
    pub delta: Option<f64>,
    /// Weight of the KL term (k3) in the loss; 0 needs no reference. Default 0 (TRL).
    pub kl_coefficient: f64,
    /// Multiply the KL term by the importance ratio, so that its gradient is that of the reverse KL. Default true (TRL).
    pub kl_bias_correction: bool,
    /// Unit of the importance ratio: each token, or each sequence with the geometric mean of its tokens' ratios (GSPO).
    /// Default `token` (TRL).
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// Loss per token and its reduction. Default `dapo` (TRL).
    pub loss_type: GrpoLossType,
    /// Temperature of `sapo` for positive advantages. Default 1 (TRL).
    pub sapo_temperature_pos: f64,
    /// Temperature of `sapo` for other advantages. Default 1.05 (TRL).
    pub sapo_temperature_neg: f64,
    /// Exponent of the ratio in `vespo`'s weight for advantages of at least 0. Default 2 (TRL).
    pub vespo_k_pos: f64,
    /// Rate of `vespo`'s weight for advantages of at least 0. Default 3 (TRL).
    pub vespo_lambda_pos: f64,
    /// Exponent of the ratio in `vespo`'s weight for negative advantages. Default 3 (TRL).
    pub vespo_k_neg: f64,
    /// Rate of `vespo`'s weight for negative advantages. Default 2 (TRL).
    pub vespo_lambda_neg: f64,
    /// Baseline that is subtracted from a reward. Default `group_mean` (TRL).
    pub baseline: GroupBaseline,
    /// Divisor of the advantages. Default `group` (TRL).
    pub scale_rewards: ScaleRewards,
    /// Order of the steps from several rewards (the parts of `reward`) to one advantage. With `normalize_then_sum` (GDPO),
    /// the weight of a reward decides its influence, and its range does not. Default `sum_then_normalize` (TRL).
    pub multi_objective_aggregation: MultiObjectiveAggregation,
    /// Leave completions without a stop id out of the loss. Default false (TRL).
    pub mask_truncated_completions: bool,
    /// Subtract this from the reward of a completion that reached `max_new_tokens` without a stop id, before rewards are
    /// compared within their group. Default: nothing.
    pub missing_eos_penalty: Option<f64>,
    /// Rounds in which groups with equal rewards are replaced by groups of prompts that the iteration has not used
    /// (dynamic sampling, Yu et al. 2025). Default 0: they stay, with advantages of 0.
    #[schemars(range(max = 1_000))]
    pub resample_rounds: usize,
    /// Leave a completion with a negative advantage out of the loss if its tokens are more than this many nats likelier
    /// under the sampler than under the policy, on average (the off-policy sequence mask of DeepSeek-V3.2). The sampler
    /// is the server of `rollouts`, or the policy before the iteration's updates. Default: none (TRL).
    pub off_policy_mask_threshold: Option<f64>,
    /// Share of the tokens that carry the policy loss and the entropy bonus: those with the highest entropies among the
    /// tokens of an optimizer step. Wang et al. 2025 recommend 0.2. Below 1, each optimizer step needs one more forward
    /// pass. Default 1 (TRL): all tokens.
    pub top_entropy_quantile: f64,
    /// Weight of the entropy bonus, or its first value with `use_adaptive_entropy`. Default 0.
    pub entropy_coefficient: f64,
    /// Change the weight of the entropy bonus after each optimizer step, so that the entropy stays near `entropy_target`
    /// (Skywork-OR1). The bonus applies only after a step whose entropy was at or below the target. Default false (TRL).
    pub use_adaptive_entropy: bool,
    /// Smallest weight of the adaptive entropy bonus. Default 0 (TRL).
    pub entropy_coefficient_min: f64,
    /// Largest weight of the adaptive entropy bonus. Default 1 (TRL).
    pub entropy_coefficient_max: f64,
    /// Change of the adaptive weight per optimizer step: up at or below `entropy_target`, down above it. Default 0.005
    /// (TRL).
    pub entropy_coefficient_delta: f64,
    /// Target of the adaptive entropy bonus: mean entropy in nats of the tokens that carry the policy loss. Choose a value
    /// near the logged `entropy` of the first steps. Default 0.2 (TRL).
    pub entropy_target: f64,
}

impl Default for GrpoConfig {
    fn default() -> Self {
        Self {
            rollouts: RolloutKeys::new(8, 512, 1.0),
            update_epochs: 1,
            mini_batches: 1,
            clip_range: 0.2,
            clip_range_high: None,
            delta: None,
            kl_coefficient: 0.0,
            kl_bias_correction: true,
            importance_sampling_level: ImportanceSamplingLevel::Token,
            loss_type: GrpoLossType::Dapo,
            sapo_temperature_pos: 1.0,
            sapo_temperature_neg: 1.05,
            vespo_k_pos: 2.0,
            vespo_lambda_pos: 3.0,
            vespo_k_neg: 3.0,
            vespo_lambda_neg: 2.0,
            baseline: GroupBaseline::GroupMean,
            scale_rewards: ScaleRewards::Group,
            multi_objective_aggregation: MultiObjectiveAggregation::SumThenNormalize,
            mask_truncated_completions: false,
            missing_eos_penalty: None,
            resample_rounds: 0,
            off_policy_mask_threshold: None,
            top_entropy_quantile: 1.0,
            entropy_coefficient: 0.0,
            use_adaptive_entropy: false,
            entropy_coefficient_min: 0.0,
            entropy_coefficient_max: 1.0,
            entropy_coefficient_delta: 0.005,
            entropy_target: 0.2,
        }
    }
}

/// Unit of the importance ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingLevel {
    /// Each token (Shao et al. 2024).
    Token,
    /// Each sequence, with the geometric mean of its tokens' ratios (Zheng et al. 2025, GSPO).
    Sequence,
}

/// Loss per token and its reduction to one number. The loss is the clipped surrogate unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrpoLossType {
    /// Mean over each sequence, then over sequences (Shao et al. 2024).
    Grpo,
    /// Sum divided by sequences × `max_new_tokens` (Liu et al. 2025).
    DrGrpo,
    /// Mean over the tokens of a micro-batch.
    Bnpo,
    /// Mean over the tokens of the step (Yu et al. 2025).
    Dapo,
    /// Logprobs weighted by the bounded ratio; mean over the tokens of the step (MiniMax 2025).
    Cispo,
    /// A smooth gate instead of the clip; mean over each sequence, then over sequences (Gao et al. 2025).
    Sapo,
    /// Sum over each sequence, then mean over sequences (LUSPO; with `importance_sampling_level: sequence`).
    Luspo,
    /// Logprobs weighted by a gamma kernel of the sequence's ratio; mean over the tokens of the step (VESPO).
    Vespo,
}

/// Baseline of a completion's reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupBaseline {
    /// The mean of its group, itself included (Shao et al. 2024).
    GroupMean,
    /// The mean of the other completions of its group. With `scale_rewards: none`, this is RLOO's advantage (Ahmadian et al. 2024).
    LeaveOneOut,
}

/// Divisor of the advantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The standard deviation of the group.
    Group,
    /// The standard deviation of the batch.
    Batch,
    /// No division.
    None,
}

/// Order of the steps from several rewards to one advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MultiObjectiveAggregation {
    /// Add the weighted rewards, then compare the sums within their group.
    SumThenNormalize,
    /// Normalize each reward within its group, add the weighted results, then normalize over the batch (Liu et al. 2026, GDPO).
    NormalizeThenSum,
}

impl Method for GrpoConfig {
    fn name(&self) -> &'static str {
        "grpo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on rewards, with groups of completions"
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

    fn preset(&self, preset: Preset) -> Option<&'static str> {
        match preset {
            Preset::Gspo => Some(GSPO),
            Preset::Dapo => Some(DAPO),
            Preset::DrGrpo => Some(DR_GRPO),
            _ => None,
        }
    }

    fn drops_out(&self) -> bool {
        true
    }

    fn reference_may_follow(&self) -> bool {
        self.kl_coefficient != 0.0
    }

    fn averages_over_passes(&self) -> bool {
        self.loss_type == GrpoLossType::Bnpo
    }

    fn rollouts_rules(&self, problems: &mut Problems<'_>, rollouts: &RolloutsConfig) {
        self.check_rollouts(problems, rollouts);
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        problems.require(self.rollouts.group_size >= 2, &["method.grpo.group_size"], || {
            let reason = "an advantage is the distance from the mean of the group, which is always 0 in a group of one";
            let message =
                format!("`method.grpo.group_size` is {}, but must be at least 2: {reason}", self.rollouts.group_size);
            (message, Some("8 is usual; `gradus ppo` works with one completion per prompt".into()))
        });
        problems.between("method.grpo.clip_range", self.clip_range, 0.0, 1.0);
        if self.loss_type == GrpoLossType::Cispo {
            let fine = self.clip_range_high.is_some_and(|cap| cap >= 1.0);
            problems.require(fine, &["method.grpo.clip_range_high", "method.grpo.loss_type"], || {
                let given = self.clip_range_high.map_or("not given".to_owned(), |cap| cap.to_string());
                let message = format!(
                    "`method.grpo.clip_range_high` is {given}, but `loss_type: cispo` uses it as the upper bound of \
                     the ratio: it must be at least 1"
                );
                (message, Some("5 is usual (Khatri et al. 2025)".into()))
            });
        }
        for (key, value) in [
            ("method.grpo.sapo_temperature_pos", self.sapo_temperature_pos),
            ("method.grpo.sapo_temperature_neg", self.sapo_temperature_neg),
            ("method.grpo.vespo_lambda_pos", self.vespo_lambda_pos),
            ("method.grpo.vespo_lambda_neg", self.vespo_lambda_neg),
        ] {
            problems.above_zero(key, value);
        }
        let usual = Self::default();
        for (key, value, usual) in [
            ("method.grpo.sapo_temperature_pos", self.sapo_temperature_pos, usual.sapo_temperature_pos),
            ("method.grpo.sapo_temperature_neg", self.sapo_temperature_neg, usual.sapo_temperature_neg),
        ] {
            let is_valid = value == usual || self.loss_type == GrpoLossType::Sapo;
            problems.only_read_by(is_valid, &[key, "method.grpo.loss_type"], "`sapo`", "use `loss_type: sapo`");
        }
        self.check_aggregation(problems);
        self.check_entropy(problems);
        problems.at_least("method.grpo.off_policy_mask_threshold", self.off_policy_mask_threshold.unwrap_or(0.0), 0.0);
        problems.at_least("method.grpo.missing_eos_penalty", self.missing_eos_penalty.unwrap_or(0.0), 0.0);
        self.iteration().rules(problems, self.name(), train);
        problems.at_least("method.grpo.kl_coefficient", self.kl_coefficient, 0.0);
        if let Some(high) = self.clip_range_high {
            problems.above_zero("method.grpo.clip_range_high", high);
        }
        let clips = !matches!(self.loss_type, GrpoLossType::Cispo | GrpoLossType::Sapo | GrpoLossType::Vespo);
        problems.require(clips || self.delta.is_none(), &["method.grpo.delta", "method.grpo.loss_type"], || {
            let message =
                "`method.grpo.delta` is given, but `cispo`, `sapo` and `vespo` have no clipped ratio to bound".into();
            (message, Some("leave it out".into()))
        });
        if let Some(delta) = self.delta {
            let least = 1.0 + self.clip_range_high.unwrap_or(self.clip_range);
            problems.require(delta > least, &["method.grpo.delta", "method.grpo.clip_range_high"], || {
                let message = format!(
                    "`method.grpo.delta` is {delta}, but must be above 1 + the upper clip range ({least}), which bounds the ratio already"
                );
                (message, None)
            });
        }
    }
}

impl GrpoConfig {
    /// Checks that no key of sums of rewards is set if rewards are normalized before they are added.
    fn check_aggregation(&self, problems: &mut Problems<'_>) {
        let aggregation = "method.grpo.multi_objective_aggregation";
        let sums = self.multi_objective_aggregation == MultiObjectiveAggregation::SumThenNormalize;
        for (key, is_default) in [
            ("method.grpo.baseline", self.baseline == GroupBaseline::GroupMean),
            ("method.grpo.scale_rewards", self.scale_rewards == ScaleRewards::Group),
            ("method.grpo.missing_eos_penalty", self.missing_eos_penalty.is_none()),
            ("method.grpo.resample_rounds", self.resample_rounds == 0),
        ] {
            problems.require(sums || is_default, &[key, aggregation], || {
                let message =
                    format!("`{key}` is given, but only `multi_objective_aggregation: sum_then_normalize` reads it");
                (message, Some("leave it out; if a preset sets it, give its default".into()))
            });
        }
    }

    /// Checks the keys about entropies.
    fn check_entropy(&self, problems: &mut Problems<'_>) {
        problems.within("method.grpo.top_entropy_quantile", self.top_entropy_quantile, 0.0..=1.0);
        problems.at_least("method.grpo.entropy_coefficient", self.entropy_coefficient, 0.0);
        let usual = Self::default();
        for (key, value, usual) in [
            ("method.grpo.entropy_coefficient_min", self.entropy_coefficient_min, usual.entropy_coefficient_min),
            ("method.grpo.entropy_coefficient_max", self.entropy_coefficient_max, usual.entropy_coefficient_max),
            ("method.grpo.entropy_coefficient_delta", self.entropy_coefficient_delta, usual.entropy_coefficient_delta),
            ("method.grpo.entropy_target", self.entropy_target, usual.entropy_target),
        ] {
            problems.at_least(key, value, 0.0);
            let is_valid = self.use_adaptive_entropy || value == usual;
            let switch = "method.grpo.use_adaptive_entropy";
            problems.only_read_by(
                is_valid,
                &[key, switch],
                "`use_adaptive_entropy: true`",
                "use `use_adaptive_entropy: true`",
            );
        }
        let (min, max) = (self.entropy_coefficient_min, self.entropy_coefficient_max);
        let keys = ["method.grpo.entropy_coefficient_min", "method.grpo.entropy_coefficient_max"];
        problems.require(min <= max, &keys, || {
            let message = format!(
                "`{}` is {min} and `{}` is {max}, but the first must not be above the second",
                keys[0], keys[1]
            );
            (message, Some("exchange them, or leave out the one that keeps its default".into()))
        });
    }

    /// Checks the combination with `rollouts`. VESPO weights whole sequences itself, so a further ratio must be per token.
    fn check_rollouts(&self, problems: &mut Problems<'_>, rollouts: &RolloutsConfig) {
        let corrects_sequences =
            rollouts.importance_sampling_correction && rollouts.importance_sampling_mode.is_of_sequences();
        let keys = ["method.grpo.loss_type", "rollouts.importance_sampling_mode"];
        problems.require(self.loss_type != GrpoLossType::Vespo || !corrects_sequences, &keys, || {
            let message = "`method.grpo.loss_type` is `vespo`, which needs `rollouts.importance_sampling_mode` `token_truncate` or `token_mask`";
            (message.into(), Some("VESPO already weights whole sequences".into()))
        });
        let (rounds, ahead) = (self.resample_rounds, rollouts.max_staleness);
        let keys = ["method.grpo.resample_rounds", "rollouts.max_staleness"];
        problems.require(rounds == 0 || ahead == 0, &keys, || {
            let message = format!(
                "`method.grpo.resample_rounds` is {rounds} and `rollouts.max_staleness` {ahead}, but replaced groups \
                 need the current weights"
            );
            (message, Some("set one of them to 0".into()))
        });
    }
}

impl OnlineMethod for GrpoConfig {
    fn iteration(&self) -> Iteration<'_> {
        Iteration { regroups: true, ..Iteration::new(&self.rollouts, self.update_epochs, self.mini_batches) }
    }

    fn algorithm(&self, inputs: AlgorithmInputs) -> Box<dyn Algorithm> {
        Box::new(Grpo::new(self).resumed(&inputs.state))
    }
}

/// Key of the adaptive entropy bonus in [`Algorithm::state`].
pub(crate) const ADAPTIVE_ENTROPY: &str = "adaptive_entropy";

/// The algorithm. An adaptive entropy bonus is its only state: the rollouts provide everything else.
#[derive(Debug, Clone)]
pub struct Grpo {
    config: GrpoConfig,
    entropy: EntropyController,
}

impl Grpo {
    /// Creates the algorithm from `config`.
    pub fn new(config: &GrpoConfig) -> Self {
        let rule = AdaptiveEntropy {
            target: config.entropy_target,
            delta: config.entropy_coefficient_delta,
            min: config.entropy_coefficient_min,
            max: config.entropy_coefficient_max,
        };
        let rule = config.use_adaptive_entropy.then_some(rule);
        Self { config: config.clone(), entropy: EntropyController::new(config.entropy_coefficient, rule) }
    }

    /// Continues from the [`Algorithm::state`] of an earlier run.
    #[must_use]
    pub fn resumed(mut self, state: &Map<String, Value>) -> Self {
        // A run that had a constant coefficient until now has no such state.
        let saved = state.get(ADAPTIVE_ENTROPY).and_then(|saved| serde_json::from_value(saved.clone()).ok());
        if let Some(saved) = saved {
            self.entropy.resume(saved);
        }
        self
    }

    /// Returns the loss of a step.
    pub fn loss(&self) -> PolicyLoss {
        let config = &self.config;
        let high = config.clip_range_high.unwrap_or(config.clip_range);
        let correction = if config.kl_bias_correction { KlCorrection::ImportanceRatio } else { KlCorrection::None };
        PolicyLoss {
            coefficient: 1.0,
            temperature: config.rollouts.trained_temperature(),
            surrogate: match config.loss_type {
                GrpoLossType::Cispo => Surrogate::Cispo(high),
                GrpoLossType::Sapo => Surrogate::Sapo(config.sapo_temperature_pos, config.sapo_temperature_neg),
                GrpoLossType::Vespo => Surrogate::Vespo(Gamma {
                    k: [config.vespo_k_pos, config.vespo_k_neg],
                    lambda: [config.vespo_lambda_pos, config.vespo_lambda_neg],
                }),
                _ => Surrogate::Clipped(Clip { low: config.clip_range, high, delta: config.delta }),
            },
            level: match config.importance_sampling_level {
                ImportanceSamplingLevel::Token => Level::Token,
                ImportanceSamplingLevel::Sequence => Level::SequenceMean,
            },
            denominator: match config.loss_type {
                GrpoLossType::Grpo | GrpoLossType::Sapo => Denominator::Weights(Reduction::SequenceMean),
                GrpoLossType::DrGrpo => Denominator::Weights(Reduction::FixedLength(config.rollouts.max_new_tokens)),
                GrpoLossType::Dapo | GrpoLossType::Cispo | GrpoLossType::Vespo => {
                    Denominator::Weights(Reduction::TokenMean)
                }
                GrpoLossType::Luspo => Denominator::Weights(Reduction::SequenceSum),
                GrpoLossType::Bnpo => Denominator::MicroBatches(Reduction::TokenMean),
            },
            kl: Some((config.kl_coefficient, correction)).filter(|(coefficient, _)| *coefficient != 0.0),
            entropy_coefficient: self.entropy.applied(),
            value: None,
            off_policy_threshold: config.off_policy_mask_threshold,
            top_entropy_quantile: Some(config.top_entropy_quantile).filter(|share| *share < 1.0),
            clips_jointly: false,
        }
    }
}

impl Algorithm for Grpo {
    fn resample_rounds(&self) -> usize {
        self.config.resample_rounds
    }

    fn needs_reference(&self) -> bool {
        self.config.kl_coefficient != 0.0
    }

    fn masks_truncated(&self) -> bool {
        self.config.mask_truncated_completions
    }

    fn advantages(&mut self, _actor: &Actor, experience: &Experience, _settings: &Settings) -> Advantages {
        if self.config.multi_objective_aggregation == MultiObjectiveAggregation::NormalizeThenSum {
            return of_objectives(experience);
        }
        let baseline = match self.config.baseline {
            GroupBaseline::GroupMean => Baseline::Mean,
            GroupBaseline::LeaveOneOut => Baseline::LeaveOneOut,
        };
        let scale = match self.config.scale_rewards {
            ScaleRewards::Group => Scale::Group,
            ScaleRewards::Batch => Scale::Batch,
            ScaleRewards::None => Scale::None,
        };
        of_groups(&experience.penalized_totals(self.config.missing_eos_penalty), experience, baseline, scale)
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
        grouped.update_with(&mut self.entropy, actor, experience, advantages, update)
    }

    fn state(&self) -> Map<String, Value> {
        let state = self.entropy.state().map(|state| serde_json::to_value(state).expect("plain data"));
        state.into_iter().map(|state| (ADAPTIVE_ENTROPY.to_owned(), state)).collect()
    }
}
