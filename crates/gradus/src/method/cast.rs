//! Models of a run: their roles, sources, weight formats and trainers.

use super::Shared;
pub use crate::memory::terms::Head;
use crate::metric::{MetricConfig, MetricModel, ModelUse};
use crate::model::WeightFormat;
use crate::reward::config::Learned;

/// Models of a run. `R` describes each model: at first by its [`Role`], and later, once opened, by its files too.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast<R = Role> {
    /// Policy: trained, and saved as the result.
    pub policy: R,
    /// Critic: predicts the value of states.
    pub critic: Option<R>,
    /// Reference: the KL of the policy is measured against it.
    pub reference: Option<R>,
    /// A frozen copy of the policy as it was some iterations ago.
    pub lagged: Option<R>,
    /// Reward models: score completions.
    pub rewards: Vec<R>,
    /// Models that metrics use, in evaluations and as rewards.
    pub metrics: Vec<R>,
}

/// Role of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Role {
    /// Source of its weights.
    pub source: Source,
    /// Head on its trunk.
    pub head: Head,
    /// Format of untrained weights: all weights of a frozen model, or the base of one with an adapter.
    pub weights: WeightFormat,
    /// TrainedBy of its weights.
    pub trained_by: TrainedBy,
    /// How long it stays in memory.
    pub lifetime: Lifetime,
    /// Number of layers that are held; `None` for all.
    pub layers: Option<usize>,
    /// Name in messages.
    pub display_name: &'static str,
}

/// Source of a model's weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Start model of the run.
    Start,
    /// Model given by its directory or hub name.
    Named(String),
    /// The initial policy: its own weights until the first step or, with an adapter, its base with the adapter off.
    Policy,
    /// Policy's trunk; only the head has weights of its own.
    Trunk,
}

/// What updates a model's weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TrainedBy {
    /// Nothing: the model is frozen.
    Nobody,
    /// The run's optimizer.
    Run,
    /// Its own optimizer, with this peak learning rate (`None` for the run's), which updates these parts.
    Own(Option<f64>, TrainedParts),
}

/// Trained parts of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainedParts {
    /// The whole model or, with an adapter, the adapter and the head.
    All,
    /// Only the head; the weights below it do not change.
    Head,
}

/// How long a model stays in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// From the start of the run to its end.
    WholeRun,
    /// Until it has been used once before training.
    BeforeTraining,
}

impl Cast {
    /// Creates a cast with only a policy with `head`, and the models that its evaluations use.
    pub fn alone(shared: &Shared<'_>, head: Head) -> Self {
        let display_name = if head == Head::Language { "the policy" } else { "the model" };
        let policy = Role { head, trained_by: TrainedBy::Run, display_name, ..Role::frozen(Source::Start, shared) };
        let metrics = shared
            .train
            .evaluation
            .metrics
            .iter()
            .flat_map(MetricConfig::models)
            .map(|model| Role::for_metric(model, shared))
            .collect();
        Self { policy, critic: None, reference: None, lagged: None, rewards: Vec::new(), metrics }
    }

    /// Adds a frozen reference: the model `name`, or the initial policy.
    #[must_use]
    pub fn with_reference(self, shared: &Shared<'_>, name: Option<&str>, lifetime: Lifetime) -> Self {
        let source = name.map_or(Source::Policy, |name| Source::Named(name.to_owned()));
        let frozen = Role::frozen(source, shared);
        // A reference that follows the policy is a sum of both, so it is not rounded.
        let weights = if shared.train.sync_ref_model { WeightFormat::F32 } else { frozen.weights };
        Self { reference: Some(Role { lifetime, weights, ..frozen }), ..self }
    }

    /// Adds a frozen teacher, the model `name`: a reference that the policy imitates.
    #[must_use]
    pub fn with_teacher(self, shared: &Shared<'_>, name: &str) -> Self {
        let role = Role::frozen(Source::Named(name.to_owned()), shared);
        Self { reference: Some(Role { display_name: "the teacher", ..role }), ..self }
    }

    /// Adds the reward models that the configuration names, and the models that its metrics use.
    #[must_use]
    pub fn with_rewards(mut self, shared: &Shared<'_>) -> Self {
        let models = shared.reward.map(|reward| reward.metric_models()).unwrap_or_default();
        self.metrics.extend(models.into_iter().map(|model| Role::for_metric(model, shared)));
        let learned = shared.reward.map(|reward| reward.models()).unwrap_or_default();
        let role = |learned: Learned<'_>| {
            // Preliminary heads: the files of the model decide later.
            let head = match learned {
                Learned::Model(_) => Head::SCALAR,
                Learned::Classifier(_) | Learned::Segments(_) => Head::Labels,
            };
            Role { head, ..Role::frozen(Source::Named(learned.name().to_owned()), shared) }
        };
        Self { rewards: learned.into_iter().map(role).collect(), ..self }
    }

    /// Sources of all models that do not share another model's weights.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let roles = self.reference.iter().chain(&self.critic).chain(&self.rewards).chain(&self.metrics);
        roles.filter_map(|role| match &role.source {
            Source::Named(name) => Some(name.as_str()),
            Source::Start | Source::Policy | Source::Trunk => None,
        })
    }
}

impl Role {
    /// Creates the role of a frozen language model.
    pub fn frozen(source: Source, shared: &Shared<'_>) -> Self {
        let weights = shared.train.frozen_weights.unwrap_or(shared.train.compute.into());
        let display_name = "the reference";
        let (trained_by, lifetime) = (TrainedBy::Nobody, Lifetime::WholeRun);
        Self { source, head: Head::Language, weights, trained_by, lifetime, layers: None, display_name }
    }

    /// Creates the role of a model that a metric uses. Metrics compute in f32, like the tools that they reproduce.
    fn for_metric(MetricModel { name, usage }: MetricModel<'_>, shared: &Shared<'_>) -> Self {
        let (head, layers) = match usage {
            ModelUse::Language | ModelUse::TextToText => (Head::Language, None),
            ModelUse::Encoder { layer } => (Head::Labels, layer),
            ModelUse::Classifier => (Head::Labels, None),
        };
        let frozen = Self::frozen(Source::Named(name.to_owned()), shared);
        Self { head, layers, weights: WeightFormat::F32, display_name: "a metric's model", ..frozen }
    }
}

impl<R> Cast<R> {
    /// Maps the description of each model, and keeps the roles.
    ///
    /// # Errors
    /// The first error that `open` returns.
    pub fn try_map<S, E>(&self, mut open: impl FnMut(&R) -> Result<S, E>) -> Result<Cast<S>, E> {
        Ok(Cast {
            policy: open(&self.policy)?,
            critic: self.critic.as_ref().map(&mut open).transpose()?,
            reference: self.reference.as_ref().map(&mut open).transpose()?,
            lagged: self.lagged.as_ref().map(&mut open).transpose()?,
            rewards: self.rewards.iter().map(&mut open).collect::<Result<_, E>>()?,
            metrics: self.metrics.iter().map(&mut open).collect::<Result<_, E>>()?,
        })
    }
}
