//! Proximal policy optimisation with a critic: its keys, and how it learns from rollouts.
//!
//! Schulman et al. 2017, <https://arxiv.org/abs/1707.06347>; for language models Ziegler et al. 2019,
//! <https://arxiv.org/abs/1909.08593>. Follows TRL 1.12; differs in counting only real tokens in every mean.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::actor::{Actor, lengths};
use super::advantage::of_critic;
use super::critic::Critic;
use super::shaping::{KlPenalty, Penalties, add_scores, whiten_lists};
use super::step::{Denominator, Learners, MiniBatch, PolicyLoss, Seen, ValueLoss};
use super::{Advantages, Algorithm, Experience, OnlineMethod, Sampling, Update, mini_batches};
use crate::data::{Need, TooLong};
use crate::error::Result;
use crate::generate::SamplingConfig;
use crate::learner::{Learner, Trained};
use crate::loss::surrogate::Clip;
use crate::math::Whiten;
use crate::method::{Cast, Defaults, Head, Iteration, Method, Problems, Role, Shared, Source, Stay, Trainer};
use crate::rollout::StopReason;
use crate::settings::{Settings, TrainConfig};
use crate::stats::{NEW_TOKENS, Stats};

/// Keys of `method.ppo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PpoConfig {
    /// Completions of each prompt. Default 1.
    pub group_size: usize,
    /// Longest completion in tokens. Default 53 (TRL's TL;DR recipe).
    pub max_new_tokens: usize,
    /// Sampling temperature, also that of the logprobs trained on. Default 0.7 (TRL).
    pub temperature: f64,
    /// Passes over one batch of rollouts. Default 4 (TRL).
    pub update_epochs: usize,
    /// Mini-batches (optimiser steps) of one pass. Default 1 (TRL).
    pub mini_batches: usize,
    /// Clip range of the policy ratio. Default 0.2 (Schulman et al. 2017, section 6.1).
    pub clip_range: f64,
    /// Clip range of the value update; 0 turns clipping off. Default 0.2 (TRL).
    pub value_clip_range: f64,
    /// Weight of the value loss. Default 0.1 (TRL).
    pub value_coefficient: f64,
    /// Weight of the entropy bonus. Default 0.
    pub entropy_coefficient: f64,
    /// Discount γ. Default 1 (TRL).
    pub discount: f64,
    /// GAE's λ. Default 0.95 (TRL).
    pub gae_lambda: f64,
    /// Whether rewards are whitened before GAE. Default false (TRL).
    pub whiten_rewards: bool,
    /// Whether advantages are whitened over the batch. Default true (TRL).
    pub whiten_advantages: bool,
    /// Subtracted from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1).
    pub missing_eos_penalty: Option<f64>,
    /// Leave out the remaining update epochs when the policy has moved further than 1.5 times this (mean k3 over the last pass). Default: off.
    pub target_kl: Option<f64>,
    /// The KL penalty in the reward.
    pub kl: KlConfig,
    /// The critic.
    pub critic: CriticConfig,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// What else shapes the distribution that completions are drawn from.
    pub sampling: SamplingConfig,
    /// The reference: a model directory. Default: the model training starts from.
    pub reference_model: Option<String>,
}

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            group_size: 1,
            max_new_tokens: 53,
            temperature: 0.7,
            update_epochs: 4,
            mini_batches: 1,
            clip_range: 0.2,
            value_clip_range: 0.2,
            value_coefficient: 0.1,
            entropy_coefficient: 0.0,
            discount: 1.0,
            gae_lambda: 0.95,
            whiten_rewards: false,
            whiten_advantages: true,
            missing_eos_penalty: None,
            target_kl: None,
            kl: KlConfig::default(),
            critic: CriticConfig::default(),
            stop: Vec::new(),
            sampling: SamplingConfig::default(),
            reference_model: None,
        }
    }
}

