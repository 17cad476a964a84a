//! Trust region policy optimization: configuration and update.
//!
//! Schulman et al. 2015, <https://arxiv.org/abs/1502.05477>, as in sb3-contrib and RL4LMs (Ramamurthy et al. 2023,
//! <https://arxiv.org/abs/2210.01241>). In each iteration the policy takes one step along the natural gradient, limited
//! by the KL to the sampling policy. The critic is trained in separate passes. Differs in that conjugate gradients
//! start at 0, not at random, so that the step depends on the gradient alone.

use burn::module::Module;
use burn::tensor::Tensor;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::actor::{Actor, lengths};
use super::critic::Critic;
use super::estimator::{AdvantageKeys, CriticTrunk, Estimation, Estimator, WhiteningConfig};
use super::fisher::{Distance, Distributions};
use super::step::{Denominator, Learners, MiniBatch, OldLogprobs, PassStats, PolicyLoss, Surrogate};
use super::{Advantages, Algorithm, AlgorithmInputs, Experience, OnlineMethod, Update, actor, mini_batches};
use crate::data::{Need, TooLong};
use crate::error::Result;
use crate::host::{constant, read};
use crate::learner::Learner;
use crate::loss::reduce::sum;
use crate::loss::surrogate::{Clip, Level};
use crate::loss::value;
use crate::math::conjugate::{add_scaled, conjugate_gradient, dot};
use crate::method::{
    Cast, Defaults, Iteration, Method, Preset, Problems, RolloutKeys, Shared, describe_defaults, flattened,
};
use crate::settings::{Settings, TrainConfig};
use crate::stats::{Stats, StepReport};

/// Keys of `method.trpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = |schema: &mut Schema| describe_defaults::<TrpoConfig>(schema, "RL4LMs"))]
pub struct TrpoConfig {
    /// How completions are sampled.
    #[serde(flatten, deserialize_with = "flattened::<TrpoConfig, _, _>")]
    pub rollouts: RolloutKeys,
    /// Maximum distance that a step may move the policy: mean KL(new ‖ old) over tokens, in nats. Default 0.01 (RL4LMs).
    pub target_kl: f64,
    /// Maximum number of conjugate gradient steps. Default 15 (RL4LMs).
    #[schemars(range(min = 1, max = 10_000))]
    pub cg_max_steps: usize,
    /// Value added to the diagonal of the Fisher matrix. Default 0.1 (RL4LMs).
    pub cg_damping: f64,
    /// Factor that shortens a step that is too long. Default 0.8 (RL4LMs).
    pub line_search_shrinking_factor: f64,
    /// Maximum number of step lengths to try. Default 10 (RL4LMs).
    #[schemars(range(min = 1, max = 1_000))]
    pub line_search_max_iter: usize,
    /// Passes of the critic over the rollouts. Default 10 (RL4LMs).
    #[schemars(range(min = 1, max = 10_000))]
    pub critic_updates: usize,
    /// Mini-batches (optimizer steps of the critic) per pass. Default 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub critic_mini_batches: usize,
    /// How rewards become advantages.
    #[serde(flatten, deserialize_with = "flattened::<TrpoConfig, _, _>")]
    pub advantages: AdvantageKeys,
    /// Details that reproduce RL4LMs, Stable-Baselines3 or FineGrainedRLHF.
    pub quirks: TrpoQuirks,
}

impl Default for TrpoConfig {
    fn default() -> Self {
        Self {
            rollouts: RolloutKeys::new(1, 48, 1.0),
            target_kl: 0.01,
            cg_max_steps: 15,
            cg_damping: 0.1,
            line_search_shrinking_factor: 0.8,
            line_search_max_iter: 10,
            critic_updates: 10,
            critic_mini_batches: 1,
            advantages: AdvantageKeys::new(0.99, 0.95, true),
            quirks: TrpoQuirks::default(),
        }
    }
}

/// Keys of `method.trpo.quirks`: details that reproduce RL4LMs, Stable-Baselines3 or FineGrainedRLHF.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrpoQuirks {
    /// Settings for whitening rewards and advantages.
    pub whitening: WhiteningConfig,
}

/// RL4LMs' recipe for increasing numbers: a buffer of 20 × 2 transitions holds two completions.
const RL4LMS: &str = "\
method:
  trpo:
    group_size: 1
    max_new_tokens: 20
    temperature: 1
    target_kl: 0.01
    cg_max_steps: 15
    cg_damping: 0.1
    line_search_shrinking_factor: 0.8
    line_search_max_iter: 10
    critic_updates: 10
    critic_mini_batches: 1
    discount: 0.99
    gae_lambda: 0.95
    whiten_rewards: false
    whiten_advantages: true
    kl: {coefficient: 0.01, estimator: k1, target: 2, rate: 0.1, unit: token}
    critic: {trunk: separate}
    sampling: {top_k: 50, trained_logprobs: untempered}
    quirks:
      whitening: {rewards: biased_deviation, center_rewards: true, advantages: deviation}
