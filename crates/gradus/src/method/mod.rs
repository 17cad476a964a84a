//! Descriptions of training methods for the rest of the program, based on each method's own keys.
//!
//! A method is a configuration struct in its own file, next to its objective or its algorithm. [`Method`] describes its name, its rows and
//! models, and the rules for its keys. [`OfflineMethod`](crate::objective::OfflineMethod) or
//! [`OnlineMethod`](crate::algorithm::OnlineMethod) defines how it trains. [`MethodConfig`](crate::config::MethodConfig) lists all methods.

mod cast;
mod iteration;
mod keys;
mod preset;
mod problems;
mod sampling;

use std::ops::Deref;

use serde_json::{Map, Value};

pub use cast::{Cast, Head, Lifetime, Role, Source, TrainedBy, TrainedParts};
pub use iteration::Iteration;
pub use keys::{RolloutKeys, describe_defaults, describe_groups, flattened};
pub use preset::Preset;
pub use problems::{Problem, Problems};

use crate::data::{Need, TooLong};
use crate::reward::config::RewardConfig;
use crate::settings::{RolloutsConfig, TrainConfig};

/// A training method, implemented by the struct of its configuration keys.
pub trait Method {
    /// Returns the key of the method, which is also its command.
    fn name(&self) -> &'static str;

    /// Describes its command in one line.
    fn about(&self) -> &'static str;

    /// Returns defaults of keys of `train`.
    fn defaults(&self) -> Defaults;

    /// Returns the fields that its rows must have.
    fn need(&self) -> Need;

    /// Returns the models of a run.
    fn cast(&self, shared: &Shared<'_>) -> Cast;

    /// Reports problems with its keys, and with keys of `train` that conflict with them.
    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig);

    /// Reports problems with sampling on the server of `rollouts`.
    fn rollouts_rules(&self, _problems: &mut Problems<'_>, _rollouts: &RolloutsConfig) {}

    /// Returns the length limit, in tokens, of completions that an offline method samples during training. `None` if it samples none.
    fn sampled_tokens(&self) -> Option<usize> {
        None
    }

    /// Whether whole distributions are compared, one block of tokens at a time.
    fn compares_logits(&self) -> bool {
        false
    }

    /// Returns the settings of a preset as a configuration file; `None` if the preset does not cover this method.
    fn preset(&self, _preset: Preset) -> Option<&'static str> {
        None
    }

    /// Returns advice about final metrics that often puzzle users. `last` maps keys of `metrics.jsonl` to values.
    fn advice(&self, _last: &Map<String, Value>) -> Vec<String> {
        Vec::new()
    }

    /// Whether training may use dropout. It may not if logprobs of one text under several models are compared, because they would differ at
    /// random. Online methods may: rollouts are sampled and scored without dropout, and only updates use it. PPO, NLPO and A2C take ratios
    /// to the logprobs of the sampler, like FineGrainedRLHF. GRPO and RLOO take ratios to logprobs with dropout, like TRL.
    fn drops_out(&self) -> bool {
        false
    }

    /// Whether training may add noise to the embeddings of the policy: the policy is trained on given texts, in one pass over each.
    fn adds_noise(&self) -> bool {
        false
    }

    /// Whether the reference can follow the policy (`train.sync_ref_model`): each step runs it, and none of its log-probabilities are stored.
    fn reference_may_follow(&self) -> bool {
        false
    }

    /// Whether the loss is a mean over the passes of a step, so that it depends on the split of its rows into passes.
    fn averages_over_passes(&self) -> bool {
        false
    }
}

/// A pointer to a method is a method, too: a registered one stands behind a box.
impl<P: Deref<Target: Method>> Method for P {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn about(&self) -> &'static str {
        (**self).about()
    }

    fn defaults(&self) -> Defaults {
        (**self).defaults()
    }

    fn need(&self) -> Need {
        (**self).need()
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        (**self).cast(shared)
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        (**self).rules(problems, train);
    }

    fn rollouts_rules(&self, problems: &mut Problems<'_>, rollouts: &RolloutsConfig) {
        (**self).rollouts_rules(problems, rollouts);
    }

    fn sampled_tokens(&self) -> Option<usize> {
        (**self).sampled_tokens()
    }

    fn compares_logits(&self) -> bool {
        (**self).compares_logits()
    }

    fn preset(&self, preset: Preset) -> Option<&'static str> {
        (**self).preset(preset)
    }

    fn advice(&self, last: &Map<String, Value>) -> Vec<String> {
        (**self).advice(last)
    }

    fn drops_out(&self) -> bool {
        (**self).drops_out()
    }

    fn adds_noise(&self) -> bool {
        (**self).adds_noise()
    }

    fn reference_may_follow(&self) -> bool {
        (**self).reference_may_follow()
    }

    fn averages_over_passes(&self) -> bool {
        (**self).averages_over_passes()
    }
}

/// Defaults of `train` that depend on the method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Treatment of rows longer than `max_length`.
    pub too_long: TooLong,
    /// Held-out metric that selects the model in `best/`.
    pub best_metric: &'static str,
}

impl Defaults {
    /// Returns each default with its key.
    pub fn keys(&self) -> [(&'static str, String); 3] {
        let too_long = match self.too_long {
            TooLong::Skip => "skip",
            TooLong::Truncate => "truncate",
        };
        // The notation of configuration files: 2e-5.
        let learning_rate = format!("{:e}", self.learning_rate);
        [
            ("train.learning_rate", learning_rate),
            ("train.too_long", too_long.into()),
            ("train.best_metric", self.best_metric.into()),
        ]
    }
}

/// Other parts of the configuration that a cast depends on.
#[derive(Debug, Clone, Copy)]
pub struct Shared<'a> {
    /// Keys that all methods share.
    pub train: &'a TrainConfig,
    /// Rewards of completions.
    pub reward: Option<&'a RewardConfig>,
}