/// The KL penalty in PPO's reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KlConfig {
    /// The (initial) coefficient β. Default 0.05 (TRL).
    pub coefficient: f64,
    /// The estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL).
    pub estimator: KlEstimator,
    /// Adapt the coefficient towards this KL. Default: fixed.
    pub target: Option<f64>,
    /// Sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019).
    pub horizon: f64,
    /// The unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`.
    pub unit: KlUnit,
}

impl Default for KlConfig {
    fn default() -> Self {
        Self { coefficient: 0.05, estimator: KlEstimator::K1, target: None, horizon: 10_000.0, unit: KlUnit::Sequence }
    }
}

/// Estimators of KL(policy ‖ reference) from a sampled token; <http://joschu.net/blog/kl-approx.html>.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// d
    K1,
    /// d²/2
    K2,
    /// e^(−d) − 1 + d
    K3,
}

/// The unit of an adaptive KL target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlUnit {
    /// The sum over a sequence's tokens, averaged over sequences.
    Sequence,
    /// The mean over tokens.
    Token,
}

/// PPO's critic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CriticConfig {
    /// Whether the critic is a head on the policy's trunk or a model of its own. Default `separate` (TRL).
    pub trunk: CriticTrunk,
    /// What a separate critic starts from: a model directory. Default: the reward model where there is one, else the policy.
    pub model: Option<String>,
    /// The critic's own learning rate. Default: the policy's.
    pub learning_rate: Option<f64>,
}

impl Default for CriticConfig {
    fn default() -> Self {
        Self { trunk: CriticTrunk::Separate, model: None, learning_rate: None }
    }
}

/// Where the critic's hidden states come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CriticTrunk {
    /// The policy's trunk: one forward pass serves both.
    Shared,
    /// A model of its own.
    Separate,
}

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
        let cast = Cast::alone(shared, Head::Language)
            .with_reference(shared, self.reference_model.as_deref(), Stay::Whole)
            .with_rewards(shared);
        let learned = cast.rewards.first().map(|reward| reward.source.clone());
        let (source, trainer) = match self.critic.trunk {
            CriticTrunk::Shared => (Source::Trunk, Trainer::Run),
            CriticTrunk::Separate => {
                let named = self.critic.model.clone().map(Source::Named);
                (named.or(learned).unwrap_or(Source::Policy), Trainer::Own(self.critic.learning_rate))
            }
        };
        let critic = Role { head: Head::Scalar, trainer, ..Role::frozen(source, shared) };
        Cast { critic: Some(critic), ..cast }
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        problems.at_least("method.ppo.group_size", self.group_size, 1);
        problems.between("method.ppo.clip_range", self.clip_range, 0.0, 1.0);
        problems.at_least("method.ppo.entropy_coefficient", self.entropy_coefficient, 0.0);
        self.iteration().rules(problems, self.name(), train);
        problems.at_least("method.ppo.value_clip_range", self.value_clip_range, 0.0);
        problems.at_least("method.ppo.value_coefficient", self.value_coefficient, 0.0);
        problems.within("method.ppo.discount", self.discount, 0.0..=1.0);
        problems.within("method.ppo.gae_lambda", self.gae_lambda, 0.0..=1.0);
        problems.at_least("method.ppo.missing_eos_penalty", self.missing_eos_penalty.unwrap_or(0.0), 0.0);
        problems.above_zero("method.ppo.target_kl", self.target_kl.unwrap_or(1.0));
        self.kl.rules(problems);
        self.critic.rules(problems);
    }
}

impl KlConfig {
    fn rules(&self, problems: &mut Problems<'_>) {
        problems.at_least("method.ppo.kl.coefficient", self.coefficient, 0.0);
        problems.above_zero("method.ppo.kl.horizon", self.horizon);
        let Some(target) = self.target else { return };
        problems.above_zero("method.ppo.kl.target", target);
        let fine = self.coefficient != 0.0;
        problems.unless(fine, &["method.ppo.kl.target", "method.ppo.kl.coefficient"], || {
            let message = format!(
                "`method.ppo.kl.target` is {target}, but `method.ppo.kl.coefficient` is 0: the controller multiplies the coefficient, so it would stay 0"
            );
            (message, Some("start from a small coefficient such as 0.05".into()))
        });
    }
}

