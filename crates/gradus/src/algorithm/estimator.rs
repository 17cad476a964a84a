//! Steps from rewards to advantages that all algorithms with a critic share: KL penalty, whitening and GAE.
//!
//! Schulman et al. 2016, <https://arxiv.org/abs/1506.02438>; for language models Ziegler et al. 2019,
//! <https://arxiv.org/abs/1909.08593>. The variants are those of TRL 1.12, RL4LMs (Ramamurthy et al. 2023,
//! <https://arxiv.org/abs/2210.01241>) and FineGrainedRLHF (Wu et al. 2023, <https://arxiv.org/abs/2306.01693>).

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::actor::Actor;
use super::advantage::of_critic;
use super::critic::Critic;
pub use super::kl_config::{KlConfig, KlEstimator, KlLimit, KlUnit};
use super::shaping::{KlPenalty, MeasuredKl, Penalties, add_scores, whiten_lists};
use super::{Advantages, Experience};
use crate::error::Result;
use crate::learner::LearnerState;
use crate::math::stats::Variance;
use crate::math::{Divisor, Whiten};
use crate::method::{Cast, Head, Lifetime, Problems, Role, Shared, Source, TrainedBy, TrainedParts};
use crate::model::HeadLayers;
use crate::settings::Settings;
use crate::stats::{Mean, Stats};

/// The critic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CriticConfig {
    /// Trunk of the critic: `shared` with the policy, or a `separate` model. Default `separate` (TRL).
    pub trunk: CriticTrunk,
    /// Model directory that a separate critic starts from. Default: the reward model if there is one, else the policy.
    pub model: Option<String>,
    /// Learning rate of a separate critic. Default: the policy's.
    pub learning_rate: Option<f64>,
    /// Head of a separate critic: one `linear` layer, or FineGrainedRLHF's `two_layer` head, whose last layer also
    /// starts at 0. A model with another head gets a new one. Default `linear` (TRL).
    pub head: HeadLayers,
    /// Train only the head of a separate critic and freeze its trunk (FineGrainedRLHF's `freeze_value_model`). Default false.
    pub freeze_trunk: bool,
}

impl Default for CriticConfig {
    fn default() -> Self {
        Self {
            trunk: CriticTrunk::Separate,
            model: None,
            learning_rate: None,
            head: HeadLayers::Linear,
            freeze_trunk: false,
        }
    }
}

/// Source of the critic's hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CriticTrunk {
    /// The policy's trunk: one forward pass serves both.
    Shared,
    /// A separate model.
    Separate,
}

/// Settings for whitening rewards and advantages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WhiteningConfig {
    /// Divisor that whitens rewards, after the mean is subtracted. Default `unbiased` (TRL).
    pub rewards: WhiteningDivisor,
    /// Divisor that whitens advantages, after the mean is subtracted. Default `unbiased` (TRL).
    pub advantages: WhiteningDivisor,
    /// Shift whitened rewards to mean 0 instead of keeping their mean. Default false (TRL; RL4LMs' `norm_reward`: true).
    pub center_rewards: bool,
    /// Let whitened rewards extend into the padding after a completion, up to the longest completion of the iteration,
    /// and from there back through GAE. Default false (FineGrainedRLHF: true).
    pub leak_padding: bool,
    /// Tokens over which advantages are whitened. Default `batch` (TRL).
    pub advantages_over: WhitenedOver,
}

impl Default for WhiteningConfig {
    fn default() -> Self {
        let divisor = WhiteningDivisor::Unbiased;
        Self {
            rewards: divisor,
            advantages: divisor,
            center_rewards: false,
            leak_padding: false,
            advantages_over: WhitenedOver::Batch,
        }
    }
}

/// Divisor of the distances from the mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhiteningDivisor {
    /// √(σ² + 1e-8), with σ² divided by n − 1 (TRL).
    Unbiased,
    /// √(σ² + 1e-8), with σ² divided by n (Ziegler et al. 2019).
    Biased,
    /// σ + 1e-8, with σ² divided by n − 1 (RL4LMs' advantages).
    Deviation,
    /// σ + 1e-8, with σ² divided by n (RL4LMs' `norm_reward`).
    BiasedDeviation,
    /// √(σ + 1e-8), with σ² divided by n (published code of FineGrainedRLHF).
    RootOfDeviation,
}

