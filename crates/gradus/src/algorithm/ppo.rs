//! Proximal policy optimisation with a critic: its keys, and how it learns from rollouts.
//!
//! Schulman et al. 2017, <https://arxiv.org/abs/1707.06347>; for language models Ziegler et al. 2019,
//! <https://arxiv.org/abs/1909.08593>. Follows TRL 1.12; differs in counting only real tokens in every mean.

use std::path::Path;

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::actor::{self, Actor, concat, gather, lengths};
use super::critic::Critic;
use super::{Advantages, Algorithm, Experience, OnlineMethod, Sampling, Update, mini_batches};
use crate::data::{Need, TooLong};
use crate::error::Result;
use crate::host::{constant, read};
use crate::learner::Learner;
use crate::learner::optimizer::AdamW;
use crate::loss::{ppo, value};
use crate::math::kl::{self, KlController};
use crate::math::stats::{Variance, explained_variance, mean};
use crate::math::{Whiten, gae, returns, whiten};
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
    controller: KlController,
    critic: Critic,
}

impl Ppo {
    /// The algorithm that `config` asks for; `kl_coefficient` is that of a resumed run.
    pub fn new(config: &PpoConfig, critic: Critic, kl_coefficient: Option<f64>) -> Self {
        let coefficient = kl_coefficient.unwrap_or(config.kl.coefficient);
        let controller = match config.kl.target {
            Some(target) => KlController::Adaptive { coefficient, target, horizon: config.kl.horizon },
            None => KlController::Fixed { coefficient },
        };
        Self { config: config.clone(), controller, critic }
    }

    /// The penalty of one rollout, per token and not yet weighted.
    fn kl(&self, logprobs_t: &[f32], reference_t: &[f32]) -> Vec<f32> {
        match self.config.kl.estimator {
            KlEstimator::K1 => kl::k1(logprobs_t, reference_t),
            KlEstimator::K2 => kl::k2(logprobs_t, reference_t),
            KlEstimator::K3 => kl::k3(logprobs_t, reference_t),
        }
    }

    /// One optimiser step on the rollouts `chosen`; adds to what the pass over the batch measured.
    fn step(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        chosen: &[usize],
        update: Update<'_>,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let PpoConfig { clip_range, value_clip_range, value_coefficient, entropy_coefficient, .. } = self.config;
        let rollouts = &experience.rollouts;
        let lengths = lengths(rollouts, chosen);
        // The denominator of every mean: the tokens of this mini-batch, however it is split.
        let tokens: usize = chosen.iter().map(|&i| rollouts.rollouts[i].counted()).sum();
        let (mut policy_loss, mut value_loss) = (0.0, 0.0);
        for pass in update.settings.passes.split(&lengths) {
            let part = &chosen[pass];
            let batch = actor::batch(&actor.module().policy.trunk, rollouts, part);
            let mut forward = actor.module().forward(&batch, self.config.temperature as f32);
            let values_m = self.critic.forward(&mut forward, &batch);
            let found = forward.logprobs;
            let device = found.logprobs_m.device();

            let old = actor::old_logprobs(rollouts, part);
            let advantages_m = concat(&advantages.advantages, part);
            let losses_m = ppo::clipped_surrogate(
                found.logprobs_m.clone(),
                constant(old.clone(), &device),
                constant(advantages_m.clone(), &device),
                clip_range,
                clip_range,
            );
            let mut loss = losses_m.sum() / tokens as f64;
            policy_loss += f64::from(read(&loss)[0]);
            let values = read(&values_m);
            let returns_m = gather(&advantages.returns, part, &device);
            let old_values = concat(&advantages.values, part);
            let value_losses_m = match value_clip_range {
                0.0 => value::plain(values_m, returns_m),
                range => value::clipped(values_m, constant(old_values.clone(), &device), returns_m, range),
            };
            let critic_loss = value_losses_m.sum() / tokens as f64;
            value_loss += f64::from(read(&critic_loss)[0]);

            seen.add_pass(&read(&found.logprobs_m), &old, &advantages_m, &read(&found.entropies_m), clip_range);
            seen.value_clipped += match value_clip_range {
                0.0 => 0.0,
                range => {
                    value::clip_fraction(&values, &old_values, &concat(&advantages.returns, part), range)
                        * values.len() as f64
                }
            };
            if entropy_coefficient != 0.0 {
                loss = loss - found.entropies_m.sum() * (entropy_coefficient / tokens as f64);
            }
            finite("policy loss", &loss)?;
            finite("value loss", &critic_loss)?;
            match &mut self.critic {
                Critic::Shared => actor.accumulate(&(loss + critic_loss * value_coefficient)),
                Critic::Separate(critic) => {
                    actor.accumulate(&loss);
                    critic.learner.accumulate(&(critic_loss * value_coefficient));
                }
            }
        }
        let settings = update.settings;
        let norm = actor.step(settings.learning_rate * update.multiplier, settings.max_grad_norm)?;
        let mut critic_norm = None;
        if let Critic::Separate(critic) = &mut self.critic {
            critic_norm = Some(critic.learner.step(critic.learning_rate * update.multiplier, settings.max_grad_norm)?);
        }
        let entropy = seen.entropy / seen.ppo.tokens.max(1) as f64;
        let loss = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy;
        seen.stats.mean("loss", loss, 1.0);
        seen.stats.mean("grad_norm", norm, 1.0);
        if let Some(norm) = critic_norm {
            seen.stats.mean("critic/grad_norm", norm, 1.0);
        }
        seen.stats.mean("loss/policy_avg", policy_loss, 1.0);
        seen.stats.mean("loss/value_avg", value_loss, 1.0);
        Ok(())
    }
}