impl CriticConfig {
    fn rules(&self, problems: &mut Problems<'_>) {
        problems.at_least("method.ppo.critic.learning_rate", self.learning_rate.unwrap_or(0.0), 0.0);
        let shared = self.trunk == CriticTrunk::Shared;
        let (model, learning_rate) = ("method.ppo.critic.model", "method.ppo.critic.learning_rate");
        for (key, given, reason) in [
            (model, self.model.is_some(), "it is a head on the policy and starts from no other model"),
            (learning_rate, self.learning_rate.is_some(), "one optimiser steps policy and critic"),
        ] {
            problems.unless(!(shared && given), &[key, "method.ppo.critic.trunk"], || {
                let message = format!("`{key}` is given, but the critic shares the policy's trunk: {reason}");
                (message, Some("leave it out, or use `trunk: separate`".into()))
            });
        }
    }
}

impl OnlineMethod for PpoConfig {
    fn iteration(&self) -> Iteration<'_> {
        Iteration {
            group_size: self.group_size,
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            stop: &self.stop,
            sampling: &self.sampling,
            update_epochs: self.update_epochs,
            mini_batches: self.mini_batches,
            regroups: false,
        }
    }

    fn algorithm(&self, critic: Option<Critic>, kl_coefficient: Option<f64>) -> Box<dyn Algorithm> {
        Box::new(Ppo::new(self, critic.expect("its cast has a critic"), kl_coefficient))
    }
}

/// How far beyond `target_kl` the policy may move before the remaining passes are left out (Spinning Up's PPO).
const TARGET_KL_SLACK: f64 = 1.5;

/// The algorithm: the critic and the KL controller are its state.
#[derive(Debug)]
pub struct Ppo {
    config: PpoConfig,
    kl: KlPenalty,
    critic: Critic,
}

impl Ppo {
    /// The algorithm that `config` asks for; `kl_coefficient` is that of a resumed run.
    pub fn new(config: &PpoConfig, critic: Critic, kl_coefficient: Option<f64>) -> Self {
        Self { config: config.clone(), kl: KlPenalty::new(&config.kl, kl_coefficient), critic }
    }

    /// The loss of a mini-batch; its means run over its tokens.
    fn loss(&self) -> PolicyLoss {
        let config = &self.config;
        PolicyLoss {
            temperature: config.temperature as f32,
            clip: Clip::symmetric(config.clip_range),
            denominator: Denominator::Tokens,
            kl: None,
            entropy_coefficient: config.entropy_coefficient,
            value: Some(ValueLoss {
                coefficient: config.value_coefficient,
                clip_range: Some(config.value_clip_range).filter(|&range| range != 0.0),
            }),
        }
    }
}

/// Closes one pass over the rollouts: its mean k3, and its numbers into `total`.
fn close(seen: &Seen, steps: &Stats, total: &mut Stats) -> f64 {
    let (ratios, tokens) = (&seen.ratios, seen.ratios.tokens as f64);
    total.merge(steps);
    total.mean("policy/approxkl_avg", ratios.approx_kl() * tokens, tokens);
    total.mean("policy/clipfrac_avg", ratios.clip_fraction() * tokens, tokens);
    total.mean("policy/entropy_avg", seen.entropy, tokens);
    total.mean("entropy", seen.entropy, tokens);
    total.mean("val/clipfrac_avg", seen.value_clipped, tokens);
    total.mean("val/ratio", ratios.ratio() * tokens, tokens);
    total.mean("val/ratio_var", ratios.ratio_variance() * tokens, tokens);
    total.max("val/ratio_max", ratios.ratio_max);
    ratios.k3()
}

