//! Online methods that a program registers by name. A box adapts them to the built-in interface.

use std::ops::Deref;
use std::sync::LazyLock;

use super::{Algorithm, AlgorithmInputs, OnlineMethod};
use crate::data::{Need, TooLong};
use crate::method::{Cast, Defaults, Head, Iteration, Method, Problems, RolloutKeys, Shared};
use crate::settings::TrainConfig;

/// A registered method, with its keys.
pub struct Plugged(Box<dyn OnlineMethod + Send + Sync>);

impl Plugged {
    /// Wraps a method.
    pub fn new(method: impl OnlineMethod + Send + Sync + 'static) -> Self {
        Self(Box::new(method))
    }
}

impl Deref for Plugged {
    type Target = dyn Method;

    fn deref(&self) -> &Self::Target {
        &*self.0
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

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    struct Advising;

    impl Method for Advising {
        fn name(&self) -> &'static str {
            Unbound.name()
        }

        fn about(&self) -> &'static str {
            Unbound.about()
        }

        fn defaults(&self) -> Defaults {
            Unbound.defaults()
        }

        fn need(&self) -> Need {
            Unbound.need()
        }

        fn cast(&self, shared: &Shared<'_>) -> Cast {
            Unbound.cast(shared)
        }

        fn rules(&self, _: &mut Problems<'_>, _: &TrainConfig) {}

        fn advice(&self, _: &Map<String, Value>) -> Vec<String> {
            vec!["train longer".into()]
        }
    }

    impl OnlineMethod for Advising {
        fn iteration(&self) -> Iteration<'_> {
            Iteration::new(&ROLLOUTS, 1, 1)
        }

        fn algorithm(&self, _: AlgorithmInputs) -> Box<dyn Algorithm> {
            unreachable!("nothing trains")
        }
    }

    #[test]
    fn a_registered_method_gives_its_advice() {
        let advice = |method: &dyn Method| method.advice(&Map::new());
        assert_eq!(advice(&Plugged::new(Advising)), ["train longer"]);
    }
}
