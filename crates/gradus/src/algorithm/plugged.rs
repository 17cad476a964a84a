//! Online methods that a program registers by name. A box adapts them to the built-in interface.

use std::sync::LazyLock;

use super::{Algorithm, AlgorithmInputs, OnlineMethod};
use crate::data::{Need, TooLong};
use crate::method::{Cast, Defaults, Head, Iteration, Method, Preset, Problems, RolloutKeys, Shared};
use crate::settings::{RolloutsConfig, TrainConfig};

/// A registered method, with its keys.
pub struct Plugged(Box<dyn OnlineMethod + Send + Sync>);

impl Plugged {
    /// Wraps a method.
    pub fn new(method: impl OnlineMethod + Send + Sync + 'static) -> Self {
        Self(Box::new(method))
    }
}

impl Method for Plugged {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn about(&self) -> &'static str {
        self.0.about()
    }

    fn defaults(&self) -> Defaults {
        self.0.defaults()
    }

    fn need(&self) -> Need {
        self.0.need()
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        self.0.cast(shared)
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        self.0.rules(problems, train);
    }

    fn rollouts_rules(&self, problems: &mut Problems<'_>, rollouts: &RolloutsConfig) {
        self.0.rollouts_rules(problems, rollouts);
    }

    fn sampled_tokens(&self) -> Option<usize> {
        self.0.sampled_tokens()
    }

    fn compares_logits(&self) -> bool {
        self.0.compares_logits()
    }

    fn preset(&self, preset: Preset) -> Option<&'static str> {
        self.0.preset(preset)
    }

    fn drops_out(&self) -> bool {
        self.0.drops_out()
    }

    fn averages_over_passes(&self) -> bool {
        self.0.averages_over_passes()
    }
}

impl OnlineMethod for Plugged {
    fn iteration(&self) -> Iteration<'_> {
        self.0.iteration()
    }

    fn algorithm(&self, inputs: AlgorithmInputs) -> Box<dyn Algorithm> {
        self.0.algorithm(inputs)
    }
}

/// Placeholder for an unregistered method; the rules of the configuration reject it.
pub struct Unbound;

static ROLLOUTS: LazyLock<RolloutKeys> = LazyLock::new(|| RolloutKeys::new(1, 1, 1.0));

impl Method for Unbound {
    fn name(&self) -> &'static str {
        "plugin"
    }

    fn about(&self) -> &'static str {
        "A method that is not there"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-6, too_long: TooLong::Skip, best_metric: "eval_reward" }
    }

    fn need(&self) -> Need {
        Need::Prompt
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        Cast::alone(shared, Head::Language).with_rewards(shared)
    }

    fn rules(&self, _: &mut Problems<'_>, _: &TrainConfig) {}
}

impl OnlineMethod for Unbound {
    fn iteration(&self) -> Iteration<'_> {
        Iteration::new(&ROLLOUTS, 1, 1)
    }

    fn algorithm(&self, _: AlgorithmInputs) -> Box<dyn Algorithm> {
        unreachable!("a plan has what makes its plug-ins")
    }
}