train:
  batch_size: 2
  learning_rate: 1e-5
  lr_schedule: constant
  weight_decay: 1e-6
";

impl Method for TrpoConfig {
    fn name(&self) -> &'static str {
        "trpo"
    }

    fn about(&self) -> &'static str {
        "Train a policy on rewards, with a critic and steps within a trust region"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-5, too_long: TooLong::Skip, best_metric: "eval_reward" }
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

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        let key = |name: &str| format!("method.trpo.{name}");
        problems.at_least(&key("group_size"), self.rollouts.group_size, 1);
        problems.above_zero(&key("target_kl"), self.target_kl);
        problems.at_least(&key("cg_max_steps"), self.cg_max_steps, 1);
        problems.at_least(&key("cg_damping"), self.cg_damping, 0.0);
        problems.between(&key("line_search_shrinking_factor"), self.line_search_shrinking_factor, 0.0, 1.0);
        problems.at_least(&key("line_search_max_iter"), self.line_search_max_iter, 1);
        self.iteration().rules(problems, self.name(), train);
        self.estimation().rules(problems, self.name());
        problems.require(self.advantages.critic.trunk == CriticTrunk::Separate, &[&key("critic.trunk")], || {
            let reason = "a critic on the policy's trunk would move the policy beyond its trust region";
            (format!("`{}` is `shared`: {reason}", key("critic.trunk")), Some("leave it out".into()))
        });
    }
}

impl OnlineMethod for TrpoConfig {
    fn iteration(&self) -> Iteration<'_> {
        Iteration {
            vectors: Some(VECTORS),
            keys: ["critic_updates", "critic_mini_batches"],
            ..Iteration::new(&self.rollouts, self.critic_updates, self.critic_mini_batches)
        }
    }

    fn algorithm(&self, inputs: AlgorithmInputs) -> Box<dyn Algorithm> {
        Box::new(Trpo::new(self, inputs.critic.expect("its cast has a critic"), inputs.kl_coefficient))
    }
}

impl TrpoConfig {
    /// Returns the keys of the advantage estimation.
    fn estimation(&self) -> Estimation {
        Estimation { keys: self.advantages.clone(), whitening: self.quirks.whitening.clone() }
    }
}

/// Number of parameter-sized vectors in memory during an update of the policy: the starting point, the gradient, four
/// vectors of conjugate gradients, the device copy of one of them, and the four policies of a Fisher product.
const VECTORS: u64 = 11;

/// `‖b − A x‖²` at which conjugate gradients stop (sb3-contrib).
const RESIDUAL_TOLERANCE: f64 = 1e-10;

/// The algorithm. Its state is the critic and the KL controller.
#[derive(Debug)]
pub struct Trpo {
    config: TrpoConfig,
    estimator: Estimator,
}

/// Moves the parameters along `direction` by the first of `lengths` that `accepts` approves, and returns its result. If
/// it approves none, the parameters are restored bit for bit.
fn line_search<M: Module, T>(
    learner: &mut Learner<M>,
    direction: &Tensor<1>,
    lengths: impl Iterator<Item = f64>,
    mut accepts: impl FnMut(&M) -> Option<T>,
) -> Option<T> {
    let start = learner.parameters();
    for length in lengths {
        learner.set_parameters(&(start.clone() + direction.clone() * length));
        if let Some(found) = accepts(&learner.frozen()) {
            return Some(found);
        }
    }
    learner.set_parameters(&start);
    None
}

/// A step of the policy, accepted or not.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    /// Distance that the policy moved; `None` if every length was rejected.
    taken: Option<Distance>,
    /// Number of lengths tried.
    tried: usize,
    /// Norm of the objective's gradient.
    gradient_norm: f64,
    /// Objective before the step.
    objective: f64,
    /// Increase of the objective.
    gained: f64,
    /// Mean entropy.
    entropy: f64,
    /// Mean ratio before the step.
    ratio: f64,
}

impl Trpo {
    /// Creates the algorithm from `config`; `kl_coefficient` comes from a resumed run.
    pub fn new(config: &TrpoConfig, critic: Critic, kl_coefficient: Option<f64>) -> Self {
        Self { config: config.clone(), estimator: Estimator::new(config.estimation(), critic, kl_coefficient) }
    }