impl From<WhiteningDivisor> for Divisor {
    fn from(divisor: WhiteningDivisor) -> Self {
        match divisor {
            WhiteningDivisor::Unbiased => Self::Root(Variance::Unbiased),
            WhiteningDivisor::Biased => Self::Root(Variance::Biased),
            WhiteningDivisor::Deviation => Self::Deviation(Variance::Unbiased),
            WhiteningDivisor::BiasedDeviation => Self::Deviation(Variance::Biased),
            WhiteningDivisor::RootOfDeviation => Self::RootOfDeviation,
        }
    }
}

/// Tokens over which advantages are whitened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhitenedOver {
    /// All tokens of the iteration.
    Batch,
    /// The tokens of each mini-batch (RL4LMs).
    MiniBatch,
}

/// Keys of the steps from rewards to advantages, for methods with a critic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdvantageKeys {
    /// Discount γ.
    pub discount: f64,
    /// GAE's λ.
    pub gae_lambda: f64,
    /// Whiten rewards before GAE.
    pub whiten_rewards: bool,
    /// Whiten advantages.
    pub whiten_advantages: bool,
    /// Subtract this from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1).
    pub missing_eos_penalty: Option<f64>,
    /// The KL penalty in the reward.
    pub kl: KlConfig,
    /// The critic. That of TRPO must have a trunk of its own, because the policy's steps do not train it.
    pub critic: CriticConfig,
}

impl AdvantageKeys {
    /// Creates keys with these values and the defaults of all methods for the others.
    pub fn new(discount: f64, gae_lambda: f64, whiten_advantages: bool) -> Self {
        Self {
            discount,
            gae_lambda,
            whiten_rewards: false,
            whiten_advantages,
            missing_eos_penalty: None,
            kl: KlConfig::default(),
            critic: CriticConfig::default(),
        }
    }
}

/// Settings of the steps from rewards to advantages.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimation {
    /// Keys that all methods with a critic have.
    pub keys: AdvantageKeys,
    /// Settings of the whitening.
    pub whitening: WhiteningConfig,
}

impl Estimation {
    /// Reports invalid keys of `method`.
    pub(crate) fn rules(&self, problems: &mut Problems<'_>, method: &str) {
        let key = |name: &str| format!("method.{method}.{name}");
        let keys = &self.keys;
        problems.within(&key("discount"), keys.discount, 0.0..=1.0);
        problems.within(&key("gae_lambda"), keys.gae_lambda, 0.0..=1.0);
        problems.at_least(&key("missing_eos_penalty"), keys.missing_eos_penalty.unwrap_or(0.0), 0.0);
        let leaks = self.whitening.leak_padding && !keys.whiten_rewards;
        let leak_padding = key("quirks.whitening.leak_padding");
        problems.require(!leaks, &[&leak_padding, &key("whiten_rewards")], || {
            let message = format!("`{leak_padding}` is true, but no rewards are whitened");
            (message, Some(format!("set `{}`, or leave it out", key("whiten_rewards"))))
        });
        keys.kl.rules(problems, method);
        keys.critic.rules(problems, method);
    }
}

/// Computes advantages from rewards. Its state is the critic and the KL controller.
#[derive(Debug)]
pub struct Estimator {
    settings: Estimation,
    kl: KlPenalty,
    /// Predicts the values of states.
    pub critic: Critic,
}

impl Estimator {
    /// Creates an estimator from `settings`; `kl_coefficient` comes from a resumed run.
    pub fn new(settings: Estimation, critic: Critic, kl_coefficient: Option<f64>) -> Self {
        let kl = KlPenalty::new(&settings.keys.kl, kl_coefficient);
        Self { settings, kl, critic }
    }