/// What the passes over one batch of rollouts measured.
#[derive(Default)]
struct Seen {
    stats: Stats,
    ppo: ppo::Statistics,
    entropy: f64,
    value_clipped: f64,
}

impl Seen {
    fn add_pass(&mut self, logprobs: &[f32], old: &[f32], advantages: &[f32], entropies: &[f32], clip_range: f64) {
        self.ppo.add(&ppo::Statistics::new(logprobs, old, advantages, clip_range, clip_range));
        self.entropy += entropies.iter().map(|&entropy| f64::from(entropy)).sum::<f64>();
    }

    /// Closes one pass over the batch: its mean k3, and its numbers into `total`.
    fn close(self, total: &mut Stats) -> f64 {
        let (ppo, tokens) = (self.ppo, self.ppo.tokens as f64);
        total.merge(&self.stats);
        total.mean("policy/approxkl_avg", ppo.approx_kl() * tokens, tokens);
        total.mean("policy/clipfrac_avg", ppo.clip_fraction() * tokens, tokens);
        total.mean("policy/entropy_avg", self.entropy, tokens);
        total.mean("entropy", self.entropy, tokens);
        total.mean("val/clipfrac_avg", self.value_clipped, tokens);
        total.mean("val/ratio", ppo.ratio() * tokens, tokens);
        total.mean("val/ratio_var", ppo.ratio_variance() * tokens, tokens);
        total.max("val/ratio_max", ppo.ratio_max);
        ppo.k3()
    }
}

impl Algorithm for Ppo {
    fn sampling(&self) -> Sampling {
        Sampling {
            group_size: self.config.group_size,
            max_new_tokens: self.config.max_new_tokens,
            temperature: self.config.temperature as f32,
            stop: self.config.stop.clone(),
        }
    }

    fn needs_reference(&self) -> bool {
        true
    }