    /// Returns the loss: the negative mean of `Â·ρ`.
    fn loss(&self) -> PolicyLoss {
        PolicyLoss {
            coefficient: 1.0,
            temperature: self.config.rollouts.trained_temperature(),
            surrogate: Surrogate::Clipped(Clip { low: 1.0, high: f64::INFINITY, delta: None }),
            level: Level::Token,
            denominator: Denominator::Tokens,
            kl: None,
            entropy_coefficient: 0.0,
            value: None,
            off_policy_threshold: None,
            top_entropy_quantile: None,
            clips_jointly: false,
        }
    }

    /// Takes one step of the policy along the natural gradient. If no step is accepted, and on an error, the weights
    /// are unchanged bit for bit.
    fn step(&self, learner: &mut Learner<Actor>, batch: MiniBatch<'_>, update: Update<'_>) -> Result<Step, String> {
        let (config, mut pass_stats) = (&self.config, PassStats::default());
        let distributions = Distributions {
            experience: batch.experience,
            chosen: batch.chosen,
            temperature: config.rollouts.trained_temperature(),
            passes: update.settings.passes,
        };
        // 1. The gradient of the objective.
        let mut learners = Learners { actor: learner, critic: None };
        let losses = self.loss().accumulate(&mut learners, batch, update.settings.passes, &mut pass_stats);
        let gradient: Vec<f32> = read(&learner.gradient()).into_iter().map(|slope| -slope).collect();
        learner.discard();
        let losses = losses?;
        let tokens = pass_stats.ratios.tokens.max(1) as f64;
        let mut step = Step {
            taken: None,
            tried: 0,
            gradient_norm: dot(&gradient, &gradient).sqrt(),
            objective: -losses.policy,
            gained: 0.0,
            entropy: pass_stats.entropy / tokens,
            ratio: pass_stats.ratios.ratio(),
        };
        if !step.gradient_norm.is_finite() {
            return Err("the gradient of the policy is not finite".into());
        }

        // 2. The direction x with F x = g, and the length at which the quadratic model of the KL reaches its limit.
        let device = learner.parameters().device();
        let mut fisher = |vector: &[f32]| {
            let mut product = distributions.product(learner, &constant(vector.to_vec(), &device));
            add_scaled(&mut product, config.cg_damping, vector);
            let is_finite = product.iter().all(|x| x.is_finite());
            if is_finite { Ok(product) } else { Err("a product with the Fisher matrix is not finite".to_owned()) }
        };
        let direction = conjugate_gradient(&mut fisher, &gradient, config.cg_max_steps, RESIDUAL_TOLERANCE)?;
        let curvature = dot(&direction, &fisher(&direction)?);
        if curvature <= 0.0 {
            return Ok(step);
        }
        let length = (2.0 * config.target_kl / curvature).sqrt();

        // 3. The longest step that stays within the limit and raises the objective.
        let old = learner.frozen().policy;
        let weighted = |part: &[usize]| batch.experience.weighted(batch.advantages, part);
        // Computed exactly as for the steps. Otherwise a step that moves nothing could seem to raise the objective by rounding.
        let before = distributions.objective(&old, &weighted);
        let lengths = (0..config.line_search_max_iter)
            .map(|tried| length * config.line_search_shrinking_factor.powi(tried as i32));
        let accepts = |actor: &Actor| {
            step.tried += 1;
            let found = distributions.distance(&actor.policy, &old, &weighted);
            (found.kl < config.target_kl && found.objective > before).then_some(found)
        };
        step.taken = line_search(learner, &constant(direction, &device), lengths, accepts);
        step.gained = step.taken.map_or(0.0, |found| found.objective - before);
        Ok(step)
    }