    /// Computes the advantages of all rollouts, on the host, and advances the KL controller by one step.
    pub fn advantages(&mut self, actor: &Actor, experience: &Experience, settings: &Settings) -> Advantages {
        let values = self.critic.values(actor, experience, settings.passes);
        let mut stats = Stats::default();
        // Rewards per token: the scores minus the penalties.
        let Penalties { mut rewards, kl } = self.kl.penalties(experience);
        add_scores(&mut rewards, experience, self.settings.keys.missing_eos_penalty, &mut stats);
        if let Some(measured) = kl {
            self.kl.adapt(measured, &mut stats);
        }
        let found = self.estimate(rewards, values, &experience.scored());
        stats.merge(&found.stats);
        let kl = kl.map(|MeasuredKl { sum, sequences, .. }| Mean { sum, count: sequences });
        Advantages { kl, stats, ..found }
    }

    /// Computes advantages from penalized rewards and values. Only `scored` rollouts enter whitening and the critic's targets.
    fn estimate(&self, mut rewards: Vec<Vec<f32>>, values: Vec<Vec<f32>>, scored: &[usize]) -> Advantages {
        let Estimation { keys, whitening, .. } = &self.settings;
        let mut padding = None;
        if keys.whiten_rewards {
            let mean = if whitening.center_rewards { Whiten::ZeroMean } else { Whiten::KeepMean };
            let zero = whiten_lists(&mut rewards, scored, mean, whitening.rewards.into());
            padding = whitening.leak_padding.then_some(zero);
        }
        let mut found = of_critic(&rewards, values, scored, (keys.discount, keys.gae_lambda), padding);
        if keys.whiten_advantages && whitening.advantages_over == WhitenedOver::Batch {
            self.whiten(&mut found, scored);
        }
        found
    }

    /// Returns the advantages for a step over the rollouts `chosen`, whitened over these. `None` if the keys do not
    /// whiten per mini-batch.
    pub fn of_mini_batch(&self, advantages: &Advantages, chosen: &[usize]) -> Option<Advantages> {
        let Estimation { keys, whitening, .. } = &self.settings;
        let is_enabled = keys.whiten_advantages && whitening.advantages_over == WhitenedOver::MiniBatch;
        is_enabled.then(|| {
            let mut own = advantages.clone();
            self.whiten(&mut own, chosen);
            own
        })
    }

    fn whiten(&self, advantages: &mut Advantages, chosen: &[usize]) {
        let mut lists: Vec<Vec<f32>> =
            advantages.targets.iter_mut().map(|targets| std::mem::take(&mut targets.advantages_t)).collect();
        whiten_lists(&mut lists, chosen, Whiten::ZeroMean, self.settings.whitening.advantages.into());
        for (targets, advantages_t) in advantages.targets.iter_mut().zip(lists) {
            targets.advantages_t = advantages_t;
        }
    }

    /// Returns the current KL coefficient.
    pub fn kl_coefficient(&self) -> f64 {
        self.kl.coefficient()
    }

    /// Returns the KL at which the run stops because the policy is too far from the reference.
    pub fn kl_limit(&self) -> Option<KlLimit> {
        let KlConfig { stop_above, stop_after, .. } = self.settings.keys.kl;
        stop_above.map(|above| KlLimit { above, after: stop_after })
    }

    /// Returns the critic's learner, if it is a separate model.
    pub fn learners(&self) -> Vec<(&str, LearnerState<'_>)> {
        match &self.critic {
            Critic::Shared => Vec::new(),
            Critic::Separate(critic) => vec![(CRITIC_PREFIX, critic.learner.state())],
        }
    }

    /// Writes the critic below `directory`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, actor: &Actor, directory: &Path) -> Result<()> {
        self.critic.save(actor, directory)
    }
}

/// Prefix of a separate critic's parameter names in a checkpoint.
pub(crate) const CRITIC_PREFIX: &str = "critic.";

