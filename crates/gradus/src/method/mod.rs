//! What the rest of the program has to know of a method, said once, by the method's own keys.
//!
//! A method is a configuration struct in a file of its own, beside its objective or its algorithm. It says here what it
//! is called, which rows and models it needs and which keys do not go together; as an
//! [`OfflineMethod`](crate::objective::OfflineMethod) or an [`OnlineMethod`](crate::algorithm::OnlineMethod) it says how
//! it learns. [`MethodConfig`](crate::config::MethodConfig) lists all of them.

mod cast;
mod iteration;
mod preset;
mod problems;
mod sampling;

use serde_json::{Map, Value};

pub use cast::{Cast, Head, Role, Source, Stay, TrainedParts, Trainer};
pub use iteration::Iteration;
pub use preset::Preset;
pub use problems::{Found, Problems};

use crate::data::{Need, TooLong};
use crate::reward::config::RewardConfig;
use crate::settings::{RolloutsConfig, TrainConfig};

/// A method, by its keys.
pub trait Method {
    /// The key that names it, which is also its command.
    fn name(&self) -> &'static str;

    /// What its command does, in one line.
    fn about(&self) -> &'static str;

    /// What keys of `train` are, unless they are given.
    fn defaults(&self) -> Defaults;

    /// What its rows must have.
    fn need(&self) -> Need;

    /// The models of a run.
    fn cast(&self, shared: &Shared<'_>) -> Cast;

    /// Notes what is wrong with its keys, and with those of `train` beside them.
    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig);

    /// Notes what is wrong with sampling at the server of `rollouts`.
    fn rollouts_rules(&self, _problems: &mut Problems<'_>, _rollouts: &RolloutsConfig) {}

    /// The longest completion in tokens that it samples in training, where it learns from fixed examples and samples beside.
    fn sampled_tokens(&self) -> Option<usize> {
        None
    }

    /// Whether whole distributions are compared, of a block of tokens at a time.
    fn compares_logits(&self) -> bool {
        false
    }

    /// What a preset sets, as a configuration file; `None` where it says nothing of this method.
    fn preset(&self, _preset: Preset) -> Option<&'static str> {
        None
    }

    /// Sentences about the last numbers of a run that often puzzle people, by their keys in `metrics.jsonl`.
    fn advice(&self, _last: &Map<String, Value>) -> Vec<String> {
        Vec::new()
    }

    /// Whether masks of dropout may be drawn in training. They may not where logprobs of one text under several models are
    /// compared, which would differ by chance. Online methods may: rollouts are sampled and scored without dropout, and only
    /// updates drop. PPO, NLPO and A2C take ratios to the logprobs of the sampler, as FineGrainedRLHF does; GRPO and RLOO take
    /// them to logprobs with dropout, as TRL does.
    fn drops_out(&self) -> bool {
        false
    }
}

/// Defaults of `train` that depend on the method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// The peak learning rate.
    pub learning_rate: f64,
    /// What happens to rows over `max_length`.
    pub too_long: TooLong,
    /// The held-out metric that decides which model is `best/`.
    pub best_metric: &'static str,
}

impl Defaults {
    /// Each with its key.
    pub fn keys(&self) -> [(&'static str, String); 3] {
        let too_long = match self.too_long {
            TooLong::Skip => "skip",
            TooLong::Truncate => "truncate",
        };
        // As numbers are written in files: 2e-5.
        let learning_rate = format!("{:e}", self.learning_rate);
        [
            ("train.learning_rate", learning_rate),
            ("train.too_long", too_long.into()),
            ("train.best_metric", self.best_metric.into()),
        ]
    }
}

/// What the rest of a configuration says that a cast depends on.
#[derive(Debug, Clone, Copy)]
pub struct Shared<'a> {
    /// Keys of every method.
    pub train: &'a TrainConfig,
    /// What completions are worth.
    pub reward: Option<&'a RewardConfig>,
}
