//! Proximal policy optimization with a critic: configuration and update.
//!
//! Schulman et al. 2017, <https://arxiv.org/abs/1707.06347>; for language models Ziegler et al. 2019,
//! <https://arxiv.org/abs/1909.08593>. Follows TRL 1.12, but every mean covers only real tokens.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::actor_critic::ActorCritic;
pub use super::actor_critic::TargetKlOver;
use super::critic::Critic;
pub use super::estimator::{
    AdvantageKeys, CriticConfig, CriticTrunk, KlConfig, KlEstimator, KlUnit, WhitenedOver, WhiteningConfig,
    WhiteningDivisor,
};
use super::estimator::{Estimation, Estimator};
use super::step::{Denominator, PolicyLoss, Surrogate, ValueClip, ValueLoss};
use super::{Algorithm, AlgorithmInputs, OnlineMethod};
use crate::data::{Need, TooLong};
use crate::loss::surrogate::{Clip, Level};
use crate::method::{
    Cast, Defaults, Iteration, Method, Preset, Problems, RolloutKeys, Shared, describe_defaults, flattened,
};
use crate::settings::TrainConfig;

/// Keys of `method.ppo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = |schema: &mut Schema| describe_defaults::<PpoConfig>(schema, "TRL"))]
pub struct PpoConfig {
    /// How completions are sampled.
    #[serde(flatten, deserialize_with = "flattened::<PpoConfig, _, _>")]
    pub rollouts: RolloutKeys,
    /// Passes over one batch of rollouts. Default 4 (TRL).
    #[schemars(range(min = 1, max = 10_000))]
    pub update_epochs: usize,
    /// Mini-batches (optimizer steps) per pass. Default 1 (TRL).
    #[schemars(range(min = 1, max = 1_000_000))]
    pub mini_batches: usize,
    /// Clip range of the policy ratio. Default 0.2 (Schulman et al. 2017, section 6.1).
    pub clip_range: f64,
    /// Clip range of the value update; 0 turns clipping off (RL4LMs). Default 0.2 (TRL).
    pub value_clip_range: f64,
    /// Weight of the policy loss (FineGrainedRLHF's `pg_coef`). Default 1.
    pub policy_coefficient: f64,
    /// Weight of the value loss, which is half the squared error. Default 0.1 (TRL). RL4LMs' `vf_coef: 0.5` corresponds
    /// to 1, because its error is not halved.
    pub value_coefficient: f64,
    /// Weight of the entropy bonus. Default 0.
    pub entropy_coefficient: f64,
    /// How rewards become advantages.
    #[serde(flatten, deserialize_with = "flattened::<PpoConfig, _, _>")]
    pub advantages: AdvantageKeys,
    /// Skip the remaining update epochs when the policy has moved further than 1.5 times this (mean k3). Default: off.
    pub target_kl: Option<f64>,
    /// Details that reproduce RL4LMs, Stable-Baselines3 or FineGrainedRLHF.
    pub quirks: PpoQuirks,
}

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            rollouts: RolloutKeys::new(1, 53, 0.7),
            update_epochs: 4,
            mini_batches: 1,
            clip_range: 0.2,
            value_clip_range: 0.2,
            policy_coefficient: 1.0,
            value_coefficient: 0.1,
            entropy_coefficient: 0.0,
            advantages: AdvantageKeys::new(1.0, 0.95, true),
            target_kl: None,
            quirks: PpoQuirks::default(),
        }
    }
}