impl CriticConfig {
    /// Reports invalid keys under `method`.`critic`.
    pub(crate) fn rules(&self, problems: &mut Problems<'_>, method: &str) {
        let key = |name: &str| format!("method.{method}.critic.{name}");
        let [trunk, model, learning_rate, head, freeze_trunk] =
            ["trunk", "model", "learning_rate", "head", "freeze_trunk"].map(key);
        problems.at_least(&learning_rate, self.learning_rate.unwrap_or(0.0), 0.0);
        let shared = self.trunk == CriticTrunk::Shared;
        for (key, given, reason) in [
            (model, self.model.is_some(), "it is a head on the policy and has no start model of its own"),
            (learning_rate, self.learning_rate.is_some(), "one optimizer updates policy and critic"),
            (head, self.head != HeadLayers::Linear, "its head is one linear layer"),
            (freeze_trunk, self.freeze_trunk, "the trunk is trained as part of the policy"),
        ] {
            problems.require(!(shared && given), &[&key, &trunk], || {
                let message = format!("`{key}` is given, but the critic shares the policy's trunk: {reason}");
                (message, Some("leave it out, or use `trunk: separate`".into()))
            });
        }
    }

    /// Returns the models of a run with this critic: policy, reference, reward models, critic.
    pub(crate) fn cast(&self, shared: &Shared<'_>, reference_model: Option<&str>) -> Cast {
        let cast = Cast::alone(shared, Head::Language)
            .with_reference(shared, reference_model, Lifetime::WholeRun)
            .with_rewards(shared);
        // A classifier cannot start a critic: it reads texts, not ids.
        let learned = cast.rewards.iter().find(|reward| reward.head == Head::SCALAR);
        let learned = learned.map(|reward| reward.source.clone());
        let (source, trained_by) = match self.trunk {
            CriticTrunk::Shared => (Source::Trunk, TrainedBy::Run),
            CriticTrunk::Separate => {
                let named = self.model.clone().map(Source::Named);
                let parts = if self.freeze_trunk { TrainedParts::Head } else { TrainedParts::All };
                (named.or(learned).unwrap_or(Source::Policy), TrainedBy::Own(self.learning_rate, parts))
            }
        };
        let (head, display_name) = (Head::Scalar(self.head), "the critic");
        let critic = Role { head, trained_by, display_name, ..Role::frozen(source, shared) };
        Cast { critic: Some(critic), ..cast }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sequences of four and two tokens, γ = 1 and λ = 0.95. The expected numbers follow FineGrainedRLHF's arithmetic.
    fn fine_grained(leak_padding: bool) -> Advantages {
        let settings = Estimation {
            keys: AdvantageKeys { whiten_rewards: true, ..AdvantageKeys::new(1.0, 0.95, true) },
            whitening: WhiteningConfig {
                rewards: WhiteningDivisor::RootOfDeviation,
                advantages: WhiteningDivisor::RootOfDeviation,
                leak_padding,
                ..WhiteningConfig::default()
            },
        };
        let rewards = vec![vec![0.0, 0.5, 0.0, -0.3], vec![0.3, 0.8]];
        let values = vec![vec![0.1, 0.2, 0.0, -0.1], vec![0.0, 0.4]];
        Estimator::new(settings, Critic::Shared, None).estimate(rewards, values, &[0, 1])
    }

    fn returns(advantages: &Advantages, rollout: usize) -> &[f32] {
        &advantages.targets[rollout].critic.as_ref().expect("a critic").returns_t
    }

    fn close(found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1.5e-6, "{found} instead of {expected}");
        }
    }

    #[test]
    fn whitening_and_gae_of_fine_grained_rlhf() {
        let found = fine_grained(true);
        close(returns(&found, 0), &[-0.164_063, -0.032_477, -0.757_632, -0.641_498]);
        close(returns(&found, 1), &[1.249_335, 0.920_268]);
        close(&found.targets[0].advantages_t, &[-0.313_606, -0.275_468, -0.909_586, -0.648_607]);
        close(&found.targets[1].advantages_t, &[1.513_804, 0.633_464]);
    }

    #[test]
    fn without_the_padding_only_the_shorter_sequence_differs_before_whitening() {
        let (leaking, masked) = (fine_grained(true), fine_grained(false));
        assert_eq!(returns(&leaking, 0), returns(&masked, 0));
        // δ₁ = 1.185563 − 0.4; Â₀ = 0.355080 + 0.4 + 0.95·0.785563.
        close(returns(&masked, 1), &[1.501_365, 1.185_563]);
    }
}
