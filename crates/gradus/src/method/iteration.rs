//! One iteration of online methods: how they sample, and how often they train on the samples.

use super::{Problems, RolloutKeys};
use crate::generate::TrainedLogprobs;
use crate::settings::TrainConfig;

/// One iteration of an online method. `'a` is the lifetime of its configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Iteration<'a> {
    /// How completions are sampled.
    pub rollouts: &'a RolloutKeys,
    /// Number of passes over the completions.
    pub update_epochs: usize,
    /// Number of mini-batches (optimizer steps) of one pass.
    pub mini_batches: usize,
    /// Names of the method's keys that set these two numbers. Default: `update_epochs` and `mini_batches`.
    pub keys: [&'static str; 2],
    /// Whether trained logprobs are normalized over the tokens that could be sampled, which needs whole rows of logits in memory.
    pub normalizes_over_supports: bool,
    /// Number of vectors, each as long as the policy's trained parameters, that are held while something other than the optimizer updates
    /// the policy before the critic is trained. `None` if the optimizer updates the policy.
    pub vectors: Option<u64>,
    /// Whether each mini-batch sorts the completions of a prompt together again.
    pub regroups: bool,
}

impl<'a> Iteration<'a> {
    /// Creates an iteration in which the optimizer updates the policy, one mini-batch after the other.
    pub fn new(rollouts: &'a RolloutKeys, update_epochs: usize, mini_batches: usize) -> Self {
        let normalizes_over_supports = rollouts.sampling.trained_logprobs == TrainedLogprobs::Processed;
        let keys = ["update_epochs", "mini_batches"];
        Self { rollouts, update_epochs, mini_batches, keys, normalizes_over_supports, vectors: None, regroups: false }
    }

    /// Reports problems with the keys of `method`.
    pub fn rules(&self, problems: &mut Problems<'_>, method: &str, train: &TrainConfig) {
        let key = |name: &str| format!("method.{method}.{name}");
        let [update_epochs_key, mini_batches_key] = self.keys.map(key);
        problems.at_least(&update_epochs_key, self.update_epochs, 1);
        problems.at_least(&mini_batches_key, self.mini_batches, 1);
        self.rollouts.rules(problems, method, train);
        let (batch, mini_batches) = (train.batch_size * self.rollouts.group_size, self.mini_batches);
        let divides = mini_batches == 0 || batch.is_multiple_of(mini_batches);
        problems.require(divides, &["train.batch_size", &key("group_size"), &mini_batches_key], || {
            let divisors: Vec<_> = (1..=batch).filter(|n| batch.is_multiple_of(*n)).collect();
            let below = divisors.iter().rev().find(|n| **n < mini_batches);
            let above = divisors.iter().find(|n| **n > mini_batches);
            let near: Vec<_> = below.into_iter().chain(above).map(ToString::to_string).collect();
            let message = format!(
                "`train.batch_size` × `{}` ({} × {} = {batch} completions) is not a multiple of `{mini_batches_key}` ({mini_batches})",
                key("group_size"),
                train.batch_size,
                self.rollouts.group_size,
            );
            (message, Some(format!("{} mini-batches would divide it", near.join(" or "))))
        });
    }
}