impl Algorithm for Ppo {
    fn sampling(&self) -> Sampling {
        Sampling {
            group_size: self.config.group_size,
            max_new_tokens: self.config.max_new_tokens,
            temperature: self.config.temperature as f32,
            stop: self.config.stop.clone(),
            shape: self.config.sampling.clone(),
        }
    }

    fn needs_reference(&self) -> bool {
        true
    }

    fn advantages(&mut self, actor: &Actor, experience: &Experience, settings: &Settings) -> Advantages {
        let config = &self.config;
        let values = self.critic.values(actor, &experience.rollouts, settings.passes);
        let mut stats = Stats::default();
        // Rewards per token: what the reward says, less the penalties.
        let Penalties { mut rewards, kl } = self.kl.penalties(experience);
        add_scores(&mut rewards, experience, config.missing_eos_penalty, &mut stats);
        if let Some(measured) = kl {
            self.kl.adapt(measured, &mut stats);
        }
        // Unscored rollouts teach nothing: they enter neither whitening nor the critic's targets.
        let scored = experience.scored();
        if config.whiten_rewards {
            whiten_lists(&mut rewards, &scored, Whiten::KeepMean);
        }
        let mut found = of_critic(&rewards, values, &scored, (config.discount, config.gae_lambda));
        if config.whiten_advantages {
            whiten_lists(&mut found.advantages, &scored, Whiten::ZeroMean);
        }
        stats.merge(&found.stats);
        Advantages { stats, ..found }
    }

    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<Stats, String> {
        let PpoConfig { value_coefficient, entropy_coefficient, mini_batches: count, .. } = self.config;
        let (loss, scored) = (self.loss(), experience.scored());
        let mut learners = Learners { actor, critic: Some(&mut self.critic) };
        let (mut stats, mut passes) = (Stats::default(), 0);
        for epoch in 0..self.config.update_epochs {
            let order = update.order(&scored, count, epoch);
            let (mut steps, mut seen) = (Stats::default(), Seen::default());
            for chosen in mini_batches(&order, count) {
                let batch = MiniBatch { experience, advantages, chosen, silent: 0 };
                let (losses, norms) = loss.step(&mut learners, batch, update, &mut seen)?;
                let bonus = entropy_coefficient * losses.entropy;
                steps.mean("loss", losses.policy + value_coefficient * losses.value - bonus, 1.0);
                steps.mean("grad_norm", norms.actor, 1.0);
                if let Some(norm) = norms.critic {
                    steps.mean("critic/grad_norm", norm, 1.0);
                }
                steps.mean("loss/policy_avg", losses.policy, 1.0);
                steps.mean("loss/value_avg", losses.value, 1.0);
            }
            passes += 1;
            let moved = close(&seen, &steps, &mut stats);
            if self.config.target_kl.is_some_and(|target| moved > TARGET_KL_SLACK * target) {
                break;
            }
        }
        stats.last("lr", update.settings.learning_rate * update.multiplier);
        stats.mean("update_epochs", f64::from(passes), 1.0);
        stats.sum(NEW_TOKENS, lengths(&experience.rollouts, &scored).iter().sum::<usize>() as f64);
        let ended = experience.rollouts.rollouts.iter().filter(|rollout| rollout.stop != StopReason::Length).count();
        stats.mean("val/num_eos_tokens", ended as f64, 1.0);
        Ok(stats)
    }

    fn critic(&self) -> Option<&Critic> {
        Some(&self.critic)
    }

    fn learners(&self) -> Vec<(&str, Trained<'_>)> {
        match &self.critic {
            Critic::Shared => Vec::new(),
            Critic::Separate(critic) => vec![(CRITIC_PREFIX, critic.learner.trained())],
        }
    }

    fn save(&self, actor: &Actor, directory: &Path) -> Result<()> {
        self.critic.save(actor, directory)
    }

    fn kl_coefficient(&self) -> Option<f64> {
        Some(self.kl.coefficient())
    }
}

/// Before the names of a separate critic's parameters in a checkpoint.
pub const CRITIC_PREFIX: &str = "critic.";
