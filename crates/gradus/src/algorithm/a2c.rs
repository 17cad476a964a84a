//! Advantage actor–critic: configuration and update.
//!
//! Mnih et al. 2016, section 4, <https://arxiv.org/abs/1602.01783>, synchronous, as in Stable-Baselines3 and RL4LMs
//! (Ramamurthy et al. 2023, <https://arxiv.org/abs/2210.01241>): one optimizer step per iteration, over all rollouts.
//! `train.optimizer: rmsprop` is the optimizer of both.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::actor_critic::ActorCritic;
use super::estimator::{AdvantageKeys, Estimation, Estimator, WhiteningConfig};
use super::step::{Denominator, PolicyLoss, Surrogate, ValueLoss};
use super::{Algorithm, AlgorithmInputs, OnlineMethod};
use crate::data::{Need, TooLong};
use crate::loss::surrogate::Level;
use crate::method::{
    Cast, Defaults, Iteration, Method, Preset, Problems, RolloutKeys, Shared, describe_defaults, flattened,
};
use crate::settings::TrainConfig;

/// Keys of `method.a2c`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = |schema: &mut Schema| describe_defaults::<A2cConfig>(schema, "RL4LMs"))]
pub struct A2cConfig {
    /// How completions are sampled.
    #[serde(flatten, deserialize_with = "flattened::<A2cConfig, _, _>")]
    pub rollouts: RolloutKeys,
    /// Weight of the value loss, which is half the squared error. Default 1 (RL4LMs: 0.5, without the half).
    pub value_coefficient: f64,
    /// Weight of the entropy bonus. Default 0 (RL4LMs).
    pub entropy_coefficient: f64,
    /// How rewards become advantages.
    #[serde(flatten, deserialize_with = "flattened::<A2cConfig, _, _>")]
    pub advantages: AdvantageKeys,
    /// Details that reproduce RL4LMs, Stable-Baselines3 or FineGrainedRLHF.
    pub quirks: A2cQuirks,
}

impl Default for A2cConfig {
    fn default() -> Self {
        Self {
            rollouts: RolloutKeys::new(1, 48, 1.0),
            value_coefficient: 1.0,
            entropy_coefficient: 0.0,
            advantages: AdvantageKeys::new(0.99, 1.0, false),
            quirks: A2cQuirks::default(),
        }
    }
}

/// Keys of `method.a2c.quirks`: details that reproduce RL4LMs, Stable-Baselines3 or FineGrainedRLHF.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct A2cQuirks {
    /// Clip the gradients of policy and critic by their joint norm. Default true (RL4LMs).
    pub clip_jointly: bool,
    /// Settings for whitening rewards and advantages.
    pub whitening: WhiteningConfig,
}

impl Default for A2cQuirks {
    fn default() -> Self {
        Self { clip_jointly: true, whitening: WhiteningConfig::default() }
    }
}

/// RL4LMs' IMDB recipe: a buffer of 48 × 2 transitions holds two completions.
const RL4LMS: &str = "\
method:
  a2c:
    group_size: 1
    max_new_tokens: 48
    temperature: 1
    value_coefficient: 1
    entropy_coefficient: 0
    discount: 0.99
    gae_lambda: 1
    whiten_rewards: false
    whiten_advantages: false
    kl: {coefficient: 0.1, estimator: k1, target: 0.5, rate: 0.1, unit: token}
    critic: {trunk: separate}
    sampling: {top_k: 50, min_new_tokens: 48, trained_logprobs: untempered}
    quirks:
      clip_jointly: true
      whitening: {rewards: biased_deviation, center_rewards: true, advantages: deviation}
train:
  batch_size: 2
  optimizer: rmsprop
  rmsprop_alpha: 0.99
  rmsprop_epsilon: 1e-5
  learning_rate: 1e-6
  lr_schedule: constant
  weight_decay: 1e-6
  max_grad_norm: 0.5
";

impl Method for A2cConfig {
    fn name(&self) -> &'static str {
        "a2c"
    }

    fn about(&self) -> &'static str {
        "Train a policy on rewards, with a critic and one step per iteration"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-6, too_long: TooLong::Skip, best_metric: "eval_reward" }
    }

    fn need(&self) -> Need {
        Need::Prompt
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        self.advantages.critic.cast(shared, self.rollouts.reference_model.as_deref())
    }

    fn preset(&self, preset: Preset) -> Option<&'static str> {
        (preset == Preset::Rl4lms).then_some(RL4LMS)
    }

    fn drops_out(&self) -> bool {
        true
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        problems.at_least("method.a2c.group_size", self.rollouts.group_size, 1);
        problems.at_least("method.a2c.entropy_coefficient", self.entropy_coefficient, 0.0);
        problems.at_least("method.a2c.value_coefficient", self.value_coefficient, 0.0);
        self.iteration().rules(problems, self.name(), train);
        self.estimation().rules(problems, self.name());
    }
}

impl OnlineMethod for A2cConfig {
    fn iteration(&self) -> Iteration<'_> {
        Iteration::new(&self.rollouts, 1, 1)
    }

    fn algorithm(&self, inputs: AlgorithmInputs) -> Box<dyn Algorithm> {
        let critic = inputs.critic.expect("its cast has a critic");
        Box::new(ActorCritic {
            estimator: Estimator::new(self.estimation(), critic, inputs.kl_coefficient),
            loss: self.loss(),
            update_epochs: 1,
            mini_batches: 1,
            target_kl: None,
            lr_per_step: false,
        })
    }
}

impl A2cConfig {
    /// Returns the keys of the advantage estimation.
    fn estimation(&self) -> Estimation {
        Estimation { keys: self.advantages.clone(), whitening: self.quirks.whitening.clone() }
    }

    /// Returns the loss of the step. Its means run over all tokens.
    fn loss(&self) -> PolicyLoss {
        PolicyLoss {
            coefficient: 1.0,
            temperature: self.rollouts.trained_temperature(),
            surrogate: Surrogate::PolicyGradient,
            level: Level::Token,
            denominator: Denominator::Tokens,
            kl: None,
            entropy_coefficient: self.entropy_coefficient,
            value: Some(ValueLoss { coefficient: self.value_coefficient, clip: None }),
            off_policy_threshold: None,
            top_entropy_quantile: None,
            clips_jointly: self.quirks.clip_jointly,
        }
    }
}