/// Keys of `method.ppo.quirks`: details that reproduce RL4LMs, Stable-Baselines3 or FineGrainedRLHF.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PpoQuirks {
    /// Error that counts if values are clipped. Default `larger` (TRL).
    pub value_clip: ClippedError,
    /// Check `target_kl` after each `pass` over the rollouts, or before the step of each `mini_batch`, which is then
    /// skipped too (RL4LMs). Default `pass`.
    pub target_kl_over: TargetKlOver,
    /// Clip the gradients of policy and critic by their joint norm (RL4LMs) instead of separately. A critic on the
    /// policy's trunk is always clipped jointly. Default false.
    pub clip_jointly: bool,
    /// Split a mini-batch into parts of this many sequences. The loss is averaged over the tokens of each part, then
    /// the parts are averaged or added up (FineGrainedRLHF's micro-batches: 4). Default: one part.
    #[schemars(range(min = 1))]
    pub part_size: Option<usize>,
    /// Add the parts up instead of averaging them (FineGrainedRLHF: true). Default false.
    pub sum_parts: bool,
    /// Weight each part by its mean length relative to that of all rollouts (FineGrainedRLHF: true). Default false.
    pub length_weights: bool,
    /// Advance the learning rate schedule with every optimizer step instead of every iteration (FineGrainedRLHF: true).
    /// Default false.
    pub lr_per_step: bool,
    /// Settings for whitening rewards and advantages.
    pub whitening: WhiteningConfig,
}

impl Default for PpoQuirks {
    fn default() -> Self {
        Self {
            value_clip: ClippedError::Larger,
            target_kl_over: TargetKlOver::Pass,
            clip_jointly: false,
            part_size: None,
            sum_parts: false,
            length_weights: false,
            lr_per_step: false,
            whitening: WhiteningConfig::default(),
        }
    }
}

/// Error of a value that counts under clipping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClippedError {
    /// The larger of the clipped and the unclipped one (OpenAI's baselines).
    Larger,
    /// The clipped one (Stable-Baselines3, RL4LMs).
    Clipped,
}

/// RL4LMs' IMDB recipe. Its buffer of 128 × 10 transitions holds 27 completions of 48 tokens. Here 28 completions make
/// 14 mini-batches, each with at least RL4LMs' 64 transitions.
const RL4LMS: &str = "\
method:
  ppo:
    group_size: 1
    max_new_tokens: 48
    temperature: 1
    update_epochs: 5
    mini_batches: 14
    clip_range: 0.2
    value_clip_range: 0
    value_coefficient: 1
    entropy_coefficient: 0
    discount: 0.99
    gae_lambda: 0.95
    whiten_rewards: false
    whiten_advantages: true
    kl: {coefficient: 0.1, estimator: k1, target: 0.1, rate: 0.1, unit: token}
    critic: {trunk: separate}
    sampling: {top_k: 50, min_new_tokens: 48, trained_logprobs: untempered}
    quirks:
      value_clip: clipped
      target_kl_over: mini_batch
      clip_jointly: true
      whitening: {rewards: biased_deviation, center_rewards: true, advantages: deviation, advantages_over: mini_batch}
train:
  batch_size: 28
  learning_rate: 1e-6
  lr_schedule: constant
  weight_decay: 1e-6
  max_grad_norm: 0.5
";

/// FineGrainedRLHF's recipe, with the arithmetic of the published code: two GPUs with 8 prompts of 4 completions each.
const FINE_GRAINED: &str = "\
method:
  ppo:
    group_size: 4
    max_new_tokens: 200
    temperature: 0.7
    update_epochs: 4
    mini_batches: 1
    clip_range: 0.2
    value_clip_range: 0.2
    value_coefficient: 1
    entropy_coefficient: 0
    discount: 1
    gae_lambda: 0.95
    whiten_rewards: true
    whiten_advantages: true
    kl: {coefficient: 0.3, estimator: k1, stop_above: 10}
    critic: {trunk: separate, head: two_layer}
    sampling: {top_k: 20, trained_logprobs: untempered}
    quirks:
      value_clip: larger
      part_size: 4
      sum_parts: true
      length_weights: true
      lr_per_step: true
      clip_jointly: true
      whitening: {rewards: root_of_deviation, advantages: root_of_deviation, leak_padding: true}
train:
  batch_size: 16
  max_steps: 1250
  max_length: 1224
  max_prompt_length: 1024
  prompt_truncation: right
  learning_rate: 1e-5
  lr_schedule: linear
  warmup_steps: 100
  adam_epsilon: 1e-5
  max_grad_norm: 0
  eval_steps: 50
  dropout: true
";

