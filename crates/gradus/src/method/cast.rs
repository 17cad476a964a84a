//! The models of a run: which parts there are, where each comes from, how its weights lie, who trains it.

use super::Shared;
pub use crate::memory::terms::Head;
use crate::metric::{MetricConfig, MetricModel, ModelUse};
use crate::model::WeightFormat;
use crate::reward::config::Learned;

/// The models of a run. `R` is what is known of each: its [`Role`] at first, and once it was opened its files too.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast<R = Role> {
    /// What is trained, and left behind.
    pub policy: R,
    /// Says what states are worth.
    pub critic: Option<R>,
    /// The policy is held to it, or measured against it.
    pub reference: Option<R>,
    /// A frozen copy of the policy as it was some iterations ago.
    pub lagged: Option<R>,
    /// Score completions.
    pub rewards: Vec<R>,
    /// Are asked by metrics, of evaluations and as rewards.
    pub metrics: Vec<R>,
}

/// One part.
#[derive(Debug, Clone, PartialEq)]
pub struct Role {
    /// Where its weights come from.
    pub source: Source,
    /// What stands on its trunk.
    pub head: Head,
    /// How weights lie that nobody trains: all of a frozen model's, the base of one with an adapter.
    pub weights: WeightFormat,
    /// Who changes its weights.
    pub trainer: Trainer,
    /// How long it is held.
    pub stay: Stay,
    /// How many of its layers are held; none: all.
    pub layers: Option<usize>,
    /// What messages call it, where it is a reference.
    pub called: &'static str,
}

/// Where weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The model that the run starts from.
    Start,
    /// A model by its directory or hub name.
    Named(String),
    /// The policy as it starts: its own weights until the first step; with an adapter, its base with the adapter off.
    Policy,
    /// No weights but the head's, on the policy's trunk.
    Trunk,
}

/// Who changes weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trainer {
    /// Nobody: the model is frozen.
    Nobody,
    /// The run's optimizer.
    Run,
    /// An optimizer of its own, with this peak learning rate (`None`: the run's), which changes these parts.
    Own(Option<f64>, TrainedParts),
}

/// Which parts of a model are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainedParts {
    /// All of it; under an adapter, the adapter and the head.
    All,
    /// The head on its trunk.
    Head,
}

/// How long a model is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// As long as the run.
    Whole,
    /// It is asked once, before training, and then forgotten.
    Before,
}

impl Cast {
    /// A run of a policy alone, with `head` on it, and of what its evaluations ask.
    pub fn alone(shared: &Shared<'_>, head: Head) -> Self {
        let policy = Role { head, trainer: Trainer::Run, ..Role::frozen(Source::Start, shared) };
        let metrics = shared
            .train
            .evaluation
            .metrics
            .iter()
            .flat_map(MetricConfig::models)
            .map(|asked| Role::asked(asked, shared))
            .collect();
        Self { policy, critic: None, reference: None, lagged: None, rewards: Vec::new(), metrics }
    }

    /// With a frozen reference: the model `name`, or the policy as it starts.
    #[must_use]
    pub fn with_reference(self, shared: &Shared<'_>, name: Option<&str>, stay: Stay) -> Self {
        let source = name.map_or(Source::Policy, |name| Source::Named(name.to_owned()));
        Self { reference: Some(Role { stay, ..Role::frozen(source, shared) }), ..self }
    }

    /// With a frozen teacher, the model `name`: a reference that the policy comes close to.
    #[must_use]
    pub fn with_teacher(self, shared: &Shared<'_>, name: &str) -> Self {
        let role = Role::frozen(Source::Named(name.to_owned()), shared);
        Self { reference: Some(Role { called: "the teacher", ..role }), ..self }
    }

    /// With the reward models that the configuration names, and those that its metrics ask.
    #[must_use]
    pub fn with_rewards(mut self, shared: &Shared<'_>) -> Self {
        let asked = shared.reward.map(|reward| reward.asked()).unwrap_or_default();
        self.metrics.extend(asked.into_iter().map(|asked| Role::asked(asked, shared)));
        let learned = shared.reward.map(|reward| reward.models()).unwrap_or_default();
        let role = |learned: Learned<'_>| {
            // What either kind is said to be here its files decide.
            let head = match learned {
                Learned::Model(_) => Head::SCALAR,
                Learned::Classifier(_) | Learned::Segments(_) => Head::Labels,
            };
            Role { head, ..Role::frozen(Source::Named(learned.name().to_owned()), shared) }
        };
        Self { rewards: learned.into_iter().map(role).collect(), ..self }
    }

    /// Where the weights of all parts come from that are no part of another's.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let roles = self.reference.iter().chain(&self.critic).chain(&self.rewards).chain(&self.metrics);
        roles.filter_map(|role| match &role.source {
            Source::Named(name) => Some(name.as_str()),
            Source::Start | Source::Policy | Source::Trunk => None,
        })
    }
}

impl Role {
    /// A language model that nobody trains.
    pub fn frozen(source: Source, shared: &Shared<'_>) -> Self {
        let weights = shared.train.frozen_weights.unwrap_or(shared.train.compute.into());
        let called = "the reference";
        let (trainer, stay) = (Trainer::Nobody, Stay::Whole);
        Self { source, head: Head::Language, weights, trainer, stay, layers: None, called }
    }

    /// A model that a metric asks. Metrics compute in f32, as the tools that they equal.
    fn asked(MetricModel { name, asked }: MetricModel<'_>, shared: &Shared<'_>) -> Self {
        let (head, layers) = match asked {
            ModelUse::Language | ModelUse::TextToText => (Head::Language, None),
            ModelUse::Encoder { layer } => (Head::Labels, layer),
            ModelUse::Classifier => (Head::Labels, None),
        };
        let frozen = Self::frozen(Source::Named(name.to_owned()), shared);
        Self { head, layers, weights: WeightFormat::F32, called: "a metric's model", ..frozen }
    }
}

impl<R> Cast<R> {
    /// The same parts with something else known of each.
    ///
    /// # Errors
    /// The first of `open`.
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