    /// Runs the critic's passes over the rollouts: mean squared errors, without gradient clipping.
    fn step_critic(&mut self, batch: MiniBatch<'_>, update: Update<'_>, stats: &mut Stats) -> Result<(), String> {
        let TrpoConfig { critic_updates, critic_mini_batches: count, .. } = self.config;
        let Critic::Separate(critic) = &mut self.estimator.critic else { return Ok(()) };
        let experience = batch.experience;
        for epoch in 0..critic_updates {
            let order = update.order(batch.chosen, count, epoch);
            for (number, chosen) in mini_batches(&order, count).enumerate() {
                // The policy's step counts first.
                update.report(1 + epoch * count + number, 1 + count * critic_updates);
                let tokens: usize = chosen.iter().map(|&i| experience.rollout(i).counted()).sum();
                let settings = update.settings;
                let (lanes, passes) = (settings.passes.lanes, settings.passes.in_lanes(&lengths(experience, chosen)));
                let of_lane = |lane: usize| {
                    let mut loss = 0.0;
                    for (_, pass) in &passes[lane] {
                        let part = &chosen[pass.clone()];
                        let rows = actor::batch(&critic.learner.module().trunk, experience, part);
                        let values_m = critic.values(&rows);
                        let returns_m = batch.advantages.gather_critic(part, |critic| &critic.returns_t);
                        let returns_m = constant(returns_m, &values_m.device());
                        let part: Tensor<1> = sum(value::plain(values_m, returns_m)) / tokens as f64;
                        loss += f64::from(read(&part)[0]);
                        // The mean squared error is not halved.
                        critic.learner.accumulate(&(part * 2.0));
                    }
                    critic.learner.end_lane(lane);
                    Ok::<f64, String>(loss)
                };
                let own = lanes.run_own(of_lane);
                critic.learner.reduce(lanes, own.is_ok());
                let loss: f64 = lanes.share("losses of the critic", own)?.into_iter().sum();
                if !loss.is_finite() {
                    critic.learner.discard();
                    return Err(format!("the value loss is {loss}"));
                }
                let norm = critic.learner.step(critic.learning_rate * update.multiplier, 0.0)?;
                stats.mean("loss/value_avg", loss, 1.0);
                stats.mean("critic/grad_norm", norm, 1.0);
            }
        }
        Ok(())
    }
}

impl Algorithm for Trpo {
    fn needs_reference(&self) -> bool {
        true
    }

    fn advantages(&mut self, actor: &Actor, experience: &Experience, settings: &Settings) -> Advantages {
        self.estimator.advantages(actor, experience, settings)
    }

    fn update(
        &mut self,
        actor: &mut Learner<Actor>,
        experience: &Experience,
        advantages: &Advantages,
        update: Update<'_>,
    ) -> Result<StepReport, String> {
        let (scored, mut stats) = (experience.scored(), Stats::default());
        if scored.is_empty() {
            return Ok(StepReport::default());
        }
        let own = self.estimator.of_mini_batch(advantages, &scored);
        let advantages = own.as_ref().unwrap_or(advantages);
        let batch = MiniBatch {
            experience,
            advantages,
            chosen: &scored,
            skipped: &[],
            dropout: None,
            old: OldLogprobs::Sampled,
        };
        update.report(0, 1 + self.config.critic_updates * self.config.critic_mini_batches);
        let step = self.step(actor, batch, update)?;
        stats.mean("loss", -step.objective, 1.0);
        stats.mean("grad_norm", step.gradient_norm, 1.0);
        stats.mean("entropy", step.entropy, 1.0);
        stats.mean("val/ratio", step.ratio, 1.0);
        stats.mean("trust_region/accepted", f64::from(u8::from(step.taken.is_some())), 1.0);
        stats.mean("trust_region/tried", step.tried as f64, 1.0);
        stats.mean("trust_region/kl", step.taken.map_or(0.0, |found| found.kl), 1.0);
        stats.mean("trust_region/improvement", step.gained, 1.0);
        self.step_critic(batch, update, &mut stats)?;
        let tokens = lengths(experience, &scored).iter().sum();
        Ok(StepReport { tokens, metrics: stats, kl: None })
    }

    fn estimator(&self) -> Option<&Estimator> {
        Some(&self.estimator)
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::tensor::Device;

    use super::*;
    use crate::learner::optimizer::Optimizer;

    #[derive(Module, Debug)]
    struct Point {
        at: Param<Tensor<1>>,
    }

    #[test]
    fn a_line_search_ends_where_it_is_accepted_or_where_it_began() {
        let device = Device::flex().autodiff();
        let point = Point { at: Param::from_tensor(Tensor::from_floats([0.1, -3.0, 1e-7], &device)) };
        let mut learner = Learner::new(point, Optimizer::new(TrainConfig::default().optimizer()));
        let bits = |learner: &Learner<Point>| {
            read(&learner.parameters()).iter().map(|number| number.to_bits()).collect::<Vec<_>>()
        };
        let (before, direction) = (bits(&learner), Tensor::from_floats([1.0, 1.0, 0.3], &device.inner()));
        let mut pass_stats = Vec::new();
        let refused = line_search(&mut learner, &direction, [4.0, 2.0, 1.0].into_iter(), |point: &Point| {
            pass_stats.push(read(&point.at.val())[1]);
            None::<()>
        });
        assert_eq!((refused, pass_stats), (None, vec![1.0, -1.0, -2.0]));
        assert_eq!(bits(&learner), before);
        let taken = line_search(&mut learner, &direction, [4.0, 2.0, 1.0].into_iter(), |point: &Point| {
            let at = read(&point.at.val())[1];
            (at < 0.0).then_some(at)
        });
        assert_eq!((taken, read(&learner.parameters())[1]), (Some(-1.0), -1.0));
    }
}