impl Method for PpoConfig {
    fn name(&self) -> &'static str {
        "ppo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on rewards, with a critic"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 3e-6, too_long: TooLong::Skip, best_metric: "eval_reward" }
    }

    fn need(&self) -> Need {
        Need::Prompt
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        self.advantages.critic.cast(shared, self.rollouts.reference_model.as_deref())
    }

    fn drops_out(&self) -> bool {
        true
    }

    fn preset(&self, preset: Preset) -> Option<&'static str> {
        match preset {
            Preset::Rl4lms => Some(RL4LMS),
            Preset::FineGrained => Some(FINE_GRAINED),
            _ => None,
        }
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        self.check_rules(problems, self.name(), train);
    }
}

impl PpoConfig {
    /// Reports invalid keys; `method` is the method that contains them.
    pub(super) fn check_rules(&self, problems: &mut Problems<'_>, method: &str, train: &TrainConfig) {
        let key = |name: &str| format!("method.{method}.{name}");
        problems.at_least(&key("group_size"), self.rollouts.group_size, 1);
        problems.between(&key("clip_range"), self.clip_range, 0.0, 1.0);
        problems.at_least(&key("entropy_coefficient"), self.entropy_coefficient, 0.0);
        self.iteration().rules(problems, method, train);
        problems.at_least(&key("value_clip_range"), self.value_clip_range, 0.0);
        problems.at_least(&key("policy_coefficient"), self.policy_coefficient, 0.0);
        problems.at_least(&key("value_coefficient"), self.value_coefficient, 0.0);
        problems.above_zero(&key("target_kl"), self.target_kl.unwrap_or(1.0));
        problems.at_least(&key("quirks.part_size"), self.quirks.part_size.unwrap_or(1), 1);
        self.estimation().rules(problems, method);
    }

    /// Returns the keys of the advantage estimation.
    fn estimation(&self) -> Estimation {
        Estimation { keys: self.advantages.clone(), whitening: self.quirks.whitening.clone() }
    }

    /// Returns the loss of a mini-batch. Its means run over the tokens of the mini-batch.
    fn loss(&self) -> PolicyLoss {
        let quirks = &self.quirks;
        let in_parts = quirks.part_size.is_some() || quirks.sum_parts || quirks.length_weights;
        PolicyLoss {
            coefficient: self.policy_coefficient,
            temperature: self.rollouts.trained_temperature(),
            surrogate: Surrogate::Clipped(Clip::symmetric(self.clip_range)),
            level: Level::Token,
            denominator: match in_parts {
                false => Denominator::Tokens,
                true => Denominator::Parts {
                    size: quirks.part_size.unwrap_or(usize::MAX),
                    summed: quirks.sum_parts,
                    by_length: quirks.length_weights,
                },
            },
            kl: None,
            entropy_coefficient: self.entropy_coefficient,
            value: Some(ValueLoss {
                coefficient: self.value_coefficient,
                clip: (self.value_clip_range != 0.0).then_some(ValueClip {
                    range: self.value_clip_range,
                    larger: quirks.value_clip == ClippedError::Larger,
                }),
            }),
            off_policy_threshold: None,
            top_entropy_quantile: None,
            clips_jointly: quirks.clip_jointly,
        }
    }

    /// Creates the algorithm with `critic`; `kl_coefficient` comes from a resumed run.
    pub fn actor_critic(&self, critic: Critic, kl_coefficient: Option<f64>) -> ActorCritic {
        ActorCritic {
            estimator: Estimator::new(self.estimation(), critic, kl_coefficient),
            loss: self.loss(),
            update_epochs: self.update_epochs,
            mini_batches: self.mini_batches,
            target_kl: self.target_kl.map(|target| (target, self.quirks.target_kl_over)),
            lr_per_step: self.quirks.lr_per_step,
        }
    }
}

impl OnlineMethod for PpoConfig {
    fn iteration(&self) -> Iteration<'_> {
        Iteration::new(&self.rollouts, self.update_epochs, self.mini_batches)
    }

    fn algorithm(&self, inputs: AlgorithmInputs) -> Box<dyn Algorithm> {
        Box::new(self.actor_critic(inputs.critic.expect("its cast has a critic"), inputs.kl_coefficient))
    }
}