    fn advantages(&mut self, actor: &Actor, experience: &Experience, settings: &Settings) -> Advantages {
        let config = &self.config;
        let rollouts = &experience.rollouts;
        let coefficient = self.controller.coefficient();
        let mut stats = Stats::default();
        let values = self.critic.values(actor, rollouts, settings.passes);

        // Rewards per token: what the reward says, less the penalties.
        let mut rewards: Vec<Vec<f32>> = Vec::with_capacity(rollouts.len());
        let (mut kl_sum, mut kl_tokens) = (0.0, 0);
        for (i, rollout) in rollouts.rollouts.iter().enumerate() {
            let logprobs_t = rollout.counted_logprobs();
            let mut rewards_t = vec![0.0; logprobs_t.len()];
            if let Some(reference) = &experience.reference {
                let kl_t = self.kl(&logprobs_t, &reference[i]);
                for (reward, kl) in rewards_t.iter_mut().zip(&kl_t) {
                    *reward -= coefficient as f32 * kl;
                }
                kl_sum += kl_t.iter().map(|&kl| f64::from(kl)).sum::<f64>();
                kl_tokens += kl_t.len();
            }
            let non_score: f64 = rewards_t.iter().map(|&x| f64::from(x)).sum();
            stats.mean("objective/non_score_reward", non_score, 1.0);
            stats.mean("objective/entropy", -logprobs_t.iter().map(|&x| f64::from(x)).sum::<f64>(), 1.0);
            if let Some(score_t) = &experience.rewards[i] {
                for (reward, score) in rewards_t.iter_mut().zip(score_t) {
                    *reward += score;
                }
                let missing = rollout.stop == StopReason::Length;
                let penalty = config.missing_eos_penalty.filter(|_| missing).unwrap_or(0.0);
                *rewards_t.last_mut().expect("a completion is never empty") -= penalty as f32;
                let score = score_t.iter().map(|&x| f64::from(x)).sum::<f64>() - penalty;
                stats.mean("objective/scores", score, 1.0);
                stats.mean("objective/rlhf_reward", score + non_score, 1.0);
            }
            rewards.push(rewards_t);
        }
        let sequences = rollouts.len();
        if experience.reference.is_some() {
            stats.mean("objective/kl", kl_sum, sequences as f64);
            stats.mean("kl", kl_sum, sequences as f64);
            stats.last("kl_coef", coefficient);
            let measured = match config.kl.unit {
                KlUnit::Sequence => kl_sum / sequences as f64,
                KlUnit::Token => kl_sum / kl_tokens.max(1) as f64,
            };
            self.controller.update(measured, sequences);
        }

        // Unscored rollouts teach nothing: they enter neither whitening nor the critic's targets.
        let scored: Vec<usize> = (0..sequences).filter(|&i| experience.rewards[i].is_some()).collect();
        if config.whiten_rewards {
            whiten_lists(&mut rewards, &scored, Whiten::KeepMean);
        }
        let mut advantages: Vec<Vec<f32>> =
            (0..sequences).map(|i| gae(&rewards[i], &values[i], 0.0, config.discount, config.gae_lambda)).collect();
        let returns: Vec<Vec<f32>> = (0..sequences).map(|i| returns(&advantages[i], &values[i])).collect();
        let (said, wanted) = (concat(&values, &scored), concat(&returns, &scored));
        if let Some(explained) = explained_variance(&said, &wanted) {
            stats.mean("explained_variance", explained, 1.0);
        }
        stats.mean("values/mean", mean(&said).unwrap_or(0.0), 1.0);
        stats.mean("returns/mean", mean(&wanted).unwrap_or(0.0), 1.0);
        if config.whiten_advantages {
            whiten_lists(&mut advantages, &scored, Whiten::ZeroMean);
        }
        Advantages { advantages, returns, values, stats }
    }

    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<Stats, String> {
        let scored: Vec<usize> = (0..experience.rollouts.len()).filter(|&i| experience.rewards[i].is_some()).collect();
        let mut stats = Stats::default();
        let mut passes = 0;
        for epoch in 0..self.config.update_epochs {
            let order = update.order(&scored, self.config.mini_batches, epoch);
            let mut seen = Seen::default();
            for chosen in mini_batches(&order, self.config.mini_batches) {
                let stepped = self.step(actor, experience, advantages, chosen, update, &mut seen);
                if let Err(what) = stepped {
                    self.discard(actor);
                    return Err(what);
                }
            }
            passes += 1;
            let moved = seen.close(&mut stats);
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

    fn optimizers(&self) -> Vec<(&str, &AdamW)> {
        match &self.critic {
            Critic::Shared => Vec::new(),
            Critic::Separate(critic) => vec![(CRITIC_PREFIX, critic.learner.optimizer())],
        }
    }

    fn save(&self, actor: &Actor, directory: &Path) -> Result<()> {
        self.critic.save(actor, directory)
    }

    fn kl_coefficient(&self) -> Option<f64> {
        Some(self.controller.coefficient())
    }
}

/// Before the names of a separate critic's parameters in a checkpoint.
pub const CRITIC_PREFIX: &str = "critic.";

impl Ppo {
    fn discard(&mut self, actor: &mut Learner<Actor>) {
        actor.discard();
        if let Critic::Separate(critic) = &mut self.critic {
            critic.learner.discard();
        }
    }
}

/// Whitens over all values of the chosen lists together.
fn whiten_lists(lists: &mut [Vec<f32>], chosen: &[usize], mean_becomes: Whiten) {
    let whitened = whiten(&concat(lists, chosen), mean_becomes, Variance::Unbiased);
    let mut rest = whitened.as_slice();
    for &i in chosen {
        let (own, others) = rest.split_at(lists[i].len());
        lists[i].copy_from_slice(own);
        rest = others;
    }
}

/// Refuses a loss that is not a number.
pub(super) fn finite(name: &str, loss: &Tensor<1>) -> Result<(), String> {
    let value = read(loss)[0];
    if value.is_finite() { Ok(()) } else { Err(format!("the {name} is {value}")) }
}
